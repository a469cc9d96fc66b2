"""Snapshots of a fold: what may be in one, and how a state comes back (design section 4, P33-P35).

fold(snapshot at n, tail) == fold(everything), or there is no snapshot: a state that JSON does not carry over exactly is never written.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

from eventlog.jsonroad import dumps, loads, quick
from eventlog.light import TYPE_CHECKING, NamedTuple, TypeVar
from eventlog.snapshotfiles import Gone, SnapshotEntry, SnapshotFiles, Unusable

if TYPE_CHECKING:
    from typing import Any

    from eventlog.projections.projection import Projection

__all__ = ["Listed", "SnapshotWarning", "body_of", "is_plain", "keep", "look", "resume"]

S = TypeVar("S")

_warned: set[tuple[str, str]] = set()
# On the quick road what has dumped holds no integer beyond 64 bits: orjson refuses it.
_numberless = frozenset({str, bool, type(None), *((int,) if quick else ())}).issuperset
_exact: weakref.WeakSet[Projection[Any]] = weakref.WeakSet()  # their load was seen to undo their dump


class SnapshotWarning(UserWarning):
    """A snapshot was damaged, or of another log, and was not used. The answer is right all the same, and was dearer."""


def resume(
    projection: Projection[S], files: SnapshotFiles, kept: Sequence[SnapshotEntry], upto: int | None = None
) -> tuple[S, int, int] | None:
    """The newest of these states that this log proves, at most that of `upto`: (state, seq, bytes); None: there is none.

    What is unusable is discarded, with one warning for each log, projection and process. Raises what looking for the head raises.
    """
    head = files.head()  # looked at after the list: what others keep meanwhile is not ahead of the log
    for entry in kept:
        if upto is not None and upto < entry.seq <= head:
            continue
        try:
            contents = files.read(entry)
            files.prove(contents, head)
            try:
                return projection.load(loads(contents.body)), entry.seq, len(contents.body)
            except Exception as error:  # noqa: BLE001 - whatever a load of somebody's projection raises, the fold of everything does not
                raise Unusable(f"it does not load ({type(error).__name__}: {error})") from None
        except Gone:
            continue
        except Unusable as why:
            if why.for_good:
                files.discard(entry)
            _warn(files, projection.name, f"snapshot {entry.file} of {projection.name!r} is not used: {why}; folding without it")
    return None


def keep(projection: Projection[S], files: SnapshotFiles, state: S, seq: int) -> int:
    """Write down the state after event `seq`; its bytes, or 0 when that was not to be. Raises nothing: a snapshot is never needed.

    Refused when `seq` is not durable or in the middle of a commit, when the handle is read-only, when another process is at it, and
    when the state would not come back as it is.
    """
    if not projection.comes_back:
        return 0
    return files.write(projection.name, projection.version, seq, lambda: body_of(projection, state))


def body_of(projection: Projection[S], state: S) -> bytes | None:
    """The state as JSON; None, without a word, when that would not give it back: such a fold works, and reads all of its events."""
    try:
        dumped = projection.pack(state)
        if projection.state_is_json and is_plain(dumped) is not None:
            return None
        body = dumps(dumped)
        # A number that is lost on the way looks the same when it is dumped again, so it is looked for each time where one may be.
        if not projection.state_is_json and (not quick or b"null" in body) and not _numbers_come_back(dumped):
            return None
        if projection.state_is_json or projection in _exact:
            return body
        # A dump of one's own may lose something. Looked at once in each process: it costs as much again.
        again = projection.load(loads(body))
        if dumps(projection.pack(again)) != body or (type(state).__eq__ is not object.__eq__ and again != state):
            return None
        _exact.add(projection)
        return body
    except Exception:  # noqa: BLE001 - a dump of somebody's projection may raise anything, and no answer needs it
        return None


def is_plain(value: Any) -> str | None:
    """Why JSON would not give back this very value: what is wrong, or None. Exact types only, and a tree: a dict or list that is in two
    places would come back as two, and a handler that changes one of them would change less than before."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        kind = one.__class__
        if kind is dict:
            if not all(key.__class__ is str for key in one):
                return "a dict with a key that is no string"
            waiting.extend(one.values())
        elif kind is list:
            waiting.extend(one)
        elif kind is float:
            if one - one != 0.0:  # NaN and the infinities become null
                return f"the number {one}"
            continue
        elif kind is int:
            if not -(2**63) <= one < 2**64:
                return "an integer beyond 64 bits, which is read back as a float"
            continue
        elif kind is str or kind is bool or one is None:
            continue
        else:
            return f"a {kind.__name__}, which is no JSON; give the projection a dump and a load"
        if id(one) in seen:
            return f"the same {kind.__name__} in two places"
        seen.add(id(one))
    return None


def _numbers_come_back(value: Any) -> bool:
    """Are all numbers finite, and of 64 bits? Others become null, or a float, on one of the two roads to JSON."""
    waiting = [(value,)]
    while waiting:
        items = waiting.pop()
        if _numberless(map(type, items)):  # asked of C for most rows of a state
            continue
        for one in items:
            kind = one.__class__
            if kind is dict:
                waiting.append(one.values())
            elif kind is list or kind is tuple:
                waiting.append(one)
            elif (kind is float and one - one != 0.0) or (kind is int and not -(2**63) <= one < 2**64):
                return False
    return True


class Listed(NamedTuple):
    """A snapshot for people: `projection` is None when the file cannot be read, `written_ns` when it is gone."""

    projection: str | None
    version: int
    seq: int
    bytes: int
    written_ns: int | None
    usable: bool
    why_not: str | None
    file: str


def look(files: SnapshotFiles, entry: SnapshotEntry, known: Mapping[str, Projection[Any]]) -> Listed:
    """What there is to say of one. `known`: projections whose versions can be compared, by name."""
    name = why = None
    try:
        contents = files.read(entry)
        name = contents.name
        if name in known and known[name].version != entry.version:
            raise Unusable(f"of version {entry.version}, and the fold is at version {known[name].version}")
        files.prove(contents, files.head())
    except Unusable as found:
        why = str(found)
    size, written_ns = files.size_and_time(entry)
    return Listed(name, entry.version, entry.seq, size, written_ns, why is None, why, entry.file)


def _warn(files: SnapshotFiles, name: str, text: str) -> None:
    if (files.log_id, name) not in _warned:
        _warned.add((files.log_id, name))
        import warnings  # not on the way of a hook that has nothing to complain of

        warnings.warn(text, SnapshotWarning, stacklevel=2)
