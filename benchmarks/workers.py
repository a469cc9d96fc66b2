"""Processes that commit to one store when they are told to: `python -m benchmarks.workers KIND PATH`, KIND as in peers.STORES.

Told over a pipe: a line with a number of commits; answered by a line of JSON with when it began and ended, and how long each took.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from benchmarks.peers import STORES
from benchmarks.stores import event


class Crew:
    """So many processes on the store at `path`. Use it as a context manager: it ends them."""

    def __init__(self, kind: str, path: Path, count: int) -> None:
        root = str(Path(__file__).resolve().parent.parent)
        command = [sys.executable, "-m", "benchmarks.workers", kind, str(path)]
        self._workers: list[subprocess.Popen[bytes]] = []
        for _ in range(count):
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root})
            self._workers.append(worker)
            self._answer(worker)  # one after the other: only one makes the store

    @classmethod
    @contextlib.contextmanager
    def several(cls, wanted: Mapping[str, int], place: Callable[[str], Path]) -> Iterator[dict[str, Crew]]:
        """A crew for each kind of store, of so many processes."""
        with contextlib.ExitStack() as all_of_them:
            yield {kind: all_of_them.enter_context(cls(kind, place(kind), count)) for kind, count in wanted.items()}

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


def main(kind: str, path: Path) -> None:
    store = STORES[kind]
    opened = store.open(path)
    clock = time.monotonic  # one clock for all processes
    made = store.prepare([event(1_000_000 + number) for number in range(64)])
    out = sys.stdout.buffer
    out.write(b"ready\n")
    out.flush()
    for line in sys.stdin.buffer:
        items = [made[number & 63] for number in range(int(line))]
        start, cpu = clock(), time.process_time()
        took = opened.run(items)
        out.write(orjson.dumps({"start": start, "end": clock(), "cpu": time.process_time() - cpu, "took": took}) + b"\n")
        out.flush()
    opened.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
