"""Several handles on one faulty disk, in any order of commits, failures, evictions, reopens and power cuts, against a model.

Promised is: an IMMEDIATE commit that returned, with all before it; what flush() or close() left behind them; what a reader handed out.
"""

from __future__ import annotations

import contextlib
import errno
import random
from pathlib import Path

import pytest

from eventlog import Durability, Event, EventLog, EventLogError, LogPoisoned, OutcomeUnknown
from eventlog.testing import FaultFileSystem


class Life:
    """Three handles (three processes, as far as the log can tell), one disk."""

    def __init__(self, base: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fs = FaultFileSystem(base / "disk", seed=seed)
        self.handles: list[EventLog | None] = [None, None, None]
        self.next = 0
        self.batched: list[set[int]] = [set(), set(), set()]  # by each handle, since its last flush
        self.promised: set[int] = set()
        self.never: set[int] = set()
        self.story: list[str] = []
        self.cuts = self.failures = 0

    def open(self, index: int) -> EventLog:
        log = self.handles[index]
        if log is None:
            log = self.handles[index] = EventLog.open(
                self.fs.root / "log", fs=self.fs, segment_bytes_max=4096, batch_window_ms=600_000, lock_timeout=1
            )
        return log

    def commit(self, index: int, durability: Durability) -> None:
        number, self.next = self.next, self.next + 1
        size = self.rng.choice((1, 1, 3))
        text = "x" * self.rng.choice((1, 100, 900))
        try:
            self.open(index).commit([Event("t", {"n": number, "i": i, "of": size, "text": text}) for i in range(size)], durability)
        except OutcomeUnknown:
            self.failures += 1
            self.batched[index].clear()  # the handle is done and has said so: look, before you believe anything of it
        except EventLogError as error:
            self.failures += 1
            if isinstance(error, LogPoisoned):
                self.batched[index].clear()
            self.never.add(number)
            if self.rng.random() < 0.5:
                self.handles[index] = None  # as if its process had died
                self.batched[index].clear()
        else:
            if durability is Durability.IMMEDIATE:
                self.promised.add(number)
            else:
                self.batched[index].add(number)

    def read(self, index: int) -> None:
        try:
            self.promised |= set(self.numbers(self.open(index)))
        except EventLogError:
            self.failures += 1

    def flush(self, index: int, *, close: bool) -> None:
        """What this handle committed, of whatever durability, must last from here on, or it must hear that it does not."""
        log = self.handles[index]
        if log is None:
            return
        try:
            log.close() if close else log.flush()
        except EventLogError:
            self.failures += 1
        else:
            self.promised |= self.batched[index]
        self.batched[index].clear()
        if close:
            self.handles[index] = None

    def numbers(self, log: EventLog) -> list[int]:
        events = list(log.read())
        found: list[int] = []
        while events:
            head = events[: events[0].data["of"]]
            assert [(e.data["n"], e.data["i"]) for e in head] == [(head[0].data["n"], i) for i in range(head[0].data["of"])], "not whole"
            found.append(head[0].data["n"])
            del events[: len(head)]
        return found

    def judge(self, what: str) -> None:
        self.fs.heal()
        with EventLog.open(self.fs.root / "log", fs=self.fs, segment_bytes_max=4096) as log:
            found = self.numbers(log)
        assert found == sorted(set(found)), f"{what}: {found} is not the order of the commits; {self}"
        assert self.promised <= set(found), f"{what}: promised and lost {sorted(self.promised - set(found))}; {self}"
        assert not self.never & set(found), f"{what}: NotWritten and there {sorted(self.never & set(found))}; {self}"
        self.promised |= set(found)

    def power_cut(self) -> None:
        self.cuts += 1
        old, self.fs = self.fs, self.fs.power_cut(same_boot=self.rng.random() < 0.3)
        for log in self.handles:
            if log is not None:
                try:
                    log.close()
                except EventLogError:
                    self.failures += 1
        old.heal()
        self.handles = [None, None, None]
        self.batched = [set(), set(), set()]
        self.judge(f"power cut {self.cuts}")

    def end(self) -> None:
        self.fs.heal()
        for log in self.handles:
            if log is not None:
                with contextlib.suppress(EventLogError):
                    log.close()

    def step(self) -> None:
        rng, index = self.rng, self.rng.randrange(3)
        kind = rng.choices(
            ["immediate", "batched", "read", "flush", "close", "sync-fails", "dir-sync-fails", "no-room", "short", "evict", "look", "cut"],
            [8, 5, 3, 2, 2, 1.5, 0.5, 1, 0.5, 2, 0.7, 0.7],
        )[0]
        self.story.append(f"{kind} {index}")
        if kind in ("immediate", "batched"):
            self.commit(index, Durability(kind))
        elif kind == "read":
            self.read(index)
        elif kind in ("flush", "close"):
            self.flush(index, close=kind == "close")
        elif kind == "sync-fails":
            self.fs.fail("fdatasync", errno=rng.choice((errno.EIO, errno.ENOSPC)))
        elif kind == "dir-sync-fails":
            self.fs.fail("fsync", nth=rng.randint(1, 3))
        elif kind == "no-room":
            self.fs.fail(rng.choice(("pwrite", "fallocate")), errno=errno.ENOSPC, nth=rng.randint(1, 2))
        elif kind == "short":
            self.fs.short_write(rng.randint(1, 200))
        elif kind == "evict":
            self.fs.evict()
        elif kind == "look":
            self.judge("a look")
        else:
            self.power_cut()

    def __str__(self) -> str:
        return f"{self.fs!r}, after: {', '.join(self.story[-25:])}"


@pytest.mark.parametrize("after", ["flush", "close", "commit"])
def test_a_batched_commit_that_another_handle_lost_is_told(tmp_path: Path, after: str) -> None:
    """A's failed sync takes B's batched bytes with it: B must hear of it, at the latest when it asks for durability."""
    fs = FaultFileSystem(tmp_path / "disk")
    a, b = (EventLog.open(fs.root / "log", fs=fs, batch_window_ms=600_000) for _ in range(2))
    a.commit(Event("t", {"n": 0}))
    b.commit(Event("t", {"n": 1}), Durability.BATCHED)
    fs.fail("fdatasync")
    with pytest.raises(OutcomeUnknown):
        a.commit(Event("t", {"n": 2}))
    fs.evict()
    ask = {"commit": lambda: b.commit(Event("t", {"n": 3})), "flush": b.flush, "close": b.close}[after]
    with pytest.raises(EventLogError):
        ask()
    with EventLog.open(fs.root / "log", fs=fs) as log:
        assert [event.data["n"] for event in log.read()] == [0]
    for handle in (a, b):
        with contextlib.suppress(EventLogError):
            handle.close()


@pytest.mark.parametrize("start", range(4))
def test_any_order_of_commits_failures_and_cuts(tmp_path: Path, start: int) -> None:
    cuts = failures = promised = 0
    for seed in range(start * 1000, start * 1000 + 12):
        life = Life(tmp_path / f"{seed}", seed)
        try:
            for _ in range(60):
                life.step()
            life.power_cut()
        except EventLogError as error:
            raise AssertionError(f"{type(error).__name__}: {error}; {life}") from error
        finally:
            life.end()
        cuts, failures, promised = cuts + life.cuts, failures + life.failures, promised + len(life.promised)
    print(f"{cuts} power cuts, {failures} calls that failed on purpose, {promised} promises, 0 lost")
    assert cuts >= 12
    assert failures > 10
