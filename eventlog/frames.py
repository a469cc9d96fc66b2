"""The bytes of a frame: one commit, or a mark, or a seal (docs/format.md).

Pure: bytes in, values out. A frame is checked against the place where it stands: its header's CRC starts from the *salt* of its segment
(the CRC in the segment's header, which covers log id, number and the hash of everything before), and its first seq must be the one
that is due. So a frame that was moved, copied from another log, or left over from an earlier life of the block does not check.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from zlib import crc32

from eventlog.light import NamedTuple
from eventlog.payload import ALL_NAMES, Draft

__all__ = ["EVENTS", "FRAME_HEADER_BYTES", "MAGIC", "MARK", "SEAL", "Frame", "Stop", "encode", "reach", "scan", "search_durable"]

MAGIC = b"\xf5evf"  # 0xf5 never occurs in UTF-8, so no body can hold it
FRAME_HEADER_BYTES = 64
EVENTS, MARK, SEAL = 1, 2, 3
_SPAN_FIRST, _SPAN_MAX = 1 << 12, 1 << 18  # bytes a read: most scans look at a few frames behind a place they know

_HEADER = struct.Struct("<4sIIIQQqIIQQ")
_CHECKED = struct.Struct("<IIQQqIIQQ")  # what the header CRC covers: all that follows it
_WHOLE = struct.Struct("<4sI56s")
_U32 = struct.Struct("<I")

assert _HEADER.size == FRAME_HEADER_BYTES
assert _CHECKED.size == FRAME_HEADER_BYTES - 8


class Frame(NamedTuple):
    """A frame that checked. `body` is None where the reader's masks excluded it: then only its header was checked."""

    offset: int
    end: int
    first: int
    events: int
    kind: int
    durable: int
    time: int
    body: bytes | None
    types: int
    streams: int


class Stop(NamedTuple):
    """Why and where a scan stopped: `reason` is "end" (the limit), "zeros" (nothing was written here), or what did not check."""

    offset: int
    seq: int
    reason: str
    newer: bool = False  # the header checks, but says something that only a newer version could mean


def encode(draft: Draft, first: int, durable: int, time_ns: int, kind: int, salt: int) -> bytes:
    """One frame, header and body. `durable` is the offset in this segment known to be on disk now."""
    body, events, types, streams = draft
    checked = _CHECKED.pack(len(body), crc32(body), first, durable, time_ns, events, kind, types, streams)
    return _WHOLE.pack(MAGIC, crc32(checked, salt), checked) + body


def scan(
    pread: Callable[[int, int], bytes],
    offset: int,
    limit: int,
    seq: int,
    salt: int,
    type_mask: int = ALL_NAMES,
    stream_mask: int = ALL_NAMES,
    *,
    proved: bool = False,
) -> Iterator[tuple[list[Frame], Stop | None]]:
    """Walk the frames from `offset` on, up to `limit`: a list of them for each piece that was read; the last one comes with the Stop.

    `pread(length, offset)` reads; `seq` is the first seq that is due. Memory is one piece or one frame, and a length field is believed
    only as far as `limit`. `proved`: the caller has checked a digest of all these bytes, so the CRCs are not computed again. Lists, since
    a generator that is resumed for each frame costs as much as checking it.
    """
    unpack, header_bytes, crc, new, frame_class = _HEADER.unpack_from, FRAME_HEADER_BYTES, crc32, tuple.__new__, Frame
    span, stop = _SPAN_FIRST, None
    while True:
        chunk = pread(min(span, limit - offset), offset) if limit > offset else b""
        size, at, needed = len(chunk), 0, header_bytes
        found: list[Frame] = []
        while (start := at + header_bytes) <= size:
            magic, header_crc, length, body_crc, first, durable, time_ns, count, kind, types, streams = unpack(chunk, at)
            if magic != MAGIC or not (proved or crc(chunk[at + 8 : start], salt) == header_crc):
                zeros = not any(chunk[at:start])
                stop = Stop(offset + at, seq, "zeros" if zeros else "no frame header checks here")
                break
            end = start + length
            if first != seq or length & 7 or offset + end > limit or not EVENTS <= kind <= SEAL or (count > 0) != (kind == EVENTS):
                strange = not EVENTS <= kind <= SEAL or (count > 0) != (kind == EVENTS)
                stop = Stop(offset + at, seq, _why_not(first, seq, length, offset + end, limit, kind), strange)
                break
            if kind == EVENTS and not (types & type_mask and streams & stream_mask):
                body = None  # nothing that is wanted: not even looked at
            elif end > size:
                needed = header_bytes + length
                break
            else:
                body = chunk[start:end]
                if not (proved or crc(body) == body_crc):
                    stop = Stop(offset + at, seq, "the body does not match its CRC")
                    break
            found.append(new(frame_class, (offset + at, offset + end, first, count, kind, durable, time_ns, body, types, streams)))
            at = end
            seq += count
        offset += at
        if stop is None and at == 0 and span >= needed:  # there is no more to read
            stop = Stop(offset, seq, _why_short(chunk, offset, limit))
        if found or stop is not None:
            yield found, stop
        if stop is not None:
            return
        span = max(min(span << 2, _SPAN_MAX), needed)


def _why_short(chunk: bytes, offset: int, limit: int) -> str:
    if offset >= limit:
        return "end"
    return "the file ends inside a frame" if any(chunk) else "zeros"


def _why_not(first: int, seq: int, length: int, end: int, limit: int, kind: int) -> str:
    if first != seq:
        return f"a frame of seq {first} stands where seq {seq} is due"
    if not EVENTS <= kind <= SEAL:
        return f"a frame of unknown kind or flags {kind:#x}"
    if end > limit:
        return "the frame is longer than the file"
    if not length & 7:
        return f"a frame of kind {kind} with a wrong number of events"
    return f"a body length of {length} is no multiple of 8"


def reach(header: bytes, salt: int) -> tuple[int, int] | None:
    """(bytes of the frame, last seq in it) as the header of a frame of events says; None if it does not check, or is of another kind."""
    if len(header) != FRAME_HEADER_BYTES:
        return None
    magic, header_crc, length, _, first, _, _, count, kind, _, _ = _HEADER.unpack(header)
    if magic != MAGIC or crc32(header[8:], salt) != header_crc or kind != EVENTS:
        return None
    return FRAME_HEADER_BYTES + length, first + count - 1


def search_durable(data: bytes, salt: int) -> int:
    """The largest `durable` in any frame header that checks in `data`, wherever it stands; 0 if there is none.

    Used on what lies behind a bad place: a frame there that checks proves that the log once went on, and its `durable` how far the disk
    had confirmed it (Protocol-Aware Recovery: tell a crash from damage).
    """
    durable = 0
    at = data.find(MAGIC)
    while at >= 0:
        header = data[at : at + FRAME_HEADER_BYTES]
        if len(header) == FRAME_HEADER_BYTES and crc32(header[8:], salt) == _U32.unpack_from(header, 4)[0]:
            durable = max(durable, int(_CHECKED.unpack_from(header, 8)[3]))
        at = data.find(MAGIC, at + 1)
    return durable
