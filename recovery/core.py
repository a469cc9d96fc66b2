"""The part of the log that one attempt is about: its folded state, kept by the handlers that fold the log, and guarded writes.

A write is a function of the state: `decide(intent, cancelled) -> events`, and no decision may rest on what is no longer so. Whoever owns
the branch is the only one to write about its Pending and Dispatched intents, so there a lock in this process is enough (an Expect on
each commit would have every writer read what the 15 others wrote: a third of the throughput of 16 threads, measured). About an
Indeterminate or finished intent, or one that waits for an approval, a person may decide at any moment: there the commit names what was
seen, and a conflict has the decision made anew.

What a commit says is folded while the disk still writes it, which costs no time then. Should it fail, or be interrupted, the state is
read anew from the log before anybody sees it again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from eventlog import Commit, Conflict, Durability, Event, EventLog, Expect, Recorded
from eventlog.errors import Corrupt, LockTimeout, NotWritten, PayloadError
from eventlog.projections import effect_events as ev
from eventlog.projections.effects import HANDLERS, EffectsState, Intent
from eventlog.projections.folding import View
from eventlog.projections.intent import IntentState
from eventlog.recovery.errors import EffectError
from eventlog.recovery.writing import CancelToken, Decide, Drafted, OpenIntent, WrittenToTheEnd

if TYPE_CHECKING:
    from eventlog.payload import Draft

__all__ = ["AttemptCore"]

_TYPES = frozenset(HANDLERS)
TURN_S = 0.001
_PENDING = IntentState.PENDING
_OURS = (_PENDING, IntentState.DISPATCHED)
_FINISHED = frozenset(state for state in IntentState if state.finished)
_LEAVING = frozenset({ev.PENDING, ev.DISPATCHED})
_NOTHING_WRITTEN = (PayloadError, NotWritten, LockTimeout)
_IMMEDIATE = Durability.IMMEDIATE
_new = tuple.__new__
CONFLICTS_MAX = 1000
_NO_DOUBT: list[None] = []


class AttemptCore:
    """State and writes of one attempt. The caller owns the branch (log.own), so that foreign events are rare: a person's, a cancel's."""

    def __init__(self, view: View[EffectsState], branch: str, attempt: int, check: Callable[[EffectsState, int], None]) -> None:
        """`check(whole state, seq)` may raise: then nothing is taken on."""

        def take(whole: EffectsState, at: int) -> tuple[EffectsState, int]:
            check(whole, at)
            return whole.only(branch, attempt), at

        state, seq = view.read(take)
        self.log: EventLog = view.log
        self._view = view
        self.branch = branch
        self.attempt = attempt
        self.stream = f"{branch}@{attempt}"
        self.token = CancelToken()
        # Intents whose call has not come back, from the decision to send them on. A dict, since one is taken from it without a call, behind
        # which Ctrl-C may come.
        self.running: dict[str, None] = {}
        self.given_up: set[str] = set()  # those whose caller does not wait any more
        self._state = state  # its handlers change it in place
        self._lock = threading.RLock()
        self._loaded_seq = seq
        self._outcomes: dict[str, dict[str, Any]] | None = None
        self._open: dict[str, OpenIntent] = {}
        # A commit was begun that did not return, so the state may not be what the log says: a new object for each such doubt, and the last
        # one that was settled. A flag could be lowered by who read the log before the next doubt came.
        self._doubt = self._settled = _NO_DOUBT
        self.newest_attempt = max(state.newest_attempt(branch), attempt)  # stays: a newer one needs the branch, which we own
        self.cancelled = False
        self._look_for_cancel()
        self._cancelling: list[list[None]] = []  # the marks of cancels that are not in the log yet
        self._leaving = 0  # decisions to let something leave that are not in the log yet
        self._all_left = threading.Condition(self._lock)
        self._waiting = 0  # for that
        if self.cancelled:
            self.token._set()

    def get(self, text: str) -> Intent | None:
        if self._doubt is not self._settled:
            self.reload()
        return self._state.intents.get(text)

    def known(self, text: str) -> Intent:
        """The intent of that text. Raises ValueError when there is none."""
        intent = self.get(text)
        if intent is None:
            raise ValueError(f"{text}: no such intent in this attempt")
        return intent

    def intents(self) -> list[Intent]:
        """The intents of the attempt, in the order of their Pending events."""
        if self._doubt is not self._settled:
            self.reload()
        with self._lock:
            return list(self._state.intents.values())

    def recorded(self) -> list[Intent]:
        """The same as the log has it, durably, and so what may be told: what is folded here may still be on its way to the disk. Copies."""
        return self._view.read(lambda whole, at: list(whole.only(self.branch, self.attempt).intents.values()))

    def _prepare(self, text: str, known: OpenIntent, decide: Decide) -> tuple[Sequence[Event], Draft | None, Expect | None] | None:
        """The events that `decide` wants now, and what must still hold when they are written. None: it wants none.

        What leaves is counted, until it is in the log or `_stays`.
        """
        me = threading.get_ident()
        if self._doubt is not self._settled:
            self.reload()
        with self._lock:
            if self._doubt is not self._settled:  # it came between: a cancel, say, that was interrupted, and is in the log
                self.reload()
            intent = self._state.intents.get(text)
            wanted = decide(intent, self.cancelled or bool(self._cancelling))
            if not wanted:
                return None
            events, draft = wanted if isinstance(wanted, Drafted) else (wanted, None)
            expect = None
            if intent is not None and (intent.state not in _OURS or (intent.needs_approval and intent.waits_for_approval)):
                expect = Expect((text,), known.seen)
            if events[0][0] in _LEAVING:  # such an event is written alone
                known.leaving = me
                self._leaving += 1
            elif intent is not None and intent.state is _PENDING:
                expect = Expect((text, self.stream), known.seen)  # a cancel, which nothing else of ours waits for, closes what is Pending
            return events, draft, expect

    def _stays(self, known: OpenIntent) -> None:
        with self._lock:
            known.leaving = 0
            self._leaving -= 1
            if self._waiting:
                self._all_left.notify_all()

    def begin_cancel(self, mark: list[None]) -> None:
        """From now on no decision lets anything leave; wait for those that were made before, so that none is written behind the cancel.

        Raises EffectError in a thread that would wait for itself. `mark` is the caller's own, for end_cancel: two may cancel at once, and
        one of them fail.
        """
        me = threading.get_ident()
        with self._lock:
            if any(known.leaving == me for known in list(self._open.values())):
                raise EffectError(
                    f"{self.stream}: a signal handler cancels it in the middle of a call of its own thread: "
                    "set a flag in it, or cancel in another thread"
                )
            self._cancelling.append(mark)
            self._waiting += 1
            try:
                while self._leaving:
                    self._all_left.wait()
            finally:
                self._waiting -= 1

    def end_cancel(self, mark: list[None]) -> None:
        """The cancel is in the log, or it failed and was none."""
        with self._lock:
            self._cancelling = [one for one in self._cancelling if one is not mark]

    def _applied(self, text: str, known: OpenIntent, events: Sequence[Event], first: int, time_ns: int) -> None:
        """Fold what was written. An event that a refresh saw first is not folded twice."""
        seq, last = first, first + len(events) - 1
        with self._lock:
            state = self._state
            intent = state.intents.get(text)
            folded = intent.version if intent is not None else last if text == self.stream and self.cancelled else 0
            for type_, data, stream in events:
                handler = HANDLERS.get(type_)  # none: an event that a tool emitted
                if handler is not None and seq > folded:
                    handler(state, _new(Recorded, (seq, time_ns, type_, stream, data)))
                seq += 1
            if intent is None:
                if text == self.stream:
                    self._look_for_cancel()
            elif intent.state in _FINISHED and not self.is_out(text):
                self._open.pop(text, None)  # a long attempt must not grow with what is over
            known.receipt = _new(Commit, (first, last, time_ns, _IMMEDIATE))
            if last > known.seen:
                known.seen = last
            if known.leaving:
                known.leaving = 0
                self._leaving -= 1
                if self._waiting:
                    self._all_left.notify_all()

    def is_out(self, text: str) -> bool:
        """Is a call of that intent out, in this process, or about to go out?"""
        return text in self.running or text in self.given_up

    def writes_here(self, text: str) -> bool:
        """Is a coroutine of the event loop of this thread in the middle of a write about that intent? Who waited for it would stop both."""
        known, loop = self._open.get(text), asyncio._get_running_loop()
        return loop is not None and known is not None and known.loop is loop

    def receipt(self, text: str) -> Commit:
        """Of the last commit about that intent by this process. Raises KeyError when there is none, or it is over."""
        receipt = self._open[text].receipt
        if receipt is None:
            raise KeyError(text)
        return receipt

    def overwritten(self, intent: Intent) -> bool:
        """Has another intent, of any branch, been sent to the same resource since?"""
        return intent.resource is not None and self._view.read(lambda whole, at: whole.overwritten(intent))

    def refresh(self, text: str) -> None:
        """Fold what others wrote about the intent or the attempt."""
        self._refresh(text, self._about(text))

    def _refresh(self, text: str, known: OpenIntent) -> None:
        # `known` is the writer's own, which may have left the table meanwhile: what it expects has to move on, or it conflicts for ever.
        head = int(self.log.head)
        found = list(self.log.read(known.seen, upto=head, types=_TYPES, streams={text, self.stream}))
        with self._lock:
            for event in found:
                self._fold(event)
            known.seen = max(known.seen, head)
            if self.cancelled:
                self.token._set()

    def reload(self) -> None:
        """Take the state from the log, whatever was folded here. An Intent that somebody holds is made true, not replaced."""
        with self._lock:
            doubt = self._doubt  # one that comes while we read stays
            part, seq = self._view.read(lambda whole, at: (whole.only(self.branch, self.attempt), at))
            for text, old in self._state.intents.items():
                new = part.intents.get(text)
                if new is not None:
                    old.become(new)
                    part.intents[text] = old
            self._state = part
            self._loaded_seq = max(self._loaded_seq, seq)
            for known in list(self._open.values()):  # others may begin to write meanwhile
                known.seen = max(known.seen, seq)
            self._look_for_cancel()
            self._settled = doubt
            if self.cancelled:
                self.token._set()

    def write(self, text: str, decide: Decide, meanwhile: Callable[[], None] | None = None) -> Sequence[Event] | None:
        """Decide and commit, durably; the events that were written, or None. Raises what decide raises, and commit errors.

        `meanwhile()` is called once if they are written, if possible while the disk is at it.
        """
        known = self._open.get(text) or self._about(text)
        with known.turn:
            for _ in range(CONFLICTS_MAX):
                try:  # from before the decision on: Ctrl-C right behind it must not leave it counted as leaving
                    ready = self._prepare(text, known, decide)
                    if ready is None:
                        return None
                    events, draft, expect = ready

                    def written(first: int, time_ns: int, events: Sequence[Event] = events) -> None:
                        self._applied(text, known, events, first, time_ns)
                        if meanwhile is not None:
                            meanwhile()

                    try:
                        self.log.commit_draft(draft or self.log.draft(events), expect, written)
                        return events
                    except Conflict:
                        self._refresh(text, known)
                    except _NOTHING_WRITTEN:
                        raise
                    except BaseException:
                        self._doubt = [None]  # Ctrl-C: it may be in the log all the same
                        raise
                finally:
                    if known.leaving:
                        self._stays(known)
        raise Conflict(f"{text}: {CONFLICTS_MAX} decisions in a row were overtaken; nothing was written")

    async def awrite(
        self, text: str, decide: Decide, meanwhile: Callable[[], None] | None = None
    ) -> tuple[Sequence[Event] | None, asyncio.CancelledError | None]:
        """The same, without blocking the event loop. A cancellation meanwhile comes back beside the answer: the record is there."""
        known = self._open.get(text) or self._about(text)
        cancelled: asyncio.CancelledError | None = None
        while not known.turn.acquire(blocking=False):
            try:
                await asyncio.sleep(TURN_S)
            except asyncio.CancelledError as error:  # what is to be written may be an outcome
                cancelled = error
        try:
            known.loop = asyncio._get_running_loop()
            for _ in range(CONFLICTS_MAX):
                try:
                    ready = self._prepare(text, known, decide)
                    if ready is None:
                        return None, cancelled
                    events, draft, expect = ready
                    future, place = WrittenToTheEnd(), None
                    try:
                        place = self.log.begin_commit(draft or self.log.draft(events), _IMMEDIATE, expect, future)
                        if meanwhile is not None:
                            meanwhile()
                        while not future.done():
                            try:
                                await future
                            except asyncio.CancelledError as error:
                                cancelled = error
                        self.log.end_commit(place, _IMMEDIATE)
                        self._applied(text, known, events, place.first, place.time)
                        return events, cancelled
                    except Conflict:
                        self._refresh(text, known)
                    except _NOTHING_WRITTEN:
                        raise
                    except BaseException:
                        self._doubt = [None]  # Ctrl-C, or the coroutine was closed: it may be in the log all the same
                        if place is not None and not future.done():
                            self.log.withdraw(place)
                        raise
                finally:
                    if known.leaving:
                        self._stays(known)
        finally:
            known.loop = None
            known.turn.release()
        raise Conflict(f"{text}: {CONFLICTS_MAX} decisions in a row were overtaken; nothing was written")

    def _about(self, text: str) -> OpenIntent:
        return self._open.setdefault(text, OpenIntent(self._loaded_seq))

    def outcome(self, intent: Intent) -> dict[str, Any]:
        """The recorded outcome of a Committed intent."""
        text, seq = intent.id.text, intent.outcome_seq
        if seq is None:
            raise ValueError(f"{text} has no outcome")
        with self._lock:
            if self._outcomes is None:
                # One pass for a whole replay, instead of one search for each step.
                wanted = {one.id.text: one.outcome_seq for one in self._state.intents.values() if one.outcome_seq}
                first = min(wanted.values(), default=seq)
                self._outcomes = {
                    event.stream: event.data
                    for event in self.log.read(first - 1, types={ev.OUTCOME}, streams=set(wanted))
                    if wanted.get(event.stream) == event.seq
                }
            known = self._outcomes.get(text)
        if known is not None:
            return known
        for event in self.log.read(seq - 1, upto=seq):
            return event.data
        raise Corrupt(f"{self.log.path}: event {seq}, the outcome of {text}, is not in the log; run eventlog verify", seq=seq)

    def _fold(self, event: Recorded) -> None:
        intent = self._state.intents.get(event.stream)
        if intent is not None and event.seq <= intent.version:
            return
        if event.type == ev.CANCELLED and self.cancelled:
            return
        HANDLERS[event.type](self._state, event)
        if event.type == ev.CANCELLED:
            self._look_for_cancel()

    def _look_for_cancel(self) -> None:
        record = self._state.attempts.get(self.stream)
        self.cancelled = record is not None and record.cancelled_seq is not None

    def unresolved(self) -> list[Intent]:
        """Intents that may have been sent and have no outcome."""
        return [one for one in self.intents() if one.state in (IntentState.DISPATCHED, IntentState.INDETERMINATE)]
