"""What the guard asks for, as data: a driver carries it out and answers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from eventlog.recovery.answers import IntentView
from eventlog.recovery.context import ToolContext
from eventlog.recovery.decide import TRIES_MAX
from eventlog.recovery.tool import Tool
from eventlog.recovery.writing import Decide

__all__ = ["AskHook", "Invoke", "Limits", "Op", "Sleep", "Steps", "Store", "Write"]


@dataclass(frozen=True, slots=True)
class Limits:
    """`blob_bytes_min`: larger arguments and results are stored beside the log. `result_bytes_max`: larger results become an error
    outcome. `tries_max`: how often recovery sends one intent before it leaves it to a person."""

    blob_bytes_min: int = 64 * 1024
    result_bytes_max: int = 64 * 1024 * 1024
    tries_max: int = TRIES_MAX


class Write(NamedTuple):
    """Commit what `decide` wants of the intent `text`; answered with the events, or None. `meanwhile()` is called once if they are written:
    while the disk is at it, so it may do what depends on no answer, and must not raise."""

    text: str
    decide: Decide
    meanwhile: Callable[[], None] | None = None


class Invoke(NamedTuple):
    """Run the tool once, by a permit for it; answered with what it returns, or its exception is thrown in."""

    tool: Tool
    text: str
    try_number: int
    context: ToolContext
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    timeout_s: float | None


class Sleep(NamedTuple):
    seconds: float


class AskHook(NamedTuple):
    tool: Tool
    view: IntentView


class Store(NamedTuple):
    """Keep a large value durably; answered with its reference. `early`: before anything is recorded, so who is cancelled gives way."""

    body: bytes
    early: bool = False


Op = Write | Invoke | Sleep | AskHook | Store
Steps = Generator[Op, Any, Any]
