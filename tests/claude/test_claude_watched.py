"""What people are shown: the example that anyone can watch, and the five minutes of the document, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fake_model import Call, FakeModel, Turn
from isolated import Sandbox
from programs import CLAUDE, find

from eventlog import EventLog
from eventlog.projections import DELIVERIES, fold

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "worktrees"


def pinned() -> Path:
    program = find(CLAUDE)
    if program.path is None:
        pytest.skip(program.why)
    return program.path


@pytest.mark.parametrize("scripted", [True, False], ids=["scripted", "claude"])
def test_the_example_shows_a_delivery(tmp_path: Path, scripted: bool) -> None:
    which = ["--scripted"] if scripted else ["--claude", str(pinned())]
    place = tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), *which, "--keep", str(place)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    told = re.findall(r"\| .*(\[eventlog delivery web#1 .*)", done.stdout)
    assert len(told) == 2
    assert len(set(told)) == 1
    assert "web#1   delivered" in done.stdout
    assert "delivery.acknowledged" in done.stdout
    assert (place / "web" / "app.py").read_text() == 'GREETING = "hi"\nVERSION = 2\n'
    with EventLog.open(place / "log", read_only=True) as log:
        assert fold(DELIVERIES, log).intents["web#1"].state.value == "acknowledged"


def test_the_five_minutes_of_the_document(tmp_path: Path) -> None:
    """Its shell blocks, word for word (a --yes aside: there is no terminal to ask on), around a real agent."""
    claude = pinned()
    before, after = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "claude-code.md").read_text(), re.MULTILINE | re.DOTALL)
    main = tmp_path / "main"
    subprocess.run(["git", "init", "-q", "-b", "main", str(main)], check=True)
    commit(main, "app.txt", "one\n")
    said = shell(main, before.replace("install claude-code", "install claude-code --yes"), claude.parent)
    assert "FAIL" not in said, said
    assert "2.1.332, measured" in said
    landed = threading.Event()
    script = [Turn(bash("cat app.txt")), Turn(bash("cat app.txt"), gate=landed), Turn(bash("cat app.txt")), Turn("done")]
    with FakeModel(script) as model, Sandbox(tmp_path / "agent", model, claude, work=tmp_path / "web") as sandbox:
        run = sandbox.start("-p", "look", before=["eventlog", "agent", "run", "--log", "../web.log", "--thread", "web", "--"])
        model.wait(2)
        commit(tmp_path / "api", "app.txt", "two\n")
        assert "web#1: detected" in shell(main, after)
        landed.set()
        assert run.wait() == 0, run.said()
        told = [model.requests()[at + 1].result(model.requests()[at].calls[0]) for at in range(3)]
    assert told[0] == "one"
    assert "change app.txt" in (told[1] or "")
    assert told[2] == "two"
    with EventLog.open(tmp_path / "web.log", read_only=True) as log:
        assert fold(DELIVERIES, log).intents["web#1"].state.value == "acknowledged"


def bash(command: str) -> Call:
    return Call("Bash", {"command": command, "description": command})


def commit(tree: Path, name: str, text: str) -> None:
    (tree / name).write_text(text)
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    for words in (["add", name], ["commit", "-q", "-m", f"change {name}"]):
        subprocess.run(["git", "-C", str(tree), *identity, *words], check=True)


def shell(cwd: Path, text: str, *more: Path) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), *map(str, more), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "RECONCILER": str(EXAMPLE / "reconciler.py"), "HOME": str(cwd.parent)}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
