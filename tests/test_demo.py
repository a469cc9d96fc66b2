"""The demo tells the truth: its kills are real, log and witnesses agree with what it prints, and nothing around it can change it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from eventlog import EventLog
from eventlog.projections import EFFECTS, IntentState, Verdict, fold
from eventlog.testing import run_child

DOOR = [sys.executable, "-m", "eventlog.cli"]
HOSTILE_GIT = """
[user]
    useConfigOnly = true
[commit]
    gpgSign = true
[core]
    hooksPath = {hooks}
    autocrlf = true
[push]
    gpgSign = true
[protocol "file"]
    allow = never
[safe]
    bareRepository = explicit
"""


def demo(*args: str | os.PathLike[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DOOR, "demo", *args], capture_output=True, text=True, timeout=120, check=False, **options)  # type: ignore[call-overload,no-any-return]


def git(home: Path, *command: str) -> str:
    """Ask the remote, by other means than the demo's own."""
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", *command], cwd=home / "remote.git", env=env, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One run, in the worst of surroundings: inside another repository, with hostile git settings and variables."""
    outer = tmp_path_factory.mktemp("outer")
    subprocess.run(["git", "init", "--quiet", outer], check=True)
    hooks = outer / "hooks"
    hooks.mkdir()
    for name in ("pre-commit", "pre-push", "pre-receive"):
        (hooks / name).write_text("#!/bin/sh\nexit 1\n")
        (hooks / name).chmod(0o755)
    (outer / ".gitconfig").write_text(HOSTILE_GIT.format(hooks=hooks))
    env = {name: value for name, value in os.environ.items() if name != "XDG_CONFIG_HOME"}
    env |= {"HOME": str(outer), "GIT_DIR": str(outer / ".git"), "GIT_INDEX_FILE": "nowhere", "GIT_AUTHOR_DATE": "nonsense"}
    result = demo(outer / "demo", env=env, cwd=outer)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    status = subprocess.run(["git", "-C", outer, "log", "--all", "--oneline"], capture_output=True, text=True, check=True)
    assert status.stdout == ""  # nothing was committed into the repository around it
    return outer / "demo", result.stdout


def test_the_log_and_the_witnesses_say_what_was_printed(ran: tuple[Path, str]) -> None:
    home, printed = ran
    for number in (1, 2, 3, 4):
        assert f"{number}. release-{number}: killed after" in printed
    assert printed.count("SIGKILL") == 4
    assert printed.count('"never sent"') == 1
    assert printed.count('"may have been sent"') == 3
    with EventLog.open(home / "log", create=False, read_only=True) as log:
        events = list(log.read())
        state = fold(EFFECTS, log)
    # each kill left one classification, recorded as an event
    classified = [
        (event.stream, event.data["as"]) for event in events if event.type == "effect.classified" and event.data["by"] == "recovery"
    ]
    assert classified == [
        ("release-1@1:2", Verdict.NEVER_SENT.value),
        ("release-2@1:2", Verdict.MAY_HAVE_BEEN_SENT.value),
        ("release-3@1:2", Verdict.MAY_HAVE_BEEN_SENT.value),
        ("release-4@1:3", Verdict.MAY_HAVE_BEEN_SENT.value),
    ]
    # the two crashes after Dispatched left the same records, and only the remote told them apart
    decided = {event.stream: event.data["decision"] for event in events if event.type == "effect.resolved"}
    assert decided == {"release-2@1:2": "not_happened", "release-3@1:2": "happened", "release-4@1:3": "indeterminate"}
    sends = Counter(event.stream for event in events if event.type == "effect.dispatched")
    assert sends == {f"release-{release}@1:{step}": 1 for release in (1, 2, 3, 4) for step in (1, 2, 3)} | {"release-2@1:2": 2}
    states = {text: intent.state for text, intent in state.intents.items()}
    assert states.pop("release-4@1:3") is IntentState.INDETERMINATE
    assert set(states.values()) == {IntentState.COMMITTED}
    assert len(states) == 11
    # the world: every push and every message exactly once
    assert git(home, "log", "--format=%s", "release-4").split("\n")[:-1] == [f"Release release-{n}" for n in (4, 3, 2, 1)]
    assert (home / "outbox.txt").read_text() == "".join(f"release-{n} is out\n" for n in (1, 2, 3, 4))
    for release in (1, 2, 3, 4):
        commit = git(home, "rev-parse", f"release-{release}").strip()
        outcomes = [event.data for event in events if event.type == "effect.outcome" and event.stream == f"release-{release}@1:2"]
        assert [outcome["value"] for outcome in outcomes] == [commit]
        assert f"release-{release} is at {commit[:7]}" in printed or release == 4


def test_every_command_that_it_names_works_on_the_log_that_it_leaves(ran: tuple[Path, str]) -> None:
    home, printed = ran
    commands = re.findall(r"^  eventlog (.+?) +# ", printed, re.MULTILINE)
    assert {command.split()[0] for command in commands} == {"status", "effects", "tail", "fold", "dump", "verify"}
    for command in commands:
        result = subprocess.run([*DOOR, *command.split()], capture_output=True, text=True, check=False)
        assert result.returncode == (1 if command.startswith("status") else 0), (command, result)
        assert result.stderr == ""
        assert result.stdout
    # the last one decides, so it goes to a copy
    last = re.search(r"^  eventlog (effects resolve .*)$", printed, re.MULTILINE)
    assert last is not None
    copy = home.parent / "copy"
    subprocess.run(["cp", "-r", home, copy], check=True)
    decide = last[1].replace(str(home), str(copy))
    result = subprocess.run(["bash", "-c", f'"$0" -m eventlog.cli {decide}', sys.executable], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "release-4@1:3 is committed\n"), result.stderr
    assert subprocess.run([*DOOR, "status", copy / "log"], capture_output=True, check=False).returncode == 0


def test_recover_with_the_tools_of_the_agent(ran: tuple[Path, str]) -> None:
    home = ran[0].parent / "again"
    subprocess.run(["cp", "-r", ran[0], home], check=True)
    child = run_child(["-m", "eventlog.cli.demo_agent", str(home), "release-5"], crash_at="after-effect", nth=2)
    assert child.killed
    dry = subprocess.run([*DOOR, "recover", home / "log", "--dry-run", "--json"], capture_output=True, check=False)
    assert dry.returncode == 1
    pushed = json.loads(dry.stdout)["intents"][-1]
    assert (pushed["id"], pushed["state"], pushed["verdict"]) == ("release-5@1:2", "dispatched", "may have been sent")
    assert json.loads(dry.stdout)["recorded"] == 0
    command = [*DOOR, "recover", str(home / "log"), "--tools", "eventlog.cli.demo_agent:toolbox"]
    real = subprocess.run(command, capture_output=True, text=True, check=False)
    assert real.returncode == 1  # release-4 still waits for a person
    assert "release-5@1:2  push  reconcilable  dispatched: may have been sent; now committed" in real.stdout
    assert git(home, "log", "--format=%s", "release-5").count("Release release-5") == 1


def test_plain_text_in_a_pipe_and_a_directory_of_its_own(tmp_path: Path) -> None:
    result = demo(env={**os.environ, "TMPDIR": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout
    [home] = tmp_path.iterdir()
    assert home.name.startswith("eventlog-demo-")
    assert f"Everything is in {home}" in result.stdout
    assert {item.name for item in home.iterdir()} == {"log", "outbox.txt", "remote.git", "workspace"}


def test_refusals_are_one_line_and_2(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    (tmp_path / "file").touch()
    (tmp_path / "new").mkdir()
    nothing = {**os.environ, "PATH": str(tmp_path / "new")}
    for directory, env, words in (("full", None, "not empty"), ("file", None, "not a directory"), ("new", nothing, "no git")):
        result = demo(tmp_path / directory, env=env)
        assert (result.returncode, result.stdout) == (2, "")
        assert words in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert list((tmp_path / "new").iterdir()) == []


def test_the_agents_source_is_public_api_only() -> None:
    """It is the first example that a user reads: what it imports is what a user may import."""
    import eventlog
    from eventlog import recovery
    from eventlog.cli import demo_agent

    source = Path(demo_agent.__file__).read_text()
    imported = re.findall(r"^from (eventlog\S*) import (.+)$", source, re.MULTILINE)
    assert [module for module, _ in imported] == ["eventlog", "eventlog.recovery"]
    for module, names in zip((eventlog, recovery), (names for _, names in imported), strict=True):
        assert set(names.split(", ")) <= set(module.__all__)
    assert not re.search(r"\._[a-z]", source)
    assert "crashpoint" not in source  # the agent knows nothing of its end
    assert "testing" not in source
