"""`eventlog hook doctor`: what is wrong with a setup is said before an agent finds out."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eventlog import EventLog
from eventlog.cli import hook as hook_command
from eventlog.cli import main
from eventlog.recovery.harness import doctor
from eventlog.recovery.harness.dry_run import rewritten


def run(*args: Any) -> Any:
    return CliRunner().invoke(main, [str(arg) for arg in args])


class Setup:
    """A log, a reconciler, a program that says its version, and installed settings."""

    def __init__(self, place: Path, harness: str = "claude-code") -> None:
        self.place, self.harness = place, harness
        self.log, self.settings = place / "log", place / "settings.json"
        with EventLog.open(self.log):
            pass
        self.reconciler = self.program("reconcile", "exit 9")
        self.claude = self.program("claude", "echo '2.1.332 (Claude Code)'" if harness == "claude-code" else "echo 'codex-cli 0.171.0'")
        self.install()

    def program(self, name: str, line: str) -> Path:
        path = self.place / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o700)
        return path

    def install(self, *more: str) -> None:
        options = ["--settings", self.settings, "--log", self.log, "--thread", "web", "--reconciler", self.reconciler, "--yes", *more]
        assert run("hook", "install", self.harness, *options).exit_code == 0

    def checks(self) -> dict[str, dict[str, str]]:
        done = run("hook", "doctor", self.harness, "--settings", self.settings, "--claude", self.claude, "--json")
        told = json.loads(done.stdout)
        failed = [check for check in told["checks"] if check["level"] == "FAIL"]
        assert told["ok"] == (not failed)
        assert done.exit_code == (1 if failed else 0)
        found: dict[str, dict[str, str]] = {}
        for check in told["checks"]:  # the worst of a name
            if check["name"] not in found or check["level"] == "FAIL":
                found[check["name"]] = check
        return found

    def levels(self) -> dict[str, str]:
        return {name: check["level"] for name, check in self.checks().items()}

    def change(self, old: str, new: str) -> None:
        text = self.settings.read_text()
        assert old in text
        self.settings.write_text(text.replace(old, new))


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    return Setup(tmp_path)


def test_what_was_just_installed_is_well_and_the_log_is_not_touched(setup: Setup) -> None:
    before = {path: path.read_bytes() for path in setup.log.rglob("*") if path.is_file()}
    assert set(setup.levels().values()) == {"ok"}
    names = ["version", "settings", "hooks run", "entries", "other hooks", "command", "log", "reconciler"]
    assert list(setup.levels()) == [*names, *(f"dry run, {name}" for name in ("a call passes", "a call is denied", "a broken log denies"))]
    assert "with the payload" in setup.checks()["dry run, a call is denied"]["text"]
    assert {path: path.read_bytes() for path in setup.log.rglob("*") if path.is_file()} == before


def test_one_line_for_each_check(setup: Setup) -> None:
    done = run("hook", "doctor", "claude-code", "--settings", setup.settings, "--claude", setup.claude)
    assert all(line.startswith(("ok    ", "warn  ", "FAIL  ")) for line in done.stdout.splitlines())
    assert len(done.stdout.splitlines()) == 11


def test_codex(tmp_path: Path, setup: Setup) -> None:
    (tmp_path / "codex").mkdir()
    assert set(Setup(tmp_path / "codex", "codex").levels().values()) == {"ok"}


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ("2.1.332 (Claude Code)", "ok"),
        ("2.1.197 (Claude Code)", "ok"),
        ("2.1.240 (Claude Code)", "warn"),
        ("3.0.0 (Claude Code)", "warn"),
        ("2.1.90 (Claude Code)", "FAIL"),
        ("hello", "warn"),
    ],
)
def test_versions(said: str, level: str) -> None:
    assert doctor.version_check("claude-code", said).level == level


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        (" || exit 2", "", "entries"),
        (" || exit 1", " || exit 2", "entries"),
        ('"timeout": 60', '"timeout": 40', "entries"),
        ('"matcher": "*"', '"matcher": "Bash"', "entries"),
        ('"PostToolBatch"', '"PostSomething"', "entries"),
        ('{\n  "hooks"', '{\n  "disableAllHooks": true,\n  "hooks"', "hooks run"),
        ("hook claude-code", "hook claude-code --no-such-option", "dry run, a call passes"),
        ('"PreToolUse"', '"PreToolUse" ', "entries"),
    ],
)
def test_what_is_wrong_in_the_settings_is_found(setup: Setup, old: str, new: str, name: str) -> None:
    if old == '"PreToolUse"':  # the same, and nothing else: no hook for calls at all
        found = json.loads(setup.settings.read_text())
        del found["hooks"]["PreToolUse"]
        setup.settings.write_text(json.dumps(found))
    else:
        setup.change(old, new)
    assert setup.levels()[name] == "FAIL"


def test_two_logs(setup: Setup) -> None:
    text = setup.settings.read_text()
    setup.settings.write_text(text.replace(str(setup.log), "/elsewhere", 1))
    assert "2 different logs" in setup.checks()["entries"]["text"]


def test_other_hooks_and_other_settings_are_told(setup: Setup) -> None:
    guard = {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "/opt/guard"}]}]}}
    (setup.place / "config" / "settings.json").write_text(json.dumps(guard))
    assert "/opt/guard" in setup.checks()["other hooks"]["text"]
    assert setup.levels()["other hooks"] == "warn"
    (setup.place / "config" / "settings.json").write_text(setup.settings.read_text())
    assert "ours as well" in setup.checks()["other hooks"]["text"]
    (setup.place / "settings.local.json").write_text('{"disableAllHooks": true}')
    assert setup.levels()["hooks run"] == "FAIL"


def test_what_the_command_names_is_looked_at(setup: Setup) -> None:
    setup.reconciler.chmod(0o600)
    assert setup.levels()["reconciler"] == "FAIL"
    setup.reconciler.chmod(0o777)
    assert setup.levels()["reconciler"] == "FAIL"
    setup.reconciler.chmod(0o700)
    setup.settings.chmod(0o666)
    assert setup.levels()["settings"] == "FAIL"
    setup.settings.chmod(0o600)
    (setup.log / "log.json").write_text("{}")
    found = setup.levels()
    assert (found["log"], found["dry run, a call passes"]) == ("FAIL", "ok")
    os.rename(setup.log, setup.place / "moved")
    assert setup.levels()["log"] == "FAIL"


def test_a_program_that_is_gone_lets_no_call_run_and_is_found(setup: Setup) -> None:
    program = shlex.split(json.loads(setup.settings.read_text())["hooks"]["PreToolUse"][0]["hooks"][0]["command"])[0]
    setup.change(program, "/nonexistent/eventlog")
    found = setup.levels()
    assert (found["command"], found["dry run, a call passes"], found["dry run, a broken log denies"]) == ("FAIL", "FAIL", "ok")


def test_no_settings_and_broken_ones(setup: Setup) -> None:
    setup.settings.write_text("{")
    assert "line 1, column 2" in setup.checks()["settings"]["text"]
    setup.settings.unlink()
    assert setup.levels()["settings"] == "FAIL"


def test_a_harness_that_does_not_answer(setup: Setup) -> None:
    setup.claude.unlink()
    assert setup.levels()["version"] == "FAIL"


@pytest.mark.parametrize("more", [" 2>>errors || exit 2", "; exit $?", " >&1 || (exit 2)"])
def test_what_a_user_added_for_the_shell_is_no_word_of_ours(setup: Setup, more: str) -> None:
    text = setup.settings.read_text()
    assert " || exit 2" in text
    setup.settings.write_text(text.replace(" || exit 2", more))
    found = {check.name: check for check in doctor.examine("claude-code", setup.settings, setup.claude)}
    assert found["dry run, a call passes"].level == "ok", found["dry run, a call passes"].text
    assert found["dry run, a call is denied"].level == "ok"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("e hook c --log=/a --thread 't u' || exit 2", "e hook c --log '/my log' --thread t || exit 2"),
        ("X=1 e hook c --reconciler 'r --log x' --log /a 2>&1", "X=1 e hook c --log '/my log' 2>&1"),
        ('e hook c --thread "a \\" b" --log /a\\ b;true', "e hook c --thread t --log '/my log';true"),
        ("e hook c --log", "e hook c --log '/my log'"),
    ],
)
def test_another_log_and_thread_and_all_else_as_it_was(command: str, told: str) -> None:
    assert rewritten(command, "/my log", "t") == told


def test_the_dry_run_has_a_log_of_its_own() -> None:
    line = "/x/eventlog hook claude-code --log=/mine --thread 'a b' --reconciler '/r --x' --record --redact 'p q' || exit 2"
    assert rewritten(line, "/scratch", "t") == "/x/eventlog hook claude-code --log /scratch --thread t --record --redact 'p q' || exit 2"


def test_the_deadline_of_a_hook_that_is_not_told_one_is_known_here() -> None:
    assert hook_command.DEADLINE_S == doctor.DEADLINE_S
