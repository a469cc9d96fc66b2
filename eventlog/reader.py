"""Reading commits in order, across segments, in memory that does not depend on how many there are.

Every byte that is decoded was covered by a checksum that was checked; a frame whose masks exclude what is wanted is skipped after its
header was. A place that does not check raises Corrupt: a reader never ends early in silence.
"""

from __future__ import annotations

import bisect
import hashlib
import threading
from collections.abc import Generator, Iterator
from typing import Any, TypeAlias

import orjson

from eventlog import frames, segments
from eventlog.directory import Directory
from eventlog.errors import Corrupt, UnsupportedFormat
from eventlog.examine import reader_of
from eventlog.frames import EVENTS, SEAL, Stop
from eventlog.fs import let_go
from eventlog.payload import ALL_NAMES
from eventlog.segments import HEADER_BYTES, name_of
from eventlog.watermark import Mark, unreadable

Rows: TypeAlias = list[list[Any]]
CommitRows: TypeAlias = tuple[int, int, Rows]

_BOOKMARKS_MAX = 4096


class Reader:
    """Reads one log. Remembers where reads ended, so that who reads on from there does not scan the segment again. Safe for threads."""

    def __init__(self, directory: Directory) -> None:
        self._directory, self._fs = directory, directory.fs
        self._guard = threading.Lock()
        self._bookmarks: list[tuple[int, int, int]] = []  # (seq due, segment, offset), sorted

    def commits(
        self, after: int, mark: Mark, *, upto: int | None = None, type_mask: int = ALL_NAMES, stream_mask: int = ALL_NAMES
    ) -> Iterator[CommitRows]:
        """Yield (first seq, time in ns, rows) for each commit behind `after` that may hold what the masks want, up to `mark`.

        Rows are [type, stream, data]; those of the first and last commit may lie outside the limits. Raises Corrupt at damage.
        """
        last = mark.seq - 1 if upto is None else min(upto, mark.seq - 1)
        if after >= last and (mark.damage is None or (upto is not None and upto < mark.seq)):
            return
        with unreadable(self._directory):
            number, offset, seq = self._place(after, mark)
        while True:
            seal_seq = yield from self._segment(number, offset, seq, after, last, mark, type_mask, stream_mask)
            if seal_seq is None:
                break
            number = seq = seal_seq
            offset = HEADER_BYTES
        if mark.damage is not None and (upto is None or upto >= mark.seq):
            raise mark.damage

    def _place(self, after: int, mark: Mark) -> tuple[int, int, int]:
        """Where to begin to find seq `after` + 1: at the nearest bookmark before it, or at the start of its segment."""
        numbers = segments.list_numbers(self._fs, self._directory.segments_fd, self._directory.path)
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

    def _remember(self, seq: int, number: int, offset: int) -> None:
        """`offset` must be durable: what is not may be cut, and then other bytes stand there."""
        with self._guard:
            at = bisect.bisect_left(self._bookmarks, (seq, number, offset))
            if at < len(self._bookmarks) and self._bookmarks[at][0] == seq:
                return
            self._bookmarks.insert(at, (seq, number, offset))
            if len(self._bookmarks) > _BOOKMARKS_MAX:
                del self._bookmarks[::2]

    def _segment(
        self, number: int, offset: int, seq: int, after: int, last: int, mark: Mark, type_mask: int, stream_mask: int
    ) -> Generator[CommitRows, None, int | None]:
        """One segment's part; returns the number of the next one, or None at the end. A hot loop: every name in it is a local."""
        if number > mark.number or (number == mark.number and mark.end <= HEADER_BYTES):
            return None
        with unreadable(self._directory):
            fd, size = segments.open_segment(self._fs, self._directory.segments_fd, number, self._directory.path, write=False)
        try:
            header = segments.parse_header(self._pread(fd, HEADER_BYTES, 0), self._directory.id, number, self._directory.path)
            limit = mark.end if number == mark.number else size
            safe = mark.safe if number == mark.number else size
            unsafe, last_safe = safe < limit, None
            loads = orjson.loads
            stop: Stop | None = None
            for found in frames.scan(lambda n, at: self._pread(fd, n, at), offset, limit, seq, header.salt, type_mask, stream_mask):
                if isinstance(found, Stop):
                    stop = found
                    break
                _, end, first, count, kind, _, time_ns, body = found
                if unsafe and end <= safe:
                    last_safe = (first + count, number, end)
                if kind == EVENTS:
                    if first > last:
                        return None
                    if body is not None and first + count > after + 1:
                        try:
                            rows = loads(body)
                        except ValueError as error:
                            raise self._damaged(number, found.offset, first, f"a body that is no JSON ({error})") from None
                        if rows.__class__ is not list or len(rows) != count:
                            raise self._damaged(number, found.offset, first, f"a body that does not hold {count} events")
                        yield first, time_ns, rows
                    if first + count > last:
                        if end <= safe:
                            self._remember(first + count, number, end)
                        return None
                elif kind == SEAL:
                    if number == mark.number:
                        return None
                    return first
            assert stop is not None
            if number == mark.number and stop.offset >= limit:
                if limit <= safe:
                    self._remember(stop.seq, number, stop.offset)
                elif last_safe is not None:
                    self._remember(*last_safe)
                return None
            if stop.newer:
                raise UnsupportedFormat(
                    f"{self._directory.path}/segments/{name_of(number)}: offset {stop.offset}: {stop.reason}; upgrade eventlog to read on"
                )
            raise self._damaged(number, stop.offset, stop.seq, stop.reason if stop.reason != "end" else "the segment ends without a seal")
        finally:
            let_go(self._fs, fd)

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
        numbers = segments.list_numbers(self._fs, self._directory.segments_fd, self._directory.path)
        number = min(numbers[max(0, bisect.bisect_right(numbers, max(seq, self._directory.first)) - 1)], mark.number)
        fd, size = segments.open_segment(self._fs, self._directory.segments_fd, number, self._directory.path, write=False)
        try:
            header = segments.parse_header(self._fs.pread(fd, HEADER_BYTES, 0), self._directory.id, number, self._directory.path)
            end = HEADER_BYTES if seq == number - 1 else None
            limit = mark.end if number == mark.number else size
            for found in frames.scan(reader_of(self._directory, fd), HEADER_BYTES, limit, number, header.salt):
                if isinstance(found, Stop):
                    if found.offset < limit:
                        raise self._damaged(number, found.offset, found.seq, found.reason)
                    break
                if found.first > seq:
                    break
                if found.kind == EVENTS and found.first + found.events - 1 == seq:
                    end = found.end
                    break
            if end is None:
                raise ValueError(f"seq {seq}: no commit ends there")
            hasher = hashlib.sha256()
            hasher.update(self._fs.pread(fd, end, 0))
            return hasher.hexdigest()
        finally:
            let_go(self._fs, fd)
