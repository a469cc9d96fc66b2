"""P20-P27: many writers, readers and followers, stopped, killed, forked. The storms are in test_processes, interrupts in test_interrupts,
forks in test_fork; here is one small, independent look at each."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from zlib import crc32

import pytest
from interrupting import interrupt
from propkit import LAZY, NOW, copy, end_of, event, fill, found, in_child, ns, segments_of

from eventlog import Event, EventLog, EventLogError, LockTimeout, LogClosed, frames, payload
from eventlog.audit import verify

WRITER = """
import sys
from eventlog import *
name, count, batched = sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1"
with EventLog.open(sys.argv[1], segment_bytes_max=4096) as log:
    for n in range(count):
        log.commit([Event("w", {"n": n, "i": i, "x": "y" * (n * 37 % 400)}, name) for i in range(1 + n % 3)],
                   Durability.BATCHED if batched and n % 2 else Durability.IMMEDIATE)
        print(f"{name} {n}", flush=True)
"""


def writer(path: Path, name: str, count: int, batched: bool) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(count), str(int(batched))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_p20_no_commit_lost_none_double_all_dense(tmp_path: Path) -> None:
    """Four processes, one killed; what the parent was told through the pipe is there, once, whole, in each writer's order."""
    path = tmp_path / "log"
    children = {name: writer(path, name, 10_000 if name == "victim" else 80, name != "a") for name in ("a", "b", "c", "victim")}
    victim = children["victim"]
    assert victim.stdout is not None
    told = {"victim": [victim.stdout.readline() for _ in range(20)]}
    victim.kill()
    for name, child in children.items():
        out, _ = child.communicate(timeout=60)
        told[name] = told.get(name, []) + [line for line in out.splitlines() if line]
    with EventLog.open(path) as log:
        events = list(log.read())
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    for name, lines in told.items():
        mine = [(e.data["n"], e.data["i"]) for e in events if e.stream == name]
        commits = mine[-1][0] + 1
        assert mine == [(n, i) for n in range(commits) for i in range(1 + n % 3)], name
        assert len(lines) <= commits <= len(lines) + (1 if name == "victim" else 0)
    assert verify(path).ok


@pytest.mark.parametrize("content", [b"1\n", b"12345", b"\0" * 200, b"garbage" * 50, b""])
def test_p21_the_content_of_the_lock_file_decides_nothing(tmp_path: Path, content: bytes) -> None:
    """A pid, somebody's garbage: no age, no guess; the kernel's lock alone."""
    path = fill(tmp_path / "log", 12)
    with EventLog.open(path, segment_bytes_max=4096, lock_timeout=0.5) as live:
        (path / "lock").write_bytes(content)
        with EventLog.open(path, segment_bytes_max=4096, lock_timeout=0.5) as other:
            for n in range(12, 20):
                (live, other)[n % 2].commit(event(n))
                (path / "lock").write_bytes(content)
        assert ns(live) == list(range(20))
    assert verify(path).ok


def test_p21_a_lock_file_that_was_removed_locks_nothing(tmp_path: Path) -> None:
    path = fill(tmp_path / "log", 3)
    holder = os.open(path / "lock", os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(LockTimeout):
        EventLog.open(path, lock_timeout=0.1)
    (path / "lock").unlink()
    with EventLog.open(path, lock_timeout=0.1) as log:
        log.commit(event(3))
        inode = os.stat(path / "lock").st_ino
        with EventLog.open(path, lock_timeout=0.1) as other:
            other.commit(event(4))
        log.commit(event(5))
        assert os.stat(path / "lock").st_ino == inode, "we never remove it ourselves"
        assert ns(log) == list(range(6))
    os.close(holder)


def test_p22_a_view_that_slept_is_made_true_under_the_lock(tmp_path: Path) -> None:
    """Real SIGSTOP in the middle of its commits; meanwhile another process appends, rotates, seals."""
    path = tmp_path / "log"
    sleeper = writer(path, "sleeper", 400, True)
    assert sleeper.stdout is not None
    lines = 0
    for _ in range(6):
        for _ in range(8):
            lines += bool(sleeper.stdout.readline())
        sleeper.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            with EventLog.open(path, segment_bytes_max=4096, lock_timeout=0.3) as log:
                for n in range(15):
                    log.commit(event(n, 700), LAZY)
        except LockTimeout:
            print("it was stopped with the lock in its hand")  # legal: then it must go on with that lock
        sleeper.send_signal(signal.SIGCONT)
    out, _ = sleeper.communicate(timeout=60)
    lines += len(out.splitlines())
    assert sleeper.returncode == 0
    assert lines == 400
    with EventLog.open(path) as log:
        assert [e.data["n"] for e in log.read(streams={"sleeper"}) if e.data["i"] == 0] == list(range(400))
    assert verify(path).ok


def test_p23_a_stuck_holder_is_waited_for_and_no_longer(tmp_path: Path) -> None:
    """Every road that needs the lock gives up; readers and followers do not notice; what was refused never appears."""
    path = fill(tmp_path / "log", 5)
    with EventLog.open(path, lock_timeout=0.1) as log, EventLog.open(path, read_only=True) as reader:
        holder = os.open(path / "lock", os.O_RDWR)
        fcntl.flock(holder, fcntl.LOCK_EX)
        for durability in type(LAZY):
            with pytest.raises(LockTimeout):
                log.commit(event(9), durability)
        with pytest.raises(LockTimeout):
            log.transact(_Count(), lambda count: event(9))
        with pytest.raises(LockTimeout):
            EventLog.open(path, lock_timeout=0.05)
        assert ns(reader) == list(range(5))
        assert len(list(reader.follow(timeout=0))) == 5
        assert int(log.head) == 5
        fcntl.flock(holder, fcntl.LOCK_UN)
        log.commit(event(5))
        os.close(holder)
        assert ns(log) == list(range(6))


class _Count:
    __slots__ = ("__weakref__",)
    initial = 0
    handlers = {"test.n": lambda count, e: count + 1}  # noqa: RUF012


def test_p24_a_forked_child_has_no_handle(tmp_path: Path) -> None:
    """The whole of it is in test_fork."""
    with EventLog.open(tmp_path / "log") as log:
        log.commit(event(0))

        def work() -> None:
            with pytest.raises(LogClosed):
                log.commit(event(1))
            log.close()

        assert in_child(work) == 0
        log.commit(event(1))
        assert ns(log) == [0, 1]


def test_p25_an_interrupted_commit_is_whole_or_absent(tmp_path: Path) -> None:
    """The whole of it is in test_interrupts."""
    with EventLog.open(tmp_path / "log", lock_timeout=1) as log:
        for nth in range(1, 60, 7):
            interrupt(nth, lambda: log.commit([event(-1), event(-2)]))
            log.commit(event(nth))
        numbers = ns(log)
        assert numbers.count(-1) == numbers.count(-2)
        assert [n for n in numbers if n > 0] == list(range(1, 60, 7))


def test_p26_a_half_written_commit_is_not_yet(tmp_path: Path) -> None:
    """A slow writer: its frame grows byte by byte under a reader and a follower; whole, it appears, once."""
    path = tmp_path / "log"
    with EventLog.open(path) as log:
        log.commit(event(0))
    segment = segments_of(path)[0]
    data = segment.read_bytes()
    end, _ = end_of(segment)
    draft = payload.encode(event(1), 1 << 20)
    frame = frames.encode(draft, 2, end, 1, frames.EVENTS, crc32(data[:76]))
    holder = os.open(path / "lock", os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)  # as a writer in the middle of its write holds it
    followed: list[int] = []
    with EventLog.open(path, read_only=True) as reader:
        follower = threading.Thread(target=lambda: followed.extend(e.data["n"] for e in reader.follow(timeout=1)))
        follower.start()
        with segment.open("r+b", buffering=0) as file:
            for at in range(len(frame)):
                os.pwrite(file.fileno(), frame[at : at + 1], end + at)
                if at < len(frame) - 9:  # its last bytes may be white space or zeros that are there already
                    assert ns(reader) == [0]
        assert ns(reader) == [0, 1]
        follower.join()
    os.close(holder)
    assert followed == [0, 1]
    assert found(path) == [0, 1]


def test_p26_followers_see_each_seq_once_over_rotations_and_recovery(tmp_path: Path) -> None:
    """A follower from the start, one from the middle, one that begins anew at its last seq; a writer that dies in its write."""
    path = tmp_path / "log"
    EventLog.open(path).close()
    seen: dict[str, list[int]] = {"start": [], "restarting": []}
    done = threading.Event()
    wrong: list[BaseException] = []

    def follow(name: str, timeout: float) -> None:
        try:
            with EventLog.open(path, read_only=True) as log:
                while not done.is_set() or int(log.head) > len(seen[name]):
                    for e in log.follow(seen[name][-1] if seen[name] else 0, timeout=timeout):
                        seen[name].append(e.seq)
        except BaseException as error:  # noqa: BLE001  shown by the assertion
            wrong.append(error)

    threads = [threading.Thread(target=follow, args=arguments) for arguments in (("start", 0.3), ("restarting", 0.0))]
    for thread in threads:
        thread.start()
    try:
        for turn in range(6):
            with EventLog.open(path, segment_bytes_max=4096) as log:
                for n in range(60):
                    log.commit(event(n, 500), LAZY if n % 3 else NOW)
            last = segments_of(path)[-1]  # half a frame, as of a writer that died: its next one cuts it
            with last.open("r+b") as file:
                file.seek(end_of(last)[0])
                file.write(frames.MAGIC + b"\1" * (20 + turn))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong
    for name, seqs in seen.items():
        assert seqs == list(range(1, 361)), name


def test_p26_a_handle_closed_under_its_threads_says_so(tmp_path: Path) -> None:
    """close() beside threads that commit, read and follow: LogClosed for each, no foreign descriptor is touched, nothing is lost."""
    for turn in range(25):
        path = tmp_path / str(turn)
        log = EventLog.open(path, segment_bytes_max=4096)
        told: list[int] = []
        wrong: list[str] = []

        def work(name: str, log: EventLog = log, told: list[int] = told, wrong: list[str] = wrong) -> None:
            try:
                while True:
                    if name == "read":
                        list(log.read())
                    elif name == "follow":
                        list(log.follow(timeout=0.001))
                    else:
                        told.append(log.commit(event(0, 200), LAZY if name == "batched" else NOW).last)
            except LogClosed:
                pass
            except BaseException as error:  # noqa: BLE001  shown by the assertion
                wrong.append(f"{name}: {error!r}")

        threads = [threading.Thread(target=work, args=(name,)) for name in ("immediate", "batched", "read", "follow")]
        for thread in threads:
            thread.start()
        while len(told) < 10:
            pass
        log.close()
        mine = [os.open(os.devnull, os.O_RDWR) for _ in range(8)]  # they get the numbers that the log had
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        for fd in mine:
            os.close(fd)
        assert wrong == []
        with EventLog.open(path) as again:
            assert set(told) <= {e.seq for e in again.read()}


def test_p27_a_live_copy_opens_as_a_prefix(tmp_path: Path) -> None:
    """Copied file by file while it grows, within one segment; and a copy over rotations is a prefix or refused, never another log."""
    path = tmp_path / "log"
    for turn, segment in enumerate((1 << 20, 1 << 20, 4096, 4096)):
        shutil.rmtree(path, ignore_errors=True)
        with EventLog.open(path, segment_bytes_max=segment) as log:
            stop = threading.Event()

            def write(log: EventLog = log, stop: threading.Event = stop) -> None:
                n = 0
                while not stop.is_set():
                    log.commit(event(n, 300), LAZY)
                    n += 1

            thread = threading.Thread(target=write)
            thread.start()
            try:
                while int(log.head) < 20:
                    pass
                target = copy(path, tmp_path / f"copy{turn}") if turn % 2 else Path(shutil.copytree(path, tmp_path / f"copy{turn}"))
            finally:
                stop.set()
                thread.join()
        try:
            left = found(target)
        except EventLogError:
            assert segment == 4096
            continue
        assert left == list(range(len(left)))
        assert len(left) >= 1
        with EventLog.open(target) as log:
            log.commit(Event("t", {"n": 1}))
