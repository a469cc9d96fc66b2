"""Drills that fail every call of the seam in turn, in each stage of a log's life, and judge what became of each commit.

NotWritten never appears later, OutcomeUnknown may, what was acknowledged is always there, and the handle is as good as
new or says that it is done (LogPoisoned). Used by `eventlog.testing.soak` and by the log's own tests.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from eventlog import Durability, Event, EventLog, EventLogError, LogPoisoned, OutcomeUnknown
from eventlog.testing.drill import SEGMENT_BYTES_MAX
from eventlog.testing.faultfs import CALLS, ERRNOS, FaultFileSystem, sweep

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MAKES_ROOM = ("pwrite", "fallocate")  # no room in one of these is no harm; in a sync it is as bad as EIO


@dataclass
class Run:
    """One log over one faulty disk, and what became of each commit that was tried."""

    fs: FaultFileSystem
    log: EventLog | None = None
    tried: int = 0
    acked: set[int] = field(default_factory=set)
    never: set[int] = field(default_factory=set)
    poisoned: bool = False
    errors: list[EventLogError] = field(default_factory=list)

    def open(self) -> EventLog:
        self.log = EventLog.open(
            self.fs.root / "log",
            fs=self.fs,
            segment_bytes_max=SEGMENT_BYTES_MAX,
            batch_window_ms=600_000,
            lock_timeout=0.2,
        )
        return self.log

    def commit(self, durability: Durability = Durability.IMMEDIATE) -> bool:
        assert self.log is not None
        number, self.tried = self.tried, self.tried + 1
        size = 1 + number % 3
        events = [Event("t", {"n": number, "i": i, "of": size, "text": "x" * (number * 263 % 900)}) for i in range(size)]
        try:
            self.log.commit(events, durability)
        except OutcomeUnknown as error:
            self.errors.append(error)
            return False
        except EventLogError as error:
            self.errors.append(error)
            self.poisoned |= isinstance(error, LogPoisoned)
            self.never.add(number)
            return False
        if durability is Durability.IMMEDIATE:
            self.acked.add(number)
        return True

    def found(self, log: EventLog) -> list[int]:
        """The commits in the log, whole and in the order in which they were tried."""
        events = list(log.read())
        numbers: list[int] = []
        at = 0
        while at < len(events):
            size = events[at].data["of"]
            commit = events[at : at + size]
            number = events[at].data["n"]
            assert [(e.data["n"], e.data["i"]) for e in commit] == [(number, i) for i in range(size)], "not whole"
            numbers.append(number)
            at += size
        assert [e.seq for e in events] == list(range(1, len(events) + 1)), "seqs are not dense"
        assert numbers == sorted(set(numbers)), f"{numbers} is not the order of the commits"
        return numbers

    def check(self, fs: FaultFileSystem, what: str) -> None:
        with EventLog.open(fs.root / "log", fs=fs, segment_bytes_max=SEGMENT_BYTES_MAX) as log:
            found = set(self.found(log))
            assert self.acked <= found, f"{what}: acknowledged and lost: {sorted(self.acked - found)}; {self}"
            assert not self.never & found, f"{what}: NotWritten and there: {sorted(self.never & found)}; {self}"
            log.commit(Event("t", {"n": 10_000, "i": 0, "of": 1}))

    def __str__(self) -> str:
        return f"{self.fs!r}, errors {[f'{type(e).__name__}: {e}' for e in self.errors]}"


class Sweep:
    """Fresh copies of one prepared log directory, each over a fault file system of its own."""

    def __init__(self, base: Path, prepare: Callable[[Run], None], *, reboot: bool = False, opened: bool = True) -> None:
        self.base, self.number, self.struck, self.opened = base, 0, 0, opened
        self.template = Run(FaultFileSystem(base / "template"))
        prepare(self.template)
        if self.template.log is not None and reboot is False:
            self.template.log.close()
        self.boot = None if reboot else self.template.fs.boot_id()
        self.run: Run

    def make(self) -> FaultFileSystem:
        if self.number:
            self.finish()
        self.number += 1
        root = self.base / "disk"
        shutil.copytree(self.template.fs.root, root)
        # The copied lock file is another inode, so the tail record in it is not believed by the first opener; a second
        # one may be.
        fs = FaultFileSystem(root, seed=self.number, boot_id=self.boot)
        self.run = Run(fs, tried=self.template.tried, acked=set(self.template.acked))
        if self.opened:
            self.run.open()
        return fs

    def finish(self) -> None:
        """Let go of the last run and its directories."""
        self.run.fs.heal()
        if self.run.log is not None:
            with contextlib.suppress(EventLogError, OSError):
                self.run.log.close()
        for path in self.base.glob("disk*"):
            shutil.rmtree(path)

    def run_all(
        self,
        workload: Callable[[Run], None],
        calls: Iterable[str],
        errnos: Iterable[int],
        times: Iterable[int | None],
    ) -> None:
        """Run the workload under each fault, and judge. Raises AssertionError that tells every kind of failure once."""
        failures: dict[str, str] = {}
        for _ in sweep(self.make, calls=calls, errnos=errnos, times=times):
            fault = self.run.fs.faults[0]
            try:
                workload(self.run)
                self.judge()
            except Exception as error:  # noqa: BLE001  told below
                where = traceback.extract_tb(error.__traceback__)
                own = [f"{Path(at.filename).name}:{at.lineno}" for at in where if "testing" not in at.filename][-3:]
                key = f"{fault.call} {type(error).__name__} {own} {str(error)[:20] if not own else ''}"
                failures.setdefault(key, f"{fault} (seed {self.number}): {type(error).__name__} at {own}: {error}")
            self.struck += bool(fault.injected)
        self.finish()
        if self.template.log is not None:
            self.template.log.close()
        told = "\n  - ".join(failures.values())
        assert not failures, f"{len(failures)} kinds of broken promise:\n  - {told}"

    def judge(self) -> None:
        """After the workload: a power cut at once; the handle; a fresh open now, with the page cache dropped; another power cut."""
        run, fs = self.run, self.run.fs
        fault = fs.faults[0]
        fs.heal()
        run.check(fs.power_cut(self.base / "disk.cut-at-once", stop=False), "after a power cut at once")
        if run.log is not None:
            sync_failed = fault.injected and fault.call in ("fdatasync", "fsync")
            went_on = run.commit()
            if fault.injected and fault.errno in NO_ROOM and fault.call in MAKES_ROOM:
                assert went_on, f"space is back and the handle does not go on: {run}"
            if not went_on:
                assert isinstance(run.errors[-1], LogPoisoned), f"neither usable nor poisoned: {run}"
            if sync_failed and any(isinstance(e, OutcomeUnknown) for e in run.errors[:-1]):
                assert not went_on, f"a handle went on after a failed sync: {run}"
        cut = fs.power_cut(self.base / "disk.cut", stop=False)
        fs.evict()
        run.check(fs, "opened again")
        run.check(cut, "after a power cut")


def _started(run: Run) -> None:
    run.open()
    for _ in range(4):
        assert run.commit(), run


def _nearly_full(run: Run) -> None:
    log = run.open()
    while len(log.segments()) < 2:
        assert run.commit(), run


def _torn(run: Run) -> None:
    """Half of a frame that nobody acknowledged, as a kill in pwrite leaves it."""
    _started(run)
    assert run.log is not None
    path = run.fs.root / "log" / "segments" / run.log.segments()[-1].name
    end = path.read_bytes().rstrip(b"\0")
    with path.open("r+b") as file:
        file.seek((len(end) + 7) // 8 * 8)
        file.write(end[80:180])


def _open(run: Run) -> None:
    before = len(os.listdir("/proc/self/fd"))
    try:
        run.open()
    except EventLogError:
        left = len(os.listdir("/proc/self/fd")) - before
        assert not left, f"a refused open leaked {left} descriptors; {run}"
    else:
        run.commit()


def _commit(run: Run) -> None:
    run.commit()
    run.commit()
    run.commit(Durability.BATCHED)


def _rotate(run: Run) -> None:
    segments = run.fs.root / "log" / "segments"
    before = len(os.listdir(segments))
    for _ in range(9):
        run.commit()
    if not run.fs.faults[0].injected:
        assert len(os.listdir(segments)) > before, "the workload was to rotate"


def _close(run: Run) -> None:
    assert run.log is not None
    pending = [number for number in (run.tried, run.tried + 1) if run.commit(Durability.BATCHED)]
    try:
        run.log.close()
    except EventLogError as error:
        assert run.fs.faults[0].injected, f"close failed without a fault: {error}; {run}"
    else:
        run.acked |= set(pending)
    run.log = None


def _read(run: Run) -> None:
    assert run.log is not None
    try:
        found = run.found(run.log)
    except EventLogError as error:
        assert run.fs.faults[0].injected, f"reading failed without a fault: {error}; {run}"
    else:
        assert set(found) == run.acked, f"a reader missed events in silence; {run}"


class Drill(NamedTuple):
    """One stage of a log's life: what comes before the faults, and what meets them."""

    prepare: Callable[[Run], None]
    workload: Callable[[Run], None]
    opened: bool = True
    reboot: bool = False


DRILLS = {
    "open a new log": Drill(lambda run: None, _open, opened=False),
    "open again": Drill(_started, _open, opened=False),
    "commit": Drill(_started, _commit),
    "rotate": Drill(_nearly_full, _rotate),
    "recover": Drill(_torn, _open, opened=False, reboot=True),
    "close": Drill(_started, _close),
    "read": Drill(_started, _read),
}


def drill(
    name: str,
    base: Path,
    *,
    calls: Iterable[str] = CALLS,
    errnos: Iterable[int] = ERRNOS,
    times: Iterable[int | None] = (1, None),
) -> int:
    """Run one of DRILLS in the empty directory `base`. Returns how many faults struck; raises AssertionError on a
    broken promise."""
    stage = DRILLS[name]
    series = Sweep(base, stage.prepare, reboot=stage.reboot, opened=stage.opened)
    series.run_all(stage.workload, calls, errnos, times)
    return series.struck
