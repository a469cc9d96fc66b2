"""Every error of the effects protocol, as a tree.

    EffectError (EventLogError)
    ├── UnguardedEffect (TypeError)          a tool was called past its guard; nothing was sent
    ├── BadTool (ValueError)                 a registration that could not be recovered after a crash
    ├── BadArguments (ValueError)            arguments that cannot be recorded; nothing was recorded or sent
    ├── StepRequired                         the number of this step would depend on scheduling: name it with step=
    ├── NonDeterminism                       the step was recorded with another tool or other arguments
    ├── AttemptBusy                          somebody alive works on the branch
    ├── UnresolvedIntents                    an older attempt left intents that may have been sent
    ├── StaleAttempt                         the branch has a newer attempt
    ├── AttemptCancelled                     the attempt was cancelled; nothing of it is sent any more
    ├── NeedsApproval                        never sent: a person has to approve it first
    ├── NotYet                               never sent, and the receiver asked to wait longer than recovery does
    ├── StillRunning                         a decision about a call that is still being made
    ├── WrongDecision                        a decision that does not fit the state, or a version that has moved on
    ├── Indeterminate                        it may have happened: nobody knows, and the class forbids to try
    └── EffectFailed                         the recorded outcome is an error; the same at every replay
        ├── NotSent                          it surely did not leave (a tool raises it to say so)
        ├── Rejected                         it was definitely refused (a tool raises it to say so)
        └── Abandoned                        a person decided to go on without knowing

A tool that does not know raises Unknown, or anything else that the tables in failures.py do not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eventlog.errors import EventLogError

__all__ = [
    "Abandoned",
    "AttemptBusy",
    "AttemptCancelled",
    "BadArguments",
    "BadTool",
    "EffectError",
    "EffectFailed",
    "Indeterminate",
    "NeedsApproval",
    "NonDeterminism",
    "NotSent",
    "NotYet",
    "Rejected",
    "StaleAttempt",
    "StepRequired",
    "StillRunning",
    "UnguardedEffect",
    "UnresolvedIntents",
    "WrongDecision",
]


class EffectError(EventLogError):
    """Whatever the guard, recovery and the people's commands raise on purpose."""


class UnguardedEffect(EffectError, TypeError):
    """A tool runs only under `attempt.call(tool, ...)`, which records the intent first (seed 000, step 3)."""


class BadTool(EffectError, ValueError):
    """The registration leaves out what its effect class needs at recovery."""


class BadArguments(EffectError, ValueError):
    """The request has to be recorded before it leaves, and these arguments do not fit the signature or are not JSON."""


class StepRequired(EffectError):
    """Steps are numbered in the order of the calls of the attempt's own thread or task; every other caller names its step."""


class NonDeterminism(EffectError):
    """The program took another way than the one that is recorded. `recorded` and `now` say (tool, digest or arguments)."""

    def __init__(self, message: str, *, intent: str, recorded: tuple[str, str], now: tuple[str, str]) -> None:
        super().__init__(message)
        self.intent = intent
        self.recorded = recorded
        self.now = now


class AttemptBusy(EffectError):
    """Two live attempts of one branch would both act; wait for the other, or end it."""


class UnresolvedIntents(EffectError):
    """A new attempt would do again what an older one may have done. `intents` names what has to be resolved first."""

    def __init__(self, message: str, intents: Sequence[str]) -> None:
        super().__init__(message)
        self.intents = tuple(intents)


class StaleAttempt(EffectError):
    """A newer attempt of the branch is in the log: this one may only be looked at."""


class AttemptCancelled(EffectError):
    """Nothing of this attempt may be sent any more."""


class NeedsApproval(EffectError):
    """`intent` was recorded and not sent: a person has to approve it. Make the same call again then, with the same `step=`, or run the
    attempt again: it is not sent twice."""

    def __init__(self, intent: str) -> None:
        super().__init__(f"{intent} waits for an approval, and was not sent; decide with: eventlog effects resolve LOG {intent} --approve")
        self.intent = intent


class NotYet(EffectError):
    """It was never sent, and is not sent before `until_ns` (nanoseconds since 1970); run recover() again then."""

    def __init__(self, intent: str, until_ns: int) -> None:
        super().__init__(f"{intent} was not sent yet: the receiver asked to wait; run recover() again later")
        self.intent = intent
        self.until_ns = until_ns


class StillRunning(EffectError):
    """The process that makes the call is alive: it knows better than any decision from outside."""


class WrongDecision(EffectError):
    """Nothing was recorded: look again, the state is another one than the one that was decided on."""


class Indeterminate(EffectError):
    """The effect may have happened. `intent` names it, `reason` says why nothing more can be found out, `until_ns` when to try again."""

    def __init__(self, intent: str, reason: str, until_ns: int | None = None) -> None:
        hint = "run recover() again later" if until_ns is not None else f"decide with: eventlog effects resolve LOG {intent}"
        super().__init__(f"{intent} may have been sent: {reason}; {hint}")
        self.intent = intent
        self.reason = reason
        self.until_ns = until_ns


class EffectFailed(EffectError):
    """The outcome of the effect is an error, recorded as data.

    `intent` (None before the guard has seen it), `error_type` (the class that the tool raised), `message`, `data` (a JSON value).
    """

    verdict = "unknown"

    def __init__(self, message: str = "", *, data: Any = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data
        self.retry_after = retry_after
        self.intent: str | None = None
        self.error_type = f"{type(self).__module__}.{type(self).__qualname__}"

    @classmethod
    def recorded(cls, intent: str, error: Mapping[str, Any]) -> EffectFailed:
        """The exception that stands for a recorded error: equal at the first raise and at every replay."""
        kind = _BY_VERDICT.get(str(error.get("verdict")), EffectFailed)
        raised = kind(str(error.get("message", "")), data=error.get("data"))
        raised.intent = intent
        raised.error_type = str(error.get("type", ""))
        return raised

    def __str__(self) -> str:
        where = f"{self.intent}: " if self.intent else ""
        return f"{where}{self.message or self.error_type}"


class NotSent(EffectFailed):
    """Raise it in a tool when the request surely did not leave. `retry_after` (seconds): not before. Safe to retry in every class."""

    verdict = "not_sent"


class Rejected(EffectFailed):
    """Raise it in a tool when the receiver definitely refused. It becomes the outcome, and is never retried."""

    verdict = "rejected"


class Abandoned(EffectFailed):
    """Nobody knows whether it happened, and a person decided that the branch goes on. Tell the model to look before it acts."""

    verdict = "abandoned"


_BY_VERDICT: dict[str, type[EffectFailed]] = {kind.verdict: kind for kind in (NotSent, Rejected, Abandoned)}
