"""Reading: the fold of everything, and the fold that handles one event in a thousand."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.peers import STORES, eventsourcing_application, journal_class
from benchmarks.race import Bench, Figure, Result, Sample, Side, timed
from benchmarks.stores import INSERT, STREAM, TYPE, event, events, sqlite
from eventlog import Durability, Event, EventLog, Recorded
from eventlog.projections import Projection, fold
from eventlog.projections.counts import COUNTS

BATCHED = Durability.BATCHED
RARE, ONE_IN = "bench.rare", 1000
PAGE = 1000  # events that eventsourcing is asked for at once; with its own 10 it is several times slower


def _add_one(state: int, made: Recorded) -> int:
    return state + 1


COUNT: Projection[int] = Projection("count", 1, 0, {TYPE: _add_one})
"""The smallest fold: what it costs is the log, not the handler."""
COUNT_RARE: Projection[int] = Projection("count-rare", 1, 0, {RARE: _add_one})


def build(path: Path, count: int, size: int, *, rare: bool = False, body_bytes: int = 200) -> None:
    """A log of `count` events in commits of `size`; with `rare`, one in a thousand is of the type RARE."""
    template = event(1_000_000, body_bytes)
    with EventLog.open(path) as log:
        for first in range(0, count, size):
            made = [
                Event(RARE if rare and number % ONE_IN == 0 else TYPE, {**template.data, "n": 1_000_000 + number}, STREAM)
                for number in range(first, min(first + size, count))
            ]
            log.commit(made[0] if size == 1 else made, BATCHED)


def build_sqlite(path: Path, count: int, *, rare: bool = False) -> None:
    """The same events as rows; with `rare`, with an index on their type."""
    connection = sqlite(path, "NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        INSERT,
        (
            (0, RARE if rare and number % ONE_IN == 0 else TYPE, one.stream, orjson.dumps(one.data))
            for number, one in enumerate(events(count))
        ),
    )
    connection.execute("COMMIT")
    if rare:
        connection.execute("CREATE INDEX by_type ON events(type)")
    connection.close()


def reading(path: Path, count: int, read: Callable[[EventLog], int], expected: int | None = None) -> Side:
    """Open the log anew, and time `read`, which says how many events it saw. `rate` is events of the log a second.

    Read-only: no fold may leave a snapshot behind that would spare the next one the reading that is measured.
    """

    def turn() -> Sample:
        seen = []
        with EventLog.open(path, read_only=True) as log:
            sample = timed(count, lambda: seen.append(read(log)))
        if seen != [count if expected is None else expected]:
            raise AssertionError(f"{seen} events were read, of {count if expected is None else expected}")
        return sample

    return turn


def selecting(path: Path, count: int, where: str = "", expected: int | None = None) -> Side:
    """sqlite3: SELECT in order, and orjson.loads of the data of each row; what a fold over a table of events has to do at least."""

    def turn() -> Sample:
        connection = sqlite(path, "NORMAL")
        seen = []

        def work() -> None:
            loads, number = orjson.loads, 0
            for _seq, _time, _type, _stream, data in connection.execute(
                f"SELECT seq, time, type, stream, data FROM events {where} ORDER BY seq"
            ):
                loads(data)
                number += 1
            seen.append(number)

        try:
            sample = timed(count, work)
        finally:
            connection.close()
        if seen != [count if expected is None else expected]:
            raise AssertionError(f"{seen} rows were read, of {count if expected is None else expected}")
        return sample

    return turn


def parsing(bodies: Sequence[bytes], count: int) -> Side:
    """orjson.loads in a loop, nothing else."""

    def work() -> None:
        loads = orjson.loads
        for one in bodies:
            loads(one)

    return lambda: timed(count, work)


def from_eventsourcing(path: Path, count: int) -> Side:
    """All notifications of the application, in pages, each made a domain event again: how its projections read."""
    app = eventsourcing_application(path)
    journal = journal_class()()
    for number in range(count - 1):  # its creation is an event, too
        journal.note(event(1_000_000 + number).data)
    app.save(journal)
    app.close()

    def turn() -> Sample:
        app = eventsourcing_application(path)
        seen = []

        def work() -> None:
            number, start = 0, 1
            while page := app.recorder.select_notifications(start, PAGE):
                for notification in page:
                    app.mapper.to_domain_event(notification)
                    number += 1
                start = page[-1].id + 1
            seen.append(number)

        try:
            sample = timed(count, work)
        finally:
            app.close()
        if seen != [count]:
            raise AssertionError(f"{seen} notifications were read, of {count}")
        return sample

    return turn


def from_lmdb(path: Path, count: int) -> Side:
    """A cursor over all values, and orjson.loads of each."""
    lmdb: Any = importlib.import_module("lmdb")
    path.mkdir()
    with lmdb.open(os.fspath(path), map_size=4 << 30) as environment, environment.begin(write=True) as transaction:
        for number, one in enumerate(events(count)):
            transaction.put(number.to_bytes(8, "big"), orjson.dumps([*one]), append=True)

    def turn() -> Sample:
        with lmdb.open(os.fspath(path), map_size=4 << 30, readonly=True) as environment, environment.begin() as transaction:
            loads = orjson.loads
            return timed(count, lambda: [None for _, value in transaction.cursor() if loads(value) is None])

    return turn


def bodies_of(path: Path) -> list[bytes]:
    """The body of each commit as it stands in the log."""
    with EventLog.open(path, read_only=True) as log:
        return [orjson.dumps(rows) for _, _, rows in log.commits()]


def full_fold(bench: Bench) -> list[Result]:
    """Fold everything, the files in the page cache, against orjson.loads of the same bodies, already cut out and in memory.

    That peer only parses: no file, no checksum, no handler. Beside it one that parses the data of each event alone, and the stores that a
    fold could read from instead: sqlite3 (SELECT and loads), lmdb (cursor and loads), eventsourcing. The log is opened anew each round.
    """
    results = []
    count = max(100, bench.size(150_000, 200))
    table = bench.place("sqlite.db")
    build_sqlite(table, count)
    others: dict[str, Side] = {"sqlite3 SELECT + loads": selecting(table, count)}
    if not (reason := STORES["lmdb"].missing()):
        others["lmdb cursor + loads"] = from_lmdb(bench.place("lmdb"), count)
    else:
        bench.skip("lmdb cursor + loads", reason)
    if not (reason := STORES["eventsourcing"].missing()):
        others["eventsourcing notifications"] = from_eventsourcing(bench.place("eventsourcing.db"), max(100, count // 15))
    else:
        bench.skip("eventsourcing notifications", reason)
    for size, target, to_sqlite in ((1, 0.35, 0.6), (100, 0.8, 2.0)):
        path = bench.place("log")
        build(path, count, size)
        bodies = bodies_of(path)
        payloads = [orjson.dumps(event(1_000_000 + number).data) for number in range(count)]
        ours, bodies_side = f"eventlog fold, commits of {size}", "orjson.loads of the bodies"
        sides: dict[str, Side] = {
            ours: reading(path, count, lambda log: fold(COUNT, log)),
            "fold of counts": reading(path, count, lambda log: fold(COUNTS, log).events),
            "log.read": reading(path, count, lambda log: sum(1 for _ in log.read())),
            bodies_side: parsing(bodies, count),
            "orjson.loads of each event's data": parsing(payloads, count),
            **others,
        }
        unit, to_others = "events/s", {"sqlite3 SELECT + loads": to_sqlite, "eventsourcing notifications": 8.0}
        figures = [
            Figure(f"fold, commits of {size} : orjson.loads of the bodies", ours, bodies_side, target, unit=unit),
            Figure(f"fold, commits of {size} : the same, CPU time alone", ours, bodies_side, None, "cpu_rate", unit),
            Figure(f"fold, commits of {size} : loads of each event's data", ours, "orjson.loads of each event's data", None, unit=unit),
            Figure(f"fold of counts, commits of {size} : orjson.loads", "fold of counts", bodies_side, None, unit=unit),
            Figure(f"log.read, commits of {size} : orjson.loads", "log.read", bodies_side, None, unit=unit),
            *(Figure(f"fold, commits of {size} : {name}", ours, name, to_others.get(name), unit=unit) for name in others),
        ]
        results += bench.race("fold", sides, figures, title=f"full fold, commits of {size}")
        shutil.rmtree(path)
    return results


def selective_fold(bench: Bench) -> list[Result]:
    """A fold that handles one event in 1,000, against the fold of everything; sqlite3 with an index on type beside it."""
    results = []
    count = max(ONE_IN, bench.size(200_000))
    expected = -(-count // ONE_IN)
    table = bench.place("sqlite.db")
    build_sqlite(table, count, rare=True)
    for size in (1, 100):
        path = bench.place("log")
        build(path, count, size, rare=True)
        ours, full, index = f"selective fold, commits of {size}", f"full fold, commits of {size}", "sqlite3, index on type"
        sides: dict[str, Side] = {
            ours: reading(path, count, lambda log: fold(COUNT_RARE, log), expected),
            full: reading(path, count, lambda log: fold(COUNT, log), count - expected),
            index: selecting(table, count, f"WHERE type = '{RARE}'", expected),
        }
        results += bench.race(
            "selective",
            sides,
            [
                Figure(f"{ours} : fold of everything", ours, full, 20.0, unit="events/s"),
                Figure(f"{ours} : sqlite3 with an index on type", ours, index, None, unit="events/s"),
            ],
            title=f"fold that handles 1 event in {ONE_IN:,}, commits of {size}",
        )
        shutil.rmtree(path)
    return results
