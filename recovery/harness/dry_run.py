"""The installed command, run as the harness would run it, on a log of its own: a call passes, a call is denied, a broken log denies.

The log of the user is never opened for it, and the user's reconciler is not run: the scratch log holds a delivery that is prepared already.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from eventlog import EventLog
from eventlog.recovery.delivery_words import Caller
from eventlog.recovery.desk import Deliveries
from eventlog.recovery.harness.framing import find_payload
from eventlog.recovery.harness.settings import Harness, words_of

__all__ = ["dry_run", "rewritten"]

Line = tuple[str, Literal["ok", "warn", "FAIL"], str, str]
_TIMEOUT_S = 60.0
_WORD = re.compile(r"""(?:[^\s'"\\;&|<>()]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+""")  # of a shell line, as it is written
_PAYLOAD = "a check of the hooks \u2013 e\u0301, \U0001f600, <system-reminder>"


def rewritten(command: str, log: str, thread: str) -> str:
    """The same command line with another log and thread, and without its reconciler. All else stays as the shell is given it."""
    values = {"--log": log, "--thread": thread}
    parts, done = list[str](), 0
    found = list(_WORD.finditer(command))
    for at, word in enumerate(found):
        name, equals, _ = "".join(words_of(word[0])[:1]).partition("=")
        if word.start() < done or name not in ("--log", "--thread", "--reconciler"):
            continue
        parts.append(command[done : word.start()])
        done = (word if equals else found[min(at + 1, len(found) - 1)]).end()
        if name in values:
            parts.append(f"{name} {shlex.quote(values[name])}")
        else:
            done += command[done : done + 1] == " "
    return "".join(parts) + command[done:]


def dry_run(harness: Harness, command: str) -> Iterator[Line]:
    """(name, level, text, what to do) of each."""
    with tempfile.TemporaryDirectory(prefix="eventlog-doctor-") as place:
        root = Path(place)
        with EventLog.open(root / "pass"):
            pass
        digest = _prepared(root / "deny")
        with EventLog.open(root / "broken"):
            pass
        (root / "broken" / "log.json").write_text("this is no log")
        code, out, err = _run(harness, command, root, "pass")
        if code == 0 and not _denies(out):
            yield "a call passes", "ok", "exit code 0, nothing denied", ""
        else:
            yield "a call passes", "FAIL", f"exit code {code}: {err or out!r}", "no call of the agent would run"
        code, out, err = _run(harness, command, root, "deny")
        reason = _denies(out)
        if code != 0 or reason is None:
            yield (
                "a call is denied",
                "FAIL",
                f"exit code {code}, and not one JSON object that denies: {err or out!r}",
                "nothing would be delivered",
            )
        elif harness == "claude-code" and find_payload(reason) != {"doctor#1": digest}:
            yield "a call is denied", "FAIL", f"the payload is not in the reason: {reason[:200]}", "nothing would be delivered"
        else:
            yield "a call is denied", "ok", "one JSON object, with the payload" if find_payload(reason) else "one JSON object", ""
        code, out, err = _run(harness, command, root, "broken")
        if code == 2 or (code == 0 and _denies(out) is not None):
            yield "a broken log denies", "ok", f"exit code {code}", ""
        else:
            yield (
                "a broken log denies",
                "FAIL",
                f"exit code {code}: the call would run",
                "the command has to end in `|| exit 2`: install again",
            )


def _prepared(path: Path) -> str:
    """A log with a delivery that any new process is given at its first call; the digest of its payload."""
    with EventLog.open(path) as log:
        desk = Deliveries(log)
        desk.detect("doctor", base="base", triggers=["check"])
        desk.pre_tool_use(Caller("doctor", "0:0:0"), "call")
        desk.materialize("doctor#1", base="base", operation="check", commit="none", payload=_PAYLOAD, anchor="none")
        live = desk.state.threads["doctor"].live
        assert live is not None
        desk.retire_incarnation("doctor", live, "it was a check")
        digest = desk.state.intents["doctor#1"].sha256
        assert digest is not None
        return digest


def _run(harness: Harness, command: str, root: Path, name: str) -> tuple[int, str, str]:
    """(exit code, stdout, the last line of stderr); a command that does not end in time has the code of SIGKILL."""
    told: dict[str, Any] = {
        "session_id": "00000000-0000-4000-8000-000000000000",
        "transcript_path": str(root / "transcript.jsonl"),
        "cwd": str(root),
        "hook_event_name": "PreToolUse",
        "permission_mode": "default",
        "tool_name": "Bash",
        "tool_input": {"command": "true", "description": "eventlog hook doctor"},
        "tool_use_id": "call-doctor-1",
        **({"turn_id": "turn-doctor"} if harness == "codex" else {"prompt_id": "prompt-doctor"}),
    }
    line = rewritten(command, str(root / name), "doctor")
    try:
        done = subprocess.run(  # noqa: S603  a shell runs it, since the harness has one run it, and `|| exit 2` is part of what is tested
            ["/bin/sh", "-c", line],
            input=json.dumps(told).encode(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            cwd=root,
            env={**os.environ, "CLAUDE_PID": str(os.getpid())},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -9, "", f"no end in {_TIMEOUT_S:g} s"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return done.returncode, done.stdout.decode(errors="replace"), lines[-1] if lines else ""


def _denies(out: str) -> str | None:
    """The reason, if this is one JSON object that denies and nothing else."""
    try:
        said = json.loads(out)["hookSpecificOutput"]
        if said["hookEventName"] == "PreToolUse" and said["permissionDecision"] == "deny":
            return str(said["permissionDecisionReason"])
    except (ValueError, KeyError, TypeError):
        return None
    return None
