"""Many frames at once: the walk and the decoding that reading is made of.

`frames.scan` gives a value for each frame, to whoever looks closely (opening, recovery, audit). Reading wants columns instead: building a
tuple for each frame, and asking about each event in Python, cost more than parsing it. What is odd in any way is handed to `frames.scan`,
so that there is one judge of what checks and why not.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from zlib import crc32

from eventlog.events import Recorded
from eventlog.frames import EVENTS, FRAME_HEADER_BYTES, MAGIC, SEAL, Stop, scan
from eventlog.jsonroad import loads
from eventlog.light import TYPE_CHECKING, NamedTuple
from eventlog.payload import ALL_NAMES

if TYPE_CHECKING:
    from typing import Any

__all__ = ["DECODE_EVENTS", "Run", "decode", "pick", "walk"]

DECODE_EVENTS = 128  # about so many at a time: more cost cache misses and garbage collection
_SPAN_FIRST, _SPAN_MAX = 1 << 12, 1 << 18  # bytes a read: most reads look at a few frames behind a place they know
_PICK_BYTES, _PICK_FRAMES = 1 << 12, 512
_HEADER = struct.Struct("<4xIIIQ8xqIIQQ")  # a frame's, without magic and `durable`
_strings_only, _dicts_only = frozenset({str}).issuperset, frozenset({dict}).issuperset
_new = tuple.__new__

assert _HEADER.size == FRAME_HEADER_BYTES


class Run(NamedTuple):
    """Frames of events in order, as columns: offset, first seq, number of events, time and body of each. Those that the masks exclude
    are left out. The walk goes on at offset `end` with seq `due`, unless it is `sealed` there."""

    offsets: list[int]
    firsts: list[int]
    counts: list[int]
    times: list[int]
    bodies: list[bytes]
    end: int
    due: int
    sealed: bool

    def between(self, after: int, last: int) -> Run:
        """Only the frames that hold an event in (after, last]."""
        begin = max(0, bisect_right(self.firsts, after) - 1)
        if begin < len(self.firsts) and self.firsts[begin] + self.counts[begin] - 1 <= after:
            begin += 1
        return self._only(range(begin, bisect_right(self.firsts, last)))

    def during(self, since: int, until: int) -> Run:
        """Only the frames of these times, both included; a clock may have been set back."""
        return self._only([at for at, time in enumerate(self.times) if since <= time <= until])

    def _only(self, chosen: Sequence[int]) -> Run:
        offsets, firsts, counts, times, bodies = ([column[at] for at in chosen] for column in self[:5])
        return Run(offsets, firsts, counts, times, bodies, *self[5:])  # type: ignore[arg-type]


def walk(
    pread: Callable[[int, int], bytes],
    offset: int,
    limit: int,
    seq: int,
    salt: int,
    type_mask: int = ALL_NAMES,
    stream_mask: int = ALL_NAMES,
    *,
    proved: bool = False,
) -> Iterator[tuple[Run, Stop | None]]:
    """What `frames.scan` does, for readers: a Run for each piece that was read, and the Stop with the last one."""
    unpack, header_bytes, crc = _HEADER.unpack_from, FRAME_HEADER_BYTES, crc32
    everything = type_mask == stream_mask == ALL_NAMES
    span = _SPAN_FIRST
    while True:
        chunk = pread(min(span, limit - offset), offset) if limit > offset else b""
        size, at, needed = len(chunk), 0, header_bytes
        offsets: list[int] = []
        firsts: list[int] = []
        counts: list[int] = []
        times: list[int] = []
        bodies: list[bytes] = []
        odd = sealed = False
        while (start := at + header_bytes) <= size:
            header_crc, length, body_crc, first, time_ns, count, kind, types, streams = unpack(chunk, at)
            if (
                first != seq
                or kind != EVENTS
                or not (proved or (crc(chunk[at + 8 : start], salt) == header_crc and chunk.startswith(MAGIC, at)))
                or length & 7
                or not count
            ):
                odd = True
                break
            end = start + length
            if everything or (types & type_mask and streams & stream_mask):
                if end > size:
                    needed = header_bytes + length
                    break
                body = chunk[start:end]
                if not (proved or crc(body) == body_crc):
                    odd = True
                    break
                offsets.append(offset + at)
                firsts.append(first)
                counts.append(count)
                times.append(time_ns)
                bodies.append(body)
            elif offset + end > limit:
                odd = True
                break
            at = end
            seq += count
        offset += at
        stop = None
        if odd or (at == 0 and span >= needed):
            # A mark, a seal, or the end of what checks: said by the one who looks at each frame.
            found, stop = next(scan(pread, offset, limit, seq, salt, type_mask, stream_mask, proved=proved))
            if found and found[0].kind == EVENTS:
                stop = Stop(offset, seq, "a frame that checks now did not a moment ago: the disk or the memory is failing")
            elif found:
                offset, stop, sealed = found[0].end, None, found[0].kind == SEAL
        yield Run(offsets, firsts, counts, times, bodies, offset, seq, sealed), stop
        if sealed or stop is not None:
            return
        span = max(min(span << 2, _SPAN_MAX), needed)


def pick(pread: Callable[[int, int], bytes], offsets: Sequence[int], limit: int, salt: int) -> Iterator[tuple[Run, Stop | None]]:
    """The frames at these offsets alone, which an index named; each is checked by its own CRCs. A Stop if one does not check."""
    unpack, header_bytes, crc = _HEADER.unpack_from, FRAME_HEADER_BYTES, crc32
    chunk, base = b"", 0
    run, held = Run([], [], [], [], [], 0, 0, False), 0
    for offset in offsets:
        at = offset - base
        if at + header_bytes > len(chunk):
            chunk, base, at = pread(min(_PICK_BYTES, max(0, limit - offset)), offset), offset, 0
        whole = len(chunk) >= at + header_bytes
        if whole:
            header_crc, length, body_crc, first, time_ns, count, kind, _, _ = unpack(chunk, at)
            whole = kind == EVENTS and crc(chunk[at + 8 : at + header_bytes], salt) == header_crc and chunk.startswith(MAGIC, at)
        if whole and at + header_bytes + length > len(chunk):
            chunk, base, at = pread(min(header_bytes + length, limit - offset), offset), offset, 0
        body = chunk[at + header_bytes : at + header_bytes + length] if whole else b""
        if not whole or len(body) < length or crc(body) != body_crc:
            seq = int.from_bytes(chunk[at + 16 : at + 24], "little")
            stop = next(scan(pread, offset, limit, seq, salt))[1] or Stop(offset, seq, "not the frame that the index names")
            yield run, stop
            return
        run.offsets.append(offset)
        run.firsts.append(first)
        run.counts.append(count)
        run.times.append(time_ns)
        run.bodies.append(body)
        held += length
        if len(run.offsets) >= _PICK_FRAMES or held >= _SPAN_MAX:  # what is named may be large, and the segment too
            yield run, None
            run, held = Run([], [], [], [], [], 0, 0, False), 0
    yield run, None


def decode(run: Run, begin: int, until: int) -> list[Recorded] | None:
    """The events of the frames [begin, until) of a run, by one call of the JSON parser. None: one of them is not what the format says."""
    counts, firsts, times = run.counts[begin:until], run.firsts[begin:until], run.times[begin:until]
    total = sum(counts)
    try:
        # A line break between them: no string can run from one body into the next.
        parsed: Any = loads(b"[" + b",\n".join(run.bodies[begin:until]) + b"]")
        if list(map(len, parsed)) != counts:
            return None
        if total > len(counts):
            events = [
                _new(Recorded, (seq, time, kind, stream, data))
                for first, time, rows in zip(firsts, times, parsed, strict=True)
                for seq, (kind, stream, data) in enumerate(rows, first)
                if data.__class__ is dict and kind.__class__ is str and stream.__class__ is str
            ]
            return events if len(events) == total else None
        # Of one event each: columns, asked about and joined in C. (With many events in a frame, joining the columns costs more.)
        kinds, streams, datas = zip(*chain.from_iterable(parsed), strict=True)
    except (ValueError, TypeError):
        return None
    # Three parts, the last an object: no text or object in the place of a list would have come to that.
    if not (_dicts_only(map(type, datas)) and _strings_only(map(type, kinds)) and _strings_only(map(type, streams))):
        return None
    return list(map(_new, repeat(Recorded), zip(firsts, times, kinds, streams, datas, strict=True)))
