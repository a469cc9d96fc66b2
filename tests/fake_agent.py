"""A program that acts like Claude Code, or `codex exec`, as far as a launcher and its hooks can see: for tests, as a real child process.

    fake_agent.py [-p] [--settings FILE] [--session-id ID | --resume ID] [OPTION VALUE]… [--] PROMPT

It runs the command hooks of the settings file as that program does (shell, JSON on standard input, CLAUDE_PID), and instead of a model it
has a script: FAKE_AGENT_SCRIPT names a JSON file {"start": [act, …], "resume": [act, …], "anew": [act, …]}: of a new
conversation, of one that is resumed, of a new one with a startup delivery. Its world is FAKE_AGENT_HOME:

    requests.jsonl    {"pid", "session", "argv", "texts"}: each request of its model, with all that stood in it
    ran.jsonl         {"pid", "call"}: each tool call that ran
    ID.json           a conversation; `--resume` of one that is not there fails as the real one does

Acts: ["calls", [id, …]] one model turn; ["interrupted", [id, …]] the same, cut short by the user: no results, no batch; ["prompt", text];
["stop"] a model turn without a call; ["forget"] the transcript was never written; ["clear"] a new conversation in this
process; ["sleep", s]; ["exit", code]; ["kill"] SIGKILL;
["stubborn"] SIGTERM is ignored, also by a tool that it leaves running; ["say", text]; ["terminal"] says whether the terminal is ours;
["raw"] leaves it raw.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import tty
import uuid
from pathlib import Path
from typing import Any

HOME = Path(os.environ["FAKE_AGENT_HOME"])
WITH_VALUE = {"--settings", "--session-id", "--resume", "--model", "--output-format"}


class Agent:
    def __init__(self, argv: list[str]) -> None:
        options: dict[str, str] = {}
        self.argv, self.prompt = argv, None
        self.codex = argv[:1] == ["exec"]  # then it acts like `codex exec`, as far as that is another program
        rest = list(argv[self.codex :])
        while rest:
            word = rest.pop(0)
            if self.codex and word == "resume":
                word = "--resume"
            if word in WITH_VALUE:
                options[word] = rest.pop(0)
            elif word == "--":
                self.prompt = rest.pop(0) if rest else None
            elif not word.startswith("-"):
                self.prompt = word
        self.settings: dict[str, Any] = json.loads(Path(options["--settings"]).read_text()) if "--settings" in options else {}
        self.texts: list[str] = []
        self.resumed = "--resume" in options
        self.session = options.get("--resume") or options.get("--session-id") or str(uuid.uuid4())
        self.transcript = HOME / f"{self.session}.json"
        if self.resumed:
            if not self.transcript.exists():
                sys.exit(f"No conversation found with session ID: {self.session}")
            self.texts = json.loads(self.transcript.read_text())
        elif self.transcript.exists():
            sys.exit(f"Error: Session ID {self.session} is already in use.")
        self.prompt_id: str | None = None
        self.forgetful = False
        script = json.loads(Path(os.environ["FAKE_AGENT_SCRIPT"]).read_text())
        tagged = " startup=" in (self.prompt or "")
        self.acts: list[list[Any]] = script["resume" if self.resumed else "anew" if tagged else "start"]

    def hook(self, event: str, **more: object) -> list[tuple[int, str, str]]:
        """Run the hooks of an event; (code, stdout, stderr) of each. A hook that runs out of time counts for nothing, as there."""
        told = {"session_id": self.session, "transcript_path": str(self.transcript), "cwd": os.getcwd(), "hook_event_name": event, **more}
        if self.prompt_id is not None and event != "SessionStart":
            told["turn_id" if self.codex else "prompt_id"] = self.prompt_id
        answers = []
        for group in self.settings.get("hooks", {}).get(event, []):
            for one in group["hooks"]:
                try:
                    done = subprocess.run(
                        ["/bin/sh", "-c", one["command"]],
                        input=json.dumps(told),
                        capture_output=True,
                        text=True,
                        timeout=one.get("timeout", 60),
                        env={**os.environ, "CLAUDE_PID": str(os.getpid()), "CLAUDECODE": "1"},
                    )
                except subprocess.TimeoutExpired:
                    continue
                answers.append((done.returncode, done.stdout, done.stderr))
        return answers

    def request(self) -> None:
        """A request of the model: this is what it reads."""
        _line("requests.jsonl", pid=os.getpid(), session=self.session, argv=self.argv, texts=self.texts)
        if not self.forgetful:
            self.transcript.write_text(json.dumps(self.texts))

    def submit(self, text: str) -> None:
        self.prompt_id = str(uuid.uuid4())
        self.hook("UserPromptSubmit", prompt=text)
        self.texts.append(text)

    def call(self, call: str) -> str:
        """The result of a call, as the model will read it."""
        about = {"tool_name": "Bash", "tool_input": {"command": "true"}, "tool_use_id": call}
        for code, out, err in self.hook("PreToolUse", **about):
            if code == 2:
                return f"PreToolUse:Bash hook error: {err}"
            try:
                said = json.loads(out)["hookSpecificOutput"]
            except (ValueError, KeyError):
                continue
            if said.get("permissionDecision") == "deny":
                return f"PreToolUse:Bash hook error: {said['permissionDecisionReason']}"
        _line("ran.jsonl", pid=os.getpid(), call=call)
        self.hook("PostToolUse", tool_response={"stdout": "done"}, **about)
        return "done"

    def calls(self, names: list[str], interrupted: bool) -> None:
        self.request()
        results: dict[str, str] = {}
        names = [f"{name}-{os.getpid()}" for name in names]
        threads = [threading.Thread(target=lambda call=name: results.update({call: self.call(call)})) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if interrupted:
            self.texts.append("[Request interrupted by user]")
            return
        batch = [
            {"tool_name": "Bash", "tool_input": {"command": "true"}, "tool_use_id": call, "tool_response": text}
            for call, text in sorted(results.items())
        ]
        self.hook("PostToolBatch", tool_calls=batch)
        self.texts += [one["tool_response"] for one in batch]

    def act(self, name: str, *args: Any) -> None:
        if name in ("calls", "interrupted"):
            self.calls(args[0], name == "interrupted")
        elif name == "prompt":
            self.submit(args[0])
        elif name == "stop":
            self.request()
            self.texts.append("all done")
            self.hook("Stop", stop_hook_active=False, last_assistant_message="all done")
        elif name == "forget":
            self.forgetful = True
            self.transcript.unlink(missing_ok=True)
        elif name == "clear":
            self.hook("SessionEnd", reason="clear")
            self.session, self.texts = str(uuid.uuid4()), []
            self.transcript = HOME / f"{self.session}.json"
            self.hook("SessionStart", source="clear")
        elif name == "sleep":
            time.sleep(args[0])
        elif name == "exit":
            sys.exit(args[0])
        elif name == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif name == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            tool = subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"])
            _line("tools.jsonl", pid=tool.pid)
        elif name == "say":
            print(args[0], flush=True)
        elif name == "terminal":
            ours = os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
            print("terminal: ours" if ours else "terminal: not ours", flush=True)
        elif name == "raw":
            tty.setraw(0)
        else:
            raise ValueError(name)

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._term)
        self.hook("SessionStart", source="resume" if self.resumed else "startup")
        if self.prompt is not None:
            self.submit(self.prompt)
        for act in self.acts:
            self.act(*act)
        self.hook("SessionEnd", reason="other")

    def _term(self, _number: int, _frame: object) -> None:
        self.hook("SessionEnd", reason="other")
        os._exit(143)


def _line(name: str, **fields: object) -> None:
    with open(HOME / name, "a") as file:
        file.write(json.dumps(fields) + "\n")


if __name__ == "__main__":
    Agent(sys.argv[1:]).run()
