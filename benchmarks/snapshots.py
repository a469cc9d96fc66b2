"""What an answer costs in a log of ten million events, and in one of ten thousand: with snapshots it should depend on what is new.

Both logs hold the same effects and deliveries at their beginning (their states are equally large) and the same thousand events that came
since the snapshots were kept; between them, one has a thousand times as much of what an agent runtime writes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.race import Bench, Figure, Result, Sample
from benchmarks.stores import event
from eventlog import Durability, Event, EventLog
from eventlog.projections import COUNTS, DELIVERIES, EFFECTS, STATUS, Projection, View, fold
from eventlog.projections.snapshots import keep
from eventlog.recovery import EffectClass, Toolbox
from eventlog.recovery.delivery_words import Caller
from eventlog.recovery.desk import Deliveries

BATCHED = Durability.BATCHED
EFFECTS_IN_BOTH, NEW = 100, 1_000
ROOT = Path(__file__).resolve().parent.parent


def build(path: Path, count: int) -> None:
    """About `count` events, in commits of 100, after a hundred guarded effects and a delivery; snapshots, and a thousand events more."""
    with EventLog.open(path) as log:
        tools = Toolbox(log)
        push = tools.guard(lambda n: {"pushed": n}, EffectClass.IDEMPOTENT, name="git.push")
        with tools.attempt("branch", 1) as attempt:
            for n in range(EFFECTS_IN_BOTH):
                attempt.call(push, n, step=n + 1)
        desk = Deliveries(log)
        desk.detect("thread", base="b1", triggers=["op-1"])
        desk.supersede("thread#1", "it is moot")
        bulk = [Event("tool.output", event(n, 140).data, f"agent-{n % 7}") for n in range(100)]
        for _ in range(max(0, count - int(log.head)) // 100):
            log.commit(bulk, BATCHED)
        log.flush()
        projections: tuple[Projection[Any], ...] = (COUNTS, DELIVERIES, EFFECTS, STATUS)
        for projection in projections:
            view = View(log, projection)
            keep(projection, log.snapshots, *view.refresh())
        for _ in range(NEW // 100):
            log.commit(bulk, BATCHED)


def status_of(path: Path) -> Sample:
    """Open, fold what `eventlog status` shows, close."""
    start = time.perf_counter()
    with EventLog.open(path, read_only=True) as log:
        _ = View(log, STATUS).state, View(log, COUNTS).state
    return {"ms": (time.perf_counter() - start) * 1000}


def command(path: Path) -> Sample:
    """The whole command, as a shell runs it."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "eventlog.cli", "status", str(path)],
        stdout=subprocess.DEVNULL,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return {"ms": (time.perf_counter() - start) * 1000}


def decision(path: Path, counter: list[int]) -> Sample:
    """What a PreToolUse hook does: open, decide, write. The snapshot that it may leave, and the close, come after its answer."""
    counter[0] += 1
    caller = Caller("thread", process=f"p{counter[0]}", prompt="p")
    start = time.perf_counter()
    log = EventLog.open(path)
    Deliveries(log).pre_tool_use(caller, f"call-{counter[0]}")
    took = time.perf_counter() - start
    log.close()
    return {"ms": took * 1000}


def whole(path: Path) -> Sample:
    """The fold of the status without a snapshot."""
    start = time.perf_counter()
    with EventLog.open(path, read_only=True) as log:
        fold(STATUS, log, snapshots=False)
    return {"ms": (time.perf_counter() - start) * 1000}


def snapshots(bench: Bench) -> list[Result]:
    """Status and a hook's decision in a large log against a small one, both with snapshots; then without, once, for comparison."""
    small, large = bench.size(10_000, 1_000), bench.size(10_000_000, 5_000)
    paths = {f"{small:,} events": bench.place("small"), f"{large:,} events": bench.place("large")}
    for (name, path), count in zip(paths.items(), (small, large), strict=True):
        bench.say(f"snapshots: building {name}")
        build(path, count)
    few, many = paths
    counters = {name: [0] for name in paths}
    works: dict[str, tuple[Callable[[str], Sample], float | None, int]] = {
        "status, fold": (lambda name: status_of(paths[name]), 2.0, bench.rounds),
        "status, command": (lambda name: command(paths[name]), 2.0, bench.rounds),
        "hook decision": (lambda name: decision(paths[name], counters[name]), 2.0, bench.rounds),
        "status fold without snapshots": (lambda name: whole(paths[name]), None, 1),
    }
    results = []
    for what, (work, target, rounds) in works.items():
        results += bench.race(
            "snapshots",
            {name: partial(work, name) for name in paths},
            [Figure(f"{what}, {many} : {few}", many, few, target, "ms", "ms", at_most=True)],
            rounds=rounds,
            warm=rounds > 2,
        )
    for path in paths.values():
        shutil.rmtree(path)
    return results
