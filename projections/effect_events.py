"""The events of the effects protocol: names, fields and the only functions that build them (design section 5).

| type               | stream  | fields                                                                                              |
|--------------------|---------|-----------------------------------------------------------------------------------------------------|
| effect.pending     | intent  | branch, attempt, step, tool, version, class, digest, args or args_blob, key, key_scope, policy; and |
|                    |         | where they apply: operation, key_ttl_ms, settle_after_ms, deadline_ns, timeout_ms, retry, reconcile, |
|                    |         | approval (true: not sent before a person has approved)                                              |
| effect.dispatched  | intent  | try, pid, by; resend (true when an earlier try may have been sent)                                   |
| effect.evidence    | intent  | external_id: what the receiver calls it, noted by the tool while it runs                             |
| effect.not_sent    | intent  | try, error, retry_at_ns: that try surely did not leave; another may follow                           |
| effect.outcome     | intent  | kind (ok, error, unencodable), try, source; value or blob; error                                      |
| effect.committed   | intent  | try, source; always the event right after its outcome, in one commit                                 |
| effect.late        | intent  | kind, try, value or blob or error: came after the intent was closed; evidence only                   |
| effect.classified  | intent  | as ("never sent", "may have been sent"), try, by, class, error                                       |
| effect.resolved    | intent  | decision, reason, actor, source, seen (the version that was decided on)                              |
| attempt.cancelled  | attempt | branch, attempt, reason, actor                                                                       |

`digest` is the SHA-256 of the canonical arguments; a blob is {"sha256", "bytes"}; an error is {"type", "message", "verdict"} and perhaps
"data". Times are nanoseconds since 1970, durations milliseconds. A field that does not apply is left out. Readers ignore fields that
they do not know.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from eventlog import Event
from eventlog.projections.intent import EffectClass, IntentId, Verdict, attempt_text

__all__ = [
    "CANCELLED",
    "CLASSIFIED",
    "COMMITTED",
    "DISPATCHED",
    "EVIDENCE",
    "LATE",
    "NOT_SENT",
    "OUTCOME",
    "PENDING",
    "RESOLVED",
    "Decision",
    "Kind",
    "attempt_cancelled",
    "classified",
    "completed",
    "dispatched",
    "evidence",
    "late",
    "not_sent",
    "pending",
    "resolved",
]

PENDING: Final = "effect.pending"
DISPATCHED: Final = "effect.dispatched"
EVIDENCE: Final = "effect.evidence"
NOT_SENT: Final = "effect.not_sent"
OUTCOME: Final = "effect.outcome"
COMMITTED: Final = "effect.committed"
LATE: Final = "effect.late"
CLASSIFIED: Final = "effect.classified"
RESOLVED: Final = "effect.resolved"
CANCELLED: Final = "attempt.cancelled"

Kind = Literal["ok", "error", "unencodable"]
Decision = Literal["happened", "not_happened", "retry", "abandon", "approve", "deny", "indeterminate", "dropped", "superseded"]

POLICY_VERSION: Final = 1
_event: Callable[[tuple[str, dict[str, Any], str]], Event] = functools.partial(tuple.__new__, Event)  # without a call in Python


def pending(
    intent: IntentId,
    *,
    tool: str,
    version: str,
    class_: EffectClass,
    digest: str,
    key: str,
    key_scope: str,
    args: Mapping[str, Any] | None = None,
    args_blob: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Event:
    """The intent, before anything leaves. Arguments go inline or as a blob, never both; `options` are the fields that may not apply."""
    if (args is None) == (args_blob is None):
        raise ValueError(f"{intent}: give args or args_blob, one of them")
    data: dict[str, Any] = {
        "branch": intent.branch,
        "attempt": intent.attempt,
        "step": intent.step,
        "tool": tool,
        "version": version,
        "class": class_._value_,  # .value is a Python call
        "digest": digest,
        "key": key,
        "key_scope": key_scope,
        "policy": POLICY_VERSION,
    }
    if args is not None:
        data["args"] = dict(args)
    else:
        data["args_blob"] = dict(args_blob or {})
    if options:
        data.update(options)
    return _event((PENDING, data, intent.text))


def dispatched(intent: str, *, try_number: int, pid: int, by: str, resend: bool = False) -> Event:
    """The call goes out now. `by` is "guard" or "recovery"."""
    data: dict[str, Any] = {"try": try_number, "pid": pid, "by": by}
    if resend:
        data["resend"] = True
    return _event((DISPATCHED, data, intent))


def evidence(intent: str, external_id: str) -> Event:
    """What the receiver calls it, known before the outcome is."""
    return Event(EVIDENCE, {"external_id": external_id}, intent)


def not_sent(intent: str, *, try_number: int, error: Mapping[str, Any], retry_at_ns: int | None = None) -> Event:
    """This try surely did not leave: the intent is Pending again, and the next try is `try_number` + 1."""
    data: dict[str, Any] = {"try": try_number, "error": dict(error)}
    if retry_at_ns is not None:
        data["retry_at_ns"] = retry_at_ns
    return Event(NOT_SENT, data, intent)


def completed(intent: str, *, kind: Kind, try_number: int, source: str, result: Mapping[str, Any]) -> tuple[Event, Event]:
    """Outcome and Committed: two events that only exist together. `result` holds value, blob or error.

    `source`: "call", "resend", "reconciled" or "human".
    """
    outcome = {"kind": kind, "try": try_number, "source": source, **result}
    return _event((OUTCOME, outcome, intent)), _event((COMMITTED, {"try": try_number, "source": source}, intent))


def late(intent: str, *, kind: Kind, try_number: int, result: Mapping[str, Any]) -> Event:
    """A call came back after its intent was closed otherwise. It changes no state, and is kept."""
    return Event(LATE, {"kind": kind, "try": try_number, **result}, intent)


def classified(
    intent: str, verdict: Verdict, *, try_number: int, by: str, class_: EffectClass, error: Mapping[str, Any] | None = None
) -> Event:
    """What can be said about an intent without an outcome. `class_` is the one that decides, which may be worse than the recorded one."""
    data: dict[str, Any] = {"as": verdict.value, "try": try_number, "by": by, "class": class_.value}
    if error is not None:
        data["error"] = dict(error)
    return Event(CLASSIFIED, data, intent)


def resolved(intent: str, decision: Decision, *, reason: str, actor: str, source: str, seen: int) -> Event:
    """A decision that did not come from the call itself. `source`: "human", "recovery", "reconcile" or "cancel"."""
    data = {"decision": decision, "reason": reason, "actor": actor, "source": source, "seen": seen}
    return Event(RESOLVED, data, intent)


def attempt_cancelled(branch: str, attempt: int, *, reason: str, actor: str) -> Event:
    """From here on nothing of this attempt may be sent."""
    data = {"branch": branch, "attempt": attempt, "reason": reason, "actor": actor}
    return Event(CANCELLED, data, attempt_text(branch, attempt))
