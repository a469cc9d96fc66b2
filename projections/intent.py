"""The words of the effects protocol: what an intent is called, in which state it is, and how dangerous it is to send twice."""

from __future__ import annotations

import enum
import functools
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field

from eventlog.errors import EventLogError

__all__ = ["BadIntentId", "EffectClass", "IntentId", "IntentState", "Verdict", "attempt_text", "intent_id", "numbered", "parse_attempt"]

NAME_CHARS_MAX = 512
NUMBER_MAX = 2**53 - 1  # what every JSON reader keeps exact


class BadIntentId(EventLogError, ValueError):
    """A branch, attempt or step that cannot name an intent."""


@dataclass(frozen=True, slots=True, init=False)
class IntentId:
    """One external effect: step `step` of attempt number `attempt` (from 1) of the branch `branch` (seed 000, step 1).

    `step` is a number from 1, or a name that the caller chose. The text form is `branch@attempt:step`. It is read from the right: a
    branch may hold "@" and ":", a step may hold ":" but no "@"; a step name made of digits would read as a number, and is refused too.
    """

    branch: str
    attempt: int
    step: int | str
    attempt_text: str = field(repr=False, compare=False)  # `branch@attempt`, the stream of events about the whole attempt
    text: str = field(repr=False, compare=False)  # `branch@attempt:step`: asked for at every turn, so it is made once

    def __init__(self, branch: str, attempt: int, step: int | str) -> None:
        whole = attempt_text(branch, attempt)
        if isinstance(step, str):
            _check_name("step", step)
            if "@" in step or (step.isascii() and step.isdigit()):
                raise BadIntentId(f"step {step!r}: a step name may not hold '@' nor be a number; give numbers as int")
        elif type(step) is not int or not 1 <= step <= NUMBER_MAX:
            _check_number("step", step)
        _put(self, branch, attempt, step, whole, f"{whole}:{step}")

    @classmethod
    def parse(cls, text: str) -> IntentId:
        """Read `branch@attempt:step`; raises BadIntentId."""
        branch, at, rest = text.rpartition("@")
        attempt, colon, step = rest.partition(":")
        if not at or not colon or not _is_number(attempt):
            raise BadIntentId(f"{text!r} is no intent: it has to look like branch@attempt:step, as in order-17@1:3")
        return cls(branch, int(attempt), int(step) if _is_number(step) else step)

    @classmethod
    def from_text(cls, text: str) -> IntentId:
        """The IntentId whose `text` this is, without a check: for what a program of ours wrote down and a checksum covers."""
        branch, _, rest = text.rpartition("@")
        attempt, _, step = rest.partition(":")
        made = object.__new__(cls)
        number = int(step) if step.isascii() and step.isdigit() else step
        _put(made, branch, int(attempt), number, text[: len(branch) + 1 + len(attempt)], text)
        return made

    def __str__(self) -> str:
        return self.text


# Straight to the slots: past the guard of a frozen class, at half the price of object.__setattr__.
_slots = [getattr(IntentId, name).__set__ for name in ("branch", "attempt", "step", "attempt_text", "text")]
_put_branch, _put_attempt, _put_step, _put_whole, _put_text = _slots


def _put(made: IntentId, branch: str, attempt: int, step: int | str, whole: str, text: str) -> None:
    _put_branch(made, branch)
    _put_attempt(made, attempt)
    _put_step(made, step)
    _put_whole(made, whole)
    _put_text(made, text)


def attempt_text(branch: str, attempt: int) -> str:
    """`branch@attempt`. Raises BadIntentId. Never equal to the text of an intent: after the last "@" an intent has a ":"."""
    if type(branch) is not str or type(attempt) is not int:  # what equals a good one, as True does 1, must not find it in the cache
        _check_name("branch", branch)
        _check_number("attempt", attempt)
    return _attempt_text(branch, attempt)


_named: dict[str, IntentId] = {}
_NAMED_MAX = 1024


def intent_id(branch: str, attempt: int, step: int | str) -> IntentId:
    """IntentId(...), remembered for a while: who names an intent is soon followed by the fold of the event that says so."""
    known = _named.get(f"{branch}@{attempt}:{step}")
    if known is None or known.step != step or known.branch != branch:  # a step "3" is spelled like 3, and is refused
        known = IntentId(branch, attempt, step)
        if len(_named) >= _NAMED_MAX:
            _named.clear()
        _named[known.text] = known
    return known


def numbered(branch: str, attempt: int, whole: str, step: int) -> IntentId:
    """The IntentId of a step that was counted, in the attempt whose text `whole` is: nothing of it needs a check."""
    made, text = object.__new__(IntentId), f"{whole}:{step}"
    _put(made, branch, attempt, step, whole, text)
    if len(_named) >= _NAMED_MAX:
        _named.clear()
    _named[text] = made
    return made


@functools.lru_cache(4096)
def _attempt_text(branch: str, attempt: int) -> str:
    _check_name("branch", branch)
    _check_number("attempt", attempt)
    return f"{branch}@{attempt}"


def parse_attempt(text: str) -> tuple[str, int]:
    """The inverse of attempt_text; raises BadIntentId."""
    branch, at, attempt = text.rpartition("@")
    if not at or not _is_number(attempt):
        raise BadIntentId(f"{text!r} is no attempt: it has to look like branch@attempt, as in order-17@1")
    attempt_text(branch, int(attempt))
    return branch, int(attempt)


def _is_number(text: str) -> bool:
    # No sign, no leading zero, no digits of other scripts: one number, one spelling.
    return text.isascii() and text.isdigit() and text[0] != "0" and len(text) <= 16


def _check_number(what: str, value: object) -> None:
    if type(value) is not int or not 1 <= value <= NUMBER_MAX:
        raise BadIntentId(f"{what} {value!r}: it has to be a whole number from 1")


def _check_name(what: str, value: object) -> None:
    if type(value) is not str or not value or len(value) > NAME_CHARS_MAX:
        raise BadIntentId(f"{what} {value!r}: it has to be a string of 1 to {NAME_CHARS_MAX} characters")
    if not value.isprintable() and any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in value):
        raise BadIntentId(f"{what} {value!r}: control characters and surrogates cannot be part of a name")


class IntentState(enum.StrEnum):
    """The last recorded state of an intent (the first three as in seed 000; the others: what becomes of one without an outcome)."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    COMMITTED = "committed"
    INDETERMINATE = "indeterminate"  # it may have happened, and only a person can find out
    CANCELLED = "cancelled"  # it did not happen, and will not
    ABANDONED = "abandoned"  # a person decided to go on without knowing

    @property
    def finished(self) -> bool:
        """Nothing is left to do or to decide."""
        return self in _FINISHED


_FINISHED = frozenset({IntentState.COMMITTED, IntentState.CANCELLED, IntentState.ABANDONED})


class Verdict(enum.StrEnum):
    """What a restart can say about an intent without an outcome, from the least to the worst."""

    NEVER_SENT = "never sent"
    MAY_HAVE_BEEN_SENT = "may have been sent"


class EffectClass(enum.StrEnum):
    """How an effect may be treated when nobody knows whether it happened; ordered from least to most dangerous (research: effects 1.2).

    `<`, `max` and so on go by danger. NON_IDEMPOTENT is the default everywhere.
    """

    READ_ONLY = "read_only"  # changes nothing outside
    TRANSACTIONAL = "transactional"  # effect and outcome commit atomically in one store
    IDEMPOTENT = "idempotent"  # the same request leads to the same end state, without a key
    KEYED = "keyed"  # the receiver drops a second request with the same key, for a time
    RECONCILABLE = "reconcilable"  # the receiver can be asked whether it happened
    NON_IDEMPOTENT = "non_idempotent"  # opaque: at most once

    @classmethod
    def from_mcp(cls, annotations: object, *, trusted: bool, has_key: bool = False, can_ask: bool = False) -> EffectClass:
        """The class of an MCP tool (research: effects 1.6). `annotations` is a ToolAnnotations, a mapping, or None.

        All annotations are hints, and those of a server that is not trusted count for nothing: NON_IDEMPOTENT. The defaults of the
        protocol are the dangerous ones, so only a hint that is true says anything. What the server cannot say, local policy does: it has an
        argument for a key (`has_key`: KEYED), or it can be asked whether it happened (`can_ask`: RECONCILABLE).
        """
        if trusted and _hint(annotations, "readOnlyHint", "read_only_hint"):
            return cls.READ_ONLY
        if trusted and _hint(annotations, "idempotentHint", "idempotent_hint"):
            return cls.IDEMPOTENT
        if trusted and has_key:
            return cls.KEYED
        return cls.RECONCILABLE if trusted and can_ask else cls.NON_IDEMPOTENT

    @property
    def danger(self) -> int:
        """0 (READ_ONLY) to 5 (NON_IDEMPOTENT)."""
        return _DANGER[self]

    def __lt__(self, other: object) -> bool:
        return self.danger < other.danger if isinstance(other, EffectClass) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.danger <= other.danger if isinstance(other, EffectClass) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self.danger > other.danger if isinstance(other, EffectClass) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self.danger >= other.danger if isinstance(other, EffectClass) else NotImplemented


def _hint(annotations: object, *names: str) -> bool:
    values = [annotations.get(name) if isinstance(annotations, Mapping) else getattr(annotations, name, None) for name in names]
    return any(value is True for value in values)


_DANGER = {member: rank for rank, member in enumerate(EffectClass)}
