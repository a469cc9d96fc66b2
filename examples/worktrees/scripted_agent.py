"""A small stand-in for Claude Code where there is none: it talks to the model API, and runs the hooks as its settings file says, one call
after another.

    ANTHROPIC_BASE_URL=http://… python scripted_agent.py -p PROMPT --settings FILE

It shows how the hooks are called and what becomes of their answers, nothing more; what the real program does is measured on the real one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import urllib.request
import uuid
from pathlib import Path
from typing import Any


class Agent:
    """One session: its hooks, and its conversation."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.hooks: dict[str, list[dict[str, Any]]] = settings.get("hooks", {})
        self.session, self.prompt_id = str(uuid.uuid4()), str(uuid.uuid4())
        self.messages: list[dict[str, Any]] = []

    def run(self, prompt: str) -> None:
        """From the first prompt to the answer without a call."""
        self.hook("SessionStart", source="startup")
        self.hook("UserPromptSubmit", prompt_id=self.prompt_id, prompt=prompt)
        self.messages.append({"role": "user", "content": prompt})
        while True:
            content = self.ask()
            self.messages.append({"role": "assistant", "content": content})
            calls = [block for block in content if block["type"] == "tool_use"]
            if not calls:
                break
            self.batch(calls)
        self.hook("Stop", prompt_id=self.prompt_id)
        self.hook("SessionEnd", reason="other")

    def batch(self, calls: list[dict[str, Any]]) -> None:
        """All the calls of one answer, and their results."""
        told = []
        for call in calls:
            about = {"tool_name": call["name"], "tool_input": call["input"], "tool_use_id": call["id"]}
            result = self.hook("PreToolUse", prompt_id=self.prompt_id, **about)
            if result is None:
                result = bash(call["input"]["command"])
                self.hook("PostToolUse", prompt_id=self.prompt_id, tool_response={"stdout": result}, **about)
            told.append({**about, "tool_response": result})
        self.hook("PostToolBatch", prompt_id=self.prompt_id, tool_calls=told)
        blocks = [{"type": "tool_result", "tool_use_id": one["tool_use_id"], "content": one["tool_response"]} for one in told]
        self.messages.append({"role": "user", "content": blocks})

    def hook(self, event: str, **fields: Any) -> str | None:
        """Run the commands of an event; what the model is told instead of a result, if one of them denies."""
        given = {"session_id": self.session, "cwd": os.getcwd(), "hook_event_name": event, **fields}
        environment = {**os.environ, "CLAUDE_PID": str(os.getpid())}
        denied = None
        for group in self.hooks.get(event, []):
            for one in group["hooks"]:
                done = subprocess.run(
                    ["sh", "-c", one["command"]],
                    input=json.dumps(given).encode(),
                    capture_output=True,
                    env=environment,
                    timeout=one.get("timeout", 600),
                    check=False,
                )
                reason = done.stderr.decode(errors="replace") if done.returncode == 2 else reason_of(done.stdout)
                if event == "PreToolUse" and reason is not None:
                    denied = f"PreToolUse:{given['tool_name']} hook error: {reason}"
        return denied

    def ask(self) -> list[dict[str, Any]]:
        """One answer of the model."""
        body = {"model": "scripted", "messages": self.messages, "tools": [{"name": "Bash"}]}
        url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            content: list[dict[str, Any]] = json.load(answer)["content"]
        return content


def reason_of(output: bytes) -> str | None:
    """The reason of a denial on a hook's standard output."""
    said = json.loads(output).get("hookSpecificOutput", {}) if output.strip() else {}
    return said.get("permissionDecisionReason", "") if said.get("permissionDecision") == "deny" else None


def bash(command: str) -> str:
    """What the call did."""
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False).stdout.rstrip("\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", dest="prompt", required=True)
    parser.add_argument("--settings", type=Path, required=True)
    arguments = parser.parse_args()
    Agent(json.loads(arguments.settings.read_text())).run(arguments.prompt)


if __name__ == "__main__":
    main()
