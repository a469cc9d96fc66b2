"""The fold over sync intents: what each agent has to hear, whether it is prepared, how its delivery is to be proved, and whether it was.

Invalid combinations cannot be built: the handlers check each event against the state that it meets, so an intent that claims a payload
that it does not have, an acknowledgement without its evidence, or a second live incarnation stops the fold with the seq that would make it.
"""

from __future__ import annotations

from eventlog import Recorded
from eventlog.light import TYPE_CHECKING
from eventlog.projections import delivery_events as ev
from eventlog.projections import delivery_presence
from eventlog.projections.delivery_presence import live_incarnation, thread_of
from eventlog.projections.delivery_words import (
    MAIN,
    Batch,
    Chain,
    DeliveriesState,
    Incarnation,
    Presence,
    RestartStartup,
    SoftBatch,
    SyncIntent,
    SyncState,
    Thread,
    number_of,
)
from eventlog.projections.projection import Handler, ImpossibleTransition, Projection
from eventlog.values import asdict, replace

if TYPE_CHECKING:
    from typing import Any

__all__ = ["DELIVERIES", "HANDLERS", "dump_intent"]

_S = SyncState
_EARLY = (_S.DETECTED, _S.RECONCILING)
_PREPARED = (_S.MATERIALIZED, _S.DELIVERED)


def _get(state: DeliveriesState, event: Recorded, *allowed: SyncState, active: bool = True) -> SyncIntent:
    intent = state.intents.get(event.stream)
    if intent is None:
        raise ImpossibleTransition(f"{event.type} for {event.stream!r}, which was never detected")
    if intent.state not in allowed:
        raise ImpossibleTransition(f"{event.type} for {intent.id}, which is {intent.state.value}")
    if active and state.threads[intent.thread].active != intent.id:
        raise ImpossibleTransition(f"{event.type} for {intent.id} before {state.threads[intent.thread].active}, which is older")
    return intent


def _put(state: DeliveriesState, intent: SyncIntent, event: Recorded, /, **changes: Any) -> DeliveriesState:
    state.intents[intent.id] = replace(intent, version=event.seq, **changes)
    state.seq = event.seq
    return state


def _end(state: DeliveriesState, intent: SyncIntent) -> None:
    """A resolved intent leaves the order, and the batch that waited for it is over."""
    thread = state.threads[intent.thread]
    thread.open.remove(intent.id)
    if thread.minted is not None:  # a replacement that nobody needs any more
        minted = state.incarnations[thread.minted]
        state.incarnations[minted.id] = replace(minted, presence=Presence.RETIRED, reason="its intent is resolved")
        thread.minted = None
    for chain in thread.chains.values():
        if chain.open is not None and chain.open.intent == intent.id:
            chain.close()


def _on_detected(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    data = event.data
    name, number = number_of(event.stream)
    if name != data["thread"]:
        raise ImpossibleTransition(f"sync.detected of {event.stream} for the thread {data['thread']!r}")
    if not data["triggers"] or not data["base"]:
        raise ImpossibleTransition(f"sync.detected of {event.stream} without an operation that triggered it, or a base")
    thread = thread_of(state, name)
    if number != thread.count + 1:
        raise ImpossibleTransition(f"sync.detected of {event.stream} after {thread.count} intents of that thread")
    thread.count = number
    thread.open.append(event.stream)
    intent = SyncIntent(event.stream, name, _S.DETECTED, data["base"], tuple(data["triggers"]), event.time, event.seq, event.seq)
    state.intents[event.stream] = intent
    state.seq = event.seq
    return state


def _on_coalesced(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    intent = _get(state, event, *_EARLY, active=False)
    new = tuple(one for one in event.data["triggers"] if one not in intent.triggers)
    return _put(state, intent, event, base=event.data["base"], triggers=(*intent.triggers, *new))


def _on_materialized(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    data = event.data
    intent = _get(state, event, _S.RECONCILING)
    if data["base"] != intent.base:
        raise ImpossibleTransition(f"sync.materialized for {intent.id} on {data['base']!r}, while its base is {intent.base!r}")
    fields = {name: data.get(name) for name in ("operation", "commit", "payload", "sha256", "anchor", "prepared_ns")}
    missing = [name for name, value in fields.items() if not value]
    if missing:
        raise ImpossibleTransition(f"sync.materialized for {intent.id} without {', '.join(missing)}")
    if ev.digest(data["payload"]) != data["sha256"]:
        raise ImpossibleTransition(f"sync.materialized for {intent.id}: the payload is not the one that sha256 says")
    return _put(state, intent, event, state=_S.MATERIALIZED, **fields)


def _on_recovery_required(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    intent = _get(state, event, *_EARLY, *_PREPARED)
    changes = {"state": _S.RECOVERY_REQUIRED, "reason": event.data["reason"], "saved_copy": event.data.get("copy")}
    return _put(state, intent, event, proof=None, **changes)


def _on_topology_diverged(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    intent = _get(state, event, *_EARLY)
    return _put(state, intent, event, state=_S.TOPOLOGY_DIVERGED, reason=event.data["reason"], proof=None)


def _on_superseded(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    intent = _get(state, event, *_EARLY, active=False)
    _end(state, intent)
    return _put(state, intent, event, state=_S.SUPERSEDED, reason=event.data["reason"], proof=None)


def _on_resolved(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    data = event.data
    everything = [one for one in _S if not one.resolved]
    intent = _get(state, event, *everything, active=False)
    _clear_marker(state, intent)
    if data["decision"] == "drop":
        _end(state, intent)
        return _put(state, intent, event, state=_S.SUPERSEDED, reason=data["reason"], proof=None, payload=None)
    if data["decision"] != "retry" or not intent.state.loud:
        raise ImpossibleTransition(f"sync.resolved of {intent.id}, which is {intent.state.value}, with {data['decision']!r}")
    # What was prepared stays what it is, and is delivered anew: nobody said that it was read.
    again = _S.MATERIALIZED if intent.payload is not None else _S.DETECTED
    for chain in state.threads[intent.thread].chains.values():
        if chain.open is not None and chain.open.intent == intent.id:
            chain.close()
    return _put(state, intent, event, state=again, reason=data["reason"], redeliveries=0, restarts=0, proof=None)


def _clear_marker(state: DeliveriesState, intent: SyncIntent) -> None:
    live = state.threads[intent.thread].live
    if live is not None and state.incarnations[live].delivered_intent_id == intent.id:
        state.incarnations[live] = replace(state.incarnations[live], delivered_intent_id=None)


def _on_blocked(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    data = event.data
    intent = _get(state, event, *_EARLY, *_PREPARED)
    holder = live_incarnation(state, event, data["incarnation"])
    if holder.thread != intent.thread:
        raise ImpossibleTransition(f"delivery.blocked of {intent.id} by an incarnation of the thread {holder.thread!r}")
    if isinstance(intent.proof, RestartStartup) and (state.threads[intent.thread].minted or intent.proof.incarnation == holder.id):
        raise ImpossibleTransition(f"delivery.blocked of {intent.id}, whose startup attempt {intent.proof.attempt} was not retired")
    if isinstance(intent.proof, SoftBatch) and intent.state in _PREPARED:
        if intent.proof.incarnation != holder.id:
            raise ImpossibleTransition(
                f"delivery.blocked of {intent.id}, which is bound to {intent.proof.incarnation!r}, without a restart"
            )
        if intent.proof.chain == MAIN and intent.proof.completed_ns is None:
            raise ImpossibleTransition(f"delivery.blocked of {intent.id} in another batch before batch {intent.proof.batch} is over")
        if intent.proof.proves:
            raise ImpossibleTransition(f"delivery.blocked of {intent.id}, which batch {intent.proof.batch} has delivered")
    chain = state.threads[intent.thread].chain(data["chain"])
    if chain.open is not None or data["batch"] != chain.batch + 1 or data["turn"] != chain.turn:
        raise ImpossibleTransition(
            f"delivery.blocked of {intent.id} by batch {data['batch']} of turn {data['turn']}, which is not the next"
        )
    if data["redeliveries"] not in (intent.redeliveries, intent.redeliveries + 1):
        raise ImpossibleTransition(f"delivery.blocked of {intent.id} with {data['redeliveries']} redeliveries after {intent.redeliveries}")
    proof = SoftBatch(holder.id, data["chain"], data["turn"], data["batch"], event.time, data.get("prompt"))
    to = _S.RECONCILING if intent.state in _EARLY else intent.state
    return _put(state, intent, event, state=to, proof=proof, redeliveries=data["redeliveries"])


def _soft(intent: SyncIntent, event: Recorded) -> SoftBatch:
    proof, data = intent.proof, event.data
    if not isinstance(proof, SoftBatch) or (proof.incarnation, proof.batch) != (data["incarnation"], data["batch"]):
        raise ImpossibleTransition(f"{event.type} for {intent.id} names a batch that it is not bound to")
    return proof


def _on_marked(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    intent = _get(state, event, *_PREPARED)
    holder = live_incarnation(state, event, event.data["incarnation"])
    if _soft(intent, event).turn != event.data["turn"]:
        raise ImpossibleTransition(f"delivery.marked for {intent.id} names another turn")
    state.incarnations[holder.id] = replace(holder, delivered_intent_id=intent.id)
    first = event.time if intent.delivered_ns is None else intent.delivered_ns
    return _put(state, intent, event, state=_S.DELIVERED, delivered_ns=first)


def _on_completed(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    intent = _get(state, event, *_PREPARED)
    live_incarnation(state, event, event.data["incarnation"])
    proof = _soft(intent, event)
    seen = event.data["seen"]
    if proof.completed_ns is not None:
        raise ImpossibleTransition(f"a second delivery.completed of batch {proof.batch} for {intent.id}")
    if not set(event.data["calls"]) & set(proof.calls) or not set(seen or ()) <= set(proof.calls):
        raise ImpossibleTransition(f"delivery.completed for {intent.id} with calls that batch {proof.batch} did not block")
    return _put(state, intent, event, proof=replace(proof, completed_ns=event.time, seen=None if seen is None else tuple(seen)))


def _on_doubted(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    intent = _get(state, event, *_PREPARED)
    return _put(state, intent, event, proof=replace(_soft(intent, event), doubted=True))


def _on_restart_bound(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    data = event.data
    intent = _get(state, event, *_PREPARED)
    thread = state.threads[intent.thread]
    if thread.live is not None or thread.minted is not None:
        raise ImpossibleTransition(f"delivery.restart_bound for {intent.id} while {thread.live or thread.minted!r} was not retired")
    if data["incarnation"] in state.incarnations or data["startup_id"] in state.startups:
        raise ImpossibleTransition(f"delivery.restart_bound for {intent.id} with an id that was used before")
    if data["attempt"] != intent.restarts + 1:
        raise ImpossibleTransition(f"delivery.restart_bound for {intent.id} as attempt {data['attempt']} after {intent.restarts}")
    state.incarnations[data["incarnation"]] = Incarnation(data["incarnation"], intent.thread, Presence.MINTED)
    state.startups[data["startup_id"]] = intent.id
    thread.minted = data["incarnation"]
    proof = RestartStartup(data["incarnation"], data["startup_id"], data["attempt"], event.time)
    return _put(state, intent, event, proof=proof, restarts=data["attempt"], redeliveries=0)


def _on_accepted(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    data = event.data
    intent = _get(state, event, *_PREPARED)
    holder = live_incarnation(state, event, data["incarnation"])
    proof = intent.proof
    if not isinstance(proof, RestartStartup) or (proof.incarnation, proof.startup_id) != (holder.id, data["startup_id"]):
        raise ImpossibleTransition(f"delivery.accepted for {intent.id} with a startup id that it is not bound to")
    if proof.accepted_ns is not None:
        raise ImpossibleTransition(f"delivery.accepted for {intent.id} twice: a startup id is good for one process")
    state.incarnations[holder.id] = replace(holder, delivered_intent_id=intent.id)
    proof = replace(proof, accepted_ns=event.time, prompt=data.get("prompt"))
    first = event.time if intent.delivered_ns is None else intent.delivered_ns
    return _put(state, intent, event, state=_S.DELIVERED, delivered_ns=first, proof=proof)


def _on_acknowledged(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    data = event.data
    intent = _get(state, event, *_PREPARED)
    holder = live_incarnation(state, event, data["incarnation"])
    proof = intent.proof
    if proof is None or proof.incarnation != holder.id:
        raise ImpossibleTransition(f"delivery.acknowledged for {intent.id} by an incarnation that it is not bound to")
    recovered = intent.state is _S.MATERIALIZED
    delivered_ns = intent.delivered_ns
    if isinstance(proof, SoftBatch):
        if not proof.proves or data["turn"] <= proof.turn or data["evidence"] != "later_turn":
            raise ImpossibleTransition(f"delivery.acknowledged for {intent.id} without a completed batch that carried it and a later turn")
        if data.get("call") in proof.calls:
            raise ImpossibleTransition(f"delivery.acknowledged for {intent.id} by {data['call']!r}, a call of the blocked batch itself")
        if delivered_ns is None:
            delivered_ns = proof.completed_ns
    elif proof.accepted_ns is None or data["evidence"] != "startup_echo":
        raise ImpossibleTransition(f"delivery.acknowledged for {intent.id} without an accepted startup")
    if data["recovered"] != recovered or data["delivered_ns"] != delivered_ns:
        raise ImpossibleTransition(f"delivery.acknowledged for {intent.id} with another time of delivery than its proof has")
    state.incarnations[holder.id] = replace(holder, delivered_intent_id=None)
    _end(state, intent)
    changes = {"delivered_ns": delivered_ns, "acknowledged_ns": event.time, "evidence": data["evidence"], "recovered": recovered}
    return _put(state, intent, event, state=_S.ACKNOWLEDGED, proof=None, payload=None, reason=None, **changes)


HANDLERS: dict[str, Handler[DeliveriesState]] = {
    ev.DETECTED: _on_detected,
    ev.COALESCED: _on_coalesced,
    ev.MATERIALIZED: _on_materialized,
    ev.RECOVERY_REQUIRED: _on_recovery_required,
    ev.TOPOLOGY_DIVERGED: _on_topology_diverged,
    ev.RESOLVED: _on_resolved,
    ev.SUPERSEDED: _on_superseded,
    ev.BLOCKED: _on_blocked,
    ev.MARKED: _on_marked,
    ev.COMPLETED: _on_completed,
    ev.DOUBTED: _on_doubted,
    ev.RESTART_BOUND: _on_restart_bound,
    ev.ACCEPTED: _on_accepted,
    ev.ACKNOWLEDGED: _on_acknowledged,
    **delivery_presence.HANDLERS,
}


def dump_intent(intent: SyncIntent) -> dict[str, Any]:
    """An intent as a JSON object. `proof` is null or has a `mode`: SoftBatch or RestartStartup."""
    shown = asdict(intent)
    shown["state"] = intent.state.value
    if intent.proof is not None:
        shown["proof"] = {"mode": type(intent.proof).__name__, **asdict(intent.proof)}
    return shown


def _load_intent(shown: dict[str, Any]) -> SyncIntent:
    fields = {**shown, "state": SyncState(shown["state"]), "triggers": tuple(shown["triggers"])}
    if shown["proof"] is not None:
        proof = dict(shown["proof"])
        if proof.pop("mode") == "SoftBatch":
            proof["calls"] = tuple(proof["calls"])
            proof["seen"] = None if proof["seen"] is None else tuple(proof["seen"])
            fields["proof"] = SoftBatch(**proof)
        else:
            fields["proof"] = RestartStartup(**proof)
    return SyncIntent(**fields)


def _dump(state: DeliveriesState) -> dict[str, Any]:
    return {
        "seq": state.seq,
        "intents": [dump_intent(intent) for intent in state.intents.values()],
        "threads": [asdict(thread) for thread in state.threads.values()],
        "incarnations": [
            {**asdict(one), "presence": one.presence.value, "capabilities": sorted(one.capabilities)} for one in state.incarnations.values()
        ],
        "startups": dict(state.startups),
    }


def _load(dumped: dict[str, Any]) -> DeliveriesState:
    state = DeliveriesState(startups=dict(dumped["startups"]), seq=dumped["seq"])
    for shown in dumped["intents"]:
        state.intents[shown["id"]] = _load_intent(shown)
    for shown in dumped["incarnations"]:
        fields = {**shown, "presence": Presence(shown["presence"]), "capabilities": frozenset(shown["capabilities"])}
        state.incarnations[shown["id"]] = Incarnation(**fields)
    for shown in dumped["threads"]:
        state.threads[shown["name"]] = Thread(**{**shown, "chains": {name: _load_chain(one) for name, one in shown["chains"].items()}})
    return state


def _load_chain(shown: dict[str, Any]) -> Chain:
    batch = Batch(**shown["open"]) if shown["open"] is not None else None
    closed = {call: (known[0], known[1]) for call, known in shown["closed"].items()}
    return Chain(**{**shown, "open": batch, "closed": closed})


DELIVERIES: Projection[DeliveriesState] = Projection("deliveries", 2, DeliveriesState(), HANDLERS, _dump, _load)
