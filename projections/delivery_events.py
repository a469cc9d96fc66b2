"""The events of the delivery protocol: names, fields and the only functions that build them (design section 6, seed 003).

| type                    | stream | fields                                                                                               |
|-------------------------|--------|------------------------------------------------------------------------------------------------------|
| sync.detected           | intent | thread, base, triggers (operations)                                                                  |
| sync.coalesced          | intent | base, triggers (the new ones); only before materialization                                           |
| sync.materialized       | intent | base (reconciled to), operation (the result), commit, payload, sha256, anchor, prepared_ns           |
| sync.recovery_required  | intent | reason; copy (where edits were saved), perhaps                                                       |
| sync.topology_diverged  | intent | reason                                                                                               |
| sync.resolved           | intent | decision (retry, drop), reason, actor, seen (the version that was decided on)                        |
| sync.superseded         | intent | reason; only before materialization                                                                  |
| delivery.blocked        | intent | incarnation, chain, turn, batch, redeliveries; prompt: binds SoftBatch, before any file is touched   |
| delivery.marked         | intent | incarnation, turn, batch: stdout took the payload                                                    |
| delivery.completed      | intent | incarnation, turn, batch, calls, seen (calls whose result held the payload; null: no receipts)       |
| delivery.doubted        | intent | incarnation, batch, reason: what was seen may be out of the context again                            |
| delivery.restart_bound  | intent | incarnation, startup_id, attempt, reason: binds RestartStartup; mints both, before any launch        |
| delivery.accepted       | intent | incarnation, startup_id; prompt: the handshake                                                       |
| delivery.acknowledged   | intent | incarnation, evidence (later_turn, startup_echo), turn, call, recovered, delivered_ns                |
| incarnation.started     | thread | incarnation, process, session, capabilities                                                          |
| incarnation.session     | thread | incarnation, session: the same process, in another conversation                                      |
| incarnation.retired     | thread | incarnation, reason, barred (its process may not come back)                                          |
| batch.admitted          | thread | incarnation, chain, turn, batch, call, decision (pass, block), intent, prompt                        |
| batch.returned          | thread | incarnation, chain, call                                                                             |
| batch.completed         | thread | incarnation, chain, calls                                                                            |
| turn.prompted           | thread | incarnation, chain, prompt                                                                           |
| turn.stopped            | thread | incarnation, chain                                                                                   |

An intent is `thread#number`. A field that does not apply is left out. Readers ignore fields that they do not know.
"""

from __future__ import annotations

from collections.abc import Sequence

from eventlog import Event
from eventlog.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final, Literal

    Gate = Literal["pass", "block"]
    Evidence = Literal["later_turn", "startup_echo"]

__all__ = [
    "ACCEPTED",
    "ACKNOWLEDGED",
    "ADMITTED",
    "BATCH_COMPLETED",
    "BLOCKED",
    "COALESCED",
    "COMPLETED",
    "DETECTED",
    "DOUBTED",
    "MARKED",
    "MATERIALIZED",
    "PROMPTED",
    "RECOVERY_REQUIRED",
    "RESOLVED",
    "RESTART_BOUND",
    "RETIRED",
    "RETURNED",
    "SESSION",
    "STARTED",
    "STOPPED",
    "SUPERSEDED",
    "TOPOLOGY_DIVERGED",
    "digest",
]

DETECTED: Final = "sync.detected"
COALESCED: Final = "sync.coalesced"
MATERIALIZED: Final = "sync.materialized"
RECOVERY_REQUIRED: Final = "sync.recovery_required"
TOPOLOGY_DIVERGED: Final = "sync.topology_diverged"
RESOLVED: Final = "sync.resolved"
SUPERSEDED: Final = "sync.superseded"
BLOCKED: Final = "delivery.blocked"
MARKED: Final = "delivery.marked"
COMPLETED: Final = "delivery.completed"
DOUBTED: Final = "delivery.doubted"
RESTART_BOUND: Final = "delivery.restart_bound"
ACCEPTED: Final = "delivery.accepted"
ACKNOWLEDGED: Final = "delivery.acknowledged"
STARTED: Final = "incarnation.started"
SESSION: Final = "incarnation.session"
RETIRED: Final = "incarnation.retired"
ADMITTED: Final = "batch.admitted"
RETURNED: Final = "batch.returned"
BATCH_COMPLETED: Final = "batch.completed"
PROMPTED: Final = "turn.prompted"
STOPPED: Final = "turn.stopped"


def digest(payload: str) -> str:
    """SHA-256 of the payload's UTF-8 bytes, in hex: what every delivery of it is checked against."""
    from eventlog.digests import sha256

    return sha256(payload.encode()).hexdigest()


def _event(type_: str, stream: str, **data: Any) -> Event:
    return Event(type_, {name: value for name, value in data.items() if value is not None}, stream)


def detected(intent: str, *, thread: str, base: str, triggers: Sequence[str]) -> Event:
    """Work that the agent of `thread` must hear about. `base`: what it has to be reconciled to."""
    return Event(DETECTED, {"thread": thread, "base": base, "triggers": list(triggers)}, intent)


def coalesced(intent: str, *, base: str, triggers: Sequence[str]) -> Event:
    """More of it, before anything was prepared."""
    return Event(COALESCED, {"base": base, "triggers": list(triggers)}, intent)


def materialized(intent: str, *, base: str, operation: str, commit: str, payload: str, anchor: str, prepared_ns: int) -> Event:
    """The whole outbox at once: result operation, workspace commit, payload, transcript anchor and preparation time (nanoseconds)."""
    data = {"base": base, "operation": operation, "commit": commit, "payload": payload, "sha256": digest(payload)}
    return Event(MATERIALIZED, {**data, "anchor": anchor, "prepared_ns": prepared_ns}, intent)


def recovery_required(intent: str, reason: str, copy: str | None = None) -> Event:
    """Nothing but a person can go on. `copy`: where edits were saved, so that nothing is lost."""
    return _event(RECOVERY_REQUIRED, intent, reason=reason, copy=copy)


def topology_diverged(intent: str, reason: str) -> Event:
    """The workspaces are not related in the way that the intent took for granted."""
    return Event(TOPOLOGY_DIVERGED, {"reason": reason}, intent)


def resolved(intent: str, decision: str, *, reason: str, actor: str, seen: int) -> Event:
    """A person's decision."""
    return Event(RESOLVED, {"decision": decision, "reason": reason, "actor": actor, "seen": seen}, intent)


def superseded(intent: str, reason: str) -> Event:
    return Event(SUPERSEDED, {"reason": reason}, intent)


def blocked(intent: str, *, incarnation: str, chain: str, turn: int, batch: int, redeliveries: int, prompt: str | None) -> Event:
    """Block(intent): this batch, and each of its calls, waits for the intent. `redeliveries`: how often bytes went unseen so far."""
    where = {"incarnation": incarnation, "chain": chain, "turn": turn, "batch": batch, "redeliveries": redeliveries}
    return _event(BLOCKED, intent, **where, prompt=prompt)


def marked(intent: str, *, incarnation: str, turn: int, batch: int) -> Event:
    """MarkDelivered: the hook's stdout took the payload."""
    return Event(MARKED, {"incarnation": incarnation, "turn": turn, "batch": batch}, intent)


def completed(intent: str, *, incarnation: str, turn: int, batch: int, calls: Sequence[str], seen: Sequence[str] | None) -> Event:
    """The exact blocked batch is over. It acknowledges nothing. `seen` is None where the harness has no receipts."""
    where = {"incarnation": incarnation, "turn": turn, "batch": batch, "calls": list(calls)}
    return Event(COMPLETED, {**where, "seen": None if seen is None else list(seen)}, intent)


def doubted(intent: str, *, incarnation: str, batch: int, reason: str) -> Event:
    """The context was rewritten before a later turn: what was seen may be gone."""
    return Event(DOUBTED, {"incarnation": incarnation, "batch": batch, "reason": reason}, intent)


def restart_bound(intent: str, *, incarnation: str, startup_id: str, attempt: int, reason: str) -> Event:
    """RestartStartup: a replacement's id and its one-use startup delivery id, both new, before it is launched."""
    return Event(RESTART_BOUND, {"incarnation": incarnation, "startup_id": startup_id, "attempt": attempt, "reason": reason}, intent)


def accepted(intent: str, *, incarnation: str, startup_id: str, prompt: str | None) -> Event:
    """The replacement took the tagged payload as its first input."""
    return _event(ACCEPTED, intent, incarnation=incarnation, startup_id=startup_id, prompt=prompt)


def acknowledged(
    intent: str, *, incarnation: str, evidence: Evidence, turn: int, call: str | None, recovered: bool, delivered_ns: int
) -> Event:
    """The agent read it. `recovered`: MarkDelivered was lost, and `delivered_ns` is the time of the completion."""
    data = {"incarnation": incarnation, "evidence": evidence, "turn": turn, "recovered": recovered, "delivered_ns": delivered_ns}
    return _event(ACKNOWLEDGED, intent, **data, call=call)


def started(thread: str, *, incarnation: str, process: str, session: str | None, capabilities: Sequence[str]) -> Event:
    """A process of the thread is this incarnation now. `capabilities`: what its harness can prove."""
    return _event(STARTED, thread, incarnation=incarnation, process=process, session=session, capabilities=sorted(capabilities))


def session(thread: str, *, incarnation: str, session: str) -> Event:
    """The process went on in another conversation (/clear, /resume): a replacement has to come back to that one."""
    return Event(SESSION, {"incarnation": incarnation, "session": session}, thread)


def retired(thread: str, *, incarnation: str, reason: str, barred: bool) -> Event:
    """It is no longer the agent of the thread. `barred`: it held an intent without proof, and its process may not come back."""
    return Event(RETIRED, {"incarnation": incarnation, "reason": reason, "barred": barred}, thread)


def admitted(
    thread: str,
    *,
    incarnation: str,
    chain: str,
    turn: int,
    batch: int,
    call: str,
    decision: Gate,
    intent: str | None = None,
    prompt: str | None = None,
) -> Event:
    """The first call of a batch fixes the decision for all of them; the others follow it."""
    data: dict[str, Any] = {"incarnation": incarnation, "chain": chain, "turn": turn, "batch": batch, "call": call, "decision": decision}
    if intent is not None:
        data["intent"] = intent
    if prompt is not None:
        data["prompt"] = prompt
    return Event(ADMITTED, data, thread)


def returned(thread: str, *, incarnation: str, chain: str, call: str) -> Event:
    """An admitted call has its result."""
    return Event(RETURNED, {"incarnation": incarnation, "chain": chain, "call": call}, thread)


def batch_completed(thread: str, *, incarnation: str, chain: str, calls: Sequence[str]) -> Event:
    """The harness says that these calls, all of one model turn, have their results."""
    return Event(BATCH_COMPLETED, {"incarnation": incarnation, "chain": chain, "calls": list(calls)}, thread)


def prompted(thread: str, *, incarnation: str, chain: str, prompt: str) -> Event:
    """A new user prompt: whatever batch was open will not be completed in the old way."""
    return Event(PROMPTED, {"incarnation": incarnation, "chain": chain, "prompt": prompt}, thread)


def stopped(thread: str, *, incarnation: str, chain: str) -> Event:
    """The model answered without a tool call."""
    return Event(STOPPED, {"incarnation": incarnation, "chain": chain}, thread)
