"""The hook entries of ours in a harness's settings, as pure functions over the parsed file: which there are, put in, taken out.

Claude Code (settings.json) and Codex (hooks.json) have the same shape: {"hooks": {EVENT: [{"matcher"?, "hooks": [{"type": "command",
"command", "timeout"}]}]}}. Whatever is not ours stays as it is, value for value and in its place.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from eventlog.errors import EventLogError

__all__ = [
    "CALL",
    "EVENTS",
    "BadSettings",
    "Entry",
    "Harness",
    "Installation",
    "Wanted",
    "dumps",
    "entries",
    "foreign",
    "is_ours",
    "loads",
    "merged",
    "without",
    "words_of",
]

Harness = Literal["claude-code", "codex"]
CALL = "PreToolUse"
_BOM = "\ufeff"


class BadSettings(EventLogError):
    """The settings cannot be read as what they should be; nothing was changed."""


class Wanted(NamedTuple):
    """One event that needs our hook. `longest_s`: more time than that it does not get, or does not need."""

    event: str
    matcher: str | None
    longest_s: int


EVENTS: dict[Harness, tuple[Wanted, ...]] = {
    "claude-code": (
        Wanted("SessionStart", None, 30),
        Wanted("UserPromptSubmit", None, 30),
        Wanted(CALL, "*", 3600),
        Wanted("PostToolUse", "*", 30),
        Wanted("PostToolUseFailure", "*", 30),
        Wanted("PostToolBatch", None, 30),
        Wanted("Stop", None, 30),
        Wanted("SubagentStop", None, 30),
        Wanted("PreCompact", None, 30),
        Wanted("SessionEnd", None, 5),
    ),
    # No batch event; a SessionEnd gets 3 s at most (measured on 0.171.0).
    "codex": (
        Wanted("SessionStart", None, 30),
        Wanted("UserPromptSubmit", None, 30),
        Wanted(CALL, None, 3600),
        Wanted("PostToolUse", None, 30),
        Wanted("Stop", None, 30),
        Wanted("PreCompact", None, 30),
        Wanted("SessionEnd", None, 3),
    ),
}


@dataclass(frozen=True, slots=True)
class Installation:
    """What is to be run. `program`: the words that call this `eventlog`; `log`: an absolute path; `reconciler`: a command line."""

    harness: Harness
    program: tuple[str, ...]
    log: str
    thread: str
    reconciler: str | None = None
    record: bool = False
    redact: tuple[str, ...] = ()
    timeout_s: int = 60

    def timeout(self, wanted: Wanted) -> int:
        """What the harness is told: after that it ends the hook, and lets the call run."""
        return min(self.timeout_s, wanted.longest_s)

    def command(self, wanted: Wanted) -> str:
        """The shell line of one event.

        Only a PreToolUse may end with 2, which denies the call: with it a PostToolBatch or a Stop ends the agent's loop, and a
        UserPromptSubmit throws the prompt away. A hook that cannot even be started ends with 127, and by itself that lets the call run.
        """
        timeout = self.timeout(wanted)
        deadline = max(1, timeout * 4 // 5)
        words = [*self.program, "hook", self.harness, "--log", self.log, "--thread", self.thread, "--deadline", str(deadline)]
        if self.reconciler is not None and wanted.event == CALL:
            words += ["--reconciler", self.reconciler]
        if self.record:
            words += ["--record", *(word for pattern in self.redact for word in ("--redact", pattern))]
        return f"{shlex.join(words)} || exit {2 if wanted.event == CALL else 1}"

    def group(self, wanted: Wanted) -> dict[str, Any]:
        """The entry of one event."""
        hook = {"type": "command", "command": self.command(wanted), "timeout": self.timeout(wanted)}
        return {"hooks": [hook]} if wanted.matcher is None else {"matcher": wanted.matcher, "hooks": [hook]}


class Entry(NamedTuple):
    """One command hook that is there."""

    event: str
    matcher: str | None
    command: str
    timeout_s: float | None


def loads(text: str, name: str) -> dict[str, Any]:
    """Parse settings. Raises BadSettings with line and column, also for what writing would lose (a key that is there twice)."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
            raise BadSettings(f"{name}: the key {twice!r} is there twice in one object; remove one of them")
        return found

    def finite(number: str) -> float:
        if math.isinf(value := float(number)):
            raise BadSettings(f"{name}: the number {number:.40} is too large to be written again; mend that first")
        return value

    def constant(word: str) -> None:
        raise BadSettings(f"{name}: {word} is no JSON; mend that first")

    text = text.removeprefix(_BOM)
    if not text.strip():
        return {}
    try:
        found: Any = json.loads(text, object_pairs_hook=unique, parse_float=finite, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise BadSettings(f"{name}: line {error.lineno}, column {error.colno}: no JSON ({error.msg}); mend that first") from None
    except (ValueError, RecursionError):
        raise BadSettings(f"{name}: nested too deeply, or a number with thousands of digits; mend that first") from None
    if not isinstance(found, dict):
        raise BadSettings(f"{name}: line 1, column 1: not a JSON object")
    list(_groups(found, name))
    return found


def dumps(settings: dict[str, Any], like: str) -> str:
    """The settings as text, with the indentation, the line ends and the byte order mark of the text that they came from."""
    indent = re.match(r"\ufeff?\s*\{\s*?\n([ \t]+)\"", like)
    said = json.dumps(settings, indent=indent[1] if indent else 2, ensure_ascii=False)
    if not _is_unicode(said):
        said = json.dumps(settings, indent=indent[1] if indent else 2)
    said += "" if like and not like.endswith("\n") else "\n"
    return _BOM * like.startswith(_BOM) + (said.replace("\n", "\r\n") if "\r\n" in like else said)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # an escaped lone surrogate
        return False
    return True


def is_ours(command: object, harness: Harness) -> bool:
    """Is this the command line of `eventlog hook HARNESS`?"""
    words = words_of(command)
    return any(
        os.path.basename(words[at]) in ("eventlog", "eventlog.cli") and words[at + 1 : at + 3] == ["hook", harness]
        for at in range(len(words))
    )


def words_of(command: object) -> list[str]:
    """The words of a shell line; none if it is not one."""
    try:
        return shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        return []


def entries(settings: dict[str, Any], name: str = "settings") -> list[Entry]:
    """Every command hook. Raises BadSettings."""
    found = []
    for event, group in _groups(settings, name):
        for hook in group["hooks"]:
            if isinstance(hook, dict) and isinstance(hook.get("command"), str):
                timeout = hook.get("timeout")
                seconds = float(timeout) if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) else None
                matcher = group.get("matcher")
                found.append(Entry(event, matcher if isinstance(matcher, str) else None, hook["command"], seconds))
    return found


def merged(settings: dict[str, Any], installation: Installation) -> dict[str, Any]:
    """With the hooks of this installation instead of any others of ours, where those were, or behind what is there."""
    places = dict(reversed(list(_places(settings, installation.harness))))
    found = without(settings, installation.harness)
    hooks = found.setdefault("hooks", {})
    for wanted in EVENTS[installation.harness]:
        groups = hooks.setdefault(wanted.event, [])
        groups.insert(min(places.get(wanted.event, len(groups)), len(groups)), installation.group(wanted))
    order = [*settings.get("hooks", {}), *hooks]  # an event that held ours alone was gone for a moment, and keeps its place
    found["hooks"] = {event: hooks[event] for event in dict.fromkeys(order) if event in hooks}
    return {key: found[key] for key in dict.fromkeys([*settings, *found]) if key in found}


def without(settings: dict[str, Any], harness: Harness) -> dict[str, Any]:
    """Without any hook of ours. What was empty before stays; what ours alone had filled goes."""
    found = copy.deepcopy(settings)
    hooks: dict[str, Any] = found.get("hooks", {})
    for event in list(hooks):
        before = hooks[event]
        after = []
        for group in before:
            kept = [hook for hook in group["hooks"] if not _hook_is_ours(hook, harness)]
            if kept or not group["hooks"]:
                after.append({**group, "hooks": kept})
        if after or not before:
            hooks[event] = after
        else:
            del hooks[event]
    if not hooks and settings.get("hooks"):
        del found["hooks"]
    return found


def _hook_is_ours(hook: object, harness: Harness) -> bool:
    return isinstance(hook, dict) and is_ours(hook.get("command"), harness)


def _places(settings: dict[str, Any], harness: Harness) -> Iterator[tuple[str, int]]:
    """(event, index among the groups that are not ours alone) of each group with a hook of ours."""
    for event, groups in settings.get("hooks", {}).items():
        at = 0
        for group in groups:
            ours = [_hook_is_ours(hook, harness) for hook in group["hooks"]]
            if any(ours):
                yield event, at + (not all(ours))
            at += not (ours and all(ours))


def _groups(settings: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(event, group) of every group. Raises BadSettings where something is not of the known shape."""
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict):
        raise BadSettings(f"{name}: hooks is no object; mend that first")
    for event, groups in hooks.items():
        if not isinstance(groups, list):
            raise BadSettings(f"{name}: hooks.{event} is no list; mend that first")
        for at, group in enumerate(groups):
            if not isinstance(group, dict) or not isinstance(group.get("hooks"), list):
                raise BadSettings(f"{name}: hooks.{event}[{at}] is no object with a list of hooks; mend that first")
            yield event, group


def foreign(found: Sequence[Entry], harness: Harness) -> list[Entry]:
    """The hooks of others that may answer a tool call, too."""
    return [entry for entry in found if entry.event == CALL and not is_ours(entry.command, harness)]
