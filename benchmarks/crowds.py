"""Many at once: threads and coroutines of one process, and eight processes, all IMMEDIATE."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

from benchmarks.commits import bare
from benchmarks.race import Bench, Figure, Result, Sample, Side, latencies
from benchmarks.stores import events, frame_of, syncs_of
from benchmarks.workers import Crew
from eventlog import Event, EventLog

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


def commit_in_threads(log: EventLog, made: Sequence[Event], count: int) -> Sample:
    """The events shared out among `count` threads."""
    each = len(made) // count
    took: list[list[float]] = [[] for _ in range(count)]

    def work(number: int) -> None:
        mine, clock, note = made[number * each : (number + 1) * each], time.perf_counter, took[number].append
        for one in mine:
            start = clock()
            log.commit(one)
            note(clock() - start)

    seconds = in_threads(count, work)
    return {"rate": each * count / seconds, **latencies([one for some in took for one in some])}


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


def crowd(bench: Bench) -> list[Result]:
    """16 and 64 threads, and 64 coroutines, IMMEDIATE, one event a commit, against the bare loop of one thread."""
    made = events(bench.size(3200, 128))
    runs: dict[str, Callable[[EventLog], Sample]] = {
        "eventlog, 16 threads": lambda log: commit_in_threads(log, made, 16),
        "eventlog, 64 threads": lambda log: commit_in_threads(log, made, 64),
        "eventlog, 64 coroutines": lambda log: commit_in_coroutines(log, made, 64),
    }

    def side(run: Callable[[EventLog], Sample]) -> Side:
        def turn() -> Sample:
            with EventLog.open(bench.place("log")) as log:
                return run(log)

        return turn

    loop = "pwrite+fdatasync, 1 thread"
    sides = {name: side(run) for name, run in runs.items()}
    sides[loop] = bare(bench, [frame_of(one) for one in made[: max(20, len(made) // 4)]])
    targets = dict(zip(runs, (2.0, 2.5, 2.5), strict=True))
    return bench.race(
        "crowd",
        sides,
        [Figure(f"{name.partition(', ')[2]} IMMEDIATE : bare single loop", name, loop, target) for name, target in targets.items()],
        {name: syncs_of(bench.place("log"), len(made), run) for name, run in runs.items()},
    )


def processes(bench: Bench) -> list[Result]:
    """Eight processes IMMEDIATE on one store, against the bare loop of one process and eight on sqlite3 WAL FULL; worst waits.

    The processes live through all rounds and are told when to begin, so that no start is timed.
    """
    each = bench.size(200, 4)
    ours, theirs, loop = f"eventlog, {PROCESSES} processes", f"sqlite WAL FULL, {PROCESSES} processes", "pwrite+fdatasync, 1 process"
    with (
        Crew("eventlog", bench.place("log"), PROCESSES) as mine,
        Crew("sqlite", bench.place("sqlite.db"), PROCESSES) as lites,
        Crew("bare", bench.place("bare"), 1) as alone,
    ):
        return bench.race(
            "processes",
            {
                ours: lambda: _crew_sample(mine, each),
                loop: lambda: _crew_sample(alone, each * 2),
                theirs: lambda: _crew_sample(lites, each),
            },
            [
                Figure("8 processes IMMEDIATE : bare loop of one", ours, loop, 1.3),
                Figure("8 processes IMMEDIATE : 8 on sqlite3 WAL FULL", ours, theirs, 3.0),
                Figure("8 processes, worst wait : sqlite's (all rounds)", ours, theirs, 1 / 8, "worst_ms", "ms", "worst", at_most=True),
                Figure("8 processes, p99 wait : sqlite's", ours, theirs, None, "p99_ms", "ms", at_most=True),
            ],
        )


def _crew_sample(crew: Crew, each: int) -> Sample:
    seconds, cpu_s, took = crew.work(each)
    return {"rate": len(took) / seconds, "children_cpu_s": cpu_s, **latencies(took)}
