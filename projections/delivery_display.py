"""What people are shown of deliveries: the state of a thread, what its agent does, and the timeline of an intent. All of it is folded.

No display is the authority, and none is stored: each is a question to the state that the events give (seed 003).
"""

from __future__ import annotations

import enum
from typing import Any

from eventlog import Recorded
from eventlog.projections.deliveries import HANDLERS
from eventlog.projections.delivery_words import MAIN, DeliveriesState, SyncIntent
from eventlog.projections.projection import Handler, Projection

__all__ = ["TIMELINE", "AgentDisplay", "ThreadStatus", "agent_display", "thread_line", "thread_status", "threads_by_urgency"]


class ThreadStatus(enum.StrEnum):
    """Blocking first."""

    CONFLICTED = "conflicted"
    PENDING = "pending"
    IN_SYNC = "in sync"


class AgentDisplay(enum.StrEnum):
    """What the agent of a thread does. Blocked: it may not act before it has heard something, or a person has decided."""

    WORKING = "working"
    IDLE = "idle"
    FINISHED = "finished"
    BLOCKED = "blocked"


def thread_status(state: DeliveriesState, thread: str) -> ThreadStatus:
    """Any RecoveryRequired or TopologyDiverged: conflicted; else any unresolved intent: pending; else in sync."""
    known = state.threads.get(thread)
    intents = [state.intents[name] for name in known.open] if known is not None else []
    if any(intent.state.loud for intent in intents):
        return ThreadStatus.CONFLICTED
    return ThreadStatus.PENDING if intents else ThreadStatus.IN_SYNC


def agent_display(state: DeliveriesState, thread: str) -> AgentDisplay:
    """Working, idle (it answered and waits for a prompt), finished (no process of it is left), blocked."""
    known = state.threads.get(thread)
    active: SyncIntent | None = state.active(thread)
    if active is not None and (active.state.loud or active.proof is not None or active.state.prepared):
        return AgentDisplay.BLOCKED
    if known is None or known.live is None:
        return AgentDisplay.FINISHED
    chain = known.chains.get(MAIN)
    return AgentDisplay.IDLE if chain is None or chain.idle or not (chain.batch or chain.prompt) else AgentDisplay.WORKING


def threads_by_urgency(state: DeliveriesState) -> list[str]:
    """The threads, conflicted ones first, then pending ones; by name within."""
    order = list(ThreadStatus)
    return sorted(state.threads, key=lambda name: (order.index(thread_status(state, name)), name))


def thread_line(state: DeliveriesState, thread: str) -> dict[str, Any]:
    """A thread as a JSON object."""
    active = state.active(thread)
    return {
        "thread": thread,
        "status": thread_status(state, thread).value,
        "agent": agent_display(state, thread).value,
        "active": active.id if active is not None else None,
        "unresolved": len(state.threads[thread].open),
        "incarnation": state.threads[thread].live,
    }


_SHOWN = (
    "base",
    "triggers",
    "commit",
    "sha256",
    "incarnation",
    "turn",
    "batch",
    "seen",
    "attempt",
    "evidence",
    "recovered",
    "reason",
    "decision",
)


def _entry(state: dict[str, Any], event: Recorded) -> dict[str, Any]:
    entry = {"seq": event.seq, "time_ns": event.time, "type": event.type}
    entry.update((name, event.data[name]) for name in _SHOWN if name in event.data)
    state.setdefault(event.stream, []).append(entry)
    return state


_STEPS: dict[str, Handler[dict[str, Any]]] = {type_: _entry for type_ in HANDLERS if type_.startswith(("sync.", "delivery."))}

TIMELINE: Projection[dict[str, Any]] = Projection("timeline", 1, {}, _STEPS)
"""intent -> what happened to it, in order, without its payload."""
