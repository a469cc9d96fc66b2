"""The thin shell over the delivery decisions: each method runs one decision on the log, as durably as its events need (design section 6).

deliveries = Deliveries(log, reconciler)
deliveries.detect("web", base="4f1c…", triggers=["op-17"])
answer = deliveries.admit(Caller("web", process="4711:88123", prompt="p1"), call="toolu_1")     # in a PreToolUse hook
print(answer.payload); sys.stdout.flush(); deliveries.mark_delivered(answer)                     # if it is a Block
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from eventlog import Durability, Event, EventLog, crashpoints
from eventlog.light import TYPE_CHECKING, Lazy, ParamSpec, TypeVar
from eventlog.projections.deliveries import DELIVERIES
from eventlog.projections.delivery_words import DeliveriesState, RestartStartup, SyncIntent
from eventlog.recovery.delivery_quick import passes
from eventlog.recovery.delivery_words import (
    Admission,
    Block,
    Caller,
    Decided,
    DeliveryLimits,
    Done,
    Facts,
    FailClosed,
    PassThrough,
    Reconcile,
    Refused,
    Wait,
    launcher_name,
    reconciler_name,
)
from eventlog.values import replace

if TYPE_CHECKING:
    from typing import Any, Concatenate, Literal

    from eventlog.projections.folding import View
    from eventlog.recovery import delivery as do
    from eventlog.recovery.reconciler import Reconciler
else:
    do = Lazy("eventlog.recovery.delivery")  # a call that passes needs none of it

__all__ = ["Deliveries"]

P = ParamSpec("P")
A = TypeVar("A")
_LOOK_S = 0.25  # a reconciler that dies writes nothing: look for its owner lock this often
_MOVED_MAX = 100


class Deliveries:
    """The deliveries of one log. Safe for threads; any number of processes may do this at once.

    `wait_s`: how long a hook waits for a reconciler that is at work. Keep it well below the timeout of the hook itself, since a hook that
    is ended from outside lets its call through.
    """

    def __init__(
        self, log: EventLog, reconciler: Reconciler | None = None, *, wait_s: float = 30.0, limits: DeliveryLimits | None = None
    ) -> None:
        self.log = log
        self.reconciler = reconciler
        self.wait_s = wait_s
        self.limits = limits or DeliveryLimits()
        self._view: View[DeliveriesState] | None = None

    # -- what is known --------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> DeliveriesState:
        """The fold at the head of the log; do not change it."""
        from eventlog.projections.folding import View

        if self._view is None:
            self._view = View(self.log, DELIVERIES, keeps=False)
        return self._view.state

    def keep(self) -> None:
        """Write a snapshot of what was folded here, if enough was: the next process decides without reading that again.

        For a hook: call it when the answer is out (stdout flushed); it may sync, and raises what `log.flush` raises.
        """
        if not self.log.read_only:
            self.log.keep(DELIVERIES)
        if self._view is not None:
            self._view.keep()

    def startup_of(self, thread: str) -> tuple[SyncIntent, RestartStartup] | None:
        """The replacement that waits to be launched: its intent and its ids."""
        intent = self.state.active(thread)
        if intent is None or not isinstance(intent.proof, RestartStartup) or intent.proof.accepted_ns is not None:
            return None
        return intent, intent.proof

    # -- the one way to the log -----------------------------------------------------------------------------------------------

    def _decide(
        self, name: str, thread: str, command: Callable[Concatenate[DeliveriesState, P], Decided[A]], *args: P.args, **named: P.kwargs
    ) -> A:
        """Decide at the head and commit. What needs no sync gets none; a refusal writes nothing."""
        taken: list[Decided[A]] = []
        crashpoints.reach(f"before-{name}")

        def decide(state: DeliveriesState) -> Sequence[Event] | None:
            taken[:] = [command(state, *args, **named)]
            return taken[0].events or None

        self.log.transact(DELIVERIES, decide, Durability.BATCHED)
        decided = taken[0]
        if decided.durable:
            self.log.flush()
        crashpoints.reach(f"after-{name}")
        return decided.answer

    def _facts(self, thread: str, *, reconciler: bool = False) -> Facts:
        launcher = self.log.owned(launcher_name(thread))
        return Facts(time.time_ns(), os.urandom(12).hex(), launcher, reconciler, self.limits)

    # -- intents --------------------------------------------------------------------------------------------------------------

    def detect(self, thread: str, *, base: str, triggers: Sequence[str]) -> Done | Refused:
        """The agent of `thread` has to hear of these operations, and to come to `base`."""
        return self._decide("detect", thread, do.detect, thread, base=base, triggers=triggers, facts=self._facts(thread))

    def coalesce(self, intent: str, *, base: str, triggers: Sequence[str]) -> Done | Refused:
        """Add to one intent, before its payload is prepared."""
        thread = _thread(intent)
        return self._decide("coalesce", thread, do.coalesce, intent, base=base, triggers=triggers, facts=self._facts(thread))

    def materialize(self, intent: str, *, base: str, operation: str, commit: str, payload: str, anchor: str) -> Done | Refused:
        """Store a reconciler's result, all of it, in one durable event."""
        thread = _thread(intent)
        fields: dict[str, Any] = {"base": base, "operation": operation, "commit": commit, "payload": payload, "anchor": anchor}
        return self._decide("materialize", thread, do.materialize, intent, prepared_ns=time.time_ns(), facts=self._facts(thread), **fields)

    def recovery_required(self, intent: str, reason: str, copy: str | None = None) -> Done | Refused:
        """Only a person can go on; `copy` says where edits were saved."""
        thread = _thread(intent)
        return self._decide("recovery-required", thread, do.recovery_required, intent, reason, self._facts(thread), copy)

    def topology_diverged(self, intent: str, reason: str) -> Done | Refused:
        """The workspaces are not related as the intent takes for granted."""
        thread = _thread(intent)
        return self._decide("topology-diverged", thread, do.topology_diverged, intent, reason, self._facts(thread))

    def supersede(self, intent: str, reason: str) -> Done | Refused:
        """It is moot, and nothing was prepared."""
        thread = _thread(intent)
        return self._decide("supersede", thread, do.supersede, intent, reason, self._facts(thread))

    def resolve(
        self, intent: str, decision: Literal["retry", "drop"], *, reason: str, actor: str, seen: int | None = None
    ) -> Done | Refused:
        """A person's decision; `seen` is the version that was looked at."""
        thread = _thread(intent)
        named: dict[str, Any] = {"reason": reason, "actor": actor, "seen": seen}
        return self._decide("resolve", thread, do.resolve, intent, decision, facts=self._facts(thread), **named)

    # -- hooks ----------------------------------------------------------------------------------------------------------------

    def pre_tool_use(self, caller: Caller, call: str) -> Admission:
        """One decision, without reconciling or waiting. A PassThrough costs no fdatasync."""

        def command(state: DeliveriesState) -> Decided[Admission]:
            known = passes(state, caller, call)
            if known is not None:
                return known
            active = state.active(caller.thread)
            waits = active is not None and not active.state.prepared and self.log.owned(reconciler_name(active.id))
            return do.pre_tool_use(state, caller, call, self._facts(caller.thread, reconciler=waits))

        return self._here(self._decide("pre-tool-use", caller.thread, command))

    def admit(self, caller: Caller, call: str) -> PassThrough | Block | FailClosed:
        """What a PreToolUse hook needs: decide, reconcile if it falls to this hook, wait for another that does, up to `wait_s`.

        Never raises for what the reconciler does: a failure denies the call, and the next one tries again.
        """
        deadline = time.monotonic() + self.wait_s
        while True:
            answer = self.pre_tool_use(caller, call)
            if isinstance(answer, (PassThrough, Block)):
                return answer
            head = int(self.log.head)  # what came between is seen after a look at the owner lock, at most _LOOK_S later
            if isinstance(answer, Reconcile):
                failure = self._try_to_reconcile(answer)
                if failure is None:
                    continue
                answer = failure
            if not isinstance(answer, Wait):
                return answer
            left = deadline - time.monotonic()
            if left <= 0:
                help_ = f"call again later; see: eventlog deliveries show LOG {answer.intent}"
                return self._closed(FailClosed(f"{answer.intent} is still being reconciled", help_, answer.intent, answer.acknowledged))
            self.log.wait(head, min(left, _LOOK_S))

    def _try_to_reconcile(self, answer: Reconcile) -> FailClosed | Wait | None:
        """None when the intent has moved on; else why this hook could not do it."""
        from eventlog.recovery.reconciler import ReconcilerFailed

        try:
            return None if self._reconcile(answer.intent) else Wait(answer.intent.id, answer.acknowledged)
        except ReconcilerFailed as error:
            help_ = f"mend the reconciler and call again; see: eventlog deliveries show LOG {answer.intent.id}"
            return self._closed(FailClosed(str(error), help_, answer.intent.id, answer.acknowledged))

    def _reconcile(self, intent: SyncIntent) -> bool:
        """Run the reconciler, if nobody alive does. False: somebody does. The block is durable already."""
        from eventlog.recovery.reconciler import Diverged, NeedsPerson, ReconcilerFailed, SyncTask, fault

        if self.reconciler is None:
            raise ReconcilerFailed(f"{intent.id} has to be reconciled, and this hook has no reconciler")
        owner = self.log.own(reconciler_name(intent.id))
        if owner is None:
            return False
        with owner:
            for _ in range(_MOVED_MAX):
                now = self.state.intents[intent.id]
                if now.state.prepared or now.state.resolved or now.state.loud:
                    return True
                crashpoints.reach("before-reconciler")
                try:
                    result = self.reconciler(SyncTask(now.id, now.thread, now.base, now.triggers, owner.fileno()))
                except ReconcilerFailed:
                    raise
                except Exception as error:
                    raise ReconcilerFailed(f"the reconciler failed for {now.id}: {type(error).__name__}: {error}") from error
                crashpoints.reach("after-reconciler")
                if (why := fault(result)) is not None:
                    raise ReconcilerFailed(f"the reconciler's answer for {now.id} cannot be recorded: {why}")
                done: Done | Refused
                if isinstance(result, NeedsPerson):
                    done = self.recovery_required(now.id, result.reason, result.copy)
                elif isinstance(result, Diverged):
                    done = self.topology_diverged(now.id, result.reason)
                else:
                    fields = {"operation": result.operation, "commit": result.commit, "payload": result.payload, "anchor": result.anchor}
                    done = self.materialize(now.id, base=now.base, **fields)
                if isinstance(done, Refused) and not done.moved:
                    raise ReconcilerFailed(f"{now.id}: {done.reason}")
            raise ReconcilerFailed(f"the base of {intent.id} moved {_MOVED_MAX} times while it was reconciled")

    def mark_delivered(self, block: Block) -> Done | Refused:
        """After stdout took the bytes of this block, and not before."""
        thread = _thread(block.intent)
        if not block.bound:
            return Refused(f"{block.intent}: these bytes were given beside the bound batch, and prove nothing")
        if block.marked:
            return Done(note="marked before")
        where: dict[str, Any] = {"incarnation": block.incarnation, "turn": block.turn, "batch": block.batch}
        return self._decide("mark", thread, do.mark_delivered, block.intent, facts=self._facts(thread), **where)

    def batch_completed(self, caller: Caller, calls: Sequence[str], receipts: Mapping[str, Collection[str]] | None = None) -> Done:
        """A PostToolBatch: these calls have their results. `receipts`: call -> the SHA-256 of each payload that its result shows."""
        return self._decide("batch", caller.thread, do.batch_completed, caller, calls, receipts, self._facts(caller.thread))

    def batch_shown(self, caller: Caller, call: str | None, shown: Mapping[str, Collection[str]] | None) -> Done:
        """Without a PostToolBatch: what the transcript shows that the model was given before this call (None: a Stop, a prompt)."""
        from eventlog.recovery.delivery_serial import batch_shown

        return self._decide("shown", caller.thread, batch_shown, caller, call, shown, self._facts(caller.thread))

    def call_returned(self, caller: Caller, call: str) -> Done:
        """A PostToolUse."""
        return self._decide("returned", caller.thread, do.call_returned, caller, call, self._facts(caller.thread))

    def turn_observed(self, caller: Caller, kind: Literal["prompt", "stop", "compacted"]) -> Done | FailClosed:
        """A UserPromptSubmit, a Stop, a compaction."""
        return self._here(self._decide("turn", caller.thread, do.turn_observed, caller, kind, self._facts(caller.thread)))

    # -- processes ------------------------------------------------------------------------------------------------------------

    def start_incarnation(self, caller: Caller, startup_id: str | None = None) -> Done | FailClosed | Refused:
        """A process of the thread started, perhaps with the tag of a replacement."""
        facts = self._facts(caller.thread)
        return self._here(self._decide("start", caller.thread, do.start_incarnation, caller, facts, startup_id))

    def accept_startup(self, caller: Caller, startup_id: str) -> Done | Refused:
        """The handshake: the tagged payload was the first input of this process."""
        return self._decide("accept", caller.thread, do.accept_startup, caller, startup_id, self._facts(caller.thread))

    def retire_incarnation(self, thread: str, incarnation: str, reason: str) -> Done | Refused:
        """That incarnation is over; no acknowledgement comes of it."""
        return self._decide("retire", thread, do.retire_incarnation, thread, incarnation, reason, self._facts(thread))

    def bind_restart(self, thread: str, reason: str) -> Done | Refused:
        """New ids for a replacement, before it is launched."""
        return self._decide("bind-restart", thread, do.bind_restart, thread, reason, self._facts(thread))

    # -- words ----------------------------------------------------------------------------------------------------------------

    def _here(self, answer: A) -> A:
        if isinstance(answer, FailClosed):
            self_told: A = self._closed(answer)  # type: ignore[assignment]  # a FailClosed for a FailClosed
            return self_told
        return answer

    def _closed(self, answer: FailClosed) -> FailClosed:
        """With the path of this log in the command that helps."""
        import shlex

        path, said, intent = shlex.quote(os.fsdecode(self.log.path)), answer.what_to_do, answer.intent
        if intent is not None:
            plain = intent.replace("#", "")  # within a word it needs no quotes
            said = said.replace(f" LOG {intent}", f" LOG {intent if shlex.quote(plain) == plain else shlex.quote(intent)}", 1)
        return replace(answer, what_to_do=said.replace(" LOG", f" {path}", 1))


def _thread(intent: str) -> str:
    return intent.rpartition("#")[0]
