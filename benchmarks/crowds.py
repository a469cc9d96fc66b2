"""Many at once: threads and coroutines of one process, and eight processes, all durable."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers import STORES, Opened, Store, available, one_thread
from benchmarks.race import Bench, Figure, Result, Sample, Side, latencies
from benchmarks.stores import events, syncs_of
from benchmarks.syncs import counted, of_each
from benchmarks.workers import Crew
from eventlog import Event, EventLog

THREADS = 16
PROCESSES = 8


def in_threads(count: int, work: Callable[[int], None]) -> float:
    """Run `work(number)` in so many threads, begun together; the seconds until the last is done."""
    barrier = threading.Barrier(count + 1)
    failed: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    if failed:
        raise failed[0]
    return seconds


def shared_out(items: Sequence[Any], opened: Opened, count: int) -> Sample:
    """The items shared out among `count` threads, which share the store."""
    each = len(items) // count
    took: list[list[float]] = [[] for _ in range(count)]

    def work(number: int) -> None:
        took[number] = opened.run(items[number * each : (number + 1) * each])

    seconds = in_threads(count, work)
    return {"rate": each * count / seconds, **latencies([one for some in took for one in some])}


def many_threads(bench: Bench, store: Store, made: Sequence[Event], count: int, *, warm: int = 0) -> Side:
    """The store in `count` threads, a new one each round; the first `warm` operations for each thread are not timed."""
    items = store.prepare(made)

    def turn() -> Sample:
        opened = store.open(bench.place(store.kind))
        try:
            if warm:
                opened.run(items[: warm * count])
            return shared_out(items, opened, count)
        finally:
            opened.close()

    return turn


def commit_in_threads(log: EventLog, made: Sequence[Event], count: int) -> None:
    each = len(made) // count

    def work(number: int) -> None:
        for one in made[number * each : (number + 1) * each]:
            log.commit(one)

    in_threads(count, work)


def commit_in_coroutines(log: EventLog, made: Sequence[Event], count: int) -> Sample:
    """The same with coroutines of one event loop."""
    each = len(made) // count
    took: list[float] = []

    async def work(number: int) -> None:
        for one in made[number * each : (number + 1) * each]:
            start = time.perf_counter()
            await log.acommit(one)
            took.append(time.perf_counter() - start)

    async def everybody() -> float:
        start = time.perf_counter()
        await asyncio.gather(*map(work, range(count)))
        return time.perf_counter() - start

    seconds = asyncio.run(everybody())
    return {"rate": each * count / seconds, **latencies(took)}


def coroutines(bench: Bench, made: Sequence[Event], count: int) -> Side:
    def turn() -> Sample:
        with EventLog.open(bench.place("log")) as log:
            return commit_in_coroutines(log, made, count)

    return turn


def crowd(bench: Bench) -> list[Result]:
    """16 threads, one durable event a commit, in stores that threads can share; 64 threads and coroutines of ours; the bare loop."""
    made = events(bench.size(2560, 128))
    some = made[: max(64, len(made) // 4)]  # those that gain nothing from company get less to do
    stores = available(bench, (STORES[kind] for kind in ("eventlog", "sqlite", "lmdb", "rocksdict") if STORES[kind].threads))
    loop = "pwrite+fdatasync, 1 thread"
    sides: dict[str, Side] = {}
    for store in stores:
        sides[f"{store.title}, {THREADS} threads"] = many_threads(bench, store, made if store.kind == "eventlog" else some, THREADS)
    sides["eventlog IMMEDIATE, 64 threads"] = many_threads(bench, STORES["eventlog"], made, 64)
    sides["eventlog IMMEDIATE, 64 coroutines"] = coroutines(bench, made, 64)
    sides[loop] = one_thread(bench, STORES["bare"], some)
    ours = f"eventlog IMMEDIATE, {THREADS} threads"
    figures = [
        Figure(f"{who} : bare loop of one thread", f"eventlog IMMEDIATE, {who}", loop, target)
        for who, target in ((f"{THREADS} threads", 2.0), ("64 threads", 2.5), ("64 coroutines", 2.5))
    ]
    for store in stores[1:]:
        figures.append(Figure(f"{THREADS} threads : {THREADS} on {store.title}", ours, f"{store.title}, {THREADS} threads", None))
    figures.append(
        Figure(f"{THREADS} threads, p99 wait : sqlite3's", ours, f"sqlite3 WAL FULL, {THREADS} threads", None, "p99_ms", "ms", at_most=True)
    )
    syncs = {
        **of_each(bench, stores, bench.size(1600, THREADS), threads=THREADS),
        ours: syncs_of(bench.place("log"), len(made), lambda log: commit_in_threads(log, made, THREADS)),
        "eventlog IMMEDIATE, 64 threads": syncs_of(bench.place("log"), len(made), lambda log: commit_in_threads(log, made, 64)),
        "eventlog IMMEDIATE, 64 coroutines": syncs_of(bench.place("log"), len(made), lambda log: commit_in_coroutines(log, made, 64)),
    }
    return bench.race("threads", sides, figures, syncs, title="commit of one event, many threads")


def processes(bench: Bench) -> list[Result]:
    """Eight processes on one store, in the stores that processes can share, against the bare loop of one; and how long the unlucky wait.

    The processes live through all rounds and are told when to begin, so that no start is timed.
    """
    each = bench.size(150, 4)
    stores = available(bench, (STORES[kind] for kind in ("eventlog", "sqlite", "lmdb") if STORES[kind].processes))
    loop, bare = "pwrite+fdatasync, 1 process", STORES["bare"]
    titles = {store.kind: f"{store.title}, {PROCESSES} processes" for store in stores}
    with Crew.several({**dict.fromkeys(titles, PROCESSES), bare.kind: 1}, bench.place) as crews:
        sides = {titles[kind]: crew_side(crews[kind], each) for kind in titles}
        sides[loop] = crew_side(crews[bare.kind], each * 2)
        ours, theirs = titles["eventlog"], titles["sqlite"]
        figures = [
            Figure(f"{PROCESSES} processes : bare loop of one", ours, loop, 1.3),
            *(
                Figure(
                    f"{PROCESSES} processes : {PROCESSES} on {store.title}",
                    ours,
                    titles[store.kind],
                    3.0 if store.kind == "sqlite" else None,
                )
                for store in stores[1:]
            ),
            Figure(
                f"{PROCESSES} processes, worst wait : sqlite3's (all rounds)", ours, theirs, 1 / 8, "worst_ms", "ms", "worst", at_most=True
            ),
            Figure(f"{PROCESSES} processes, p99 wait : sqlite3's", ours, theirs, None, "p99_ms", "ms", at_most=True),
        ]
        syncs = of_each(bench, stores, bench.size(800, PROCESSES * 2), processes=PROCESSES)
        if (alone := counted(bench, bare, bench.size(1000, 20))) is not None:
            syncs[loop] = alone
        return bench.race("processes", sides, figures, syncs, title=f"commit of one event, {PROCESSES} processes")


def crew_side(crew: Crew, each: int) -> Side:
    def turn() -> Sample:
        seconds, cpu_s, took = crew.work(each)
        return {"rate": len(took) / seconds, "children_cpu_s": cpu_s, **latencies(took)}

    return turn
