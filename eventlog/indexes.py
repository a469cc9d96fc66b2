"""The index of a sealed segment: which frames can hold a type or a stream, and where a seq and a time are (docs/format.md).

It stands in a mark just before the seal, under that frame's CRCs and the hash of the segment, and is made of frame headers alone: names
are known by their bit in the masks. So it never says more than the masks do; it saves walking past the frames that they exclude.
"""

from __future__ import annotations

from array import array
from binascii import a2b_base64, b2a_base64
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from struct import Struct
from sys import byteorder

from eventlog import frames
from eventlog.directory import Directory
from eventlog.examine import read_seal, reader_of
from eventlog.frames import EVENTS, FRAME_HEADER_BYTES, MARK, SEAL
from eventlog.jsonroad import dumps, loads
from eventlog.light import TYPE_CHECKING, NamedTuple
from eventlog.payload import ALL_NAMES, Draft
from eventlog.segments import HEADER_BYTES

if TYPE_CHECKING:
    from typing import Any

    from eventlog.opening import Tail

__all__ = ["Index", "Place", "build", "collect", "load", "pack", "parse", "seal"]

COMMITS_LEAST = 16  # in a smaller segment, walking is as quick
SEEK_BYTES = 64 << 10
EVERYWHERE = 4  # what is in a quarter of the commits or more gets no list: reading them all is quicker
_HEADER = Struct("<8xI4xQ8xqIIQQ")  # of a frame: length, first seq, time, events, kind, masks
_integers, _bits = frozenset({int}).issuperset, frozenset(range(64)).issuperset
SIZE_MAX = 8 << 32  # offsets are stored in 32 bits, divided by 8


class Index(NamedTuple):
    """Counts, the range of times in ns, `seeks`: (seq, offset) of a frame every so often. `types` and `streams`: bit of the mask ->
    offsets of the frames that have it, divided by 8; a bit that is `everywhere` has no list, one that occurs nowhere neither."""

    commits: int
    events: int
    oldest: int
    newest: int
    seeks: list[tuple[int, int]]
    types: dict[int, bytes]
    streams: dict[int, bytes]
    everywhere: tuple[int, int]

    def seek(self, seq: int) -> tuple[int, int] | None:
        """The last known place at or before `seq`: (first seq of a frame, its offset)."""
        at = bisect_right(self.seeks, (seq, 2**63)) - 1
        return self.seeks[at] if at >= 0 else None

    def offsets(self, type_mask: int, stream_mask: int) -> list[int] | None:
        """Where the frames are that may hold what the masks want, in order; None: in too many places to name them."""
        by_type = _choose(self.types, self.everywhere[0], type_mask)
        by_stream = _choose(self.streams, self.everywhere[1], stream_mask)
        found = by_type if by_stream is None else by_stream if by_type is None else by_type & by_stream
        return None if found is None or len(found) * EVERYWHERE > self.commits else sorted([offset * 8 for offset in found])


def _choose(lists: dict[int, bytes], everywhere: int, mask: int) -> set[int] | None:
    if mask & everywhere or mask == ALL_NAMES:
        return None
    found: set[int] = set()
    for bit, packed in lists.items():
        if mask >> bit & 1:
            found.update(_unpack(packed))
    return found


Place = tuple[int, int, int, int, int, int]
"""Of a frame with events: offset, first seq, number of events, time in ns, type mask, stream mask."""


def build(pread: Callable[[int, int], bytes], limit: int, number: int, salt: int, headers: bytes | bytearray = b"") -> Index | None:
    """The index of a segment up to `limit`. `headers` are those of its first frames, as far as the caller wrote them itself; the rest is
    walked and checked. None: an index would not pay, or something does not check (its readers will say so)."""
    return collect(chain(_known(headers), _walked(pread, limit, number, salt, headers)), number) if limit <= SIZE_MAX else None


def collect(places: Iterable[Place], number: int) -> Index | None:
    """The index of the frames at these places, which are all of segment `number`."""
    types: dict[int, array[int]] = {}
    streams: dict[int, array[int]] = {}
    commits, due, sought = 0, number, 0
    oldest, newest = 2**63, -(2**63)
    seeks: list[tuple[int, int]] = []
    for offset, first, events, time, type_mask, stream_mask in places:
        if first != due:
            return None
        due += events
        commits += 1
        if time < oldest:
            oldest = time
        if time > newest:
            newest = time
        if offset >= sought:
            seeks.append((first, offset))
            sought = offset + SEEK_BYTES
        try:
            types[type_mask].append(offset >> 3)
        except KeyError:
            types[type_mask] = array("I", [offset >> 3])
        try:
            streams[stream_mask].append(offset >> 3)
        except KeyError:
            streams[stream_mask] = array("I", [offset >> 3])
    if commits < COMMITS_LEAST:
        return None
    listed_types, types_everywhere = _by_bit(types, commits)
    listed_streams, streams_everywhere = _by_bit(streams, commits)
    return Index(commits, due - number, oldest, newest, seeks, listed_types, listed_streams, (types_everywhere, streams_everywhere))


def _known(headers: bytes | bytearray) -> Iterator[Place]:
    offset = HEADER_BYTES
    for length, first, time, events, kind, types, streams in _HEADER.iter_unpack(headers):
        if kind == EVENTS:
            yield offset, first, events, time, types, streams
        offset += FRAME_HEADER_BYTES + length


def _walked(pread: Callable[[int, int], bytes], limit: int, number: int, salt: int, headers: bytes | bytearray) -> Iterator[Place]:
    """From behind the known frames on. What does not check ends it with a seq that cannot be due."""
    offset, seq = HEADER_BYTES, number
    for length, first, _, events, *_ in _HEADER.iter_unpack(headers):
        offset += FRAME_HEADER_BYTES + length
        seq = first + events
    for found, stop in frames.scan(pread, offset, limit, seq, salt, 0, 0) if offset < limit else ():
        for frame in found:
            if frame.kind == EVENTS:
                yield frame.offset, frame.first, frame.events, frame.time, frame.types, frame.streams
        if stop is not None and stop.offset < limit:
            yield stop.offset, -1, 0, 0, 0, 0


def _by_bit(by_mask: dict[int, array[int]], commits: int) -> tuple[dict[int, bytes], int]:
    """Lists for single bits out of lists for whole masks, and the bits that are in too many frames for a list."""
    lists: dict[int, bytes] = {}
    everywhere = 0
    for bit in range(64):
        holding = [offsets for mask, offsets in by_mask.items() if mask >> bit & 1]
        count = sum(map(len, holding))
        if count * EVERYWHERE >= commits:
            everywhere |= 1 << bit
        elif count:
            lists[bit] = _pack(holding[0] if len(holding) == 1 else array("I", sorted(offset for part in holding for offset in part)))
    return lists, everywhere


def pack(index: Index) -> bytes:
    """The body of the mark that carries it."""
    value = {
        "commits": index.commits,
        "events": index.events,
        "times": [index.oldest, index.newest],
        "seeks": index.seeks,
        "everywhere": index.everywhere,
        "types": {str(bit): b2a_base64(offsets, newline=False).decode() for bit, offsets in index.types.items()},
        "streams": {str(bit): b2a_base64(offsets, newline=False).decode() for bit, offsets in index.streams.items()},
    }
    body = dumps(value)
    return body + b" " * (-len(body) % 8)


def parse(body: bytes) -> Index | None:
    """The inverse of `pack`; None for anything else. The lists stay packed: a reader wants one or two of them."""
    try:
        value: Any = loads(body)
        commits, events, (oldest, newest), seeks = value["commits"], value["events"], value["times"], [(*pair,) for pair in value["seeks"]]
        everywhere_types, everywhere_streams = value["everywhere"]
        types, streams = _lists(value["types"]), _lists(value["streams"])
        numbers = [commits, events, oldest, newest, everywhere_types, everywhere_streams, *chain.from_iterable(seeks)]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if not _integers(map(type, numbers)) or not COMMITS_LEAST <= commits <= events or not _rising(seeks):
        return None
    return Index(commits, events, oldest, newest, seeks, types, streams, (everywhere_types, everywhere_streams))


def _lists(texts: dict[str, str]) -> dict[int, bytes]:
    """Raises ValueError, and what it raises for other values, for whatever is no bit or no list."""
    lists = {int(bit): a2b_base64(text, strict_mode=True) for bit, text in texts.items()}
    if not _bits(lists) or not all(packed and not len(packed) & 3 for packed in lists.values()):
        raise ValueError("no bit of a mask, or no list of offsets")
    return lists


def _rising(seeks: list[tuple[int, ...]]) -> bool:
    """Pairs of a seq and an offset, of which each is behind the one before."""
    pairs = all(len(pair) == 2 for pair in seeks)
    return pairs and all(before[0] < after[0] and before[1] < after[1] for before, after in pairwise(seeks))


def seal(directory: Directory, tail: Tail, time_ns: int) -> tuple[bytes, bytes]:
    """The last two frames of a segment that ends at this tail: the mark that carries its index (empty without one), and the seal."""
    what: dict[str, int] = {"first": tail.number, "last": tail.seq - 1, "time": time_ns}
    try:
        index = build(reader_of(directory, tail.fd), tail.end, tail.number, tail.salt, tail.headers)
    except OSError:
        index = None  # it saves others time, and no more
    mark = b""
    if index is not None:
        what["index"] = tail.end
        mark = frames.encode(Draft(pack(index), 0, 0, 0), tail.seq, tail.durable, time_ns, MARK, tail.salt)
    said = dumps(what)
    return mark, frames.encode(Draft(said + b" " * (-len(said) % 8), 0, 0, 0), tail.seq, tail.durable, time_ns, SEAL, tail.salt)


def load(directory: Directory, fd: int, size: int, number: int, salt: int) -> Index | None:
    """The index of sealed segment `number`, found through its seal; None if it has none (a small segment, or one of an early version), or
    one that is not of these frames: a reader that followed it would begin in the wrong place, or end there."""
    seal = read_seal(directory, fd, size, salt)
    if seal is None or seal.body is None:
        return None
    try:
        offset = loads(seal.body).get("index")
    except (ValueError, AttributeError):
        return None
    if type(offset) is not int or not HEADER_BYTES <= offset < seal.offset:
        return None
    found, _ = next(frames.scan(reader_of(directory, fd), offset, seal.offset, seal.first, salt))
    if not found or found[0].kind != MARK or found[0].end != seal.offset or found[0].body is None:
        return None
    index = parse(found[0].body)
    if index is None or number + index.events != seal.first or index.seeks[:1] != [(number, HEADER_BYTES)] or index.seeks[-1][1] >= offset:
        return None
    return index


def _pack(offsets: array[int]) -> bytes:
    if byteorder == "big":
        offsets = offsets[:]
        offsets.byteswap()
    return offsets.tobytes()


def _unpack(packed: bytes) -> array[int]:
    offsets = array("I")
    offsets.frombytes(packed[: len(packed) & ~3])
    if byteorder == "big":
        offsets.byteswap()
    return offsets


assert array("I").itemsize == 4
assert _HEADER.size == FRAME_HEADER_BYTES
