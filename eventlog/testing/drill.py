"""What every fault test does with the real log: commits whose every event is known beforehand, and the check of all
promises."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from eventlog import Durability, Event, EventLog, Recorded
from eventlog.fs import FileSystem
from eventlog.testing.tracked import TrackedFileSystem

SEGMENT_BYTES_MAX = 4096
SIZES = (1, 3, 2)  # events in a commit, in turn


class Rebooted(FileSystem):
    """The real files after a reboot: what the page cache held before is nobody's word any more."""

    def __init__(self) -> None:
        self._boot = os.urandom(16)

    def boot_id(self) -> bytes:
        return self._boot


def commit_of(number: int) -> list[Event]:
    """The events of commit `number` (from 0), always the same."""
    size = SIZES[number % len(SIZES)]
    text = "x" * (1 + (number * 263) % 900)
    return [Event(f"kind.{number % 4}", {"c": number, "i": i, "text": text}, f"stream-{number % 2}") for i in range(size)]


def ends() -> Iterator[int]:
    """The seq of the last event of commit 0, 1, 2 …"""
    seq = 0
    number = 0
    while True:
        seq += SIZES[number % len(SIZES)]
        yield seq
        number += 1


def commits_in(head: int) -> int:
    """How many whole commits a log with that head holds. Raises AssertionError when it ends inside one."""
    done = 0
    for number, end in enumerate(ends()):
        if head < end:
            break
        done = number + 1
        if head == end:
            return done
    assert head == 0, f"head {head} lies inside a commit: it was to be all or nothing"
    return done


def compare(found: Iterable[Recorded]) -> int:
    """The events must be the first ones of the known sequence, with dense seqs. Returns how many commits there are."""
    events = list(found)
    wanted: list[Event] = []
    number = 0
    while len(wanted) < len(events):
        wanted += commit_of(number)
        number += 1
    assert [e.seq for e in events] == list(range(1, len(events) + 1)), "seqs are not dense"
    for event, want in zip(events, wanted, strict=False):
        assert (event.type, event.stream, event.data) == (want.type, want.stream, want.data), f"seq {event.seq} differs"
    return commits_in(len(events))


def open_log(path: Path, fs: FileSystem) -> EventLog:
    return EventLog.open(path, fs=fs, segment_bytes_max=SEGMENT_BYTES_MAX, batch_window_ms=600_000)


def go_on(log: EventLog, count: int, durability: Durability = Durability.IMMEDIATE) -> Iterator[int]:
    """Commit the next `count` commits of the sequence; yields the last seq of each after it was acknowledged."""
    number = compare(log.read())
    for step in range(number, number + count):
        yield log.commit(commit_of(step), durability).last


def look(path: Path, acks: Sequence[object]) -> None:
    """Open what a crash left, and check every promise; then go on twice, each time by a fresh open."""
    promised = max((ack for ack in acks if isinstance(ack, int)), default=0)
    found = 0
    for again in range(3):
        log = open_log(path / "log", Rebooted())
        commits = compare(log.read())
        head = int(log.head)
        assert head >= promised, f"acknowledged up to {promised}, found {head}"
        assert not again or commits == found + 1, f"an append after recovery is gone: {commits} of {found + 1}"
        found = commits
        promised = max(promised, *go_on(log, 1))
        log.close()


def recover(fs: TrackedFileSystem) -> None:
    """What the next process does: open, hand out what is there, commit, close. All of it is promised from then on."""
    log = open_log(fs.root / "log", fs)
    fs.ack(compare_and_count(log))
    for last in go_on(log, 1):
        fs.ack(last)
    log.close()


def compare_and_count(log: EventLog) -> int:
    compare(log.read())
    return int(log.head)


def one_life(fs: TrackedFileSystem, count: int = 12) -> None:
    """Create, commit at once, commit batched, rotate (4 KiB segments), flush, close; every promise is noted in `fs`."""
    log = open_log(fs.root / "log", fs)
    for last in go_on(log, count):
        fs.ack(last)
    for _ in go_on(log, 3, Durability.BATCHED):
        pass
    log.flush()
    fs.ack(int(log.head))
    for _ in go_on(log, 3, Durability.BATCHED):
        pass
    head = int(log.head)
    log.close()
    fs.ack(head)
