"""Handles that stay open while the bytes under them change: damage that nobody has told them of, and a repair that takes events away."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from eventlog import Corrupt, Durability, Event, EventLog, OutcomeUnknown
from eventlog.audit import verify
from eventlog.fs import FileSystem
from eventlog.projections import Projection, View, fold
from eventlog.repair import repair

SEGMENT = 16 << 10


class Counting(FileSystem):
    """Counts syncs."""

    syncs = 0

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self.syncs += 1
        os.fdatasync(fd)


def put(log: EventLog, count: int, kind: str = "common", durability: Durability = Durability.BATCHED) -> None:
    for number in range(count):
        log.commit(Event(kind, {"n": number, "pad": "x" * 50}), durability)


def segment_of(path: Path, number: int = 1) -> Path:
    return path / "segments" / f"{number:020d}.seg"


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))


def blank(path: Path, offset: int, length: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(bytes(length))


DAMAGE: dict[str, Callable[[Path, int], None]] = {
    "a byte in the middle": lambda path, end: flip(path, end // 2),
    "a byte of the first frame": lambda path, end: flip(path, 85),
    "a byte of the last commit": lambda path, end: flip(path, end - 20),
    "the last commits blank": lambda path, end: blank(path, end - 300, 300),
    "all commits blank": lambda path, end: blank(path, 80, end - 80),
}


@pytest.mark.parametrize("commits", [20, 400])  # less and more than the record lags behind
@pytest.mark.parametrize("what", list(DAMAGE))
def test_no_reader_ends_early_in_silence_where_the_disk_had_confirmed_more(tmp_path: Path, what: str, commits: int) -> None:
    path = tmp_path / "log"
    with EventLog.open(path) as writer:
        put(writer, commits)
        writer.commit(Event("last", {}))
        DAMAGE[what](segment_of(path), writer._writer.view.tail.end)  # type: ignore[union-attr]
        with EventLog.open(path, read_only=True) as reader, pytest.raises(Corrupt):
            list(reader.read())
        assert not verify(path).ok
        assert repair(path).lost_from is not None
        assert verify(path).ok


def test_a_writer_that_was_open_during_a_repair_goes_on_behind_what_others_wrote_since(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog.open(path) as early:
        put(early, 100, durability=Durability.IMMEDIATE)
        flip(segment_of(path), early._writer.view.tail.end // 2)  # type: ignore[union-attr]
        lost_from = repair(path).lost_from
        assert lost_from is not None
        with EventLog.open(path) as late:
            commits = [log.commit(Event("since", {"n": n})) for n in range(4) for log in (late, early)]
            assert [commit.first for commit in commits] == list(range(lost_from, lost_from + 8))
    with EventLog.open(path) as log:
        assert [event.seq for event in log.read()] == list(range(1, lost_from + 8))


def test_a_reader_that_was_open_during_a_repair_misses_nothing_and_hands_out_nothing_that_is_not_on_disk(tmp_path: Path) -> None:
    path, fs = tmp_path / "log", Counting()
    with EventLog.open(path, segment_bytes_max=SEGMENT) as log:
        put(log, 1, "rare")
        put(log, 330)
    with EventLog.open(path, read_only=True, fs=fs) as reader:
        assert [event.seq for event in reader.read(types=["rare"])] == [1]
        assert len(list(reader.read(300))) == 31
        flip(segment_of(path), 8200)
        lost_from = repair(path).lost_from
        assert lost_from is not None
        with EventLog.open(path, segment_bytes_max=SEGMENT, batch_window_ms=float("inf")) as log:
            put(log, 1, "rare")
            before = fs.syncs
            assert int(reader.head) == lost_from
            assert [event.seq for event in reader.read(types=["rare"])] == [1, lost_from]
            assert fs.syncs == before + 1
            put(log, 200)
        assert [event.seq for event in reader.read(types=["rare"])] == [1, lost_from]
        assert [event.seq for event in reader.read()] == list(range(1, lost_from + 201))


SUM = Projection("open.sum", 1, 0, {"add": lambda state, event: state + event.data["n"]})


def regrow(path: Path, damaged: int, until: int) -> None:
    """Damage, repair, and other events with the seqs of those that are gone; all by others."""
    flip(segment_of(path), damaged)
    assert repair(path).lost_from is not None
    with EventLog.open(path) as log:
        while int(log.head) < until:
            log.commit(Event("add", {"n": 1000}), Durability.BATCHED)


@pytest.mark.parametrize("until", [1600, 1700])
def test_what_was_folded_before_a_repair_is_folded_again_and_never_kept(tmp_path: Path, until: int) -> None:
    path = tmp_path / "log"
    with EventLog.open(path) as log:
        for _ in range(1600):
            log.commit(Event("add", {"n": 1}), Durability.BATCHED)
    with EventLog.open(path) as writer, EventLog.open(path, read_only=True) as reader:
        views = [View(writer, SUM), View(reader, SUM)]
        assert [view.state for view in views] == [1600, 1600]
        assert writer.transact(SUM, lambda state: None) is None
        writer.snapshots.drop()
        regrow(path, 40_000, until)
        with EventLog.open(path, read_only=True) as fresh:
            right = fold(SUM, fresh, snapshots=False)
        assert right > 1600
        decided: list[int] = []
        writer.transact(SUM, decided.append)
        assert decided == [right]
        assert [view.state for view in views] == [right, right]
        for view in views:
            view._debt.spent_ns = 10**12
            view.keep()
        writer._transactions.keep(SUM)
        assert fold(SUM, writer) == right


def test_a_decision_does_not_rest_on_what_another_process_has_cut_off(tmp_path: Path) -> None:
    """Seen by `transact` before anybody had confirmed it, and gone with the sync that failed."""
    path = tmp_path / "log"
    second = EventLog.open(path, batch_window_ms=600_000)
    with EventLog.open(path) as first:
        first.commit(Event("add", {"n": 1}))
        second.commit(Event("add", {"n": 10}), Durability.BATCHED)
        tail = second._writer.view.tail  # type: ignore[union-attr]

        def leave(state: int) -> None:
            assert state == 11
            raise KeyError

        with pytest.raises(KeyError):
            first.transact(SUM, leave)
        # What the kernel does to a page that it could not write, and what the writer does who is told.
        assert tail.last is not None
        blank(segment_of(path), tail.last[0], len(tail.last[1]))
        second._writer.give_up(OSError(5, "Input/output error"))  # type: ignore[union-attr]
        with EventLog.open(path) as third:
            third.commit(Event("other", {"n": 5}))
            decided: list[int] = []
            first.transact(SUM, decided.append)
            assert decided == [1]
        with pytest.raises(OutcomeUnknown):
            second.close()
