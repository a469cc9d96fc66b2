"""Writing what was decided on the state at the head, before anybody else can write: transact, and expect (design 3.2).

Both look at what is in the log but perhaps not yet durable, as only a writer may, and hand nothing of it out until it is.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter_ns

from eventlog import payload
from eventlog.entry import Entry
from eventlog.errors import PayloadError
from eventlog.events import Event, Expect, Recorded
from eventlog.jsonroad import loads
from eventlog.light import TYPE_CHECKING, Protocol, TypeVar
from eventlog.payload import ALL_NAMES, masks_of
from eventlog.reader import Reader, Wanted
from eventlog.snapshotfiles import Debt, SnapshotFiles
from eventlog.watermark import Mark
from eventlog.writer import Writer

if TYPE_CHECKING:
    from typing import Any

S = TypeVar("S")


class Foldable(Protocol[S]):
    """What `transact` needs of a projection: a first state (a new one each time, if handlers change it in place), and a pure
    handler for each type that matters to it; that of "*" takes every other type. One that has `resume` and `keep` as
    `eventlog.projections.Projection` has them is folded from its newest snapshot on."""

    @property
    def initial(self) -> S: ...
    @property
    def handlers(self) -> Mapping[str, Callable[[S, Recorded], S]]: ...


class Transactions:
    """The states that one handle has folded for its decisions. `deciding` is the thread that runs a decide() under the lock, or 0."""

    def __init__(self, writer: Writer, reader: Reader, snapshots: SnapshotFiles, commit_bytes_max: int) -> None:
        self._writer, self._reader, self._snapshots, self._commit_bytes_max = writer, reader, snapshots, commit_bytes_max
        self._one_at_a_time = threading.RLock()
        self._states: weakref.WeakKeyDictionary[Any, tuple[int, int, Any]] = weakref.WeakKeyDictionary()
        self._debts: weakref.WeakKeyDictionary[Any, Debt] = weakref.WeakKeyDictionary()
        self.deciding = 0
        writer.find_conflict = self.find_conflict

    def transact(self, projection: Foldable[S], decide: Callable[[S], Event | Iterable[Event] | None]) -> Entry | None:
        """Fold to the head, decide, write: the entry, not yet durable, or None when decide refused."""
        with self._one_at_a_time:  # a state is folded by one thread at a time
            self._fold(projection)  # most of the way without the writer lock
            return self._writer.locked(self._decide, projection, decide)

    def _decide(self, projection: Foldable[S], decide: Callable[[S], Event | Iterable[Event] | None]) -> Entry | None:
        state = self._fold(projection)
        self.deciding = threading.get_ident()
        try:
            events = decide(state)
            if events is not None and not isinstance(events, Event):
                events = list(events)
        finally:
            self.deciding = 0
        if not events:
            return None
        entry = Entry(payload.encode(events, self._commit_bytes_max))
        self._writer.write((entry,))
        if entry.error is None:
            self._apply(projection, entry)
        return entry

    def _apply(self, projection: Foldable[S], entry: Entry) -> None:
        """Take what we have just written into the state, so that the next decision does not read it again.

        From its encoded form: a handler must see what a reader would. One that raises is heard of by whoever folds next.
        """
        assert entry.draft is not None
        seq, moves, state = self._states.pop(projection)
        if entry.first != seq + 1:
            return
        handlers = projection.handlers
        other = handlers.get("*")
        try:
            for seq, (kind, stream, data) in enumerate(loads(entry.draft.body), entry.first):
                handler = handlers.get(kind, other)
                if handler is not None:
                    state = handler(state, Recorded(seq, entry.time, kind, stream, data))
        except Exception:  # noqa: BLE001 - the commit is written; the state is dropped and folded anew, which raises in its own place
            return
        self._states[projection] = (seq, moves, state)

    def _fold(self, projection: Foldable[S]) -> S:
        mark, moves = self._written(), self._writer.view.moves
        # Taken out while it is worked on: a handler that raises may leave a state half changed.
        state: S
        known = self._states.pop(projection, None)
        if known is None or known[1] != moves:  # nothing folded yet; or something was cut since: what we folded may be gone
            if known is not None:
                self._reader.forget()
            seq, state = self._begin(projection, mark.seq - 1)
        else:
            seq, _, state = known
        if seq == mark.seq - 1:  # nothing came since: as a rule so under the lock, just after the look without it
            self._states[projection] = (seq, moves, state)
            return state
        handlers = projection.handlers
        other = handlers.get("*")
        began = perf_counter_ns()
        for events in self._reader.batches(Wanted(seq, types=ALL_NAMES if other else masks_of(handlers)), mark):
            for event in events:
                handler = handlers.get(event.type, other)
                if handler is not None:
                    state = handler(state, event)
        self._states[projection] = (mark.seq - 1, moves, state)
        self._debts[projection].spent_ns += perf_counter_ns() - began
        return state

    def _begin(self, projection: Foldable[S], upto: int) -> tuple[int, S]:
        """Where to begin: at a snapshot, or at the first event."""
        debt = self._debts[projection] = Debt()
        resume = getattr(projection, "resume", None)
        kept = resume(self._snapshots, upto) if resume is not None and upto else None
        if kept is None:
            return 0, projection.initial
        state: S
        state, seq, size = kept
        debt.settle(seq, size)
        return seq, state

    def is_due(self, projection: Foldable[Any]) -> bool:
        """Is it time for a snapshot of what was folded with this projection?"""
        known, debt = self._states.get(projection), self._debts.get(projection)
        return known is not None and debt is not None and debt.is_due(known[0])

    def keep(self, projection: Foldable[Any]) -> bool:
        """Write one, if what was folded is durable; was one written, or found?"""
        write = getattr(projection, "keep", None)
        with self._one_at_a_time:
            known, debt = self._states.get(projection), self._debts.get(projection)
            if write is None or known is None or debt is None or known[1] != self._writer.view.moves:
                return False
            size: int = write(self._snapshots, known[2], known[0])
            debt.settle(known[0], size)
            return size > 0

    def _written(self) -> Mark:
        """All that this handle knows to be written, durable or not."""
        tail = self._writer.view.tail
        return Mark(tail.number, tail.end, tail.seq, None, tail.durable)

    def look_ahead(self, expect: Expect) -> Expect:
        """Look for a conflict without the lock, so that under it only what came since is left to look at. Raises as `plain`."""
        streams = frozenset(plain(expect).streams)
        if self._writer.view.tail.seq - 1 <= expect.after:
            return Expect(streams, expect.after)  # nothing came since, as far as we know: the writer looks again under the lock
        mark = self._written()
        found = self._first_in(streams, expect.after, mark)
        return Expect(streams, expect.after if found is not None else max(expect.after, mark.seq - 1))

    def find_conflict(self, expect: Expect, head: int) -> int | None:
        """The first event that came to a watched stream behind `expect.after`. Called by the writer, under the lock."""
        return self._first_in(frozenset(expect.streams), expect.after, self._written()) if head > expect.after else None

    def _first_in(self, streams: frozenset[str], after: int, mark: Mark) -> int | None:
        for events in self._reader.batches(Wanted(after, streams=masks_of(streams)), mark):
            for event in events:
                if event.stream in streams:
                    return event.seq
        return None


def plain(expect: Expect) -> Expect:
    """The same with a set of streams (one name may be given as a str). Raises PayloadError for anything that is no name or no seq."""
    streams, after = expect
    try:
        names = frozenset([streams] if isinstance(streams, str) else streams)
    except TypeError:
        raise PayloadError("expect.streams", f"expected names of streams, got {type(streams).__name__}") from None
    for name in names:
        if not isinstance(name, str):
            raise PayloadError("expect.streams", f"expected names of streams, got {type(name).__name__}")
    if type(after) is not int:
        raise PayloadError("expect.after", f"expected a seq, got {type(after).__name__}")
    return Expect(names, after)
