"""Claude Code as its hooks see it (claude-code-lab sections 0, 2 and 3), for tests: real hook processes, and a model that reads results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eventlog import EventLog
from eventlog.projections import DELIVERIES, fold
from eventlog.projections.delivery_words import DeliveriesState, SyncIntent
from eventlog.recovery import Deliveries
from eventlog.recovery.harness import find_payload
from eventlog.testing import run_child

HOOK = [sys.executable, "-m", "eventlog.cli", "hook"]
RECONCILER = """
import json, sys
task = json.load(sys.stdin)
payload = open(sys.argv[1], encoding="utf-8", newline="").read()
print(json.dumps({"operation": "op " + task["intent"], "commit": "c", "payload": payload, "anchor": "a"}))
"""


class Ran:
    """One hook that has run: exit code, the two streams."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def denied(self) -> str | None:
        """What Claude Code makes of it for a PreToolUse: the text of the result of a denied call, None for one that runs."""
        try:
            said = json.loads(self.out)["hookSpecificOutput"]
        except (ValueError, KeyError, TypeError):
            return f"[hook]: {self.err or 'No stderr output'}" if self.code == 2 else None
        return str(said["permissionDecisionReason"]) if said["permissionDecision"] == "deny" else None


class Claude:
    """One CLI process, its session and its thread. `read`: intent -> digest of each payload that stood in a request of its model."""

    def __init__(self, place: Path, *, thread: str = "web", session: str = "19736c74-0000", payload: str = "a.txt changed") -> None:
        self.log, self.thread, self.session = place / "log", thread, session
        self.options: list[str] = []
        self.prompt_id = ""
        self.read: dict[str, str] = {}
        self._request: list[str] = []
        if not self.log.exists():
            EventLog.open(self.log).close()
        (place / "payload").write_text(payload, encoding="utf-8", newline="")
        (place / "reconcile.py").write_text(RECONCILER)
        self.reconciler = f"'{sys.executable}' '{place}/reconcile.py' '{place}/payload'"
        self.process = subprocess.Popen(["sleep", "600"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    # -- hooks ----------------------------------------------------------------------------------------------------------------

    @property
    def command(self) -> list[str]:
        options = ["--log", str(self.log), "--thread", self.thread, "--reconciler", self.reconciler, *self.options]
        return [*HOOK, "claude-code", *options]

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "CLAUDE_PID": str(self.process.pid)}

    def input(self, event: str, **more: Any) -> str:
        """As section 2 has it."""
        prompt = {"prompt_id": self.prompt_id} if self.prompt_id and event != "SessionStart" else {}
        common = {"session_id": self.session, "transcript_path": f"/home/u/.claude/{self.session}.jsonl", "cwd": "/repo", **prompt}
        return json.dumps({**common, "permission_mode": "default", "hook_event_name": event, **more})

    def hook(self, event: str, **more: Any) -> Ran:
        done = subprocess.run(
            self.command, input=self.input(event, **more), capture_output=True, text=True, env=self.environ, timeout=60, check=False
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def killed(self, event: str, at: str, nth: int = 1, **more: Any) -> bool:
        """Run a hook that gets SIGKILL at a crash point; was the point reached?"""
        return run_child(self.command[1:], crash_at=at, nth=nth, env=self.environ, stdin=self.input(event, **more)).killed

    def points(self, event: str, **more: Any) -> tuple[str, ...]:
        """Run a hook; the crash points that it passes."""
        return run_child(self.command[1:], env=self.environ, stdin=self.input(event, **more)).points

    # -- what the CLI does ----------------------------------------------------------------------------------------------------

    def call_of(self, call: str, **more: Any) -> dict[str, Any]:
        return {"tool_name": "Bash", "tool_input": {"command": f"echo {call}"}, "tool_use_id": call, **more}

    def prompt(self, id_: str, text: str = "do it") -> Ran:
        self.prompt_id = id_
        self._request.append(text)
        return self.hook("UserPromptSubmit", prompt=text)

    def pre(self, call: str, **more: Any) -> str | None:
        """PreToolUse: the text of a denial, or None."""
        return self.hook("PreToolUse", **self.call_of(call, **more)).denied

    def turn(self, *calls: str) -> list[str | None]:
        """One model response with these calls, one after the other, and the batch behind it."""
        self.model_reads()
        denials = [self.pre(call) for call in calls]
        self.batch(dict(zip(calls, denials, strict=True)))
        return denials

    def batch(self, denials: dict[str, str | None], *, report: bool = True) -> None:
        """The calls have their results; the next request will hold them."""
        texts = {call: "it ran" if text is None else f"PreToolUse:Bash hook error: {text}" for call, text in denials.items()}
        if report:
            self.report(texts)
        self._request += texts.values()

    def report(self, texts: dict[str, str], **more: Any) -> Ran:
        return self.hook(
            "PostToolBatch", tool_calls=[{**self.call_of(call), "tool_response": text} for call, text in texts.items()], **more
        )

    def model_reads(self) -> None:
        """A request goes out, and is answered."""
        for text in self._request:
            self.read.update(find_payload(text))
        self._request.clear()

    # -- what the log says ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> DeliveriesState:
        with EventLog.open(self.log, read_only=True) as log:
            return fold(DELIVERIES, log)

    def intent(self, id_: str = "web#1") -> SyncIntent:
        return self.state.intents[id_]

    def types(self) -> list[str]:
        with EventLog.open(self.log, read_only=True) as log:
            return [event.type for event in log.read()]

    def change(self, triggers: Sequence[str] = ("op-1",)) -> None:
        """Something that the agent must hear of."""
        with EventLog.open(self.log) as log:
            Deliveries(log).detect(self.thread, base="b1", triggers=triggers)
