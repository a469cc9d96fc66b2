"""`eventlog hook codex` as a real process: the boundary of a batch is proved by the rollout file, or a restart delivers (lab section 4)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.projections import SyncState
from eventlog.projections.delivery_words import RestartStartup
from eventlog.recovery.harness import Carrier, find_payload, rollout

sys.path.insert(0, str(Path(__file__).parent))
from hook_harness import Claude, Ran


class Codex(Claude):
    """One Codex process: its hooks, and the rows that it writes into its rollout (0.171.0)."""

    def __init__(self, place: Path) -> None:
        super().__init__(place, session="01a22c2f-0000")
        self.rollout = place / "rollout-2026.jsonl"
        self.row(type="message", role="user", content=[{"type": "input_text", "text": "do it"}])
        # A shell that is called codex, as the agent is for a hook: it runs one command after the other.
        codex = place / "codex"
        if not codex.exists():
            codex.symlink_to("/bin/bash")
        self.process.kill()
        self.process.wait()
        command = [str(codex), "-c", 'while read -r line; do eval "$line"; echo "ended $?"; done']
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.place = place

    def row(self, **payload: Any) -> None:
        with self.rollout.open("a") as file:
            file.write(json.dumps({"timestamp": "2026-11-30T12:00:00Z", "type": "response_item", "payload": payload}) + "\n")

    def calls(self, *calls: str) -> list[str | None]:
        """One response: the rows of its calls, then their hooks."""
        self.model_reads()
        for call in calls:
            self.row(type="function_call", name="exec_command", arguments="{}", call_id=call)
        return [self.pre(call) for call in calls]

    def outputs(self, **texts: str | None) -> None:
        for call, text in texts.items():
            shown = "it ran" if text is None else f"Command blocked by PreToolUse hook: {text.strip()}. Command: echo {call}"
            self.row(type="function_call_output", call_id=call, output=shown)
            self._request.append(shown)

    def hook(self, event: str, **more: Any) -> Ran:
        """Run by the process itself, through a shell that ends with it, as Codex does."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        (self.place / "in").write_text(self.input(event, **more))
        options = ["--log", str(self.log), "--thread", self.thread, "--reconciler", self.reconciler, *self.options]
        words = " ".join(
            "'" + word.replace("'", "'\\''") + "'" for word in [sys.executable, "-m", "eventlog.cli", "hook", "codex", *options]
        )
        script = self.place / "run.sh"
        script.write_text(f"{words} || exit 2\n")
        self.process.stdin.write(f"sh {script} <{self.place}/in >{self.place}/out 2>{self.place}/err\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline().split()[1])
        return Ran(code, (self.place / "out").read_text(), (self.place / "err").read_text())

    def input(self, event: str, **more: Any) -> str:
        turn = {"turn_id": self.prompt_id} if self.prompt_id and event != "SessionStart" else {}
        common = {"session_id": self.session, **turn, "transcript_path": str(self.rollout), "cwd": "/repo", "hook_event_name": event}
        return json.dumps({**common, "model": "gpt-5.5", "permission_mode": "bypassPermissions", **more})


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[Codex]:
    with Codex(tmp_path) as one:
        one.hook("SessionStart", source="startup")
        one.prompt("u1")
        yield one


def test_the_rollout_proves_the_boundary_and_the_later_turn(codex: Codex) -> None:
    assert codex.calls("c1") == [None]
    codex.outputs(c1=None)
    codex.change()
    first, second = codex.calls("c2", "c3")
    assert first is not None
    assert first == second
    assert codex.intent().state is SyncState.DELIVERED
    codex.outputs(c2=first, c3=second)
    assert codex.read == {}
    assert codex.calls("c4") == [None]
    assert codex.intent().state is SyncState.ACKNOWLEDGED
    assert codex.read == {"web#1": codex.intent().sha256}


def test_a_stop_proves_it_once_the_model_has_written_its_message(codex: Codex) -> None:
    codex.change()
    first = codex.calls("c1")[0]
    codex.outputs(c1=first)
    assert codex.hook("Stop", stop_hook_active=False, last_assistant_message="ok").code == 0
    assert codex.intent().state is SyncState.DELIVERED, "no message of the model stands behind the output"
    codex.row(type="message", role="assistant", content=[{"type": "output_text", "text": "ok"}])
    assert codex.hook("Stop", stop_hook_active=False, last_assistant_message="ok").code == 0
    assert codex.intent().state is SyncState.ACKNOWLEDGED


def test_a_sibling_that_comes_when_its_brother_is_done_is_still_a_sibling(codex: Codex) -> None:
    codex.change()
    codex.row(type="function_call", call_id="c1")
    codex.row(type="function_call", call_id="c2")
    first = codex.pre("c1")
    codex.outputs(c1=first)
    assert codex.pre("c2") == first, "its row stands before that output"
    codex.outputs(c2=first)
    assert codex.calls("c3") == [None]


def test_a_text_that_did_not_arrive_is_given_again(codex: Codex) -> None:
    codex.change()
    first = codex.calls("c1")[0]
    assert first is not None
    codex.row(type="function_call_output", call_id="c1", output=f"…13 tokens truncated…{first[40:]}")
    assert codex.calls("c2") == [first]
    codex.outputs(c2=first)
    assert codex.calls("c3") == [None]
    assert codex.intent().redeliveries == 1


@pytest.mark.parametrize("how", ["gone", "a link", "a fifo", "not shown"])
def test_without_proof_only_a_restart_delivers(codex: Codex, tmp_path: Path, how: str) -> None:
    codex.change()
    first = codex.calls("c1")[0]
    codex.outputs(c1=first)
    if how != "not shown":
        codex.rollout.rename(tmp_path / "elsewhere")
    if how == "a link":
        codex.rollout.symlink_to(tmp_path / "elsewhere")
    if how == "a fifo":
        os.mkfifo(codex.rollout)
    answer = codex.pre("c2")
    assert answer is not None
    assert "no batch boundary can be proved" in answer
    assert "-- codex resume 01a22c2f-0000" in answer
    intent = codex.intent()
    assert isinstance(intent.proof, RestartStartup)
    codex.rollout.unlink(missing_ok=True)
    with Codex(tmp_path) as new:
        new.prompt("u9", Carrier(new.log).startup(intent.id, intent.payload or "", intent.proof.startup_id))
        assert new.calls("n1") == [None]
        assert new.intent().state is SyncState.ACKNOWLEDGED
        assert new.read == {"web#1": intent.sha256}


def test_the_process_is_codex_and_not_the_shell_between(codex: Codex) -> None:
    codex.calls("c1")
    codex.calls("c2")
    with EventLog.open(codex.log, read_only=True) as log:
        started = [event.data["process"] for event in log.read(types={"incarnation.started"})]
    assert [process.partition(":")[0] for process in started] == [str(codex.process.pid)]


def test_what_is_no_rollout_is_read_as_nothing(tmp_path: Path) -> None:
    file = tmp_path / "rollout"
    file.write_bytes(
        b'\xff\n{"type": "response_item"}\n[1]\n{"type":"response_item","payload":{"type":"function_call","call_id":7}}\n' + b"[" * 9999
    )
    assert rollout.read(str(file)) == []
    assert rollout.read(str(tmp_path)) is None
    assert rollout.read("/dev/zero") is None
    assert rollout.read("x\0y") is None


def test_only_the_end_of_a_long_rollout_is_read(tmp_path: Path) -> None:
    file = tmp_path / "rollout"
    old = json.dumps({"type": "response_item", "payload": {"type": "function_call", "call_id": "old"}}) + "\n"
    new = json.dumps(
        {"type": "response_item", "payload": {"type": "custom_tool_call_output", "call_id": "new", "output": {"content": "x"}}}
    )
    file.write_text(old + "y" * rollout.TAIL_BYTES_MAX + "\n" + new + "\n" + '{"type":"response_item","payl')
    assert rollout.read(str(file)) == [(rollout.OUTPUT, "new", "x")]


def test_a_session_of_codex_is_recorded(codex: Codex) -> None:
    codex.options = ["--record"]
    codex.calls("c1")
    codex.hook("PostToolUse", **codex.call_of("c1"), tool_response="token=abcdefgh")
    with EventLog.open(codex.log, read_only=True) as log:
        events = [(event.type, event.data["harness"], event.data.get("result")) for event in log.read() if "harness" in event.data]
    assert events == [("tool.called", "codex", None), ("tool.returned", "codex", "[redacted]")]


def test_a_frame_in_an_output_is_found_whole_or_not_at_all() -> None:
    rows = rollout.parse(
        b'{"type":"response_item","payload":{"type":"function_call_output","call_id":"c","output":[{"type":"x","text":"a"}]}}\n'
    )
    assert rows == [(rollout.OUTPUT, "c", "a")]
    assert rollout.shown_before_call(rows, "d") is None
    assert find_payload("a") == {}
