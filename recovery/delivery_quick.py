"""The common case of a tool call, decided without a copy of anything and without the rest of the protocol."""

from __future__ import annotations

from eventlog.projections import delivery_events as ev
from eventlog.projections.delivery_words import DeliveriesState
from eventlog.recovery.delivery_words import Admission, Caller, Decided, PassThrough

__all__ = ["PASS", "passes"]

PASS = PassThrough()


def passes(state: DeliveriesState, caller: Caller, call: str) -> Decided[Admission] | None:
    """The call runs: nothing waits, or its batch has been let through. None: it takes a closer look."""
    thread = state.threads.get(caller.thread)
    if thread is None or thread.live is None or state.incarnations[thread.live].process != caller.process:
        return None
    chain = thread.chains.get(caller.chain)
    if chain is None or call in chain.closed or (caller.prompt is not None and caller.prompt != chain.prompt):
        return None
    batch = chain.open
    if batch is not None:
        if batch.decision != "pass":
            return None
        if call in batch.calls:
            return Decided((), PASS)
        number = batch.number
    elif thread.open:
        return None
    else:
        number = chain.batch + 1
    event = ev.admitted(
        caller.thread,
        incarnation=thread.live,
        chain=caller.chain,
        turn=chain.turn,
        batch=number,
        call=call,
        decision="pass",
        prompt=caller.prompt,
    )
    return Decided((event,), PASS)
