"""The seal around a tool: no attribute of the handle leads to the function, and without a permit it does not open.

Python has no walls, so the function is kept where attributes end: inside a C iterator, `iter(callable, sentinel)`, which has none that
leads to its callable (the cyclic collector and the pickling protocol can still look; an accident cannot). Advancing the iterator runs
the function once, and only with the permit of a Dispatched record in the current context. So the wrapper is the only way to a tool
(seed 000, step 3).
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from eventlog import Commit
from eventlog.recovery.errors import UnguardedEffect

__all__ = ["Permit", "Seal", "in_tool", "inside_tool", "run_sealed", "seal"]

Seal = Iterator[tuple[bool, Any]]


@dataclass(slots=True)
class Permit:
    """One run of one tool. `dispatched` is the receipt of the commit that recorded it, which is why nobody else can make one."""

    seal: Seal
    dispatched: Commit
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    spent: bool = field(default=False)


# Of the tool that runs in this context, spent or not. One variable, set in one call: Ctrl-C between two of them would leave the caller of a
# tool inside it for good.
_permit: contextvars.ContextVar[Permit | None] = contextvars.ContextVar("eventlog_permit", default=None)


def seal(function: Callable[..., Any], name: str) -> Seal:
    """Put a function under seal. Nothing gives it back; run_sealed runs it."""
    box: list[Seal] = []

    def open_once() -> tuple[bool, Any]:
        permit = _permit.get()
        if permit is None or permit.spent or permit.seal is not box[0]:
            raise UnguardedEffect(f"{name}: no permit; use attempt.call(tool, ...), which records the intent first")
        permit.spent = True  # a tool that finds its own seal, or another's, cannot use this permit again
        try:
            return True, function(*permit.args, **permit.kwargs)
        except StopIteration as error:
            return False, error  # inside an iterator it would end the iterator, and the tool with it

    sealed: Seal = iter(open_once, None)
    box.append(sealed)
    return sealed


def run_sealed(permit: Permit) -> Any:
    """Run the tool that the permit is for, once; raises what it raises. A coroutine function gives its coroutine."""
    before = _permit.get()
    try:
        _permit.set(permit)
        fine, value = next(permit.seal)
    finally:
        _permit.set(before)
    if not fine:
        raise value
    return value


async def in_tool(permit: Permit) -> Any:
    """Run an async tool, marked as inside a tool while it is awaited."""
    work = run_sealed(permit)
    before = _permit.get()
    try:
        _permit.set(permit)
        return await work
    finally:
        _permit.set(before)


def inside_tool() -> bool:
    """Is the caller running inside a tool of this context? Its calls would not be made again when that tool's outcome is replayed."""
    return _permit.get() is not None
