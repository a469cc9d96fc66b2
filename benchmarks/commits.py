"""One thread commits: IMMEDIATE and BATCHED, one event and a hundred."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from benchmarks.race import Bench, Figure, Result, Sample, Side, timed, timed_each
from benchmarks.stores import INSERT, BareFile, events, frame_of, row, sqlite, syncs_of
from eventlog import Durability, Event, EventLog

IMMEDIATE, BATCHED = Durability.IMMEDIATE, Durability.BATCHED


def ours(bench: Bench, commits: Sequence[Event | Sequence[Event]], durability: Durability) -> Side:
    """A new log each round; making and closing it is not timed. `rate` is commits a second."""

    def turn() -> Sample:
        with EventLog.open(bench.place("log")) as log:
            if durability is IMMEDIATE:
                return timed_each(map(log.commit, commits))
            return timed(len(commits), lambda: commit_all(log, commits, durability))

    return turn


def commit_all(log: EventLog, commits: Sequence[Event | Sequence[Event]], durability: Durability) -> None:
    commit = log.commit
    for one in commits:
        commit(one, durability)


def bare(bench: Bench, frames: Sequence[bytes]) -> Side:
    """The loop that no log can beat with one thread (BareFile)."""

    def turn() -> Sample:
        file = BareFile(bench.place("bare"))
        try:
            return timed_each(file.write(frames))
        finally:
            file.close()

    return turn


def rows_each(bench: Bench, made: Sequence[Event], synchronous: str, *, begin: bool = True) -> Side:
    """sqlite3, one row a transaction: BEGIN IMMEDIATE, INSERT, COMMIT, or the bare INSERT, which commits by itself.

    A writer that reads before it writes needs BEGIN IMMEDIATE, and most code has it; the bare INSERT is sqlite at its fastest.
    """

    def turn() -> Sample:
        connection = sqlite(bench.place("sqlite.db"), synchronous)
        execute, now = connection.execute, time.time_ns

        def in_transactions() -> Iterator[None]:
            for one in made:
                execute("BEGIN IMMEDIATE")
                execute(INSERT, row(one, now))
                execute("COMMIT")
                yield

        def by_themselves() -> None:
            for one in made:
                execute(INSERT, row(one, now))

        try:
            if synchronous == "FULL":
                return timed_each(in_transactions())
            return timed(len(made), (lambda: sum(1 for _ in in_transactions())) if begin else by_themselves)
        finally:
            connection.close()

    return turn


def rows_many(bench: Bench, commits: Sequence[Sequence[Event]], synchronous: str) -> Side:
    """sqlite3, executemany of a whole commit in one transaction: its fastest way to write many rows."""

    def turn() -> Sample:
        connection = sqlite(bench.place("sqlite.db"), synchronous)
        execute, now = connection.execute, time.time_ns

        def work() -> None:
            for made in commits:
                execute("BEGIN IMMEDIATE")
                connection.executemany(INSERT, [row(one, now) for one in made])
                execute("COMMIT")

        try:
            return timed(len(commits), work)
        finally:
            connection.close()

    return turn


def immediate(bench: Bench) -> list[Result]:
    """One thread, IMMEDIATE, one event of 200 bytes a commit: a bare pwrite+fdatasync loop, and sqlite3 WAL FULL."""
    made = events(bench.size(500, 20))
    sides = {
        "eventlog IMMEDIATE": ours(bench, made, IMMEDIATE),
        "pwrite+fdatasync": bare(bench, [frame_of(one) for one in made]),
        "sqlite WAL FULL": rows_each(bench, made, "FULL"),
    }
    name = "eventlog IMMEDIATE"
    syncs = {name: syncs_of(bench.place("log"), len(made), lambda log: commit_all(log, made, IMMEDIATE))}
    return bench.race(
        "immediate",
        sides,
        [
            Figure("IMMEDIATE commit : bare pwrite+fdatasync loop", name, "pwrite+fdatasync", 0.9),
            Figure("IMMEDIATE commit : sqlite3 WAL FULL", name, "sqlite WAL FULL", 1.3),
            Figure("IMMEDIATE commit, median wait : bare loop's", name, "pwrite+fdatasync", None, "p50_ms", "ms", at_most=True),
            Figure("IMMEDIATE commit, median wait : sqlite's", name, "sqlite WAL FULL", None, "p50_ms", "ms", at_most=True),
        ],
        syncs,
    )


def batched(bench: Bench) -> list[Result]:
    """One thread, BATCHED: one event a commit, and a hundred, against sqlite3 WAL NORMAL."""
    made = events(bench.size(8000, 50))
    one = "eventlog BATCHED"
    sides = {
        one: ours(bench, made, BATCHED),
        "sqlite WAL NORMAL": rows_each(bench, made, "NORMAL"),
        "sqlite WAL NORMAL, autocommit": rows_each(bench, made, "NORMAL", begin=False),
    }
    results = bench.race(
        "batched",
        sides,
        [
            Figure("BATCHED commit : sqlite3 WAL NORMAL transaction", one, "sqlite WAL NORMAL", 3.0),
            Figure("BATCHED commit : the same, CPU time alone", one, "sqlite WAL NORMAL", None, "cpu_rate"),
            Figure(
                "BATCHED commit : sqlite3 WAL NORMAL bare INSERT", one, "sqlite WAL NORMAL, autocommit", None,
                note="sqlite's fastest: no BEGIN, so no reading before writing",
            ),
        ],
        {one: syncs_of(bench.place("log"), len(made), lambda log: commit_all(log, made, BATCHED))},
    )  # fmt: skip
    many = "eventlog BATCHED x100"
    commits = [events(100, 100 * number) for number in range(bench.size(120, 3))]
    return results + bench.race(
        "batched",
        {many: ours(bench, commits, BATCHED), "sqlite WAL NORMAL executemany": rows_many(bench, commits, "NORMAL")},
        [Figure("BATCHED commit of 100 events : sqlite3 executemany", many, "sqlite WAL NORMAL executemany", 3.0)],
        {many: syncs_of(bench.place("log"), len(commits), lambda log: commit_all(log, commits, BATCHED))},
    )
