"""P1-P9: what is acknowledged is durable, in order, and what failed has failed. Each also has a sweep elsewhere: test_crash_states
(P1, P3, P8, P9), test_nth_call (P5, P6), test_strace (P1, P5), test_power_cut (P1, P2, P6, P7)."""

from __future__ import annotations

import errno
import sys
import threading
import time
from pathlib import Path

import pytest
from propkit import LAZY, NOW, cold, copy, descriptors_unchanged, disk, event, found, ns, open_on, python, segments_of

from eventlog import Event, EventLog, EventLogError, LogPoisoned, NotWritten, OutcomeUnknown, Unreadable, payload
from eventlog.testing import FaultFileSystem, strace
from eventlog.testing.disk import Ack, Sync, Write
from eventlog.writer import Entry


def after_cut(fs: FaultFileSystem, into: Path) -> list[int]:
    other = fs.power_cut(into, stop=False)
    return found(other.root / "log", fs=other)


def test_p01_immediate_is_durable(tmp_path: Path) -> None:
    for seed in range(6):
        fs = disk(tmp_path / f"disk{seed}", seed)
        with open_on(fs) as log:
            for n in range(10):
                log.commit(event(n, 50 + 90 * n))
                left = after_cut(fs, tmp_path / f"cut{seed}-{n}")
                assert left == list(range(n + 1)), fs


def test_p02_batched_is_bounded_by_the_window(tmp_path: Path) -> None:
    """A cut takes a suffix; after the window (nobody calls anything), after flush and after close it takes nothing."""
    fs = disk(tmp_path / "disk", 2)
    with open_on(fs, batch_window_ms=30) as log:
        for n in range(12):
            log.commit(event(n), LAZY)
            left = after_cut(fs, tmp_path / f"cut{n}")
            assert left == list(range(len(left)))
        deadline = time.monotonic() + 20
        cuts = 0
        while len(after_cut(fs, tmp_path / f"idle{cuts}")) < 12:
            cuts += 1
            assert time.monotonic() < deadline, "the window never ended"
            time.sleep(0.01)
    lazy = disk(tmp_path / "lazy", 3)
    log = open_on(lazy, batch_window_ms=600_000)
    for n in range(4):
        log.commit(event(n), LAZY)
    log.flush()
    assert after_cut(lazy, tmp_path / "flushed") == [0, 1, 2, 3]
    log.commit(event(4), LAZY)
    log.close()
    assert after_cut(lazy, tmp_path / "closed") == [0, 1, 2, 3, 4]


def test_p02_batched_is_bounded_by_bytes(tmp_path: Path) -> None:
    fs = disk(tmp_path / "disk")
    log = EventLog.open(fs.root / "log", fs=fs, batch_window_ms=600_000, batch_bytes=10_000)
    for n in range(30):
        log.commit(event(n, 900), LAZY)
        assert len(after_cut(fs, tmp_path / f"cut{n}")) >= n - 12
    log.close()


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise SystemExit", "raise RuntimeError", "signal.raise_signal(signal.SIGINT)", "drop"])
def test_p02_the_end_of_a_program_leaves_nothing_behind(tmp_path: Path, end: str) -> None:
    """A hook that appends once, BATCHED, and goes, in every way that runs Python code; `drop`: its handle is garbage by then."""
    code = (
        """
import atexit, sys, signal, warnings
def report():  # registered first, so it runs last
    left = fs.power_cut(sys.argv[2], stop=False)
    with EventLog.open(left.root / "log", fs=left) as log:
        print("left", len(list(log.read())), flush=True)
atexit.register(report)
from eventlog import *
from eventlog.testing import FaultFileSystem
warnings.simplefilter("ignore", ResourceWarning)
fs = FaultFileSystem(sys.argv[1], seed=1)
def main():
    log = EventLog.open(fs.root / "log", fs=fs, batch_window_ms=600_000)
    log.commit(Event("hook", {}), Durability.BATCHED)
    if "{end}" != "drop":
        globals()["log"] = log
main()
""".replace("{end}", end)
        + ("" if end == "drop" else end)
    )
    done = python(code, tmp_path / "disk", tmp_path / "cut", check=False)
    assert "left 1" in done.stdout, done.stderr


def test_p03_a_prefix_of_whole_commits(tmp_path: Path) -> None:
    """Cut at every byte of a log of one segment: all of a commit or none, and never a later one without an earlier one."""
    path = tmp_path / "log"
    log = EventLog.open(path)
    for n in range(4):
        log.commit([Event("t", {"n": n * 3 + i}) for i in range(3)])
    killed = copy(path, tmp_path / "killed")  # no mark at the end: as after kill -9
    log.close()
    data = segments_of(killed)[0].read_bytes().rstrip(b"\0")
    seen = set()
    torn = copy(killed, tmp_path / "torn")
    for cut in [*range(80, len(data), 5), len(data)]:
        cold(torn)
        segments_of(torn)[0].write_bytes(data[:cut])
        try:
            left = found(torn)
        except EventLogError as error:  # bytes that a later frame of a whole log confirms
            raise AssertionError(f"cut at {cut}: {error}") from None
        assert left == list(range(len(left)))
        assert len(left) % 3 == 0
        seen.add(len(left))
        for kept in torn.glob("segments/*.torn"):
            kept.unlink()
    assert seen == {0, 3, 6, 9, 12}


def test_p04_a_reply_never_precedes_its_sync(tmp_path: Path) -> None:
    """In the record of what was asked of the disk: write, sync of that file, acknowledgement; with four threads in one group."""
    fs = disk(tmp_path / "disk")
    with open_on(fs) as log:

        def work(k: int) -> None:
            before = 0
            for i in range(15):
                last = log.commit(Event("t", {"mark": f"<{k}.{i}>", "text": "x" * 200})).last
                fs.ack(f"<{k}.{i}>")
                assert last > before, "the order of one writer is the order of its seqs"
                before = last

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    acks = {op.what: at for at, op in enumerate(fs.ops) if isinstance(op, Ack)}
    assert len(acks) == 60
    for mark, acked in acks.items():
        written = next(at for at, op in enumerate(fs.ops) if isinstance(op, Write) and str(mark).encode() in op.data)
        node = fs.ops[written].node  # type: ignore[union-attr]
        assert any(isinstance(op, Sync) and op.node == node for op in fs.ops[written:acked]), f"{mark} was acknowledged unsynced"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
@pytest.mark.parametrize("call", ["pwrite", "fallocate", "fdatasync"])
def test_p05_failed_is_failed(tmp_path: Path, call: str, code: int) -> None:
    """NotWritten never appears later, whatever a power cut does; a retry after it makes no second one."""
    fs = disk(tmp_path / "disk")
    log = open_on(fs)
    log.commit(event(0))
    if call == "pwrite":
        fs.short_write(70)  # a part of it stands there before the disk refuses
    fs.fail(call, 2 if call == "pwrite" else 1, code)
    big = event(1, 3300 if call == "fallocate" else 200)
    error: EventLogError | None = None
    try:
        log.commit([big, event(2, 30)] if call == "fallocate" else big)
    except EventLogError as raised:
        error = raised
    fs.heal()
    if error is None:
        assert call == "fallocate"  # the reserve was not needed, or a smaller one did
        log.close()
        return
    assert isinstance(error, OutcomeUnknown if call == "fdatasync" else NotWritten)
    for number in range(8):
        left = after_cut(fs, tmp_path / f"cut{number}")
        assert left == [0] or (isinstance(error, OutcomeUnknown) and left == [0, 1]), fs
    try:
        log.close()
    except OutcomeUnknown:
        assert isinstance(error, OutcomeUnknown)
    with open_on(fs) as again:
        if isinstance(error, NotWritten):
            assert ns(again) == [0]
            again.commit(big)
        assert ns(again).count(1) <= 1


def test_p05_nothing_of_a_group_that_was_not_written_appears_later(tmp_path: Path) -> None:
    """Two commits in one write, the first of them whole on the disk when the second finds no room."""
    for seed in range(12):
        fs = disk(tmp_path / f"disk{seed}", seed)
        log = open_on(fs)
        log.commit(event(0))
        entries = [Entry(payload.encode(event(n, size), 1 << 20)) for n, size in ((1, 30), (2, 2000))]
        fs.short_write(900)
        fs.fail("pwrite", 2, errno.ENOSPC)
        log._group._process(entries)
        fs.heal()
        assert all(isinstance(entry.error, NotWritten) for entry in entries)
        assert after_cut(fs, tmp_path / f"cut{seed}") == [0], fs
        log.commit(event(1))
        log.close()


@pytest.mark.parametrize("call", ["fdatasync", "pwrite"])
def test_p06_a_failed_sync_poisons(tmp_path: Path, call: str) -> None:
    """Once; then every commit raises, nothing is tried again, and a fresh open reads what is really there."""
    fs = disk(tmp_path / "disk")
    log = open_on(fs, batch_window_ms=600_000)
    log.commit(event(0))
    fs.fail(call, 1, errno.EIO)
    with pytest.raises((OutcomeUnknown, NotWritten)):
        log.commit(event(1))
    calls = dict(fs.calls)
    for durability in (LAZY, NOW, LAZY):
        with pytest.raises(LogPoisoned):
            log.commit(event(2), durability)
    with pytest.raises((LogPoisoned, OutcomeUnknown)):
        log.flush()
    assert fs.calls["fdatasync"] == calls["fdatasync"], "fdatasync is never retried"
    fs.evict()  # what only the cache held is gone
    with open_on(fs) as fresh:
        assert ns(fresh) == [0]
        fresh.commit(event(1))
    if call == "fdatasync":
        with pytest.raises(OutcomeUnknown):
            log.close()
    else:
        log.close()
    assert after_cut(fs, tmp_path / "cut") == [0, 1]


def test_p07_every_waiter_of_a_failed_group_gets_the_error(tmp_path: Path) -> None:
    for nth in (1, 2, 3, 5):
        fs = disk(tmp_path / f"disk{nth}", nth)
        log = open_on(fs)
        log.commit(event(0))
        fs.fail("fdatasync", nth, errno.EIO)
        good: list[int] = []
        bad: list[EventLogError] = []

        def work(k: int, log: EventLog = log, good: list[int] = good, bad: list[EventLogError] = bad) -> None:
            for i in range(5):
                try:
                    good.append(log.commit(event(100 + k * 10 + i)).last)
                except EventLogError as error:
                    bad.append(error)  # noqa: B023

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(good) + len(bad) == 40
        assert len({id(error) for error in bad}) == len(bad), "one exception object was raised in two threads"
        assert all(isinstance(error, OutcomeUnknown | LogPoisoned) for error in bad)
        fs.evict()
        with open_on(fs) as fresh:
            assert set(good) <= {e.seq for e in fresh.read()}
        with pytest.raises(OutcomeUnknown):
            log.close()


def test_p08_no_reader_sees_what_a_power_cut_could_take(tmp_path: Path) -> None:
    """A BATCHED commit is read by another handle only after that handle made it durable; if it cannot, it raises."""
    fs = disk(tmp_path / "disk")
    log = open_on(fs, batch_window_ms=600_000)
    log.commit(event(0), LAZY)
    reader = EventLog.open(fs.root / "log", fs=fs, read_only=True)
    fs.fail("fdatasync", 1, errno.EIO)
    with pytest.raises(Unreadable):
        ns(reader)
    fs.heal()
    with pytest.raises(OutcomeUnknown):  # the kernel tells each descriptor once: the writer's own next sync fails too
        log.close()
    second = disk(tmp_path / "second", 8)
    log = open_on(second, batch_window_ms=600_000)
    reader = EventLog.open(second.root / "log", fs=second, read_only=True)
    for n in range(6):
        log.commit(event(n), LAZY)
        seen = ns(reader)
        assert seen == list(range(n + 1))
        assert after_cut(second, tmp_path / f"cut{n}") == seen, "handed out, and a power cut takes it back"
    with descriptors_unchanged():
        follower = reader.follow(0, timeout=0)
        assert [e.data["n"] for e in follower] == list(range(6))


def test_p08_what_recovery_finds_is_synced_before_it_is_built_on(tmp_path: Path) -> None:
    fs = disk(tmp_path / "disk")
    killed = open_on(fs, batch_window_ms=600_000)
    for n in range(3):
        killed.commit(event(n), LAZY)
    with open_on(fs) as log:  # the killed one neither syncs nor closes
        assert ns(log) == [0, 1, 2]
        assert after_cut(fs, tmp_path / "cut") == [0, 1, 2]


def test_p09_names_are_durable(tmp_path: Path) -> None:
    """Without the syncs of directories, acknowledged commits are lost: with them, at no cut (and over rotations) is one."""
    fs = disk(tmp_path / "disk", 9)
    with open_on(fs) as log:
        for n in range(24):
            log.commit(event(n, 700))
            assert after_cut(fs, tmp_path / f"cut{n}") == list(range(n + 1))
        assert len(log.segments()) > 4


def test_p09_a_real_process_syncs_names_before_its_first_acknowledgement(tmp_path: Path) -> None:
    if (why := strace.why_not()) is not None:
        pytest.skip(why)
    code = (
        "import sys\nfrom eventlog import *\n"
        "log = EventLog.open(sys.argv[1], segment_bytes_max=4096)\n"
        "for n in range(8):\n    last = log.commit(Event('t', {'x': 'y' * 900})).last; print(f'ACK {last}', flush=True)\n"
    )
    run, _ = strace.record([sys.executable, "-c", code, str(tmp_path / "a" / "log")], tmp_path)
    first = next(at for at, op in enumerate(run.ops) if isinstance(op, Ack))
    synced = {op.node for op in run.ops[:first] if isinstance(op, Sync)}
    # a/ (in the root), log/ (in a/), log.json and segments/ (in log/), the first segment (in segments/)
    assert len(synced) >= 5
