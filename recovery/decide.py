"""Every decision about an intent, as pure functions of folded state (research: effects 1.5, the resolution table).

Nothing here reads a clock, a log or the world: time and everything else come as arguments, and what comes back is data for the shells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from eventlog.projections.intent import EffectClass, IntentState
from eventlog.recovery.answers import Answer, DidNotHappen, Happened, InProgress

__all__ = [
    "Action",
    "Approval",
    "Ask",
    "Close",
    "Expire",
    "Facts",
    "Later",
    "Leave",
    "Nothing",
    "Send",
    "Settle",
    "answered",
    "attempt_status",
    "effective_class",
    "may_repeat_unknown",
    "next_action",
    "pending",
    "refused_on_resend",
]

TRIES_MAX = 10
_MS = 1_000_000  # nanoseconds


class Facts(NamedTuple):
    """All that a decision rests on. Times are nanoseconds since 1970, durations milliseconds."""

    state: IntentState
    effect_class: EffectClass  # the worse of the recorded and the current one
    tries: int
    now_ns: int
    first_dispatched_ns: int = 0
    dispatched_ns: int = 0
    key_ttl_ms: int | None = None
    settle_after_ms: int = 0
    deadline_ns: int | None = None
    can_ask: bool = False
    emits: bool = False
    cancelled: bool = False
    superseded: bool = False
    overwritten: bool = False
    alive: bool = False  # the call of the last try is still running in this process
    tries_max: int = TRIES_MAX
    unapproved: bool = False  # a person has to say first that it may be sent


@dataclass(frozen=True, slots=True)
class Send:
    """Dispatch the next try; `resend` when an earlier one may have been sent."""

    resend: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Put the question to the reconcile hook."""


@dataclass(frozen=True, slots=True)
class Close:
    """It did not happen and will not."""

    decision: Literal["dropped", "superseded"]
    reason: str


@dataclass(frozen=True, slots=True)
class Expire:
    """Its deadline passed before anything was sent: an error outcome."""


@dataclass(frozen=True, slots=True)
class Settle:
    """The hook's answer decides: `happened` with its outcome, or not."""

    happened: bool
    outcome: object = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Later:
    """Nothing can be said before `until_ns`."""

    until_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Only a person can decide."""

    reason: str


@dataclass(frozen=True, slots=True)
class Approval:
    """Nothing is sent before a person has approved it."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """Nothing is open."""


_SEND, _RESEND = Send(), Send(resend=True)
Action = Send | Ask | Approval | Close | Expire | Later | Leave | Nothing


def effective_class(recorded: EffectClass, current: EffectClass | None) -> EffectClass:
    """The more dangerous one: a code change cannot make an old intent harmless."""
    return recorded if current is None or current is recorded else max(recorded, current)


def next_action(facts: Facts) -> Action:
    """What recovery does with an intent (tables for crash and for cancel)."""
    if facts.state is IntentState.PENDING:
        return pending(facts.now_ns, facts.deadline_ns, superseded=facts.superseded, unapproved=facts.unapproved)
    if facts.state is IntentState.INDETERMINATE:
        return Leave("it waits for a decision")
    if facts.state is not IntentState.DISPATCHED:
        return Nothing()
    if facts.cancelled:
        return _cancelled(facts)
    return Leave("its call has not come back yet") if facts.alive else _crashed(facts)


def pending(now_ns: int, deadline_ns: int | None, *, superseded: bool, unapproved: bool) -> Action:
    """The row of what was never sent: every class may be, and the only question is whether anyone still wants it."""
    if superseded:
        return Close("superseded", "a newer attempt of the branch is in the log")
    if deadline_ns is not None and now_ns >= deadline_ns:
        return Expire()
    return Approval() if unapproved else _SEND


def _cancelled(facts: Facts) -> Action:
    # The opposite of a crash: sending again to find out would make it happen.
    if facts.effect_class is EffectClass.READ_ONLY:
        return Close("dropped", "cancelled; it changes nothing outside")
    if facts.effect_class is EffectClass.TRANSACTIONAL and facts.emits:
        return Close("dropped", "cancelled; its events commit with its outcome, and there is none")
    if facts.can_ask and facts.effect_class is not EffectClass.NON_IDEMPOTENT:
        return Ask()
    return Leave("the attempt was cancelled while the call was out, and a cancelled effect is never sent again")


def _crashed(facts: Facts) -> Action:
    class_ = facts.effect_class
    if class_ is EffectClass.NON_IDEMPOTENT:
        return Leave("a non-idempotent effect is sent at most once")
    if facts.unapproved:  # of a tool that asks only now: what was sent once is not sent again without a word
        return Ask() if facts.can_ask else Leave("its tool asks for an approval now, and nobody has given one")
    if facts.tries >= facts.tries_max:
        return Leave(f"no outcome after {facts.tries} tries")
    late = facts.deadline_ns is not None and facts.now_ns >= facts.deadline_ns
    if late and class_ is EffectClass.READ_ONLY:
        return Close("dropped", "its deadline passed; it changes nothing outside")
    if class_ is EffectClass.READ_ONLY or (class_ is EffectClass.TRANSACTIONAL and facts.emits and not late):
        return _RESEND
    if class_ is EffectClass.IDEMPOTENT and not late and not facts.overwritten:
        return _RESEND
    if class_ is EffectClass.KEYED and not late and _key_is_fresh(facts):
        return _RESEND
    if facts.can_ask:
        return Ask()
    return Leave(_why_not(facts, late))


def _key_is_fresh(facts: Facts) -> bool:
    # The time to live runs from the first dispatch; a twentieth is kept for clocks and the way.
    ttl_ms = facts.key_ttl_ms or 0
    return facts.now_ns < facts.first_dispatched_ns + (ttl_ms - ttl_ms // 20) * _MS


def _why_not(facts: Facts, late: bool) -> str:
    if late:
        return "its deadline has passed"
    if facts.effect_class is EffectClass.IDEMPOTENT:
        return "the resource was written by a later intent, and sending this one again would undo that"
    if facts.effect_class is EffectClass.KEYED:
        return "the receiver may have forgotten the key, and sending it again could make it happen twice"
    return "no reconcile hook is registered to ask the receiver"


def answered(facts: Facts, answer: Answer) -> Settle | Later | Leave:
    """What an answer of the reconcile hook leads to."""
    if isinstance(answer, Happened):
        return Settle(True, answer.outcome)
    if isinstance(answer, InProgress):
        return Later(facts.now_ns + round(max(answer.retry_after, 0.0) * 1e9), "the receiver is still at it")
    if isinstance(answer, DidNotHappen):
        if facts.alive:
            return Leave("the receiver does not have it, but the call is still running")
        settled = facts.dispatched_ns + facts.settle_after_ms * _MS
        if facts.now_ns < settled:
            return Later(settled, "the receiver does not have it yet, and settle_after has not passed")
        return Settle(False, reason=answer.evidence or "the receiver does not have it")
    return Leave(f"the receiver cannot say: {answer.reason}" if answer.reason else "the receiver cannot say")


def may_repeat_unknown(facts: Facts) -> bool:
    """May a try without an answer be repeated inside the same call (never by a retry policy alone: by class)?"""
    return not facts.alive and not facts.cancelled and isinstance(_crashed(facts), Send)


def attempt_status(intents: Iterable[tuple[IntentState, EffectClass]]) -> Literal["cancelled", "indeterminate"]:
    """What a cancelled attempt came to: Cancelled if nothing of it may have happened without a record of it."""
    unsure = (IntentState.DISPATCHED, IntentState.INDETERMINATE, IntentState.ABANDONED)
    return "indeterminate" if any(state in unsure and class_ is not EffectClass.READ_ONLY for state, class_ in intents) else "cancelled"


def refused_on_resend(effect_class: EffectClass) -> bool:
    """Is a refusal of a resend no answer about the try before it? (412 or non-fast-forward may mean that the first one worked.)"""
    return effect_class in (EffectClass.IDEMPOTENT, EffectClass.KEYED, EffectClass.RECONCILABLE)
