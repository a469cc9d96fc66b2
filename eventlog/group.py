"""Group commit: threads and coroutines of one handle share a pwrite and an fdatasync (leader and followers).

Whoever comes when nobody leads becomes the leader; whoever comes while one leads queues up and sleeps on a lock of its own. The leader
writes the whole queue, syncs once, makes the first of those who came meanwhile the next leader, and wakes the rest. A lone writer finds no
queue and pays two uncontended locks. Threads that merely queue for a sync lock gain a fifth; this gains a factor (docs/decisions.md).

A signal handler may raise at any function entry and behind any call of the main thread (Ctrl-C). So leading is a *turn* with a number: what
changes hands does so in plain assignments under the guard, with no call between them, and the end of a turn can be done twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from eventlog.entry import Entry
from eventlog.errors import EventLogError, OutcomeUnknown
from eventlog.light import TYPE_CHECKING
from eventlog.payload import Draft
from eventlog.writer import Writer

if TYPE_CHECKING:
    from eventlog.coroutines import CoroutinePlace
    from eventlog.events import Expect

_CHAIN_MAX = 8  # threads


class ThreadPlace(Entry):
    """The entry of a thread that is asleep on its own lock: waking one must not wake all. `then` is whom it wakes as soon as it runs: see
    `_wake_all`."""

    __slots__ = ("left", "then", "told", "wake")
    leads_itself = True

    def __init__(self, draft: Draft | None, expect: Expect | None, durable: bool) -> None:
        Entry.__init__(self, draft, expect, durable)  # super() would take a third more, for each commit
        self.then: ThreadPlace | None = None
        self.told = self.left = False
        self.wake = threading.Lock()
        self.wake.acquire()

    def done(self) -> None:
        """The entry has its outcome. May be told twice."""
        place: ThreadPlace | None = self
        while place is not None:
            place.told = True
            try:  # noqa: SIM105 - contextlib.suppress takes longer than waking
                place.wake.release()
            except RuntimeError:
                pass  # told before
            if not place.left:
                return
            place = place.then  # its thread is gone

    def lead(self) -> None:
        """It is this place's turn to lead. May be told twice."""
        self.done()

    def leave(self) -> None:
        """Its thread will not come to wake the next. It and whoever tells it each set their flag before they look at the other's: one of
        them, or both, goes on to the next."""
        self.left = True
        if self.told and self.then is not None:
            self.then.done()


if TYPE_CHECKING:
    Place = ThreadPlace | CoroutinePlace


class Group:
    """The queue of one handle."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._guard = threading.RLock()  # a signal handler that commits must find its error, not a deadlock
        self._leader = 0  # the thread that leads
        self._queue: list[Place] = []
        self._turn = 1
        self._led = False
        self._next: Place | None = None  # who was chosen to lead this turn; None: who came when nobody led
        self._claimed = False  # the turn's batch was taken from the queue
        self._batch: list[Place] = []  # it, until each of its places has been told
        self._settled = False  # each of them has its outcome

    def alone(self, draft: Draft, after_seq: int | None, meanwhile: Callable[[int, int], None] | None = None) -> tuple[int, int] | None:
        """The short road of `commit` while nobody leads: no queue, nobody to wake. As `Writer.append`, and durable; None: nothing done.

        `meanwhile(first seq, time)` is called when it is written, and the disk is told to begin: so what it does takes no time.
        """
        if self._led:
            return None  # a look without the guard; the one below counts
        writer, turn, me = self._writer, 0, threading.get_ident()
        try:
            with self._guard:
                if not self._led:
                    self._led = self._claimed = True
                    self._leader, turn = me, self._turn
            if not turn:
                return None
            written = writer.append(draft, after_seq, begin=meanwhile is not None)
            if written is not None:
                if meanwhile is not None:
                    meanwhile(*written)
                writer.sync()
            return written
        finally:
            if turn:
                try:
                    with self._guard:
                        lone = self._turn == turn and not self._queue
                        if lone:  # what _hand_on does when nobody came meanwhile
                            self._next, self._leader = None, 0
                            self._led, self._claimed, self._turn = False, False, turn + 1
                    if not lone:
                        self._hand_on(turn, None, [])
                except BaseException:
                    self._hand_on(turn, None, [])
                    raise

    def commit(self, draft: Draft | None, expect: Expect | None = None, durable: bool = True) -> Entry:
        """Write the draft and make it durable together with its neighbours; the outcome is in the entry. Blocks."""
        place: ThreadPlace | None = None
        turn, me = 0, threading.get_ident()
        if self._leader == me:
            raise EventLogError("a signal handler used the log in the middle of a commit of its own thread: set a flag in it, or raise")
        try:
            with self._guard:
                if self._led:
                    place = ThreadPlace(draft, expect, durable)
                    self._queue.append(place)
                else:
                    self._led = self._claimed = True
                    self._leader, turn = me, self._turn
            if place is None:
                entry = Entry(draft, expect, durable)
                self._process([entry])
                return entry
            place.wake.acquire()
            if place.then is not None:
                place.then.done()
            if place.turn:
                self._lead(place.turn)
            return place
        except BaseException:
            if place is not None:
                try:
                    place.leave()
                finally:
                    place.leave()  # a second signal must not leave those behind it asleep
                    self.withdraw(place)
            raise
        finally:
            if place is not None:
                turn = place.turn
            if turn:
                done: list[Place] = []
                try:
                    self._hand_on(turn, place, done)
                except BaseException:  # a signal came: once more, so that nobody waits for ever
                    self._hand_on(turn, place, done)
                    raise

    def enqueue(self, place: Place) -> None:
        """Queue without blocking. Where nobody leads, the place is told to."""
        try:
            with self._guard:
                self._queue.append(place)
                if not self._led:
                    self._led, self._next, place.turn = True, place, self._turn
            if place.turn:
                place.lead()
        except BaseException:
            self.withdraw(place)
            if place.turn:
                place.lead()  # again, perhaps: the turn must be led for those who come behind
            raise

    def withdraw(self, place: Place) -> None:
        """Leave the queue if there is still time: then the entry is never written."""
        with self._guard:
            if place in self._queue:
                self._queue.remove(place)

    def lead_for_others(self) -> None:
        """Lead in the place of one who cannot (a coroutine), if it is his turn. Of several who come at once, one does."""
        turn, me = 0, threading.get_ident()
        done: list[Place] = []
        try:
            with self._guard:
                place = self._next
                if place is not None and not place.leads_itself and not self._claimed:
                    turn = place.turn
                    self._batch, self._queue, self._settled, self._claimed, self._leader = self._queue, [], False, True, me
            if turn:
                self._process(self._batch)
        except Exception as error:  # noqa: BLE001 - nobody is above us: whoever waits must hear of it, or waits for ever
            if turn and not self._settled:
                for place in self._batch:
                    place.error = place.error or _wrapped(place, error)
                self._settled = True
        finally:
            if turn:
                try:
                    self._hand_on(turn, None, done)
                except BaseException:  # a signal, in a thread that closes the log or works where no other can be had
                    self._hand_on(turn, None, done)
                    raise

    def _lead(self, turn: int) -> None:
        """Take everybody who is in the queue now, and write and sync for them."""
        with self._guard:
            if self._turn != turn or self._claimed:
                return
            me = threading.get_ident()
            self._batch, self._queue, self._settled, self._claimed, self._leader = self._queue, [], False, True, me
        self._process(self._batch)

    def _hand_on(self, turn: int, own: Place | None, done: list[Place]) -> None:
        """End a turn: the next leader, then everybody who is done, is told. Interrupted anywhere, it can be done again."""
        with self._guard:
            if self._turn == turn:
                queue = self._queue
                done[:] = self._batch
                if done and not self._settled:
                    # Interrupted in the middle of a turn: what others wait for goes back to the head of the queue, in the state that it
                    # reached. Whether one that was just being written is there, nobody can say.
                    undone = [place for place in done if place is not own and not _give_up(place)]
                    done[:] = [place for place in done if place not in undone]
                    queue = undone + queue
                following = queue[0] if queue else None
                if following is not None:
                    following.turn = turn + 1
                self._queue, self._batch, self._next, self._leader = queue, [], following, 0
                self._led, self._claimed, self._turn = following is not None, False, turn + 1
            following = self._next if self._turn == turn + 1 else None
        # The next leader first: its fdatasync can start while we wake the others. Unless it is one for whom we may have to lead ourselves.
        first = following is not None and following.leads_itself
        if following is not None and first:
            following.lead()
        if done:
            _wake_all(done if own is None else [place for place in done if place is not own])
        if following is not None and not first:
            following.lead()

    def _process(self, entries: Sequence[Entry]) -> None:
        """Write what is not written, sync once; every entry ends up written and durable, or with an error."""
        writer = self._writer
        if writer.view.retired:
            writer.view.close_retired()
        # What was refused stays refused: it may be here a second time, behind a leader who was interrupted.
        fresh = [entry for entry in entries if entry.draft is not None and not entry.first and entry.error is None]
        unwritten: list[Entry] = []
        try:
            if fresh:
                writer.locked(writer.write, fresh)
        except EventLogError as error:
            unwritten = fresh
            for entry in fresh:
                entry.error = error
        if any(entry.durable and entry not in unwritten for entry in entries):
            try:
                writer.sync()
            except EventLogError as error:
                for entry in entries:
                    entry.error = entry.error or error
        self._settled = True


def _wake_all(places: list[Place]) -> None:
    """Tell them that they are done: coroutines through their loops, threads in chains, of which each wakes the next. May be done twice.

    Threads that all wake at once fight for the interpreter's lock, each a switch to get to sleep on it again and one to wake, and the next
    leader, who gives that lock away with each system call, waits behind them all: 16 threads gain a quarter by chains. Short ones, since
    among threads that compute each link may take a switch interval (5 ms).
    """
    threads = [place for place in places if isinstance(place, ThreadPlace)]
    for number, place in enumerate(threads[1:], 1):
        if number % _CHAIN_MAX:
            threads[number - 1].then = place
    for place in threads[::_CHAIN_MAX]:
        place.done()
    if len(threads) < len(places):
        others = [place for place in places if not isinstance(place, ThreadPlace)]
        for wakes in {place.wakes for place in others}:
            wakes.add([place.future for place in others if place.wakes is wakes])


def _wrapped(entry: Entry, error: Exception) -> EventLogError:
    text = f"{type(error).__name__}: {error}"
    return (
        OutcomeUnknown(f"{text}; look for this commit") if entry.writing or entry.first else EventLogError(f"{text}; nothing was written")
    )


def _give_up(entry: Entry) -> bool:
    """An entry whose leader was interrupted while it was being written gets its error."""
    if entry.writing:
        entry.error = entry.error or OutcomeUnknown("the thread that wrote this commit for its group was interrupted; look for it")
    return entry.writing
