"""The two ways to carry out what the guard asks for: with threads, and with coroutines."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from eventlog.errors import LogClosed
from eventlog.recovery.core import AttemptCore
from eventlog.recovery.errors import EffectError
from eventlog.recovery.guard import Guard
from eventlog.recovery.ops import AskHook, Invoke, Op, Sleep, Steps, Store, Write
from eventlog.recovery.sealed import Permit, in_tool, run_sealed

__all__ = ["ThreadCall", "drive", "drive_async"]

SLEEP_SLICE_S = 0.05


class ThreadCall:
    """A synchronous tool in a thread of its own, so that its caller can stop to wait. The tool itself cannot be stopped.

    Once abandoned, its result goes to `late` instead: exactly one of the two gets it.
    """

    def __init__(self, permit: Permit, late: Callable[[Any, BaseException | None], None], given_up: Callable[[], None]) -> None:
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._permit = permit
        context = contextvars.copy_context()  # traces and the like go with the call
        self._late, self._given_up = late, given_up
        self._lock = threading.Lock()
        self._abandoned = self._begun = False
        # A daemon: a tool that hangs must not keep the process from ending. Then its intent stays Dispatched, which is the truth.
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="eventlog-tool", daemon=True)

    def start(self) -> None:
        """Call `abandon` should this raise: Ctrl-C may come when the thread is there already."""
        self._thread.start()

    def _run(self) -> None:
        value, error = None, None
        with self._lock:
            begun = self._begun = not self._abandoned
        if not begun:
            return  # nothing is sent, and nobody waits
        try:
            value = run_sealed(self._permit)
        except BaseException as raised:  # noqa: BLE001 - whatever it is, the caller gets it
            error = raised
        with self._lock:
            abandoned = self._abandoned
            if not abandoned:
                if error is None:
                    self.future.set_result(value)
                else:
                    self.future.set_exception(error)
        if abandoned:
            self._late(value, error)

    def abandon(self) -> bool:
        """Stop waiting. False: the result is there already."""
        with self._lock:
            if not self.future.done():
                self._abandoned = True
                if self._begun:
                    self._given_up()  # C, and nothing between the two: Ctrl-C leaves both done. From now on its thread says when it is over
            return self._abandoned


def _permit(core: AttemptCore, op: Invoke) -> Permit:
    args = (op.context, *op.args) if op.tool.spec.takes_ctx else op.args
    return Permit(op.tool._seal, core.receipt(op.text), args, op.kwargs)


def _late(guard: Guard, op: Invoke, idle: Callable[[], None]) -> Callable[[Any, BaseException | None], None]:
    def record(value: Any, error: BaseException | None) -> None:
        try:
            drive(guard, guard.records.late(op.tool, op.text, op.try_number, value, error), idle)
        except LogClosed:
            return  # the program has ended its log, as a crash would: what is recorded, that nobody knows, stays true
        finally:
            guard.core.given_up.discard(op.text)
            idle()

    return record


def drive(guard: Guard, steps: Steps, idle: Callable[[], None], *, run_async: bool = False) -> Any:
    """Carry out `steps` in this thread. `idle()` is called when a late result is recorded; `run_async`: async tools get their own loop."""
    write = guard.core.write
    result: Any = None
    thrown: BaseException | None = None
    while True:
        try:
            op = steps.send(result) if thrown is None else steps.throw(thrown)
        except StopIteration as stop:
            return stop.value
        result = thrown = None
        try:
            if op.__class__ is Write:
                result = write(*op)
            elif op.__class__ is Invoke:
                result = _invoke(guard, op, idle, run_async)
            else:
                result = _perform(guard, op)
        except BaseException as error:  # noqa: BLE001 - the guard decides what it means
            thrown = error


def _perform(guard: Guard, op: Op) -> Any:
    if isinstance(op, Sleep):
        return guard.core.token.wait(op.seconds)
    if isinstance(op, Store):
        return guard.blobs.put(op.body)
    assert isinstance(op, AskHook)
    return _settled(op.tool._ask(op.view) if op.tool._ask is not None else None)


def _invoke(guard: Guard, op: Invoke, idle: Callable[[], None], run_async: bool) -> Any:
    core, spec = guard.core, op.tool.spec
    try:
        permit = _permit(core, op)
        if spec.is_async:
            if not run_async:
                raise EffectError(f"{spec.name} is an async tool: use await attempt.acall({spec.name}, ...)")
            return asyncio.run(_limited(in_tool(permit), op.timeout_s))
        if op.timeout_s is None:
            return run_sealed(permit)
        call = ThreadCall(permit, _late(guard, op, idle), partial(core.given_up.add, op.text))
        try:
            call.start()
            return call.future.result(op.timeout_s)
        except BaseException as error:
            try:
                gone = call.abandon()
            except BaseException:  # Ctrl-C: once more, or its thread does not know that what it came to is its own to record
                call.abandon()
                raise
            if not gone:
                return call.future.result()  # it came while we gave up, or this is the tool's own exception
            if isinstance(error, TimeoutError):
                raise _no_answer(op) from None
            raise
    finally:
        core.running.pop(op.text, None)


def _settled(answer: Any) -> Any:
    async def wait() -> Any:
        return await answer

    return asyncio.run(wait()) if inspect.isawaitable(answer) else answer


async def drive_async(guard: Guard, steps: Steps, idle: Callable[[], None]) -> Any:
    """Carry out `steps` on the running event loop, which never waits for a disk: every sync happens in a thread."""
    core = guard.core
    cancelled: asyncio.CancelledError | None = None
    gives_way = False  # a cancellation was thrown into the guard
    result: Any = None
    thrown: BaseException | None = None
    while True:
        try:
            op = steps.send(result) if thrown is None else steps.throw(thrown)
        except StopIteration as stop:
            if cancelled is not None:
                raise cancelled from None
            return stop.value
        result, thrown = None, None
        try:
            if isinstance(op, Write):
                result, cancelled_now = await core.awrite(*op)
                if cancelled_now is not None and gives_way:
                    cancelled = cancelled_now  # a second one must not stop it from recording what the first one left behind
                elif cancelled_now is not None:
                    thrown, gives_way = cancelled_now, True  # the record is there: the guard has to know that before it gives way
            elif isinstance(op, Invoke):
                result, cancelled_now = await _invoke_async(guard, op, idle)
                cancelled = cancelled or cancelled_now
            elif isinstance(op, Sleep):
                await _sleep(core, op.seconds)
            elif isinstance(op, Store):
                result, cancelled_now = await _to_the_end(asyncio.to_thread(guard.blobs.put, op.body))
                if op.early:
                    thrown = cancelled_now
                else:
                    cancelled = cancelled or cancelled_now
            else:
                result = await _ask(op)
        except BaseException as error:  # noqa: BLE001 - the guard decides what it means
            thrown, gives_way = error, gives_way or isinstance(error, asyncio.CancelledError)


async def _to_the_end(work: Coroutine[Any, Any, Any]) -> tuple[Any, asyncio.CancelledError | None]:
    """Await something that must not be left half-way; a cancellation meanwhile is handed back."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except BaseException:  # noqa: BLE001 - task.result() raises it below
            break
    return task.result(), cancelled


async def _invoke_async(guard: Guard, op: Invoke, idle: Callable[[], None]) -> tuple[Any, asyncio.CancelledError | None]:
    core = guard.core
    try:
        permit = _permit(core, op)
        if op.tool.spec.is_async:
            try:
                return await _limited(in_tool(permit), op.timeout_s), None
            except TimeoutError as error:
                raise error if str(error) else _no_answer(op) from None
        call = ThreadCall(permit, _late(guard, op, idle), partial(core.given_up.add, op.text))
        try:
            call.start()
        except BaseException:
            call.abandon()
            raise
        try:
            waiting = asyncio.shield(asyncio.wrap_future(call.future))
            return await _limited(waiting, op.timeout_s), None
        except (asyncio.CancelledError, TimeoutError) as error:
            try:
                gone = call.abandon()
            except BaseException:
                call.abandon()
                raise
            if not gone:
                return call.future.result(), error if isinstance(error, asyncio.CancelledError) else None
            if isinstance(error, TimeoutError):
                raise _no_answer(op) from None
            raise
    finally:
        core.running.pop(op.text, None)


async def _limited(work: Awaitable[Any], timeout_s: float | None) -> Any:
    # Not wait_for: before Python 3.12 it forgets a cancellation that comes just when the work is done.
    if timeout_s is None:
        return await work
    async with asyncio.timeout(timeout_s):
        return await work


async def _sleep(core: AttemptCore, seconds: float) -> None:
    # In slices: a cancelled attempt must not sit out its back-off.
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not core.token and (left := end - loop.time()) > 0:
        await asyncio.sleep(min(left, SLEEP_SLICE_S))


async def _ask(op: AskHook) -> Any:
    hook = op.tool._ask
    if hook is None:
        return None
    answer = await asyncio.to_thread(hook, op.view)
    return await answer if inspect.isawaitable(answer) else answer


def _no_answer(op: Invoke) -> TimeoutError:
    return TimeoutError(f"{op.tool.spec.name} gave no answer within {op.timeout_s:g} s")
