"""One guarded effect: three durable commits around a tool that does nothing, against those who record as much, or less."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from benchmarks.crowds import in_threads, many_threads
from benchmarks.effect_peers import ARGUMENT, EFFECTS, nothing
from benchmarks.peers import STORES, available, one_by_one, one_thread
from benchmarks.race import Bench, Figure, Result, Sample, Side
from benchmarks.stores import events, syncs_of
from benchmarks.syncs import of_each
from eventlog import EventLog
from eventlog.recovery import EffectClass, Toolbox

IN_FLIGHT = 16
WARM = 400
"""Effects before the clock starts: as many as bring sqlite's WAL through its first checkpoint (until then the file grows, and a sync costs
half as much again). Those that are dear get FEW, and so does each of several agents."""
FEW = 25
LOOP = "3 x (pwrite+fdatasync)"
TARGETS = {"outbox": 1.0, "eventsourcing-effect": 1.3, "dbos": 3.0}


def guarded_in_threads(log: EventLog, count: int, agents: int, warm: int = FEW) -> Sample:
    """`count` effects of so many agents at once, behind `warm` of each: threads of one process, each with a branch of its own."""
    tools = Toolbox(log)
    tool = tools.guard(nothing, EffectClass.NON_IDEMPOTENT)
    each = count // agents
    with contextlib.ExitStack() as entered:
        attempts = [entered.enter_context(tools.attempt(f"bench-{number}", 1)) for number in range(agents)]

        def work(number: int, first: int, last: int) -> None:
            for step in range(first, last + 1):
                attempts[number].call(tool, text=ARGUMENT, step=step)

        for number in range(agents):
            work(number, 1, warm)
        seconds = in_threads(agents, lambda number: work(number, warm + 1, warm + each))
    return {"rate": each * agents / seconds}


async def nothing_async(text: str) -> dict[str, Any]:
    """The tool, for coroutines: it never waits, so that what is measured is the guard around it."""
    return nothing(text)


def guarded_in_coroutines(log: EventLog, count: int, agents: int, warm: int = FEW) -> Sample:
    """The same with agents that are coroutines of one event loop."""
    tools = Toolbox(log)
    tool = tools.guard(nothing_async, EffectClass.NON_IDEMPOTENT)
    each = count // agents

    async def everybody() -> float:
        async with contextlib.AsyncExitStack() as entered:
            attempts = [await entered.enter_async_context(tools.attempt(f"bench-{number}", 1)) for number in range(agents)]

            async def work(number: int, first: int, last: int) -> None:
                for step in range(first, last + 1):
                    await attempts[number].acall(tool, text=ARGUMENT, step=step)

            for number in range(agents):
                await work(number, 1, warm)
            start = time.perf_counter()
            await asyncio.gather(*(work(number, warm + 1, warm + each) for number in range(agents)))
            return time.perf_counter() - start

    return {"rate": each * agents / asyncio.run(everybody())}


def in_flight(bench: Bench, guarded: Callable[[EventLog, int, int], Sample], count: int) -> Side:
    """`count` effects of 16 agents, in a new log each round."""

    def turn() -> Sample:
        with EventLog.open(bench.place("log")) as log:
            return guarded(log, count, IN_FLIGHT)

    return turn


def frames_of_effects(path: Path, count: int) -> list[bytes]:
    """Frames as large as those that the guard writes, three for an effect, for the bare loop."""
    guard = EFFECTS["guard"].open(path)
    guard.run(range(count))
    guard.close()
    with EventLog.open(path, read_only=True) as log:
        frames = [bytes(64 + len(orjson.dumps(rows)) + 7 & ~7) for _, _, rows in log.commits()]
    if len(frames) != 3 * count:
        raise AssertionError(f"{count} effects made {len(frames)} commits")
    return frames


def three_times(bench: Bench, frames: Sequence[bytes]) -> Side:
    """The bare loop; an effect is three turns of it."""

    def turn() -> Sample:
        opened = STORES["bare"].open(bench.place("bare"))
        try:
            opened.run(frames[: 3 * bench.size(WARM)])
            sample = one_by_one(opened.run, frames)
        finally:
            opened.close()
        return {"rate": sample["rate"] / 3, "p50_ms": sample["p50_ms"] * 3}

    return turn


def effects(bench: Bench) -> list[Result]:
    """A guarded no-op effect, one at a time and 16 in flight, in threads and in coroutines. Those that are dear get less to do."""
    made = events(bench.size(800, 16))
    many = events(max(IN_FLIGHT * 2, bench.size(1600)))
    stores = available(bench, EFFECTS.values())
    guard, box = EFFECTS["guard"].title, EFFECTS["outbox"].title
    crowd, boxes = f"{guard}s, {IN_FLIGHT} in flight", f"{box}, {IN_FLIGHT} in flight"
    coroutines = f"{crowd}, coroutines"
    less = {kind: made[: max(4, len(made) // part)] for kind, part in (("eventsourcing-effect", 4), ("dbos", 16), ("langgraph", 8))}
    sides: dict[str, Side] = {
        store.title: one_thread(bench, store, less.get(store.kind, made), warm=FEW if store.kind in less else bench.size(WARM))
        for store in stores
    }
    sides[LOOP] = three_times(bench, frames_of_effects(bench.place("frames"), len(made)))
    sides[crowd] = in_flight(bench, guarded_in_threads, len(many))
    sides[coroutines] = in_flight(bench, guarded_in_coroutines, len(many))
    boxed = many[: max(IN_FLIGHT * 2, len(many) // 2)]
    sides[boxes] = many_threads(bench, EFFECTS["outbox"], boxed, IN_FLIGHT, warm=FEW)
    unit = "effects/s"
    figures = [Figure("guarded effect : bare 3 x (pwrite+fdatasync)", guard, LOOP, 0.8, unit=unit)]
    figures += [
        Figure(f"guarded effect : {store.title}", guard, store.title, TARGETS.get(store.kind), unit=unit, note=store.settings)
        for store in stores
        if store.title != guard
    ]
    said = f"{IN_FLIGHT} guarded effects in flight"
    figures += [
        Figure("guarded effect, median time : bare 3 x (pwrite+fdatasync)", guard, LOOP, None, "p50_ms", "ms", at_most=True),
        Figure("guarded effect, median time : sqlite3 outbox", guard, box, None, "p50_ms", "ms", at_most=True),
        Figure(f"{said} : bare single loop", crowd, LOOP, 1.8, unit=unit),
        Figure(f"{said} : as many on the sqlite3 outbox", crowd, boxes, None, unit=unit),
        Figure(f"{said}, coroutines : bare single loop", coroutines, LOOP, 1.8, unit=unit),
        Figure(f"{said}, coroutines : {IN_FLIGHT} threads on the sqlite3 outbox", coroutines, boxes, None, unit=unit),
    ]
    syncs = of_each(bench, stores, bench.size(150, 10))
    for title, guarded in ((crowd, guarded_in_threads), (coroutines, guarded_in_coroutines)):
        syncs[title] = syncs_of(bench.place("log"), len(many), partial(guarded, count=len(many), agents=IN_FLIGHT, warm=0))
    return bench.race("effects", sides, figures, syncs, title="guarded effect")
