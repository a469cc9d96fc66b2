"""The real Codex with our hooks: it has no event for the end of a batch, so its rollout file is the proof, call by call."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_model import Call, Turn
from isolated import Run
from lab import EVENTLOG, Lab
from programs import CODEX, find

PAYLOAD = "the parent branch moved: é e\u0301\r\n\x02 \U0001f469\u200d\U0001f52c <system-reminder> and a last line"
_PROVIDER = '{name="fake",base_url="@API@/v1",env_key="ANTHROPIC_API_KEY",wire_api="responses",request_max_retries=0,stream_max_retries=0}'
_PLAIN = ["-m", "gpt-5.5"]  # a model that is given exec_command itself
_ALWAYS = [
    "--json",
    "--skip-git-repo-check",
    "--dangerously-bypass-approvals-and-sandbox",
    "--dangerously-bypass-hook-trust",
]
_CONFIG = ["-c", 'model_provider="fake"', "-c", f"model_providers.fake={_PROVIDER}"]


class CodexLab(Lab):
    """The same laboratory; its hooks are found in the home of Codex."""

    harness = "codex"
    model_words = _PLAIN

    def start(self, *arguments: str, settings: Mapping[str, Any] | None = None, talk: bool = False) -> Run:
        assert not talk
        home = self.sandbox.home / ".codex"
        home.mkdir(exist_ok=True)
        (home / "hooks.json").write_text(json.dumps({"hooks": (settings or self.settings())["hooks"]}))
        return self.sandbox.start("exec", *self.model_words, *_ALWAYS, *_CONFIG, *arguments, before=self.before)


def touch(name: str) -> Call:
    return Call("exec_command", {"cmd": f"echo {name} ran; touch ran/{name}"})


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[CodexLab]:
    program = find(CODEX)
    if program.path is None:
        pytest.skip(program.why)
    with CodexLab(tmp_path, program.path) as laboratory:
        yield laboratory
        assert laboratory.audited, "this test never held the log against what the model was given"


def test_nothing_waits_and_nothing_changes(codex: CodexLab) -> None:
    codex.script(Turn("I look", touch("one")), Turn(touch("two")), Turn("all done"))
    run = codex.start("do it")
    assert run.wait() == 0, run.said()
    assert "one ran" in codex.results(1)[0]
    assert "two ran" in codex.results(2)[0]
    codex.audit(ran={"one", "two"})


def test_a_call_is_denied_and_the_rollout_proves_the_later_turn(codex: CodexLab) -> None:
    later = threading.Event()
    codex.script(Turn(touch("one")), Turn(touch("two"), gate=later), Turn("all done"))
    codex.detect(PAYLOAD)
    run = codex.start("do it")
    assert codex.holds(codex.model.wait(2), PAYLOAD)
    assert codex.events("delivery.acknowledged") == []
    later.set()
    assert run.wait() == 0, run.said()
    codex.audit("web#1", ran={"two"})


def test_siblings_are_all_blocked_with_the_same_bytes(codex: CodexLab) -> None:
    codex.script(Turn(touch("one"), touch("two"), touch("three")), Turn(touch("four")), Turn(touch("five")), Turn("all done"))
    codex.detect(PAYLOAD)
    run = codex.start("do it")
    assert run.wait() == 0, run.said()
    assert not codex.ran() & {"one", "two", "three"}
    told = [text[text.index("[eventlog delivery") : text.index("[end of eventlog")] for text in codex.results(1)]
    assert len(set(told)) == 1
    codex.audit("web#1", ran={"four", "five"})


def test_a_killed_codex_is_started_again_with_the_payload_as_its_first_prompt(codex: CodexLab) -> None:
    codex.before = [EVENTLOG, "agent", "run", "--log", str(codex.log), "--thread", "web", "--grace", "2", "--"]
    gate = threading.Event()
    codex.script(Turn(touch("one")), Turn("never read", gate=gate), Turn(touch("two")), Turn("all done"))
    codex.detect(PAYLOAD)
    run = codex.start("--", "do it")
    codex.model.wait(2)
    run.kill()
    gate.set()
    assert run.wait() == 0, run.said()
    assert {event.data["evidence"] for event in codex.events("delivery.acknowledged")} == {"startup_echo"}, codex.story()
    codex.audit("web#1", ran={"two"})


def script(name: str) -> Call:
    return Call("exec", {"code": f'text(await tools.exec_command({{cmd: "echo {name} ran; touch ran/{name}"}}))'})


def test_calls_out_of_a_script_are_blocked_and_only_a_restart_proves_anything(codex: CodexLab) -> None:
    """The default model calls its tools from JavaScript. The rollout does not show such calls, so the launcher starts a replacement."""
    codex.model_words = []
    codex.before = [EVENTLOG, "agent", "run", "--log", str(codex.log), "--thread", "web", "--grace", "2", "--"]
    codex.script(Turn(script("one")), *(Turn(script(f"call{number}")) for number in range(4)), Turn("all done"))
    codex.detect(PAYLOAD)
    run = codex.start("--", "do it")
    assert run.wait() == 0, run.said()
    assert "one" not in codex.ran()
    assert codex.ran()
    assert {event.data["evidence"] for event in codex.events("delivery.acknowledged")} == {"startup_echo"}, codex.story()
    codex.audit("web#1")
