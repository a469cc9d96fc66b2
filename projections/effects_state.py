"""What the effects fold knows: intents, attempts, and their way to JSON and back (handlers: effects.py)."""

from __future__ import annotations

import copy
from operator import attrgetter
from typing import Any

from eventlog import Recorded
from eventlog.projections.intent import EffectClass, IntentId, IntentState, Verdict

__all__ = ["NOTHING", "AttemptRecord", "EffectsState", "Intent", "dump_intent", "dump_state", "load_state", "pack_state"]


# Bound once: to look a member up in its Enum, by name or by value, takes as long as a whole handler.
_PENDING = IntentState.PENDING
_FINISHED = frozenset(state for state in IntentState if state.finished)
_STATES = {member.value: member for member in IntentState}
_CLASSES = {member.value: member for member in EffectClass}


class Intent:
    """What is known about one intent.

    `version` is the seq of its last event: name it when you decide (compare-and-swap). `request` is the data of effect.pending and
    is dropped, like `external_ids` and `error`, once the intent is finished: a state must not grow with what is over. `outcome_seq` leads
    to the outcome. `resent`: an earlier try than the last may have been sent too. `needs_approval`: nothing is sent before a person has
    approved it; `approved_seq` is where that was recorded.
    """

    __slots__ = (
        "approved_seq",
        "classified",
        "digest",
        "dispatched_ns",
        "effect_class",
        "error",
        "external_ids",
        "first_dispatched_ns",
        "first_seq",
        "id",
        "late_seq",
        "needs_approval",
        "outcome_kind",
        "outcome_seq",
        "pending_ns",
        "reason",
        "request",
        "resent",
        "resource",
        "retry_at_ns",
        "source",
        "state",
        "tool",
        "tries",
        "version",
    )

    def __init__(self, id_: IntentId, event: Recorded) -> None:
        data = event.data
        self.id = id_
        self.tool: str = data["tool"]
        self.effect_class = _CLASSES.get(data["class"]) or EffectClass(data["class"])
        self.digest: str = data["digest"]
        self.request: dict[str, Any] | None = data
        self.state = _PENDING
        self.tries = 0
        self.first_seq = self.version = event.seq
        self.pending_ns = event.time
        self.first_dispatched_ns: int | None = None
        self.dispatched_ns: int | None = None
        self.retry_at_ns: int | None = None
        self.classified: Verdict | None = None
        self.reason: str | None = None
        self.error: dict[str, Any] | None = None
        self.external_ids: list[str] | None = None
        self.outcome_kind: str | None = None
        self.outcome_seq: int | None = None
        self.source: str | None = None
        self.late_seq: int | None = None
        self.resource: str | None = data.get("resource")
        self.resent = False
        self.needs_approval: bool = data.get("approval") is True
        self.approved_seq: int | None = None

    def become(self, other: Intent) -> None:
        """Take over all that `other` says."""
        for name in Intent.__slots__:
            setattr(self, name, getattr(other, name))

    @property
    def verdict(self) -> Verdict | None:
        """What a restart says; None when nothing is open."""
        if self.state is IntentState.PENDING:
            return Verdict.NEVER_SENT
        return Verdict.MAY_HAVE_BEEN_SENT if self.state in (IntentState.DISPATCHED, IntentState.INDETERMINATE) else None

    @property
    def needs_decision(self) -> bool:
        """Only a person can close it, or let it go on."""
        return self.state is IntentState.INDETERMINATE or self.waits_for_approval

    @property
    def waits_for_approval(self) -> bool:
        """It was never sent, and a person has to say whether it may be."""
        return self.needs_approval and self.approved_seq is None and self.state is _PENDING

    def __repr__(self) -> str:
        return f"<Intent {self.id} {self.tool} {self.state.value}, version {self.version}>"


class AttemptRecord:
    """The intents of one attempt, in the order of their Pending events, and whether it was cancelled."""

    __slots__ = ("attempt", "branch", "cancelled_seq", "intents", "reason")

    def __init__(self, branch: str, attempt: int) -> None:
        self.branch = branch
        self.attempt = attempt
        self.intents: list[str] = []
        self.cancelled_seq: int | None = None
        self.reason: str | None = None


class EffectsState:
    """All intents by their text form, in the order of their Pending events; `open` has the unfinished ones by their first seq."""

    __slots__ = ("attempts", "branches", "by_state", "intents", "open", "writers")

    def __init__(self) -> None:
        self.intents: dict[str, Intent] = {}
        self.open: dict[int, str] = {}  # in order, as events come by rising seq, and what is finished never opens again
        self.attempts: dict[str, AttemptRecord] = {}
        self.branches: dict[str, list[int]] = {}
        self.writers: dict[str, str] = {}  # resource -> the intent that was the last to be dispatched for it
        self.by_state: dict[IntentState, int] = dict.fromkeys(IntentState, 0)

    def attempt(self, branch: str, attempt: int) -> AttemptRecord | None:
        return self.attempts.get(f"{branch}@{attempt}")

    def newest_attempt(self, branch: str) -> int:
        """The highest attempt number that the branch has in the log; 0: none."""
        return max(self.branches.get(branch, ()), default=0)

    def record(self, branch: str, attempt: int) -> AttemptRecord:
        """The record of an attempt, made when it is the first that is heard of it."""
        text = f"{branch}@{attempt}"
        record = self.attempts.get(text)
        if record is None:
            record = self.attempts[text] = AttemptRecord(branch, attempt)
            self.branches.setdefault(branch, []).append(attempt)
        return record

    def move(self, intent: Intent, to: IntentState) -> None:
        """Change a state, with all that follows from it; a finished intent lets go of its request."""
        before = intent.state
        if before is to:
            return
        counts = self.by_state
        counts[before] -= 1
        counts[to] += 1
        intent.state = to
        if to in _FINISHED:
            self.open.pop(intent.first_seq, None)
            intent.request = intent.external_ids = intent.error = None
            intent.retry_at_ns = None

    def open_intents(self) -> list[Intent]:
        """The unfinished intents, oldest first."""
        return [self.intents[text] for text in self.open.values()]

    def only(self, branch: str, attempt: int) -> EffectsState:
        """An independent copy that knows the intents of one attempt, and the numbers of the others of its branch."""
        part = EffectsState()
        part.branches[branch] = list(self.branches.get(branch, ()))
        known = self.attempts.get(f"{branch}@{attempt}")
        if known is not None:
            record = part.attempts[f"{branch}@{attempt}"] = copy.copy(known)
            record.intents = list(known.intents)
            for text in known.intents:
                intent = part.intents[text] = copy.copy(self.intents[text])
                part.by_state[intent.state] += 1
                if not intent.state.finished:
                    part.open[intent.first_seq] = text
        return part

    def overwritten(self, intent: Intent) -> bool:
        """Has another intent been sent to the same resource since?"""
        return intent.resource is not None and self.writers.get(intent.resource, str(intent.id)) != str(intent.id)

    def __deepcopy__(self, memo: dict[int, Any]) -> EffectsState:
        return load_state(pack_state(self))


_PLAIN = tuple(name for name in Intent.__slots__ if name not in ("id", "state", "effect_class", "classified"))


def dump_intent(intent: Intent) -> dict[str, Any]:
    """An intent as a JSON object: `id`, `state`, `class`, `classified` as text, and the fields of Intent as they are."""
    shown: dict[str, Any] = {
        "id": str(intent.id),
        "state": intent.state.value,
        "class": intent.effect_class.value,
        "classified": intent.classified.value if intent.classified is not None else None,
    }
    shown.update((name, getattr(intent, name)) for name in _PLAIN)
    return shown


def dump_state(state: EffectsState) -> dict[str, Any]:
    return {
        "states": {name.value: count for name, count in state.by_state.items()},
        "intents": [dump_intent(intent) for intent in state.intents.values()],
        "attempts": [
            {
                "branch": record.branch,
                "attempt": record.attempt,
                "cancelled_seq": record.cancelled_seq,
                "reason": record.reason,
                "intents": list(record.intents),
            }
            for record in state.attempts.values()
        ],
        "writers": state.writers,
    }


# A row of a snapshot: id, state, class, these, in this order. What most finished intents do not have comes last, and is left out there.
_USUAL = (
    "tool", "digest", "first_seq", "version", "pending_ns", "resent", "needs_approval", "tries", "first_dispatched_ns", "dispatched_ns",
    "outcome_kind", "outcome_seq", "source",
)  # fmt: skip
_FIELDS = (*_USUAL, *(name for name in _PLAIN if name not in _USUAL), "classified")
_fields_of = attrgetter(*_FIELDS)
_setters = tuple(getattr(Intent, name).__set__ for name in _FIELDS)  # a third faster than setattr: a snapshot may hold a million
_NONE = (None,) * len(_FIELDS)


def pack_state(state: EffectsState) -> dict[str, Any]:
    """The state for a snapshot: rows, a quarter of what `dump_state` takes to make and to read."""
    rows = []
    for intent in state.intents.values():
        row = [intent.id.text, intent.state._value_, intent.effect_class._value_, *_fields_of(intent)]
        while row[-1] is None:
            row.pop()
        rows.append(row)
    attempts = [[one.branch, one.attempt, one.cancelled_seq, one.reason, one.intents] for one in state.attempts.values()]
    return {"intents": rows, "attempts": attempts, "writers": state.writers}


def load_state(packed: dict[str, Any]) -> EffectsState:
    """The inverse of `pack_state`."""
    state = EffectsState()
    intents, open_, counts = state.intents, state.open, state.by_state
    for text, name, class_, *fields in packed["intents"]:
        intent = Intent.__new__(Intent)
        intent.id = IntentId.from_text(text)
        known = intent.state = _STATES[name]
        intent.effect_class = _CLASSES[class_]
        for put, value in zip(_setters, (*fields, *_NONE[len(fields) :]), strict=True):
            put(intent, value)
        if intent.classified is not None:
            intent.classified = Verdict(intent.classified)
        intents[text] = intent
        counts[known] += 1
        if known not in _FINISHED:
            open_[intent.first_seq] = text
    for branch, attempt, cancelled_seq, reason, texts in packed["attempts"]:
        record = state.record(branch, attempt)
        record.cancelled_seq, record.reason, record.intents = cancelled_seq, reason, list(texts)
    state.writers = dict(packed["writers"])
    return state


NOTHING = EffectsState()
