"""One guarded effect: three durable commits around a tool that does nothing, against those who record as much."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.commits import bare
from benchmarks.crowds import in_threads
from benchmarks.race import Bench, Figure, Result, Sample, Side, timed_each
from benchmarks.stores import sqlite, syncs_of
from eventlog import EventLog
from eventlog.recovery import EffectClass, Toolbox

IN_FLIGHT = 16
ARGUMENT = "the quick brown fox"


def nothing(text: str) -> dict[str, Any]:
    """The tool: it costs nothing, so what is measured is the guard."""
    return {"ok": True}


def guarded(log: EventLog, count: int) -> Sample:
    """`count` effects, one after the other, in one attempt. Opening the attempt is not timed: a runtime does it once."""
    tools = Toolbox(log)
    tool = tools.guard(nothing, EffectClass.NON_IDEMPOTENT)
    with tools.attempt("bench", 1) as attempt:
        return timed_each(attempt.call(tool, text=ARGUMENT) for _ in range(count))


def guarded_in_threads(log: EventLog, count: int, threads: int) -> Sample:
    """The same in so many agents at once: threads of one process, each with a branch of its own."""
    tools = Toolbox(log)
    tool = tools.guard(nothing, EffectClass.NON_IDEMPOTENT)
    each = count // threads
    attempts = [tools.attempt(f"bench-{number}", 1).__enter__() for number in range(threads)]

    def work(number: int) -> None:
        for step in range(each):
            attempts[number].call(tool, text=ARGUMENT, step=step + 1)

    seconds = in_threads(threads, work)
    for attempt in attempts:
        attempt.__exit__(None, None, None)
    return {"rate": each * threads / seconds}


def frames_of_effects(path: Path, count: int) -> list[bytes]:
    """Frames as large as those that the guard writes, three for an effect, for the bare loop."""
    with EventLog.open(path) as log:
        guarded(log, count)
    with EventLog.open(path, read_only=True) as log:
        return [bytes(64 + len(orjson.dumps(rows)) + 7 & ~7) for _, _, rows in log.commits()]


def outbox(path: Path, synchronous: str = "FULL") -> sqlite3.Connection:
    """A table of effects with a state, as an outbox is written by hand; sqlite's settings as in stores.sqlite."""
    connection = sqlite(path, synchronous)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS effects(id TEXT PRIMARY KEY, state TEXT, tool TEXT, args BLOB, "
        "pending INTEGER, dispatched INTEGER, committed INTEGER, outcome BLOB) WITHOUT ROWID"
    )
    return connection


def outbox_effects(bench: Bench, count: int) -> Side:
    """sqlite3 WAL FULL, three transactions: pending, dispatched, the call, committed with its outcome."""

    def turn() -> Sample:
        connection = outbox(bench.place("outbox.db"))
        execute, now = connection.execute, time.time_ns

        def work() -> Iterator[None]:
            for step in range(count):
                id_ = f"bench@1:{step}"
                execute("BEGIN IMMEDIATE")
                execute(
                    "INSERT INTO effects(id, state, tool, args, pending) VALUES(?, 'pending', 'nothing', ?, ?)",
                    (id_, orjson.dumps({"text": ARGUMENT}), now()),
                )
                execute("COMMIT")
                execute("BEGIN IMMEDIATE")
                execute("UPDATE effects SET state = 'dispatched', dispatched = ? WHERE id = ? AND state = 'pending'", (now(), id_))
                execute("COMMIT")
                result = nothing(ARGUMENT)
                execute("BEGIN IMMEDIATE")
                execute(
                    "UPDATE effects SET state = 'committed', outcome = ?, committed = ? WHERE id = ? AND state = 'dispatched'",
                    (orjson.dumps(result), now(), id_),
                )
                execute("COMMIT")
                yield

        try:
            return timed_each(work())
        finally:
            connection.close()

    return turn


def effects(bench: Bench) -> list[Result]:
    """A guarded no-op effect, one at a time and 16 in flight."""
    count = bench.size(200, 16)
    many = max(IN_FLIGHT * 2, bench.size(800))
    frames = frames_of_effects(bench.place("frames"), count)
    if len(frames) != 3 * count:
        raise AssertionError(f"{count} effects made {len(frames)} commits")
    one, crowd, loop, box = "guarded effect", f"guarded effects, {IN_FLIGHT} in flight", "3 x (pwrite+fdatasync)", "sqlite WAL FULL outbox"

    def guard_turn() -> Sample:
        with EventLog.open(bench.place("log")) as log:
            return guarded(log, count)

    def crowd_turn() -> Sample:
        with EventLog.open(bench.place("log")) as log:
            return guarded_in_threads(log, many, IN_FLIGHT)

    sides: dict[str, Side] = {
        one: guard_turn,
        loop: three_times(bare(bench, frames)),
        box: outbox_effects(bench, count),
        crowd: crowd_turn,
    }
    unit = "effects/s"
    figures = [
        Figure("guarded effect : bare 3 x (pwrite+fdatasync)", one, loop, 0.8, unit=unit),
        Figure("guarded effect : sqlite3 WAL FULL outbox, 3 transactions", one, box, 1.0, unit=unit),
        Figure("16 guarded effects in flight : bare single loop", crowd, loop, 1.8, unit=unit),
        Figure("guarded effect, median time : bare 3 x (pwrite+fdatasync)", one, loop, None, "p50_ms", "ms", at_most=True),
        Figure("guarded effect, median time : sqlite3 outbox", one, box, None, "p50_ms", "ms", at_most=True),
    ]
    figures += add_optional(bench, sides, one, count)
    return bench.race(
        "effects",
        sides,
        figures,
        {
            one: syncs_of(bench.place("log"), count, lambda log: guarded(log, count)),
            crowd: syncs_of(bench.place("log"), many, lambda log: guarded_in_threads(log, many, IN_FLIGHT)),
        },
    )


def three_times(loop: Side) -> Side:
    """An effect is three turns of the loop."""

    def turn() -> Sample:
        sample = loop()
        return {"rate": sample["rate"] / 3, "p50_ms": sample["p50_ms"] * 3}

    return turn


def add_optional(bench: Bench, sides: dict[str, Side], ours: str, count: int) -> Sequence[Figure]:
    """Peers that are not in the standard library, where they are installed."""
    from benchmarks import optional

    figures = []
    for peer in optional.EFFECT_PEERS:
        side = optional.load(bench, peer, count)
        if side is not None:
            sides[peer.title] = side
            figures.append(Figure(f"guarded effect : {peer.title}", ours, peer.title, peer.target, unit="effects/s", note=peer.note))
    return figures
