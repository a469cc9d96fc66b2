"""Faults that strike several threads at once: who shares a write or a sync shares its failure (P5, P7)."""

from __future__ import annotations

import errno
import random
import threading
import time
from pathlib import Path

import pytest

from eventlog import Event, EventLog, EventLogError, LogPoisoned, NotWritten, OutcomeUnknown
from eventlog.group import ThreadPlace, _wake_all
from eventlog.testing import FaultFileSystem
from eventlog.testing.cuts import materialize, names_all, random_state
from eventlog.testing.tracked import Buffer


class Gated(FaultFileSystem):
    """The first sync waits at a gate, so that the next commits queue up and are written together; then their write may break."""

    def __init__(self, root: Path, whole_frames: int) -> None:
        super().__init__(root, seed=1)
        self.gate, self.waiting = threading.Event(), threading.Event()
        self.closed = False
        self.whole_frames, self.frame_bytes, self.broken = whole_frames, 0, False

    def fdatasync(self, fd: int, /) -> None:
        if self.closed and not self.waiting.is_set():
            self.waiting.set()
            assert self.gate.wait(30)
        super().fdatasync(fd)

    def _write(self, fd: int, data: Buffer, offset: int) -> int:
        if self.broken and any(data):  # room came back just for the zeros that take the rest back
            raise OSError(errno.ENOSPC, "no space")
        if self.closed and self.whole_frames and len(data) > 2 * self.frame_bytes > 0:
            self.broken = True
            return super()._write(fd, memoryview(data)[: self.whole_frames * self.frame_bytes + 10], offset)
        return super()._write(fd, data, offset)


def commit_behind_the_gate(fs: Gated, log: EventLog, threads: int) -> dict[int, EventLogError | None]:
    """One thread is held in its sync while the others queue; returns what each of them got."""
    outcome: dict[int, EventLogError | None] = {}

    def one(number: int) -> None:
        try:
            log.commit(Event("t", {"n": number, "text": "x" * 1000}))
            outcome[number] = None
        except EventLogError as error:
            outcome[number] = error

    fs.closed = True
    workers = [threading.Thread(target=one, args=(0,))]
    workers[0].start()
    assert fs.waiting.wait(30)
    for number in range(1, threads + 1):
        workers.append(threading.Thread(target=one, args=(number,)))
        workers[-1].start()
    time.sleep(0.3)  # until they sleep in the queue; should one be late, the test only shows less
    fs.gate.set()
    for worker in workers:
        worker.join()
    return outcome


def numbers(path: Path, fs: FaultFileSystem) -> set[int]:
    with EventLog.open(path, fs=fs) as log:
        return {event.data["n"] for event in log.read()}


@pytest.mark.parametrize("whole_frames", [1, 2])
def test_a_write_that_broke_in_the_middle_of_a_group_never_appears(tmp_path: Path, whole_frames: int) -> None:
    """The first frames of the group were on their way whole when room ran out: NotWritten must hold after a power cut as well."""
    fs = Gated(tmp_path / "disk", whole_frames)
    log = EventLog.open(fs.root / "log", fs=fs, batch_window_ms=600_000)
    log.commit(Event("t", {"n": 100, "text": "x" * 1000}))
    fs.frame_bytes = 64 + len('[["t","",{"n":100,"text":""}]]') + 1000
    outcome = commit_behind_the_gate(fs, log, 4)
    never = {number for number, error in outcome.items() if isinstance(error, NotWritten)}
    acked = {number for number, error in outcome.items() if error is None} | {100}
    assert len(never) >= 3, outcome
    fs.broken, fs.whole_frames = False, 0
    cuts = [random_state(fs.disk, random.Random(seed)) for seed in range(40)]
    # And in order: the first, second, third … of the pending writes landed and what came after it did not.
    cuts += [fs.disk.tree(names_all, lambda file, k=k: file.torn(min(k, len(file.pending)), 0)) for k in range(8)]  # type: ignore[misc]
    for number, tree in enumerate(cuts):
        path = tmp_path / f"cut-{number}"
        materialize(tree, path)
        found = numbers(path / "log", FaultFileSystem(path))
        assert not found & never, f"cut {number}: NotWritten, and there: {found & never}"
    log.commit(Event("t", {"n": 101}))
    log.close()
    assert numbers(fs.root / "log", fs) == acked | {101}


def test_every_waiter_of_a_failed_sync_gets_the_error(tmp_path: Path) -> None:
    fs = Gated(tmp_path / "disk", 0)
    log = EventLog.open(fs.root / "log", fs=fs, batch_window_ms=600_000)
    log.commit(Event("t", {"n": 100}))
    fs.fail("fdatasync", times=None)
    outcome = commit_behind_the_gate(fs, log, 6)
    assert all(isinstance(error, OutcomeUnknown | NotWritten | LogPoisoned) for error in outcome.values()), outcome
    assert len(outcome) == 7
    fs.heal()
    with pytest.raises(EventLogError):
        log.close()
    fs.evict()
    found = numbers(fs.root / "log", fs)
    assert found >= {100}
    assert not found & {number for number, error in outcome.items() if not isinstance(error, OutcomeUnknown)}


def chain(count: int) -> list[ThreadPlace]:
    return [ThreadPlace(None, None, True) for _ in range(count)]


def woken(places: list[ThreadPlace]) -> list[bool]:
    return [place.wake.acquire(blocking=False) for place in places]


def test_each_of_a_chain_wakes_the_next_and_no_chain_is_long() -> None:
    places = chain(19)
    _wake_all(list(places))
    assert [n for n, is_awake in enumerate(woken(places)) if is_awake] == [0, 8, 16]
    heads = [places[0], places[8], places[16]]
    seen = set()
    while heads:  # as their threads do it
        place = heads.pop()
        seen.add(place)
        if place.then is not None:
            place.then.done()
            assert place.then.wake.acquire(blocking=False)
            heads.append(place.then)
    assert seen == set(places)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("gone", [(1,), (0, 1), (1, 2), (0, 1, 2)])
def test_a_thread_that_left_leaves_nobody_behind_it_asleep(gone: tuple[int, ...], before: bool) -> None:
    """Ctrl-C takes a thread out of the queue while its commit is on the way: before it was told that it is done, or just after."""
    places = chain(4)
    for number in gone if before else ():
        places[number].leave()
    _wake_all(list(places))
    for number in () if before else gone:
        if number:
            places[number - 1].done()
        places[number].leave()
    for number in range(3):
        place, then = places[number], places[number].then
        if number not in gone and place.told:
            assert then is not None
            then.done()
    assert all(place.told for place in places)
    _wake_all(list(places))  # the end of a turn may be done twice
    assert woken(places) == [True] * 4
