"""Reading commits in order, across segments, in memory that does not depend on how many there are.

Every byte that is decoded was covered by a checksum that was checked; a frame whose masks exclude what is wanted is skipped after its
header was. A place that does not check raises Corrupt: a reader never ends early in silence.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Generator, Iterator
from typing import Any, TypeAlias

import orjson

from eventlog import frames, segments
from eventlog.directory import Directory
from eventlog.errors import Corrupt, EventLogError, UnsupportedFormat
from eventlog.events import Recorded
from eventlog.examine import reader_of
from eventlog.frames import EVENTS, SEAL, Frame
from eventlog.fs import let_go
from eventlog.payload import ALL_NAMES
from eventlog.segments import HEADER_BYTES, name_of
from eventlog.watermark import Mark, unreadable

CommitRows: TypeAlias = tuple[int, int, list[list[Any]]]

_BOOKMARKS_MAX = 4096
_DECODE_EVENTS = 128  # about so many at a time: more cost cache misses and garbage collection


class Reader:
    """Reads one log. Remembers where reads ended, so that who reads on from there does not scan the segment again. Safe for threads."""

    def __init__(self, directory: Directory) -> None:
        self._directory, self._fs = directory, directory.fs
        self._guard = threading.Lock()
        self._bookmarks: list[tuple[int, int, int]] = []  # (seq due, segment, offset), sorted
        self._proved: dict[int, tuple[int, int, int]] = {}  # sealed segments whose digest was checked: inode, size, mtime

    def batches(
        self, after: int, mark: Mark, *, upto: int | None = None, type_mask: int = ALL_NAMES, stream_mask: int = ALL_NAMES
    ) -> Iterator[list[Recorded]]:
        """Yield lists of the events in (after, upto], up to `mark`, that may be of the types and streams of the masks.

        Raises Corrupt at damage, after all before it was yielded; UnsupportedFormat; Unreadable.
        """
        last = mark.seq - 1 if upto is None else min(upto, mark.seq - 1)
        for number, found in self._frames(after, last, mark, upto, type_mask, stream_mask):
            step = max(1, _DECODE_EVENTS // found[0].events)
            for begin in range(0, len(found), step):
                events = self._decode(number, found[begin : begin + step])
                if events[0].seq <= after or events[-1].seq > last:
                    events = [event for event in events if after < event.seq <= last]
                if events:
                    yield events

    def commits(
        self, after: int, mark: Mark, *, upto: int | None = None, type_mask: int = ALL_NAMES, stream_mask: int = ALL_NAMES
    ) -> Iterator[CommitRows]:
        """Yield (first seq, time in ns, rows of [type, stream, data]) of each whole commit that may hold what the masks want.

        Nothing within a commit is filtered, not even by `after` and `upto`. Errors as in `batches`.
        """
        last = mark.seq - 1 if upto is None else min(upto, mark.seq - 1)
        for number, found in self._frames(after, last, mark, upto, type_mask, stream_mask):
            for frame in found:
                yield frame.first, frame.time, self._rows(number, frame)

    def _decode(self, number: int, found: list[Frame]) -> list[Recorded]:
        """The events of several small frames by one call of the JSON parser, or of a large one."""
        new = tuple.__new__
        try:
            # A line break between them: no string can run from one body into the next.
            bodies: list[list[Any]] = orjson.loads(b"[" + b",\n".join([frame[7] for frame in found]) + b"]")  # type: ignore[misc]
            if len(bodies) == len(found):
                events = [
                    new(Recorded, (seq, frame[6], kind, stream, data))
                    for frame, rows in zip(found, bodies, strict=True)
                    for seq, (kind, stream, data) in enumerate(rows, frame[2])
                    if data.__class__ is dict and kind.__class__ is str and stream.__class__ is str
                ]
                if len(events) == sum([frame[3] for frame in found]):
                    return events
        except (ValueError, TypeError):
            pass  # one of them is not what the format says: the walk below finds out which
        return [new(Recorded, (seq, f.time, *row)) for f in found for seq, row in enumerate(self._rows(number, f), f.first)]

    def _rows(self, number: int, frame: Frame) -> list[list[Any]]:
        """The rows of one frame whose CRCs hold. Raises Corrupt: somebody wrote it who does not keep the format."""
        assert frame.body is not None
        try:
            rows: Any = orjson.loads(frame.body)
        except ValueError as error:
            raise self._damaged(number, frame.offset, frame.first, f"a body that is no JSON ({error})") from None
        if type(rows) is not list or len(rows) != frame.events:
            raise self._damaged(number, frame.offset, frame.first, f"a body that does not hold {frame.events} events")
        for row in rows:
            if type(row) is not list or [type(part) for part in row] != [str, str, dict]:
                raise self._damaged(number, frame.offset, frame.first, f"a body that holds {row!r:.60}, not [type, stream, data]")
        return rows

    def _frames(
        self, after: int, last: int, mark: Mark, upto: int | None, type_mask: int, stream_mask: int
    ) -> Iterator[tuple[int, list[Frame]]]:
        """The frames with wanted events, in lists with the number of their segment; over all segments, up to the mark."""
        if after < last:
            with unreadable(self._directory):
                place: tuple[int, int, int] | None = self._place(after, mark)
            while place is not None:
                place = yield from self._segment(*place, after, last, mark, type_mask, stream_mask)
        if mark.damage is not None and (upto is None or upto >= mark.seq):
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
        self, number: int, offset: int, seq: int, after: int, last: int, mark: Mark, type_mask: int, stream_mask: int
    ) -> Generator[tuple[int, list[Frame]], None, tuple[int, int, int] | None]:
        """One segment's part; returns the place where the next one begins, or None at the end."""
        if number > mark.number or (number == mark.number and mark.end <= HEADER_BYTES):
            return None
        with unreadable(self._directory):
            fd, size = segments.open_segment(self._fs, self._directory.segments_fd, number, self._directory.path, write=False)
        try:
            header = segments.parse_header(self._pread(fd, HEADER_BYTES, 0), self._directory.id, number, self._directory.path)
            limit, safe = (mark.end, mark.safe) if number == mark.number else (size, size)
            proved = number != mark.number and offset == HEADER_BYTES and self._prove(number, fd, size, last)
            pread = lambda length, at: self._pread(fd, length, at)  # noqa: E731
            stop = None
            for found, stop in frames.scan(pread, offset, limit, seq, header.salt, type_mask, stream_mask, proved=proved):  # noqa: B007
                wanted = [frame for frame in found if frame[7] is not None and frame[4] == EVENTS]
                if wanted and (wanted[0].first + wanted[0].events - 1 <= after or wanted[-1].first > last):
                    wanted = [frame for frame in wanted if frame.first + frame.events - 1 > after and frame.first <= last]
                if wanted:
                    yield number, wanted
                if found:
                    end, due = found[-1].end, found[-1].first + found[-1].events
                    if end <= safe:
                        self.remember(due, number, end)
                    if found[-1].kind == SEAL:
                        return None if number == mark.number else (found[-1].first, HEADER_BYTES, found[-1].first)
                    if due > last:
                        return None
            assert stop is not None
            if number == mark.number and stop.offset >= limit:
                return None
            if stop.newer:
                where = f"{self._directory.path}/segments/{name_of(number)}: offset {stop.offset}"
                raise UnsupportedFormat(f"{where}: {stop.reason}; upgrade eventlog to read on")
            raise self._damaged(number, stop.offset, stop.seq, stop.reason if stop.reason != "end" else "the segment ends without a seal")
        finally:
            let_go(self._fs, fd)

    def _prove(self, number: int, fd: int, size: int, last: int) -> bool:
        """Check a sealed segment that will be read to its end by its digest, which the next header holds; once for each handle.

        One pass in C costs a tenth of the CRCs of its frames. If it does not hold, those tell where the damage is.
        """
        with unreadable(self._directory):
            following = next((n for n in self._numbers() if n > number), None)
            if following is None or last < following - 1:
                return False
            status = self._fs.fstat(fd)
            key = (status.st_ino, size, status.st_mtime_ns)
            if self._proved.get(number) != key:
                head, _ = segments.open_segment(self._fs, self._directory.segments_fd, following, self._directory.path, write=False)
                try:
                    following_head = self._fs.pread(head, HEADER_BYTES, 0)
                    previous = segments.parse_header(following_head, self._directory.id, following, self._directory.path).previous
                except EventLogError:
                    return False  # an unfinished header, or a damaged one: whoever reads that segment says so
                finally:
                    let_go(self._fs, head)
                if segments.digest(self._fs, fd, size) != previous:
                    return False
                self._proved[number] = key
            return True

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
