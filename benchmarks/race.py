"""How a figure is taken: several sides do the same thing in turn, round by round, and the ratio is taken within each round.

What disturbs a shared machine comes and goes over seconds. Sides that ran one after the other, each for a minute, would be compared under
different weather; sides that take turns of a fraction of a second share it, and the median of the ratios of the rounds is steady where
the rates are not.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Sample = Mapping[str, float]
"""What one turn of one side gave: metric -> value. "rate" is operations (or MB) a second; others are named with their unit."""

Side = Callable[[], Sample]
Kind = Literal["ratio", "difference", "worst", "value"]

TRIES_MAX = 4  # rounds that are thrown away, for each that is wanted, before one is kept however loud


@dataclass(frozen=True)
class Figure:
    """What is compared. `kind`: "ratio" and "difference" are taken within each round, "worst" is the ratio of the maxima of all rounds,
    "value" is ours alone, without a peer.

    `target` is None for what is shown for information; `at_most`: smaller is better.
    """

    name: str
    ours: str
    peer: str
    target: float | None
    metric: str = "rate"
    unit: str = "commits/s"
    kind: Kind = "ratio"
    at_most: bool = False
    note: str = ""


@dataclass(frozen=True)
class Spread:
    """Median, extremes and all values, in the order of the rounds."""

    median: float
    low: float
    high: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), tuple(values))

    def as_json(self, *, values: bool = True) -> dict[str, Any]:
        shown: dict[str, Any] = {"median": _short(self.median), "min": _short(self.low), "max": _short(self.high)}
        return {**shown, "values": [_short(v) for v in self.values]} if values else shown


@dataclass(frozen=True)
class Result:
    """One figure as it was measured. `syncs` are fdatasync and fsync calls of ours for each operation, counted apart from the timing."""

    workload: str
    figure: Figure
    ours: Spread
    peer: Spread | None
    value: Spread
    syncs: float | None
    load: str

    @property
    def met(self) -> bool | None:
        """Was the target reached? None where there is none."""
        target = self.figure.target
        if target is None:
            return None
        return self.value.median <= target if self.figure.at_most else self.value.median >= target

    def as_json(self) -> dict[str, Any]:
        figure = self.figure
        return {
            "workload": self.workload,
            "name": figure.name,
            "metric": figure.metric,
            "unit": figure.unit,
            "kind": figure.kind,
            "ours": {"name": figure.ours, **self.ours.as_json()},
            "peer": None if self.peer is None else {"name": figure.peer, **self.peer.as_json()},
            "value": self.value.as_json(),
            "target": figure.target,
            "at_most": figure.at_most,
            "met": self.met,
            "syncs_per_operation": None if self.syncs is None else _short(self.syncs),
            "load": self.load,
            "note": figure.note,
        }


def _short(value: float) -> float:
    return float(f"{value:.5g}")


@dataclass(frozen=True)
class Race:
    """All sides of one race, with all that was measured of them: what the plots and the long table are made of."""

    workload: str
    title: str
    sides: Mapping[str, Mapping[str, Spread]]
    syncs: Mapping[str, float]
    load: str

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "title": self.title,
            "load": self.load,
            "sides": [
                {
                    "name": name,
                    "syncs_per_operation": _short(self.syncs[name]) if name in self.syncs else None,
                    "metrics": {metric: spread.as_json(values=False) for metric, spread in metrics.items()},
                }
                for name, metrics in self.sides.items()
            ],
        }


@dataclass
class Bench:
    """One run: where it may write, how long it may take, and what it found. `scale` shrinks every workload (tests use 0.001).

    `calm`: a round in which others took more cores than that is thrown away and done again, whatever came out of it.
    """

    root: Path
    rounds: int
    scale: float = 1.0
    calm: float | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    races: list[Race] = field(default_factory=list)
    peers: dict[str, dict[str, str]] = field(default_factory=dict)
    counted: dict[str, float | None] = field(default_factory=dict)
    say: Callable[[str], None] = lambda text: None
    _places: int = 0

    def size(self, full: int, least: int = 1) -> int:
        """`full` operations in a whole run, fewer in a quick one."""
        return max(least, round(full * self.scale))

    def place(self, name: str) -> Path:
        """A path that nothing has used before, on the disk that is measured."""
        self._places += 1
        return self.root / f"{self._places:05d}-{name}"

    def skip(self, peer: str, reason: str) -> None:
        self.skipped[peer] = reason
        self.say(f"skipped: {peer}: {reason}")

    def race(
        self,
        workload: str,
        sides: Mapping[str, Side],
        figures: Sequence[Figure],
        syncs: Mapping[str, float] | None = None,
        *,
        title: str = "",
        rounds: int | None = None,
        warm: bool = True,
    ) -> list[Result]:
        """Run all sides in turn, `rounds` times after one round that does not count; who begins changes from round to round.

        `syncs` per operation of the sides for which they were counted. `title` names the race (default: its first figure).
        """
        rounds = self.rounds if rounds is None else rounds
        names = list(sides)
        kept: list[Mapping[str, Sample]] = []
        busy: list[float] = []
        tries = 0 if warm else 1
        while len(kept) < rounds:
            turn = tries % len(names)
            samples: dict[str, Sample] = {}
            others = []
            for name in names[turn:] + names[:turn]:
                gc.collect()  # nobody pays for the garbage of the side before
                watch = _Others()
                samples[name] = sides[name]()
                others.append(watch.cores(samples[name].get("children_cpu_s", 0.0)))
            most = max(others)
            if tries and (self.calm is None or most <= self.calm or tries > TRIES_MAX * rounds):
                kept.append(samples)
                busy.append(most)
            self.say(f"{workload}: {len(kept)} of {rounds} rounds, others take {most:.1f} cores")
            tries += 1
        load = f"others took {statistics.median(busy):.1f} cores (median; {min(busy):.1f}-{max(busy):.1f})"
        if self.calm is not None:
            load += f"; {tries - 1 - rounds} rounds above {self.calm:g} thrown away"
        spreads = {
            name: {metric: Spread.of([samples[name][metric] for samples in kept]) for metric in kept[0][name] if metric != "children_cpu_s"}
            for name in names
        }
        title = title or (figures[0].name if figures else workload)
        self.races.append(Race(workload, title, spreads, syncs or {}, load))
        return [self._result(workload, figure, kept, syncs or {}, load) for figure in figures]

    @staticmethod
    def _result(workload: str, figure: Figure, rounds: Sequence[Mapping[str, Sample]], syncs: Mapping[str, float], load: str) -> Result:
        ours = [samples[figure.ours][figure.metric] for samples in rounds]
        if figure.kind == "value":
            return Result(workload, figure, Spread.of(ours), None, Spread.of(ours), syncs.get(figure.ours), load)
        peer = [samples[figure.peer][figure.metric] for samples in rounds]
        if figure.kind == "worst":
            value = Spread.of([max(ours) / max(peer)])
        elif figure.kind == "difference":
            value = Spread.of([mine - theirs for mine, theirs in zip(ours, peer, strict=True)])
        else:
            value = Spread.of([mine / theirs for mine, theirs in zip(ours, peer, strict=True)])
        return Result(workload, figure, Spread.of(ours), Spread.of(peer), value, syncs.get(figure.ours), load)


class _Others:
    """How many cores everybody else uses from now on: other programs, and the kernel's own threads that write for us."""

    def __init__(self) -> None:
        self._ticks, self._own, self._start = _busy_ticks(), time.process_time(), time.monotonic()

    def cores(self, children_s: float) -> float:
        seconds = time.monotonic() - self._start
        busy = (_busy_ticks() - self._ticks) / os.sysconf("SC_CLK_TCK")
        return max(0.0, busy - (time.process_time() - self._own) - children_s) / max(seconds, 1e-9)


def _busy_ticks() -> int:
    """Of all cores, since boot; 0 where the system does not say."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except OSError:
        return 0
    return sum(ticks) - ticks[3] - ticks[4]  # all but idle and waiting for a disk


def latencies(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in ms. The median does not see the rare operation that waited for somebody else's time slice."""
    ordered = sorted(seconds)
    return {
        "p50_ms": statistics.median(ordered) * 1000,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * 1000,
        "worst_ms": ordered[-1] * 1000,
    }


def timed_each(work: Iterable[object]) -> Sample:
    """Like `timed`, for an iterator that does one operation at each step: the rate, and how long the steps took."""
    took: list[float] = []
    clock, note = time.perf_counter, took.append
    start = before = clock()
    for _ in work:
        now = clock()
        note(now - before)
        before = now
    return {"rate": len(took) / (before - start), **latencies(took)}


def timed(operations: int, work: Callable[[], object]) -> Sample:
    """Operations a second of one call that does `operations` of them: on the clock, and of this thread's CPU time."""
    start, cpu = time.perf_counter(), time.thread_time()
    work()
    cpu = time.thread_time() - cpu
    return {"rate": operations / (time.perf_counter() - start), "cpu_rate": operations / max(cpu, 1e-9)}
