"""What a reconcile hook may answer, and how a tool says that it does not know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Answer", "DidNotHappen", "Happened", "InProgress", "IntentView", "Unknown"]


@dataclass(frozen=True, slots=True)
class Happened:
    """The receiver has it. `outcome` is what the call would have returned."""

    outcome: Any = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """The receiver does not have it. Believed only `settle_after` the last dispatch: a lookup may lag behind a write."""

    evidence: str = ""


@dataclass(frozen=True, slots=True)
class InProgress:
    """The receiver is still at it; ask again after so many seconds."""

    retry_after: float = 1.0


class Unknown(Exception):
    """Nobody can say. A hook returns or raises it; a tool raises it."""

    def __init__(self, reason: str = "", *, data: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unknown) and (self.reason, self.data) == (other.reason, other.data)

    def __hash__(self) -> int:
        return hash(self.reason)


Answer = Happened | DidNotHappen | InProgress | Unknown


@dataclass(frozen=True, slots=True)
class IntentView:
    """What a reconcile hook is told: the recorded request, never more.

    `intent` is `branch@attempt:step`, `args` the recorded arguments by name, `tries` how often it was sent, `dispatched_ns` when last
    (nanoseconds since 1970), `external_ids` what the tool noted while it ran.
    """

    intent: str
    tool: str
    args: dict[str, Any]
    idempotency_key: str
    tries: int
    dispatched_ns: int
    external_ids: tuple[str, ...] = field(default=())
