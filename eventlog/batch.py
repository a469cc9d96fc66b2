"""The promise of Durability.BATCHED: on disk after the window, or once so many bytes wait, as long as the process lives."""

from __future__ import annotations

from eventlog.background import Background
from eventlog.group import Group
from eventlog.writer import Writer

_RETIRED_MAX = 3


class Batch:
    """What one handle has written and not synced yet. `window` is in seconds; an infinite one ends when the handle is flushed or closed."""

    def __init__(self, writer: Writer, group: Group, window: float, bytes_max: int) -> None:
        self._writer, self._group, self._bytes_max = writer, group, bytes_max
        self._endless = window == float("inf")
        self._open = self._endless
        self._thread = Background("eventlog-window", self._end_window, window)

    def grew(self) -> None:
        """Something was written that waits for the disk. The first of a window wakes the thread, the one too many syncs at once."""
        if not self._open:
            self.open_window()
        view = self._writer.view
        if len(view.retired) > _RETIRED_MAX:
            self._group.commit(None, durable=False)  # a turn, to close the descriptors of sealed segments
        tail = view.tail
        if tail.end - tail.durable >= self._bytes_max:
            self._group.commit(None)  # a failure has poisoned the writer: every later call on the handle raises it

    def open_window(self) -> None:
        """Let the window begin, if none runs. Never blocks for the disk."""
        if self._endless:
            return
        self._open = True
        try:
            self._thread.poke()
        except RuntimeError:  # no more threads, or the interpreter ends: then now
            self._end_window()

    def _end_window(self) -> None:
        self._open = self._endless  # before the sync: who writes from now on opens the next window
        self._group.commit(None)

    def close(self) -> None:
        self._thread.close()
