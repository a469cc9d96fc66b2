"""The long run: `python -m eventlog.testing.soak --minutes N [--seed S]`.

Storms of processes, power cuts at every recorded operation (recovery crashed as well), and every call of the disk
failed in turn, with a new seed each round until the time is over. Prints the seed of each round and a table: fault
injected, times tried, acknowledged events lost. Ends with 1, and the seed to repeat, at the first broken promise.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from eventlog.testing.crashstates import check, crash_states
from eventlog.testing.drill import look, one_life, recover
from eventlog.testing.faultfs import CALLS, ERRNOS
from eventlog.testing.nthcall import DRILLS, drill
from eventlog.testing.storm import storm
from eventlog.testing.tracked import TrackedFileSystem

Tried = Counter[str]


def _storm(base: Path, seed: int, tried: Tried) -> None:
    rng = random.Random(seed)  # noqa: S311
    result = storm(
        base,
        processes=rng.choice((2, 4, 8)),
        threads=rng.choice((1, 2, 4)),
        commits=rng.choice((50, 100, 200)),
        kills=rng.randint(0, 6),
        followers=rng.randint(0, 3),
        seed=seed,
    )
    tried["SIGKILL of a writing process"] += result.killed
    tried["SIGSTOP of a writing process"] += result.stopped
    tried["(commits acknowledged under them)"] += result.acknowledged


def _power_cuts(base: Path, seed: int, tried: Tried) -> None:
    rng = random.Random(seed)  # noqa: S311
    fs = TrackedFileSystem(base / "disk")
    one_life(fs, rng.randint(1, 15))
    single = list(crash_states(fs, seed=seed))
    report = check(single, look, base / "work", recover=recover, recover_every=25, seed=seed)
    tried["power cut"] += len(single)
    tried["power cut, and another during recovery"] += report.states - len(single)


def _nth_calls(base: Path, seed: int, tried: Tried) -> None:
    rng = random.Random(seed)  # noqa: S311
    name = rng.choice(list(DRILLS))
    numbers = rng.sample(ERRNOS, 2)
    for call in rng.sample(CALLS, 6):
        tried[f"n-th {call} fails ({', '.join(errno.errorcode[n] for n in sorted(ERRNOS))})"] += drill(
            name, base / call, calls=[call], errnos=numbers
        )


ROUNDS: tuple[Callable[[Path, int, Tried], None], ...] = (_storm, _power_cuts, _nth_calls)


def table(tried: Tried, lost: str) -> str:
    """The summary, as text."""
    width = max(map(len, tried), default=0)
    lines = [f"{'fault injected':<{width}}  times tried  acknowledged events lost"]
    lines += [f"{what:<{width}}  {count:>11,}  {lost:>24}" for what, count in sorted(tried.items()) if count]
    return "\n".join(lines)


def soak(
    seconds: float, seed: int, say: Callable[[str], None] = print, rounds: Sequence[Callable[[Path, int, Tried], None]] = ROUNDS
) -> int:
    """Run rounds for about `seconds`, at least one of each kind. Returns 0, or 1 after a broken promise."""
    rng = random.Random(seed)  # noqa: S311
    say(f"seed {seed}")
    tried: Tried = Counter()
    end = time.monotonic() + seconds
    number = 0
    shm = Path("/dev/shm")  # noqa: S108  a thousand small directories a second: not on somebody's disk
    while number < len(rounds) or time.monotonic() < end:
        kind = rounds[number % len(rounds)]
        round_seed = rng.randrange(2**32)
        number += 1
        with tempfile.TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else None) as base:
            try:
                kind(Path(base), round_seed, tried)
            except AssertionError as error:
                say(table(tried, "see below"))
                say(f"BROKEN PROMISE in round {number} ({kind.__name__.strip('_')}, seed {round_seed}) of seed {seed}: {error}")
                return 1
    say(table(tried, "0"))
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eventlog.testing.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4))
    sys.exit(soak(options.minutes * 60, seed, lambda text: print(text, flush=True)))


if __name__ == "__main__":
    main()
