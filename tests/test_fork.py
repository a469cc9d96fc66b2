"""Fork: the child has no handle, writes nothing of its parent's, unlocks nothing, keeps nothing locked (P24)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from propkit import in_child

from eventlog import Durability, Event, EventLog, LockTimeout, LogClosed
from eventlog.audit import verify

# Python 3.12 warns of any fork beside threads. That is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
LAZY = Durability.BATCHED


def test_p24_every_use_of_an_inherited_handle_raises(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log, EventLog.open(tmp_path / "log", read_only=True) as reader:
        log.commit(Event("t", {}))
        owner = log.own("x")
        assert owner is not None
        uses: list[Callable[[], object]] = [
            lambda: log.commit(Event("t", {})),
            lambda: log.commit(Event("t", {}), LAZY),
            lambda: list(log.read()),
            lambda: next(log.follow()),
            lambda: log.wait(0, 0),
            lambda: log.flush(),
            lambda: log.head,
            lambda: log.segments(),
            lambda: log.own("y"),
            lambda: log.owned("x"),
            lambda: list(reader.read()),
        ]

        def work() -> None:
            for use in uses:
                with pytest.raises(LogClosed):
                    use()
            owner.release()
            log.close()
            log.close()
            left = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]
            assert not [name for name in left if str(tmp_path) in name], "the child keeps descriptors of its parent's log"
            with EventLog.open(tmp_path / "log") as own:  # one of its own is fine
                own.commit(Event("child", {}))
                assert own.own("x") is None, "the child freed its parent's owner lock"

        assert in_child(work) == 0
        log.commit(Event("t", {}))
        assert [e.type for e in log.read()] == ["t", "child", "t"]
        assert log.own("x") is None
        owner.release()


ENDS = ["os._exit(0)", "sys.exit(0)", "pass", "raise RuntimeError", "os.kill(os.getpid(), 9)", "log.close()", "del log; gc.collect()"]


@pytest.mark.parametrize("end", ENDS)
def test_p24_however_the_child_ends_it_touches_nothing(tmp_path: Path, end: str) -> None:
    """With a batch of the parent's waiting in memory and on the lock: nothing is written twice, the parent goes on."""
    code = f"""
import gc, os, sys
from eventlog import *
log = EventLog.open(sys.argv[1], batch_window_ms=600_000, lock_timeout=1)
for n in range(5): log.commit(Event("t", {{"n": n}}), Durability.BATCHED)
before = os.stat(sys.argv[1] + "/segments/00000000000000000001.seg").st_mtime_ns
pid = os.fork()
if pid == 0:
    sys.stderr = open(os.devnull, "w")
    {end}
    sys.exit(0)
os.waitpid(pid, 0)
assert os.stat(sys.argv[1] + "/segments/00000000000000000001.seg").st_mtime_ns == before, "the child wrote"
for n in range(5, 8): log.commit(Event("t", {{"n": n}}))
log.close()
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "log")], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "fine\n", done.stderr
    with EventLog.open(tmp_path / "log") as log:
        assert [e.data["n"] for e in log.read()] == list(range(8))


def test_p24_a_child_neither_frees_nor_keeps_the_writer_lock(tmp_path: Path) -> None:
    """The parent forks inside decide(), that is with the lock in its hand."""
    path = tmp_path / "log"

    class Nothing:  # a projection, as small as can be
        initial = 0
        handlers = {"x": lambda state, e: state}  # noqa: RUF012

    with EventLog.open(path, lock_timeout=0.2) as log:
        gate, answer = os.pipe(), os.pipe()

        def decide(state: int) -> Event:
            pid = os.fork()
            if pid == 0:
                try:
                    log.close()
                    os.write(answer[1], b"x")
                    os.read(gate[0], 1)  # lives on, after the parent has given the lock back
                finally:
                    os._exit(0)
            os.read(answer[0], 1)
            with pytest.raises(LockTimeout):  # the child's close() did not unlock
                EventLog.open(path, lock_timeout=0.1)
            return Event("decided", {"child": pid})

        log.transact(Nothing(), decide)
        with EventLog.open(path, lock_timeout=0.5) as other:  # and the living child does not keep it
            other.commit(Event("other", {}))
            child = next(iter(other.read(types={"decided"}))).data["child"]
        os.write(gate[1], b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for fd in gate + answer:
            os.close(fd)
        log.commit(Event("after", {}))
    assert verify(path).ok


def test_p24_forks_beside_committing_threads(tmp_path: Path) -> None:
    """doltlite 1205: sleeping children (no exec) never hold up the parent's threads; each can close and open anew."""
    path = tmp_path / "log"
    with EventLog.open(path, segment_bytes_max=4096, lock_timeout=2) as log:
        stop = threading.Event()
        wrong: list[BaseException] = []

        def write(durability: Durability) -> None:
            try:
                while not stop.is_set():
                    log.commit(Event("t", {"x": "y" * 200}), durability)
            except BaseException as error:  # noqa: BLE001  shown by the assertion
                wrong.append(error)

        threads = [threading.Thread(target=write, args=(durability,)) for durability in Durability]
        for thread in threads:
            thread.start()
        sleepers = []
        try:
            for n in range(40):
                pid = os.fork()
                if pid == 0:
                    code = 1
                    try:
                        try:
                            log.commit(Event("child", {}))
                        except LogClosed:
                            log.close()
                            if n % 8 == 0:
                                with EventLog.open(path, lock_timeout=5) as own:
                                    own.commit(Event("own", {}))
                            if n % 4 == 1:
                                signal.pause()  # until it is killed
                            code = 0
                    finally:
                        os._exit(code)
                if n % 4 == 1:
                    sleepers.append(pid)
                else:
                    deadline = time.monotonic() + 20
                    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
                        if time.monotonic() > deadline:
                            os.kill(pid, signal.SIGKILL)
                            os.waitpid(pid, 0)
                            raise AssertionError(f"child {n} hangs")
                        time.sleep(0.001)
                    assert os.waitstatus_to_exitcode(done[1]) == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            for pid in sleepers:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        assert not wrong
        events = list(log.read())
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        assert sum(1 for e in events if e.type == "own") == 5
    assert verify(path).ok


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_p24_multiprocessing(tmp_path: Path, method: str) -> None:
    """Workers that open for themselves, started while the parent's handle is open and busy."""
    code = f"""
import multiprocessing, sys
from eventlog import *
def work(name):
    try: log.commit(Event("t", {{}}))
    except (LogClosed, NameError): pass
    else: raise SystemExit("used its parent's handle")
    with EventLog.open(sys.argv[1]) as own: own.commit(Event("mp", {{"name": name}}), Durability.BATCHED)
if __name__ == "__main__":
    log = EventLog.open(sys.argv[1], batch_window_ms=600_000)
    log.commit(Event("parent", {{}}), Durability.BATCHED)
    with multiprocessing.get_context("{method}").Pool(2) as pool: pool.map(work, ["a", "b", "c", "d"])
    log.commit(Event("parent", {{}}))
    log.close()
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "log")], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with EventLog.open(tmp_path / "log") as log:
        assert sorted(e.data.get("name", "") for e in log.read()) == ["", "", "a", "b", "c", "d"]


@pytest.mark.parametrize("how", ["fork", "subprocess"])
def test_p24_an_owner_lock_dies_with_its_owner_whatever_children_live(tmp_path: Path, how: str) -> None:
    code = f"""
import os, subprocess, sys, time
from eventlog import *
log = EventLog.open(sys.argv[1])
owner = log.own("job")
assert owner is not None
if "{how}" == "fork":
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
else:
    pid = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL).pid
print(pid, flush=True)
time.sleep(60)
"""
    with EventLog.open(tmp_path / "log") as log:
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert log.owned("job")
            assert log.own("job") is None
            process.kill()
            process.wait()
            deadline = time.monotonic() + 20  # a child that was forked this moment lets go before it runs anything else
            while (owner := log.own("job")) is None:
                assert time.monotonic() < deadline, "a child keeps its dead parent's owner lock"
                time.sleep(0.01)
            owner.release()
        finally:
            os.kill(child, signal.SIGKILL)
            process.stdout.close()


def test_p24_a_subprocess_started_while_a_thread_holds_the_lock(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log", lock_timeout=1) as log:
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                log.commit(Event("t", {}))

        thread = threading.Thread(target=write)
        thread.start()
        try:
            children = [subprocess.Popen(["sleep", "5"], close_fds=False) for _ in range(30)]
        finally:
            stop.set()
            thread.join()
        with EventLog.open(tmp_path / "log", lock_timeout=0.5) as other:
            other.commit(Event("t", {}))
        for child in children:
            child.kill()
            child.wait()
