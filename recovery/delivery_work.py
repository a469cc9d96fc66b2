"""The life of a sync intent apart from its delivery: detected, coalesced, reconciled, given up, decided by a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from eventlog import Event
from eventlog.projections import delivery_events as ev
from eventlog.projections.delivery_words import DeliveriesState, SyncIntent, SyncState
from eventlog.recovery.delivery_words import Decided, Done, Draft, Facts, Refused

__all__ = ["SyncDecision", "coalesce", "detect", "materialize", "recovery_required", "resolve", "supersede", "topology_diverged"]

SyncDecision = Literal["retry", "drop"]
_EARLY = (SyncState.DETECTED, SyncState.RECONCILING)


def detect(state: DeliveriesState, thread: str, *, base: str, triggers: Sequence[str], facts: Facts) -> Decided[Done | Refused]:
    """The agent of `thread` must hear of these operations. They join the newest intent while nothing was prepared for it, else get one."""
    if not thread or not base or not triggers or not all(triggers):
        return Decided((), Refused("an intent needs a thread, a base and at least one operation that triggered it"))
    draft = Draft(state, thread, facts)
    open_ = [draft.state.intents[name] for name in draft.thread.open]
    new = [one for one in dict.fromkeys(triggers) if not any(one in intent.triggers for intent in open_)]
    newest = open_[-1] if open_ else None
    if newest is not None and newest.state in _EARLY:
        if not new and base == newest.base:
            return Decided((), Done(newest, note="known"))
        draft.emit(ev.coalesced(newest.id, base=base, triggers=new))
        return Decided(tuple(draft.events), Done(draft.state.intents[newest.id], note="coalesced"))
    if not new:
        return Decided((), Done(newest, note="known"))
    id_ = f"{thread}#{draft.thread.count + 1}"
    draft.emit(ev.detected(id_, thread=thread, base=base, triggers=new))
    return Decided(tuple(draft.events), Done(draft.state.intents[id_]))


def coalesce(state: DeliveriesState, intent: str, *, base: str, triggers: Sequence[str], facts: Facts) -> Decided[Done | Refused]:
    """Add operations to this intent and advance its base. Refused once its payload was prepared: later work gets a new intent."""
    known = state.intents.get(intent)
    if known is None:
        return Decided((), _unknown(intent))
    if known.state not in _EARLY:
        return Decided((), Refused(f"{intent} is {known.state.value}: later work gets an intent of its own", "detect it"))
    new = [one for one in dict.fromkeys(triggers) if one not in known.triggers]
    if not new and base == known.base:
        return Decided((), Done(known, note="known"))
    return _emit(state, known, facts, ev.coalesced(intent, base=base, triggers=new))


def materialize(
    state: DeliveriesState,
    intent: str,
    *,
    base: str,
    operation: str,
    commit: str,
    payload: str,
    anchor: str,
    prepared_ns: int,
    facts: Facts,
) -> Decided[Done | Refused]:
    """Reconciliation succeeded: store all of its result at once. `base` is the one that it was made for; if it moved, reconcile again."""
    known = state.intents.get(intent)
    if known is None:
        return Decided((), _unknown(intent))
    if known.sha256 is not None and known.sha256 == ev.digest(payload) and known.operation == operation and known.commit == commit:
        return Decided((), Done(known, note="materialized before"))
    if known.state is not SyncState.RECONCILING or state.threads[known.thread].active != intent:
        return Decided((), Refused(f"{intent} is {known.state.value}: only an intent that is being reconciled gets a payload"))
    if known.base != base:
        return Decided((), Refused(f"the base of {intent} moved from {base} to {known.base}", "reconcile again", moved=True))
    if not (operation and commit and payload and anchor and prepared_ns > 0):
        return Decided((), Refused(f"{intent}: operation, commit, payload, anchor and preparation time are all needed"))
    fields = {"base": base, "operation": operation, "commit": commit, "payload": payload, "anchor": anchor}
    return _emit(state, known, facts, ev.materialized(intent, prepared_ns=prepared_ns, **fields))


def recovery_required(state: DeliveriesState, intent: str, reason: str, facts: Facts, copy: str | None = None) -> Decided[Done | Refused]:
    """The reconciler cannot go on without losing something. `copy`: where it saved the edits."""
    return _give_up(state, intent, ev.recovery_required(intent, reason, copy), facts)


def topology_diverged(state: DeliveriesState, intent: str, reason: str, facts: Facts) -> Decided[Done | Refused]:
    """The workspaces are not what the intent took for granted: no common history, another parent."""
    return _give_up(state, intent, ev.topology_diverged(intent, reason), facts)


def _give_up(state: DeliveriesState, intent: str, event: Event, facts: Facts) -> Decided[Done | Refused]:
    known = state.intents.get(intent)
    if known is None:
        return Decided((), _unknown(intent))
    if known.state.loud:
        return Decided((), Done(known, note=f"{known.state.value} before"))
    if known.state not in _EARLY or state.threads[known.thread].active != intent:
        return Decided((), Refused(f"{intent} is {known.state.value}, and cannot become {event.type}"))
    return _emit(state, known, facts, event)


def supersede(state: DeliveriesState, intent: str, reason: str, facts: Facts) -> Decided[Done | Refused]:
    """What it was about is moot. Only before materialization: what was prepared may have been read, or may still be needed."""
    known = state.intents.get(intent)
    if known is None:
        return Decided((), _unknown(intent))
    if known.state is SyncState.SUPERSEDED:
        return Decided((), Done(known, note="superseded before"))
    if known.state not in _EARLY:
        return Decided(
            (), Refused(f"{intent} is {known.state.value}", f"a person may drop it: eventlog deliveries resolve LOG {intent} --drop")
        )
    return _emit(state, known, facts, ev.superseded(intent, reason))


def resolve(
    state: DeliveriesState, intent: str, decision: SyncDecision, *, reason: str, actor: str, seen: int | None, facts: Facts
) -> Decided[Done | Refused]:
    """A person's decision, the only way out of a loud state. `retry`: again, with new attempts. `drop`: nobody has to hear of it.

    `seen`: the version that it was decided on; refused if the intent has moved. None of this is an acknowledgement.
    """
    known = state.intents.get(intent)
    if known is None:
        return Decided((), _unknown(intent))
    if not reason.strip() or not actor.strip():
        return Decided((), Refused(f"{intent}: a decision needs an actor and a reason; whoever reads this log later was not there"))
    if seen is not None and seen != known.version:
        return Decided((), Refused(f"{intent} is at version {known.version} now, and was at {seen} when you looked", "look again"))
    if known.state.resolved or (decision == "retry" and not known.state.loud):
        return Decided((), Refused(f"{intent} is {known.state.value}, where {decision} decides nothing"))
    return _emit(state, known, facts, ev.resolved(intent, decision, reason=reason, actor=actor, seen=known.version))


def _emit(state: DeliveriesState, known: SyncIntent, facts: Facts, event: Event) -> Decided[Done | Refused]:
    draft = Draft(state, known.thread, facts)
    draft.emit(event)
    return Decided((event,), Done(draft.state.intents[known.id]))


def _unknown(intent: str) -> Refused:
    return Refused(f"there is no intent {intent!r}", "see: eventlog deliveries list LOG")
