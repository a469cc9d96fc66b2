"""The fold over intents: which are there, in which state, and what a decision about one needs to know.

The handlers are a state machine that refuses what cannot happen: a Committed without a Dispatched, a second try with the number of
the first, anything sent after its attempt was cancelled. Such an event means that a writer broke the protocol, and no decision
should rest on the log until a person has looked; the FoldError names its seq.
"""

from __future__ import annotations

from eventlog import Recorded
from eventlog.projections import effect_events as ev
from eventlog.projections.effects_state import NOTHING, AttemptRecord, EffectsState, Intent, dump_intent, dump_state, load_state, pack_state
from eventlog.projections.intent import IntentState, Verdict, intent_id
from eventlog.projections.projection import Handler, ImpossibleTransition, Projection

__all__ = ["EFFECTS", "HANDLERS", "NOTHING", "AttemptRecord", "EffectsState", "ImpossibleTransition", "Intent", "dump_intent"]

_P, _D, _C = IntentState.PENDING, IntentState.DISPATCHED, IntentState.COMMITTED
_I, _X, _A = IntentState.INDETERMINATE, IntentState.CANCELLED, IntentState.ABANDONED


def _get(state: EffectsState, event: Recorded, *allowed: IntentState) -> Intent:
    intent = state.intents.get(event.stream)
    if intent is None:
        raise ImpossibleTransition(f"{event.type} for {event.stream!r}, which has no effect.pending")
    if intent.state not in allowed:
        raise ImpossibleTransition(f"{event.type} for {event.stream}, which is {intent.state.value}")
    if intent.outcome_seq is not None and intent.state is not _C and event.type != ev.COMMITTED:
        raise ImpossibleTransition(f"{event.type} between the outcome and the effect.committed of {event.stream}")
    return intent


def _on_pending(state: EffectsState, event: Recorded) -> EffectsState:
    data = event.data
    text = event.stream
    id_ = intent_id(data["branch"], data["attempt"], data["step"])
    if id_.text != text:
        raise ImpossibleTransition(f"effect.pending of {id_} in the stream {text!r}")
    if text in state.intents:
        raise ImpossibleTransition(f"a second effect.pending for {text}")
    known = state.attempts.get(id_.attempt_text)
    if known is not None and known.cancelled_seq is not None:
        raise ImpossibleTransition(f"effect.pending for {text}, whose attempt was cancelled at {known.cancelled_seq}")
    intent = Intent(id_, event)
    state.intents[text] = intent
    state.open[event.seq] = text
    state.by_state[_P] += 1
    (known or state.record(id_.branch, id_.attempt)).intents.append(text)
    return state


def _on_dispatched(state: EffectsState, event: Recorded) -> EffectsState:
    data = event.data
    intent = _get(state, event, _P, _D)
    if intent.state is _D and not data.get("resend"):
        raise ImpossibleTransition(f"effect.dispatched for {event.stream}, which is dispatched already, without resend")
    if intent.waits_for_approval:
        raise ImpossibleTransition(f"effect.dispatched for {event.stream}, which nobody has approved")
    if data["try"] != intent.tries + 1:
        raise ImpossibleTransition(f"effect.dispatched for {event.stream} with try {data['try']} after try {intent.tries}")
    record = state.attempts[intent.id.attempt_text]
    if record.cancelled_seq is not None:
        raise ImpossibleTransition(f"effect.dispatched for {event.stream}, whose attempt was cancelled at {record.cancelled_seq}")
    intent.tries += 1
    intent.version = event.seq
    intent.dispatched_ns = event.time
    if intent.first_dispatched_ns is None:
        intent.first_dispatched_ns = event.time
    intent.resent = intent.state is _D
    intent.classified = intent.error = intent.retry_at_ns = intent.reason = None
    if intent.resource is not None:
        state.writers[intent.resource] = event.stream
    state.move(intent, _D)
    return state


def _on_evidence(state: EffectsState, event: Recorded) -> EffectsState:
    external_id = event.data["external_id"]
    intent = _get(state, event, _D, _I)
    intent.external_ids = [*(intent.external_ids or ()), external_id]
    intent.version = event.seq
    return state


def _on_not_sent(state: EffectsState, event: Recorded) -> EffectsState:
    data = event.data
    intent = _get(state, event, _D)
    if data["try"] != intent.tries:
        raise ImpossibleTransition(f"effect.not_sent for try {data['try']} of {event.stream}, which is at try {intent.tries}")
    if intent.resent:
        raise ImpossibleTransition(f"effect.not_sent for {event.stream}, of which an earlier try may have been sent")
    intent.error = data["error"]
    intent.retry_at_ns = data.get("retry_at_ns")
    _reopen(state, intent, event.seq)
    return state


def _reopen(state: EffectsState, intent: Intent, seq: int) -> None:
    """Known not to have happened: Pending again, or Cancelled when its attempt was."""
    intent.version = seq
    intent.classified = None
    cancelled = state.attempts[intent.id.attempt_text].cancelled_seq is not None
    state.move(intent, _X if cancelled else _P)


def _on_outcome(state: EffectsState, event: Recorded) -> EffectsState:
    data = event.data
    # From Pending only for what a person knows, or for a deadline that passed before anything left.
    intent = _get(state, event, _P, _D, _I)
    if data["source"] == "call" and intent.state is _P and data["kind"] != "error":
        raise ImpossibleTransition(f"effect.outcome of a call for {event.stream}, which was never dispatched")
    intent.outcome_seq = intent.version = event.seq
    intent.outcome_kind = data["kind"]
    intent.source = data["source"]
    return state


def _on_committed(state: EffectsState, event: Recorded) -> EffectsState:
    intent = _get(state, event, _P, _D, _I)
    if intent.outcome_seq is None or intent.outcome_seq != event.seq - 1:
        raise ImpossibleTransition(f"effect.committed for {event.stream} does not follow its outcome")
    intent.version = event.seq
    state.move(intent, _C)
    return state


def _on_late(state: EffectsState, event: Recorded) -> EffectsState:
    intent = _get(state, event, *IntentState)
    intent.late_seq = intent.version = event.seq
    return state


def _on_classified(state: EffectsState, event: Recorded) -> EffectsState:
    data = event.data
    verdict = Verdict(data["as"])
    intent = _get(state, event, _P, _D, _I)
    if verdict is not intent.verdict:
        raise ImpossibleTransition(f"effect.classified as {verdict.value!r} for {event.stream}, which is {intent.state.value}")
    intent.classified = verdict
    intent.version = event.seq
    if data.get("error") is not None:
        intent.error = data["error"]
    return state


_DECISIONS: dict[str, tuple[tuple[IntentState, ...], IntentState | None]] = {
    # decision: (states that it may come to, state that it leads to; None: see below)
    "happened": ((_P, _D, _I), None),  # outcome and committed follow in the same commit
    "not_happened": ((_D, _I), None),  # Pending again, or Cancelled
    "retry": ((_D, _I), None),  # the same, though it may have happened
    "abandon": ((_P, _D, _I), _A),
    "approve": ((_P,), None),  # it may be sent now
    "deny": ((_P,), None),  # an error outcome and committed follow in the same commit
    "indeterminate": ((_D,), _I),
    "dropped": ((_P, _D), _X),
    "superseded": ((_P,), _X),
}


def _on_resolved(state: EffectsState, event: Recorded) -> EffectsState:
    data = event.data
    decision: str = data["decision"]
    rule = _DECISIONS.get(decision)
    if rule is None:
        raise ImpossibleTransition(f"effect.resolved for {event.stream} with the unknown decision {decision!r}")
    intent = _get(state, event, *rule[0])
    intent.reason = data["reason"]
    intent.source = data["source"]
    if decision in ("not_happened", "retry"):
        _reopen(state, intent, event.seq)
        return state
    intent.version = event.seq
    if decision == "approve":
        intent.approved_seq = event.seq
    if rule[1] is not None:
        state.move(intent, rule[1])
    return state


def _on_attempt_cancelled(state: EffectsState, event: Recorded) -> EffectsState:
    data = event.data
    if f"{data['branch']}@{data['attempt']}" != event.stream:
        raise ImpossibleTransition(f"attempt.cancelled of {data['branch']}@{data['attempt']} in the stream {event.stream!r}")
    known = state.attempts.get(event.stream)
    if known is not None and known.cancelled_seq is not None:
        raise ImpossibleTransition(f"a second attempt.cancelled for {event.stream}")
    record = known or state.record(data["branch"], data["attempt"])
    record.cancelled_seq = event.seq
    record.reason = data.get("reason")
    for text in record.intents:
        intent = state.intents[text]
        if intent.state is _P:
            intent.version = event.seq
            state.move(intent, _X)
    return state


HANDLERS: dict[str, Handler[EffectsState]] = {
    ev.PENDING: _on_pending,
    ev.DISPATCHED: _on_dispatched,
    ev.EVIDENCE: _on_evidence,
    ev.NOT_SENT: _on_not_sent,
    ev.OUTCOME: _on_outcome,
    ev.COMMITTED: _on_committed,
    ev.LATE: _on_late,
    ev.CLASSIFIED: _on_classified,
    ev.RESOLVED: _on_resolved,
    ev.CANCELLED: _on_attempt_cancelled,
}

EFFECTS: Projection[EffectsState] = Projection("effects", 3, NOTHING, HANDLERS, dump_state, load_state, pack=pack_state)
