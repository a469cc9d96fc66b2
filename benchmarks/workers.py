"""Processes that commit to one store when they are told to: `python -m benchmarks.workers eventlog|sqlite|bare PATH`.

Told over a pipe: a line with a number of commits; answered by a line of JSON with when it began and ended, and how long each took.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from benchmarks.stores import INSERT, BareFile, event, frame_of, row, sqlite
from eventlog import Event, EventLog


class Crew:
    """So many processes on the store at `path`. Use it as a context manager: it ends them."""

    def __init__(self, kind: str, path: Path, count: int) -> None:
        root = str(Path(__file__).resolve().parent.parent)
        command = [sys.executable, "-m", "benchmarks.workers", kind, str(path)]
        self._workers = []
        for _ in range(count):
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root})
            self._workers.append(worker)
            self._answer(worker)  # one after the other: only one makes the store

    def work(self, each: int) -> tuple[float, float, list[float]]:
        """Let every process make `each` commits at once: the seconds that all took, their CPU seconds, and the seconds of each commit."""
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(b"%d\n" % each)
            worker.stdin.flush()
        answers = [orjson.loads(self._answer(worker)) for worker in self._workers]
        took = [one for answer in answers for one in answer["took"]]
        seconds = max(answer["end"] for answer in answers) - min(answer["start"] for answer in answers)
        return seconds, sum(answer["cpu"] for answer in answers), took

    @staticmethod
    def _answer(worker: subprocess.Popen[bytes]) -> bytes:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker process ended with {worker.wait()}; what it said is above")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._workers:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.close()
            worker.wait()
            worker.stdout.close()


def _opened(kind: str, path: Path) -> Callable[[Event, bytes], object]:
    """What makes one durable commit."""
    if kind == "eventlog":
        log = EventLog.open(path)
        return lambda made, frame: log.commit(made)
    if kind == "bare":
        file = BareFile(path)
        return lambda made, frame: list(file.write((frame,)))
    execute = sqlite(path, "FULL").execute

    def transaction(made: Event, frame: bytes) -> None:
        execute("BEGIN IMMEDIATE")
        execute(INSERT, row(made, time.time_ns))
        execute("COMMIT")

    return transaction


def main(kind: str, path: Path) -> None:
    commit = _opened(kind, path)
    clock = time.monotonic  # one clock for all processes
    made = [event(1_000_000 + number) for number in range(64)]
    made_frames = [(one, frame_of(one)) for one in made]
    out = sys.stdout.buffer
    out.write(b"ready\n")
    out.flush()
    for line in sys.stdin.buffer:
        took = []
        start, cpu = clock(), time.process_time()
        for number in range(int(line)):
            one, frame = made_frames[number & 63]
            before = clock()
            commit(one, frame)
            took.append(clock() - before)
        out.write(orjson.dumps({"start": start, "end": clock(), "cpu": time.process_time() - cpu, "took": took}) + b"\n")
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
