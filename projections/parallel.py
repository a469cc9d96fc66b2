"""A long fold shared by processes, for projections that can merge (issue "Folds at speed").

Each child opens the log for reading, folds its own segments from nothing, and prints its state as JSON; the parent folds the last part and
merges in the order of the events. A child costs a tenth of a second to start, so this pays from some tens of MiB a process on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from typing import Any, TypeVar

import orjson

from eventlog import EventLog, SegmentInfo
from eventlog.errors import EventLogError
from eventlog.projections.folding import fold
from eventlog.projections.projection import Projection
from eventlog.projections.snapshots import body_of

__all__ = ["PART_BYTES_LEAST", "fold_in_parallel", "parts", "pays"]

S = TypeVar("S")

PART_BYTES_LEAST = 32 << 20


def parts(segments: list[SegmentInfo], after: int, last: int, workers: int, least: int = PART_BYTES_LEAST) -> list[tuple[int, int]]:
    """Cut (after, last] at the beginnings of segments into at most `workers` parts of about equal bytes, each of `least` or more."""
    held = [info for info, follows in zip(segments, [*segments[1:], None], strict=True) if follows is None or follows.number - 1 > after]
    held = [info for info in held if info.number <= last]
    count = max(1, min(workers, sum(info.bytes for info in held) // least))
    share = sum(info.bytes for info in held) / count
    cuts, filled = [after], 0
    for info in held:
        if filled >= share * len(cuts) and len(cuts) < count and info.number - 1 > cuts[-1]:
            cuts.append(info.number - 1)
        filled += info.bytes
    return list(zip(cuts, [*cuts[1:], last], strict=True))


def pays(projection: Projection[Any], log: EventLog, workers: int | None = None) -> bool:
    """Can more than one process have enough to do?"""
    size = sum(info.bytes for info in log.segments())
    return projection.merge is not None and (workers or os.cpu_count() or 1) > 1 and size >= 2 * PART_BYTES_LEAST


def fold_in_parallel(
    home: str, log: EventLog, upto: int | None = None, *, workers: int | None = None, least: int = PART_BYTES_LEAST
) -> Any:
    """The state of the projection at `home` ("module:attribute"), as `fold` gives it, by up to `workers` processes (default: one a CPU).

    Raises ValueError for a projection without merge, EventLogError when a child fails, and whatever `fold` raises.
    """
    projection = _find(home)
    merge = projection.merge
    if merge is None:
        raise ValueError(f"projection {projection.name!r} has no merge; fold it in one process")
    last = int(log.head) if upto is None else min(upto, int(log.head))
    kept = projection.resume(log.snapshots, last)
    state, after, _ = kept or (projection.initial, 0, 0)
    if not projection.comes_back:  # a child could not tell us its state
        return fold(projection, log, last)
    *shared, (mine, end) = parts(log.segments(), after, last, workers or os.cpu_count() or 1, least)
    if not shared:
        return fold(projection, log, last)
    command = [sys.executable, "-m", "eventlog.projections.parallel", os.fsdecode(log.path), home]
    children = [
        subprocess.Popen([*command, str(begin), str(until)], stdout=subprocess.PIPE)  # noqa: S603 - ourselves
        for begin, until in shared
    ]
    try:
        own = fold(projection, log, end, after=mine, snapshots=False)
        for child, (begin, until) in zip(children, shared, strict=True):
            output, _ = child.communicate()
            if child.returncode:
                raise EventLogError(f"{log.path}: the process that folded seqs {begin + 1} to {until} failed (exit {child.returncode})")
            # Of a state that JSON would not give back the child says nothing.
            part = projection.load(orjson.loads(output)) if output else fold(projection, log, until, after=begin, snapshots=False)
            state = merge(state, part)
    finally:
        for child in children:
            if child.returncode is None:  # after an error: it is not needed any more
                child.kill()
                child.communicate()
    state = merge(state, own)
    projection.keep(log.snapshots, state, last)
    return state


def _find(home: str) -> Projection[Any]:
    module, _, attribute = home.partition(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, Projection):
        raise TypeError(f"{home} is not a Projection but {type(found).__name__}")
    return found


def _main(path: str, home: str, begin: str, until: str) -> None:
    projection = _find(home)
    with EventLog.open(path, create=False, read_only=True) as log:
        state = fold(projection, log, int(until), after=int(begin), snapshots=False)
    sys.stdout.buffer.write(body_of(projection, state) or b"")


if __name__ == "__main__":
    _main(*sys.argv[1:])
