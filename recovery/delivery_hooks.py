"""What the hooks of a harness ask and tell: may this call run, is the batch over, what does the model do (design section 6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from eventlog.projections import delivery_events as ev
from eventlog.projections.delivery_words import MAIN, Chain, DeliveriesState, RestartStartup, SoftBatch, SyncIntent
from eventlog.recovery.delivery_quick import PASS, passes
from eventlog.recovery.delivery_steps import acknowledge, arrive, claimed_by, loud, new_prompt, restart, restarting
from eventlog.recovery.delivery_words import (
    BATCH_BOUNDARY,
    RECEIPTS,
    Admission,
    Block,
    Caller,
    Decided,
    Done,
    Draft,
    Facts,
    FailClosed,
    Reconcile,
    Refused,
    Wait,
)
from eventlog.values import replace

__all__ = ["batch_completed", "call_returned", "mark_delivered", "pre_tool_use", "turn_observed"]


def pre_tool_use(state: DeliveriesState, caller: Caller, call: str, facts: Facts) -> Decided[Admission]:
    """May the tool call `call` run? Acknowledges first what this call proves, then admits, in one commit."""
    quick = passes(state, caller, call)
    if quick is not None:
        return quick
    draft = Draft(state, caller.thread, facts)
    answer = _admit(draft, caller, call)
    return Decided(tuple(draft.events), answer)


def _admit(draft: Draft, caller: Caller, call: str) -> Admission:
    refusal = arrive(draft, caller, adopt=True)
    if refusal is not None:
        return refusal
    chain = draft.thread.chain(caller.chain)
    if caller.prompt is not None and caller.prompt in chain.past:
        return FailClosed("this hook belongs to an earlier prompt", "if it does not, send the agent a new prompt", draft.thread.active)
    if call in chain.closed:
        return _late(draft, chain, call)
    acknowledged = acknowledge(draft, caller, call)
    refusal = new_prompt(draft, caller, reported=False)
    answer = refusal if refusal is not None else _in_batch(draft, caller, call)
    return replace(answer, acknowledged=acknowledged) if acknowledged is not None else answer


def _late(draft: Draft, chain: Chain, call: str) -> Admission:
    """A hook that outlived its batch is answered as its siblings were, and proves nothing."""
    intent = draft.active
    if chain.closed[call][1] == "pass":
        return PASS
    if intent is not None and intent.state.prepared and isinstance(intent.proof, SoftBatch):
        return _block(draft, intent, bound=False)
    return FailClosed("this call belongs to a batch that was blocked and is over", "call the tool again", draft.thread.active)


def _in_batch(draft: Draft, caller: Caller, call: str) -> Admission:
    chain, intent, live = draft.thread.chain(caller.chain), draft.active, draft.live
    assert live is not None
    if intent is None or (chain.open is not None and chain.open.decision == "pass"):
        _note(draft, caller, call, None)
        return PASS
    if intent.state.loud:
        return loud(intent)
    if not intent.state.prepared:
        if not _bound_here(intent, chain, caller.chain):
            if _main_waits(draft, intent, caller.chain):
                return Wait(intent.id) if draft.facts.reconciler_alive else Reconcile(intent)
            _bind(draft, caller, intent, intent.redeliveries)
        _note(draft, caller, call, intent.id)
        return Wait(intent.id) if draft.facts.reconciler_alive else Reconcile(draft.state.intents[intent.id])
    proof = intent.proof
    if isinstance(proof, RestartStartup) and proof.incarnation == live.id:
        help_ = f"send the agent a new prompt, or start it anew; see: eventlog deliveries show LOG {intent.id}"
        return FailClosed(f"this turn does not echo the startup delivery of {intent.id}", help_, intent.id)
    if BATCH_BOUNDARY not in live.capabilities:
        restart(draft, intent, "the harness cannot say when a batch is over")
        return restarting(draft, "the harness cannot say when a batch is over")
    if _bound_here(intent, chain, caller.chain):
        _note(draft, caller, call, intent.id)
        return _block(draft, draft.state.intents[intent.id])
    return _redeliver(draft, caller, call, intent, proof if isinstance(proof, SoftBatch) else None)


def _redeliver(draft: Draft, caller: Caller, call: str, intent: SyncIntent, proof: SoftBatch | None) -> Admission:
    """The payload is there, and this batch is not bound to it: the redelivery table of design section 6."""
    count = intent.redeliveries
    if proof is not None and caller.chain != MAIN and proof.chain != caller.chain:
        return _block(draft, intent, bound=False)  # a subagent is told too; it proves nothing
    if proof is not None and proof.chain == MAIN:
        count += 1
        if count > draft.facts.limits.redeliveries_max:
            why = f"{count} batches in a row did not show the payload to the model"
            restart(draft, intent, why)
            return restarting(draft, why)
    _bind(draft, caller, intent, count)
    _note(draft, caller, call, intent.id)
    return _block(draft, draft.state.intents[intent.id])


def _bound_here(intent: SyncIntent, chain: Chain, name: str) -> bool:
    proof = intent.proof
    return isinstance(proof, SoftBatch) and proof.chain == name and chain.open is not None and chain.open.number == proof.batch


def _main_waits(draft: Draft, intent: SyncIntent, name: str) -> bool:
    """Is a batch of the agent itself blocked already, when a subagent comes?"""
    return name != MAIN and _bound_here(intent, draft.thread.chain(MAIN), MAIN)


def _bind(draft: Draft, caller: Caller, intent: SyncIntent, redeliveries: int) -> None:
    chain, live = draft.thread.chain(caller.chain), draft.live
    assert live is not None
    if chain.open is not None:  # blocked for this intent, which was bound elsewhere since
        calls = list(chain.open.calls)
        draft.emit(ev.batch_completed(draft.name, incarnation=live.id, chain=caller.chain, calls=calls))
        chain = draft.thread.chain(caller.chain)
    where = {"turn": chain.turn, "batch": chain.batch + 1, "redeliveries": redeliveries}
    draft.emit(ev.blocked(intent.id, incarnation=live.id, chain=caller.chain, prompt=caller.prompt, **where))


def _note(draft: Draft, caller: Caller, call: str, intent: str | None) -> None:
    """Record the call in its batch, once."""
    chain, live = draft.thread.chain(caller.chain), draft.live
    assert live is not None
    if chain.open is not None and call in chain.open.calls:
        return
    draft.emit(
        ev.admitted(
            draft.name,
            incarnation=live.id,
            chain=caller.chain,
            turn=chain.turn,
            batch=chain.open.number if chain.open is not None else chain.batch + 1,
            call=call,
            decision="pass" if intent is None else "block",
            intent=intent,
            prompt=caller.prompt,
        )
    )


def _block(draft: Draft, intent: SyncIntent, *, bound: bool = True) -> Block:
    proof = intent.proof
    assert isinstance(proof, SoftBatch)
    assert intent.payload is not None
    assert intent.sha256 is not None
    marked = draft.state.incarnations[proof.incarnation].delivered_intent_id == intent.id
    return Block(intent.id, intent.payload, intent.sha256, proof.incarnation, proof.turn, proof.batch, bound, marked)


def mark_delivered(
    state: DeliveriesState, intent: str, *, incarnation: str, turn: int, batch: int, facts: Facts
) -> Decided[Done | Refused]:
    """stdout took the payload. Materialized becomes Delivered; a retry changes nothing. The barrier stays."""
    known = state.intents.get(intent)
    proof = known.proof if known is not None else None
    if known is None or not isinstance(proof, SoftBatch) or not known.state.prepared:
        return Decided((), Refused(f"{intent} waits for no delivery by a batch"))
    if (proof.incarnation, proof.turn, proof.batch) != (incarnation, turn, batch) or state.threads[known.thread].live != incarnation:
        return Decided((), Refused(f"{intent} is bound to another batch than {batch} of {incarnation}"))
    if known.delivered_ns is not None and state.incarnations[incarnation].delivered_intent_id == intent:
        return Decided((), Done(known, note="marked before"))
    draft = Draft(state, known.thread, facts)
    draft.emit(ev.marked(intent, incarnation=incarnation, turn=turn, batch=batch))
    return Decided(tuple(draft.events), Done(draft.state.intents[intent], draft.live))


def batch_completed(
    state: DeliveriesState, caller: Caller, calls: Sequence[str], receipts: Mapping[str, Collection[str]] | None, facts: Facts
) -> Decided[Done]:
    """These calls, one model turn's, have their results. It acknowledges nothing.

    `receipts`: call -> SHA-256 of the payload, or of each, that its result holds as the model is given it; None: the harness shows none.
    """
    draft = Draft(state, caller.thread, facts)
    live = draft.live
    if live is None or live.process != caller.process:
        return Decided((), Done(note="not of the live incarnation"))
    chain, intent = draft.thread.chain(caller.chain), draft.active
    if all(call in chain.closed for call in calls) or (caller.prompt is not None and caller.prompt in chain.past):
        return Decided((), Done(note="known, or of an earlier prompt"))
    batch = chain.open
    done: SyncIntent | None = None
    if batch is not None and batch.decision == "block":
        if not set(batch.calls) & set(calls):
            return Decided((), Done(note="not the blocked batch"))
        if intent is not None and intent.state.prepared and caller.chain == MAIN and _bound_here(intent, chain, MAIN):
            proof = intent.proof
            assert isinstance(proof, SoftBatch)
            seen: list[str] | None = None
            if RECEIPTS in live.capabilities:
                seen = [call for call in calls if call in proof.calls and intent.sha256 in (receipts or {}).get(call, ())]
            elif not set(proof.calls) <= set(calls):
                return Decided((), Done(intent, note="not exactly the blocked batch, and nothing shows what the model was given"))
            where = {"turn": proof.turn, "batch": proof.batch}
            draft.emit(ev.completed(intent.id, incarnation=live.id, calls=list(calls), seen=seen, **where))
            done = draft.state.intents[intent.id]
    draft.emit(ev.batch_completed(draft.name, incarnation=live.id, chain=caller.chain, calls=list(calls)))
    return Decided(tuple(draft.events), Done(done, live))


def call_returned(state: DeliveriesState, caller: Caller, call: str, facts: Facts) -> Decided[Done]:
    """A call that was let through has its result. When all of a batch have, the barrier is up again, boundary or not."""
    thread = state.threads.get(caller.thread)
    live = state.incarnations[thread.live] if thread is not None and thread.live is not None else None
    chain = thread.chains.get(caller.chain) if thread is not None else None
    if live is None or live.process != caller.process or chain is None or chain.open is None or chain.open.calls.get(call) is not False:
        return Decided((), Done(note="no call of an open batch"))
    return Decided((ev.returned(caller.thread, incarnation=live.id, chain=caller.chain, call=call),), Done(incarnation=live))


def turn_observed(
    state: DeliveriesState, caller: Caller, kind: Literal["prompt", "stop", "compacted"], facts: Facts
) -> Decided[Done | FailClosed]:
    """The harness shows what the model does: it got a prompt, it answered without a tool call, or its context was rewritten."""
    draft = Draft(state, caller.thread, facts)
    if kind == "prompt":
        refusal = arrive(draft, caller, adopt=False) or new_prompt(draft, caller, reported=True)
        return Decided(tuple(draft.events), refusal or Done(incarnation=draft.live))
    live = draft.live
    if live is None or live.process != caller.process:
        return Decided((), Done(note="not of the live incarnation"))
    chain = draft.thread.chain(caller.chain)
    intent = draft.active
    if kind == "compacted":
        why = "the context was rewritten before a later turn"
        if intent is None or caller.chain != MAIN or not claimed_by(intent, live):
            return Decided((), Done(intent, live))
        if isinstance(intent.proof, RestartStartup):
            restart(draft, intent, why)
            return Decided(tuple(draft.events), restarting(draft, why))
        proof = intent.proof
        if isinstance(proof, SoftBatch) and not proof.doubted:
            draft.emit(ev.doubted(intent.id, incarnation=live.id, batch=proof.batch, reason=why))
        return Decided(tuple(draft.events), Done(draft.active, live))
    if caller.prompt is not None and chain.prompt is not None and caller.prompt != chain.prompt:
        return Decided((), Done(note="of another prompt"))
    acknowledged = acknowledge(draft, caller, None)
    draft.emit(ev.stopped(draft.name, incarnation=live.id, chain=caller.chain))
    return Decided(tuple(draft.events), Done(draft.active, live, acknowledged=acknowledged))
