"""`--record`: what a hook heard as events of the session, redacted and cut (issue 6). A record for people: nothing is decided on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eventlog import Durability, Event, EventLog
from eventlog.projections import session_events as ev
from eventlog.recovery.harness.heard import BATCH, CALL, ENDED, PROMPT, RETURNED, REWRITTEN, STARTED, STOP, Heard
from eventlog.recovery.harness.redacting import Redactor

__all__ = ["event_of", "record"]


def event_of(harness: str, heard: Heard, redactor: Redactor) -> Event | None:
    """The event that says what was heard; None for what is not recorded. Pure."""
    data, caller = heard.data, heard.caller
    fields = {"tool": data.get("tool_name"), "call": heard.call}
    if heard.kind == CALL:
        type_, fields = ev.TOOL_CALLED, {**fields, "arguments": data.get("tool_input")}
    elif heard.kind == RETURNED and (heard.event.endswith("Failure") or "error" in data):
        more = {"error": data.get("error"), "interrupted": data.get("is_interrupt"), "duration_ms": data.get("duration_ms")}
        type_, fields = ev.TOOL_FAILED, {**fields, **more}
    elif heard.kind == RETURNED:
        type_, fields = ev.TOOL_RETURNED, {**fields, "result": data.get("tool_response"), "duration_ms": data.get("duration_ms")}
    elif heard.kind == BATCH:
        type_, fields = ev.TOOL_SHOWN, {"calls": heard.results}
    elif heard.kind == PROMPT:
        type_, fields = ev.PROMPTED, {"text": heard.text}
    elif heard.kind == STOP:
        type_, fields = ev.STOPPED, {"text": data.get("last_assistant_message")}
    elif heard.kind == STARTED:
        type_, fields = ev.STARTED, {"source": data.get("source"), "cwd": data.get("cwd")}
    elif heard.kind == ENDED:
        type_, fields = ev.ENDED, {"reason": data.get("reason")}
    elif heard.kind == REWRITTEN:
        type_, fields = ev.COMPACTED, {"trigger": data.get("trigger", data.get("reason"))}
    else:
        return None
    kept: dict[str, Any] = redactor.clean(fields)
    who = {"session": caller.session, "chain": caller.chain, "prompt": caller.prompt}
    return ev.session_event(type_, caller.thread, harness=harness, **who, **kept)


def record(log: EventLog, harness: str, heard: Heard, more_patterns: Sequence[str]) -> None:
    """Append it, BATCHED. Called when the answer is out. Raises what a commit raises."""
    event = event_of(harness, heard, Redactor(more_patterns))
    if event is not None:
        log.commit(event, Durability.BATCHED)
