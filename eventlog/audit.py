"""Reading everything and believing nothing: was this log touched? (reliability P42)

Every stored byte is covered: each frame by its CRCs (header and body, bound to its place), each sealed segment by the SHA-256 in the next
one's header, and what is stored must make sense: dense seqs, masks that match, bodies that hold events. What no log can know of itself is
that its tail was cut or that all of it was replaced: for that, keep a head (`SEQ:HASH`) elsewhere and give it as `expect`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from eventlog import frames, indexes, segments
from eventlog.directory import Directory
from eventlog.errors import Corrupt, EventLogError, LogNotFound
from eventlog.examine import read_seal, reader_of, written_end
from eventlog.frames import EVENTS, MARK, SEAL, Frame
from eventlog.fs import REAL, FileSystem, let_go
from eventlog.indexes import Place
from eventlog.payload import mask_of
from eventlog.reader import Reader
from eventlog.segments import FOOTER_BYTES, HEADER_BYTES, name_of
from eventlog.watermark import Mark, Watermark, unreadable

PROBLEMS_MAX = 100


class Problem(NamedTuple):
    """One thing that is wrong: where it begins, and what."""

    segment: int
    offset: int
    seq: int
    what: str

    def __str__(self) -> str:
        place = f"segments/{name_of(self.segment)}: offset {self.offset}, seq {self.seq}: " if self.segment else ""
        return place + self.what


class Audit(NamedTuple):
    """What `verify` found. `head_hash` is empty when the log is too damaged to have one; `torn_bytes` follow the end and were never
    acknowledged (a crash, or a commit being written right now): no problem."""

    ok: bool
    segments: int
    commits: int
    events: int
    bytes: int
    head: int
    head_hash: str
    torn_bytes: int
    problems: list[Problem]


class _Tally:
    """What the walk has counted so far."""

    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        self.commits = self.events = self.done = 0
        self.total, self._progress = total, progress
        self.problems: list[Problem] = []

    def found(self, segment: int, offset: int, seq: int, what: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(segment, offset, seq, what))

    def read(self, size: int) -> None:
        self.done += size
        if self._progress is not None:
            self._progress(min(self.done, self.total), self.total)


def verify(
    path: str | os.PathLike[str],
    *,
    expect: tuple[int, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    fs: FileSystem = REAL,
) -> Audit:
    """Check the whole log; writes nothing, and may run beside live writers. `expect` is a head that was kept elsewhere.

    `progress(done, total)` is called with bytes. Raises LogNotFound, UnsupportedFormat, Unreadable; what is wrong with the bytes is
    not raised but returned, all of it (at most 100 problems), and reading goes on behind each as far as it can.
    """
    directory = Directory.open(fs, os.path.abspath(os.fspath(path)), create=False, write=False)
    watermark = Watermark(directory)
    try:
        with unreadable(directory):
            try:
                if not directory.load():
                    raise LogNotFound(f"{directory.path}: no log here (no log.json)")
                numbers = segments.list_numbers(fs, directory.segments_fd, directory.path)
            except Corrupt as error:
                return Audit(False, 0, 0, 0, 0, 0, "", 0, [Problem(error.segment, error.offset, error.seq, str(error))])
            return _walk(directory, watermark, numbers, expect, progress)
    finally:
        watermark.close()
        directory.close()


def _walk(
    directory: Directory,
    watermark: Watermark,
    numbers: list[int],
    expect: tuple[int, str] | None,
    progress: Callable[[int, int], None] | None,
) -> Audit:
    fs = directory.fs
    mark, damage = _mark(watermark)
    if mark is not None:  # what a live writer begins while we read is not looked at
        numbers = [number for number in numbers if number <= mark.number]
    sizes = {n: fs.lstat(name_of(n), dir_fd=directory.segments_fd).st_size for n in numbers}
    tally = _Tally(sum(sizes.values()) * 2, progress)
    if not numbers or numbers[0] != directory.first:
        tally.found(directory.first, 0, directory.first, "the first segment is missing")
    due, hash_before, torn = (numbers[0] if numbers else directory.first), segments.NO_HASH, 0
    for number in numbers:
        if number != due:
            tally.found(due, 0, due, f"{name_of(number)} follows where seq {due} is due: a segment is missing, or one is too many")
            hash_before = b""  # unknown: the chain begins anew here
        last = number == numbers[-1]
        due, hash_before, torn = _segment(directory, tally, number, mark if last else None, last, hash_before)
    head, head_hash = due - 1, ""
    reader = Reader(directory)
    if not tally.problems and mark is not None:
        head_hash = reader.digest(head, mark)
    if expect is not None:
        _expect(reader, tally, mark or Mark(numbers[-1] if numbers else 0, 0, due), head, expect)
    if damage is not None and not tally.problems:  # what the writers had confirmed is gone without a trace in the bytes themselves
        tally.found(damage.segment, damage.offset, damage.seq, "the disk had confirmed bytes behind this place, and nothing is there")
    total = sum(sizes.values())
    return Audit(not tally.problems, len(numbers), tally.commits, tally.events, total, head, head_hash, torn, tally.problems)


def _mark(watermark: Watermark) -> tuple[Mark | None, Corrupt | None]:
    """How far the log goes; no mark, and perhaps the damage, when its end is so damaged that this must be found by walking."""
    try:
        mark = watermark.seen()
    except EventLogError:
        return None, None
    if mark.damage is not None:
        return None, mark.damage if isinstance(mark.damage, Corrupt) else None
    return mark, None


def _segment(directory: Directory, tally: _Tally, number: int, mark: Mark | None, last: bool, hash_before: bytes) -> tuple[int, bytes, int]:
    """Check one file. Returns the seq due behind it, its SHA-256, and how many torn bytes follow its end."""
    fs = directory.fs
    try:
        fd, size = segments.open_segment(fs, directory.segments_fd, number, directory.path, write=False)
    except Corrupt as error:
        tally.found(number, 0, number, str(error))
        return number, b"", 0
    try:
        try:
            header = segments.parse_header(fs.pread(fd, HEADER_BYTES, 0), directory.id, number, directory.path)
        except Corrupt as error:
            if not (last and mark is not None and mark.number == number and mark.end <= HEADER_BYTES):  # else: just being made
                tally.found(number, 0, number, str(error))
            return number, b"", 0
        if hash_before and header.previous != hash_before:
            tally.found(number, 40, number, "its header holds another SHA-256 than the segment before it has: that one was changed")
        seq, end, sealed = _frames(directory, tally, fd, number, header.salt, mark.end if last and mark else size)
        torn = 0
        if sealed:
            if end + FOOTER_BYTES != size or read_seal(directory, fd, size, header.salt) is None:
                tally.found(number, end, seq, "the footer behind the seal does not check")
            else:
                footer = segments.parse_footer(fs.pread(fd, FOOTER_BYTES, end), header.salt)
                if footer is not None and footer.checksum not in (0, segments.checksum(fs, fd, end)):
                    tally.found(number, end, seq, "the CRC in the footer is not that of the segment")
        elif not last:
            tally.found(number, end, seq, "not sealed, though another segment follows")
        elif mark is not None:
            torn = written_end(directory, fd, end, size) - end
        digest = segments.digest(fs, fd, size) if not last else b""
        tally.read(size)
        return seq, digest, torn
    finally:
        let_go(fs, fd)


def _frames(directory: Directory, tally: _Tally, fd: int, number: int, salt: int, limit: int) -> tuple[int, int, bool]:
    """Check every frame up to `limit`. Returns the seq that is due, the end, and whether a seal stands there."""
    seq, offset = number, HEADER_BYTES
    places: list[Place] = []
    carried: Frame | None = None
    for found, stop in frames.scan(reader_of(directory, fd), HEADER_BYTES, limit, number, salt):
        for frame in found:
            seq, offset = frame.first + frame.events, frame.end
            if frame.durable > frame.offset:
                tally.found(number, frame.offset, frame.first, f"says that {frame.durable} bytes before it are durable")
            if frame.kind == EVENTS:
                what = _events(frame)
                if what:
                    tally.found(number, frame.offset, frame.first, what)
                tally.commits += 1
                tally.events += frame.events
                places.append((frame.offset, frame.first, frame.events, frame.time, frame.types, frame.streams))
            elif frame.kind == SEAL:
                what = _index(frame, carried, places, number)
                if what:
                    tally.found(number, frame.offset, frame.first, what)
                return seq, offset, True
            carried = frame if frame.kind == MARK and frame.body else None
        if found:
            tally.read(found[-1].end - found[0].offset)
        if stop is not None:
            # Zeros are the reserved end of the last segment, unless something stands behind them.
            if stop.reason not in ("end", "zeros") or written_end(directory, fd, stop.offset, limit) > stop.offset:
                tally.found(number, stop.offset, stop.seq, stop.reason)
            return stop.seq, stop.offset, False
    raise AssertionError("a scan ends with a Stop")


def _events(frame: Frame) -> str:
    """What is wrong with the body of a frame whose CRCs check: somebody wrote it who does not keep the rules. Empty: nothing."""
    if frame.body is None:
        return "its masks name no type or no stream: readers skip it"
    try:
        rows: Any = orjson.loads(frame.body)
    except ValueError as error:
        return f"the body is no JSON ({error})"
    if not isinstance(rows, list) or len(rows) != frame.events:
        return f"the body does not hold {frame.events} events"
    types = streams = 0
    for row in rows:
        if row.__class__ is list and len(row) == 3:  # what the parser makes is of exactly these classes
            kind, stream, data = row
            if kind.__class__ is str and stream.__class__ is str and data.__class__ is dict:
                types |= mask_of(kind)
                streams |= mask_of(stream)
                continue
        return f"the body holds {row!r:.60} where [type, stream, data] is due"
    if frame.types != types or frame.streams != streams:
        return "the masks in its header are not those of its events: readers would skip it"
    return ""


def _index(seal: Frame, carried: Frame | None, places: list[Place], number: int) -> str:
    """What is wrong with the index that a seal names: a reader believes it, and would miss events that it leaves out. Empty: nothing."""
    try:
        named = orjson.loads(seal.body or b"").get("index")
    except (ValueError, AttributeError):
        return "the seal is no JSON object"
    if named is None:
        return ""
    if carried is None or carried.offset != named or carried.end != seal.offset:
        return f"the seal names an index at offset {named!r:.40}, and none stands there"
    if indexes.parse(carried.body or b"") != indexes.collect(places, number):
        return "the index before the seal is not that of the segment's frames: readers would miss some"
    return ""


def _expect(reader: Reader, tally: _Tally, mark: Mark, head: int, expect: tuple[int, str]) -> None:
    seq, digest = expect
    if seq > head:
        tally.found(0, 0, seq, f"the log ends at seq {head}, but was expected to hold seq {seq}: its tail was cut, or it is another log")
        return
    try:
        found = reader.digest(seq, mark)
    except (ValueError, Corrupt) as error:
        found = str(error)
    if found != digest.lower():
        tally.found(
            0, 0, seq, f"at seq {seq} the hash is not the expected one ({found}): what came before was changed, or it is another log"
        )
