"""Reading: the fold of everything, what memory it takes, how long opening takes, and verify."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from benchmarks.race import Bench, Figure, Result, Sample, Side, timed
from benchmarks.stores import TYPE, event, events
from eventlog import Durability, EventLog, Recorded, audit
from eventlog.projections import Projection, fold
from eventlog.projections.counts import COUNTS

BATCHED = Durability.BATCHED


def _add_one(state: int, made: Recorded) -> int:
    return state + 1


COUNT: Projection[int] = Projection("count", 1, 0, {TYPE: _add_one})
"""The smallest fold: what it costs is the log, not the handler."""


def build(path: Path, count: int, size: int) -> None:
    """A log of `count` events in commits of `size`."""
    with EventLog.open(path) as log:
        for first in range(0, count, size):
            made = events(min(size, count - first), first)
            log.commit(made[0] if size == 1 else made, BATCHED)


def full_fold(bench: Bench) -> list[Result]:
    """Fold everything, the files in the page cache, against orjson.loads of the same bodies, already cut out and in memory.

    The peer only parses: no file, no checksum, no handler. Beside it, a peer that parses the data of each event alone, one by one,
    without its type and stream; with commits of many events that is the harder one. The log is opened anew each round.
    """
    results = []
    for size, target in ((1, 0.25), (100, 0.75)):
        count = max(size, bench.size(30_000, 200))
        path = bench.place("log")
        build(path, count, size)
        bodies = bodies_of(path)
        payloads = [orjson.dumps(event(1_000_000 + number).data) for number in range(count)]
        ours = f"eventlog fold, commits of {size}"

        sides: dict[str, Side] = {
            ours: reading(path, count, lambda log: fold(COUNT, log)),
            "counts": reading(path, count, lambda log: fold(COUNTS, log).events),
            "log.read": reading(path, count, lambda log: sum(1 for _ in log.read())),
            "orjson.loads": parsing(bodies, count),
            "loads of data": parsing(payloads, count),
        }
        unit = "events/s"
        results += bench.race(
            "fold",
            sides,
            [
                Figure(f"fold, commits of {size} : orjson.loads of the bodies", ours, "orjson.loads", target, unit=unit),
                Figure(f"fold, commits of {size} : the same, CPU time alone", ours, "orjson.loads", None, "cpu_rate", unit),
                Figure(f"fold, commits of {size} : loads of each event's data", ours, "loads of data", None, unit=unit),
                Figure(
                    f"fold of counts, commits of {size} : orjson.loads", "counts", "orjson.loads", None, unit=unit,
                    note="two dicts counted up for each event",
                ),
                Figure(f"log.read, commits of {size} : orjson.loads", "log.read", "orjson.loads", None, unit=unit),
            ],
        )  # fmt: skip
        shutil.rmtree(path)
    return results


def bodies_of(path: Path) -> list[bytes]:
    """The body of each commit as it stands in the log."""
    with EventLog.open(path, read_only=True) as log:
        return [orjson.dumps(rows) for _, _, rows in log.commits()]


def reading(path: Path, count: int, read: Callable[[EventLog], int]) -> Side:
    """Open the log anew, and time `read`, which says how many events it saw."""

    def turn() -> Sample:
        seen = []
        with EventLog.open(path, read_only=True) as log:
            sample = timed(count, lambda: seen.append(read(log)))
        if seen != [count]:
            raise AssertionError(f"{seen} events were read, of {count}")
        return sample

    return turn


def parsing(bodies: Sequence[bytes], count: int) -> Side:
    """orjson.loads in a loop, nothing else."""

    def work() -> None:
        loads = orjson.loads
        for one in bodies:
            loads(one)

    return lambda: timed(count, work)


_PEAK = "print(next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM')))"
_FOLD = "from pathlib import Path; from benchmarks.folds import fold_once; import sys; fold_once(Path(sys.argv[1]))"


def fold_once(path: Path) -> None:
    """What the child whose memory is measured does."""
    with EventLog.open(path, read_only=True) as log:
        fold(COUNT, log)


def memory(bench: Bench) -> list[Result]:
    """Peak resident memory of a child that folds a million events, over that of a bare interpreter: one-event and 100-event commits.

    Every import is counted, ours and orjson's. Needs /proc (VmHWM).
    """
    if not os.path.exists("/proc/self/status"):
        bench.skip("memory", "no /proc/self/status here")
        return []
    count = bench.size(1_000_000, 400)
    path = bench.place("log")
    build(path, count // 2, 1)
    with EventLog.open(path) as log:
        for first in range(count // 2, count, 100):
            log.commit(events(min(100, count - first), first), BATCHED)
    ours = f"fold of {count} events"
    results = bench.race(
        "memory",
        {ours: lambda: _peak(_FOLD, path), "bare interpreter": lambda: _peak("pass", path)},
        [
            Figure(
                "fold memory over the bare interpreter", ours, "bare interpreter", 40.0, "mib", "MiB", "difference", at_most=True,
                note=f"{count} events, half of them in one-event commits",
            )
        ],
        rounds=min(3, bench.rounds),
        warm=False,
    )  # fmt: skip
    shutil.rmtree(path)
    return results


def _peak(code: str, path: Path) -> Sample:
    root = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-c", f"{code}\n{_PEAK}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": root})
    return {"mib": int(done.stdout) / 1024}


def opening(bench: Bench) -> list[Result]:
    """Open and close, for writing, a log of 1 GiB and one of 1 MiB, in the boot that wrote them. Then the big one is deleted."""
    big, small = bench.size(1024, 2), 1  # MiB
    paths = {"large": bench.place("large"), "small": bench.place("small")}
    for path, mib in zip(paths.values(), (big, small), strict=True):
        with EventLog.open(path) as log:
            for number in range(mib * 4):
                log.commit(event(number, (256 << 10) - 64), BATCHED)
    times = bench.size(300, 3)
    names = {"large": f"{big} MiB", "small": f"{small} MiB"}

    def opened(path: Path, read_only: bool) -> Callable[[], Sample]:
        def turn() -> Sample:
            start = time.perf_counter()
            for _ in range(times):
                EventLog.open(path, read_only=read_only).close()
            return {"ms": (time.perf_counter() - start) / times * 1000}

        return turn

    results = []
    for read_only, how in ((False, "open for writing"), (True, "open read-only")):
        results += bench.race(
            "opening",
            {names[which]: opened(path, read_only) for which, path in paths.items()},
            [Figure(f"{how}, {names['large']} : {names['small']}", names["large"], names["small"], 2.0, "ms", "ms", at_most=True)],
        )
    for path in paths.values():
        shutil.rmtree(path)
    return results


def verifying(bench: Bench) -> list[Result]:
    """verify, against SHA-256 and CRC-32 of the same files, read in one-MiB pieces: the least that it could do."""
    results = []
    for size in (1, 100):
        path = bench.place("log")
        build(path, max(size, bench.size(20_000, 200)), size)
        files = sorted(path.glob("segments/*.seg"))
        mb = sum(file.stat().st_size for file in files) / 1e6
        head = {"sum": 0}

        def verified(path: Path = path, mb: float = mb) -> Sample:
            start = time.perf_counter()
            found = audit.verify(path)
            if not found.ok:
                raise AssertionError(json.dumps([str(problem) for problem in found.problems]))
            return {"rate": mb / (time.perf_counter() - start)}

        def summed(files: Sequence[Path] = files, mb: float = mb, head: dict[str, int] = head) -> Sample:
            start = time.perf_counter()
            for file in files:
                hasher, crc = hashlib.sha256(), 0
                with file.open("rb", buffering=0) as stream:
                    while piece := stream.read(1 << 20):
                        hasher.update(piece)
                        crc = zlib.crc32(piece, crc)
                head["sum"] ^= crc
            return {"rate": mb / (time.perf_counter() - start)}

        ours = f"verify, commits of {size}"
        results += bench.race(
            "verify",
            {ours: verified, "sha256+crc32": summed},
            [Figure(f"verify, commits of {size} : sha256+crc32 of the bytes", ours, "sha256+crc32", None, unit="MB/s")],
        )
        shutil.rmtree(path)
    return results
