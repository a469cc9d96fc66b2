"""Folding a log, once or step by step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns

from eventlog import EventLog
from eventlog.errors import EventLogError
from eventlog.light import TYPE_CHECKING, Generic, TypeVar
from eventlog.projections.projection import EVERY_TYPE, FoldError, Projection
from eventlog.snapshotfiles import Debt, SnapshotFiles

if TYPE_CHECKING:
    from typing import Any

__all__ = ["View", "fold"]

S = TypeVar("S")
R = TypeVar("R")
Progress = Callable[[int, int], None]
PROGRESS_EVENTS = 20_000


def fold(
    projection: Projection[S],
    log: EventLog,
    upto: int | None = None,
    *,
    after: int = 0,
    progress: Progress | None = None,
    snapshots: bool = True,
) -> S:
    """The state after the event `upto` (default: the last). Streams: memory is that of the state, not of the log.

    With `after` it begins with nothing behind that event: a window, which has a meaning for what counts. Otherwise it begins at the
    newest snapshot that this log proves, and leaves one when that is worth it and the handle may write; not with `snapshots=False`.
    `progress(seq, last)` is called every 20,000 events or so. Raises FoldError when a handler raises, and
    whatever reading raises.
    """
    view = View(log, projection, after=after, snapshots=snapshots)
    return view.refresh(upto, progress=progress)[0]


class View(Generic[S]):
    """The state of one projection at the head of a log, kept and caught up with the events that came since.

    Safe for use from several threads. A reader must not change what it gets.
    It begins at the newest snapshot, and writes one whenever what was folded since the last has cost more than that, if the handle may
    write; with `keeps=False` only when `keep` is called. `snapshots=False`: neither. A view of what came `after` a seq never has any.
    """

    def __init__(self, log: EventLog, projection: Projection[S], *, after: int = 0, snapshots: bool = True, keeps: bool = True) -> None:
        self.log = log
        self.projection = projection
        self._lock = threading.Lock()
        self._state = projection.initial
        self._seq = self._after = after
        self._files: SnapshotFiles | None = log.snapshots if snapshots and not after else None
        self._keeps = keeps
        self._debt = Debt()
        self._moves = log.moves

    @property
    def seq(self) -> int:
        """The last event that `peek()` has in it."""
        return self._seq

    @property
    def state(self) -> S:
        """The state at the head of the log. Raises FoldError when a handler raises; `peek()` then still serves."""
        return self.refresh()[0]

    def peek(self) -> S:
        """The state after event `seq`, without a look at the log."""
        return self._state

    def refresh(self, upto: int | None = None, *, progress: Progress | None = None) -> tuple[S, int]:
        """Catch up with the log, at most to `upto`; the state and the seq that it is at, which belong together."""
        with self._lock:
            self._catch_up(upto, progress)
            return self._state, self._seq

    def read(self, function: Callable[[S, int], R]) -> R:
        """Catch up, then call `function(state, seq)` while no other thread can move the state; give back what it gives."""
        with self._lock:
            self._catch_up(None, None)
            return function(self._state, self._seq)

    def keep(self) -> bool:
        """Write a snapshot of the state as it is, if enough has been folded since the last one; was one written, or found?

        For a process that lives for a moment: call it when the answer is out. It never raises for what the disk does.
        """
        with self._lock:
            return self._keep()

    @property
    def due(self) -> bool:
        """Would `keep` write one now, as far as this handle can tell?"""
        return self._files is not None and self._files.may_write and self._debt.is_due(self._seq)

    def _keep(self) -> bool:
        files, debt = self._files, self._debt
        if files is None or not self.due:
            return False
        size = self.projection.keep(files, self._state, self._seq)
        debt.settle(self._seq, size)
        return size > 0

    def _catch_up(self, upto: int | None, progress: Progress | None) -> None:
        head = self.log.confirmed()  # one look: reading up to there takes no other
        if self._moves != self.log.moves:  # the log was cut under us: other events may have these seqs now
            self._state, self._seq, self._debt = self.projection.initial, self._after, Debt()
            self._moves = self.log.moves
        try:
            if self._seq == 0 and self._files is not None:
                kept = self.projection.resume(self._files, upto)
                if kept is not None:
                    self._state, self._seq, size = kept
                    self._debt.settle(self._seq, size)
            before, began = self._seq, perf_counter_ns()
            self._state, self._seq = _advance(self.projection, self.log, self._state, self._seq, head, upto, progress)
            if self._seq != before:
                self._debt.spent_ns += perf_counter_ns() - began
        except _Stopped as stop:
            self._state, self._seq = stop.state, stop.seq - 1
            raise stop.plain() from stop.__cause__
        except BaseException:
            # A reader that failed, or Ctrl-C inside a handler: the state may have events in it that _seq does not
            # count, and would get them twice. Begin again.
            self._state, self._seq = self.projection.initial, self._after
            raise
        if self._keeps:
            self._keep()


class _Stopped(FoldError):
    """A FoldError that carries the state before the event."""

    state: Any = None

    def plain(self) -> FoldError:
        return FoldError(self.projection, self.seq, self.type, self.why)


def _advance(
    projection: Projection[S], log: EventLog, state: S, after: int, head: int, upto: int | None, progress: Progress | None
) -> tuple[S, int]:
    last = head if upto is None else min(head, upto)
    if last <= after:
        return state, after
    handlers = projection.handlers
    get, default = handlers.get, handlers.get(EVERY_TYPE)
    report_at = after + PROGRESS_EVENTS if progress is not None else last + 1
    for events in log.batches(after, upto=last, types=projection.types):
        try:
            for event in events:
                handler = get(event[2], default)  # by index: half the price of the name, once per event
                if handler is not None:
                    state = handler(state, event)
        except Exception as error:
            stop = _Stopped(projection.name, event.seq, event.type, _one_line(error))
            stop.state = state
            raise stop from error
        if event.seq > report_at and progress is not None:
            progress(event.seq, last)
            report_at = event.seq + PROGRESS_EVENTS
    if progress is not None:
        progress(last, last)
    return state, last


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, EventLogError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
