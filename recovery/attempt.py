"""One attempt of a branch, alive: the shell through which a program reaches its tools."""

from __future__ import annotations

import asyncio
import enum
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from eventlog import Event
from eventlog.projections import effect_events as ev
from eventlog.projections.effects import EffectsState, Intent
from eventlog.projections.intent import IntentId, IntentState, attempt_text, intent_id, numbered
from eventlog.recovery.core import AttemptCore
from eventlog.recovery.decide import attempt_status, effective_class
from eventlog.recovery.drive import drive, drive_async
from eventlog.recovery.errors import (
    AttemptBusy,
    AttemptCancelled,
    BadTool,
    EffectError,
    Indeterminate,
    StaleAttempt,
    StepRequired,
    UnguardedEffect,
    UnresolvedIntents,
)
from eventlog.recovery.guard import Guard
from eventlog.recovery.observing import observing
from eventlog.recovery.sealed import inside_tool
from eventlog.recovery.tool import Tool
from eventlog.recovery.writing import owner_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from eventlog.recovery.toolbox import Toolbox

__all__ = ["Attempt", "CancelStatus", "Cancellation"]

POLL_S = 0.005
_UNOBSERVED: AbstractContextManager[None] = nullcontext()


class CancelStatus(enum.StrEnum):
    """What cancelling an attempt achieved."""

    CANCELLED = "cancelled"
    INDETERMINATE = "indeterminate"


@dataclass(frozen=True, slots=True)
class Cancellation:
    """`indeterminate`: intents that may have happened, without a record of it; `happened`: the Committed ones; `dropped`: the others."""

    status: CancelStatus
    indeterminate: tuple[str, ...]
    happened: tuple[str, ...]
    dropped: tuple[str, ...]


class Attempt:
    """The guard of attempt `number` of `branch`: a context manager (`with`, `async with`). While it is open, this process owns the branch.

    Steps are numbered from 1 in the order of calls by the thread or task that opened it. Calls from other threads or tasks, and from
    inside a tool, name their step: their order would not be the same at the next run.
    """

    def __init__(self, toolbox: Toolbox, branch: str, number: int) -> None:
        self.name = attempt_text(branch, number)
        self.branch = branch
        self.number = number
        self._toolbox = toolbox
        self._guard: Guard | None = None
        self._owner: Any = None
        self._lock = threading.Lock()
        self._flying: dict[str, list[None]] = {}  # intents whose call is out, each with a mark that is its caller's own
        self._next_step = 1
        self._thread = 0
        self._task: asyncio.Task[Any] | None = None
        self._closed = False

    # -- opening and closing ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self._open(self._may_start)

    def _enter_for_recovery(self) -> Self:
        """Open it whatever newer attempts there are: recovery acts for the old ones too."""
        return self._open(lambda state, seq: None)

    def _open(self, check: Callable[[EffectsState, int], None]) -> Self:
        if self._guard is not None or self._closed:
            raise EffectError(f"{self.name}: an Attempt is opened once; make another with tools.attempt(...)")
        view = self._toolbox.view
        owner = self._toolbox.log.own(owner_name(self.branch))
        if owner is None:
            view.read(check)  # what the log has against it says more than that somebody is alive
            raise AttemptBusy(f"{self.name}: somebody alive works on branch {self.branch!r}; wait for it to end, or end it")
        try:
            core = AttemptCore(view, self.branch, self.number, check)  # reads now: the owner before us may have written up to its end
            self._guard = Guard(core, self._toolbox.blobs, self._toolbox.limits)
        except BaseException:
            owner.release()
            raise
        self._owner = owner
        self._thread = threading.get_ident()
        self._task = _current_task()
        return self

    def _may_start(self, state: EffectsState, seq: int) -> None:
        open_: list[str] = []
        for number in state.branches.get(self.branch, ()):
            if number >= self.number:
                continue
            for text in state.attempts[f"{self.branch}@{number}"].intents:
                intent = state.intents[text]
                if intent.state in (IntentState.DISPATCHED, IntentState.INDETERMINATE) and not _operation_scoped(intent):
                    open_.append(text)
        if open_:
            raise UnresolvedIntents(
                f"{self.name}: {', '.join(open_[:3])}{' and others' if len(open_) > 3 else ''} may have been sent; a new attempt could "
                "do it again: run recover(log, tools), or eventlog effects resolve",
                open_,
            )
        newest = state.newest_attempt(self.branch)
        if newest > self.number:
            raise StaleAttempt(f"{self.name}: attempt {newest} of branch {self.branch!r} is in the log; older ones may not act any more")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave()
        self._toolbox.view.keep()

    def _leave(self) -> None:
        self._closed = True
        self._release_when_idle()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave()
        if self._toolbox.view.due:
            await asyncio.to_thread(self._toolbox.view.keep)

    def _release_when_idle(self) -> None:
        # A call that was given up but still runs is somebody alive: recovery must not send it again beside it.
        with self._lock:
            core = self._guard.core if self._guard is not None else None
            busy = core is None or core.running or core.given_up or self._flying
            if self._closed and not busy and self._owner is not None:
                owner, self._owner = self._owner, None
                owner.release()

    # -- calls --------------------------------------------------------------------------------------------------------------

    def call(self, tool: Tool, /, *args: Any, step: int | str | None = None, **kwargs: Any) -> Any:
        """Do it once, durably, and give its result; at a replay give the recorded result without a call.

        Raises Indeterminate when nobody knows whether it happened, EffectFailed (NotSent, Rejected, Abandoned) when the recorded outcome
        is an error, NonDeterminism when the step is recorded with another tool or other arguments, and a tool's own KeyboardInterrupt.
        """
        guard = self._ready(tool)
        if tool.spec.is_async:
            raise EffectError(f"{tool.spec.name} is an async tool: use await attempt.acall({tool.spec.name}, ...)")
        named, body = tool.spec.bind(args, kwargs)
        id_ = self._id(step)
        text = id_.text
        mine: list[None] = []
        try:
            while self._flying.setdefault(text, mine) is not mine:  # one at a time: whoever comes second finds the first one's record
                time.sleep(POLL_S)
            if self._closed:
                raise self._is_closed()
            if self._toolbox.observer is None:
                return drive(guard, guard.call(tool, named, body, id_), self._release_when_idle)
            with self._observed(text, tool):
                return drive(guard, guard.call(tool, named, body, id_), self._release_when_idle)
        finally:
            flying = self._flying
            if text in flying and flying[text] is mine:  # no call up to here: Ctrl-C must not leave it flying
                if text in guard.core.running:
                    del guard.core.running[text]
                del flying[text]
            if self._closed:
                self._release_when_idle()

    def acall(self, tool: Tool, /, *args: Any, step: int | str | None = None, **kwargs: Any) -> Awaitable[Any]:
        """The same for coroutines; a synchronous tool runs in a thread. The step is numbered here and now, so that gather() is fine."""
        guard = self._ready(tool)
        named, body = tool.spec.bind(args, kwargs)
        id_ = self._id(step)
        return self._acall(guard, tool, named, body, id_)

    async def _acall(self, guard: Guard, tool: Tool, named: dict[str, Any], body: bytes, id_: IntentId) -> Any:
        text = id_.text
        mine: list[None] = []
        try:
            while self._flying.setdefault(text, mine) is not mine:
                await asyncio.sleep(POLL_S)  # the first one may be a coroutine of this loop, or a thread
            if self._closed:
                raise self._is_closed()
            if self._toolbox.observer is None:
                return await drive_async(guard, guard.call(tool, named, body, id_), self._release_when_idle)
            with self._observed(text, tool):
                return await drive_async(guard, guard.call(tool, named, body, id_), self._release_when_idle)
        finally:
            flying = self._flying
            if text in flying and flying[text] is mine:
                if text in guard.core.running:
                    del guard.core.running[text]
                del flying[text]
            if self._closed:
                self._release_when_idle()

    def _ready(self, tool: Tool) -> Guard:
        guard = self._guard
        if guard is None or self._closed:
            raise self._is_closed()
        if not isinstance(tool, Tool):
            raise UnguardedEffect(f"{self.name}: {tool!r:.100} is no registered tool: declare it with @tools.tool(EffectClass...)")
        if self._toolbox.get(tool.spec.name) is not tool:
            raise BadTool(f"{tool.spec.name} is registered in another Toolbox; recovery with this one would not find it")
        return guard

    def _id(self, step: int | str | None) -> IntentId:
        if step is None:
            return numbered(self.branch, self.number, self.name, self._next())
        return intent_id(self.branch, self.number, step)

    def _next(self) -> int:
        if threading.get_ident() != self._thread:
            raise StepRequired(f"{self.name}: a call from another thread has to name its step: attempt.call(tool, ..., step='name')")
        task = _current_task()
        if self._task is None or self._task.done():
            self._task = task  # opened before the loop ran, or that loop is over: the first task that calls is the attempt's own
        elif task is not None and task is not self._task:
            raise StepRequired(f"{self.name}: a call from another task has to name its step: attempt.acall(tool, ..., step='name')")
        if inside_tool():
            raise StepRequired(f"{self.name}: a call inside a tool has to name its step: a replay of the outer one will not make it")
        taken = self._next_step
        self._next_step += 1
        return taken

    def _is_closed(self) -> EffectError:
        # Looked at again once the call flies, from when on the branch stays ours: a task may begin behind the end of the attempt.
        return EffectError(f"{self.name} is not open: with tools.attempt({self.branch!r}, {self.number}) as attempt: ...")

    def _observed(self, text: str, tool: Tool | None, by: str = "guard") -> AbstractContextManager[None]:
        observer, guard = self._toolbox.observer, self._guard
        if observer is None or guard is None:
            return _UNOBSERVED
        known = guard.core.get(text)
        if tool is not None:
            name, class_ = tool.spec.name, tool.spec.effect_class
        elif known is not None:
            name, class_ = known.tool, known.effect_class
        else:
            return _UNOBSERVED
        worst = class_ if known is None else effective_class(known.effect_class, class_)
        return observing(observer, guard.core, text, name, worst, by)

    # -- cancelling ---------------------------------------------------------------------------------------------------------

    def cancel(self, grace: float = 0.0, *, reason: str = "cancelled by the program", actor: str = "program") -> Cancellation:
        """Stop the attempt, durably, and say what that achieved (table in docs/effects.md).

        Nothing of the attempt is sent any more, and nothing is resent to find out. Calls that are out are awaited for `grace` seconds;
        their tools see `ctx.cancelled`. A synchronous tool cannot be interrupted: if it is still out then, its intent is Indeterminate,
        and its late result is kept. Call it from any thread. May be repeated: the first one is recorded.
        """
        guard = self._guard
        if guard is None or self._closed:
            raise EffectError(f"{self.name} is not open")
        if _in_event_loop():
            raise EffectError(f"{self.name}: cancel() would stop the event loop that the calls run on: use await attempt.acancel()")
        core = guard.core
        event = ev.attempt_cancelled(self.branch, self.number, reason=reason, actor=actor)

        def decide_cancel(intent: Intent | None, cancelled: bool) -> Sequence[Event] | None:
            return None if core.cancelled else (event,)

        mark: list[None] = []
        try:
            core.begin_cancel(mark)
            core.write(core.stream, decide_cancel)
        finally:
            core.end_cancel(mark)
        core.token._set()
        core.reload()  # a person may have decided before it, about what waits for one
        end = time.monotonic() + grace
        while (self._flying or core.running or core.given_up) and time.monotonic() < end:
            time.sleep(POLL_S)
        for intent in core.unresolved():
            tool = self._toolbox.get(intent.tool)
            try:
                drive(guard, guard.finish(tool, intent.id.text), self._release_when_idle, run_async=True)
            except (AttemptCancelled, StaleAttempt, Indeterminate):
                continue  # recorded: the summary below reads it from there
            except EffectError:
                continue  # an error outcome is an outcome
        return self._summary(core.recorded())

    async def acancel(self, grace: float = 0.0, *, reason: str = "cancelled by the program", actor: str = "program") -> Cancellation:
        """The same, without blocking the event loop that the calls run on."""
        return await asyncio.to_thread(self.cancel, grace, reason=reason, actor=actor)

    @staticmethod
    def _summary(intents: Sequence[Intent]) -> Cancellation:
        status = attempt_status((one.state, one.effect_class) for one in intents)
        texts: dict[str, list[str]] = {"indeterminate": [], "happened": [], "dropped": []}
        for one in intents:
            if one.state is IntentState.COMMITTED:
                texts["happened"].append(one.id.text)
            elif one.state in (IntentState.CANCELLED, IntentState.PENDING):
                texts["dropped"].append(one.id.text)
            else:
                texts["indeterminate"].append(one.id.text)
        return Cancellation(CancelStatus(status), *(tuple(texts[name]) for name in ("indeterminate", "happened", "dropped")))

    @property
    def intents(self) -> list[Intent]:
        """What this attempt has recorded so far, in order. Do not change it. The last word of a call that is out may not be on disk yet."""
        return [] if self._guard is None else self._guard.core.intents()

    def _finish(self, tool: Tool | None, text: str, by: str, patience_s: float) -> Any:
        """For recovery: bring one intent of this attempt to its end."""
        if self._guard is None:
            raise EffectError(f"{self.name} is not open")
        guard = Guard(self._guard.core, self._toolbox.blobs, self._toolbox.limits, by=by, patience_s=patience_s)
        try:
            with self._observed(text, tool, by):
                return drive(guard, guard.finish(tool, text), self._release_when_idle, run_async=True)
        finally:
            guard.core.running.pop(text, None)

    async def _afinish(self, tool: Tool | None, text: str, by: str, patience_s: float) -> Any:
        """The same on the running event loop, for tools that live on it."""
        if self._guard is None:
            raise EffectError(f"{self.name} is not open")
        guard = Guard(self._guard.core, self._toolbox.blobs, self._toolbox.limits, by=by, patience_s=patience_s)
        try:
            with self._observed(text, tool, by):
                return await drive_async(guard, guard.finish(tool, text), self._release_when_idle)
        finally:
            guard.core.running.pop(text, None)

    def _state_of(self, text: str) -> IntentState | None:
        intent = self._guard.core.get(text) if self._guard is not None else None
        return intent.state if intent is not None else None


def _operation_scoped(intent: Intent) -> bool:
    return intent.state is IntentState.DISPATCHED and (intent.request or {}).get("key_scope") == "operation"


def _in_event_loop() -> bool:
    return asyncio._get_running_loop() is not None


def _current_task() -> asyncio.Task[Any] | None:
    loop = asyncio._get_running_loop()  # the one that does not raise: an exception for each call of a program without a loop costs more
    return None if loop is None else asyncio.current_task(loop)
