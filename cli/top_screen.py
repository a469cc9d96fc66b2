"""What `eventlog top` shows, as lines of text: pure, so that a test needs neither a terminal nor a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from eventlog.cli.output import escape
from eventlog.cli.stats import age, amount

if TYPE_CHECKING:
    from eventlog.projections.traffic import Histogram, Interval

_BAR = 30  # characters of the longest bar
_NAMES_MAX = 60
_LATE_S = 1.0


class Waits(NamedTuple):
    """Something that is not finished: what, in which state, for how many seconds."""

    name: str
    what: str
    age_s: float


class Screen(NamedTuple):
    """All that is shown at one moment; `head` is that of the folds, `behind` the events that came while they were made."""

    path: str
    log: str
    clock: str
    head: int
    interval: Interval
    lags: Histogram
    unproved: int
    unproved_s: float
    probe: Histogram | None
    types: Sequence[tuple[str, int, int]]
    """Name, events in all, events in this interval."""
    types_more: int
    ages: dict[str, int]
    intents: Sequence[Waits]
    deliveries: Sequence[Waits]
    threads: Sequence[tuple[str, str, str]]
    """Name, status, what its agent does."""
    note: str = ""


def render(screen: Screen, *, coloured: bool = False, rows: int | None = None) -> list[str]:
    """The lines, escaped; with `rows`, as many of each list as fit on a terminal of that height."""
    each = 10 if rows is None else max(2, (rows - 26) // 4)

    def title(text: str) -> str:
        return click.style(text, bold=True) if coloured else text

    def warn(text: str) -> str:
        return click.style(text, fg="yellow") if coloured else text

    now = screen.interval
    lines = [title(f"{escape(screen.path)}  head {screen.head}  {screen.clock}")]
    lines.append(
        f"commits {now.per_second(now.commits):.1f}/s   events {now.per_second(now.events):.1f}/s   "
        f"bytes {amount(now.per_second(now.bytes))}/s   (over {now.seconds:.1f} s)"
    )
    lines += ["", title("durable lag: from a commit's time to the first proof that it is on disk (an upper bound)")]
    lines += _histogram(screen.lags)
    if screen.unproved:
        text = f"  not proved to be on disk yet: {screen.unproved}, the oldest for {screen.unproved_s:.3f} s"
        lines.append(warn(text) if screen.unproved_s >= _LATE_S else text)
    if screen.probe is not None:
        lines += ["", title("probe: our own fdatasync of a page on the same disk")]
        lines += _histogram(screen.probe)
    lines += ["", title("events by type") + "                     total        now"]
    lines += [f"  {_cut(name):<28} {total:>10} {now.per_second(new):>8.1f}/s" for name, total, new in screen.types[:each]]
    more = screen.types_more + max(0, len(screen.types) - each)
    if more:
        lines.append(f"  and {more} more types")
    open_ = sum(screen.ages.values())
    lines += ["", title(f"open intents: {open_}") + ("" if not open_ else "   younger than " + _ages(screen.ages))]
    lines += _waits(screen.intents, each, open_)
    lines += ["", title(f"waiting deliveries: {len(screen.deliveries)}")]
    lines += _waits(screen.deliveries, each, len(screen.deliveries))
    lines += ["", title(f"threads: {len(screen.threads)}")]
    lines += [f"  {_cut(name):<28} {status}, its agent is {agent}" for name, status, agent in screen.threads[:each]]
    if len(screen.threads) > each:
        lines.append(f"  and {len(screen.threads) - each} more")
    if screen.note:
        lines += ["", screen.note]
    return lines


def _cut(text: str) -> str:
    shown = escape(text) or "-"
    return shown if len(shown) <= _NAMES_MAX else shown[: _NAMES_MAX - 1] + "…"


def _waits(waiting: Sequence[Waits], each: int, count: int) -> list[str]:
    lines = [f"  {age(one.age_s):>8}  {_cut(one.name)}  {_cut(one.what)}" for one in waiting[:each]]
    if count > len(lines):
        lines.append(f"            and {count - len(lines)} more")
    return lines


def _ages(ages: dict[str, int]) -> str:
    shown = [f"{name}: {count}" for name, count in ages.items() if name != "older"]
    return ", ".join(shown) + f"; older: {ages['older']}"


def _histogram(histogram: Histogram) -> list[str]:
    """From the first bucket that holds something to the last."""
    if not histogram.total:
        return ["  nothing measured yet"]
    filled = [place for place, count in enumerate(histogram.counts) if count]
    most = max(histogram.counts)
    lines = []
    for place in range(filled[0], filled[-1] + 1):
        count = histogram.counts[place]
        last = place == len(histogram.bounds_s)
        label = f"> {_ms(histogram.bounds_s[-1])}" if last else f"<= {_ms(histogram.bounds_s[place])}"
        bar = "#" * (max(1, round(_BAR * count / most)) if count else 0)
        lines.append(f"  {label:>12}  {count:>8}  {bar}".rstrip())
    half, most_of = histogram.at_most(0.5), histogram.at_most(0.99)
    assert half is not None
    assert most_of is not None
    lines.append(f"  of {histogram.total}: half within {_ms(half)}, 99% within {_ms(most_of)}, the longest {_ms(histogram.max_s)}")
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
