"""The stores that a durable commit is compared in, each set to promise what we promise, with the reason for every setting.

What a package does by itself is often less than its name says: where it can be made durable it is, and `settings` says what was changed.
`settings` and `power_cut` go into the results, and from there into docs/performance.md.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from benchmarks.race import Bench, Sample, Side, latencies
from benchmarks.stores import INSERT, BareFile, frame_of, row, sqlite
from eventlog import Durability, Event, EventLog


class Opened(NamedTuple):
    """`run` does the operations one by one and gives the seconds of each; `close` is never timed."""

    run: Callable[[Sequence[Any]], list[float]]
    close: Callable[[], object]


@dataclass(frozen=True)
class Store:
    """`package` is the module that it needs ("" for none). May `threads` share what is opened, may `processes` open it at once?

    `prepare` turns events into what `run` takes, outside the clock: the bare loop alone has something to prepare.
    """

    kind: str
    title: str
    package: str
    open: Callable[[Path], Opened]
    threads: bool = False
    processes: bool = False
    settings: str = ""
    power_cut: str = ""
    prepare: Callable[[Sequence[Event]], Sequence[Any]] = list

    def missing(self) -> str:
        """Why it cannot run here; "" if it can."""
        try:
            if self.package:
                importlib.import_module(self.package)
        except ImportError as error:
            return f"{error}; pip install .[bench]"
        return ""


def each(commit: Callable[[Any], object]) -> Callable[[Sequence[Any]], list[float]]:
    """The seconds of each call of `commit`."""

    def run(items: Sequence[Any]) -> list[float]:
        took: list[float] = []
        clock, note = time.perf_counter, took.append
        before = clock()
        for one in items:
            commit(one)
            now = clock()
            note(now - before)
            before = now
        return took

    return run


def _eventlog(durability: Durability) -> Callable[[Path], Opened]:
    def opened(path: Path) -> Opened:
        log = EventLog.open(path)
        commit = log.commit
        return Opened(each(commit if durability is Durability.IMMEDIATE else lambda made: commit(made, durability)), log.close)

    return opened


def _bare(path: Path) -> Opened:
    file = BareFile(path)

    def run(frames: Sequence[bytes]) -> list[float]:
        took: list[float] = []
        clock, note = time.perf_counter, took.append
        before = clock()
        for _ in file.write(frames):
            now = clock()
            note(now - before)
            before = now
        return took

    return Opened(run, file.close)


def _sqlite(synchronous: str) -> Callable[[Path], Opened]:
    """One row a transaction, with BEGIN IMMEDIATE as a writer needs it that reads before it writes.

    Threads share one connection behind a lock: with a connection each they wait in sqlite's busy handler, which sleeps for up to 100 ms
    at a time: several times slower, measured.
    """

    def opened(path: Path) -> Opened:
        connection = sqlite(path, synchronous)
        execute, now, one_at_a_time = connection.execute, time.time_ns, threading.Lock()

        def commit(made: Event) -> None:
            values = row(made, now)
            with one_at_a_time:
                execute("BEGIN IMMEDIATE")
                execute(INSERT, values)
                execute("COMMIT")

        return Opened(each(commit), connection.close)

    return opened


def _lmdb(path: Path) -> Opened:
    lmdb: Any = importlib.import_module("lmdb")
    path.mkdir(exist_ok=True)
    environment = lmdb.open(os.fspath(path), map_size=4 << 30)
    begin = environment.begin

    def commit(made: Event) -> None:
        with begin(write=True) as transaction:
            with transaction.cursor() as cursor:
                last = int.from_bytes(cursor.key(), "big") if cursor.last() else 0
            transaction.put((last + 1).to_bytes(8, "big"), orjson.dumps([*made]), append=True)

    return Opened(each(commit), environment.close)


def _rocksdict(path: Path) -> Opened:
    rocksdict: Any = importlib.import_module("rocksdict")
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    store = rocksdict.Rdict(os.fspath(path), options)
    durable = rocksdict.WriteOptions()
    durable.sync = True
    numbers = iter(range(1, 1 << 62))  # one process only: the counter can be in memory; next() is atomic among threads
    put = store.put

    def commit(made: Event) -> None:
        put(next(numbers).to_bytes(8, "big"), orjson.dumps([*made]), durable)

    return Opened(each(commit), store.close)


@functools.cache
def journal_class() -> Any:
    """An aggregate that takes events; made once, since eventsourcing knows a class by its name."""
    domain: Any = importlib.import_module("eventsourcing.domain")

    class Journal(domain.Aggregate):  # type: ignore[misc]
        def __init__(self) -> None:
            self.seen = 0

        def note(self, data: dict[str, Any]) -> None:
            self.seen += 1

        note = domain.event("Noted")(note)

    return Journal


def eventsourcing_application(path: Path) -> Any:
    application: Any = importlib.import_module("eventsourcing.application")
    return application.Application(env={"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": os.fspath(path)})


def _eventsourcing(path: Path) -> Opened:
    app, journal = eventsourcing_application(path), journal_class()()

    def commit(made: Event) -> None:
        journal.note(made.data)
        app.save(journal)

    return Opened(each(commit), app.close)


def _litequeue(path: Path) -> Opened:
    litequeue: Any = importlib.import_module("litequeue")
    queue = litequeue.LiteQueue(os.fspath(path))
    queue.conn.execute("PRAGMA synchronous=FULL")
    return Opened(each(lambda made: queue.put(orjson.dumps([*made]).decode())), queue.close)


def _persistqueue(path: Path) -> Opened:
    persistqueue: Any = importlib.import_module("persistqueue")
    queue = persistqueue.SQLiteQueue(os.fspath(path), multithreading=True, auto_commit=True)
    return Opened(each(lambda made: queue.put([*made])), queue.close)


def _frames(made: Sequence[Event]) -> list[bytes]:
    return [frame_of(one) for one in made]


AS_OURS = "as IMMEDIATE"

STORES = {
    store.kind: store
    for store in (
        Store(
            "eventlog", "eventlog IMMEDIATE", "", _eventlog(Durability.IMMEDIATE), threads=True, processes=True,
            settings="its defaults",
            power_cut="nothing that was acknowledged is lost",
        ),
        Store(
            "bare", "pwrite+fdatasync", "", _bare, processes=True, prepare=_frames,
            settings="frames made beforehand; grown by posix_fallocate in the steps of our segments; no encoding, checksum or lock",
            power_cut="as IMMEDIATE, but nobody could tell a torn tail",
        ),
        Store(
            "sqlite", "sqlite3 WAL FULL", "", _sqlite("FULL"), threads=True, processes=True,
            settings="a transaction with BEGIN IMMEDIATE; FULL syncs the WAL at each; page size, cache and checkpoints as by default",
            power_cut=AS_OURS,
        ),
        # lmdb.h: unless MDB_NOSYNC or MDB_NOMETASYNC is set, a commit flushes its pages and then the meta page, through a descriptor opened
        # with O_DSYNC: two syncs. append=True spares the search for the place of a key that is larger than all others.
        Store(
            "lmdb", "lmdb", "lmdb", _lmdb, threads=True, processes=True,
            settings="sync=True and metasync=True, its defaults; append=True, its fastest way for rising keys",
            power_cut=AS_OURS,
        ),
        # WriteOptions.sync is false by default: writes may then be lost when the machine stops (counted: 0 syncs).
        Store(
            "rocksdict", "rocksdict", "rocksdict", _rocksdict, threads=True,
            settings="WriteOptions.sync=True set by us: by default it syncs nothing at a put; raw_mode, no pickle. One process only",
            power_cut=AS_OURS,
        ),
        Store(
            "eventsourcing", "eventsourcing", "eventsourcing", _eventsourcing,
            settings="sqlite recorder on a file: it sets WAL and leaves synchronous at sqlite's FULL; one aggregate, one event a save",
            power_cut=AS_OURS,
        ),
        # It executes "PRAGMA synchronous = NORMAL" in WAL mode, where sqlite syncs at checkpoints only (counted: 2 syncs in 200 puts).
        Store(
            "litequeue", "litequeue", "litequeue", _litequeue,
            settings="synchronous=FULL set by us: its own NORMAL syncs nothing at a put",
            power_cut=AS_OURS,
        ),
        # Its file Queue flushes to the page cache and syncs a chunk when that is full, one put in 100: SQLiteQueue is the durable one.
        Store(
            "persistqueue", "persist-queue", "persistqueue", _persistqueue,
            settings="SQLiteQueue, auto_commit=True: WAL at sqlite's FULL; its file Queue syncs once in 100 puts and is left out",
            power_cut=AS_OURS,
        ),
        Store(
            "eventlog-batched", "eventlog BATCHED", "", _eventlog(Durability.BATCHED), threads=True, processes=True,
            settings="its defaults",
            power_cut="may take the last 50 ms, as a suffix",
        ),
        # sqlite's documentation: WAL with NORMAL is consistent after a power cut, but may have lost the last transactions.
        Store(
            "sqlite-normal", "sqlite3 WAL NORMAL", "", _sqlite("NORMAL"), threads=True, processes=True,
            settings="as FULL, but syncs at checkpoints only",
            power_cut="may take the last transactions, without a bound in time",
        ),
    )
}  # fmt: skip
"""Everything that one durable event can be put into, by the name that workers and the sync counter know it by."""


def available(bench: Bench, stores: Iterable[Store]) -> list[Store]:
    """Those whose package is installed, with their settings noted for the report; the others are skipped, with the reason printed."""
    found = []
    for store in stores:
        if reason := store.missing():
            bench.skip(store.title, reason)
        else:
            found.append(store)
            bench.peers[store.title] = {"settings": store.settings, "power_cut": store.power_cut}
    return found


def one_thread(bench: Bench, store: Store, made: Sequence[Event], *, warm: int = 0) -> Side:
    """A new store each round; making and closing it is not timed, nor are its first `warm` operations. `rate` is operations a second."""
    items = store.prepare(made)

    def turn() -> Sample:
        opened = store.open(bench.place(store.kind))
        try:
            if warm:
                opened.run(items[:warm])
            return one_by_one(opened.run, items)
        finally:
            opened.close()

    return turn


def one_by_one(run: Callable[[Sequence[Any]], list[float]], items: Sequence[Any]) -> Sample:
    """Rate, rate by CPU time alone, and the waits."""
    cpu = time.thread_time()
    took = run(items)
    cpu = time.thread_time() - cpu
    return {"rate": len(took) / sum(took), "cpu_rate": len(took) / max(cpu, 1e-9), **latencies(took)}
