"""A storm: processes and threads that commit into tiny segments while others of them are killed or stopped, with
followers attached.

Each writer thread tells over a pipe what it was promised, so that the tester knows more than the log (P20, P22, P26).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eventlog import Durability, Event, EventLog

SEGMENT_BYTES_MAX = 64 << 10
_STOPPED_MAX = 0.3  # seconds; far below the writers' lock_timeout


@dataclass
class Storm:
    """What happened: `acked` per writer thread the promised numbers, `killed`, `stopped`, events at the end."""

    acked: dict[str, list[int]] = field(default_factory=dict)
    killed: int = 0
    stopped: int = 0
    events: int = 0
    acknowledged: int = 0


def write(path: str, name: str, threads: int, commits: int, seed: str) -> None:
    """One writing process: `threads` threads, each with its own stream and numbers; prints `stream number` per
    promise."""
    log = EventLog.open(path, segment_bytes_max=SEGMENT_BYTES_MAX, lock_timeout=30)

    def one(stream: str) -> None:
        rng = random.Random(f"{seed}/{stream}")  # noqa: S311
        for number in range(commits):
            size = rng.choice((1, 1, 1, 2, 7))
            text = "x" * (rng.randrange(200_000) if rng.random() < 0.03 else rng.choice((1, 30, 700, 5000)))
            events = [Event("w", {"n": number, "i": i, "of": size, "text": text}, stream) for i in range(size)]
            log.commit(events, Durability.BATCHED if rng.random() < 0.2 else Durability.IMMEDIATE)
            # A batched commit survives the kill of its process too, and no power is cut in a storm.
            os.write(1, f"{stream} {number}\n".encode())

    workers = [threading.Thread(target=one, args=(f"{name}.{index}",)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    log.close()


def check_order(log: EventLog, acked: dict[str, list[int]]) -> int:
    """Dense seqs, whole commits, each stream in its order without a gap, everything that was promised. Returns the
    number of events."""
    seen: dict[str, int] = {}
    count = rest = 0
    stream = ""
    for event in log.read():
        count += 1
        assert event.seq == count, f"seq {event.seq} where {count} was due"
        number, index, size = event.data["n"], event.data["i"], event.data["of"]
        if rest:
            assert (event.stream, index) == (stream, size - rest), f"seq {count}: a commit is not whole"
            rest -= 1
        else:
            stream, rest = event.stream, size - 1
            assert index == 0, f"seq {count}: a commit is not whole"
            assert number == seen.get(stream, -1) + 1, f"seq {count}: {stream} {number} is out of order"
            seen[stream] = number
    assert not rest, "the log ends inside a commit"
    for name, numbers in acked.items():
        assert not numbers or seen.get(name, -1) >= numbers[-1], f"{name}: promised {numbers[-1]}, found {seen.get(name)}"
    return count


def _follow(path: Path, seqs: list[int], stop: threading.Event, errors: list[str]) -> None:
    try:
        with EventLog.open(path, read_only=True) as log:
            after = 0
            while True:
                done = stop.is_set()
                for event in log.follow(after, timeout=0.2):
                    seqs.append(event.seq)
                    after = event.seq
                if done:
                    return
    except Exception as error:  # noqa: BLE001  a thread has nobody to raise to: the storm tells it
        errors.append(f"a follower died of {type(error).__name__}: {error}")


def storm(
    base: Path, *, processes: int = 4, threads: int = 2, commits: int = 100, kills: int = 3, followers: int = 2, seed: int = 0
) -> Storm:
    """Run one storm on a new log in `base`. Raises AssertionError that names the seed when a promise is broken."""
    rng = random.Random(seed)  # noqa: S311
    path = base / "log"
    EventLog.open(path, segment_bytes_max=SEGMENT_BYTES_MAX).close()
    result = Storm()
    stop = threading.Event()
    errors: list[str] = []
    seen: list[list[int]] = [[] for _ in range(followers)]
    readers = [threading.Thread(target=_follow, args=(path, seqs, stop, errors)) for seqs in seen]
    for reader in readers:
        reader.start()
    running: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []
    for index in range(processes):
        running.append(_start(path, f"p{index}", threads, commits, f"{seed}/{index}", result))
    victims = rng.sample(range(processes), min(kills, processes))
    for victim in victims:
        time.sleep(rng.random() * 0.3 + 0.1)
        process = running[victim][0]
        if rng.random() < 0.5:
            process.send_signal(signal.SIGSTOP)
            time.sleep(rng.random() * _STOPPED_MAX)
            result.stopped += 1
        if rng.random() < 0.7:
            result.killed += process.poll() is None
            process.kill()  # frees its locks at once, also of a stopped one
        else:
            process.send_signal(signal.SIGCONT)
    for process, listener in running:
        process.wait(timeout=300)
        listener.join()
        assert process.returncode in (0, -signal.SIGKILL), f"seed {seed}: a writer ended with {process.returncode}"
    stop.set()
    for reader in readers:
        reader.join()
    try:
        with EventLog.open(path) as log:
            result.events = check_order(log, result.acked)
        assert not errors, errors[0]
        for seqs in seen:
            assert seqs == list(range(1, result.events + 1)), f"a follower saw {len(seqs)} events of {result.events}, or not in order"
    except AssertionError as error:
        raise AssertionError(f"storm with seed {seed}: {error}") from error
    result.acknowledged = sum(map(len, result.acked.values()))
    return result


def _start(path: Path, name: str, threads: int, commits: int, seed: str, result: Storm) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    arguments = [str(path), name, str(threads), str(commits), seed]
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "eventlog.testing.storm", *arguments], stdout=subprocess.PIPE
    )

    def listen() -> None:
        assert process.stdout is not None
        for line in _lines(process):
            stream, number = line.split()
            result.acked.setdefault(stream.decode(), []).append(int(number))
        process.stdout.close()

    listener = threading.Thread(target=listen)
    listener.start()
    return process, listener


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    assert process.stdout is not None
    yield from process.stdout


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
