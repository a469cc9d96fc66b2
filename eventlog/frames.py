"""The bytes of a frame: one commit, or a mark, or a seal (docs/format.md).

Pure: bytes in, values out. A frame is checked against the place where it stands: its header's CRC starts from the *salt* of its segment
(the CRC in the segment's header, which covers log id, number and the hash of everything before), and its first seq must be the one
that is due. So a frame that was moved, copied from another log, or left over from an earlier life of the block does not check.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple
from zlib import crc32

from eventlog.payload import ALL_NAMES, Draft

__all__ = ["EVENTS", "FRAME_HEADER_BYTES", "MAGIC", "MARK", "SEAL", "Frame", "Stop", "encode", "scan", "search_durable"]

MAGIC = b"\xf5evf"  # 0xf5 never occurs in UTF-8, so no body can hold it
FRAME_HEADER_BYTES = 64
EVENTS, MARK, SEAL = 1, 2, 3
_CHUNK_FIRST, _CHUNK_MAX = 1 << 12, 1 << 18  # bytes a read: most scans look at a few frames behind a place they know

_HEADER = struct.Struct("<4sIIIQQqIIQQ")
_CHECKED = struct.Struct("<IIQQqIIQQ")  # what the header CRC covers: all that follows it
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
    return b"".join((MAGIC, crc32(checked, salt).to_bytes(4, "little"), checked, body))


def scan(
    pread: Callable[[int, int], bytes],
    offset: int,
    limit: int,
    seq: int,
    salt: int,
    type_mask: int = ALL_NAMES,
    stream_mask: int = ALL_NAMES,
) -> Iterator[Frame | Stop]:
    """Yield the frames from `offset` on, up to `limit`; the last thing yielded is the Stop.

    `pread(length, offset)` reads; `seq` is the first seq that is due. Memory is one chunk or one frame, and a length field is
    believed only as far as `limit`.
    """
    unpack, header_bytes = _HEADER.unpack_from, FRAME_HEADER_BYTES
    new, frame_class = tuple.__new__, Frame
    base, chunk, span = offset, b"", _CHUNK_FIRST  # chunk holds the bytes from `base` on
    while True:
        at = offset - base
        if at + header_bytes > len(chunk):
            base, at = offset, 0
            chunk = pread(min(span, limit - offset), offset) if limit > offset else b""
            span = min(span << 2, _CHUNK_MAX)
            if len(chunk) < header_bytes:
                yield Stop(offset, seq, _why_short(chunk, offset, limit))
                return
        magic, header_crc, length, body_crc, first, durable, time_ns, count, kind, types, streams = unpack(chunk, at)
        # A slice of 56 bytes costs less than a memoryview of it.
        if magic != MAGIC or crc32(chunk[at + 8 : at + header_bytes], salt) != header_crc:
            rest = chunk[at : at + header_bytes]
            yield Stop(offset, seq, "zeros" if not any(rest) else "no frame header checks here")
            return
        end = offset + header_bytes + length
        if first != seq or length & 7 or end > limit or not EVENTS <= kind <= SEAL:
            yield Stop(offset, seq, _why_not(first, seq, length, end, limit, kind), not EVENTS <= kind <= SEAL)
            return
        if kind == EVENTS and not (types & type_mask and streams & stream_mask):
            body = None
        else:
            start = at + header_bytes
            if start + length > len(chunk):
                base, at, start, span = offset, 0, header_bytes, min(span << 2, _CHUNK_MAX)
                chunk = pread(min(max(span, header_bytes + length), limit - offset), offset)
                if len(chunk) < header_bytes + length:
                    yield Stop(offset, seq, "the file ends inside a frame")
                    return
            body = chunk[start : start + length]
            if crc32(body) != body_crc:
                yield Stop(offset, seq, "the body does not match its CRC")
                return
        yield new(frame_class, (offset, end, first, count, kind, durable, time_ns, body))
        offset = end
        seq += count


def _why_short(chunk: bytes, offset: int, limit: int) -> str:
    if offset >= limit:
        return "end"
    return "the file ends inside a frame header" if any(chunk) else "zeros"


def _why_not(first: int, seq: int, length: int, end: int, limit: int, kind: int) -> str:
    if first != seq:
        return f"a frame of seq {first} stands where seq {seq} is due"
    if not EVENTS <= kind <= SEAL:
        return f"a frame of unknown kind or flags {kind:#x}"
    if end > limit:
        return "the frame is longer than the file"
    return f"a body length of {length} is no multiple of 8"


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
