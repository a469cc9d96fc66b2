"""What waits in the queue of a handle: a commit on its way."""

from __future__ import annotations

from eventlog.light import TYPE_CHECKING

if TYPE_CHECKING:
    from eventlog.errors import EventLogError
    from eventlog.events import Expect
    from eventlog.payload import Draft


class Entry:
    """A commit on its way: drafted, then written (`first` is its seq) or refused (`error`). Without a draft it only waits for a sync.

    `turn` is the number of the turn that it was chosen to lead, in the queue of its group; 0: it was not.
    """

    __slots__ = ("draft", "durable", "error", "expect", "first", "time", "turn", "writing")

    def __init__(self, draft: Draft | None, expect: Expect | None = None, durable: bool = True) -> None:
        self.draft, self.expect, self.durable = draft, expect, durable
        self.first = self.time = self.turn = 0
        self.writing = False
        self.error: EventLogError | None = None
