"""What a hook is given by others (threads of any name, texts of any kind, broken streams, a slow system) must not lose or let through."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.projections import SyncState
from eventlog.recovery import Caller, Deliveries, FailClosed, Reconciled
from eventlog.recovery.harness import Carrier, find_payload, find_startup, frame, frame_startup
from eventlog.recovery.harness.commandline import ARGUMENT_BYTES_MAX

sys.path.insert(0, str(Path(__file__).parent))
from hook_harness import HOOK, Claude

NAMES = ["my web", "web\u00a0x", "a\nb", "100%", "%20;", "\U0010ffff", "web]x", "w\u00e9b", "a chars=3 sha256=b", "-x", "x" * 300]


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[Claude]:
    with Claude(tmp_path) as one:
        yield one


# ------------------------------------------------------------------- names and texts


@pytest.mark.parametrize("name", NAMES)
def test_a_frame_is_found_whatever_the_thread_is_called(name: str) -> None:
    intent = f"{name}#1"
    (digest,) = find_payload(frame("x", "text")).values()
    assert find_payload(f"before {frame(intent, 'text')} behind") == {intent: digest}
    assert frame(intent, "text").splitlines()[1] == "text"
    assert find_startup(frame_startup(intent, "text", "startup-1")) == (intent, "startup-1")


def test_a_thread_whose_name_has_spaces_gets_its_delivery_and_acknowledges_it(tmp_path: Path) -> None:
    with Claude(tmp_path, thread="my web") as claude:
        claude.prompt("p1")
        claude.change()
        assert claude.turn("t1") != [None]
        assert claude.turn("t2") == [None]
        assert claude.intent("my web#1").state is SyncState.ACKNOWLEDGED


@pytest.mark.parametrize(
    "text",
    [
        f"[eventlog delivery x chars={'9' * 5000} sha256={'0' * 64}]\n",
        f"[eventlog delivery %ffffff; chars=0 sha256={'0' * 64}]\n",
        f"[eventlog delivery x chars=1 sha256={'0' * 64}]\n\ud800\n[end of eventlog delivery x]",
    ],
)
def test_a_text_that_looks_like_a_frame_and_is_none_proves_nothing_and_stops_nothing(text: str) -> None:
    assert find_payload(text) == {}
    assert find_startup(text) is None


@pytest.mark.parametrize("payload", ["a\0b", "\0" * 30, "x" * 200_000, "\U0001f600" * 9_000 + "\0"])
def test_every_payload_can_be_an_argument_of_a_program(tmp_path: Path, payload: str) -> None:
    with EventLog.open(tmp_path / "log") as log:
        desk = Deliveries(log)
        desk.detect("web", base="b", triggers=["op"])
        desk.pre_tool_use(Caller("web", "1:1"), "t1")
        desk.materialize("web#1", base="b", operation="op", commit="c", payload=payload, anchor="a")
        live = desk.state.threads["web"].live
        assert live is not None
        desk.retire_incarnation("web", live, "gone")
        startup = desk.startup_of("web")
        assert startup is not None
        told = Carrier(log.path).startup("web#1", payload, startup[1].startup_id)
        assert "\0" not in told
        assert "\0" not in Carrier(log.path).text("web#1", payload)
        assert len(told.encode()) < ARGUMENT_BYTES_MAX
        assert find_startup(told) == ("web#1", startup[1].startup_id)
        assert list(find_payload(told).values()) == [desk.state.intents["web#1"].sha256]
    shown = subprocess.run([*HOOK[:-1], "deliveries", "show", str(tmp_path / "log"), "web#1", "--startup"], capture_output=True, check=True)
    assert shown.stdout.decode() == told


def test_the_command_that_helps_can_be_given_to_a_shell(tmp_path: Path) -> None:
    with Claude(tmp_path, thread="my web; x") as claude:
        claude.prompt("p1")
        claude.change()
        claude.reconciler = "/nothing/here"
        assert f"eventlog deliveries show {claude.log} 'my web; x#1'" in (claude.pre("t1") or "")


# ------------------------------------------------------------------- streams


def full_pipe() -> tuple[int, int]:
    """A pipe that takes no byte more."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(write_end, b"x" * size)
        except BlockingIOError:
            pass
    os.set_blocking(write_end, True)
    return read_end, write_end


@pytest.mark.parametrize("text", ["not json", None])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_nobody_reads_does_not_outlast_the_deadline(claude: Claude, stream: str, text: str | None) -> None:
    claude.options = ["--deadline", "1"]
    claude.prompt("p1")
    claude.change()
    text = text or claude.input("PreToolUse", **claude.call_of("t1"))
    read_end, write_end = full_pipe()
    with subprocess.Popen(
        claude.command,
        stdin=subprocess.PIPE,
        stdout=write_end if stream == "stdout" else subprocess.PIPE,
        stderr=write_end if stream == "stderr" else subprocess.PIPE,
        env=claude.environ,
    ) as hook:
        try:
            out, _ = hook.communicate(text.encode(), timeout=30)
        finally:
            hook.kill()
    os.close(read_end)
    os.close(write_end)
    assert hook.returncode == 2 or (hook.returncode == 0 and b'"deny"' in out)
    if stream == "stdout":
        assert "delivery.marked" not in claude.types()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_denies_and_nothing_gets_into_the_log(claude: Claude, closed: str) -> None:
    claude.prompt("p1")
    claude.change()
    for text in (claude.input("PreToolUse", **claude.call_of("t1")), "not json"):
        line = f"{shlex.join(claude.command)} {closed}"
        done = subprocess.run(["/bin/sh", "-c", line], input=text, capture_output=True, text=True, env=claude.environ, check=False)
        if closed == "2>&-" and text != "not json":
            assert done.returncode == 0
            assert json.loads(done.stdout)["hookSpecificOutput"]["permissionDecision"] == "deny"
        else:
            assert (done.returncode, done.stdout) == (2, "")
    assert ("delivery.marked" in claude.types()) == (closed == "2>&-")
    for path in claude.log.rglob("*"):
        assert not path.is_file() or b"hookSpecific" not in path.read_bytes()
    done = subprocess.run(["/bin/sh", "-c", f"{shlex.join(HOOK)} claude-code --nonsense 2>&-"], capture_output=True, check=False)
    assert done.returncode == 2


def test_help_is_asked_for_by_a_word_that_is_nobodys_value(claude: Claude) -> None:
    claude.options = ["--record", "--redact", "--help"]
    claude.prompt("p1")
    claude.change()
    assert claude.pre("t1") is not None


# ------------------------------------------------------------------- what a reconciler leaves behind

SETSID = f"{sys.executable} -c 'import os, time; os.setsid(); time.sleep(600)'"
LEFTOVERS = {
    "of a hanging one": "trap '' TERM\nsleep 600 &\necho $! >>PIDS\nsleep 600\n",
    "a daemon of a hanging one": f"{SETSID} &\necho $! >>PIDS\nsleep 600\n",
    "a daemon of a failing one": f"{SETSID} &\necho $! >>PIDS\nsleep 0.3\nexit 1\n",
}


@pytest.mark.parametrize("what", LEFTOVERS)
def test_what_a_reconciler_leaves_behind_does_not_keep_the_next_one_out(claude: Claude, tmp_path: Path, what: str) -> None:
    pids = tmp_path / "pids"
    script = tmp_path / "reconcile.sh"
    script.write_text("#!/bin/sh\n" + LEFTOVERS[what].replace("PIDS", str(pids)))
    script.chmod(0o700)
    claude.options = ["--deadline", "3"]
    good, claude.reconciler = claude.reconciler, str(script)
    claude.prompt("p1")
    claude.change()
    try:
        assert find_payload(claude.pre("t1") or "") == {}
        if "daemon" not in what:
            assert not running(int(pids.read_text()))
        claude.options, claude.reconciler = [], good
        assert find_payload(claude.pre("t2") or "") != {}
    finally:
        for pid in pids.read_text().split():
            if running(int(pid)):
                os.kill(int(pid), signal.SIGKILL)


def test_a_reconciler_that_has_answered_is_not_waited_for(claude: Claude, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = tmp_path / "reconcile.sh"
    script.write_text(f"#!/bin/sh\nsleep 600 &\necho $! >{pid}\nexec {claude.reconciler}\n")
    script.chmod(0o700)
    claude.options, claude.reconciler = ["--deadline", "20"], str(script)
    claude.prompt("p1")
    claude.change()
    assert find_payload(claude.pre("t1") or "") != {}
    assert not running(int(pid.read_text()))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"payload": "\ud800"}, "its payload has a lone surrogate"),
        ({"recovery_required": "a\ud800"}, "its reason has a lone surrogate at character 1"),
        ({"topology_diverged": "x", "copy": "\ud800"}, "topology_diverged"),
    ],
)
def test_an_answer_that_cannot_be_recorded_is_the_reconcilers_failure(
    claude: Claude, tmp_path: Path, answer: dict[str, str], told: str
) -> None:
    text = json.dumps({"operation": "o", "commit": "c", "anchor": "a", **answer})
    (tmp_path / "reconcile.py").write_text(f"print({text!r})")
    claude.prompt("p1")
    claude.change()
    denial = claude.pre("t1") or ""
    assert told in denial
    assert f" {claude.log} " in denial


@pytest.mark.parametrize("payload", ["", "\ud800", None, 5])
def test_a_reconciler_in_python_that_answers_nonsense_lets_nothing_through(tmp_path: Path, payload: Any) -> None:
    with EventLog.open(tmp_path / "log") as log:
        desk = Deliveries(log, lambda task: Reconciled("op", "c", payload, "a"))
        desk.detect("web", base="b", triggers=["op"])
        answer = desk.admit(Caller("web", "1:1"), "t1")
        assert isinstance(answer, FailClosed)
        assert "its payload" in answer.reason
        assert desk.state.intents["web#1"].state is SyncState.RECONCILING


def test_a_reconciler_in_python_that_forgets_its_answer(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        desk = Deliveries(log, lambda task: None)  # type: ignore[arg-type,return-value]
        desk.detect("web", base="b", triggers=["op"])
        answer = desk.admit(Caller("web", "1:1"), "t1")
        assert isinstance(answer, FailClosed)
        assert "NoneType" in answer.reason


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
