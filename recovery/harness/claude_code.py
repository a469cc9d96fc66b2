"""Claude Code: what its hooks say (claude-code-lab, 2.1.197 and 2.1.332), and how it is started again.

It names neither the model turn nor the batch: `prompt_id` is one for all turns under a user's prompt. So the chain is the process, by
`CLAUDE_PID` and its start time, and the agent in it, and the open batch is everything since the last PostToolBatch of that chain. Subagents
carry the session and prompt of their parent, and differ by `agent_id` alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from eventlog.light import TYPE_CHECKING
from eventlog.projections.delivery_words import MAIN
from eventlog.recovery.delivery_words import Caller
from eventlog.recovery.harness.heard import (
    BATCH,
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

if TYPE_CHECKING:
    from typing import Any

__all__ = ["EVENTS", "again", "agent_pid", "hear"]

EVENTS = {
    "PreToolUse": CALL,
    "PostToolUse": RETURNED,
    "PostToolUseFailure": RETURNED,
    "PostToolBatch": BATCH,
    "UserPromptSubmit": PROMPT,
    "Stop": STOP,
    "SubagentStop": STOP,
    "SessionStart": STARTED,
    "SessionEnd": ENDED,
    "PreCompact": REWRITTEN,
    # These tell us nothing. An event that is not here may be a new way to ask about a call, and is refused.
    "ConfigChange": NOTHING,
    "CwdChanged": NOTHING,
    "Elicitation": NOTHING,
    "ElicitationResult": NOTHING,
    "FileChanged": NOTHING,
    "InstructionsLoaded": NOTHING,
    "MessageDisplay": NOTHING,
    "Notification": NOTHING,
    "PermissionDenied": NOTHING,
    "PermissionRequest": NOTHING,
    "PostCompact": NOTHING,
    "Setup": NOTHING,
    "StopFailure": NOTHING,
    "SubagentStart": NOTHING,
    "TaskCompleted": NOTHING,
    "TaskCreated": NOTHING,
    "TeammateIdle": NOTHING,
    "WorktreeCreate": NOTHING,
    "WorktreeRemove": NOTHING,
}


def agent_pid(environ: Mapping[str, str]) -> int:
    """The process that runs this hook: `CLAUDE_PID`, which survives wrappers and shells; else who is above us. Raises NoProcess."""
    said = environ.get("CLAUDE_PID", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 10 and int(said) > 0 else ancestor("claude")


def hear(data: dict[str, Any], thread: str, process: str) -> Heard:
    """What this hook input says. Pure. Raises NotUnderstood."""
    event = word(data, "hook_event_name")
    kind = EVENTS.get(event)
    if kind is None:
        raise NotUnderstood(f"the event {event!r} is not known to this version: do not install the hook for it, or upgrade")
    agent = optional_word(data, "agent_id")
    chain = MAIN if agent is None else f"agent:{agent}"
    caller = Caller(thread, process, chain, optional_word(data, "prompt_id"), word(data, "session_id"))
    if kind in (CALL, RETURNED):
        return Heard(kind, event, caller, data, call=word(data, "tool_use_id"))
    if kind == BATCH:
        return Heard(kind, event, caller, data, results=_results(data))
    if kind == PROMPT:
        prompt = data.get("prompt")
        return Heard(kind, event, caller, data, text=prompt if isinstance(prompt, str) else "")
    if event == "SubagentStop" and agent is None:  # not to be taken for a Stop of the agent itself
        return Heard(NOTHING, event, caller, data)
    if kind == ENDED and data.get("reason") in ("clear", "resume"):  # the process goes on, with another conversation
        return Heard(REWRITTEN, event, caller, data)
    return Heard(kind, event, caller, data)


def _results(data: dict[str, Any]) -> dict[str, str]:
    """PostToolBatch: call -> the text that the model will be given."""
    calls = data.get("tool_calls")
    if not isinstance(calls, list):
        raise NotUnderstood("tool_calls in the hook input is no list")
    found = {}
    for one in calls:
        if not isinstance(one, dict):
            raise NotUnderstood("tool_calls in the hook input holds something that is no object")
        found[word(one, "tool_use_id")] = text_of(one.get("tool_response"))
    return found


def text_of(response: object) -> str:
    """The text in a result: it is one, or content blocks with texts. A denied call has a plain text."""
    if isinstance(response, str):
        return response
    if isinstance(response, list):
        return "\n".join(one["text"] for one in response if isinstance(one, dict) and isinstance(one.get("text"), str))
    return ""


def again(session: str | None) -> list[str]:
    """The words that start it anew on the same conversation."""
    return ["claude", "--resume", session] if session else ["claude"]
