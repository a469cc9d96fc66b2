"""Snapshots as a cache and nothing else (reliability P33-P37): whatever happens to one, no event is lost and no answer changes."""

from __future__ import annotations

import collections
import errno
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from keepers import SUM, SUM_2, add, expected, keep_now
from propkit import LAZY, cold, disk, event, fill, needs_root, open_on, segments_of, snapshot

from eventlog import Event, EventLog
from eventlog.errors import EventLogError
from eventlog.fs import FileSystem
from eventlog.projections import COUNTS, Projection, View, fold
from eventlog.projections import snapshots as rules
from eventlog.projections.snapshots import SnapshotWarning, keep
from eventlog.snapshotfiles import KEPT, Debt
from eventlog.testing import TrackedFileSystem, check, crash_states, record_points, run_child
from eventlog.testing.drill import Rebooted

KEEPERS = str(Path(__file__).with_name("keepers.py"))
KEEP_FOUR = f"{KEEPERS}:keep_four"


@pytest.fixture(autouse=True)
def _fresh_process() -> Iterator[None]:
    """Each test warns as a process of its own would."""
    rules._warned.clear()
    yield
    rules._warned.clear()


def kept(path: Path) -> list[Path]:
    return sorted((path / "snapshots").glob("*.snap"))


def answer(path: Path, projection: Projection[Any] = SUM, **options: Any) -> Any:
    with EventLog.open(path, read_only=True, **options) as log:
        return fold(projection, log)


def resumed(path: Path, projection: Projection[Any] = SUM) -> int:
    """The seq at which a fold would begin."""
    with EventLog.open(path, read_only=True) as log:
        found = projection.resume(log.snapshots)
        return found[1] if found is not None else 0


class Counting(FileSystem):
    """The real one, which counts what is read."""

    bytes_read = 0

    def pread(self, fd: int, length: int, offset: int) -> bytes:  # type: ignore[override]
        data = os.pread(fd, length, offset)
        self.bytes_read += len(data)
        return data


# ---------------------------------------------------------------- P33: the same answer


def test_p33_a_snapshot_at_every_n_and_the_tail_are_the_fold_of_everything(tmp_path: Path) -> None:
    path = fill(tmp_path / "log", 60, size=200)
    for n in range(61):
        if (path / "snapshots").exists():
            shutil.rmtree(path / "snapshots")
        assert (keep_now(path, upto=n) > 0) is (n > 0)
        assert resumed(path) == n
        assert answer(path) == expected(60)
        with EventLog.open(path) as log:
            assert View(log, SUM).refresh(n)[0] == fold(SUM, log, n) == expected(n)


def test_inside_a_commit_there_is_none(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        for n in range(0, 12, 3):
            log.commit([event(n), event(n + 1), event(n + 2)], LAZY)
    assert [keep_now(tmp_path / "log", upto=n) > 0 for n in range(13)] == [n > 0 and n % 3 == 0 for n in range(13)]


def test_the_tail_is_read_from_the_place_that_was_proved(tmp_path: Path) -> None:
    """O(new): bytes that are read after resuming do not depend on how much lies before."""
    read = []
    for count in (50, 5000):
        path = fill(tmp_path / str(count), count, segment=16 << 20)
        keep_now(path)
        with EventLog.open(path) as log:
            log.commit(event(count))
        fs = Counting()
        with EventLog.open(path, read_only=True, fs=fs) as log:
            before = fs.bytes_read
            assert fold(SUM, log) == expected(count + 1)
            read.append(fs.bytes_read - before)
    assert read[1] < read[0] + 2000, read


def test_several_are_kept_and_a_look_back_uses_an_older_one(tmp_path: Path) -> None:
    path = fill(tmp_path / "log", 40)
    for n in (10, 20, 30, 35, 40):
        keep_now(path, upto=n)
    assert [int(file.name.split(".")[2]) for file in kept(path)] == [30, 35, 40]
    assert len(kept(path)) == KEPT
    with EventLog.open(path, read_only=True) as log:
        assert SUM.resume(log.snapshots, 37) == (expected(35), 35, len(b'{"sum":595,"events":35}'))
        assert fold(SUM, log, 37) == expected(37)
        assert fold(SUM, log, 5) == expected(5)
    keep_now(path, upto=33)  # a look back does not drive out what is newer
    assert [int(file.name.split(".")[2]) for file in kept(path)] == [30, 35, 40]


# ---------------------------------------------------------------- P34: identity


def warned(call: Callable[[], Any], match: str) -> Any:
    """What `call` gives, after exactly one warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
        call()
    assert [one.category for one in caught] == [SnapshotWarning], "once for each process and projection"
    assert re.search(match, str(caught[0].message))
    return found


def test_p34_damage_anywhere_is_found_and_costs_only_time(tmp_path: Path) -> None:
    path = fill(tmp_path / "log", 30)
    keep_now(path)
    file = kept(path)[0]
    whole = file.read_bytes()
    damaged = [whole[:cut] for cut in range(0, len(whole), 7)]
    damaged += [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    damaged += [bytes(len(whole)), whole + b"\0", whole[:100] + bytes(len(whole) - 100), os.urandom(300)]
    for data in damaged:
        file.write_bytes(data)
        rules._warned.clear()
        assert warned(lambda: answer(path), "is not used: .*(damaged|cut off)") == expected(30)
        assert file.read_bytes() == data, "a read-only handle touches nothing"
    file.write_bytes(whole)
    assert resumed(path) == 30
    file.write_bytes(damaged[-1])
    rules._warned.clear()
    with EventLog.open(path) as log, pytest.warns(SnapshotWarning):
        assert fold(SUM, log) == expected(30)
    assert kept(path) == [], "who may write discards it"


def test_a_damaged_one_leaves_the_older_ones(tmp_path: Path) -> None:
    path = fill(tmp_path / "log", 30)
    keep_now(path, upto=10)
    keep_now(path, upto=20)
    kept(path)[-1].write_bytes(b"")
    assert warned(lambda: resumed(path), "cut off") == 10
    assert answer(path) == expected(30)


def test_p34_of_another_log_or_under_another_name(tmp_path: Path) -> None:
    mine, other = fill(tmp_path / "a", 20), fill(tmp_path / "b", 20)
    keep_now(other)
    shutil.copytree(other / "snapshots", mine / "snapshots")
    assert warned(lambda: answer(mine), "belongs to the log") == expected(20)
    keep_now(mine, COUNTS)
    shutil.rmtree(mine / "snapshots")
    keep_now(mine)
    file = kept(mine)[0]
    file.rename(file.with_name(file.name.replace(f"{20:020d}", f"{19:020d}")))
    rules._warned.clear()
    assert warned(lambda: answer(mine), "was renamed") == expected(20)


@pytest.mark.parametrize("size", [4096, 1 << 20])
@pytest.mark.parametrize("count", [0, 3, 20])
def test_p34_a_log_that_was_cut_and_grew_again_with_other_events(tmp_path: Path, size: int, count: int) -> None:
    """Same id, same seq, other bytes (okumin/akka-persistence-sql-async 6, akka-core 18559)."""
    path = fill(tmp_path / "log", 20, segment=size)
    back = shutil.copytree(path, tmp_path / "old")
    with EventLog.open(path, segment_bytes_max=size) as log:
        for n in range(20, 40):
            log.commit(event(n, 300), LAZY)
    keep_now(path)
    assert resumed(path) == 40
    shutil.copytree(path / "snapshots", back / "snapshots")
    with EventLog.open(cold(back), segment_bytes_max=size) as log:
        for n in range(20, 20 + count):
            log.commit(event(100 + n, 300), LAZY)
    match = "was cut or replaced" if size > 4096 or count < 20 else "not there any more|was cut or replaced"
    found = warned(lambda: answer(cold(back)), match)
    assert found["events"] == 20 + count
    assert found["sum"] == sum(range(20)) + sum(range(120, 120 + count))


def test_p34_a_new_version_of_a_fold_begins_anew_and_clears_up(tmp_path: Path) -> None:
    path = fill(tmp_path / "log", 20)
    keep_now(path)
    assert answer(path, SUM_2) == {"sum": 2 * expected(20)["sum"], "events": 40}
    assert resumed(path) == 20
    keep_now(path, SUM_2)
    assert [file.name.split(".")[1] for file in kept(path)] == ["2"]
    assert answer(path) == expected(20)


def test_a_state_that_json_does_not_carry_gets_none(tmp_path: Path) -> None:
    path = fill(tmp_path / "log", 5)
    shared: list[int] = []
    states: dict[str, Any] = {
        "tuple": (1,), "set": {1}, "int keys": {1: 2}, "nan": float("nan"), "bytes": b"x", "counter": collections.Counter(a=1),
        "twice": [shared, shared], "enum": [errno], "deep tuple": {"a": [{"b": (1,)}]}, "true int": type("I", (int,), {})(3), "big": 2**64,
        "surrogate": "\ud800",
    }  # fmt: skip
    for name, state in states.items():
        lossy: Projection[Any] = Projection(f"lossy {name}", 1, None, {"test.n": lambda s, e, state=state: state})
        assert keep_now(path, lossy) == 0, name
    for number, (dump, load) in enumerate(((sorted, None), (lambda s: {"a": 1}, lambda d: {"b": 2}), (lambda s: 1 / 0, set))):
        wrong: Projection[Any] = Projection(f"wrong {number}", 1, {1}, {"test.n": lambda s, e: s}, dump, load)  # type: ignore[arg-type]
        assert keep_now(path, wrong) == 0
    fine: Projection[Any] = Projection("fine", 1, {2, 1}, {"test.n": lambda s, e: s | {e.data["n"]}}, sorted, set)
    assert keep_now(path, fine) > 0
    assert answer(path, fine) == set(range(5))
    assert len(kept(path)) == 1


def test_a_load_that_raises_is_a_snapshot_that_is_not_used(tmp_path: Path) -> None:
    path = fill(tmp_path / "log", 5)
    keep_now(path)
    changed: Projection[Any] = Projection("sum", 1, [0], {"test.n": lambda s, e: [s[0] + 1]}, lambda s: s, lambda d: [d["total"]])
    assert warned(lambda: answer(path, changed), "does not load .KeyError") == [5]


# ---------------------------------------------------------------- P35: writing one


def test_sigkill_at_every_step_of_writing_one(tmp_path: Path) -> None:
    path = fill(tmp_path / "log", 20)
    place = shutil.copytree(path, tmp_path / "recorded")
    points = [(point, n) for point, n in record_points(KEEP_FOUR, [str(place)]) if point.startswith("snapshot-")]
    assert {point for point, _ in points} == {
        "snapshot-begun", "snapshot-written", "snapshot-synced", "snapshot-renamed", "snapshot-dropped",
    }  # fmt: skip
    points = [(point, n) for point, n in points if n in (1, 4)]
    for point, number in points:
        place = shutil.copytree(path, tmp_path / f"{point}-{number}")
        assert run_child(KEEP_FOUR, [str(place)], crash_at=point, nth=number).killed
        assert answer(place) == expected(20)
        for left in (place / "snapshots").glob("*.tmp"):
            os.utime(left, (time.time() - 3600,) * 2)
        keep_now(place, COUNTS)
        assert list((place / "snapshots").glob("*.tmp")) == [], "what a crash left is cleared away"
        assert answer(place) == expected(20)


def test_every_state_that_a_power_cut_may_leave(tmp_path: Path) -> None:
    fs = TrackedFileSystem(tmp_path / "disk")
    log = EventLog.open(fs.root / "log", fs=fs, segment_bytes_max=4096, batch_window_ms=600_000)
    view = View(log, SUM)
    for n in range(10):
        log.commit(event(n), LAZY)
        state, seq = view.refresh()
        if n % 3 == 2:
            assert keep(SUM, log.snapshots, state, seq) > 0
            fs.ack(seq)
    log.close()

    def look(path: Path, acks: Sequence[object]) -> None:
        with EventLog.open(path / "log", fs=Rebooted(), segment_bytes_max=4096) as again:
            numbers = [e.data["n"] for e in again.read()]
            assert numbers == list(range(len(numbers)))
            assert all(entry.seq <= len(numbers) for entry in again.snapshots.entries()), "a snapshot is ahead of the log"
            found = SUM.resume(again.snapshots)
            assert (found[1] if found else 0) >= max([0, *map(int, map(str, acks))]), "kept, synced, and gone"
            assert fold(SUM, again) == expected(len(numbers))

    report = check(crash_states(fs, seed=7), look, tmp_path / "work")
    assert report.states > 100


def test_p35_what_a_power_cut_may_take_is_in_none(tmp_path: Path) -> None:
    fs = disk(tmp_path / "disk", 35)
    log = open_on(fs, batch_window_ms=600_000)
    for n in range(12):
        assert log.transact(SUM, lambda state: event(state["events"]), LAZY)
        entry = log._transactions._states.get(SUM)
        assert entry is not None
        keep(SUM, log.snapshots, entry[2], entry[0])  # syncs what it needs, or refuses
        left = fs.power_cut(tmp_path / f"cut{n}", stop=False)
        with EventLog.open(left.root / "log", fs=left, segment_bytes_max=4096) as again:
            assert all(one.seq <= int(again.head) for one in again.snapshots.entries())
            assert fold(SUM, again) == expected(int(again.head))
    log.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("call", ["open", "fstat", "pwrite", "fsync", "rename", "unlink", "mkdir", "listdir", "flock", "close", "lstat"])
def test_a_refusal_in_writing_one_never_fails_the_fold(tmp_path: Path, call: str, number: int) -> None:
    struck = 0
    for nth in range(1, 30):
        fs = disk(tmp_path / f"disk{nth}")
        log = open_on(fs)
        for n in range(20):
            log.commit(event(n), LAZY)
        for n in (5, 10, 15, 18):
            view = View(log, SUM, snapshots=False)
            assert keep(SUM, log.snapshots, *view.refresh(n)) > 0
        view = View(log, SUM)
        state, seq = view.refresh()
        fault = fs.fail(call, nth, number, None)
        keep(SUM, log.snapshots, state, seq)
        fs.heal()
        assert view.state == fold(SUM, log) == fold(SUM, log, snapshots=False) == expected(20)
        log.commit(event(20))
        log.close()
        with EventLog.open(fs.root / "log", fs=fs) as again:
            assert fold(SUM, again) == expected(21)
        struck += fault.injected > 0
        if not fault.injected:
            break
    assert struck or call in ("mkdir", "lstat")


@pytest.mark.filterwarnings("ignore::eventlog.projections.snapshots.SnapshotWarning")
@pytest.mark.parametrize("call", ["open", "pread", "fstat", "listdir", "close"])
def test_a_refusal_in_reading_one_never_changes_the_answer(tmp_path: Path, call: str) -> None:
    fs = disk(tmp_path / "disk")
    with open_on(fs) as log:
        for n in range(20):
            log.commit(event(n), LAZY)
        for n in (10, 20):
            assert keep(SUM, log.snapshots, *View(log, SUM, snapshots=False).refresh(n)) > 0
        for nth in range(1, 60):
            fault = fs.fail(call, nth, errno.EIO, 1)
            try:
                assert fold(SUM, log) == expected(20)
            except EventLogError as error:
                assert fault.injected, error  # the log itself could not be read: that is said, not hidden
            fs.heal()
            if not fault.injected:
                break
        assert nth > 1
        assert len(log.snapshots.entries()) == 2, "what could not be read for a moment is not thrown away"


def test_two_processes_that_refresh_beside_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog.open(path, segment_bytes_max=16 << 10) as log:
        children = [subprocess.Popen([sys.executable, KEEPERS, str(path)]) for _ in range(2)]
        for n in range(3000):
            log.commit(event(n, 20), LAZY)
        log.commit(Event("test.end", {}))
    assert [child.wait(60) for child in children] == [0, 0]
    assert 1 <= len(kept(path)) <= KEPT + 1  # one more where both were at it at once and neither saw the other's
    assert answer(path) == expected(3000)
    assert list((path / "snapshots").glob("*.tmp")) == []


def test_read_only_leaves_not_one_byte(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog.open(path) as log:
        for n in range(0, 30_000, 100):
            log.commit([event(n + i, 20) for i in range(100)], LAZY)
    before = snapshot(path)
    with EventLog.open(path, read_only=True) as log:
        view = View(log, SUM)
        assert view.state == expected(30_000)
        assert not view.keep()
        assert keep(SUM, log.snapshots, view.peek(), view.seq) == 0
    assert snapshot(path) == before
    keep_now(path, upto=29_000)
    before = snapshot(path)
    with EventLog.open(path, read_only=True) as log:
        assert fold(SUM, log) == expected(30_000)
        assert View(log, SUM).refresh(29_500)[0] == expected(29_500)
    kept(path)[0].write_bytes(b"junk")
    before = snapshot(path)
    with EventLog.open(path, read_only=True) as log, pytest.warns(SnapshotWarning):
        assert fold(SUM, log) == expected(30_000)
    assert snapshot(path) == before


def test_a_folder_that_is_not_to_be_written_is_not(tmp_path: Path) -> None:
    """Mode 0555 does not stop root; we do."""
    path = fill(tmp_path / "log", 10)
    path.chmod(0o555)
    try:
        with EventLog.open(path, read_only=True) as log:
            log.snapshots.may_write = True
            assert keep(SUM, log.snapshots, *View(log, SUM).refresh()) == 0
        assert not (path / "snapshots").exists()
    finally:
        path.chmod(0o700)


def test_a_stranger_leaves_nothing(tmp_path: Path) -> None:
    needs_root("giving a log to somebody else")
    path = fill(tmp_path / "log", 10)
    os.chown(path, 12345, 12345)
    with EventLog.open(path, read_only=True) as log:
        log.snapshots.may_write = True
        assert keep(SUM, log.snapshots, *View(log, SUM).refresh()) == 0
    assert not (path / "snapshots").exists()


@pytest.mark.parametrize("what", ["file", "link", "fifo", "link in it", "fifo in it", "folder in it", "hard link in it"])
def test_strange_things_in_the_place_of_snapshots(tmp_path: Path, what: str) -> None:
    path, away = fill(tmp_path / "log", 10), tmp_path / "away"
    away.mkdir()
    place = path / "snapshots"
    if what == "file":
        place.write_bytes(b"x")
    elif what == "link":
        place.symlink_to(away)
    elif what == "fifo":
        os.mkfifo(place)
    else:
        keep_now(path)
        file = kept(path)[0]
        shutil.copy(file, away / "copy")
        file.unlink()
        if what.startswith("link"):
            file.symlink_to(away / "copy")
        elif what.startswith("fifo"):
            os.mkfifo(file)
        elif what.startswith("folder"):
            file.mkdir()
        else:
            os.link(away / "copy", file)
    before = snapshot(away)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnapshotWarning)
        for read_only in (True, False):
            with EventLog.open(path, read_only=read_only) as log:
                assert fold(SUM, log) == expected(10)
                keep(SUM, log.snapshots, *View(log, SUM).refresh())
    if "hard" not in what:  # its count of names changes when ours is dropped
        assert snapshot(away) == before, "written through a link"


def test_the_snapshots_of_hostile_names_are_files_like_others(tmp_path: Path) -> None:
    path = fill(tmp_path / "log", 5)
    for name in ("../../x", "/etc/passwd", "a\0b", "\ud800", "é" * 900, " "):
        odd: Projection[Any] = Projection(name, 1, {"sum": 0, "events": 0}, {"test.n": add})
        assert keep_now(path, odd) > 0
        assert answer(path, odd) == expected(5)
    assert {file.parent for file in tmp_path.rglob("*.snap")} == {path / "snapshots"}


# ---------------------------------------------------------------- when


def test_when_one_is_due() -> None:
    debt = Debt()
    assert not debt.is_due(10**6), "nothing was spent"
    debt.spent_ns = 10**12
    assert not debt.is_due(999), "too few events"
    assert debt.is_due(1000)
    debt.settle(1000, 10 << 20)
    assert (debt.seq, debt.spent_ns, debt.size) == (1000, 0, 10 << 20)
    debt.spent_ns = 100_000_000
    assert not debt.is_due(10**6), "writing ten megabytes costs more"
    debt.spent_ns = 10**9
    assert debt.is_due(10**6)
    debt.settle(2000, 0)
    assert debt.size == 10 << 20, "a failure says nothing of the size"


def test_transact_begins_at_a_snapshot_and_keeps_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog.open(path) as log:
        for n in range(0, 20_000, 100):
            log.commit([event(n + i, 20) for i in range(100)], LAZY)
        assert log.transact(SUM, lambda state: event(state["events"]), LAZY)
        log._transactions._debts[SUM].spent_ns = 10**10  # as if it had been a slow machine
        assert log.keep(SUM)
        assert not log.keep(SUM)
    assert resumed(path) == 20_001
    with EventLog.open(path) as log:
        assert log.transact(SUM, lambda state: event(state["events"]), LAZY)
        assert log._transactions._debts[SUM].seq == 20_001
        assert fold(SUM, log, snapshots=False) == expected(20_002)


def test_a_view_keeps_itself_and_status_reads_what_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog.open(path) as log:
        view, quiet = View(log, SUM), View(log, SUM, keeps=False)
        for n in range(0, 5000, 100):
            log.commit([event(n + i, 20) for i in range(100)], LAZY)
        view._debt.spent_ns = quiet._debt.spent_ns = 10**10
        assert quiet.state == expected(5000)
        assert kept(path) == []
        assert view.state == expected(5000)
        assert resumed(path) == 5000
        assert quiet.due
        assert quiet.keep(), "it finds what the other one kept"
        assert len(kept(path)) == 1
        assert not view.due


def test_segments_are_what_they_were(tmp_path: Path) -> None:
    path = fill(tmp_path / "log", 30)
    before = {file.name: file.read_bytes() for file in segments_of(path)}
    for n in range(1, 31):
        keep_now(path, upto=n)
    with EventLog.open(path, read_only=True) as log:
        assert len(log.snapshots.drop()) == KEPT
    assert {file.name: file.read_bytes() for file in segments_of(path)} == before
