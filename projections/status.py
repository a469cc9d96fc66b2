"""The status display: what waits for a person first, then what is open, then how much there is."""

from __future__ import annotations

from typing import Any

from eventlog import Recorded
from eventlog.projections import deliveries, effects
from eventlog.projections.deliveries import DELIVERIES
from eventlog.projections.delivery_display import thread_line, threads_by_urgency
from eventlog.projections.delivery_words import DeliveriesState, SyncIntent
from eventlog.projections.effects import EFFECTS, EffectsState, Intent
from eventlog.projections.intent import IntentState
from eventlog.projections.projection import EVERY_TYPE, Handler, Projection

__all__ = ["STATUS", "Status", "summary"]


class Status:
    """What `eventlog status` shows. `effects` and `deliveries` are the whole states of those folds."""

    __slots__ = ("deliveries", "effects", "events", "first_ns", "last_ns", "last_seq")

    def __init__(self, effects: EffectsState, deliveries: DeliveriesState) -> None:
        self.effects = effects
        self.deliveries = deliveries
        self.events = 0
        self.last_seq = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None

    @property
    def undecided(self) -> list[Intent]:
        """Intents that only a person can close, oldest first."""
        return [intent for intent in self.effects.open_intents() if intent.needs_decision]

    @property
    def unfinished(self) -> list[Intent]:
        """The other open intents, oldest first."""
        return [intent for intent in self.effects.open_intents() if not intent.needs_decision]

    @property
    def threads(self) -> list[dict[str, Any]]:
        """The threads that deliveries are about, blocking first."""
        return [thread_line(self.deliveries, name) for name in threads_by_urgency(self.deliveries)]

    @property
    def waiting(self) -> list[SyncIntent]:
        """The deliveries that are not acknowledged, those that only a person can send on first, then by age."""
        from sortedcontainers import SortedKeyList  # a display may pay for it; hooks and guards never come here

        waiting: list[SyncIntent] = list(SortedKeyList(self.deliveries.unresolved(), key=lambda one: (not one.state.loud, one.first_seq)))
        return waiting

    def __deepcopy__(self, memo: dict[int, Any]) -> Status:
        if self.effects is effects.NOTHING:
            return Status(EFFECTS.initial, DELIVERIES.initial)
        return _load(_pack(self))


def _seen(state: Status, event: Recorded) -> Status:
    state.events += 1
    state.last_seq = event.seq
    state.last_ns = event.time
    if state.first_ns is None:
        state.first_ns = event.time
    return state


def _with_effects(handler: Handler[EffectsState]) -> Handler[Status]:
    def handle(state: Status, event: Recorded) -> Status:
        state.effects = handler(state.effects, event)
        return _seen(state, event)

    return handle


def _with_deliveries(handler: Handler[DeliveriesState]) -> Handler[Status]:
    def handle(state: Status, event: Recorded) -> Status:
        state.deliveries = handler(state.deliveries, event)
        return _seen(state, event)

    return handle


def _waiting_line(intent: SyncIntent) -> dict[str, Any]:
    shown = {"id": intent.id, "state": intent.state.value, "base": intent.base, "triggers": list(intent.triggers)}
    return {**shown, "since_ns": intent.detected_ns, "reason": intent.reason, "version": intent.version}


def _line(intent: Intent) -> dict[str, Any]:
    return {
        "id": str(intent.id),
        "tool": intent.tool,
        "class": intent.effect_class.value,
        "state": intent.state.value,
        "classified": intent.classified.value if intent.classified is not None else None,
        "tries": intent.tries,
        "since_ns": intent.dispatched_ns or intent.pending_ns,
        "reason": intent.reason,
        "version": intent.version,
    }


def summary(state: Status) -> dict[str, Any]:
    """What a display needs, as a JSON object: it grows with what is open, not with what is over."""
    return {
        "undecided": [_line(intent) for intent in state.undecided],
        "unfinished": [_line(intent) for intent in state.unfinished],
        "intents": {name.value: state.effects.by_state[name] for name in IntentState},
        "threads": state.threads,
        "waiting": [_waiting_line(intent) for intent in state.waiting],
        "cancelled_attempts": sum(record.cancelled_seq is not None for record in state.effects.attempts.values()),
        "events": state.events,
        "last_seq": state.last_seq,
        "first_ns": state.first_ns,
        "last_ns": state.last_ns,
    }


def _dump_whole(state: Status) -> dict[str, Any]:
    return {**summary(state), "effects": EFFECTS.dump(state.effects), "deliveries": DELIVERIES.dump(state.deliveries)}


def _pack(state: Status) -> list[Any]:
    parts = EFFECTS.pack(state.effects), DELIVERIES.pack(state.deliveries)
    return [*parts, state.events, state.last_seq, state.first_ns, state.last_ns]


def _load(packed: list[Any]) -> Status:
    state = Status(EFFECTS.load(packed[0]), DELIVERIES.load(packed[1]))
    state.events, state.last_seq, state.first_ns, state.last_ns = packed[2:]
    return state


STATUS: Projection[Status] = Projection(
    "status",
    4,
    Status(effects.NOTHING, DeliveriesState()),
    {
        **{type_: _with_effects(handler) for type_, handler in effects.HANDLERS.items()},
        **{type_: _with_deliveries(handler) for type_, handler in deliveries.HANDLERS.items()},
        EVERY_TYPE: _seen,
    },
    _dump_whole,
    _load,
    pack=_pack,
)
