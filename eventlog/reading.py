"""What a log gives to its readers: events from a place on, waiting for more, the head."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from eventlog import segments
from eventlog.errors import LogClosed
from eventlog.events import Head, Recorded, SegmentInfo
from eventlog.light import TYPE_CHECKING
from eventlog.payload import masks_of
from eventlog.reader import EVER, FOREVER, Wanted
from eventlog.watermark import unreadable

if TYPE_CHECKING:
    from eventlog.directory import Directory
    from eventlog.reader import CommitRows, Reader
    from eventlog.watermark import Watermark

_POLL_FIRST, _POLL_MAX = 0.5e-3, 2e-3  # seconds between looks at the tail record, while nothing comes: 0.3 % of a core


class Reading:
    """The part of `EventLog` that never writes."""

    _directory: Directory
    _reader: Reader
    _watermark: Watermark
    _path: str
    _closed: str | None  # why every call is refused

    def read(
        self,
        after: int = 0,
        *,
        upto: int | None = None,
        types: Iterable[str] | None = None,
        streams: Iterable[str] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> Iterator[Recorded]:
        """Yield the events with seq in (after, upto], of these types and streams, of times in [since, until] (ns), in order, as far as
        the head is now. O(1) memory; sealed segments are read only where their index says that such events can be.

        What is handed out is durable. Raises Corrupt at damage, after everything before it was yielded; Unreadable.
        """
        kinds = None if types is None else frozenset(types)
        wanted = None if streams is None else frozenset(streams)
        for events in self.batches(after, upto=upto, types=kinds, streams=wanted, since=since, until=until):
            if kinds is None and wanted is None:
                yield from events
            else:
                for event in events:
                    if (kinds is None or event.type in kinds) and (wanted is None or event.stream in wanted):
                        yield event

    def batches(
        self,
        after: int = 0,
        *,
        upto: int | None = None,
        types: Iterable[str] | None = None,
        streams: Iterable[str] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> Iterator[list[Recorded]]:
        """The fast lane for folds: lists of the events in (after, upto] and [since, until] that MAY be of these types and streams.

        Commits that hold none of them are skipped undecoded; within a commit only the seqs are filtered. Errors as in `read`.
        """
        self._check_open()
        return self._reader.batches(_wanted(after, upto, types, streams, since, until), self._watermark.durable(upto))

    def commits(
        self, after: int = 0, *, upto: int | None = None, types: Iterable[str] | None = None, streams: Iterable[str] | None = None
    ) -> Iterator[CommitRows]:
        """Whole commits, as they were made: (first seq, time in ns, rows of [type, stream, data]) of each that MAY hold such events.

        Nothing within a commit is filtered, not even by `after` and `upto`. Errors as in `read`.
        """
        self._check_open()
        return self._reader.commits(_wanted(after, upto, types, streams, None, None), self._watermark.durable(upto))

    def seq_at(self, time: int) -> int:
        """The head as it was at `time` (ns since the epoch): the last seq before the first event that is later. The order is seq: where a
        clock was set back, what came behind a later event counts as later too. Errors as in `read`."""
        for events in self.batches(since=time + 1):
            return events[0].seq - 1
        return int(self.head)

    def follow(
        self,
        after: int = 0,
        *,
        timeout: float | None = None,
        types: Iterable[str] | None = None,
        streams: Iterable[str] | None = None,
    ) -> Iterator[Recorded]:
        """Like `read`, and then wait for more: each event once, in order, over rotations. Ends when none came for `timeout` seconds."""
        kinds = None if types is None else frozenset(types)
        wanted = None if streams is None else frozenset(streams)
        while True:
            mark = self._watermark.durable()
            head = mark.seq - 1
            yield from self.read(after, upto=head if mark.damage is None else None, types=kinds, streams=wanted)
            after = max(after, head)
            if self.wait(after, timeout) <= after:
                return

    def wait(self, after: int, timeout: float | None = None) -> int:
        """Block until there is an event behind seq `after`, or for `timeout` seconds. Returns the head."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _POLL_FIRST
        while True:
            self._check_open()
            head = self._watermark.head()
            if head > after:
                return head
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return head
                pause = min(pause, left)
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL_MAX)

    @property
    def head(self) -> Head:
        """The seq of the last event: an int that can also say its hash."""
        self._check_open()
        return Head(self._watermark.head(), lambda seq: self._reader.digest(seq, self._watermark.durable()))

    def confirmed(self) -> int:
        """The seq of the last durable event, after a sync if that is what it takes: how far `read` would go now. Errors as in `read`."""
        self._check_open()
        return self._watermark.durable().seq - 1

    @property
    def moves(self) -> int:
        """How often this handle, as far as it has looked, found that something was cut off its log: what was read before may be gone, and
        others may have its seqs. (A crash takes nothing that a reader has seen; `eventlog repair` does.)"""
        return self._watermark.moves

    def segments(self) -> list[SegmentInfo]:
        """The files of the log, in order."""
        self._check_open()
        with unreadable(self._directory):
            numbers = segments.list_numbers(self._directory.fs, self._directory.segments_fd, self._directory.path)
            infos = []
            for number in numbers:
                name = segments.name_of(number)
                size = self._directory.fs.lstat(name, dir_fd=self._directory.segments_fd).st_size
                infos.append(SegmentInfo(number, name, size, number != numbers[-1]))
            return infos

    def _check_open(self) -> None:
        if self._closed is not None:
            raise LogClosed(f"{self._path}: {self._closed}")


def _wanted(
    after: int, upto: int | None, types: Iterable[str] | None, streams: Iterable[str] | None, since: int | None, until: int | None
) -> Wanted:
    return Wanted(after, upto, masks_of(types), masks_of(streams), EVER if since is None else since, FOREVER if until is None else until)
