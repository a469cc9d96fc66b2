"""The transcript as a fold: at most one row for each sync intent, `dedup_key` `cascade:<intent_id>` (seed 003).

It rests on the durable events alone, and no delivery rests on it: when this fold fails, deliveries and acknowledgements go on.
"""

from __future__ import annotations

from typing import Any

from eventlog import Recorded
from eventlog.projections import delivery_events as ev
from eventlog.projections.projection import Projection

__all__ = ["TRANSCRIPT", "Row", "Transcript"]

Row = dict[str, Any]
Transcript = dict[str, dict[str, Any]]
"""`prepared`: intent -> the outbox that was prepared for it; `rows`: dedup_key -> row, in the order of their delivery."""


def _prepared(state: Transcript, event: Recorded) -> Transcript:
    data = event.data
    row = {"payload": data["payload"], "sha256": data["sha256"], "anchor": data["anchor"], "commit": data["commit"]}
    state["prepared"].setdefault(event.stream, row)
    return state


def _delivered(state: Transcript, event: Recorded) -> Transcript:
    key = f"cascade:{event.stream}"
    row = state["prepared"].get(event.stream)
    if row is None or key in state["rows"]:  # delivered again, or a row that is there: once is what the reader wants
        return state
    delivered_ns = event.data.get("delivered_ns", event.time)
    state["rows"][key] = {"dedup_key": key, "intent": event.stream, "seq": event.seq, "delivered_ns": delivered_ns, **row}
    del state["prepared"][event.stream]
    return state


TRANSCRIPT: Projection[Transcript] = Projection(
    "transcript",
    1,
    {"prepared": {}, "rows": {}},
    {ev.MATERIALIZED: _prepared, ev.MARKED: _delivered, ev.ACCEPTED: _delivered, ev.ACKNOWLEDGED: _delivered},
)
