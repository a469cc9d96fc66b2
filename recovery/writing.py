"""What a guarded write is made of: the decision, its events, and what is known of an intent while they are on their way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eventlog import Commit, Event, EventLog
from eventlog.projections.effects import Intent

if TYPE_CHECKING:
    from eventlog.payload import Draft

__all__ = ["CancelToken", "Decide", "Drafted", "OpenIntent", "WrittenToTheEnd", "owner_name"]

Decide = Callable[["Intent | None", bool], "Sequence[Event] | Drafted | None"]
_new = tuple.__new__


def owner_name(branch: str) -> str:
    """What somebody who acts for a branch owns. One for the branch, not one for each attempt: two live attempts would both act."""
    return f"effects:{branch}"


class CancelToken:
    """Was the attempt cancelled? Tools look at it: `if ctx.cancelled: ...`."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def __bool__(self) -> bool:
        return self._event.is_set()

    is_set = __bool__

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is cancelled or `timeout` seconds have passed; was it cancelled?"""
        return self._event.wait(timeout)

    def _set(self) -> None:
        self._event.set()


class Drafted(NamedTuple):
    """Events that were encoded ahead of the decision for them."""

    events: Sequence[Event]
    draft: Draft

    @classmethod
    def of(cls, log: EventLog, *events: Event) -> Drafted:
        """Of events that say nothing but our own words, and what `canonical` let pass. Raises PayloadError: they are too large."""
        return _new(cls, (events, log.draft(events, proved=True)))


class WrittenToTheEnd(asyncio.Future[None]):
    """A future that cannot be cancelled: a coroutine that is cancelled while it waits hears of it when the write has its outcome.

    A task and a shield for each write would say the same, and take longer than the rest of it.
    """

    def cancel(self, msg: Any = None) -> bool:
        return False


class OpenIntent:
    """What this process knows of an intent that is not over, beside its state."""

    __slots__ = ("leaving", "loop", "receipt", "seen", "turn")

    def __init__(self, seen: int) -> None:
        self.turn = threading.Lock()  # one write about it at a time: the next decision sees what the last one wrote
        self.loop: asyncio.AbstractEventLoop | None = None  # of the coroutine whose turn it is
        self.seen = seen  # up to which seq its stream was read
        self.receipt: Commit | None = None  # of the last commit about it by this process
        self.leaving = 0  # the thread whose decision, which lets it leave, is not in the log yet; 0: there is none
