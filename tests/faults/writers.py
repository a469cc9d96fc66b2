"""A child process that writes and says so: one line on stdout for each acknowledged commit. Run by test_processes."""

from __future__ import annotations

import os
import random
import sys
import threading

from eventlog import Durability, Event, EventLog


def main(path: str, name: str, threads: int, commits: int, seed: int, large: int, segment_bytes_max: int) -> None:
    log = EventLog.open(path, segment_bytes_max=segment_bytes_max, lock_timeout=60)

    def work(thread: int) -> None:
        chance = random.Random(f"{seed}/{name}/{thread}")
        for n in range(commits):
            size = chance.randrange(chance.choice([60, 60, 60, large]))
            events = [
                Event("work.done", {"n": n, "part": part, "x": "x" * size}, f"{name}/{thread}") for part in range(chance.randint(1, 3))
            ]
            commit = log.commit(events, chance.choice([Durability.IMMEDIATE, Durability.IMMEDIATE, Durability.BATCHED]))
            # One write: the parent must see whole lines, whatever kills us.
            os.write(1, f"{name}/{thread} {n} {commit.first} {commit.last}\n".encode())

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    log.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
