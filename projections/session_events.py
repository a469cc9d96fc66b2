"""What an agent's session did, as its harness told it: names, fields and the only functions that build these events (issue 6).

| type               | fields                                                                                           |
|--------------------|--------------------------------------------------------------------------------------------------|
| session.started    | source (startup, resume, clear, compact), cwd                                                    |
| session.ended      | reason                                                                                           |
| session.compacted  | trigger                                                                                          |
| prompt.submitted   | text                                                                                             |
| tool.called        | tool, call, arguments                                                                            |
| tool.returned      | tool, call, result, duration_ms                                                                  |
| tool.failed        | tool, call, error, interrupted, duration_ms                                                      |
| tool.shown         | calls: {call: text that the model was given}                                                     |
| agent.stopped      | text (its last message)                                                                          |

All have harness, session, and where there are any chain (main, or a subagent) and prompt. The stream is the thread. They are a record for
people, nothing is decided on them: texts are redacted and cut before they get here, and an event may be missing.
"""

from __future__ import annotations

from typing import Any, Final

from eventlog import Event

__all__ = [
    "COMPACTED",
    "ENDED",
    "PROMPTED",
    "STARTED",
    "STOPPED",
    "TOOL_CALLED",
    "TOOL_FAILED",
    "TOOL_RETURNED",
    "TOOL_SHOWN",
    "TYPES",
    "session_event",
]

STARTED: Final = "session.started"
ENDED: Final = "session.ended"
COMPACTED: Final = "session.compacted"
PROMPTED: Final = "prompt.submitted"
TOOL_CALLED: Final = "tool.called"
TOOL_RETURNED: Final = "tool.returned"
TOOL_FAILED: Final = "tool.failed"
TOOL_SHOWN: Final = "tool.shown"
STOPPED: Final = "agent.stopped"

TYPES: Final = {
    STARTED: ("source", "cwd"),
    ENDED: ("reason",),
    COMPACTED: ("trigger",),
    PROMPTED: ("text",),
    TOOL_CALLED: ("tool", "call", "arguments"),
    TOOL_RETURNED: ("tool", "call", "result", "duration_ms"),
    TOOL_FAILED: ("tool", "call", "error", "interrupted", "duration_ms"),
    TOOL_SHOWN: ("calls",),
    STOPPED: ("text",),
}
"""The fields of each type, beside those that all have."""


def session_event(
    type_: str, thread: str, *, harness: str, session: str | None, chain: str | None, prompt: str | None, **fields: Any
) -> Event:
    """One event of `TYPES`. A field that is None is left out. Raises KeyError, ValueError for what is not in the table."""
    strange = fields.keys() - {*TYPES[type_]}
    if strange:
        raise ValueError(f"{type_} has no {', '.join(sorted(strange))}")
    data = {"harness": harness, "session": session, "chain": chain, "prompt": prompt, **fields}
    return Event(type_, {name: value for name, value in data.items() if value is not None}, thread)
