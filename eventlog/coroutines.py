"""Commits from coroutines: queued without blocking, written by a thread of their own, woken together (design 3.2: acommit).

asyncio is imported by whoever runs a loop; `import eventlog` imports neither it nor this module.
"""

from __future__ import annotations

import weakref
from asyncio import get_running_loop as running_loop

from eventlog.background import Background
from eventlog.entry import Entry
from eventlog.group import Place
from eventlog.light import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

__all__ = ["CoroutinePlace", "LoopWakes", "running_loop"]


class CoroutinePlace(Place):
    """A place in the queue that a coroutine waits for."""

    __slots__ = ("_leader", "_wakes", "future")
    leads_itself = False

    def __init__(self, entry: Entry, future: asyncio.Future[None], wakes: LoopWakes, leader: Background) -> None:
        super().__init__(entry)
        self.future, self._wakes, self._leader = future, wakes, leader

    def done(self) -> None:
        self._wakes.add(self.future)

    def lead(self) -> None:
        self._leader.poke()  # a coroutine must not sync: the loop would stand still


class LoopWakes:
    """Futures of one event loop that are done, set in one call back for the whole batch: a wake-up of the loop is a system call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # weak: they are kept by loop
        self._ready: list[asyncio.Future[None]] = []
        self._scheduled = False

    def add(self, future: asyncio.Future[None]) -> None:
        """Called by the leading thread. May be told twice."""
        self._ready.append(future)
        if not self._scheduled:
            try:
                self._scheduled = True
                loop = self._loop()
                if loop is not None:
                    loop.call_soon_threadsafe(self._set)
            except RuntimeError:  # the loop was closed: nobody waits any more
                self._ready.clear()
            except BaseException:  # a signal came: perhaps nothing is scheduled, and once too often does no harm
                self._scheduled = False
                raise

    def _set(self) -> None:
        self._scheduled = False  # before the list is emptied: who adds from now on schedules again
        while self._ready:
            future = self._ready.pop()
            if not future.done():
                future.set_result(None)
