"""The launcher: what it decides, what it makes of a command line, and the real thing with a fake agent, killed at every point."""

from __future__ import annotations

import json
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.projections import DELIVERIES, SyncState, fold
from eventlog.projections.delivery_words import RestartStartup
from eventlog.recovery import Caller, Deliveries, DeliveryLimits, Reconciled, SyncTask
from eventlog.recovery.delivery_words import launcher_name
from eventlog.recovery.harness import FakeHarness, find_payload, find_startup
from eventlog.recovery.harness import launch as do
from eventlog.recovery.harness.agent_process import alive
from eventlog.recovery.harness.commandline import BadCommand, parse
from eventlog.recovery.harness.heard import SESSION_ENDED
from eventlog.recovery.harness.process import process_key
from eventlog.recovery.launcher import GO_ON
from eventlog.testing import record_points, run_child

FAKE = Path(__file__).with_name("fake_agent.py")
PAYLOAD = "a.txt changed under you.\r\n\te\u0301 \U0001f600 <system-reminder> 'quotes' $HOME `x` \\ "


def tell(task: SyncTask) -> Reconciled:
    return Reconciled("op", "abc", PAYLOAD, "anchor")


# ------------------------------------------------------------------- the decision


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log") as handle:
        yield handle


def blocked(log: EventLog, **limits: int) -> tuple[Deliveries, FakeHarness]:
    """An agent that was given the payload in a batch that nobody reported."""
    desk = Deliveries(log, tell, limits=DeliveryLimits(**limits))
    agent = FakeHarness(desk, "web", "1:1:0")
    agent.prompt("go")
    desk.detect("web", base="b1", triggers=["op-1"])
    agent.turn("a", boundary=False)
    return desk, agent


def restarting(log: EventLog, **limits: int) -> tuple[Deliveries, str]:
    desk, agent = blocked(log, **limits)
    agent.prompt("again")
    return desk, startup(desk).startup_id


def startup(desk: Deliveries) -> RestartStartup:
    proof = desk.state.intents["web#1"].proof
    assert isinstance(proof, RestartStartup)
    return proof


def ask(desk: Deliveries, **seen: Any) -> do.Step:
    return do.next_step(desk.state, "web", do.Seen(**seen))


def test_with_nothing_to_deliver_the_agent_starts_and_its_end_is_the_end(log: EventLog) -> None:
    desk = Deliveries(log, tell)
    assert ask(desk) == do.Launch("own")
    attempt = do.Attempt("own", None)
    assert ask(desk, attempt=attempt) == do.Stay()
    assert ask(desk, attempt=attempt, ended=do.Ended(3)) == do.Leave(3)
    assert ask(desk, attempt=attempt, ended=do.Ended(-9)) == do.Leave(137)
    assert ask(desk, told=15) == do.Leave(143)


def test_at_the_beginning_whoever_is_gone_is_retired_and_whoever_lives_is_left_alone(log: EventLog) -> None:
    desk, _ = blocked(log)
    live = desk.state.threads["web"].live
    assert live is not None
    assert isinstance(ask(desk, alive=True), do.Leave)
    step = ask(desk)
    assert isinstance(step, do.Retire)
    desk.retire_incarnation("web", step.incarnation, step.reason)
    bound = startup(desk)
    assert ask(desk) == do.Launch("own", desk.state.intents["web#1"], bound.startup_id)


def test_an_attempt_of_an_earlier_launcher_gets_new_ids(log: EventLog) -> None:
    desk, id_ = restarting(log)
    assert isinstance(ask(desk, stale=id_), do.Bind)
    desk.bind_restart("web", "another launcher")
    assert startup(desk).startup_id != id_
    assert isinstance(ask(desk, stale=id_), do.Launch)


def test_a_startup_ends_what_runs_unless_it_is_the_one_that_was_launched_with_it(log: EventLog) -> None:
    desk, id_ = restarting(log)
    assert isinstance(ask(desk, attempt=do.Attempt("own", None)), do.End)
    assert ask(desk, attempt=do.Attempt("own", None), told=15) == do.Stay()
    assert isinstance(ask(desk, attempt=do.Attempt("resume", "startup-of-before")), do.End)
    assert ask(desk, attempt=do.Attempt("resume", id_)) == do.Stay()
    assert isinstance(ask(desk, attempt=do.Attempt("resume", id_, late=True)), do.End)
    step = ask(desk, attempt=do.Attempt("own", None), ended=do.Ended(-15, by_us=True))
    assert step == do.Launch("resume", desk.state.intents["web#1"], id_)


@pytest.mark.parametrize(
    ("way", "code", "next_way"),
    [("resume", 1, "anew"), ("resume", -9, "resume"), ("anew", 1, "anew"), ("anew", -9, "anew"), ("own", -9, "own")],
)
def test_an_attempt_that_took_no_first_input_is_tried_again_with_new_ids(log: EventLog, way: Any, code: int, next_way: str) -> None:
    desk, id_ = restarting(log)
    step = ask(desk, attempt=do.Attempt(way, id_), ended=do.Ended(code))
    assert isinstance(step, do.Bind)
    assert step.way == next_way
    desk.bind_restart("web", step.reason)
    again = ask(desk, attempt=do.Attempt(way, id_), ended=do.Ended(code), way=step.way)
    assert isinstance(again, do.Launch)
    assert again.way == next_way


@pytest.mark.parametrize(("way", "code"), [("own", 1), ("own", 2), ("own", 0), ("resume", 127), ("anew", 126)])
def test_what_no_repetition_mends_is_not_repeated(log: EventLog, way: Any, code: int) -> None:
    desk, id_ = restarting(log)
    step = ask(desk, attempt=do.Attempt(way, id_), ended=do.Ended(code))
    assert isinstance(step, do.Leave)
    assert step.code == code
    assert "web#1" in step.note


def test_a_session_that_is_over_is_left_to_end_by_itself(log: EventLog) -> None:
    desk, _ = blocked(log)
    live = desk.state.threads["web"].live
    assert live is not None
    desk.retire_incarnation("web", live, SESSION_ENDED)
    assert startup(desk)
    assert ask(desk, attempt=do.Attempt("own", None)) == do.Stay()
    assert isinstance(ask(desk, attempt=do.Attempt("own", None), ended=do.Ended(0)), do.Leave)
    assert isinstance(ask(desk, attempt=do.Attempt("own", None), ended=do.Ended(0), printing=True), do.Launch)


def test_attempts_are_bounded_and_then_the_line_names_the_command(log: EventLog) -> None:
    desk, _ = restarting(log, restarts_max=2)
    desk.bind_restart("web", "one more")
    desk.bind_restart("web", "too many")
    assert desk.state.intents["web#1"].state is SyncState.RECOVERY_REQUIRED
    step = ask(desk, attempt=do.Attempt("resume", "startup-x"), ended=do.Ended(-15, by_us=True))
    assert isinstance(step, do.Leave)
    assert step.code == 1
    assert "eventlog deliveries resolve LOG web#1 --retry" in step.note
    assert ask(desk) == do.Leave(1, step.note)


def test_hooks_that_bind_more_than_the_launcher_allows_are_stopped_by_it(log: EventLog) -> None:
    desk, _ = restarting(log)
    desk.bind_restart("web", "2")
    desk.bind_restart("web", "3")
    assert isinstance(ask(desk, attempt=do.Attempt("own", None), ended=do.Ended(-15, by_us=True), restarts_max=2), do.Bind)


@pytest.mark.parametrize(
    ("code", "seen", "leaves"),
    [
        (0, {"printing": True}, False),
        (0, {}, True),
        (1, {"printing": True}, True),
        (-9, {}, False),
        (-15, {}, True),
        (-2, {}, True),
        (130, {}, True),
        (-9, {"told": 15}, True),
    ],
)
def test_who_has_quit_is_not_started_again(log: EventLog, code: int, seen: dict[str, Any], leaves: bool) -> None:
    desk, _ = restarting(log)
    step = ask(desk, attempt=do.Attempt("own", None), ended=do.Ended(code), **seen)
    assert isinstance(step, do.Leave if leaves else do.Launch)


def test_a_crash_with_an_unproved_delivery_is_retired_and_a_calm_end_waits_for_the_next_start(log: EventLog) -> None:
    desk, _ = blocked(log)
    calm = ask(desk, attempt=do.Attempt("own", None), ended=do.Ended(0))
    assert isinstance(calm, do.Leave)
    assert "next start" in calm.note
    step = ask(desk, attempt=do.Attempt("own", None), ended=do.Ended(-9))
    assert isinstance(step, do.Retire)
    desk.retire_incarnation("web", step.incarnation, step.reason)
    assert isinstance(ask(desk, attempt=do.Attempt("own", None), ended=do.Ended(-9)), do.Launch)


# ------------------------------------------------------------------- command lines


def again(words: str, **more: Any) -> tuple[list[str], list[str], list[str]]:
    command = parse(shlex.split(words), "FRESH", **more)
    return command.start("X"), command.resume("S", "P"), command.anew("N", "P")


@pytest.mark.parametrize(
    ("words", "start", "resume"),
    [
        ("claude", "claude --session-id FRESH -- X", "claude --resume S -- P"),
        (
            "claude -p 'do it' --settings s.json",
            "claude -p --settings s.json --session-id FRESH -- X",
            "claude -p --settings s.json --resume S -- P",
        ),
        ("claude 'do it'", "claude --session-id FRESH -- X", "claude --resume S -- P"),
        ("claude --continue", "claude --continue -- X", "claude --resume S -- P"),
        ("claude -r old --fork-session hi", "claude -r old --fork-session -- X", "claude --resume S -- P"),
        ("claude --resume=old --model m hi", "claude --model m --resume=old -- X", "claude --model m --resume S -- P"),
        (
            "claude -p --allowedTools Bash Read --add-dir=../x -- hi",
            "claude -p --allowedTools Bash Read --add-dir=../x --session-id FRESH -- X",
            "claude -p --allowedTools Bash Read --add-dir=../x --resume S -- P",
        ),
        ("claude --new-thing v -- hi", "claude --new-thing v --session-id FRESH -- X", "claude --new-thing v --resume S -- P"),
        ("claude -- --strange", "claude --session-id FRESH -- X", "claude --resume S -- P"),
        ("/opt/codex exec --json 'do it'", "/opt/codex exec --json -- X", "/opt/codex exec --json resume S -- P"),
        ("codex -a never exec --json hi", "codex -a never exec --json -- X", "codex -a never exec --json resume S -- P"),
        ("codex -m gpt 'do it'", "codex -m gpt -- X", "codex -m gpt resume S -- P"),
        ("codex exec resume old 'do it'", "codex exec resume old -- X", "codex exec resume S -- P"),
        ("codex exec resume --last", "codex exec resume --last -- X", "codex exec resume S -- P"),
    ],
)
def test_a_replacement_keeps_the_options_and_changes_prompt_and_conversation(words: str, start: str, resume: str) -> None:
    found = again(words)
    assert found[0] == shlex.split(start)
    assert found[1] == shlex.split(resume)


def test_a_new_conversation_gets_an_id_where_that_can_be_chosen() -> None:
    assert again("claude -p -r old hi")[2] == ["claude", "-p", "--session-id", "N", "--", "P"]
    assert again("codex exec --json hi")[2] == ["codex", "exec", "--json", "--", "P"]


@pytest.mark.parametrize(
    ("words", "session", "prompt", "printing"),
    [
        ("claude -p hi", "FRESH", "hi", True),
        ("claude -r old", "old", None, False),
        ("claude --session-id mine hi", "mine", "hi", False),
        ("claude -c hi", None, "hi", False),
        ("claude -r old --fork-session", None, None, False),
        ("codex exec hi", None, "hi", True),
        ("codex resume old", "old", None, False),
    ],
)
def test_what_a_command_line_says(words: str, session: str | None, prompt: str | None, printing: bool) -> None:
    command = parse(shlex.split(words), "FRESH")
    assert (command.session, command.prompt, command.printing) == (session, prompt, printing)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("claude --new-thing hi", "write `--` before the prompt"),
        ("claude one two", "two prompts"),
        ("claude --bare hi", "no hooks"),
        ("claude -p --input-format stream-json", "stream-json"),
        ("claude -w tree", "worktree first"),
        ("codex --worktree hi", "worktree first"),
    ],
)
def test_what_cannot_be_carried_is_refused(words: str, told: str) -> None:
    with pytest.raises(BadCommand, match=told):
        parse(shlex.split(words), "FRESH")


def test_alive_knows_a_process_by_its_start_and_not_by_its_number() -> None:
    key = process_key(os.getpid())
    assert alive(key)
    assert not alive(key.replace(":", ":1", 1))
    assert not alive("pid-1")
    assert not alive(None)


# ------------------------------------------------------------------- the real thing

INTERRUPTED = [["interrupted", ["a", "b"]], ["prompt", "again"], ["calls", ["c"]], ["sleep", 60]]
RESUMED = [["calls", ["x"]], ["stop"]]


class World:
    """A log with a delivery that waits, an agent called `claude`, its settings and its script."""

    def __init__(self, place: Path) -> None:
        self.place, self.log_path = place, place / "log"
        self.home = place / "home"
        self.home.mkdir()
        self.claude = self.program("claude", f'exec {shlex.join([sys.executable, str(FAKE)])} "$@"')
        result = json.dumps({"operation": "op", "commit": "abc", "payload": PAYLOAD, "anchor": "anchor"})
        self.reconciler = self.program("reconciler", f"cat >/dev/null; printf %s {shlex.quote(result)}")
        self.settings = place / "settings.json"
        self.hooks()
        with EventLog.open(self.log_path) as log:
            Deliveries(log).detect("web", base="b1", triggers=["op-1"])

    def program(self, name: str, line: str) -> Path:
        path = self.place / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o700)
        return path

    def hooks(self) -> None:
        words = [sys.executable, "-m", "eventlog.cli", "hook", "claude-code", "--log", str(self.log_path), "--thread", "web"]
        line = shlex.join([*words, "--reconciler", str(self.reconciler)])
        events = ["UserPromptSubmit", "PreToolUse", "PostToolBatch", "Stop", "SessionEnd"]
        self.settings.write_text(
            json.dumps(
                {"hooks": {event: [{"hooks": [{"type": "command", "command": f"{line} || exit 2", "timeout": 60}]}] for event in events}}
            )
        )

    def script(self, start: list[Any]) -> None:
        (self.place / "script.json").write_text(json.dumps({"start": start, "resume": RESUMED, "anew": RESUMED}))

    @property
    def env(self) -> dict[str, str]:
        return {"FAKE_AGENT_HOME": str(self.home), "FAKE_AGENT_SCRIPT": str(self.place / "script.json")}

    def words(self, *more: str) -> list[str]:
        options = ["--log", str(self.log_path), "--thread", "web", "--grace", "3", *more]
        return ["-m", "eventlog.cli", "agent", "run", *options, "--", str(self.claude), "-p", "--settings", str(self.settings), "do it"]

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *self.words(*more)],
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=100,
            cwd=self.place,
        )

    def start(self, **more: Any) -> subprocess.Popen[str]:
        more = {"stderr": subprocess.PIPE, "text": True, **more}
        return subprocess.Popen([sys.executable, *self.words()], env={**os.environ, **self.env}, cwd=self.place, **more)

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.home / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self, there: Callable[[], Any]) -> None:
        while not there():  # the test's own timeout ends this
            time.sleep(0.02)

    @property
    def state(self) -> Any:
        with EventLog.open(self.log_path, read_only=True) as log:
            return fold(DELIVERIES, log)

    def check(self) -> None:
        """Acknowledged, and not without a request of that very process that held the payload before."""
        intent = self.state.intents["web#1"]
        assert intent.state is SyncState.ACKNOWLEDGED
        with EventLog.open(self.log_path, read_only=True) as log:
            [acknowledged] = [event.data for event in log.read(types=["delivery.acknowledged"])]
        process = self.state.incarnations[acknowledged["incarnation"]].process
        pid = int(process.partition(":")[0])
        reads = [request for request in self.lines("requests.jsonl") if request["pid"] == pid]
        assert any(find_payload(text) == {"web#1": intent.sha256} for request in reads for text in request["texts"])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_replacement_resumes_the_conversation_with_the_payload_as_its_first_input(world: World) -> None:
    world.script(INTERRUPTED)
    done = world.run()
    assert done.returncode == 0, done.stderr
    world.check()
    requests = world.lines("requests.jsonl")
    first, last = requests[0], requests[-1]
    assert first["pid"] != last["pid"]
    assert first["session"] == last["session"]
    assert last["argv"][:5] == ["-p", "--settings", str(world.settings), "--resume", first["session"]]
    assert "--session-id" not in last["argv"]
    told = last["argv"][-1]
    assert told.endswith(f"\n\n{GO_ON}")
    assert PAYLOAD in told
    assert find_startup(told) is not None
    assert last["texts"][0] == "do it"
    assert [one["call"].partition("-")[0] for one in world.lines("ran.jsonl")] == ["x"]
    assert "ending the agent" in done.stderr


def test_the_replacement_comes_back_to_the_conversation_that_the_user_went_on_to(world: World) -> None:
    world.script([["clear"], ["prompt", "another thing"], *INTERRUPTED])
    done = world.run()
    assert done.returncode == 0, done.stderr
    world.check()
    first, last = world.lines("requests.jsonl")[0], world.lines("requests.jsonl")[-1]
    assert first["pid"] != last["pid"]
    assert first["session"] == last["session"]
    assert last["texts"][0] == "another thing"


def test_a_conversation_that_was_never_written_begins_anew_with_the_prompt_of_then(world: World) -> None:
    world.script([["forget"], *INTERRUPTED])
    done = world.run()
    assert done.returncode == 0, done.stderr
    assert "No conversation found" in done.stderr
    world.check()
    last = world.lines("requests.jsonl")[-1]
    assert "--resume" not in last["argv"]
    assert last["session"] != world.lines("requests.jsonl")[0]["session"]
    assert last["argv"][-1].endswith("\n\ndo it")


@pytest.mark.parametrize(("act", "code"), [(["exit", 7], 7), (["kill"], 137), (["stop"], 0)])
def test_the_exit_code_is_the_agents(world: World, act: list[Any], code: int) -> None:
    world.settings.write_text("{}")
    world.script([act])
    assert world.run().returncode == code


def test_a_program_that_is_not_there(world: World) -> None:
    world.claude.unlink()
    done = world.run()
    assert done.returncode == 127
    assert "No such file" in done.stderr


def test_being_told_to_leave_is_passed_on_and_starts_no_replacement(world: World) -> None:
    world.script([["interrupted", ["a"]], ["sleep", 60]])
    launcher = world.start()
    world.wait(lambda: (world.state.intents["web#1"]).state is SyncState.DELIVERED)
    launcher.send_signal(signal.SIGTERM)
    _, told = launcher.communicate(timeout=60)
    assert launcher.returncode == 143
    assert "the next start delivers it first" in told
    assert len({request["pid"] for request in world.lines("requests.jsonl")}) == 1
    world.script(RESUMED)
    assert world.run().returncode == 0
    world.check()
    assert world.lines("requests.jsonl")[-1]["argv"][-1].endswith("\n\ndo it"), "the first input, and then the prompt of this start"


def test_a_crashed_agent_with_an_unproved_delivery_is_replaced(world: World) -> None:
    world.script([["interrupted", ["a"]], ["kill"]])
    assert world.run().returncode == 0
    world.check()


def test_what_a_crashed_agent_left_running_is_ended_before_its_replacement(world: World) -> None:
    world.script([["stubborn"], ["calls", ["a"]], ["kill"]])
    done = world.run()
    assert done.returncode == 0, done.stderr
    world.check()
    [tool] = world.lines("tools.jsonl")
    assert not running(tool["pid"])


def test_attempts_are_bounded_then_only_a_person_goes_on(world: World) -> None:
    world.script(INTERRUPTED)
    world.claude.write_text(
        f'#!/bin/sh\n[ -e {world.place}/once ] && kill -9 $$\n: > {world.place}/once\nexec {shlex.join([sys.executable, str(FAKE)])} "$@"\n'
    )
    done = world.run("--max-restarts", "2")
    assert done.returncode == 1
    assert world.state.intents["web#1"].state is SyncState.RECOVERY_REQUIRED
    assert world.state.intents["web#1"].restarts == 2
    line = done.stderr.splitlines()[-1]
    assert f"eventlog deliveries resolve {world.log_path} web#1 --retry" in line
    assert world.run().returncode == 1, "and so says every start"
    with EventLog.open(world.log_path) as log:
        Deliveries(log).resolve("web#1", "retry", reason="mended", actor="p")
    world.claude.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(FAKE)])} "$@"\n')
    world.script([["calls", ["y"]], ["calls", ["z"]], ["stop"]])
    assert world.run().returncode == 0
    world.check()


def test_a_thread_has_one_launcher_and_one_agent(world: World) -> None:
    world.script([["stop"]])
    with EventLog.open(world.log_path) as log:
        owner = log.own(launcher_name("web"))
        assert owner is not None
        with owner:
            done = world.run()
        assert (done.returncode, world.lines("requests.jsonl")) == (4, [])
        Deliveries(log).start_incarnation(Caller("web", process_key(os.getpid())))
        done = world.run("--grace", "0.2")
    assert (done.returncode, world.lines("requests.jsonl")) == (4, [])
    assert f"process {os.getpid()}" in done.stderr


def test_an_agent_that_ignores_sigterm_is_ended_with_all_that_it_started(world: World) -> None:
    world.script([["stubborn"], *INTERRUPTED])
    assert world.run("--grace", "0.5").returncode == 0
    world.check()
    [tool] = world.lines("tools.jsonl")
    assert not running(tool["pid"])


def test_an_agent_does_not_outlive_its_launcher(world: World) -> None:
    world.script([["stop"], ["sleep", 60]])
    launcher = world.start()
    world.wait(lambda: world.lines("requests.jsonl"))
    launcher.kill()
    launcher.communicate()
    pid = world.lines("requests.jsonl")[0]["pid"]
    world.wait(lambda: not running(pid))


def running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_a_payload_that_no_command_line_carries_goes_as_a_pointer(world: World) -> None:
    result = json.dumps({"operation": "op", "commit": "abc", "payload": "a\0b", "anchor": "anchor"})
    world.program("reconciler", f"cat >/dev/null; printf %s {shlex.quote(result)}")
    world.script(INTERRUPTED)
    done = world.run()
    assert done.returncode == 0, done.stderr
    world.check()


def test_a_large_payload_goes_as_a_pointer_to_a_file(world: World) -> None:
    payload = "x\u00e9" * 70_000
    (world.place / "result").write_text(json.dumps({"operation": "op", "commit": "abc", "payload": payload, "anchor": "anchor"}))
    world.program("reconciler", f"cat >/dev/null; cat {shlex.quote(str(world.place / 'result'))}")
    world.script(INTERRUPTED)
    done = world.run()
    assert done.returncode == 0, done.stderr
    world.check()
    assert len(world.lines("requests.jsonl")[-1]["argv"][-1]) < 10_000


def test_codex_is_resumed_by_the_session_that_its_hooks_told(world: World) -> None:
    codex = world.program("codex", f'exec {shlex.join([sys.executable, str(FAKE)])} "$@"')
    world.settings.write_text(world.settings.read_text().replace("claude-code", "codex"))
    world.script([["calls", ["a"]], ["calls", ["b"]], ["sleep", 60]])  # no rollout file: no boundary is proved
    words = world.words()
    words[words.index(str(world.claude)) :] = [str(codex), "exec", "--settings", str(world.settings), "--", "do it"]
    done = subprocess.run([sys.executable, *words], env={**os.environ, **world.env}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    world.check()
    first, last = world.lines("requests.jsonl")[0], world.lines("requests.jsonl")[-1]
    assert last["argv"][:-1] == ["exec", "--settings", str(world.settings), "resume", first["session"], "--"]


# ------------------------------------------------------------------- killed at every point


# (what an earlier launcher left behind, the point, the how manyeth time); a test below holds that these are all the points.
CRASHED = [["interrupted", ["a"]], ["kill"]]
POINTS: list[tuple[list[Any], str, int]] = [
    (INTERRUPTED, "launcher-owned", 1),
    (INTERRUPTED, "launcher-before-start", 1),
    (INTERRUPTED, "launcher-after-start", 1),
    (INTERRUPTED, "launcher-before-end", 1),
    (INTERRUPTED, "launcher-after-term", 1),
    (INTERRUPTED, "launcher-after-end", 1),
    (INTERRUPTED, "launcher-before-start", 2),
    (INTERRUPTED, "launcher-after-start", 2),
    (INTERRUPTED, "launcher-before-leave", 1),
    (CRASHED, "before-retire", 1),
    (CRASHED, "after-retire", 1),
]


def test_these_are_all_the_points_that_a_launcher_passes(world: World) -> None:
    world.script(INTERRUPTED)
    passed = {point for point, _ in record_points(world.words(), env=world.env)}
    assert passed == {point for _, point, _ in POINTS if point.startswith("launcher-")}


def finished(world: World) -> None:
    """Start the launcher again, as a person would, until the delivery is acknowledged; each start has to end well."""
    world.script([["calls", ["y"]], ["calls", ["z"]], ["stop"]])  # where nothing was prepared yet, the first call is blocked
    for _ in range(2):
        if world.state.intents["web#1"].state is not SyncState.ACKNOWLEDGED:
            done = world.run()
            assert done.returncode == 0, done.stderr
    world.check()


@pytest.mark.parametrize(("script", "point", "nth"), POINTS, ids=[f"{point}-{nth}" for _, point, nth in POINTS])
def test_a_launcher_that_is_killed_anywhere_and_started_again_loses_nothing(world: World, script: list[Any], point: str, nth: int) -> None:
    world.script(script)
    crashed = run_child(world.words(), env=world.env, crash_at=point, nth=nth)
    assert crashed.killed, crashed.stderr
    finished(world)


@pytest.mark.parametrize("point", ["before-bind-restart", "after-bind-restart"])
def test_a_launcher_that_is_killed_while_it_mends_what_another_left_behind(world: World, point: str) -> None:
    world.script(INTERRUPTED)
    assert run_child(world.words(), env=world.env, crash_at="launcher-before-start", nth=2).killed
    void = world.state.intents["web#1"].proof.startup_id
    assert run_child(world.words(), env=world.env, crash_at=point).killed
    finished(world)
    assert void not in json.dumps(world.lines("requests.jsonl")), "an id that another process may have is not used"


# ------------------------------------------------------------------- terminals


class Console:
    """The launcher, or a shell, on a terminal of its own, as the leader of its session; `text` is what it has shown since `until`."""

    def __init__(self, world: World, *argv: str) -> None:
        self.text = ""
        self.words = [sys.executable, *(word for word in world.words() if word != "-p")]
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(world.place)
            os.environ.update(world.env, PS1="now> ")
            argv = argv or tuple(self.words)
            os.execv(argv[0], argv)

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def until(self, there: str) -> str:
        while there not in self.text:
            try:
                data = os.read(self.fd, 4096)
            except OSError as error:
                raise AssertionError(f"{there!r} never came: {self.text}") from error
            self.text += data.decode(errors="replace")
        shown, _, self.text = self.text.partition(there)
        return shown

    def code(self) -> int:
        with suppress(OSError):
            while data := os.read(self.fd, 4096):
                self.text += data.decode(errors="replace")
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def test_the_terminal_and_its_keys_are_the_agents(world: World) -> None:
    world.settings.write_text("{}")
    world.script([["terminal"], ["say", "ready"], ["sleep", 60]])
    console = Console(world)
    assert "terminal: ours" in console.until("ready")
    console.type("\x03")
    assert console.code() == 128 + signal.SIGINT
    assert "KeyboardInterrupt" in console.text, "it went to the agent, a Python program"
    assert "eventlog.recovery" not in console.text, "and not to the launcher"


def test_a_terminal_that_a_killed_agent_left_raw_is_put_in_order(world: World) -> None:
    world.settings.write_text("{}")
    world.script([["raw"], ["say", "ready"], ["sleep", 0.2], ["kill"]])
    console = Console(world)
    before = termios.tcgetattr(console.fd)[3] & (termios.ECHO | termios.ICANON)
    console.until("ready")
    assert before == termios.ECHO | termios.ICANON
    assert termios.tcgetattr(console.fd)[3] & (termios.ECHO | termios.ICANON) == 0
    world.wait(lambda: termios.tcgetattr(console.fd)[3] & (termios.ECHO | termios.ICANON) == before)
    assert console.code() == 137


def test_a_user_who_quits_before_the_delivery_is_proved_gets_no_replacement(world: World) -> None:
    world.script([["interrupted", ["a"]]])  # and then a SessionEnd, whose hook binds the restart while the process still runs
    console = Console(world)
    assert console.code() == 0
    assert "the next start delivers it first" in console.text
    assert isinstance(world.state.intents["web#1"].proof, RestartStartup)
    assert len(world.lines("requests.jsonl")) == 1
    world.script([["stop"]])
    assert world.run().returncode == 0
    world.check()


def test_ctrl_z_stops_both_and_fg_continues_both(world: World) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here: nobody to stop for")
    world.settings.write_text("{}")
    ticks = [[["say", f"tick {number}"], ["sleep", 0.2]] for number in range(1, 10)]
    world.script([act for pair in ticks for act in pair])
    console = Console(world, bash, "--norc", "--noprofile", "-i")
    console.until("now> ")
    console.type(f"{shlex.join(console.words)}\n")
    console.until("tick 1")
    console.type("\x1a")
    console.until("Stopped")
    console.until("now> ")
    console.type("echo $((40 + 2))\n")
    assert "tick" not in console.until("42"), "the shell has the terminal, and the agent stands still"
    console.type("fg\n")
    console.until("tick 9")
    console.until("now> ")
    console.type("echo code $?; exit\n")
    console.until("code 0")
    assert console.code() == 0
