"""The first floor: what a log says, as pure folds over its events (design section 4).

    from eventlog.projections import EFFECTS, View, fold

    state = fold(EFFECTS, log)               # once
    view = View(log, EFFECTS); view.state    # kept, caught up when asked

Each fold owns the event types that it folds: their names, fields and builders. Nothing here writes.
"""

from __future__ import annotations

from eventlog.light import TYPE_CHECKING, of

if __name__ != "eventlog.projections":  # a second copy of every class would break isinstance
    raise ImportError("import eventlog.projections, not projections")


if TYPE_CHECKING:
    from typing import Any

    from eventlog.projections.counts import COUNTS, Counts
    from eventlog.projections.deliveries import DELIVERIES
    from eventlog.projections.delivery_display import TIMELINE, AgentDisplay, ThreadStatus, agent_display, thread_status
    from eventlog.projections.delivery_words import DeliveriesState, SyncIntent, SyncState
    from eventlog.projections.effects import EFFECTS, AttemptRecord, EffectsState, ImpossibleTransition, Intent
    from eventlog.projections.folding import View, fold
    from eventlog.projections.intent import BadIntentId, EffectClass, IntentId, IntentState, Verdict
    from eventlog.projections.projection import EVERY_TYPE, FoldError, Projection
    from eventlog.projections.registry import BUILT_IN
    from eventlog.projections.snapshots import SnapshotWarning
    from eventlog.projections.status import STATUS, Status
    from eventlog.projections.transcript import TRANSCRIPT

__all__ = [
    "BUILT_IN",
    "COUNTS",
    "DELIVERIES",
    "EFFECTS",
    "EVERY_TYPE",
    "STATUS",
    "TIMELINE",
    "TRANSCRIPT",
    "AgentDisplay",
    "AttemptRecord",
    "BadIntentId",
    "Counts",
    "DeliveriesState",
    "EffectClass",
    "EffectsState",
    "FoldError",
    "ImpossibleTransition",
    "Intent",
    "IntentId",
    "IntentState",
    "Projection",
    "SnapshotWarning",
    "Status",
    "SyncIntent",
    "SyncState",
    "ThreadStatus",
    "Verdict",
    "View",
    "agent_display",
    "fold",
    "thread_status",
]

# Loaded when first asked for: a hook is a process that lives for a moment, and must not pay for what it does not use.
_HOMES = {
    "AttemptRecord": "eventlog.projections.effects",
    "BUILT_IN": "eventlog.projections.registry",
    "BadIntentId": "eventlog.projections.intent",
    "COUNTS": "eventlog.projections.counts",
    "Counts": "eventlog.projections.counts",
    "EFFECTS": "eventlog.projections.effects",
    "EVERY_TYPE": "eventlog.projections.projection",
    "EffectClass": "eventlog.projections.intent",
    "EffectsState": "eventlog.projections.effects",
    "FoldError": "eventlog.projections.projection",
    "ImpossibleTransition": "eventlog.projections.effects",
    "Intent": "eventlog.projections.effects",
    "IntentId": "eventlog.projections.intent",
    "IntentState": "eventlog.projections.intent",
    "Projection": "eventlog.projections.projection",
    "STATUS": "eventlog.projections.status",
    "SnapshotWarning": "eventlog.projections.snapshots",
    "Status": "eventlog.projections.status",
    "Verdict": "eventlog.projections.intent",
    "View": "eventlog.projections.folding",
    "fold": "eventlog.projections.folding",
    "DELIVERIES": "eventlog.projections.deliveries",
    "TRANSCRIPT": "eventlog.projections.transcript",
    "TIMELINE": "eventlog.projections.delivery_display",
    "ThreadStatus": "eventlog.projections.delivery_display",
    "AgentDisplay": "eventlog.projections.delivery_display",
    "agent_display": "eventlog.projections.delivery_display",
    "thread_status": "eventlog.projections.delivery_display",
    "DeliveriesState": "eventlog.projections.delivery_words",
    "SyncIntent": "eventlog.projections.delivery_words",
    "SyncState": "eventlog.projections.delivery_words",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = of(home, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
