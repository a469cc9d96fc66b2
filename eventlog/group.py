"""Group commit: threads and coroutines of one handle share a pwrite and an fdatasync (leader and followers).

Whoever comes when nobody leads becomes the leader; whoever comes while one leads queues up and sleeps on a lock of its own. The leader
writes the whole queue, syncs once, makes the first of those who came meanwhile the next leader, and wakes the rest. A lone writer finds no
queue and pays two uncontended locks. Threads that merely queue for a sync lock gain a fifth; this gains a factor (docs/decisions.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from eventlog.errors import EventLogError, OutcomeUnknown
from eventlog.writer import Entry, Writer


class Place:
    """A place in the queue; this one is the leader's own, who does not sleep."""

    __slots__ = ("entry", "promoted")

    def __init__(self, entry: Entry) -> None:
        self.entry, self.promoted = entry, False

    def done(self) -> None:
        """The entry has its outcome."""

    def lead(self) -> None:
        """It is this place's turn to lead."""


class ThreadPlace(Place):
    """A thread asleep on its own lock: waking one must not wake all."""

    __slots__ = ("finished", "wake")

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.finished = False
        self.wake = threading.Lock()
        self.wake.acquire()

    def done(self) -> None:
        self.finished = True
        self.wake.release()

    def lead(self) -> None:
        self.wake.release()


class Group:
    """The queue of one handle."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._guard = threading.Lock()
        self._queue: list[Place] = []
        self._led = False

    def commit(self, entry: Entry) -> None:
        """Write the entry and make it durable together with its neighbours; its outcome is in the entry. Blocks."""
        place = None
        with self._guard:
            if self._led:
                place = ThreadPlace(entry)
                self._queue.append(place)
            self._led = True
        if place is None:
            try:
                self._alone(entry)
            finally:
                self._hand_on()
            return
        try:
            place.wake.acquire()
        except BaseException:  # a signal handler raised: this thread will neither wait nor lead
            self.withdraw(place)
            if place.promoted:
                self._hand_on()
            raise
        if not place.finished:
            self.lead(place)

    def enqueue(self, place: Place) -> None:
        """Queue without blocking. Where nobody leads, the place is told to."""
        with self._guard:
            self._queue.append(place)
            place.promoted, self._led = not self._led, True
        if place.promoted:
            place.lead()

    def withdraw(self, place: Place) -> None:
        """Leave the queue if there is still time: then the entry is never written."""
        with self._guard:
            if place in self._queue:
                self._queue.remove(place)

    def lead(self, own: Place | None = None) -> None:
        """Lead one batch: everybody who is in the queue now, `own` (the place of this thread) among them."""
        with self._guard:
            batch, self._queue = self._queue, []
        self._lead(batch, own)

    def _lead(self, batch: list[Place], own: Place | None) -> None:
        undone: list[Place] = []
        try:
            self._process([place.entry for place in batch])
        except BaseException:
            # Interrupted (a signal handler raised in this thread): the others' entries go back to the head of the queue in the state
            # that they reached. Whether one that was in the middle of its write is there, nobody can say.
            for place in batch:
                if place.entry.writing:
                    place.entry.error = OutcomeUnknown("the thread that wrote this commit for its group was interrupted; look for it")
                elif place.entry.error is None and place is not own:
                    undone.append(place)
            raise
        finally:
            self._hand_on(undone)
            for place in batch:
                if not undone or place not in undone:
                    place.done()

    def _alone(self, entry: Entry) -> None:
        """A leader without followers: nothing to gather, nobody to wake."""
        writer = self._writer
        if entry.draft is not None and entry.expect is None:
            try:
                written = writer.append(entry.draft)
                if written is not None:
                    entry.first, entry.time = written
                    return writer.sync(writer.view.position())
            except EventLogError as error:
                entry.error = error
                return None
        return self._process([entry])

    def _hand_on(self, undone: list[Place] | None = None) -> None:
        """Wake the next leader, or let there be none. Before the others are woken: its fdatasync can start meanwhile."""
        with self._guard:
            if undone:
                self._queue[:0] = undone
            following = self._queue[0] if self._queue else None
            if following is None:
                self._led = False
            else:
                following.promoted = True
        if following is not None:
            following.lead()

    def _process(self, entries: list[Entry]) -> None:
        """Write what is not written, sync once; every entry ends up written and durable, or with an error."""
        writer = self._writer
        if writer.view.retired:
            writer.view.close_retired()
        fresh = [entry for entry in entries if entry.draft is not None and not entry.first]
        try:
            position = writer.locked(writer.write, fresh) if fresh else writer.view.position()
        except EventLogError as error:
            for entry in fresh:
                entry.error = error
            if len(fresh) == len(entries):
                return
            position = writer.view.position()
        if any(entry.durable for entry in entries):
            try:
                writer.sync(position)
            except EventLogError as error:
                for entry in entries:
                    entry.error = entry.error or error


class Background(threading.Thread):
    """A daemon thread that runs `work` each time it is poked, `delay` seconds after the poke. It ends at `close`."""

    def __init__(self, name: str, work: Callable[[], None], delay: float = 0.0) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._delay = work, delay
        self._poked, self._closing = threading.Event(), threading.Event()

    def poke(self) -> None:
        self._poked.set()

    def close(self) -> None:
        self._closing.set()
        self._poked.set()
        if self.ident is not None and self is not threading.current_thread():
            self.join()

    def run(self) -> None:
        while True:
            self._poked.wait()
            self._poked.clear()
            if self._closing.is_set() or (self._delay and self._closing.wait(self._delay)):
                return
            self._work()
