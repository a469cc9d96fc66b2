"""One guarded effect: three durable commits around a tool that does nothing, against those who record as much, or less."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

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
LOOP = "3 x (pwrite+fdatasync)"
TARGETS = {"outbox": 1.0, "eventsourcing-effect": 1.3, "dbos": 3.0}


def guarded_in_threads(log: EventLog, count: int, threads: int) -> Sample:
    """`count` effects in so many agents at once: threads of one process, each with a branch of its own."""
    tools = Toolbox(log)
    tool = tools.guard(nothing, EffectClass.NON_IDEMPOTENT)
    each = count // threads
    with contextlib.ExitStack() as entered:
        attempts = [entered.enter_context(tools.attempt(f"bench-{number}", 1)) for number in range(threads)]

        def work(number: int) -> None:
            for step in range(each):
                attempts[number].call(tool, text=ARGUMENT, step=step + 1)

        seconds = in_threads(threads, work)
    return {"rate": each * threads / seconds}


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
            sample = one_by_one(opened.run, frames)
        finally:
            opened.close()
        return {"rate": sample["rate"] / 3, "p50_ms": sample["p50_ms"] * 3}

    return turn


def effects(bench: Bench) -> list[Result]:
    """A guarded no-op effect, one at a time and 16 in flight."""
    made = events(bench.size(150, 16))
    many = events(max(IN_FLIGHT * 2, bench.size(640)))
    stores = available(bench, EFFECTS.values())
    guard, box = EFFECTS["guard"].title, EFFECTS["outbox"].title
    crowd, boxes = f"{guard}s, {IN_FLIGHT} in flight", f"{box}, {IN_FLIGHT} in flight"

    def crowd_turn() -> Sample:
        with EventLog.open(bench.place("log")) as log:
            return guarded_in_threads(log, len(many), IN_FLIGHT)

    # DBOS and LangGraph are slow enough to be heard out with less.
    less = {"dbos": made[: max(4, len(made) // 4)], "langgraph": made[: max(4, len(made) // 2)]}
    sides: dict[str, Side] = {store.title: one_thread(bench, store, less.get(store.kind, made)) for store in stores}
    sides[LOOP] = three_times(bench, frames_of_effects(bench.place("frames"), len(made)))
    sides[crowd] = crowd_turn
    sides[boxes] = many_threads(bench, EFFECTS["outbox"], many[: max(IN_FLIGHT * 2, len(many) // 4)], IN_FLIGHT)
    unit = "effects/s"
    figures = [Figure("guarded effect : bare 3 x (pwrite+fdatasync)", guard, LOOP, 0.8, unit=unit)]
    figures += [
        Figure(f"guarded effect : {store.title}", guard, store.title, TARGETS.get(store.kind), unit=unit, note=store.settings)
        for store in stores
        if store.title != guard
    ]
    figures += [
        Figure("guarded effect, median time : bare 3 x (pwrite+fdatasync)", guard, LOOP, None, "p50_ms", "ms", at_most=True),
        Figure("guarded effect, median time : sqlite3 outbox", guard, box, None, "p50_ms", "ms", at_most=True),
        Figure(f"{IN_FLIGHT} guarded effects in flight : bare single loop", crowd, LOOP, 1.8, unit=unit),
        Figure(f"{IN_FLIGHT} guarded effects in flight : as many on the sqlite3 outbox", crowd, boxes, None, unit=unit),
    ]
    syncs = of_each(bench, stores, bench.size(150, 10))
    syncs[crowd] = syncs_of(bench.place("log"), len(many), lambda log: guarded_in_threads(log, len(many), IN_FLIGHT))
    return bench.race("effects", sides, figures, syncs, title="guarded effect")
