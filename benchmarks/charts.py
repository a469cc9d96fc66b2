"""Which races are drawn: results in, SVG files out. Pure; benchmarks/svg.py draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.report import syncs
from benchmarks.svg import LIMIT, OURS, PEER, Bar, Group, chart


class Plan(NamedTuple):
    """A chart of one metric. `races` are (start of the race's title, sides to show, or none for all)."""

    name: str
    title: str
    metric: str
    unit: str
    races: Sequence[tuple[str, Sequence[str]]]


_COMMITS = (("commit of one event, one thread", ()), ("commit of one event, many threads", ()), ("commit of one event, 8 processes", ()))

PLANS = (
    Plan("commits", "Durable commits a second", "rate", "200 bytes a commit, on disk when acknowledged; more is better", _COMMITS),
    Plan("waits", "How long one commit in a hundred waits", "p99_ms", "p99 of a durable commit in ms; less is better", _COMMITS),
    Plan("effects", "Guarded effects a second", "rate", "a tool that does nothing, and the records around it; more is better",
         (("guarded effect", ()),)),
    Plan("folds", "Events folded a second", "rate", "files in the page cache; more is better",
         (("full fold, commits of 1", ()), ("full fold, commits of 100", ()))),
    Plan("sizes", "What must not grow with the log", "ms", "milliseconds; less is better",
         (("open for writing", ()), ("open read-only", ()), ("status, fold,", ()), ("hook decision,", ()))),
)  # fmt: skip

_LIMITS = ("pwrite+fdatasync", "3 x (pwrite", "orjson.loads")
_OURS = ("eventlog", "guarded effect", "fold of counts", "log.read", "selective fold", "full fold", "hook", "snapshot")


def _colour(side: str, metric: str) -> str:
    if side.startswith(_LIMITS):
        return LIMIT
    return OURS if side.startswith(_OURS) or metric == "ms" else PEER


def _bars(race: Mapping[str, Any], metric: str, wanted: Sequence[str]) -> list[Bar]:
    bars = []
    for side in race["sides"]:
        spread = side["metrics"].get(metric)
        if spread is None or (wanted and side["name"] not in wanted):
            continue
        counted = side["syncs_per_operation"]
        note = "" if counted is None else f"{syncs(counted)} {'sync' if counted == 1 else 'syncs'}"
        bars.append(Bar(side["name"], spread["median"], spread["min"], spread["max"], _colour(side["name"], metric), note))
    return bars if metric == "ms" else sorted(bars, key=lambda bar: bar.value, reverse=metric == "rate")


def charts(found: Mapping[str, Any]) -> dict[str, str]:
    """File name -> SVG, of all plans for which something was measured."""
    drawn = {}
    for plan in PLANS:
        groups = []
        for title, wanted in plan.races:
            # The title to the letter, or with a word behind it: "full fold, commits of 1" is not "full fold, commits of 100".
            for race in found["races"]:
                if (race["title"] == title or race["title"].startswith(f"{title} ")) and (bars := _bars(race, plan.metric, wanted)):
                    groups.append(Group(race["title"], bars))
        if groups:
            drawn[f"{plan.name}.svg"] = chart(plan.title, plan.unit, groups)
    return drawn
