"""Reading commits in order, across segments, in memory that does not depend on how many there are.

Every byte that is decoded was covered by a checksum that was checked; a frame whose masks exclude what is wanted is skipped after its
header was. A place that does not check raises Corrupt: a reader never ends early in silence.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Generator, Iterator

from eventlog import frames, runs, segments
from eventlog.directory import Directory
from eventlog.errors import Corrupt, EventLogError, UnsupportedFormat
from eventlog.events import Recorded
from eventlog.examine import reader_of
from eventlog.frames import EVENTS
from eventlog.fs import let_go
from eventlog.jsonroad import loads
from eventlog.light import TYPE_CHECKING, Lazy, NamedTuple
from eventlog.payload import ALL_NAMES
from eventlog.runs import DECODE_EVENTS, Run
from eventlog.segments import FOOTER_BYTES, HEADER_BYTES, name_of
from eventlog.watermark import Mark, unreadable

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from eventlog import indexes
    from eventlog.indexes import Index

    CommitRows: TypeAlias = tuple[int, int, list[list[Any]]]

if not TYPE_CHECKING:
    indexes = Lazy("eventlog.indexes")  # for who reads a sealed segment

_BOOKMARKS_MAX = 4096
_INDEXES_MAX = 4


EVER, FOREVER = -(2**63), 2**63 - 1
_EVERYTHING = (ALL_NAMES, ALL_NAMES, EVER, FOREVER)


class Wanted(NamedTuple):
    """What is asked for: seqs in (after, upto], masks of types and streams, times in [since, until] in ns. Exact but for the masks."""

    after: int = 0
    upto: int | None = None
    types: int = ALL_NAMES
    streams: int = ALL_NAMES
    since: int = EVER
    until: int = FOREVER

    def last(self, mark: Mark) -> int:
        """The last seq that there can be."""
        return mark.seq - 1 if self.upto is None else min(self.upto, mark.seq - 1)

    def whole(self, number: int, offset: int) -> bool:
        """Is everything in segment `number` wanted, from its beginning on, or from a place that is known already?"""
        return (self.after < number or offset > HEADER_BYTES) and self[2:] == _EVERYTHING

    def at_times(self, oldest: int, newest: int) -> bool:
        """Can anything that happened in this range of times be wanted?"""
        return oldest <= self.until and newest >= self.since

    def of(self, run: Run, last: int) -> Run:
        """The frames of a run that hold wanted seqs and times."""
        if run.firsts and (run.firsts[0] + run.counts[0] - 1 <= self.after or run.firsts[-1] > last):
            run = run.between(self.after, last)
        if self[4:] != _EVERYTHING[2:]:
            run = run.during(self.since, self.until)
        return run


class Reader:
    """Reads one log. Remembers where reads ended, so that who reads on from there does not scan the segment again. Safe for threads."""

    def __init__(self, directory: Directory) -> None:
        self._directory, self._fs = directory, directory.fs
        self._guard = threading.Lock()
        self._bookmarks: list[tuple[int, int, int]] = []  # (seq due, segment, offset), sorted
        self._indexes: dict[tuple[int, ...], Index | None] = {}  # by number, inode, size, mtime: a repair may have made it another file
        self._proved: dict[int, tuple[int, int, int]] = {}  # sealed segments whose digest was checked: inode, size, mtime

    def batches(self, wanted: Wanted, mark: Mark) -> Iterator[list[Recorded]]:
        """Yield lists of the wanted events, up to `mark`: the seqs and times are exact, of types and streams it is what the masks say.

        Raises Corrupt at damage, after all before it was yielded; UnsupportedFormat; Unreadable.
        """
        after, last = wanted.after, wanted.last(mark)
        for number, run in self._runs(wanted, mark):
            step = max(1, DECODE_EVENTS // run.counts[0])
            for begin in range(0, len(run.bodies), step):
                events = runs.decode(run, begin, begin + step)
                if events is None:  # one of them is not what the format says: find out which
                    events = [
                        Recorded(seq, run.times[at], *row)
                        for at in range(begin, min(begin + step, len(run.bodies)))
                        for seq, row in enumerate(self._rows(number, run, at), run.firsts[at])
                    ]
                if events[0].seq <= after or events[-1].seq > last:
                    events = [event for event in events if after < event.seq <= last]
                if events:
                    yield events

    def commits(self, wanted: Wanted, mark: Mark) -> Iterator[CommitRows]:
        """Yield (first seq, time in ns, rows of [type, stream, data]) of each whole commit that may hold what is wanted.

        Nothing within a commit is filtered, not even by seq. Errors as in `batches`.
        """
        for number, run in self._runs(wanted, mark):
            for at, first in enumerate(run.firsts):
                yield first, run.times[at], self._rows(number, run, at)

    def _rows(self, number: int, run: Run, at: int) -> list[list[Any]]:
        """The rows of one frame whose CRCs hold. Raises Corrupt: somebody wrote it who does not keep the format."""
        offset, first, events = run.offsets[at], run.firsts[at], run.counts[at]
        try:
            rows: Any = loads(run.bodies[at])
        except ValueError as error:
            raise self._damaged(number, offset, first, f"a body that is no JSON ({error})") from None
        if type(rows) is not list or len(rows) != events:
            raise self._damaged(number, offset, first, f"a body that does not hold {events} events")
        for row in rows:
            if type(row) is not list or [type(part) for part in row] != [str, str, dict]:
                raise self._damaged(number, offset, first, f"a body that holds {row!r:.60}, not [type, stream, data]")
        return rows

    def _runs(self, wanted: Wanted, mark: Mark) -> Iterator[tuple[int, Run]]:
        """The frames with wanted events, with the number of their segment; over all segments, up to the mark."""
        if wanted.after < wanted.last(mark):
            with unreadable(self._directory):
                place: tuple[int, int, int] | None = self._place(wanted.after, mark)
            while place is not None:
                place = yield from self._segment(*place, wanted, mark)
        if mark.damage is not None and (wanted.upto is None or wanted.upto >= mark.seq):
            raise mark.damage

    def _place(self, after: int, mark: Mark) -> tuple[int, int, int]:
        """Where to begin to find seq `after` + 1: at the nearest bookmark before it, or at the start of its segment."""
        numbers = self._numbers()
        if not numbers or numbers[0] != self._directory.first:
            raise Corrupt(
                f"{self._directory.path}/segments/{name_of(self._directory.first)}: the first segment is missing; restore it from a copy",
                segment=self._directory.first,
                seq=self._directory.first,
            )
        number = numbers[max(0, bisect.bisect_right(numbers, after + 1) - 1)]
        number = min(number, mark.number)
        with self._guard:
            at = bisect.bisect_right(self._bookmarks, (after + 1, 2**63, 0)) - 1
            if at >= 0 and self._bookmarks[at][1] == number:
                seq, _, offset = self._bookmarks[at]
                if number != mark.number or offset <= mark.end:
                    return number, offset, seq
        return number, HEADER_BYTES, number

    def _numbers(self) -> list[int]:
        return segments.list_numbers(self._fs, self._directory.segments_fd, self._directory.path)

    def remember(self, seq: int, number: int, offset: int) -> None:
        """The frame of `seq` begins, or will, at `offset`, which must be durable: what is not may be cut, and then others stand there."""
        with self._guard:
            at = bisect.bisect_left(self._bookmarks, (seq, number, offset))
            if at < len(self._bookmarks) and self._bookmarks[at][0] == seq:
                return
            self._bookmarks.insert(at, (seq, number, offset))
            if len(self._bookmarks) > _BOOKMARKS_MAX:
                del self._bookmarks[::2]

    def forget(self) -> None:
        """The log was cut: other frames may begin elsewhere now."""
        with self._guard:
            self._bookmarks.clear()

    def frame_that_ends(self, seq: int, mark: Mark) -> tuple[int, int, bytes] | None:
        """Segment, offset and header of the durable frame whose last event is `seq`; None if no commit ends there.

        Errors as in `batches`.
        """
        with unreadable(self._directory):
            number, offset, due = self._place(seq - 1, mark)
            fd, size = segments.open_segment(self._fs, self._directory.segments_fd, number, self._directory.path, write=False)
            try:
                header = segments.parse_header(self._fs.pread(fd, HEADER_BYTES, 0), self._directory.id, number, self._directory.path)
                limit = min(mark.end, mark.safe) if number == mark.number else size
                index = None if number == mark.number else self._index(number, fd, size, header.salt)
                if index is not None:
                    due, offset = max((due, offset), index.seek(seq) or (0, 0))
                for found, _ in frames.scan(reader_of(self._directory, fd), offset, limit, due, header.salt, type_mask=0):
                    for frame in found:
                        if frame.kind == EVENTS and frame.first + frame.events - 1 == seq:
                            return number, frame.offset, self._fs.pread(fd, frames.FRAME_HEADER_BYTES, frame.offset)
                    if found and found[-1].first > seq:
                        break
                return None
            finally:
                let_go(self._fs, fd)

    def _segment(
        self, number: int, offset: int, seq: int, wanted: Wanted, mark: Mark
    ) -> Generator[tuple[int, Run], None, tuple[int, int, int] | None]:
        """One segment's part; returns the place where the next one begins, or None at the end."""
        if number > mark.number or (number == mark.number and mark.end <= HEADER_BYTES):
            return None
        last, open_one = wanted.last(mark), number == mark.number
        with unreadable(self._directory):
            fd, size = segments.open_segment(self._fs, self._directory.segments_fd, number, self._directory.path, write=False)
        try:
            header = segments.parse_header(self._pread(fd, HEADER_BYTES, 0), self._directory.id, number, self._directory.path)
            limit, safe = (mark.end, mark.safe) if open_one else (size, size)
            pread = lambda length, at: self._pread(fd, length, at)  # noqa: E731
            walk = following = None
            # An index saves the walk to the first wanted seq, and past what is not wanted. Its CRC holds, and so must that of each frame.
            index = None if open_one or wanted.whole(number, offset) else self._index(number, fd, size, header.salt)
            if index is not None:
                seq, offset = max((seq, offset), index.seek(wanted.after + 1) or (0, 0))
                offsets = index.offsets(wanted.types, wanted.streams) if wanted.at_times(index.oldest, index.newest) else []
                if offsets is not None:
                    following = number + index.events
                    walk = runs.pick(pread, offsets[bisect.bisect_left(offsets, offset) :], limit, header.salt)
            if walk is None:
                proved = not open_one and offset == HEADER_BYTES and self._prove(number, fd, size, header.salt, last)
                walk = runs.walk(pread, offset, limit, seq, header.salt, wanted.types, wanted.streams, proved=proved)
            stop = None
            for run, stop in walk:
                chosen = wanted.of(run, last)
                if chosen.firsts:
                    yield number, chosen
                if following is None and stop is None:
                    if run.end <= safe:
                        self.remember(run.due, number, run.end)
                    if run.sealed:
                        return None if open_one else (run.due, HEADER_BYTES, run.due)
                if run.due > last:
                    return None
            if stop is None:
                assert following is not None
                return (following, HEADER_BYTES, following) if following <= last else None
            if open_one and stop.offset >= limit:
                return None
            if stop.newer:
                where = f"{self._directory.path}/segments/{name_of(number)}: offset {stop.offset}"
                raise UnsupportedFormat(f"{where}: {stop.reason}; upgrade eventlog to read on")
            raise self._damaged(number, stop.offset, stop.seq, stop.reason if stop.reason != "end" else "the segment ends without a seal")
        finally:
            let_go(self._fs, fd)

    def _index(self, number: int, fd: int, size: int, salt: int) -> Index | None:
        """The index of a sealed segment; the last few are kept, since parsing one costs as much as reading a hundred frames."""
        with unreadable(self._directory):
            status = self._fs.fstat(fd)
            key = (number, status.st_ino, size, status.st_mtime_ns)
            with self._guard:
                if key in self._indexes:
                    return self._indexes[key]
            index = indexes.load(self._directory, fd, size, number, salt)
        with self._guard:
            while len(self._indexes) >= _INDEXES_MAX:
                del self._indexes[next(iter(self._indexes))]
            self._indexes[key] = index
        return index

    def _prove(self, number: int, fd: int, size: int, salt: int, last: int) -> bool:
        """Check a sealed segment that will be read to its end by the CRC of all of it, which its footer holds, or by the digest in the next
        header; once for each handle.

        One pass in C costs a twentieth of the CRCs of its frames. If it does not hold, those tell where the damage is.
        """
        with unreadable(self._directory):
            following = next((n for n in self._numbers() if n > number), None)
            if following is None or last < following - 1:
                return False
            status = self._fs.fstat(fd)
            key = (status.st_ino, size, status.st_mtime_ns)
            if self._proved.get(number) != key:
                footer = segments.parse_footer(self._fs.pread(fd, FOOTER_BYTES, max(0, size - FOOTER_BYTES)), salt)
                if footer is not None and footer.checksum:
                    holds = segments.checksum(self._fs, fd, size - FOOTER_BYTES) == footer.checksum
                else:
                    holds = segments.digest(self._fs, fd, size) == self._previous(following)
                if not holds:
                    return False
                self._proved[number] = key
            return True

    def _previous(self, following: int) -> bytes | None:
        """The digest that the header of the segment behind holds."""
        head, _ = segments.open_segment(self._fs, self._directory.segments_fd, following, self._directory.path, write=False)
        try:
            data = self._fs.pread(head, HEADER_BYTES, 0)
            return segments.parse_header(data, self._directory.id, following, self._directory.path).previous
        except EventLogError:
            return None  # an unfinished header, or a damaged one: whoever reads that segment says so
        finally:
            let_go(self._fs, head)

    def _pread(self, fd: int, length: int, offset: int) -> bytes:
        with unreadable(self._directory):
            return self._fs.pread(fd, length, offset)

    def _damaged(self, number: int, offset: int, seq: int, reason: str) -> Corrupt:
        return Corrupt(
            f"{self._directory.path}/segments/{name_of(number)}: offset {offset}, seq {seq}: {reason}; "
            "restore the segment from a copy, or see `eventlog repair`",
            segment=number,
            offset=offset,
            seq=seq,
        )

    def digest(self, seq: int, mark: Mark) -> str:
        """The head hash of `seq`: SHA-256 of its segment up to the end of the commit that ends with it. Raises ValueError if none does."""
        with unreadable(self._directory):
            return self._digest(seq, mark)

    def _digest(self, seq: int, mark: Mark) -> str:
        numbers = self._numbers()
        number = min(numbers[max(0, bisect.bisect_right(numbers, max(seq, self._directory.first)) - 1)], mark.number)
        fd, size = segments.open_segment(self._fs, self._directory.segments_fd, number, self._directory.path, write=False)
        try:
            header = segments.parse_header(self._fs.pread(fd, HEADER_BYTES, 0), self._directory.id, number, self._directory.path)
            end = HEADER_BYTES if seq == number - 1 else None
            limit = mark.end if number == mark.number else size
            for found, stop in frames.scan(reader_of(self._directory, fd), HEADER_BYTES, limit, number, header.salt):
                ends = [frame.end for frame in found if frame.kind == EVENTS and frame.first + frame.events - 1 == seq]
                if ends:
                    end = ends[0]
                if end is not None or (found and found[-1].first > seq):
                    break
                if stop is not None and stop.offset < limit:
                    raise self._damaged(number, stop.offset, stop.seq, stop.reason)
            if end is None:
                raise ValueError(f"seq {seq}: no commit ends there")
            return segments.digest(self._fs, fd, end).hex()
        finally:
            let_go(self._fs, fd)
