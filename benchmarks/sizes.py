"""What grows with the log, and what must not: memory of a fold, the time to open, the time to say how things stand."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.effect_peers import nothing
from benchmarks.folds import BATCHED, COUNT, build
from benchmarks.race import Bench, Figure, Result, Sample, Side
from benchmarks.stores import event
from eventlog import EventLog
from eventlog.projections import STATUS, View, fold
from eventlog.recovery import EffectClass, Toolbox

_PEAK = "print(next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM')))"
_FOLD = "from pathlib import Path; from benchmarks.sizes import fold_once; import sys; fold_once(Path(sys.argv[1]))"
EFFECTS_MADE = 20  # the same in a log of any size: what a status display shows does not grow with what else is in the log


def fold_once(path: Path) -> None:
    """What the child whose memory is measured does."""
    with EventLog.open(path, read_only=True) as log:
        fold(COUNT, log)


def memory(bench: Bench) -> list[Result]:
    """Peak resident memory of a child that folds ten million events, over that of a bare interpreter.

    A tenth of the events in commits of one, the others in commits of 100. Every import is counted, ours and orjson's. One round: this does
    not vary with the weather. Needs /proc (VmHWM).
    """
    if not os.path.exists("/proc/self/status"):
        bench.skip("memory", "no /proc/self/status here")
        return []
    count = bench.size(10_000_000, 1000)
    path = bench.place("log")
    bench.say(f"memory: writing {count:,} events")
    build(path, count // 10, 1, body_bytes=150)
    build(path, count - count // 10, 100, body_bytes=150)
    ours = f"fold of {count:,} events"
    results = bench.race(
        "memory",
        {ours: lambda: _peak(_FOLD, path), "bare interpreter": lambda: _peak("pass", path)},
        [
            Figure(
                "fold memory over the bare interpreter", ours, "bare interpreter", 64.0, "mib", "MiB", "difference", at_most=True,
                note=f"{count:,} events, a tenth of them in commits of one",
            )
        ],
        title=f"peak memory of a fold of {count:,} events",
        rounds=1,
        warm=False,
    )  # fmt: skip
    shutil.rmtree(path)
    return results


def _peak(code: str, path: Path) -> Sample:
    root = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-c", f"{code}\n{_PEAK}", str(path)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": root})
    return {"mib": int(done.stdout) / 1024, "seconds": time.perf_counter() - start}


def _timed_ms(times: int, work: Callable[[], object]) -> Side:
    def turn() -> Sample:
        start = time.perf_counter()
        for _ in range(times):
            work()
        return {"ms": (time.perf_counter() - start) / times * 1000}

    return turn


def opening(bench: Bench) -> list[Result]:
    """Open and close, for writing and for reading only, logs of 1 MiB to 1 GiB, in the boot that wrote them. Then they are deleted."""
    sizes = (1, bench.size(32, 2), bench.size(1024, 3))  # MiB
    paths = {f"{mib} MiB": bench.place(f"log-{mib}") for mib in sizes}
    for mib, path in zip(sizes, paths.values(), strict=True):
        bench.say(f"opening: writing {mib} MiB")
        with EventLog.open(path) as log:
            for number in range(mib * 4):
                log.commit(event(number, (256 << 10) - 64), BATCHED)
    times = bench.size(200, 3)
    small, *_, large = paths
    results = []
    for read_only, how in ((False, "open for writing"), (True, "open read-only")):

        def side(path: Path, read_only: bool = read_only) -> Side:
            return _timed_ms(times, lambda: EventLog.open(path, read_only=read_only).close())

        results += bench.race(
            "opening",
            {name: side(path) for name, path in paths.items()},
            [Figure(f"{how}, {large} : {small}", large, small, 2.0, "ms", "ms", at_most=True)],
            title=how,
        )
    for path in paths.values():
        shutil.rmtree(path)
    return results


def status(bench: Bench) -> list[Result]:
    """What `eventlog status` folds, in a process that has just opened the log: 1,000 events to 100,000, with the same 20 effects."""
    counts = (bench.size(1_000, 10), bench.size(10_000, 100), bench.size(100_000, 1000))
    paths = {f"{count:,} events": bench.place(f"log-{count}") for count in counts}
    for count, path in zip(counts, paths.values(), strict=True):
        build(path, count, 1)
        with EventLog.open(path) as log:
            tools = Toolbox(log)
            tool = tools.guard(nothing, EffectClass.NON_IDEMPOTENT)
            with tools.attempt("bench", 1) as attempt:
                for _ in range(EFFECTS_MADE):
                    attempt.call(tool, text="the quick brown fox")

    def display(path: Path) -> None:
        with EventLog.open(path) as log:
            View(log, STATUS).refresh()

    small, middle, large = paths
    figures = [
        Figure(f"status of {large} : {middle}", large, middle, None, "ms", "ms", at_most=True),
        Figure(f"status of {large} : {small}", large, small, None, "ms", "ms", at_most=True),
    ]
    results = bench.race(
        "status",
        {name: _timed_ms(1, functools.partial(display, path)) for name, path in paths.items()},
        figures,
        title="status",
    )
    for path in paths.values():
        shutil.rmtree(path)
    return results
