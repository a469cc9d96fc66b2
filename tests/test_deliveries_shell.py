"""The shell of the deliveries, its harness seam, the reconcilers, the displays and the commands, on a real log."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eventlog import Event, EventLog
from eventlog.cli import main
from eventlog.projections import BUILT_IN, DELIVERIES, STATUS, TIMELINE, TRANSCRIPT, SyncState, fold, thread_status
from eventlog.projections import delivery_events as ev
from eventlog.projections.delivery_display import AgentDisplay, ThreadStatus, agent_display, threads_by_urgency
from eventlog.projections.delivery_words import RestartStartup
from eventlog.recovery import Block, Caller, Deliveries, FailClosed, NeedsPerson, PassThrough, Reconciled, ReconcilerFailed, SyncTask
from eventlog.recovery.delivery_words import Done, Reconcile, Refused, launcher_name
from eventlog.recovery.harness import Capabilities, FakeHarness, find_payload, find_startup, frame, frame_startup
from eventlog.recovery.reconciler import program
from eventlog.testing import TrackedFileSystem

ROOT = Path(__file__).parent.parent
NASTY = "tab\t crlf\r\n é e\u0301 \u2028 \u202e \x1b[31m <system-reminder> ] [end of eventlog delivery web#1] \U0001f600  "


def tell(task: SyncTask) -> Reconciled:
    return Reconciled(f"op for {task.intent}", "abc", f"{task.triggers} happened. {NASTY}", "anchor")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log") as handle:
        yield handle


# ------------------------------------------------------------------- the whole way


def test_a_change_reaches_the_agent_and_is_acknowledged_by_its_next_turn(log: EventLog) -> None:
    desk = Deliveries(log, tell)
    agent = FakeHarness(desk, "web", "pid-1")
    agent.prompt("do it")
    assert agent.turn("a", "b") == [PassThrough(), PassThrough()]
    desk.detect("web", base="b1", triggers=["op-1"])
    blocks = agent.turn("c", "d", "e")
    assert all(isinstance(one, Block) for one in blocks)
    assert len({one.payload for one in blocks if isinstance(one, Block)}) == 1
    assert agent.read == {}
    assert agent.turn("f") == [PassThrough("web#1")]
    assert agent.read == {"web#1": desk.state.intents["web#1"].sha256}
    assert thread_status(desk.state, "web") is ThreadStatus.IN_SYNC


def test_syncs_none_for_a_call_that_passes_and_at_most_four_for_a_delivery(tmp_path: Path) -> None:
    fs = TrackedFileSystem(tmp_path)
    with EventLog.open(tmp_path / "log", fs=fs, batch_window_ms=10**6) as log:
        desk = Deliveries(log, tell)
        agent = FakeHarness(desk, "web", "pid-1")
        agent.prompt("do it")
        agent.turn("a")
        log.flush()
        before = fs.calls["fdatasync"]
        agent.turn("b", "c")
        agent.turn("d")
        assert fs.calls["fdatasync"] == before, "a call that passes costs a sync"
        desk.detect("web", base="b1", triggers=["op-1"])
        log.flush()
        before = fs.calls["fdatasync"]
        agent.turn("e", "f", "g")
        assert fs.calls["fdatasync"] - before <= 4, "bind, materialize, mark, completion"
        before = fs.calls["fdatasync"]
        assert agent.turn("h") == [PassThrough("web#1")]
        assert fs.calls["fdatasync"] == before, "an acknowledgement costs a sync"


def test_the_block_is_durable_before_the_reconciler_may_touch_a_file(tmp_path: Path) -> None:
    fs = TrackedFileSystem(tmp_path)
    with EventLog.open(tmp_path / "log", fs=fs, batch_window_ms=10**6) as log:
        seen: list[list[str]] = []

        def look(task: SyncTask) -> Reconciled:
            with EventLog.open(tmp_path / "log", read_only=True) as other:
                before = fs.calls["fdatasync"]
                seen.append([event.type for event in other.read(streams={task.intent})])
                assert fs.calls["fdatasync"] == before
            return tell(task)

        desk = Deliveries(log, look)
        desk.detect("web", base="b1", triggers=["op-1"])
        before = fs.calls["fdatasync"]
        decided = desk.pre_tool_use(Caller("web", "pid-1"), "a")
        assert isinstance(decided, Reconcile)
        assert fs.calls["fdatasync"] == before + 1
        desk.admit(Caller("web", "pid-1"), "a")
        assert seen == [[ev.DETECTED, ev.BLOCKED]]


def test_eight_siblings_at_once_get_the_same_bytes_and_one_reconciler_runs(log: EventLog) -> None:
    ran = []
    go = threading.Event()

    def slow(task: SyncTask) -> Reconciled:
        ran.append(task)
        go.wait(10)
        return tell(task)

    Deliveries(log).detect("web", base="b1", triggers=["op-1"])
    answers: list[Any] = []
    desks = [Deliveries(log, slow) for _ in range(8)]
    threads = [
        threading.Thread(target=lambda desk=desk, n=n: answers.append(desk.admit(Caller("web", "pid-1"), f"c{n}")))
        for n, desk in enumerate(desks)
    ]
    for thread in threads:
        thread.start()
    while not ran:
        log.wait(int(log.head), 0.01)
    go.set()
    for thread in threads:
        thread.join(30)
    assert len(ran) == 1
    assert len(answers) == 8
    assert {type(one) for one in answers} == {Block}
    assert len({one.payload for one in answers}) == 1


def test_a_sibling_that_waits_too_long_fails_closed(log: EventLog) -> None:
    Deliveries(log).detect("web", base="b1", triggers=["op-1"])
    desk = Deliveries(log, tell, wait_s=0.05)
    assert isinstance(desk.pre_tool_use(Caller("web", "pid-1"), "a"), Reconcile)
    owner = log.own("reconciler:web#1")  # somebody alive is at it, and does not come to an end
    assert owner is not None
    with owner:
        answer = desk.admit(Caller("web", "pid-1"), "b")
    assert isinstance(answer, FailClosed)
    assert f"eventlog deliveries show {log.path} web#1" in answer.what_to_do
    assert isinstance(desk.admit(Caller("web", "pid-1"), "b"), Block), "its owner is gone: the next one takes over"


def test_a_base_that_moves_while_it_is_reconciled_is_reconciled_again(log: EventLog) -> None:
    bases = []

    def moving(task: SyncTask) -> Reconciled:
        bases.append(task.base)
        if len(bases) == 1:
            desk.detect("web", base="b2", triggers=["op-2"])
        return tell(task)

    desk = Deliveries(log, moving)
    desk.detect("web", base="b1", triggers=["op-1"])
    answer = desk.admit(Caller("web", "pid-1"), "a")
    assert isinstance(answer, Block)
    assert bases == ["b1", "b2"]
    assert "op-2" in answer.payload


@pytest.mark.parametrize("wrong", [lambda task: 1 / 0, None])
def test_a_reconciler_that_fails_lets_nobody_through(log: EventLog, wrong: Any) -> None:
    desk = Deliveries(log, wrong)
    desk.detect("web", base="b1", triggers=["op-1"])
    answer = desk.admit(Caller("web", "pid-1"), "a")
    assert isinstance(answer, FailClosed)
    assert desk.state.intents["web#1"].state is SyncState.RECONCILING
    assert isinstance(Deliveries(log, tell).admit(Caller("web", "pid-1"), "b"), Block)


def test_a_lost_boundary_then_a_restart_through_the_launcher(log: EventLog) -> None:
    desk = Deliveries(log, tell)
    agent = FakeHarness(desk, "web", "pid-1")
    agent.prompt("do it")
    desk.detect("web", base="b1", triggers=["op-1"])
    agent.turn("a", boundary=False)
    owner = log.own(launcher_name("web"))
    assert owner is not None
    with owner:
        agent.prompt("and now?")
        answer = agent.turn("b")[0]
        assert isinstance(answer, FailClosed)
        assert "launcher" in answer.what_to_do
        stranger = FakeHarness(desk, "web", "pid-2")
        assert isinstance(stranger.turn("c")[0], FailClosed), "it is not the one that the launcher starts"
        replacement = FakeHarness(desk, "web", "pid-3", session=agent.session)
        replacement.startup()
        assert desk.state.intents["web#1"].state is SyncState.DELIVERED
        assert replacement.turn("d") == [PassThrough("web#1")]
    assert "web#1" in replacement.read


def test_a_harness_that_says_no_gets_the_safe_way(log: EventLog) -> None:
    desk = Deliveries(log, tell)
    desk.detect("web", base="b1", triggers=["op-1"])
    plain = FakeHarness(desk, "web", "pid-1", Capabilities(startup_delivery=True))
    plain.prompt("go")
    assert isinstance(plain.turn("a")[0], FailClosed)
    other = FakeHarness(desk, "web", "pid-2", Capabilities(startup_delivery=True))
    other.startup()
    assert other.turn("b") == [PassThrough("web#1")]
    desk.detect("mute", base="b1", triggers=["op-1"])
    mute = FakeHarness(desk, "mute", "pid-3", Capabilities())
    answer = mute.turn("a")[0]
    assert isinstance(answer, FailClosed)
    assert "deliveries resolve" in answer.what_to_do


# ------------------------------------------------------------------- frames


@pytest.mark.parametrize("payload", ["x", NASTY, "", "[eventlog delivery web#1 chars=1 sha256=" + "0" * 64 + "]\nx"])
def test_a_frame_is_found_in_whatever_is_put_around_it_and_only_whole(payload: str) -> None:
    text = frame("web#1", payload)
    assert frame("web#1", payload) == text
    for around in (text, f"PreToolUse:Bash hook error: {text}", f"blocked: {text}. Command: ls"):
        assert find_payload(around) == {"web#1": ev.digest(payload)}
    for broken in (text[:-1], text.replace("delivery", "delivry"), text[5:], text.replace("\n", "\r\n")):
        assert find_payload(broken) == {}
    assert find_startup(text) is None
    assert find_startup(f"go on. {frame_startup('web#1', payload, 'startup-1')}  ") == ("web#1", "startup-1")


# ------------------------------------------------------------------- reconcilers


def task() -> SyncTask:
    return SyncTask("web#1", "web", "b1", ("op-1",))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", f"import json, sys\ntask = json.load(sys.stdin)\n{code}"]


def test_a_program_gets_the_task_and_gives_the_result() -> None:
    code = (
        "print(json.dumps({'operation': task['intent'], 'commit': task['base'], 'payload': task['triggers'][0], 'anchor': task['thread']}))"
    )
    assert program(python(code))(task()) == Reconciled("web#1", "b1", "op-1", "web")
    assert program(python("print(json.dumps({'recovery_required': 'dirty', 'copy': 'ref'}))"))(task()) == NeedsPerson("dirty", "ref")
    assert type(program(python("print(json.dumps({'topology_diverged': 'x'}))"))(task())).__name__ == "Diverged"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("sys.exit(3)", "exit code 3"),
        ("print('no')", "JSON"),
        ("print('[]')", "JSON"),
        ("print(json.dumps({'operation': 'o', 'payload': ''}))", "commit, payload, anchor"),
        ("import time; time.sleep(60)", "no answer"),
    ],
)
def test_a_program_that_does_not_answer_is_a_failure(code: str, words: str) -> None:
    with pytest.raises(ReconcilerFailed, match=words):
        program(python(code), timeout_s=1.5)(task())


def test_a_program_that_is_not_there_and_a_shell_line() -> None:
    with pytest.raises(ReconcilerFailed, match="cannot be run"):
        program(["/nonexistent/program"])(task())
    with pytest.raises(ValueError, match="list of words"):
        program("rm -rf /")


# ------------------------------------------------------------------- the worktrees example


def example() -> Any:
    spec = util.spec_from_file_location("worktrees_reconciler", ROOT / "examples" / "worktrees" / "reconciler.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Trees:
    """A repository with a parent branch, and a child's worktree on a branch of its own."""

    def __init__(self, place: Path) -> None:
        self.parent, self.child = place / "parent", place / "child"
        subprocess.run(["git", "init", "-q", "-b", "main", self.parent], check=True)
        for key, value in (("user.name", "t"), ("user.email", "t@localhost"), ("commit.gpgsign", "false")):
            self.git(self.parent, "config", key, value)
        self.commit(self.parent, "a.txt", "one\n")
        self.git(self.parent, "worktree", "add", "-q", "-b", "work", str(self.child))

    def git(self, tree: Path, *args: str) -> str:
        return subprocess.run(["git", "-C", tree, *args], check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, tree: Path, name: str, text: str) -> str:
        (tree / name).write_text(text)
        self.git(tree, "add", name)
        self.git(tree, "commit", "-q", "-m", f"change {name}")
        return self.git(tree, "rev-parse", "HEAD")


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path)


def test_a_clean_worktree_is_fast_forwarded_and_the_payload_names_commits_and_files(trees: Trees, log: EventLog) -> None:
    base = trees.commit(trees.parent, "a.txt", "two\n")
    desk = Deliveries(log, program([sys.executable, str(ROOT / "examples" / "worktrees" / "reconciler.py"), str(trees.child)]))
    desk.detect("web", base=base, triggers=[base])
    answer = desk.admit(Caller("web", "pid-1"), "a")
    assert isinstance(answer, Block), answer
    assert (trees.child / "a.txt").read_text() == "two\n"
    assert base[:7] in answer.payload
    assert "a.txt" in answer.payload
    assert "1 insertion" in answer.payload
    intent = desk.state.intents["web#1"]
    assert (intent.commit, intent.operation) == (base, f"fast-forward {trees.git(trees.parent, 'rev-parse', 'HEAD^')}..{base}")


def test_a_dirty_worktree_may_be_left_as_it_is_and_its_agent_told(trees: Trees) -> None:
    base = trees.commit(trees.parent, "a.txt", "two\n")
    (trees.child / "a.txt").write_text("mine, not committed\n")
    module = example()
    task = SyncTask("web#1", "web", base, (base,))
    told = module.reconcile(trees.child, task, tell=True)
    assert told == module.reconcile(trees.child, task, tell=True)
    assert "not committed" in told.payload
    assert base in told.payload
    assert told.commit == trees.git(trees.child, "rev-parse", "HEAD")
    assert (trees.child / "a.txt").read_text() == "mine, not committed\n"
    command = [sys.executable, str(ROOT / "examples" / "worktrees" / "reconciler.py"), "--tell", str(trees.child)]
    assert program(command)(task) == told


def test_a_rebase_that_the_agent_is_in_is_not_thrown_away(trees: Trees) -> None:
    trees.commit(trees.child, "a.txt", "mine\n")
    first = trees.commit(trees.parent, "a.txt", "theirs\n")
    stopped = subprocess.run(["git", "-C", trees.child, "rebase", first], capture_output=True, check=False)
    assert stopped.returncode != 0  # in conflict, which the agent resolves now
    (trees.child / "a.txt").write_text("both\n")
    trees.git(trees.child, "add", "a.txt")
    base = trees.commit(trees.parent, "b.txt", "more\n")
    module = example()
    result = module.reconcile(trees.child, SyncTask("web#1", "web", base, (base,)))
    assert isinstance(result, NeedsPerson)
    assert module.in_rebase(trees.child)
    assert (trees.child / "a.txt").read_text() == "both\n"
    assert trees.git(trees.child, "show", f"{result.copy}:a.txt") == "both"


def test_own_commits_are_rebased_and_a_second_run_says_the_same(trees: Trees) -> None:
    trees.commit(trees.child, "mine.txt", "mine\n")
    base = trees.commit(trees.parent, "a.txt", "two\n")
    module = example()
    first = module.reconcile(trees.child, SyncTask("web#1", "web", base, (base,)))
    assert first == module.reconcile(trees.child, SyncTask("web#1", "web", base, (base,)))
    assert first.operation.startswith("rebase ")
    assert (trees.child / "mine.txt").read_text() == "mine\n"
    assert (trees.child / "a.txt").read_text() == "two\n"


def test_edits_are_saved_and_left_alone_and_a_person_decides(trees: Trees, log: EventLog) -> None:
    base = trees.commit(trees.parent, "a.txt", "two\n")
    (trees.child / "a.txt").write_text("half done\n")
    (trees.child / "new.txt").write_text("not tracked\n")
    desk = Deliveries(log, example().reconciler(trees.child))
    desk.detect("web", base=base, triggers=[base])
    answer = desk.admit(Caller("web", "pid-1"), "a")
    assert isinstance(answer, FailClosed)
    intent = desk.state.intents["web#1"]
    assert intent.state is SyncState.RECOVERY_REQUIRED
    assert (trees.child / "a.txt").read_text() == "half done\n"
    assert intent.saved_copy is not None
    assert trees.git(trees.child, "show", f"{intent.saved_copy}:a.txt") == "half done"
    assert trees.git(trees.child, "show", f"{intent.saved_copy}:new.txt") == "not tracked"
    trees.git(trees.child, "checkout", "-q", "a.txt")
    (trees.child / "new.txt").unlink()
    assert isinstance(desk.resolve("web#1", "retry", reason="kept the copy", actor="ann"), Done)
    assert isinstance(desk.admit(Caller("web", "pid-1"), "b"), Block)


def test_a_conflict_needs_a_person_and_strangers_have_diverged(trees: Trees) -> None:
    module = example()
    trees.commit(trees.child, "a.txt", "mine\n")
    mine = trees.git(trees.child, "rev-parse", "HEAD")
    base = trees.commit(trees.parent, "a.txt", "theirs\n")
    result = module.reconcile(trees.child, SyncTask("web#1", "web", base, (base,)))
    assert isinstance(result, NeedsPerson)
    assert trees.git(trees.child, "rev-parse", "HEAD") == mine
    assert trees.git(trees.child, "status", "--porcelain") == ""
    trees.git(trees.parent, "checkout", "-q", "--orphan", "other")
    stranger = trees.commit(trees.parent, "b.txt", "b\n")
    assert type(module.reconcile(trees.child, SyncTask("web#2", "web", stranger, (stranger,)))).__name__ == "Diverged"


# ------------------------------------------------------------------- displays and commands


@pytest.fixture
def three(log: EventLog) -> EventLog:
    """`calm` is in sync, `web` has a delivery under way, `bad` needs a person."""
    desk = Deliveries(log, tell)
    FakeHarness(desk, "calm", "pid-1").turn("a")
    desk.detect("web", base="b1", triggers=["op-1"])
    web = FakeHarness(desk, "web", "pid-2")
    web.prompt("go")
    web.turn("a")
    bad = Deliveries(log, lambda task: NeedsPerson("dirty \x1b[31m", "ref"))
    bad.detect("bad", base="b1", triggers=["op-1"])
    bad.admit(Caller("bad", "pid-3"), "a")
    return log


def test_threads_are_shown_blocking_first(three: EventLog) -> None:
    state = fold(DELIVERIES, three)
    assert threads_by_urgency(state) == ["bad", "web", "calm"]
    assert [thread_status(state, name).value for name in ("bad", "web", "calm", "nobody")] == [
        "conflicted",
        "pending",
        "in sync",
        "in sync",
    ]
    assert [agent_display(state, name) for name in ("bad", "web", "nobody")] == [
        AgentDisplay.BLOCKED,
        AgentDisplay.BLOCKED,
        AgentDisplay.FINISHED,
    ]
    desk = Deliveries(three, tell)
    agent = FakeHarness(desk, "calm", "pid-1")
    agent.prompt("go")
    agent.turn("b")
    assert agent_display(desk.state, "calm") is AgentDisplay.WORKING
    agent.stop()
    assert agent_display(desk.state, "calm") is AgentDisplay.IDLE
    desk.retire_incarnation("calm", str(desk.state.threads["calm"].live), "it ended")
    assert agent_display(desk.state, "calm") is AgentDisplay.FINISHED


def test_the_transcript_has_one_row_for_each_intent_however_often_it_is_delivered(log: EventLog) -> None:
    desk = Deliveries(log, tell)
    agent = FakeHarness(desk, "web", "pid-1")
    agent.prompt("go")
    desk.detect("web", base="b1", triggers=["op-1"])
    assert fold(TRANSCRIPT, log)["rows"] == {}
    agent.turn("a", boundary=False)
    agent.turn("b", boundary=False)
    again = FakeHarness(desk, "web", "pid-2")
    again.turn("c")
    again.turn("d")
    rows = fold(TRANSCRIPT, log)["rows"]
    assert list(rows) == ["cascade:web#1"]
    intent = desk.state.intents["web#1"]
    assert (rows["cascade:web#1"]["sha256"], rows["cascade:web#1"]["delivered_ns"]) == (intent.sha256, intent.delivered_ns)


def test_a_transcript_that_fails_touches_no_delivery(log: EventLog) -> None:
    desk = Deliveries(log, tell)
    agent = FakeHarness(desk, "web", "pid-1")
    agent.prompt("go")
    desk.detect("web", base="b1", triggers=["op-1"])
    agent.turn("a")
    broken = type(TRANSCRIPT)("transcript", 1, {}, {ev.MARKED: lambda state, event: 1 / 0})  # type: ignore[type-var]
    with pytest.raises(Exception, match="ZeroDivisionError"):
        fold(broken, log)
    assert agent.turn("b") == [PassThrough("web#1")]


def test_the_timeline_says_what_happened_in_order(three: EventLog) -> None:
    entries = fold(TIMELINE, three)["web#1"]
    assert [one["type"] for one in entries] == [ev.DETECTED, ev.BLOCKED, ev.MATERIALIZED, ev.MARKED, ev.COMPLETED]
    assert not any("payload" in one for one in entries)


def run(*args: Any) -> Any:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_list_show_and_resolve(three: EventLog) -> None:
    listed = run("deliveries", "list", three.path)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["INTENT", "web#1", "bad#1"]
    objects = [
        json.loads(line) for line in run("deliveries", "list", three.path, "--json", "--state", "recovery_required").stdout.splitlines()
    ]
    assert [(one["id"], one["saved_copy"]) for one in objects] == [("bad#1", "ref")]
    shown = run("deliveries", "show", three.path, "bad#1")
    assert "\x1b" not in shown.stdout
    assert "recovery_required" in shown.stdout
    assert json.loads(run("deliveries", "show", three.path, "web#1", "--json").stdout)["intent"]["proof"]["mode"] == "SoftBatch"
    assert run("deliveries", "show", three.path, "web#9").exit_code == 2
    assert run("deliveries", "show", three.path, "web#1", "--startup").exit_code == 1
    assert run("deliveries", "resolve", three.path, "bad#1", "--reason", "r").exit_code == 2
    assert run("deliveries", "resolve", three.path, "web#1", "--retry", "--reason", "r").exit_code == 1
    assert run("deliveries", "resolve", three.path, "bad#1", "--retry", "--reason", "r", "--version", "1").exit_code == 1
    done = run("deliveries", "resolve", three.path, "bad#1", "--retry", "--reason", "cleaned", "--json")
    assert json.loads(done.stdout)["state"] == "detected"
    assert run("deliveries", "resolve", three.path, "web#1", "--drop", "--reason", "told her").stdout == "web#1 is superseded\n"


def test_status_shows_threads_blocking_first_and_answers_with_its_code(three: EventLog) -> None:
    answer = run("status", three.path)
    assert answer.exit_code == 1
    shown = [line for line in answer.stdout.splitlines() if line.startswith(("conflicted", "pending"))]
    assert shown == ["conflicted: bad, its agent is blocked", "pending: web, its agent is blocked"]
    assert "eventlog deliveries resolve" in answer.stdout
    told = json.loads(run("status", three.path, "--json").stdout)
    assert [one["thread"] for one in told["threads"]] == ["bad", "web", "calm"]
    assert [one["id"] for one in told["waiting"]] == ["bad#1", "web#1"]


def test_startup_prints_the_bytes_that_a_replacement_accepts(log: EventLog) -> None:
    desk = Deliveries(log, tell)
    agent = FakeHarness(desk, "web", "pid-1")
    agent.prompt("go")
    desk.detect("web", base="b1", triggers=["op-1"])
    agent.turn("a", boundary=False)
    agent.prompt("again")
    proof = desk.state.intents["web#1"].proof
    assert isinstance(proof, RestartStartup)
    told = subprocess.run(
        [sys.executable, "-m", "eventlog.cli", "deliveries", "show", log.path, "web#1", "--startup"], capture_output=True, check=True
    )
    replacement = FakeHarness(desk, "web", "pid-2")
    replacement.prompt(told.stdout.decode())
    assert replacement.turn("b") == [PassThrough("web#1")]


def test_status_and_built_in_folds_know_deliveries(three: EventLog) -> None:
    assert {"deliveries", "transcript", "status"} <= set(BUILT_IN)
    state = fold(STATUS, three)
    again = STATUS.load(json.loads(json.dumps(STATUS.pack(state))))
    assert STATUS.dump(again) == STATUS.dump(state)


def test_the_states_of_the_command_are_those_of_the_protocol() -> None:
    from eventlog.cli.deliveries import STATES

    assert tuple(SyncState) == STATES


def test_refusals_say_why(log: EventLog) -> None:
    desk = Deliveries(log, tell)
    assert isinstance(desk.detect("", base="b", triggers=["o"]), Refused)
    assert isinstance(desk.coalesce("web#1", base="b", triggers=["o"]), Refused)
    assert isinstance(desk.bind_restart("web", "r"), Refused)
    assert isinstance(desk.accept_startup(Caller("web", "pid-1"), "startup-x"), Refused)
    assert isinstance(desk.retire_incarnation("web", "inc-x", "r"), Refused)
    assert int(log.head) == 0


def test_a_foreign_event_stops_the_fold_and_names_its_seq(log: EventLog) -> None:
    log.commit(Event(ev.ACKNOWLEDGED, {"incarnation": "x"}, "web#1"))
    with pytest.raises(Exception, match=r"event 1 \(delivery\.acknowledged\)"):
        fold(DELIVERIES, log)


def test_detect_joins_what_is_not_prepared_and_says_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "new"
    assert run("deliveries", "detect", path, "web", "--base", "c1").stdout == "web#1: detected\n"
    assert run("deliveries", "detect", path, "web", "--base", "c2", "--trigger", "op").stdout == "web#1: coalesced\n"
    assert json.loads(run("deliveries", "detect", path, "web", "--base", "c2", "--trigger", "op", "--json").stdout) == {
        "intent": "web#1",
        "note": "known",
    }
    assert run("deliveries", "detect", path, "web", "--base", "").exit_code == 1
