"""One thread, its log, a real Claude Code with our hooks, and a model that keeps what it was given. `audit` holds the log against that."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fake_model import Call, Exchange, FakeModel, Turn
from isolated import Run, Sandbox

from eventlog import EventLog, Recorded
from eventlog.audit import verify
from eventlog.projections import DELIVERIES, fold
from eventlog.projections.delivery_words import SyncIntent
from eventlog.recovery import Deliveries
from eventlog.recovery.harness.settings import Harness, Installation, merged

EVENTLOG = str(Path(sys.executable).with_name("eventlog"))
EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "PostToolBatch",
    "PreCompact",
    "SubagentStop",
    "Stop",
    "SessionEnd",
)
_BEGIN = re.compile(r"\[eventlog delivery (\S+) ")

_RECONCILER = """#!{python} -I
import json, pathlib, sys, time
place = pathlib.Path({place!r})
task = json.load(sys.stdin)
with (place / "reconciled").open("a") as runs:
    runs.write(task["intent"] + "\\n")
while (place / "slow").exists():
    time.sleep(0.02)
payload = (place / "payloads" / task["intent"].rpartition("#")[2]).read_bytes().decode()
print(json.dumps({{"operation": "op " + task["intent"], "commit": task["base"], "payload": payload, "anchor": "anchor"}}))
"""


def touch(name: str) -> Call:
    """A tool call that can be seen to have run, or not: it leaves a file in `ran/`. It writes, so its siblings wait for it."""
    return Call("Bash", {"command": f"touch ran/{name} && echo {name} ran", "description": name})


def look(name: str) -> Call:
    """One that only reads: siblings of its kind run their hooks at the same time."""
    return Call("Read", {"file_path": f"@WORK@/{name}.txt"})


def call_hook(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Our own hook for tool calls, in settings; its `command` may be changed."""
    found: dict[str, Any] = settings["hooks"]["PreToolUse"][0]["hooks"][0]
    assert found["command"].endswith("|| exit 2")
    return found


class Lab:
    """What a scenario needs. Times are those of one machine: requests and events are in one order."""

    thread = "web"
    harness: Harness = "claude-code"

    def __init__(self, place: Path, program: Path) -> None:
        self.place = place
        self.subagent_tool = "Agent"
        self.log = place / "log"
        self.model = FakeModel(keep=place / "requests")
        self.sandbox = Sandbox(place / "sandbox", self.model, program)
        self.work = self.sandbox.work
        self.session = str(uuid.uuid4())
        self.before: list[str] = []
        self.audited = False
        (self.work / "ran").mkdir()
        for name in "abc":
            (self.work / f"{name}.txt").write_text(f"this is {name}\n")
        (place / "payloads").mkdir()
        self.reconciler = place / "reconcile"
        self.reconciler.write_text(_RECONCILER.format(python=sys.executable, place=str(place)))
        self.reconciler.chmod(0o700)
        EventLog.open(self.log).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.sandbox.close()
        self.model.close()

    # -- before and while it runs -----------------------------------------------------------------------------------------------

    def script(self, *turns: Turn, subagent: Sequence[Turn] = ()) -> None:
        """What the model says next, turn by turn, over all runs."""
        for turn in (*turns, *subagent):
            for block in turn.blocks:
                if isinstance(block, Call) and "file_path" in block.input:
                    block.input["file_path"] = block.input["file_path"].replace("@WORK@", str(self.work))
        self.model.turns += turns
        self.model.subagent += subagent

    def detect(self, payload: str) -> str:
        """Something changed, and this is what the agent must hear; the intent."""
        with EventLog.open(self.log) as log:
            desk = Deliveries(log)
            number = len(desk.state.intents) + 1
            (self.place / "payloads" / str(number)).write_bytes(payload.encode())
            desk.detect(self.thread, base=f"base-{number}", triggers=[f"op-{number}"])
        return f"{self.thread}#{number}"

    def settings(
        self, *, foreign: Mapping[str, Sequence[str]] | None = None, timeout_s: int = 60, record: bool = False, redact: Sequence[str] = ()
    ) -> dict[str, Any]:
        """What `eventlog hook install` writes, and other people's hooks behind it: event -> commands."""
        wanted = Installation(
            self.harness,
            (EVENTLOG,),
            str(self.log),
            self.thread,
            str(self.reconciler),
            record=record,
            redact=tuple(redact),
            timeout_s=timeout_s,
        )
        settings = merged({}, wanted)
        for event, commands in (foreign or {}).items():
            settings["hooks"][event] += [{"hooks": [{"type": "command", "command": one, "timeout": 120}]} for one in commands]
        return {**settings, "permissions": {"allow": ["Bash", "Read", "Agent", "Task"]}}

    def program(self, name: str, text: str) -> str:
        """A shell script of a foreign hook; its command line."""
        path = self.place / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o700)
        return shlex.quote(str(path))

    def launched(self) -> None:
        """From now on every start goes through our launcher."""
        self.before = [EVENTLOG, "agent", "run", "--log", str(self.log), "--thread", self.thread, "--grace", "2", "--"]

    def start(self, *arguments: str, settings: Mapping[str, Any] | None = None, talk: bool = False) -> Run:
        """Start the program with our hooks."""
        always = ["--output-format", "stream-json", "--verbose", *(("--input-format", "stream-json") if talk else ())]
        return self.sandbox.start(*arguments, *always, settings=settings or self.settings(), before=self.before, talk=talk)

    def first(self, prompt: str = "do it", **named: Any) -> Run:
        """The first life of the session."""
        return self.start("--session-id", self.session, "-p", prompt, **named)

    def resume(self, prompt: str = "go on", **named: Any) -> Run:
        """A later life of it, by hand."""
        return self.start("--resume", self.session, "-p", prompt, **named)

    def slow(self) -> None:
        """The reconciler begins, and does not end before `quick`."""
        (self.place / "slow").touch()

    def quick(self) -> None:
        (self.place / "slow").unlink()

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
        """Wait for something that no request shows. Raises TimeoutError."""
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"no {what} in {timeout_s} s; {[run.said()[-1500:] for run in self.sandbox.runs[-1:]]}")
            time.sleep(0.02)

    # -- what is there ----------------------------------------------------------------------------------------------------------

    def events(self, *types: str) -> list[Recorded]:
        with EventLog.open(self.log, read_only=True) as log:
            return list(log.read(types=set(types) or None))

    def intent(self, number: int = 1) -> SyncIntent:
        with EventLog.open(self.log, read_only=True) as log:
            return fold(DELIVERIES, log).intents[f"{self.thread}#{number}"]

    def ran(self) -> set[str]:
        """The calls that did something."""
        return set(os.listdir(self.work / "ran"))

    def results(self, request: int) -> list[str]:
        """What the model was told of the calls of its answer `request`, from 1, in the request after it."""
        asked, told = self.model.requests()[request - 1 : request + 1]
        found = [told.result(call) for call in asked.calls]
        assert None not in found, f"calls without a result: {found}"
        return [one for one in found if one is not None]

    # -- the log held against what the model was given -----------------------------------------------------------------------------

    def audit(self, *acknowledged: str, ran: set[str] | None = None) -> None:
        """Exactly these intents are acknowledged, each for a reason that stands in a request; and no blocked call ran."""
        assert verify(self.log).ok
        prepared = {event.stream: event for event in self.events("sync.materialized")}
        proofs = self.events("delivery.acknowledged")
        assert sorted(event.stream for event in proofs) == sorted(acknowledged), self.story()
        for proof in proofs:
            payload = prepared[proof.stream].data["payload"]
            cause = self._cause(proof)
            assert cause.kind == "main", f"{proof.stream} was acknowledged by a turn of a {cause.kind}"
            assert cause.arrived_ns < proof.time, f"{proof.stream} was acknowledged before its request came"
            assert self.holds(cause, payload), (
                f"{proof.stream} was acknowledged, but its payload is not in request {cause.number}\n{self.story()}"
            )
        for event in self.events("delivery.completed"):
            for call in event.data.get("seen") or []:
                payload = prepared[event.stream].data["payload"]
                # The first request that tells of the call. A program that was killed before it may resume without that result (the
                # transcript lags), and says so; nothing was acknowledged by it then, which is what the proofs above are held against.
                told = [
                    text
                    for one in self.model.exchanges
                    if (text := one.result(call)) is not None and not text.startswith("[Tool call interrupted")
                ]
                assert all(self._in(text, payload) for text in told), f"the log says that the result of {call} held {event.stream}"
        if ran is not None:
            assert self.ran() == ran, self.story()
        blocked = {event.data["call"] for event in self.events("batch.admitted") if event.data["decision"] == "block"}
        for exchange in self.model.exchanges:
            for call in blocked:
                told_of_it = exchange.result(call)
                assert told_of_it is None or not told_of_it.endswith(" ran"), f"{call} was blocked, and ran"
        self.audited = True

    def holds(self, exchange: Exchange, payload: str) -> bool:
        """Did the model read this payload in this request, whole?"""
        return any(self._in(text, payload) for text in exchange.texts())

    def _in(self, text: str, payload: str) -> bool:
        """The payload; or, for one that is too large, a pointer to a file that holds it, byte for byte."""
        if payload in text:
            return True
        digest = hashlib.sha256(payload.encode()).hexdigest()
        files = [Path(line) for line in text.splitlines() if line.startswith("/") and digest in line]
        return digest in text and any(file.read_bytes() == payload.encode() for file in files)

    def _cause(self, proof: Recorded) -> Exchange:
        """The request whose answer led to the call, or to the stop, that acknowledged."""
        call = proof.data.get("call")
        if call is not None:
            named = [one for one in self.model.exchanges if call in one.calls]
            # A call out of a script (Codex) has an id that no model gave it: the last answer with calls led to it.
            return (named or [one for one in self.model.requests() if one.arrived_ns < proof.time and one.calls])[-1]
        before = [one for one in self.model.requests() if one.arrived_ns < proof.time and one.answered and not one.calls]
        assert before, f"{proof.stream} was acknowledged by a stop, and no answer without a call came before it"
        return before[-1]

    def frames(self, texts: Sequence[str]) -> list[str]:
        """From each text that part which begins with a frame of ours; it must have one."""
        found = []
        for text in texts:
            begin = _BEGIN.search(text)
            assert begin is not None, f"no frame in {text[:300]!r}"
            found.append(text[begin.start() :])
        return found

    def story(self) -> str:
        """The events and requests in one order, for a test that failed."""
        lines = [(event.time, f"{event.type} {event.stream} {json.dumps(event.data)[:160]}") for event in self.events()]
        for one in self.model.exchanges:
            lines.append((one.arrived_ns, f"    REQUEST {one.number} {one.kind} -> {one.calls}"))
        return "\n".join(text for _, text in sorted(lines))
