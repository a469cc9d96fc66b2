"""Codex: what its hooks say (claude-code-lab section 4, 0.171.0), and the proof of a later turn by its rollout file.

Its `turn_id` is one for all responses under a user's prompt, as `prompt_id` is for Claude Code. It has no subagents, no variable that names
its process, and no event for the end of a batch: where the rollout does not show the calls in order, only a restart delivers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eventlog.recovery.delivery_words import Caller
from eventlog.recovery.harness import rollout
from eventlog.recovery.harness.framing import find_payload
from eventlog.recovery.harness.heard import (
    CALL,
    ENDED,
    NOTHING,
    PROMPT,
    RETURNED,
    REWRITTEN,
    STARTED,
    STOP,
    Heard,
    NotUnderstood,
    optional_word,
    word,
)
from eventlog.recovery.harness.process import ancestor

__all__ = ["EVENTS", "again", "agent_pid", "hear", "proofs"]

EVENTS = {
    "PreToolUse": CALL,
    "PostToolUse": RETURNED,
    "UserPromptSubmit": PROMPT,
    "Stop": STOP,
    "SessionStart": STARTED,
    "SessionEnd": ENDED,
    "PreCompact": REWRITTEN,
    "Interrupt": NOTHING,
    "Notification": NOTHING,
    "PermissionRequest": NOTHING,
    "PostCompact": NOTHING,
}


def agent_pid(environ: Mapping[str, str]) -> int:
    """The Codex process above this hook. Raises NoProcess."""
    return ancestor("codex")


def hear(data: dict[str, Any], thread: str, process: str) -> Heard:
    """What this hook input says. Pure. Raises NotUnderstood."""
    event = word(data, "hook_event_name")
    kind = EVENTS.get(event)
    if kind is None:
        raise NotUnderstood(f"the event {event!r} is not known to this version: do not install the hook for it, or upgrade")
    caller = Caller(thread, process, prompt=optional_word(data, "turn_id"), session=word(data, "session_id"))
    if kind in (CALL, RETURNED):
        return Heard(kind, event, caller, data, call=word(data, "tool_use_id"))
    prompt = data.get("prompt")
    return Heard(kind, event, caller, data, text=prompt if isinstance(prompt, str) else "")


def again(session: str | None) -> list[str]:
    """The words that start it anew on the same conversation."""
    return ["codex", "resume", session] if session else ["codex"]


def proofs(heard: Heard) -> dict[str, set[str]] | None:
    """call -> the payloads (SHA-256) that its result showed to the model before what was heard; None where nothing can be proved."""
    path = heard.data.get("transcript_path")
    rows = rollout.read(path) if isinstance(path, str) else None
    if rows is None:
        return None
    if heard.kind == CALL:
        shown = rollout.shown_before_call(rows, heard.call)
    elif heard.kind == STOP:
        shown = rollout.shown_before_message(rows)
    else:
        shown = {id_: text for kind, id_, text in rows if kind == rollout.OUTPUT}
    return None if shown is None else {call: set(find_payload(text).values()) for call, text in shown.items()}
