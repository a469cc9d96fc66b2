"""How many events of each type, and of each stream."""

from __future__ import annotations

from typing import Any, NamedTuple

from eventlog import Recorded
from eventlog.projections.projection import EVERY_TYPE, Projection

__all__ = ["COUNTS", "Counts"]


class Counts(NamedTuple):
    """`types` and `streams` map a name to its number of events, in the order in which they were met first."""

    types: dict[str, int]
    streams: dict[str, int]

    @property
    def events(self) -> int:
        return sum(self.types.values())


def _on_any(state: Counts, event: Recorded) -> Counts:
    types, streams = state
    types[event.type] = types.get(event.type, 0) + 1
    streams[event.stream] = streams.get(event.stream, 0) + 1
    return state


def _dump(state: Counts) -> dict[str, Any]:
    return {"events": state.events, "types": dict(state.types), "streams": dict(state.streams)}


def _load(dumped: dict[str, Any]) -> Counts:
    return Counts(dict(dumped["types"]), dict(dumped["streams"]))


def _merge(earlier: Counts, later: Counts) -> Counts:
    for into, more in zip(earlier, later, strict=True):
        for name, count in more.items():
            into[name] = into.get(name, 0) + count
    return earlier


COUNTS: Projection[Counts] = Projection("counts", 1, Counts({}, {}), {EVERY_TYPE: _on_any}, _dump, _load, _merge)
