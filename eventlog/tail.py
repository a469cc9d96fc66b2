"""What to do with the end of the last segment: a decision table, kept as data (design 3.5, docs/durability.md).

Pure. A scan gathers the `Facts`; the first row of `TABLE` that holds says what to do. D is the largest `durable` that any frame that
checks, before or behind the bad place, or the durable word of the tail record, gives: every byte before it was confirmed by the disk, so
a crash cannot have taken it. The text of a row is what the user reads.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from eventlog.light import NamedTuple

__all__ = ["TABLE", "Action", "Facts", "HeaderIs", "Row", "decide"]


class HeaderIs(enum.Enum):
    """The first 80 bytes of the last segment."""

    GOOD = "good"
    UNFINISHED = "unfinished"  # a prefix of the header that belongs there, zeros from there to the end of the file
    DAMAGED = "damaged"


class Action(enum.Enum):
    APPEND = "append here"
    CUT = "keep a copy, cut, sync"
    SUCCEED = "finish the seal, begin the next segment"
    REMAKE = "begin the segment again"
    REFUSE = "refuse to write; touch nothing"
    UPGRADE = "refuse: written by a newer version"


class Facts(NamedTuple):
    """What a scan of the last segment found. Offsets are bytes in the segment."""

    header: HeaderIs
    first: bool  # it is the first segment of the log
    newer: bool  # a frame checks, but only a newer version could know its kind
    sealed: bool  # a seal frame was reached
    offset: int  # the first place that does not check
    zeros: bool  # nothing but zeros from there on
    durable: int  # D


class Row(NamedTuple):
    name: str
    holds: Callable[[Facts], bool]
    action: Action
    why: str


TABLE: tuple[Row, ...] = (
    Row(
        "damaged header",
        lambda f: f.header is HeaderIs.DAMAGED,
        Action.REFUSE,
        "a header is durable before its first frame, so no crash leaves this",
    ),
    Row(
        "confirmed segment without header",
        lambda f: f.header is HeaderIs.UNFINISHED and (f.first or f.durable > 0),
        Action.REFUSE,
        "the disk had confirmed this segment, so no crash leaves this",
    ),
    Row(
        "unfinished segment",
        lambda f: f.header is HeaderIs.UNFINISHED,
        Action.REMAKE,
        "a crash during rotation: nothing was written into it yet",
    ),
    Row("newer frame", lambda f: f.newer, Action.UPGRADE, "its header checks, its kind or flags are unknown here"),
    Row("sealed", lambda f: f.sealed, Action.SUCCEED, "a crash during rotation: the next segment was not made yet"),
    Row("clean end", lambda f: f.zeros and f.offset >= f.durable, Action.APPEND, "nothing was written behind it"),
    Row(
        "confirmed bytes gone",
        lambda f: f.zeros,
        Action.REFUSE,
        "the disk had confirmed bytes that now are zeros or cut off, so no crash leaves this",
    ),
    Row(
        "torn tail",
        lambda f: f.offset >= f.durable,
        Action.CUT,
        "never acknowledged: a crash in the middle of a write, or pages that the disk wrote out of order",
    ),
    Row(
        "damage",
        lambda f: True,
        Action.REFUSE,
        "the disk had confirmed bytes behind the bad place, so no crash leaves this",
    ),
)


def decide(facts: Facts) -> Row:
    """The first row that holds; the last one always does."""
    return next(row for row in TABLE if row.holds(facts))
