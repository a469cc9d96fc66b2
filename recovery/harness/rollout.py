"""Codex's rollout file: which calls the model made, and what it was given as their results, in the order of its responses.

Codex has no event for the end of a batch. But it writes a call's row before its PreToolUse hook runs, and the outputs of a batch before
the calls of the next response (claude-code-lab 0.15). So an output that stands before the row of a call was in the request that led to it,
and its text is what the model was given. The path comes from the hook's input: it is read only, as a plain file of ours, and from its end.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any

__all__ = ["CALL", "MESSAGE", "OUTPUT", "Row", "parse", "read", "shown_before_call", "shown_before_message"]

TAIL_BYTES_MAX = 4 << 20
CALL, OUTPUT, MESSAGE = "call", "output", "message"
_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})

Row = tuple[str, str, str]
"""What it is (CALL, OUTPUT, MESSAGE of the model), the id of the call, the text of an output."""


def read(path: str) -> list[Row] | None:
    """The last rows of a rollout; None if it is not there, or is nothing that Codex would have written."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return None
        start = max(0, status.st_size - TAIL_BYTES_MAX)
        data = os.pread(fd, status.st_size - start, start)
    except OSError:
        return None
    finally:
        os.close(fd)
    return parse(data, cut=start > 0)


def parse(data: bytes, *, cut: bool = False) -> list[Row]:
    """Pure. `cut`: the first line may be a part of one. A line that is still being written says nothing yet."""
    rows: list[Row] = []
    lines = data.split(b"\n")
    for line in lines[1 if cut else 0 : -1]:
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        item = row.get("payload") if isinstance(row, dict) and row.get("type") == "response_item" else None
        if not isinstance(item, dict):
            continue
        kind, call = item.get("type"), item.get("call_id")
        if kind in _CALLS and isinstance(call, str):
            rows.append((CALL, call, ""))
        elif kind in _OUTPUTS and isinstance(call, str):
            rows.append((OUTPUT, call, _text(item.get("output"))))
        elif kind == "message" and item.get("role") == "assistant":
            rows.append((MESSAGE, "", ""))
    return rows


def _text(output: object) -> str:
    """The text of an output: a string, content items, or an object that holds either."""
    if isinstance(output, str):
        return output
    if isinstance(output, list):
        return "\n".join(one["text"] for one in output if isinstance(one, dict) and isinstance(one.get("text"), str))
    if isinstance(output, dict):
        return _text(output.get("content", output.get("output")))
    return ""


def shown_before_call(rows: list[Row], call: str) -> dict[str, str] | None:
    """The outputs (call -> text) that the model was given before it made this call; None if the rollout does not show the call."""
    shown: dict[str, str] = {}
    for kind, id_, text in rows:
        if kind == CALL and id_ == call:
            return shown
        if kind == OUTPUT:
            shown[id_] = text
    return None


def shown_before_message(rows: list[Row]) -> dict[str, str]:
    """The outputs that the model was given before it wrote its last message."""
    shown: dict[str, str] = {}
    since: dict[str, str] = {}
    for kind, id_, text in rows:
        if kind == MESSAGE:
            shown.update(since)
            since = {}
        elif kind == OUTPUT:
            since[id_] = text
    return shown
