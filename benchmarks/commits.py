"""One thread commits: IMMEDIATE and BATCHED, one event and a hundred."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.peers import STORES, available, one_thread
from benchmarks.race import Bench, Figure, Result, Sample, Side, timed
from benchmarks.stores import INSERT, events, row, sqlite, syncs_of
from benchmarks.syncs import of_each
from eventlog import Durability, Event, EventLog

IMMEDIATE, BATCHED = Durability.IMMEDIATE, Durability.BATCHED
WARM = 1000  # commits before the clock starts: sqlite's WAL grows until its first checkpoint, and a sync costs half as much again till then
COUNTED = 1000  # operations in which syncs are counted: enough for a checkpoint or two


def commit_all(log: EventLog, commits: Sequence[Event | Sequence[Event]], durability: Durability) -> None:
    commit = log.commit
    for one in commits:
        commit(one, durability)


def immediate(bench: Bench) -> list[Result]:
    """One thread, one durable event of 200 bytes a commit, in every store that is here."""
    made = events(bench.size(1000, 20))
    kinds = ("eventlog", "bare", "sqlite", "lmdb", "rocksdict", "eventsourcing", "litequeue", "persistqueue")
    stores = available(bench, (STORES[kind] for kind in kinds))
    ours = STORES["eventlog"].title
    targets = {STORES["bare"].title: 0.9, STORES["sqlite"].title: 1.3}
    figures = [Figure(f"commit : {store.title}", ours, store.title, targets.get(store.title)) for store in stores if store.title != ours]
    for kind, whose in (("bare", "the bare loop's"), ("sqlite", "sqlite3's")):
        for metric, what in (("p50_ms", "median wait"), ("p99_ms", "p99 wait")):
            figures.append(Figure(f"commit, {what} : {whose}", ours, STORES[kind].title, None, metric, "ms", at_most=True))
    return bench.race(
        "commit",
        {store.title: one_thread(bench, store, made, warm=bench.size(WARM)) for store in stores},
        figures,
        of_each(bench, stores, bench.size(COUNTED, 20)),
        title="commit of one event, one thread",
    )


def rows_each(bench: Bench, made: Sequence[Event]) -> Side:
    """sqlite3 WAL NORMAL, the bare INSERT, which commits by itself: sqlite's fastest, if nothing is read first."""

    def turn() -> Sample:
        connection = sqlite(bench.place("sqlite.db"), "NORMAL")
        execute, now = connection.execute, time.time_ns

        def work() -> None:
            for one in made:
                execute(INSERT, row(one, now))

        try:
            return timed(len(made), work)
        finally:
            connection.close()

    return turn


def rows_many(bench: Bench, commits: Sequence[Sequence[Event]]) -> Side:
    """sqlite3 WAL NORMAL, executemany of a whole commit in one transaction: its fastest way to write many rows."""

    def turn() -> Sample:
        connection = sqlite(bench.place("sqlite.db"), "NORMAL")
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


def ours_many(bench: Bench, commits: Sequence[Event | Sequence[Event]], durability: Durability) -> Side:
    def turn() -> Sample:
        with EventLog.open(bench.place("log")) as log:
            return timed(len(commits), lambda: commit_all(log, commits, durability))

    return turn


def batched(bench: Bench) -> list[Result]:
    """One thread, BATCHED: one event a commit, and a hundred, against sqlite3 WAL NORMAL. The final sync is timed for nobody."""
    made = events(bench.size(5000, 50))
    one, theirs, bare_insert = "eventlog BATCHED", "sqlite3 WAL NORMAL", "sqlite3 WAL NORMAL, bare INSERT"
    stores = available(bench, (STORES["eventlog-batched"], STORES["sqlite-normal"]))
    sides = {one: ours_many(bench, made, BATCHED), theirs: one_thread(bench, stores[1], made), bare_insert: rows_each(bench, made)}
    results = bench.race(
        "batched",
        sides,
        [
            Figure("BATCHED commit : sqlite3 WAL NORMAL transaction", one, theirs, 3.0),
            Figure("BATCHED commit : the same, CPU time alone", one, theirs, None, "cpu_rate"),
            Figure(
                "BATCHED commit : sqlite3 WAL NORMAL bare INSERT", one, bare_insert, None,
                note="sqlite's fastest: no BEGIN, so no reading before writing",
            ),
        ],
        of_each(bench, stores, bench.size(5000, 20)),
        title="BATCHED commit of one event, one thread",
    )  # fmt: skip
    many = "eventlog BATCHED x100"
    commits = [events(100, 100 * number) for number in range(bench.size(100, 3))]
    return results + bench.race(
        "batched",
        {many: ours_many(bench, commits, BATCHED), "sqlite3 executemany": rows_many(bench, commits)},
        [Figure("BATCHED commit of 100 events : sqlite3 executemany", many, "sqlite3 executemany", 3.0)],
        {many: syncs_of(bench.place("log"), len(commits), lambda log: commit_all(log, commits, BATCHED))},
        title="BATCHED commit of 100 events, one thread",
    )
