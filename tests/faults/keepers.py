"""What the snapshot tests run in children of their own: folds that are kept."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

from eventlog import EventLog, Recorded
from eventlog.projections import Projection, View
from eventlog.projections.snapshots import keep


def add(state: dict[str, int], e: Recorded) -> dict[str, int]:
    state["sum"] += e.data["n"]
    state["events"] += 1
    return state


SUM: Projection[dict[str, int]] = Projection("sum", 1, {"sum": 0, "events": 0}, {"test.n": add})
SUM_2: Projection[dict[str, int]] = Projection("sum", 2, {"sum": 0, "events": 0}, {"test.n": lambda s, e: add(add(s, e), e)})


def expected(count: int) -> dict[str, int]:
    """Computed without the log: event n says n, from 0."""
    return {"sum": count * (count - 1) // 2, "events": count}


def keep_now(path: Path, projection: Projection[Any] = SUM, upto: int | None = None, **options: Any) -> int:
    """Fold and leave a snapshot, whatever it cost; its bytes."""
    with EventLog.open(path, **options) as log:
        state, seq = View(log, projection, snapshots=False).refresh(upto)
        return keep(projection, log.snapshots, state, seq)


def keep_four(path: str) -> None:
    for n in (5, 10, 15, 20):
        assert keep_now(Path(path), upto=n) > 0


def follow_and_keep(path: str) -> None:
    warnings.simplefilter("error")
    done = False
    while not done:
        with EventLog.open(path, segment_bytes_max=16 << 10) as log:
            done = any(log.read(types=["test.end"]))
            view = View(log, SUM)
            state, seq = view.refresh()
            assert state == expected(state["events"]), state
            assert seq - state["events"] in (0, 1)
            keep(SUM, log.snapshots, state, seq)


if __name__ == "__main__":
    follow_and_keep(sys.argv[1])
