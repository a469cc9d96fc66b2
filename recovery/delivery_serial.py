"""The end of a batch where the harness does not report it: proved by what its transcript shows of calls and results, in their order."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from eventlog.projections.delivery_words import DeliveriesState, SoftBatch
from eventlog.recovery.delivery_hooks import batch_completed
from eventlog.recovery.delivery_steps import claimed_by, restart
from eventlog.recovery.delivery_words import Caller, Decided, Done, Draft, Facts

__all__ = ["batch_shown"]


def batch_shown(
    state: DeliveriesState, caller: Caller, call: str | None, shown: Mapping[str, Collection[str]] | None, facts: Facts
) -> Decided[Done]:
    """Before the call `call` (None: a Stop or a prompt) is decided on: are the results of the open batch among what the model was `shown`?

    `shown`: call -> SHA-256 of each payload in its result, for all results that stand before this call in the transcript; None: the
    transcript shows nothing of this call. Then nobody can tell a sibling from a later turn, and a payload that may have gone out is
    bound to a restart.
    """
    thread = state.threads.get(caller.thread)
    live = state.incarnations[thread.live] if thread is not None and thread.live is not None else None
    chain = thread.chains.get(caller.chain) if thread is not None else None
    if live is None or live.process != caller.process or chain is None or chain.open is None or call in chain.open.calls:
        return Decided((), Done(note="no batch is open that this could end"))
    if shown is not None:
        if not set(chain.open.calls) <= set(shown):
            return Decided((), Done(note="a sibling: not all results of the open batch were there"))
        return batch_completed(state, caller, list(chain.open.calls), shown, facts)
    intent = state.active(caller.thread)
    if call is None or intent is None or not claimed_by(intent, live) or not isinstance(intent.proof, SoftBatch):
        return Decided((), Done(note="nothing went out that would have to be proved"))
    draft = Draft(state, caller.thread, facts)
    restart(draft, intent, "the transcript of the agent does not show this call, so no batch boundary can be proved")
    return Decided(tuple(draft.events), Done(draft.active, live))
