"""How long after its commit was begun an event is in the hands of another process that follows the log.

The writer is a process of its own (`python -m benchmarks.followers KIND PATH`), told over a pipe how many events to commit and how long to
rest between two; each event carries the time at which its commit was begun, by the one monotonic clock that all processes share. So the
time includes the sync: nobody is shown what is not durable.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import orjson

from benchmarks.race import Bench, Figure, Result, Sample, Side, latencies
from benchmarks.stores import INSERT, STREAM, TYPE, sqlite
from eventlog import Event, EventLog

BUSY_S, IDLE_S = 0.002, 0.05
"""Rest between two commits: one of a program at work, and one after which a reader has long fallen into its slowest pace."""
POLL_S = 0.001


def _followed(path: Path, count: int, begin: Callable[[], None]) -> Iterator[float]:
    """Seconds from the begin of each commit until `follow` gave its event."""
    clock = time.monotonic
    with EventLog.open(path, read_only=True) as log:
        head = int(log.head)
        begin()  # now that its place is known: what is committed before would be waited for in vain
        for number, made in enumerate(log.follow(head, timeout=30), 1):
            yield clock() - made.data["begun"]
            if number == count:
                return


def _polled(path: Path, count: int, begin: Callable[[], None]) -> Iterator[float]:
    """The same from sqlite3: `PRAGMA data_version` each ms, its documented way to hear of others' commits, then SELECT."""
    connection, clock, number = sqlite(path, "FULL"), time.monotonic, 0
    (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
    version = None
    begin()
    try:
        while number < count:
            (now,) = connection.execute("PRAGMA data_version").fetchone()
            if now == version:
                time.sleep(POLL_S)
                continue
            version = now
            for seq, data in connection.execute("SELECT seq, data FROM events WHERE seq > ? ORDER BY seq", (last,)).fetchall():
                yield clock() - orjson.loads(data)["begun"]
                last, number = seq, number + 1
    finally:
        connection.close()


class Writer:
    """The process that commits. Use it as a context manager."""

    def __init__(self, kind: str, path: Path) -> None:
        root = str(Path(__file__).resolve().parent.parent)
        command = [sys.executable, "-m", "benchmarks.followers", kind, str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root})
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"the writing process ended with {self._process.wait()}; what it said is above")

    def commit(self, count: int, rest_s: float) -> None:
        """Begin with so many commits; returns at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d %f\n" % (count, rest_s))
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def side(writer: Writer, follow: Callable[[Path, int, Callable[[], None]], Iterator[float]], path: Path, count: int, rest_s: float) -> Side:
    def turn() -> Sample:
        took = list(follow(path, count, lambda: writer.commit(count, rest_s)))
        if len(took) != count:
            raise AssertionError(f"{len(took)} events arrived, of {count}")
        return latencies(took)

    return turn


def followers(bench: Bench) -> list[Result]:
    """A reader that follows, in another process than the writer: at work (an event each 2 ms) and idle (one each 50 ms)."""
    ours, theirs = "eventlog follow", "sqlite3, polled each ms"
    log, table = bench.place("log"), bench.place("sqlite.db")
    results = []
    with Writer("eventlog", log) as writer, Writer("sqlite", table) as lite:
        for rest_s, count, how in ((BUSY_S, 200, "at work"), (IDLE_S, 40, "idle")):
            many = bench.size(count, 3)
            results += bench.race(
                "follow",
                {ours: side(writer, _followed, log, many, rest_s), theirs: side(lite, _polled, table, many, rest_s)},
                [
                    Figure(f"follower {how}, p99 from commit to reader", ours, "", 5.0, "p99_ms", "ms", "value", at_most=True),
                    Figure(f"follower {how}, median : sqlite3 polled each ms", ours, theirs, None, "p50_ms", "ms", at_most=True),
                    Figure(f"follower {how}, p99 : sqlite3 polled each ms", ours, theirs, None, "p99_ms", "ms", at_most=True),
                ],
                title=f"commit to reader in another process, one event each {rest_s * 1000:g} ms",
            )
    return results


def main(kind: str, path: Path) -> None:
    """The writing process."""
    clock = time.monotonic
    if kind == "eventlog":
        commit = EventLog.open(path).commit

        def write() -> None:
            commit(Event(TYPE, {"begun": clock()}, STREAM))
    else:
        execute = sqlite(path, "FULL").execute

        def write() -> None:
            execute(INSERT, (0, TYPE, STREAM, orjson.dumps({"begun": clock()})))

    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        count, rest_s = line.split()
        for _ in range(int(count)):
            time.sleep(float(rest_s))
            write()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
