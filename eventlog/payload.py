"""The payload rule: what commit() accepts comes back equal, all else is refused before a byte is written (design 3.2).

The fast path asks C code: does orjson take it, and are all values plain scalars, or else does marshal take it, which takes exactly the
built-in types and so refuses what orjson would turn into something else (enums, UUIDs, datetimes, subclasses)? What passes both differs
from its JSON only where NaN and infinities became `null`: then the text is loaded and compared. Only when one of them says no does Python
walk the value, to find the path for the error, or to find nothing worse than a tuple.
"""

from __future__ import annotations

import functools
import marshal
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from zlib import crc32

from eventlog.errors import PayloadError
from eventlog.events import Event
from eventlog.jsonroad import OPT_PASSTHROUGH_DATACLASS, OPT_PASSTHROUGH_DATETIME, OPT_PASSTHROUGH_SUBCLASS, dumps, loads, quick
from eventlog.light import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any

DEPTH_MAX = 128
ALL_NAMES = 2**64 - 1
TYPE_BYTES_MAX = 200
STREAM_BYTES_MAX = 4096

_TYPE_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-.").issuperset
# Strict: a subclass, a datetime or a dataclass must come to us as an error, not as somebody's idea of a string.
_OPTIONS = OPT_PASSTHROUGH_SUBCLASS | OPT_PASSTHROUGH_DATETIME | OPT_PASSTHROUGH_DATACLASS
_dumps, _loads, _marshal, _new = dumps, loads, marshal.dumps, tuple.__new__

# Names that passed the rule, with their masks; bounded, since streams may be made of ids without end.
_types: dict[str, int] = {}
_streams: dict[str, int] = {}
_NAMES_MAX = 4096
_PADDING = tuple(b" " * (-n % 8) for n in range(8))
# A flat object of these needs no closer look (float too: what has no JSON form became `null`). One call in C for the usual event.
_SCALARS = frozenset({str, int, float, bool, type(None)})
_scalar = _SCALARS.issuperset
_strings_only, _dicts_only, _events_only = frozenset({str}).issuperset, frozenset({dict}).issuperset, frozenset({Event}).issuperset
_FEW = 8  # events; so many are looked at faster one by one
_DEEP_BYTES = 2 * DEPTH_MAX  # nothing shorter can be nested too deep: each level takes an opening and a closing byte


class Draft(NamedTuple):
    """A commit that is encoded and not yet numbered: the body of its frame and what the header says about it."""

    body: bytes
    events: int
    type_mask: int
    stream_mask: int


@functools.lru_cache(_NAMES_MAX)
def mask_of(name: str) -> int:
    """The bit of a type or a stream in a frame's 64-bit masks: CRC-32 of its UTF-8 bytes, modulo 64."""
    return _bit(name.encode())


def _bit(name: bytes) -> int:
    return 1 << (crc32(name) & 63)


def masks_of(names: Iterable[str] | None) -> int:
    """The mask of whoever wants any of these names; None: all of them."""
    if names is None:
        return ALL_NAMES
    mask = 0
    for name in names:
        mask |= mask_of(name)
    return mask


def encode(events: Event | Iterable[Event], commit_bytes_max: int) -> Draft:
    """Turn the events of one commit into the body of one frame.

    Raises PayloadError, naming the value, for anything that would not come back equal, for an empty commit, and for one over
    `commit_bytes_max` bytes.
    """
    batch: Sequence[Event] = (events,) if isinstance(events, Event) else events if type(events) is tuple and events else _listed(events)
    return (quick and _encode_fast(batch, commit_bytes_max)) or _encode_checked(batch, commit_bytes_max)


def encode_proved(batch: Sequence[Event], commit_bytes_max: int) -> Draft:
    """`encode` for a few events of which the caller knows that they obey the rule: he built them, of names, numbers and what it was held
    against already. What is not so all the same, and C code sees, is refused as ever."""
    type_mask = stream_mask = 0
    rows: list[tuple[str, str, dict[str, Any]]] = []
    try:
        for kind, data, stream in batch:
            type_mask |= _types.get(kind) or _check_type(kind, 0)
            name = stream.encode()  # not remembered: each intent has a stream of its own
            if len(name) > STREAM_BYTES_MAX:
                return encode(batch, commit_bytes_max)
            stream_mask |= _bit(name)
            rows.append((kind, stream, data))
        body = _dumps(rows, None, _OPTIONS)
    except (TypeError, UnicodeEncodeError):
        return encode(batch, commit_bytes_max)
    length = len(body)
    # An argument is nested one deeper in its event than it was when it was looked at.
    if length > commit_bytes_max or (length >= _DEEP_BYTES and body.count(b"[") + body.count(b"{") >= DEPTH_MAX):
        return encode(batch, commit_bytes_max)
    if length & 7:
        body += _PADDING[length & 7]
    return _new(Draft, (body, len(rows), type_mask, stream_mask))


def _encode_fast(batch: Sequence[Event], commit_bytes_max: int) -> Draft | None:
    """The short road: C code looks at all events together. None: there is something to refuse, or a tuple, or many brackets.

    Names are looked up by exact str only: a subclass would hash like one.
    """
    try:
        if len(batch) == 1:
            (event,) = batch
            kind, data, stream = event
            if event.__class__ is not Event or kind.__class__ is not str or stream.__class__ is not str or data.__class__ is not dict:
                return None
            type_mask = _types.get(kind) or _check_type(kind, 0)
            stream_mask = _streams.get(stream) or _check_stream(stream, 0)
            rows: Any = ((kind, stream, data),)
            flat = _scalar(map(type, data.values())) or _nearly_flat(data.values())
        elif len(batch) <= _FEW:
            type_mask = stream_mask = 0
            flat, rows = True, []
            for event in batch:
                kind, data, stream = event
                if event.__class__ is not Event or kind.__class__ is not str or stream.__class__ is not str or data.__class__ is not dict:
                    return None
                type_mask |= _types.get(kind) or _check_type(kind, len(rows))
                stream_mask |= _streams.get(stream) or _check_stream(stream, len(rows))
                rows.append((kind, stream, data))
                flat = flat and (_scalar(map(type, data.values())) or _nearly_flat(data.values()))
        else:
            if not _events_only(map(type, batch)):
                return None
            kinds, datas, streams = zip(*batch, strict=True)
            if not (_strings_only(map(type, kinds)) and _strings_only(map(type, streams)) and _dicts_only(map(type, datas))):
                return None
            type_mask = stream_mask = 0
            for kind in set(kinds):
                type_mask |= _types.get(kind) or _check_type(kind, 0)
            for stream in set(streams):
                stream_mask |= _streams.get(stream) or _check_stream(stream, 0)
            rows = list(zip(kinds, streams, datas, strict=True))
            flat = _scalar(map(type, chain.from_iterable(map(dict.values, datas))))
        body = _dumps(rows, None, _OPTIONS)
        length = len(body)
        if not flat:
            _marshal(rows)
            if length >= _DEEP_BYTES and body.count(b"[") + body.count(b"{") >= DEPTH_MAX:
                return None
        # find() takes half the time of `in`.
        if length > commit_bytes_max or (body.find(b"null") >= 0 and _loads(body) != [list(row) for row in rows]):
            return None
    except (TypeError, ValueError, RecursionError):
        return None
    if length & 7:  # white space keeps frames aligned, and is covered by the body's CRC like all else
        body += _PADDING[length & 7]
    return _new(Draft, (body, len(batch), type_mask, stream_mask))


def _nearly_flat(values: Collection[Any]) -> bool:
    """Scalars, and objects of scalars: what holds a request or a result. marshal would take twice as long to say so.

    Keys are orjson's to judge, here as at the top: it takes only exact strings.
    """
    for value in values:
        kind = type(value)
        if kind is dict:
            if not _scalar(map(type, value.values())):
                return False
        elif kind not in _SCALARS:
            return False
    return True


def _encode_checked(batch: Sequence[Event], commit_bytes_max: int) -> Draft:
    """The long road: walk every value, and raise for the first that would not come back equal."""
    rows: list[tuple[str, str, dict[str, Any]]] = []
    type_mask = stream_mask = 0
    for position, event in enumerate(batch):
        known_type, known_stream = _check_event(event, position)
        type_mask |= known_type
        stream_mask |= known_stream
        _check(event.data, f"events[{position}].data", 1)
        rows.append((event.type, event.stream, event.data))
    body = _dumps(rows, option=_OPTIONS)
    length = len(body)
    if length > commit_bytes_max:
        raise PayloadError("events", f"the commit takes {length} bytes, commit_bytes_max is {commit_bytes_max}")
    return Draft(body + _PADDING[length & 7], len(rows), type_mask, stream_mask)


def _listed(events: Iterable[Event]) -> list[Event]:
    batch = list(events)
    if not batch:
        raise PayloadError("events", "a commit needs at least one event")
    return batch


def _check_event(event: object, position: int) -> tuple[int, int]:
    """The masks of an event that is met for the first time, or the error."""
    if type(event) is not Event:
        raise PayloadError(f"events[{position}]", f"expected an Event, got {type(event).__name__}")
    if type(event.data) is not dict:
        raise PayloadError(f"events[{position}].data", f"expected a JSON object (dict), got {type(event.data).__name__}")
    return _check_type(event.type, position), _check_stream(event.stream, position)


def _check_type(kind: object, position: int) -> int:
    where = f"events[{position}].type"
    if type(kind) is not str:
        raise PayloadError(where, f"expected a str, got {type(kind).__name__}")
    if len(kind) > TYPE_BYTES_MAX or not _TYPE_LETTERS(kind) or any(not part or part[0] in "_-" for part in kind.split(".")):
        raise PayloadError(where, f"{kind!r:.60} is not a dotted lower-case name of at most {TYPE_BYTES_MAX} bytes")
    return _remember(_types, kind, kind.encode())


def _check_stream(stream: object, position: int) -> int:
    if type(stream) is not str:
        raise PayloadError(f"events[{position}].stream", f"expected a str, got {type(stream).__name__}")
    try:
        name = stream.encode()
    except UnicodeEncodeError as error:
        raise _surrogate(f"events[{position}].stream", error) from None
    if len(name) > STREAM_BYTES_MAX:
        raise PayloadError(f"events[{position}].stream", f"longer than {STREAM_BYTES_MAX} bytes")
    return _remember(_streams, stream, name)


def _remember(known: dict[str, int], name: str, encoded: bytes) -> int:
    if len(known) >= _NAMES_MAX:
        known.clear()
    mask = known[name] = _bit(encoded)
    return mask


def _check_str(value: str, path: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _surrogate(path, error) from None


def _surrogate(path: str, error: UnicodeEncodeError) -> PayloadError:
    return PayloadError(path, f"lone surrogate at character {error.start}; it has no UTF-8 form")


def _check(value: Any, path: str, depth: int) -> None:
    """Walk a value and raise for the first part of it that would not come back equal."""
    kind = type(value)
    if value is None or kind is bool:
        return
    if kind is str:
        _check_str(value, path)
    elif kind is int:
        if not -(2**63) <= value < 2**64:
            raise PayloadError(path, "an integer beyond 64 bits would be read back as a float")
    elif kind is float:
        if value != value or value in (float("inf"), float("-inf")):
            raise PayloadError(path, f"{value} has no JSON form")
    elif kind in (dict, list, tuple):
        if depth > DEPTH_MAX:
            raise PayloadError(f"{path:.60}…", f"nested deeper than {DEPTH_MAX}")
        if kind is dict:
            for key, item in value.items():
                if type(key) is not str:
                    raise PayloadError(path, f"key {key!r:.60} is {type(key).__name__}, not str")
                _check_str(key, f"{path} (a key)")
                _check(item, f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r:.60}]", depth + 1)
        else:
            for index, item in enumerate(value):
                _check(item, f"{path}[{index}]", depth + 1)
    else:
        raise PayloadError(path, f"{kind.__module__}.{kind.__qualname__} is not a JSON type; convert it first")
