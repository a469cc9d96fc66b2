"""The words of the log: what goes in, what comes back (design 3.1)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from eventlog.light import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Self

__all__ = ["Commit", "Durability", "Event", "Expect", "Head", "Recorded", "SegmentInfo"]


class Durability(enum.Enum):
    """When a commit may return.

    IMMEDIATE: after it, and everything before it, would survive a power cut. BATCHED: at once; it survives kill -9 of the process
    now, and a power cut after `batch_window_ms` or `batch_bytes`, whichever is first.
    """

    IMMEDIATE = "immediate"
    BATCHED = "batched"


class Event(NamedTuple):
    """What happened. `type` is dotted lower case, `stream` names the thing that it is about, `data` is a JSON object."""

    type: str
    data: dict[str, Any]
    stream: str = ""


class Recorded(NamedTuple):
    """An event as the log gives it back: `seq` is dense, from 1, and is the order; `time` is nanoseconds since 1970, UTC, for people."""

    seq: int
    time: int
    type: str
    stream: str
    data: dict[str, Any]


class Commit(NamedTuple):
    """The receipt of a commit: the seqs of its first and last event."""

    first: int
    last: int
    time: int
    durability: Durability


class Expect(NamedTuple):
    """Refuse the commit with Conflict if any event in `streams` has a seq greater than `after` (checked under the writer lock)."""

    streams: Iterable[str]
    after: int


class SegmentInfo(NamedTuple):
    """One file of the log. `number` is the seq of its first event and its name."""

    number: int
    name: str
    bytes: int
    sealed: bool


class Head(int):
    """The seq of the last event: an int that can also say its hash.

    `hash` is the SHA-256 of the segment's bytes up to the end of the commit that ends here. A segment's header holds the SHA-256 of
    the whole segment before it, so the hash stands for everything from the first byte on. It is computed when asked for, and reads
    up to one segment. Keep `text` somewhere else: it is the only way to notice a cut tail or a replaced log (reliability P42).
    """

    _digest: Callable[[int], str]

    def __new__(cls, seq: int, digest: Callable[[int], str]) -> Self:
        head = super().__new__(cls, seq)
        head._digest = digest
        return head

    @property
    def seq(self) -> int:
        return int(self)

    @property
    def hash(self) -> str:
        return self._digest(int(self))

    @property
    def text(self) -> str:
        """`SEQ:HASH`, the form that `eventlog verify --expect` takes."""
        return f"{int(self)}:{self.hash}"
