"""Processes: which one is the agent of a thread, how a replacement is bound before it is launched, and how it accepts its delivery."""

from __future__ import annotations

from eventlog.projections import delivery_events as ev
from eventlog.projections.delivery_words import MAIN, DeliveriesState, Presence, RestartStartup
from eventlog.recovery.delivery_steps import arrive, claimed_by, restart, start
from eventlog.recovery.delivery_words import Caller, Decided, Done, Draft, Facts, FailClosed, Refused

__all__ = ["accept_startup", "bind_restart", "retire_incarnation", "start_incarnation"]


def start_incarnation(
    state: DeliveriesState, caller: Caller, facts: Facts, startup_id: str | None = None
) -> Decided[Done | FailClosed | Refused]:
    """A process of the thread started. It is evidence of nothing.

    With `startup_id`, the tag that it was launched with, it becomes the minted incarnation: the first process that presents the tag
    does. Its delivery still has to be accepted.
    """
    draft = Draft(state, caller.thread, facts)
    if startup_id is None:
        refusal = arrive(draft, caller, adopt=False)
        return Decided(tuple(draft.events), refusal or Done(draft.active, draft.live))
    refused = _present(draft, caller, startup_id)
    if refused is not None:
        return Decided((), refused)
    return Decided(tuple(draft.events), Done(draft.active, draft.live))


def _present(draft: Draft, caller: Caller, startup_id: str) -> Refused | None:
    """The caller shows the one-use tag; bind the minted incarnation to it if it is the first to do so."""
    intent, live = draft.active, draft.live
    proof = intent.proof if intent is not None else None
    if intent is None or not isinstance(proof, RestartStartup) or proof.startup_id != startup_id:
        known = draft.state.startups.get(startup_id)
        why = f"it was minted for {known} and is void" if known is not None else "it was never minted"
        return Refused(f"startup delivery id {startup_id!r}: {why}", "start the agent anew; see: eventlog deliveries list LOG")
    if live is not None and live.id == proof.incarnation:
        return None if live.process == caller.process else Refused(f"startup delivery id {startup_id!r} was used by another process")
    before = draft.state.incarnations.get(draft.thread.processes.get(caller.process, ""))
    if before is not None and before.barred:
        return Refused(f"this process was retired ({before.reason}) and cannot be the replacement", "start a new one")
    if live is not None or draft.state.incarnations[proof.incarnation].presence is not Presence.MINTED:
        return Refused(f"startup delivery id {startup_id!r} was used before", "start the agent anew; see: eventlog deliveries list LOG")
    start(draft, caller, proof.incarnation)
    return None


def accept_startup(state: DeliveriesState, caller: Caller, startup_id: str, facts: Facts) -> Decided[Done | Refused]:
    """The handshake: the process took the tagged payload as its first input. Marks it Delivered, and acknowledges nothing."""
    draft = Draft(state, caller.thread, facts)
    refused = _present(draft, caller, startup_id)
    if refused is not None:
        return Decided((), refused)
    intent, live = draft.active, draft.live
    assert intent is not None
    assert live is not None
    assert isinstance(intent.proof, RestartStartup)
    if intent.proof.accepted_ns is not None:
        same = intent.proof.prompt == caller.prompt
        return Decided((), Done(intent, live, "accepted before") if same else Refused(f"{startup_id!r} was accepted with another prompt"))
    if draft.thread.chain(MAIN).batch:
        return Decided((), Refused(f"{startup_id!r} is not the first input of this process", "start the agent anew"))
    chain = draft.thread.chain(MAIN)
    if caller.prompt is not None and caller.prompt != chain.prompt and caller.prompt not in chain.past:
        draft.emit(ev.prompted(draft.name, incarnation=live.id, chain=MAIN, prompt=caller.prompt))
    draft.emit(ev.accepted(intent.id, incarnation=live.id, startup_id=startup_id, prompt=caller.prompt))
    return Decided(tuple(draft.events), Done(draft.active, draft.live))


def retire_incarnation(state: DeliveriesState, thread: str, incarnation: str, reason: str, facts: Facts) -> Decided[Done | Refused]:
    """That incarnation is over, without acknowledgement. What it may have been given is bound to a restart in the same commit."""
    draft = Draft(state, thread, facts)
    live, intent = draft.live, draft.active
    if live is None or live.id != incarnation:
        known = state.incarnations.get(incarnation)
        if known is not None and known.presence is Presence.RETIRED:
            return Decided((), Done(intent, known, "retired before"))
        return Decided((), Refused(f"{incarnation!r} is not the live incarnation of {thread!r}"))
    if intent is not None and claimed_by(intent, live):
        restart(draft, intent, reason)
    else:
        draft.emit(ev.retired(thread, incarnation=live.id, reason=reason, barred=False))
    return Decided(tuple(draft.events), Done(draft.active, draft.state.incarnations[incarnation]))


def bind_restart(state: DeliveriesState, thread: str, reason: str, facts: Facts) -> Decided[Done | Refused]:
    """Before a launch: new ids for the replacement of whoever holds the prepared intent; an attempt that was not accepted is retired.

    Bounded: the attempt after the last puts the intent into RecoveryRequired, which only a person leaves.
    """
    draft = Draft(state, thread, facts)
    intent = draft.active
    if intent is None or not intent.state.prepared:
        what = f"{intent.id} is {intent.state.value}" if intent is not None else "nothing is unresolved"
        return Decided((), Refused(f"{thread}: there is nothing to start a replacement with: {what}"))
    restart(draft, intent, reason)
    return Decided(tuple(draft.events), Done(draft.active))
