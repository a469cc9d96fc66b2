"""The guard around one effect, and what recovery does with an open one: the protocol itself, without a way to wait.

It is a generator that yields what has to be done (write, run the tool, sleep, ask, store) and is told the result, so that one text
serves threads and coroutines. The drivers are in drive.py, the decisions in decide.py.

    1. effect.pending      committed   -- a crash here: never sent
    2. effect.dispatched   committed
    3. the call                        -- a crash here: may have been sent
    4. outcome + committed committed

Three commits, each IMMEDIATE and each its own sync: batching the first two would make both crashes look the same (seed 000).
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from eventlog import Event, crashpoints
from eventlog.errors import EventLogError, PayloadError
from eventlog.projections import effect_events as ev
from eventlog.projections.effects import Intent
from eventlog.projections.intent import EffectClass, IntentId, IntentState
from eventlog.recovery import decide, receiver
from eventlog.recovery.blobs import Blobs
from eventlog.recovery.context import ToolContext
from eventlog.recovery.core import AttemptCore
from eventlog.recovery.errors import (
    Abandoned,
    AttemptCancelled,
    EffectError,
    EffectFailed,
    Indeterminate,
    NeedsApproval,
    NotYet,
    StaleAttempt,
)
from eventlog.recovery.failures import Failure, judge
from eventlog.recovery.ops import Invoke, Limits, Op, Sleep, Steps, Store, Write
from eventlog.recovery.records import Records, error_data, outcome_or_late
from eventlog.recovery.request import check_same, pending_event
from eventlog.recovery.tool import Tool
from eventlog.recovery.values import digest_of, own_copy
from eventlog.recovery.writing import Drafted

__all__ = ["Guard"]

# Bound once: to look a member up in its Enum costs more than what is done with it.
_P, _D, _C = IntentState.PENDING, IntentState.DISPATCHED, IntentState.COMMITTED
_I, _X, _A = IntentState.INDETERMINATE, IntentState.CANCELLED, IntentState.ABANDONED
_READ_ONLY = EffectClass.READ_ONLY
_AGAIN = object()
CANCEL_POLL_S = 0.005


class _Try(NamedTuple):
    """One try, ready to be recorded and sent."""

    number: int
    resend: bool
    dispatched: Drafted
    context: ToolContext
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Guard:
    """The protocol for the intents of one attempt. `by` ("guard" or "recovery") and `patience_s` say on whose behalf."""

    def __init__(self, core: AttemptCore, blobs: Blobs, limits: Limits, *, by: str = "guard", patience_s: float = 0.0) -> None:
        self.core = core
        self.blobs = blobs
        self.limits = limits
        self.by = by
        self.patience_s = patience_s
        self.records = Records(core, blobs, limits, by)

    def call(self, tool: Tool, named: dict[str, Any], body: bytes, id_: IntentId) -> Steps:
        """Record, send and record one effect, or replay it. `named` are the canonical arguments, `body` their sorted JSON."""
        text, digest = id_.text, digest_of(body)
        known = self.core.get(text)
        if known is None:
            ready = yield from self._pend(tool, named, body, digest, id_, text)
            if ready is not None and (deadline_ns := ready.context.deadline_ns) is not None and time.time_ns() >= deadline_ns:
                ready = None  # the disk took longer than that
            if ready is not None and (value := (yield from self._send(tool, text, ready))) is not _AGAIN:
                return value
        else:
            check_same(known, tool, named, digest)
            if not known.state.finished:
                self.core.refresh(text)  # a person may have decided since we looked
        return (yield from self.finish(tool, text))

    def _pend(
        self, tool: Tool, named: dict[str, Any], body: bytes, digest: str, id_: IntentId, text: str
    ) -> Generator[Op, Any, _Try | None]:
        """Record it. Its first try, made ready while the disk writes; None: something stands in the way of it."""
        blob = (yield Store(body, early=True)) if len(body) > self.limits.blob_bytes_min else None
        event = pending_event(tool, named, digest, id_, self.core.log.id, blob=blob, now_ns=time.time_ns())
        ready: _Try | None = None

        pending = Drafted.of(self.core.log, event)

        def decide_pending(intent: Intent | None, cancelled: bool) -> Drafted | None:
            if cancelled:
                raise AttemptCancelled(f"{text}: its attempt was cancelled; nothing was sent")
            if intent is None:
                return pending
            check_same(intent, tool, named, digest)  # another process was here first
            return None

        def make_ready() -> None:
            nonlocal ready
            if isinstance(self._of_pending(event.data.get("deadline_ns"), unapproved=tool.spec.approval), decide.Send):
                ready = self._make_ready(tool, id_, event.data, named, 1, resend=False)

        crashpoints.reach("before-pending")
        yield Write(text, decide_pending, make_ready)
        crashpoints.reach("after-pending")
        return ready

    def _make_ready(self, tool: Tool, id_: IntentId, request: dict[str, Any], named: dict[str, Any], number: int, *, resend: bool) -> _Try:
        spec, key = tool.spec, request["key"]
        args, kwargs = spec.spread(own_copy(named), key)  # a changed signature must fail before Dispatched says "sent"
        event = ev.dispatched(id_.text, try_number=number, pid=os.getpid(), by=self.by, resend=resend)
        context = ToolContext(id_, key, number, resend, self.core.token, request.get("deadline_ns"), self._note, spec.emits)
        return _Try(number, resend, Drafted.of(self.core.log, event), context, args, kwargs)

    def finish(self, tool: Tool | None, text: str) -> Steps:
        """Bring an intent to its end from whatever state it is in: its value is returned, or what stands in the way is raised.

        `tool` is None when the program that runs does not know it; then nothing can be sent or asked.
        """
        until = time.monotonic() + self.patience_s
        while True:
            intent = self.core.known(text)
            if intent.state is _C:
                return self.records.replay(tool, intent)
            if intent.state is _A:
                raise _recorded(Abandoned, text, intent.reason)
            if intent.state is _X:
                kind = StaleAttempt if self.core.newest_attempt > self.core.attempt else AttemptCancelled
                raise kind(f"{text}: it was not sent and will not be: {intent.reason or 'its attempt was cancelled'}")
            seen = intent.version  # before the look that decides: what came since is seen by it
            facts = self._facts(tool, intent)
            action = decide.next_action(facts)
            request = intent.request
            if request is None:
                continue  # it was closed since we looked, by a cancel in another thread
            if isinstance(action, decide.Send) and tool is not None:
                if (retry_at_ns := intent.retry_at_ns) is not None:
                    wait_s = (retry_at_ns - time.time_ns()) / 1e9
                    if wait_s > 0:
                        if self.by == "recovery" and time.monotonic() + wait_s > until:
                            raise NotYet(text, retry_at_ns)
                        yield Sleep(wait_s)
                        if intent.state is not _P:  # cancelled, or decided, while we slept
                            continue
                named = self.records.arguments(request)
                ready = self._make_ready(tool, intent.id, request, named, intent.tries + 1, resend=action.resend)
                value = yield from self._send(tool, text, ready)
                if value is not _AGAIN:
                    return value
            elif isinstance(action, decide.Ask) and tool is not None:
                answer = yield from receiver.ask(self.records, tool, intent, request)
                action_after = decide.answered(self._facts(tool, intent), answer)  # as it is by now: its call may have gone out meanwhile
                if isinstance(action_after, decide.Settle):
                    yield from receiver.settle(self.records, tool, intent, seen, action_after)
                elif isinstance(action_after, decide.Later):
                    wait_s = max(0.0, (action_after.until_ns - time.time_ns()) / 1e9)
                    if time.monotonic() + wait_s > until:
                        raise Indeterminate(text, action_after.reason, action_after.until_ns)
                    yield Sleep(wait_s)
                else:
                    yield from self._leave(tool, intent, action_after.reason)
            elif isinstance(action, decide.Close):
                yield from self.records.resolve(intent, facts.state, action.decision, action.reason)
            elif isinstance(action, decide.Expire):
                expired = error_data("DeadlineExceeded", "the deadline passed before it was sent")
                yield from self.records.fail(intent, Failure("not_sent", expired))
            elif isinstance(action, decide.Leave):
                yield from self._leave(tool, intent, action.reason)
            elif isinstance(action, decide.Approval):
                raise NeedsApproval(text)
            else:
                # Never sent, or sent and only the tool could go on: nothing to record, somebody who has the tool will come.
                raise Indeterminate(text, f"the tool {intent.tool!r} is not registered here", time.time_ns())

    def _of_pending(self, deadline_ns: int | None, *, unapproved: bool) -> decide.Action:
        superseded = self.core.newest_attempt > self.core.attempt
        return decide.pending(time.time_ns(), deadline_ns, superseded=superseded, unapproved=unapproved)

    def _facts(self, tool: Tool | None, intent: Intent) -> decide.Facts:
        request = intent.request or {}
        spec = tool.spec if tool is not None else None
        core = self.core
        return decide.Facts(
            intent.state,
            decide.effective_class(intent.effect_class, spec.effect_class if spec is not None else None),
            intent.tries,
            time.time_ns(),
            intent.first_dispatched_ns or 0,
            intent.dispatched_ns or 0,
            request.get("key_ttl_ms"),
            max(request.get("settle_after_ms") or 0, spec.settle_after_ms if spec is not None else 0),
            request.get("deadline_ns"),
            can_ask=tool is not None and tool._ask is not None,
            emits=spec is not None and spec.emits,
            cancelled=core.cancelled,
            superseded=core.newest_attempt > core.attempt,
            overwritten=intent.resource is not None and core.overwritten(intent),
            alive=core.is_out(intent.id.text),
            tries_max=self.limits.tries_max,
            unapproved=(intent.needs_approval or (spec is not None and spec.approval)) and intent.approved_seq is None,
        )

    def _send(self, tool: Tool, text: str, ready: _Try) -> Steps:
        """One try. Its value, _AGAIN when the intent has to be looked at anew, or an exception that is the outcome."""
        spec, running = tool.spec, self.core.running
        try_number, resend, dispatched, context, args, kwargs = ready
        due = _D if resend else _P
        held_back = False

        def decide_dispatch(now: Intent | None, cancelled: bool) -> Drafted | None:
            nonlocal held_back
            fits = now is not None and now.tries == try_number - 1 and now.state is due
            held_back = fits and cancelled
            if not fits or cancelled:
                return None
            running[text] = None  # here, under the lock of the decisions: a cancel that comes behind this one knows that it goes out
            return dispatched

        try:
            written = yield Write(text, decide_dispatch)
        except GeneratorExit:
            running.pop(text, None)
            raise
        except BaseException as error:
            running.pop(text, None)
            # Interrupted, or a cancelled await: the record may be there, the call is surely not.
            try:
                now = self.core.get(text)
            except EventLogError:
                raise error from None  # it cannot even be read: what came first says more
            if not resend and now is not None and now.state is _D and now.tries == try_number:
                yield from self.records.not_sent(now, try_number, error_data("CancelledError", "cancelled before the call"), None)
            raise
        if written is None:
            running.pop(text, None)
            if held_back:
                # A cancel is on its way to the log. It may wait for another coroutine of this loop: who did not yield would stop both.
                yield Sleep(CANCEL_POLL_S)
            return _AGAIN
        crashpoints.reach("after-dispatched")
        if self.core.known(text).state is not _D:  # a cancel in another thread has closed it, as one that may go out: it need not
            running.pop(text, None)
            return _AGAIN
        try:
            value = yield Invoke(tool, text, try_number, context, args, kwargs, self._timeout(tool, context.deadline_ns))
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - _failed raises it again, or says what it came to
            crashpoints.reach("after-effect")
            yield from self._failed(tool, self.core.known(text), try_number, error)
            return _AGAIN
        crashpoints.reach("after-effect")
        encoded = self.records.encode(tool, value)
        if encoded[3] is not None:
            encoded = yield from self.records.store(value, encoded)
        kind, result, returned, _ = encoded
        source = "resend" if resend else "call"
        done = [*context.emitted, *ev.completed(text, kind=kind, try_number=try_number, source=source, result=result)]

        def decide_outcome(now: Intent | None, cancelled: bool) -> Sequence[Event] | Drafted | None:
            wanted = outcome_or_late(now, cancelled and spec.emits, try_number, done)
            # What a tool emitted is looked at as any other event.
            return Drafted.of(self.core.log, *done) if wanted is done and not context.emitted else wanted

        try:
            written = yield Write(text, decide_outcome)
        except PayloadError as error:  # more than this log takes in one commit
            if context.emitted:
                yield from self._failed(tool, self.core.known(text), try_number, error)  # then nothing of it happened
                return _AGAIN
            kind, result, returned, _ = yield from self.records.keep(tool, value, spill=True)
            done = [*ev.completed(text, kind=kind, try_number=try_number, source=source, result=result)]
            written = yield Write(text, decide_outcome)
        crashpoints.reach("after-committed")
        if written is None or written[-1].type != ev.COMMITTED:
            return _AGAIN  # somebody decided while the call was out: what they recorded is what every replay will say
        if kind == "error":
            raise EffectFailed.recorded(text, result["error"])
        return returned

    def _timeout(self, tool: Tool, deadline_ns: int | None) -> float | None:
        left = None if deadline_ns is None else max(0.001, (deadline_ns - time.time_ns()) / 1e9)
        timeout_s = tool.spec.timeout_s
        return left if timeout_s is None else timeout_s if left is None else min(timeout_s, left)

    def _note(self, text: str, external_id: str) -> None:
        if self.core.writes_here(text):
            raise EffectError(
                f"{text}: {external_id!r:.80} came when its call was over, on the event loop that writes down what it came to"
            )
        event = ev.evidence(text, external_id)
        if self.core.write(text, lambda now, cancelled: (event,) if now is not None and now.state in (_D, _I) else None) is None:
            raise EffectError(f"{text}: {external_id!r:.80} came when it was closed: by a cancel, a person, or its own outcome")

    def _failed(self, tool: Tool, intent: Intent, try_number: int, error: BaseException) -> Steps:
        """A try raised. Returns when the intent has to be looked at again, raises when that was the end of the call."""
        spec, text = tool.spec, intent.id.text
        failure = judge(error, not_sent=spec.not_sent, rejects=spec.rejects, classify=spec.classify)
        facts = self._facts(tool, intent)
        harmless = facts.effect_class is _READ_ONLY or spec.emits
        more = try_number < spec.retry.attempts_max and not self.core.cancelled
        delay_s = spec.retry.delay_s(try_number, failure.retry_after)
        retry_at_ns = facts.now_ns + round(delay_s * 1e9)
        more = more and (facts.deadline_ns is None or retry_at_ns < facts.deadline_ns)
        if failure.verdict == "not_sent" and not intent.resent and (more or self.core.cancelled):
            yield from self.records.not_sent(intent, try_number, failure.error, retry_at_ns if more else None)
            return
        if failure.verdict == "rejected" or failure.verdict == "not_sent":
            # A resend that is refused, or did not leave, says nothing about the try before it.
            if not (intent.resent and decide.refused_on_resend(facts.effect_class)):
                yield from self._end(intent, try_number, failure, error)
                return
        elif harmless and not more and isinstance(error, Exception):
            yield from self._end(intent, try_number, failure, error)
            return
        yield from self.records.classify(intent, facts, failure.error)
        if not isinstance(error, Exception):
            action = decide.next_action(self._facts(tool, intent))
            if isinstance(action, decide.Leave) and not facts.alive:
                yield from self.records.resolve(intent, _D, "indeterminate", action.reason)
            raise error
        facts = self._facts(tool, intent)
        if more and decide.may_repeat_unknown(facts):
            yield Sleep(delay_s)
        elif isinstance(decide.next_action(facts), decide.Send):
            raise Indeterminate(text, f"try {try_number} gave no answer ({failure.error['type']})", facts.now_ns) from error
        else:
            try:
                yield from self.finish(tool, text)
            except Indeterminate as left:
                raise left from error

    def _end(self, intent: Intent, try_number: int, failure: Failure, error: BaseException) -> Steps:
        text = intent.id.text
        yield from self.records.fail(intent, failure)
        crashpoints.reach("after-committed")
        if intent.state is _C and intent.outcome_kind == "error" and intent.source == "call":
            raise EffectFailed.recorded(text, failure.error) from error

    def _leave(self, tool: Tool | None, intent: Intent, reason: str) -> Steps:
        text, facts = intent.id.text, self._facts(tool, intent)
        if intent.state is _D:
            yield from self.records.classify(intent, facts, None)
            if not facts.alive or facts.cancelled:
                yield from self.records.resolve(intent, _D, "indeterminate", reason)
        if intent.state in (_D, _I):
            raise Indeterminate(text, intent.reason or reason)


def _recorded(kind: type[EffectFailed], text: str, reason: str | None) -> EffectFailed:
    raised = kind(f"nobody knows whether it happened; abandoned: {reason or 'no reason given'}")
    raised.intent = text
    return raised
