"""Who is there and what it is doing: the handlers of the incarnation, batch and turn events of the delivery protocol."""

from __future__ import annotations

from eventlog import Recorded
from eventlog.light import TYPE_CHECKING
from eventlog.projections import delivery_events as ev
from eventlog.projections.delivery_words import MAIN, Batch, Chain, DeliveriesState, Incarnation, Presence, SoftBatch, SyncState, Thread
from eventlog.projections.projection import Handler, ImpossibleTransition
from eventlog.values import replace

if TYPE_CHECKING:
    from typing import Any

__all__ = ["HANDLERS", "live_incarnation", "thread_of"]


def thread_of(state: DeliveriesState, name: str) -> Thread:
    found = state.threads.get(name)
    return found if found is not None else state.threads.setdefault(name, Thread(name))


def live_incarnation(state: DeliveriesState, event: Recorded, id_: str) -> Incarnation:
    """The incarnation that an event claims to be about, if it is the live one of its thread."""
    found = state.incarnations.get(id_)
    if found is None or found.presence is not Presence.LIVE:
        raise ImpossibleTransition(f"{event.type} by incarnation {id_!r}, which is {found.presence.value if found else 'unknown'}")
    return found


def _on_started(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    data = event.data
    id_, process = data["incarnation"], data["process"]
    if not process:
        raise ImpossibleTransition(f"incarnation.started of {id_!r} without a process")
    thread = thread_of(state, event.stream)
    if thread.live is not None:
        raise ImpossibleTransition(f"incarnation.started of {id_!r} while {thread.live!r} is live: a thread has one live incarnation")
    known = state.incarnations.get(id_)
    if known is not None and (known.presence is not Presence.MINTED or known.thread != event.stream):
        raise ImpossibleTransition(f"incarnation.started of {id_!r}, an id that was used before")
    if known is None and thread.minted is not None:
        raise ImpossibleTransition(f"incarnation.started of {id_!r} while the minted {thread.minted!r} waits for its process")
    before = state.incarnations.get(thread.processes.get(process, ""))
    if before is not None and before.barred:
        raise ImpossibleTransition(f"incarnation.started by the process {process!r}, which was barred with {before.id!r}")
    capabilities = frozenset(data["capabilities"])
    state.incarnations[id_] = Incarnation(id_, event.stream, Presence.LIVE, process, data.get("session"), capabilities)
    thread.live, thread.minted = id_, None
    thread.processes[process] = id_
    thread.chains = {}
    state.seq = event.seq
    return state


def _on_session(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    known = live_incarnation(state, event, event.data["incarnation"])
    if known.thread != event.stream:
        raise ImpossibleTransition(f"incarnation.session of {known.id!r}, which is of the thread {known.thread!r}")
    state.incarnations[known.id] = replace(known, session=event.data["session"])
    state.seq = event.seq
    return state


def _on_retired(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    data = event.data
    known = state.incarnations.get(data["incarnation"])
    if known is None or known.presence is Presence.RETIRED or known.thread != event.stream:
        raise ImpossibleTransition(f"incarnation.retired of {data['incarnation']!r}, which is not there to be retired")
    thread = thread_of(state, event.stream)
    changes: dict[str, Any] = {
        "presence": Presence.RETIRED,
        "reason": data["reason"],
        "barred": data["barred"],
        "delivered_intent_id": None,
    }
    state.incarnations[known.id] = replace(known, **changes)
    if thread.live == known.id:
        thread.live = None
        thread.chains = {}
    if thread.minted == known.id:
        thread.minted = None
    _unbind(state, thread)
    state.seq = event.seq
    return state


def _unbind(state: DeliveriesState, thread: Thread) -> None:
    """Nothing was delivered to a batch that is over before the payload was there: the next batch binds the intent."""
    active = state.active(thread.name)
    if active is None or active.state is not SyncState.RECONCILING or not isinstance(active.proof, SoftBatch):
        return
    chain = thread.chains.get(active.proof.chain) if thread.live == active.proof.incarnation else None
    if chain is None or chain.open is None or chain.open.number != active.proof.batch:
        state.intents[active.id] = replace(active, proof=None)


def _chain(state: DeliveriesState, event: Recorded) -> tuple[Thread, Chain]:
    thread = thread_of(state, event.stream)
    if thread.live != event.data["incarnation"]:
        raise ImpossibleTransition(f"{event.type} by incarnation {event.data['incarnation']!r}, while {thread.live!r} is live")
    return thread, thread.chain(event.data["chain"])


def _on_admitted(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    data = event.data
    thread = state.threads.get(event.stream)
    if thread is None or thread.live != data["incarnation"]:
        raise ImpossibleTransition(f"batch.admitted by incarnation {data['incarnation']!r}, which is not live")
    chain = thread.chain(data["chain"])
    number, decision, call = data["batch"], data["decision"], data["call"]
    batch = chain.open
    if data["turn"] != chain.turn:
        raise ImpossibleTransition(f"batch.admitted in turn {data['turn']} of a chain that is in turn {chain.turn}")
    if call in chain.closed:
        raise ImpossibleTransition(f"batch.admitted of the call {call!r}, which belongs to a closed batch")
    if batch is None:
        if number != chain.batch + 1:
            raise ImpossibleTransition(f"batch.admitted opens batch {number} after batch {chain.batch}")
        if decision == "pass" and thread.open:
            raise ImpossibleTransition(f"batch.admitted lets batch {number} pass while {thread.open[0]} is unresolved")
        if decision not in ("pass", "block"):
            raise ImpossibleTransition(f"batch.admitted with the decision {decision!r}")
        batch = Batch(number, decision, data.get("intent"), data.get("prompt"))
    elif number != batch.number or decision != batch.decision or data.get("intent") != batch.intent:
        raise ImpossibleTransition(
            f"batch.admitted as {decision} in batch {number}, while batch {batch.number} is open as {batch.decision}"
        )
    if decision == "block":
        _blocked_call(state, thread, data)
    chain.open, chain.batch, chain.idle = batch, number, False
    if chain.prompt is None:
        chain.prompt = data.get("prompt")
    batch.calls.setdefault(call, False)
    state.seq = event.seq
    return state


def _blocked_call(state: DeliveriesState, thread: Thread, data: dict[str, Any]) -> None:
    intent = state.intents.get(data.get("intent", ""))
    proof = intent.proof if intent is not None else None
    if intent is None or intent.id != thread.active or not isinstance(proof, SoftBatch):
        raise ImpossibleTransition(f"batch.admitted blocks {data['call']!r} for {data.get('intent')!r}, which no batch is bound to")
    if (proof.incarnation, proof.chain, proof.batch) != (data["incarnation"], data["chain"], data["batch"]):
        raise ImpossibleTransition(f"batch.admitted blocks {data['call']!r} in a batch that {intent.id} is not bound to")
    if data["call"] not in proof.calls:
        state.intents[intent.id] = replace(intent, proof=replace(proof, calls=(*proof.calls, data["call"])))


def _on_returned(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    _, chain = _chain(state, event)
    batch = chain.open
    if batch is None or event.data["call"] not in batch.calls:
        raise ImpossibleTransition(f"batch.returned of {event.data['call']!r}, which is in no open batch")
    batch.calls[event.data["call"]] = True
    # A lost batch boundary must not let later calls pass for ever. This is no evidence of a later turn: `turn` stays.
    if batch.decision == "pass" and all(batch.calls.values()):
        chain.open = None
    state.seq = event.seq
    return state


def _on_completed(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    thread, chain = _chain(state, event)
    chain.close(tuple(event.data["calls"]))
    chain.turn += 1
    _unbind(state, thread)
    state.seq = event.seq
    return state


def _on_prompted(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    thread, chain = _chain(state, event)
    prompt = event.data["prompt"]
    if prompt == chain.prompt or prompt in chain.past:
        raise ImpossibleTransition(f"turn.prompted with the prompt {prompt!r}, which the chain has had already")
    for name, one in thread.chains.items():
        if one is chain or event.data["chain"] == MAIN:
            one.close()
            one.turn += bool(one.batch or one.prompt is not None)  # the first prompt ends nothing
            if name != MAIN:
                one.idle = True
    chain.leave_prompt()
    chain.prompt, chain.idle = prompt, False
    _unbind(state, thread)
    state.seq = event.seq
    return state


def _on_stopped(state: DeliveriesState, event: Recorded) -> DeliveriesState:
    _, chain = _chain(state, event)
    if chain.open is None or chain.open.decision == "pass":  # a blocked batch without its completion stays what it is
        chain.close()
        chain.turn += 1
    chain.idle = True
    state.seq = event.seq
    return state


HANDLERS: dict[str, Handler[DeliveriesState]] = {
    ev.STARTED: _on_started,
    ev.SESSION: _on_session,
    ev.RETIRED: _on_retired,
    ev.ADMITTED: _on_admitted,
    ev.RETURNED: _on_returned,
    ev.BATCH_COMPLETED: _on_completed,
    ev.PROMPTED: _on_prompted,
    ev.STOPPED: _on_stopped,
}
