"""The steps that delivery decisions share: who is there, what was proved, and what becomes of a delivery without proof."""

from __future__ import annotations

from eventlog.projections import delivery_events as ev
from eventlog.projections.delivery_words import MAIN, Incarnation, RestartStartup, SoftBatch, SyncIntent, SyncState
from eventlog.recovery.delivery_words import BATCH_BOUNDARY, STARTUP_DELIVERY, Caller, Draft, FailClosed

__all__ = ["acknowledge", "arrive", "claimed_by", "loud", "new_prompt", "restart", "restarting"]


def claimed_by(intent: SyncIntent | None, incarnation: Incarnation | None) -> bool:
    """May this incarnation have been given the payload, without proof so far?"""
    if intent is None or incarnation is None or not intent.state.prepared or intent.proof is None:
        return False
    return intent.proof.incarnation == incarnation.id


def loud(intent: SyncIntent) -> FailClosed:
    """The answer while only a person can go on."""
    return FailClosed(
        f"{intent.id} is {intent.state.value}: {intent.reason}",
        f"a person has to decide: eventlog deliveries resolve LOG {intent.id} --retry (or --drop) --reason TEXT",
        intent.id,
    )


def restarting(draft: Draft, why: str) -> FailClosed:
    """The answer while a replacement has to start; the loud one if there is to be none."""
    intent = draft.active
    if intent is None or intent.state.loud:
        return loud(intent) if intent is not None else FailClosed(why, "run: eventlog deliveries list LOG")
    if draft.facts.launcher_alive:
        help_ = f"end this process; the launcher starts its replacement (see: eventlog deliveries show LOG {intent.id})"
    else:
        help_ = (
            f"end this process and start the agent anew; give it as its first input what this prints: "
            f"eventlog deliveries show LOG {intent.id} --startup"
        )
    return FailClosed(f"{why}; {intent.id} has to reach a new process", help_, intent.id, restart=True)


def restart(draft: Draft, intent: SyncIntent, reason: str, *, barred: bool = True) -> None:
    """Retire whoever holds the intent, without acknowledgement, and bind RestartStartup, or give up loudly when that was tried enough."""
    thread, live = draft.thread, draft.live
    provable = live is None or bool(live.capabilities & {BATCH_BOUNDARY, STARTUP_DELIVERY})
    if live is not None:
        draft.emit(ev.retired(draft.name, incarnation=live.id, reason=reason, barred=barred))
    if thread.minted is not None:
        draft.emit(ev.retired(draft.name, incarnation=thread.minted, reason=reason, barred=False))
    if not provable:
        draft.emit(ev.recovery_required(intent.id, f"{reason}; and its harness can prove no delivery at all"))
    elif intent.restarts >= draft.facts.limits.restarts_max:
        draft.emit(ev.recovery_required(intent.id, f"{reason}; {intent.restarts} startup attempts did not deliver it"))
    else:
        ids = {"incarnation": draft.mint("inc"), "startup_id": draft.mint("startup")}
        draft.emit(ev.restart_bound(intent.id, **ids, attempt=intent.restarts + 1, reason=reason))


def start(draft: Draft, caller: Caller, incarnation: str | None = None) -> None:
    """The caller's process is the thread's incarnation from here on."""
    draft.emit(
        ev.started(
            draft.name,
            incarnation=incarnation or draft.mint("inc"),
            process=caller.process,
            session=caller.session,
            capabilities=sorted(caller.capabilities),
        )
    )


def arrive(draft: Draft, caller: Caller, *, adopt: bool) -> FailClosed | None:
    """Make the caller's process the live incarnation of the thread, or say why it cannot be.

    `adopt`: with no launcher alive, a new process that can be blocked may take the place of a replacement that never came.
    """
    live = draft.live
    if live is not None and live.process == caller.process:
        if caller.chain == MAIN and caller.session is not None and caller.session != live.session:
            draft.emit(ev.session(draft.name, incarnation=live.id, session=caller.session))
        proof = draft.active.proof if draft.active is not None else None
        if not isinstance(proof, RestartStartup) or proof.accepted_ns is not None:
            return None
        if draft.facts.launcher_alive or not adopt or BATCH_BOUNDARY not in caller.capabilities:
            return restarting(draft, "this process acts before it took the startup delivery that it was launched with")
        draft.emit(ev.retired(draft.name, incarnation=live.id, reason="it acted without its startup delivery", barred=False))
        start(draft, caller)
        return None
    before = draft.state.incarnations.get(draft.thread.processes.get(caller.process, ""))
    if before is not None and before.barred:
        return restarting(draft, f"this process was retired ({before.reason})")
    if live is not None:
        intent = draft.active
        if intent is not None and claimed_by(intent, live):
            restart(draft, intent, f"a new process came before {live.id} had proved the delivery")
        else:
            draft.emit(ev.retired(draft.name, incarnation=live.id, reason="another process of the thread came", barred=False))
    intent = draft.active
    if intent is not None and intent.state.prepared and isinstance(intent.proof, RestartStartup):
        if draft.facts.launcher_alive or not adopt or BATCH_BOUNDARY not in caller.capabilities:
            return restarting(draft, f"startup attempt {intent.proof.attempt} was not accepted yet")
        if draft.thread.minted is not None:
            reason = "no launcher is alive, and another new process of the thread came"
            draft.emit(ev.retired(draft.name, incarnation=draft.thread.minted, reason=reason, barred=False))
    start(draft, caller)
    return None


def acknowledge(draft: Draft, caller: Caller, call: str | None) -> str | None:
    """Acknowledge the active intent if this turn of the live incarnation proves that it was read; its id then."""
    intent, live = draft.active, draft.live
    if intent is None or live is None or caller.chain != MAIN or not claimed_by(intent, live):
        return None
    chain = draft.thread.chain(MAIN)
    proof = intent.proof
    delivered_ns = intent.delivered_ns
    evidence: ev.Evidence
    if isinstance(proof, SoftBatch):
        if not proof.proves or chain.turn <= proof.turn or call in chain.closed or call in proof.calls:
            return None
        if caller.prompt is not None and caller.prompt != chain.prompt:
            return None  # a hook of a prompt that nobody reported: it may be an old one that outlived its batch
        evidence = "later_turn"
        if delivered_ns is None:
            delivered_ns = proof.completed_ns
    elif isinstance(proof, RestartStartup):
        echoes = caller.echo == proof.startup_id or (caller.prompt is not None and caller.prompt == proof.prompt)
        if proof.accepted_ns is None or not echoes:
            return None
        evidence = "startup_echo"
    else:
        return None
    assert delivered_ns is not None
    draft.emit(
        ev.acknowledged(
            intent.id,
            incarnation=live.id,
            evidence=evidence,
            turn=chain.turn,
            call=call,
            recovered=intent.state is SyncState.MATERIALIZED,
            delivered_ns=delivered_ns,
        )
    )
    return intent.id


def new_prompt(draft: Draft, caller: Caller, *, reported: bool) -> FailClosed | None:
    """Note a new prompt of the caller's chain; a delivery whose completion is unknown by now is not proved any more.

    `reported`: the harness said so itself. Otherwise it is only seen at a call, and which of two prompts is the later is not known.
    """
    chain, live = draft.thread.chain(caller.chain), draft.live
    if caller.prompt is None or live is None or caller.prompt == chain.prompt or caller.prompt in chain.past:
        return None
    if chain.prompt is None and chain.batch:  # batches came without their prompt: nobody can say that it is another one
        return None
    draft.emit(ev.prompted(draft.name, incarnation=live.id, chain=caller.chain, prompt=caller.prompt))
    intent = draft.active
    if intent is None or caller.chain != MAIN or not claimed_by(intent, live):
        return None
    proof = intent.proof
    if isinstance(proof, SoftBatch) and (proof.chain != MAIN or proof.completed_ns is not None):
        if proof.proves and not reported:
            why = "a call of a prompt that was not reported came before a later turn"
            draft.emit(ev.doubted(intent.id, incarnation=live.id, batch=proof.batch, reason=why))
        return None
    if isinstance(proof, RestartStartup) and (proof.accepted_ns is None or proof.prompt == caller.prompt):
        return None
    restart(draft, intent, "a new prompt came before the delivery was proved")
    return restarting(draft, "a new prompt came before the delivery was proved")
