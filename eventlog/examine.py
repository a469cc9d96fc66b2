"""Looking at the end of a log without touching it: names, the seal before the last segment, the last segment itself.

Readers stop at what is found here; `opening` mends it. Nothing in this module writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from eventlog import frames, segments
from eventlog.directory import Directory
from eventlog.errors import Corrupt, UnsupportedFormat
from eventlog.frames import Frame, Stop
from eventlog.fs import let_go
from eventlog.light import TYPE_CHECKING, Lazy, NamedTuple
from eventlog.segments import FOOTER_BYTES, HEADER_BYTES, Header, name_of

if TYPE_CHECKING:
    from eventlog import tail
else:
    tail = Lazy("eventlog.tail")  # the table, for who finds something to mend

_PIECE_BYTES = 1 << 20


class Scan(NamedTuple):
    """A walk over frames: where and why it stopped, the seal if it met one, the largest `durable` said, the end of the last events."""

    stop: Stop
    seal: Frame | None
    said: int
    events_end: int


class Finding(NamedTuple):
    """The last segment after a whole scan, and the row of the decision table that holds for it."""

    row: tail.Row
    header: Header | None  # None: unfinished
    scan: Scan
    durable: int


def list_segments(directory: Directory) -> list[int]:
    """All segment numbers, in order; the first one must be there. Raises Corrupt."""
    numbers = segments.list_numbers(directory.fs, directory.segments_fd, directory.path)
    if not numbers or numbers[0] != directory.first:
        raise Corrupt(
            f"{directory.path}/segments/{name_of(directory.first)}: the first segment is missing; restore it from a copy",
            segment=directory.first,
            seq=directory.first,
        )
    return numbers


def check_previous(directory: Directory, numbers: list[int]) -> tuple[int, int] | None:
    """The segment before the last must be sealed, and end where the last begins. Returns its number and size, None if there is none."""
    if len(numbers) < 2:
        return None
    number, after = numbers[-2], numbers[-1]
    fs = directory.fs
    fd, size = segments.open_segment(fs, directory.segments_fd, number, directory.path, write=False)
    try:
        header = segments.parse_header(fs.pread(fd, HEADER_BYTES, 0), directory.id, number, directory.path)
        seal = read_seal(directory, fd, size, header.salt)
    finally:
        let_go(fs, fd)
    if seal is None:
        raise Corrupt(
            f"{directory.path}/segments/{name_of(number)}: offset {size}: not sealed, or cut, though {name_of(after)} follows; "
            "restore it from a copy",
            segment=number,
            offset=size,
            seq=number,
        )
    if seal.first != after:
        raise Corrupt(
            f"{directory.path}/segments/{name_of(seal.first)}: missing ({name_of(number)} ends before it, {name_of(after)} is there); "
            "restore it from a copy",
            segment=seal.first,
            seq=seal.first,
        )
    return number, size


def read_seal(directory: Directory, fd: int, size: int, salt: int) -> Frame | None:
    """The seal frame of a finished segment, found through its footer; None if the segment is not finished."""
    pread = directory.fs.pread
    if size < HEADER_BYTES + FOOTER_BYTES:
        return None
    footer = segments.parse_footer(pread(fd, FOOTER_BYTES, size - FOOTER_BYTES), salt)
    if footer is None or footer.seal_offset > size:
        return None
    offset = footer.seal_offset
    first = first_seq_at(directory, fd, offset)
    found, _ = next(frames.scan(reader_of(directory, fd), offset, size - FOOTER_BYTES, first, salt))
    return found[0] if found and found[0].kind == frames.SEAL and found[0].end == size - FOOTER_BYTES else None


def first_seq_at(directory: Directory, fd: int, offset: int) -> int:
    """What the frame at `offset` says its first seq is: unchecked, for a scan that then checks it."""
    return int.from_bytes(directory.fs.pread(fd, 8, offset + 16), "little")


def reader_of(directory: Directory, fd: int) -> Callable[[int, int], bytes]:
    pread = directory.fs.pread
    return lambda length, offset: pread(fd, length, offset)


def previous_hash(directory: Directory, previous: tuple[int, int] | None) -> bytes:
    """The SHA-256 that the header of the segment behind `previous` must hold."""
    if previous is None:
        return segments.NO_HASH
    number, size = previous
    fd, _ = segments.open_segment(directory.fs, directory.segments_fd, number, directory.path, write=False)
    try:
        return segments.digest(directory.fs, fd, size)
    finally:
        let_go(directory.fs, fd)


def scan(directory: Directory, fd: int, salt: int, offset: int, seq: int, size: int) -> Scan:
    """Walk the frames from `offset` to the first place that does not check, or to the seal."""
    said, events_end = 0, HEADER_BYTES
    for found, stop in frames.scan(reader_of(directory, fd), offset, size, seq, salt):
        for frame in found:
            said = max(said, frame.durable)
            if frame.kind == frames.SEAL:
                return Scan(Stop(frame.end, frame.first, "sealed"), frame, said, frame.end)
            if frame.kind == frames.EVENTS:
                events_end = frame.end
        if stop is not None:
            return Scan(stop, None, said, events_end)
    raise AssertionError("a scan ends with a Stop")


def pieces(directory: Directory, fd: int, offset: int, size: int) -> Iterator[tuple[int, bytes]]:
    """What stands from `offset` on, a piece at a time, without its holes: a file may be larger than memory, and sparse."""
    fs = directory.fs
    while offset < size:
        found = fs.next_data(fd, offset)
        if found is None:
            return
        offset = max(offset, found)
        piece = fs.pread(fd, min(_PIECE_BYTES, size - offset), offset)
        if not piece:
            return
        yield offset, piece
        offset += len(piece)


def written_end(directory: Directory, fd: int, offset: int, size: int) -> int:
    """The end of the last byte behind `offset` that is not zero; `offset` itself if there is none."""
    end = offset
    for at, piece in pieces(directory, fd, offset, size):
        stripped = len(piece.rstrip(b"\0"))
        end = at + stripped if stripped else end
    return end


def durable_behind(directory: Directory, fd: int, offset: int, size: int, salt: int) -> int:
    """The largest `durable` in any frame header that checks from `offset` on, wherever it stands; 0 if there is none."""
    durable, kept = 0, b""
    for _, piece in pieces(directory, fd, offset, size):
        durable = max(durable, frames.search_durable(kept + piece, salt))
        kept = piece[-frames.FRAME_HEADER_BYTES :]  # a header may lie across two pieces
    return durable


def examine(directory: Directory, fd: int, size: int, number: int, previous: tuple[int, int] | None, word: int) -> Finding:
    """Scan a whole last segment and decide. `word` is what the tail record says is durable in it (0: it says nothing)."""
    first = number == directory.first
    header, header_is = _header(directory, fd, size, number, previous)
    if header is None:
        nothing = Scan(Stop(0, number, "no header"), None, 0, 0)
        return Finding(tail.decide(tail.Facts(header_is, first, False, False, 0, True, word)), None, nothing, word)
    found = scan(directory, fd, header.salt, HEADER_BYTES, number, size)
    stop = found.stop
    zeros = written_end(directory, fd, stop.offset, size) == stop.offset
    behind = 0 if zeros or found.seal is not None else durable_behind(directory, fd, stop.offset, size, header.salt)
    durable = max(found.said, behind, word)
    facts = tail.Facts(header_is, first, stop.newer, found.seal is not None, stop.offset, zeros, durable)
    return Finding(tail.decide(facts), header, found, durable)


def _header(directory: Directory, fd: int, size: int, number: int, previous: tuple[int, int] | None) -> tuple[Header | None, tail.HeaderIs]:
    """Raises Corrupt for a header that is damaged, UnsupportedFormat for one that is newer."""
    head = directory.fs.pread(fd, HEADER_BYTES, 0)
    try:
        return segments.parse_header(head, directory.id, number, directory.path), tail.HeaderIs.GOOD
    except Corrupt:
        expected = segments.pack_header(directory.id, number, previous_hash(directory, previous))
        if expected.startswith(head.rstrip(b"\0")) and written_end(directory, fd, HEADER_BYTES, size) == HEADER_BYTES:
            return None, tail.HeaderIs.UNFINISHED
        raise


def refusal(directory: Directory, row: tail.Row, number: int, stop: Stop) -> Corrupt | UnsupportedFormat:
    """The error for a row that refuses: names segment, offset and seq, and says what to do."""
    where = f"{directory.path}/segments/{name_of(number)}: offset {stop.offset}, seq {stop.seq}: {stop.reason}"
    if row.action is tail.Action.UPGRADE:
        return UnsupportedFormat(f"{where} ({row.why}); upgrade eventlog to write to this log")
    return Corrupt(
        f"{where} ({row.name}: {row.why}); restore it from a copy, read up to it with read_only=True, or see `eventlog repair`",
        segment=number,
        offset=stop.offset,
        seq=stop.seq,
    )
