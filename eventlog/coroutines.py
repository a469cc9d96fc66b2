"""Commits from coroutines: queued without blocking, written by a thread of their own, woken together (design 3.2: acommit).

asyncio is imported by whoever runs a loop; `import eventlog` imports neither it nor this module.
"""

from __future__ import annotations

import weakref
from asyncio import get_running_loop as running_loop
from collections import deque
from collections.abc import Iterable

from eventlog.background import Background
from eventlog.entry import Entry
from eventlog.light import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from eventlog.events import Expect
    from eventlog.payload import Draft

__all__ = ["CoroutinePlace", "LoopWakes", "running_loop"]


class CoroutinePlace(Entry):
    """An entry that a coroutine waits for."""

    __slots__ = ("future", "wakes")
    leads_itself = False

    def __init__(self, draft: Draft, expect: Expect | None, durable: bool, future: asyncio.Future[None], wakes: LoopWakes) -> None:
        Entry.__init__(self, draft, expect, durable)  # super() would take a third more, for each commit
        self.future, self.wakes = future, wakes

    def lead(self) -> None:
        """It is its turn to lead. May be told twice."""
        self.wakes.leader.poke()  # a coroutine must not sync: the loop would stand still


class LoopWakes:
    """Futures of one event loop that are done, set in one call back for the whole batch: a wake-up of the loop is a system call.

    `loop` refers to it, weakly: these are kept by loop. `leader` is the thread that leads in the place of its coroutines.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, leader: Background) -> None:
        self.loop, self.leader = weakref.ref(loop), leader
        self._ready: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    def add(self, futures: Iterable[asyncio.Future[None]]) -> None:
        """Called by the leading thread. May be told twice.

        All of a batch at once: were the loop told of the first one alone, its coroutine would lead the next batch alone as well.
        """
        self._ready.extend(futures)
        if not self._scheduled:
            try:
                self._scheduled = True
                loop = self.loop()
                if loop is not None:
                    loop.call_soon_threadsafe(self._set)
                    loop.call_soon_threadsafe(self._set)  # should Ctrl-C come at the entry of the first: there it is past catching
            except RuntimeError:  # the loop was closed: nobody waits any more
                self._ready.clear()
            except BaseException:  # a signal came: perhaps nothing is scheduled, and once too often does no harm
                self._scheduled = False
                raise

    def _set(self) -> None:
        self._scheduled = False  # before they are looked at: who adds from now on schedules again
        ready = self._ready
        try:
            while ready:
                future = ready[0]  # taken away when it is set
                if not future.done():
                    future.set_result(None)
                ready.popleft()
        except BaseException:  # Ctrl-C: again, or a wait that cannot be cancelled never ends
            loop = self.loop()
            if loop is not None:
                loop.call_soon(self._set)
            raise
