"""A failure in the middle of a batch: nothing more of it is written, nobody hears a wrong word, nobody waits for ever."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from eventlog import Durability, Event, EventLog, EventLogError, Expect, PayloadError
from eventlog.audit import verify
from eventlog.payload import encode
from eventlog.testing import FaultFileSystem
from eventlog.writer import Entry


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize(
    ("call", "nth"),
    [("pwrite", 1), ("pwrite", 2), ("pwrite", 3), ("ftruncate", 1), ("ftruncate", 2), ("fsync", 1), ("fsync", 2), ("fsync", 3)]
    + [("fallocate", 1), ("open", 1), ("open", 2)],
)
def test_a_rotation_that_fails_inside_a_batch_stops_the_batch(tmp_path: Path, call: str, nth: int, number: int) -> None:
    """A smaller commit behind the one that did not fit must not be written over the seal that was left there."""
    fs = FaultFileSystem(tmp_path / "disk")
    log = EventLog.open(fs.root / "log", fs=fs, segment_bytes_max=4096)
    for n in range(3):
        log.commit(Event("a", {"n": n, "x": "x" * 900}))
    entries = [Entry(encode(Event("a", {"n": n, "x": "x" * size}), 1 << 20)) for n, size in ((3, 1500), (4, 10), (5, 10))]
    fs.fail(call, nth=nth, errno=number)
    writer = log._writer
    assert writer is not None
    acknowledged = []
    try:
        writer.locked(writer.write, entries)
        writer.sync()
        acknowledged = [entry.first for entry in entries if entry.error is None]
    except EventLogError:
        pass
    fs.heal()
    try:
        log.close()
    except EventLogError:
        acknowledged = []
    with EventLog.open(fs.root / "log", fs=fs, segment_bytes_max=4096) as again:
        found = [event.seq for event in again.read()]
        assert set(acknowledged) <= set(found), (acknowledged, found)
        assert again.commit(Event("a", {"n": 9})).first == len(found) + 1
    assert verify(fs.root / "log", fs=fs).ok


@pytest.mark.parametrize("expect", [Expect(None, 1), Expect({1}, 1), Expect({"a"}, "x")])  # type: ignore[arg-type]
def test_an_expect_that_makes_no_sense_is_refused_at_once(tmp_path: Path, expect: Expect) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.commit(Event("a", {}, "a"))
        for durability in Durability:
            with pytest.raises(PayloadError, match="expect"):
                log.commit(Event("a", {}), durability, expect)
        with pytest.raises(PayloadError, match="expect"):
            asyncio.run(log.acommit(Event("a", {}), expect=expect))
        assert log.commit(Event("a", {})).first == 2


def test_a_fault_of_our_own_reaches_every_waiter_of_the_thread_that_leads_for_coroutines(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        writer = log._writer
        assert writer is not None
        honest = writer.write

        def broken(entries: object) -> object:
            raise MemoryError("no more")

        writer.write = broken  # type: ignore[method-assign, assignment]
        with pytest.raises(EventLogError, match="no more"):
            asyncio.run(log.acommit(Event("a", {})))
        writer.write = honest  # type: ignore[method-assign]
        done = threading.Event()

        def later() -> None:
            log.commit(Event("a", {}))
            done.set()

        threading.Thread(target=later, daemon=True).start()
        assert done.wait(20), "a later commit hangs"
        assert asyncio.run(log.acommit(Event("a", {}))).first == 2
