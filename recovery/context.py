"""What a tool is told about the call that it makes."""

from __future__ import annotations

from collections.abc import Callable

from eventlog import Event
from eventlog.projections.intent import IntentId
from eventlog.recovery.errors import EffectError
from eventlog.recovery.writing import CancelToken

__all__ = ["ToolContext"]


class ToolContext:
    """The first argument of every tool.

    `intent` is the IntentId, `idempotency_key` the key to send (the same at every try), `try_number` counts from 1, `resend` is true when
    an earlier try may have arrived, `cancelled` becomes true when the attempt is cancelled, `deadline_ns` (nanoseconds since 1970) or None.
    """

    __slots__ = ("_emit", "_note", "cancelled", "deadline_ns", "emitted", "idempotency_key", "intent", "resend", "try_number")

    def __init__(
        self,
        intent: IntentId,
        idempotency_key: str,
        try_number: int,
        resend: bool,
        cancelled: CancelToken,
        deadline_ns: int | None,
        note: Callable[[str, str], None],
        emits: bool,
    ) -> None:
        self.intent = intent
        self.idempotency_key = idempotency_key
        self.try_number = try_number
        self.resend = resend
        self.cancelled = cancelled
        self.deadline_ns = deadline_ns
        self.emitted: list[Event] = []
        self._note = note
        self._emit = emits

    def record_external_id(self, external_id: str) -> None:
        """Record durably what the receiver calls this effect, before its outcome is known; a reconcile hook is given it."""
        if type(external_id) is not str or not external_id:
            raise EffectError(f"{self.intent}: an external id has to be a string, got {external_id!r:.80}")
        self._note(str(self.intent), external_id)

    def emit(self, event: Event) -> None:
        """For TRANSACTIONAL tools with emits=True: write this event in the same commit as the outcome, or not at all."""
        if not self._emit:
            raise EffectError(f"{self.intent}: emit() is for tools that are registered as TRANSACTIONAL with emits=True")
        if event.type.startswith(("effect.", "attempt.")):
            raise EffectError(f"{self.intent}: a tool may not write {event.type}; those events are the guard's")
        self.emitted.append(event)
