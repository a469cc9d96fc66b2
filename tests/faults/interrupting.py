"""Interrupt a piece of work at the n-th point at which CPython would run a signal handler (reliability P25).

CPython looks for signals when it enters a Python function, after a call has returned, and at a backward jump; nowhere else. A trace
function that raises there is a signal whose handler raises, at a chosen place instead of a lucky one.
"""

from __future__ import annotations

import dis
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import eventlog

_ROOT = os.path.dirname(eventlog.__file__)
_CALLS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "CALL_FUNCTION", "CALL_METHOD") if name in dis.opmap}
_JUMPS = {dis.opmap[name] for name in ("JUMP_BACKWARD", "JUMP_ABSOLUTE") if name in dis.opmap}


class Interrupted(BaseException):
    """What the handler raises: like KeyboardInterrupt, no Exception."""


@functools.cache
def _table(code: CodeType) -> list[Any]:
    return list(dis._parse_exception_table(code))  # type: ignore[attr-defined]


def _handler(code: CodeType, at: int) -> int | None:
    return next((entry.target for entry in reversed(_table(code)) if entry.start <= at < entry.end), None)


def _in_destructor(frame: FrameType | None) -> bool:
    """Of somebody's older handle, say: what is raised there is printed and forgotten, whatever it is."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


class Interrupter:
    """Raises Interrupted at the `nth` point that the log's own code passes; `where` says where that was, None if it never came."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self._last: dict[FrameType, tuple[int, int]] = {}
        self.where: str | None = None

    def _point(self, frame: FrameType, why: str) -> None:
        self._left -= 1
        if self._left == 0:
            code = frame.f_code
            self.where = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}, {why}"
            sys.settrace(None)
            raise Interrupted(self.where)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_ROOT) or _in_destructor(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:  # one that is closed comes in here as well, and there no signal is looked for
            self._point(frame, "entry")
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            code, at = frame.f_code, frame.f_lasti
            operation = code.co_code[at]
            before = self._last.get(frame)
            self._last[frame] = (operation, at)
            # A real interrupt belongs to the call, this one to what follows it: only where both have the same handler are they the same.
            if before is not None and before[0] in _CALLS and _handler(code, before[1]) == _handler(code, at):
                self._point(frame, "after a call")
            elif before is not None and before[0] in _JUMPS:  # the jump is made first: its target's handler counts
                self._point(frame, "loop")
        return self._step


def interrupt(nth: int, work: Callable[[], object]) -> str | None:
    """Run `work` and interrupt it at its `nth` point. Returns the place, or None when it has fewer points and ran to its end."""
    interrupter = Interrupter(nth)
    before = sys.gettrace()
    try:
        sys.settrace(interrupter)
        try:
            work()
        finally:
            sys.settrace(before)
    except Interrupted:
        pass
    return interrupter.where


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """The result of `work`, the exception that it raised, or TimeoutError when it hangs (then its thread is left behind)."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001  handed on
            result.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return result[0] if result else TimeoutError("it hangs")
