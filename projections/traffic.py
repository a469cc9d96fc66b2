"""What is going on in a log: rates, and how long commits wait for the disk. Pure: looks in, figures out (`eventlog top`).

A reader cannot see the writers' syncs. What it can see is when a commit was first *known* to be on disk: at the shared durable word, at
the time of a look, or in the header of a later frame, which says how much was on disk when it was written. The earlier of the two, less
the commit's own time, is the *durable lag*: an upper bound of how long that commit was not safe. For an IMMEDIATE commit that is write
and sync, plus what passed until somebody said so; for a BATCHED one mostly its window. All times are the clock of one machine.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from eventlog.survey import Look

__all__ = ["AGES", "BOUNDS_S", "Histogram", "Interval", "Traffic", "by_age"]

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
AGES = ((10, "10s"), (60, "1m"), (600, "10m"), (3600, "1h"), (86400, "1d"))
UNPROVED_MAX = 100_000
"""Commits that wait for a proof: of more, the oldest are given up and counted."""


class Histogram:
    """Counts of durations (seconds) by upper bound; the last count is of those above all bounds."""

    def __init__(self, bounds_s: Sequence[float] = BOUNDS_S) -> None:
        self.bounds_s = tuple(bounds_s)
        self.counts = [0] * (len(self.bounds_s) + 1)
        self.total = 0
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        """A clock that was put back in between makes no duration negative."""
        seconds = max(0.0, seconds)
        self.counts[bisect.bisect_left(self.bounds_s, seconds)] += 1
        self.total += 1
        self.max_s = max(self.max_s, seconds)

    def at_most(self, share: float) -> float | None:
        """The bound that this share of all durations does not exceed, as far as the buckets tell; None when there are none."""
        if not self.total:
            return None
        seen = 0
        for bound, count in zip(self.bounds_s, self.counts, strict=False):
            seen += count
            if seen >= share * self.total:
                return min(bound, self.max_s)
        return self.max_s


class Interval(NamedTuple):
    """What came between two calls of `Traffic.interval`."""

    seconds: float
    commits: int
    events: int
    bytes: int

    def per_second(self, count: int) -> float:
        return count / self.seconds if self.seconds > 0 else 0.0


class Traffic:
    """Takes looks in the order they were made. `lags` are the durable lags since the beginning."""

    def __init__(self, now_s: float) -> None:
        """`now_s`: any clock that only goes forward, the same for `interval`."""
        self.lags = Histogram()
        self.given_up = 0
        self._waiting: deque[tuple[int, int, int]] = deque()  # segment, end, time of commits without a proof
        self._commits = self._events = self._bytes = 0
        self._since_s = now_s

    def take(self, look: Look, now_ns: int, *, timed: bool = True) -> None:
        """`now_ns`: the clock of the commits, right after the look. Not `timed`: nobody looked for a while (a screen was drawn), so what
        went to the disk meanwhile is counted, and its lag is left out: it would be ours, not that of the disk."""
        if look.moved:
            self._waiting.clear()  # what was cut off is not late, it is gone
        lags, self.lags = self.lags, self.lags if timed else Histogram()
        for segment, frame in look.frames:
            self._prove(segment, frame.durable, frame.time)
            self._waiting.append((segment, frame.end, frame.time))
            self._commits += 1
            self._events += frame.events
            self._bytes += frame.end - frame.offset
        self._prove(look.segment, look.durable, now_ns)
        while len(self._waiting) > UNPROVED_MAX:
            self._waiting.popleft()
            self.given_up += 1
        self.lags = lags

    def _prove(self, segment: int, durable: int, at_ns: int) -> None:
        """All before that place is on disk: a segment takes no frame before the one before it is."""
        waiting = self._waiting
        while waiting and (waiting[0][0] < segment or (waiting[0][0] == segment and waiting[0][1] <= durable)):
            self.lags.add((at_ns - waiting.popleft()[2]) / 1e9)

    def unproved(self, now_ns: int) -> tuple[int, float]:
        """How many commits wait for a proof, and for how many seconds the oldest does."""
        return (len(self._waiting), max(0.0, (now_ns - self._waiting[0][2]) / 1e9)) if self._waiting else (0, 0.0)

    def interval(self, now_s: float) -> Interval:
        """What came since the last call."""
        found = Interval(now_s - self._since_s, self._commits, self._events, self._bytes)
        self._commits = self._events = self._bytes = 0
        self._since_s = now_s
        return found


def by_age(since_ns: Sequence[int], now_ns: int) -> dict[str, int]:
    """How many are younger than 10s, 1m, 10m, 1h, 1d (and not than the one before), and `older`."""
    counts = dict.fromkeys([name for _, name in AGES] + ["older"], 0)
    for since in since_ns:
        age_s = (now_ns - since) / 1e9
        counts[next((name for bound, name in AGES if age_s < bound), "older")] += 1
    return counts
