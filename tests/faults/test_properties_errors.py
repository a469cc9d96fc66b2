"""P17-P19: what the system may refuse is said by a typed error, harms nothing that is there, and leaks nothing.

Every errno at every call: test_nth_call, test_strace. A full tmpfs of 512 KiB: test_power_cut."""

from __future__ import annotations

import errno
import os
import resource
import sys
from pathlib import Path

import pytest
from propkit import LAZY, NOW, descriptors_unchanged, disk, event, fill, found, in_child, in_mounts, ns, open_on, python, segments_of

from eventlog import EventLog, EventLogError, NotWritten, Unreadable
from eventlog.audit import verify
from eventlog.projections import COUNTS, View, fold
from eventlog.testing import strace

FULL = """
import os, sys
from eventlog import *
from eventlog.audit import verify
base = sys.argv[1]
path = base + "/log"
log = EventLog.open(path, segment_bytes_max=4096)
done = refused = 0
inodes = sys.argv[2] == "inodes"
ballast = open(base + "/ballast", "wb", buffering=0)
os.mkdir(base + "/fillers")
for turn in range(40):
    try:
        for n in range(1000 * inodes): open(f"{base}/fillers/{n}", "x").close()
        while not inodes and ballast.write(b"x" * (1 + 97 * turn)): pass
    except OSError: pass
    for _ in range(60):
        try:
            log.commit(Event("t", {"n": done, "x": "y" * (turn * 13 % 700)})); done += 1
        except NotWritten:
            refused += 1
            break
    assert [e.data["n"] for e in log.read()] == list(range(done)), "reading needs no room"
    names = sorted(os.listdir(path + "/segments"))
    for _ in range(20):  # twenty opens on a full disk leave no new file
        try:
            with EventLog.open(path, segment_bytes_max=4096) as other: assert int(other.head) == done
        except EventLogError: pass
    left = sorted(os.listdir(path + "/segments"))
    assert len(left) <= len(names) + 1, (names, left)  # the successor that a rotation owed
    os.truncate(ballast.fileno(), 0)
    ballast.seek(0)
    for name in os.listdir(base + "/fillers"): os.unlink(f"{base}/fillers/{name}")
    log.commit(Event("t", {"n": done})); done += 1
log.close()
with EventLog.open(path) as log: assert [e.data["n"] for e in log.read()] == list(range(done))
assert verify(path).ok and refused > (0 if inodes else 20), refused
print("done", done)
"""


@pytest.mark.parametrize(("what", "options"), [("blocks", "size=256k"), ("inodes", "size=4M,nr_inodes=300")])
def test_p17_a_full_disk(tmp_path: Path, what: str, options: str) -> None:
    """Blocks, or inodes: 40 times full to the last byte at other alignments; the same handle goes on when there is room."""
    script = tmp_path / "full.py"
    script.write_text(FULL)
    done = in_mounts('mkdir "$1"; mount -t tmpfs -o "$2" small "$1"; "$0" "$3" "$1" "$4"', tmp_path / "small", options, script, what)
    assert done.stdout.startswith("done")


@pytest.mark.parametrize("limit", [*range(3000, 9000, 431), 65_000])
def test_p17_a_file_size_limit_gives_real_short_writes(tmp_path: Path, limit: int) -> None:
    """RLIMIT_FSIZE: the kernel writes what fits, then says EFBIG. The handle goes on with what fits, and after the limit is lifted."""
    path = tmp_path / "log"

    def work() -> None:
        log = EventLog.open(path, segment_bytes_max=1 << 20)
        log.commit(event(0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        done, refused = 1, 0
        for size in [300] * 30 + [limit, 10, 10]:
            try:
                log.commit(event(done, size))
                done += 1
            except NotWritten as error:
                assert error.cause_errno == errno.EFBIG, error
                refused += 1
        assert refused, "nothing was refused"
        assert ns(log) == list(range(done))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for _ in range(3):
            log.commit(event(done, 5000))
            done += 1
        assert ns(log) == list(range(done))
        log.close()
        assert found(path) == list(range(done))

    assert in_child(work) == 0
    assert verify(path).ok


@pytest.mark.parametrize("length", [1, 10, 63, 64, 65, 100, 300])
def test_p17_short_writes_without_an_error_are_continued(tmp_path: Path, length: int) -> None:
    fs = disk(tmp_path / "disk")
    with open_on(fs) as log:
        for n in range(12):
            fs.short_write(length)
            log.commit(event(n))
        assert ns(log) == list(range(12))
    assert found(fs.root / "log", fs=fs) == list(range(12))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT])
def test_p17_a_rotation_that_finds_no_room_or_descriptor_is_done_later(tmp_path: Path, code: int) -> None:
    """Wherever in the rotation it is refused: NotWritten, and the same handle goes on afterwards, with nothing lost."""
    for call in ("open", "pwrite", "fallocate", "ftruncate"):
        for nth in range(1, 6):
            fs = disk(tmp_path / f"{call}{nth}", nth)
            log = open_on(fs)
            done = 0
            while len(log.segments()) == 1 and segments_of(fs.root / "log")[0].stat().st_size and done < 4:
                log.commit(event(done, 850))
                done += 1
            fault = fs.fail(call, nth, code)
            try:
                log.commit(event(done, 850))
                done += 1
            except NotWritten as error:
                assert error.cause_errno == code
            fs.heal()
            struck = fault.injected
            for _ in range(3):
                log.commit(event(done, 850))
                done += 1
            assert ns(log) == list(range(done)), fs
            log.close()
            assert found(fs.root / "log", fs=fs) == list(range(done))
            assert verify(fs.root / "log", fs=fs).ok
            if not struck:
                break


def test_p17_locks_that_the_system_refuses(tmp_path: Path) -> None:
    fs = disk(tmp_path / "disk")
    log = open_on(fs)
    fs.fail("flock", 1, errno.ENOLCK, None)
    with pytest.raises(NotWritten, match="lock"):
        log.commit(event(0))
    with pytest.raises(EventLogError):
        open_on(fs)
    fs.heal()
    log.commit(event(0))
    assert ns(log) == [0]
    log.close()


def test_p17_interrupted_calls_are_none_of_our_business(tmp_path: Path) -> None:
    """EINTR is retried by Python itself (PEP 475): the library never sees it."""
    if (why := strace.why_not()) is not None:
        pytest.skip(why)
    fill(tmp_path / "log", 1)
    code = "import sys\nfrom eventlog import *\nwith EventLog.open(sys.argv[1]) as log: print(log.commit(Event('t', {'n': 1})).last)"
    done, struck = strace.inject([sys.executable, "-c", code, str(tmp_path / "log")], "fdatasync", "error=EINTR", 1)
    assert struck
    assert done.stdout == "2\n", done.stderr


def test_p17_what_cannot_be_read_is_unreadable(tmp_path: Path) -> None:
    fs = disk(tmp_path / "disk")
    with open_on(fs) as log:
        for n in range(20):
            log.commit(event(n, 500))
        reader = open_on(fs, read_only=True)
        for call in ("open", "pread", "fstat", "listdir"):
            fs.fail(call, 1, errno.EIO, None)
            with pytest.raises(Unreadable):
                list(reader.read(after=3))
            fs.heal()
            assert ns(reader) == list(range(20))
        reader.close()


def test_p18_descriptors_and_threads_are_given_back(tmp_path: Path) -> None:
    import threading

    path = fill(tmp_path / "log", 30)
    threads = threading.active_count()
    with descriptors_unchanged():
        for n in range(150):
            with EventLog.open(path, segment_bytes_max=4096, batch_window_ms=1) as log:
                log.commit([event(n, 700)], LAZY if n % 2 else NOW)
                fold(COUNTS, log)
                assert View(log, COUNTS).state is not None
                next(log.read())
                for _ in log.follow(int(log.head) - 1, timeout=0):
                    pass
                with log.own("x") or pytest.fail("nobody owns it") as _:
                    assert log.owned("x")
            with EventLog.open(path, read_only=True) as log:
                next(log.read())
        assert len(segments_of(path)) > 30
        broken = tmp_path / "broken"
        for _ in range(20):  # opens that fail half-way
            with pytest.raises(EventLogError):
                EventLog.open(broken, create=False)
            broken.mkdir(exist_ok=True)
            (broken / "log.json").write_bytes(b"{")
            with pytest.raises(EventLogError):
                EventLog.open(broken)
    assert threading.active_count() == threads


def test_p18_descriptors_are_not_inherited(tmp_path: Path) -> None:
    import subprocess

    with EventLog.open(tmp_path / "log") as log:
        log.commit(event(0))
        owner = log.own("x")
        next(log.read())
        listing = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True, close_fds=False).stdout
        assert str(tmp_path) not in listing
        assert owner is not None


def test_p18_many_segments_under_few_descriptors(tmp_path: Path) -> None:
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
from eventlog import *
from eventlog.audit import verify
with EventLog.open(sys.argv[1], segment_bytes_max=4096) as log:
    for n in range(1000):
        log.commit([Event("t", {"n": n, "x": "y" * 3000}), Event("u", {})], Durability.BATCHED)
    assert len(log.segments()) == 1000, len(log.segments())
    assert [e.data["n"] for e in log.read(types={"t"})] == list(range(1000))
    assert sum(1 for _ in log.follow(timeout=0)) == 2000
assert verify(sys.argv[1]).ok
print("fine")
"""
    path = Path("/dev/shm") / f"p18-{os.getpid()}" if Path("/dev/shm").is_dir() else tmp_path / "log"
    try:
        assert python(code, path).stdout == "fine\n"
    finally:
        import shutil

        shutil.rmtree(path, ignore_errors=True)


def test_p18_coroutines_and_windows_where_no_thread_can_be_had(tmp_path: Path) -> None:
    """Memory for a thread's stack is refused: who needs a thread does its work himself, and nobody waits for ever."""
    code = """
import asyncio, resource, sys, threading
from eventlog import *

async def main(log):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))
    try:
        threading.Thread(target=print).start()
    except RuntimeError as error:
        print(error)
    for durability in Durability:
        await asyncio.gather(*(log.acommit(Event("t", {"n": n}), durability) for n in range(3)))
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await log.acommit(Event("t", {}))

with EventLog.open(sys.argv[1]) as log:
    asyncio.run(asyncio.wait_for(main(log), 60))
    print(log.commit(Event("t", {})).first, threading.active_count())
"""
    assert python(code, tmp_path / "log").stdout.splitlines() == ["can't start new thread", "8 2"]


def test_p18_who_leads_for_coroutines_where_no_thread_can_be_had_comes_to_an_end(tmp_path: Path) -> None:
    """A thread leads for them turn after turn while fresh ones come: neither deeper and deeper, nor before it wakes its own."""
    code = """
import asyncio, resource, sys, threading, time
from eventlog import *
from eventlog.fs import FileSystem

class Slow(FileSystem):
    def fdatasync(self, fd):
        time.sleep(0.002)

begin, failed = threading.Event(), []

def work(log):
    begin.wait()
    try:
        for n in range(50):
            log.commit(Event("t", {"n": n}))
    except BaseException as error:
        failed.append(error)

async def main(log, threads):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))
    begin.set()
    coming = set()
    while any(thread.is_alive() for thread in threads) and len(coming) < 4000:
        coming.add(asyncio.create_task(log.acommit(Event("c", {}))))
        await asyncio.sleep(0.0002)
    await asyncio.gather(*coming)

with EventLog.open(sys.argv[1], fs=Slow()) as log:
    threads = [threading.Thread(target=work, args=(log,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    asyncio.run(asyncio.wait_for(main(log, threads), 60))
    for thread in threads:
        thread.join()
    print(failed, sum(1 for _ in log.read(types={"t"})))
"""
    assert python(code, tmp_path / "log").stdout == "[] 100\n"


def test_p19_a_file_that_shrinks_under_a_reader_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = fill(tmp_path / "log", 40)
    with EventLog.open(path, read_only=True) as log:
        events = log.read()
        assert next(events).seq == 1
        for file in segments_of(path)[:3]:
            os.truncate(file, 500)
        with pytest.raises(EventLogError):
            list(events)
