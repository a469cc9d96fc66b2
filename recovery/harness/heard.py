"""What a hook has heard, in words that are the same for every harness."""

from __future__ import annotations

from eventlog.errors import EventLogError
from eventlog.light import TYPE_CHECKING
from eventlog.recovery.delivery_words import Caller

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "BATCH",
    "CALL",
    "ENDED",
    "NOTHING",
    "PROMPT",
    "RETURNED",
    "REWRITTEN",
    "SESSION_ENDED",
    "STARTED",
    "STOP",
    "Heard",
    "NotUnderstood",
    "optional_word",
    "word",
]

CALL = "call"
"""A tool call asks whether it may run. The only one that is answered, and that fails closed."""
RETURNED = "returned"
BATCH = "batch"
PROMPT = "prompt"
STOP = "stop"
STARTED = "started"
REWRITTEN = "rewritten"
"""The conversation is, or is about to be, another one: compacted, cleared, resumed."""
ENDED = "ended"
NOTHING = "nothing"
"""Something that says nothing about a delivery."""

SESSION_ENDED = "its session ended"
"""Why an ENDED retires an incarnation; a launcher reads it."""
_WORD_MAX = 512  # characters of an id


class NotUnderstood(EventLogError):
    """The input of a hook is not what the harness is known to say."""


class Heard:
    """One event of a harness. `call` and `results` (call -> text that the model is given) where there are any, `text` of a prompt."""

    __slots__ = ("call", "caller", "data", "event", "kind", "results", "text")

    def __init__(
        self,
        kind: str,
        event: str,
        caller: Caller,
        data: dict[str, Any],
        *,
        call: str = "",
        results: dict[str, str] | None = None,
        text: str = "",
    ) -> None:
        self.kind, self.event, self.caller, self.data = kind, event, caller, data
        self.call, self.results, self.text = call, results or {}, text


def word(data: dict[str, Any], name: str) -> str:
    """An id that has to be there. Raises NotUnderstood."""
    found = optional_word(data, name)
    if found is None:
        raise NotUnderstood(f"the hook input has no {name}")
    return found


def optional_word(data: dict[str, Any], name: str) -> str | None:
    """An id, or None where there is none. Raises NotUnderstood for what cannot be one."""
    found = data.get(name)
    if found is None or found == "":
        return None
    if not isinstance(found, str) or len(found) > _WORD_MAX or not found.isprintable():
        raise NotUnderstood(f"{name} in the hook input is no id: {found!r:.80}")
    return found
