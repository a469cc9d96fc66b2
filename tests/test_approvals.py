"""Approvals: nothing leaves before a person has said yes to this very intent, and that is in the log (research: effects, rows 8, 36)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eventlog import Event, EventLog
from eventlog.cli import main
from eventlog.projections import EFFECTS, FoldError, IntentState, fold
from eventlog.projections import effect_events as ev
from eventlog.recovery import (
    EffectClass,
    EffectFailed,
    IntentId,
    NeedsApproval,
    NotSent,
    StillRunning,
    Tool,
    Toolbox,
    ToolContext,
    WrongDecision,
    history,
    list_intents,
    recover,
    resolve,
    resolve_each,
)
from eventlog.testing import Ledger


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log") as opened:
        yield opened


@pytest.fixture
def world(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "world")


def dropping(log: EventLog, world: Ledger, class_: EffectClass = EffectClass.NON_IDEMPOTENT, **options: Any) -> tuple[Toolbox, Tool]:
    """A toolbox with one destructive tool that says in the world what it drops."""
    tools = Toolbox(log)

    @tools.tool(class_, approval=True, **options)
    def drop(ctx: ToolContext, table: str) -> str:
        world.happen("drop", table)
        return f"dropped {table}"

    return tools, drop


def say(log: EventLog, text: str, decision: Any, actor: str = "ann", reason: str = "as agreed") -> None:
    resolve(log, text, decision, expected_version=fold(EFFECTS, log).intents[text].version, actor=actor, reason=reason)


def test_nothing_leaves_before_it_is_approved(log: EventLog, world: Ledger) -> None:
    tools, drop = dropping(log, world)
    with tools.attempt("a") as attempt:
        with pytest.raises(NeedsApproval, match="--approve") as waiting:
            attempt.call(drop, table="users", step="drop")
        assert waiting.value.intent == "a@1:drop"
        assert [event.type for event in log.read()] == ["effect.pending"]
        (intent,) = list_intents(log)
        assert (intent.needs_decision, intent.waits_for_approval, intent.state) == (True, True, IntentState.PENDING)
        with pytest.raises(NeedsApproval):
            attempt.call(drop, table="users", step="drop")  # again, without a word from anybody
        say(log, "a@1:drop", "approve")  # while the process that asks is alive
        assert attempt.call(drop, table="users", step="drop") == "dropped users"
        assert attempt.call(drop, table="users", step="drop") == "dropped users"
    assert len(world) == 1
    assert list_intents(log) == []
    assert fold(EFFECTS, log).intents["a@1:drop"].approved_seq == 2


def test_row_8_parallel_approvals_in_reverse_order_with_a_restart_between(tmp_path: Path, world: Ledger) -> None:
    async def run() -> list[Any]:
        with EventLog.open(tmp_path / "log") as log:
            tools, drop = dropping(log, world)
            async with tools.attempt("a") as attempt:
                return await asyncio.gather(attempt.acall(drop, "first"), attempt.acall(drop, "second"), return_exceptions=True)

    assert [type(one) for one in asyncio.run(run())] == [NeedsApproval] * 2
    with EventLog.open(tmp_path / "log") as log:
        say(log, "a@1:2", "approve", actor="ann")
    again = asyncio.run(run())
    assert [type(again[0]), again[1]] == [NeedsApproval, "dropped second"]
    with EventLog.open(tmp_path / "log") as log:
        say(log, "a@1:1", "deny", actor="bob", reason="not that one")
    for _ in range(2):
        first, second = asyncio.run(run())
        assert isinstance(first, NotSent)
        assert "denied by bob: not that one" in str(first)
        assert second == "dropped second"
    assert len(world) == 1


def test_row_36_a_failure_right_after_committed_neither_repeats_nor_forgets(tmp_path: Path, world: Ledger) -> None:
    with EventLog.open(tmp_path / "log") as log:
        tools, drop = dropping(log, world)
        with tools.attempt("a") as attempt, pytest.raises(NeedsApproval):
            attempt.call(drop, "users")
        say(log, "a@1:1", "approve", actor="ann", reason="ticket 7")
    for _ in range(2):
        with EventLog.open(tmp_path / "log") as log:
            tools, drop = dropping(log, world)
            with pytest.raises(RuntimeError, match="the run fails"), tools.attempt("a") as attempt:  # noqa: PT012
                assert attempt.call(drop, "users") == "dropped users"
                raise RuntimeError("the run fails")
            (approval,) = [event for event in history(log, "a@1:1") if event.type == "effect.resolved"]
            assert (approval.data["decision"], approval.data["actor"], approval.data["reason"]) == ("approve", "ann", "ticket 7")
            assert len(world) == 1


def test_an_approval_is_for_these_arguments(log: EventLog, world: Ledger) -> None:
    tools, drop = dropping(log, world)
    with tools.attempt("a") as attempt:
        with pytest.raises(NeedsApproval):
            attempt.call(drop, "temporary", step="drop")
        say(log, "a@1:drop", "approve")
        with pytest.raises(Exception, match="nothing was sent"):
            attempt.call(drop, "users", step="drop")
    with tools.attempt("a", 2) as attempt, pytest.raises(NeedsApproval):  # and for this attempt
        attempt.call(drop, "temporary", step="drop")
    assert len(world) == 0


@pytest.mark.parametrize("class_", [EffectClass.READ_ONLY, EffectClass.IDEMPOTENT, EffectClass.NON_IDEMPOTENT])
def test_recovery_waits_too_and_sends_what_was_approved(log: EventLog, world: Ledger, class_: EffectClass) -> None:
    tools, drop = dropping(log, world, class_)
    with tools.attempt("a") as attempt, pytest.raises(NeedsApproval):
        attempt.call(drop, "users")
    (found,) = recover(log, tools).intents
    assert (found.left, found.verdict) == (IntentState.PENDING, "never sent")
    assert "waits for an approval" in str(found.error)
    assert len(world) == 0
    say(log, "a@1:1", "approve")
    (found,) = recover(log, tools).intents
    assert found.left is IntentState.COMMITTED
    assert len(world) == 1


def test_a_tool_that_asks_only_now_holds_back_what_was_recorded_before(log: EventLog, world: Ledger) -> None:
    id_, common = IntentId.parse("a@1:1"), {"digest": "0" * 64, "key": "k", "key_scope": "attempt"}
    log.commit(ev.pending(id_, tool="drop", version="1", class_=EffectClass.NON_IDEMPOTENT, args={"table": "users"}, **common))
    tools, _ = dropping(log, world)
    (found,) = recover(log, tools).intents
    assert found.left is IntentState.PENDING
    say(log, "a@1:1", "approve")
    (found,) = recover(log, tools).intents
    assert (found.left, len(world)) == (IntentState.COMMITTED, 1)


def test_a_tool_that_asks_no_more_still_waits_for_what_it_asked(log: EventLog, world: Ledger) -> None:
    tools, drop = dropping(log, world)
    with tools.attempt("a") as attempt, pytest.raises(NeedsApproval):
        attempt.call(drop, "users")
    later = Toolbox(log)
    later.guard(lambda table: world.happen("drop", table), name="drop")
    assert recover(log, later).intents[0].left is IntentState.PENDING
    assert len(world) == 0


def test_what_is_cancelled_or_too_late_needs_nobody(log: EventLog, world: Ledger) -> None:
    tools, drop = dropping(log, world, deadline=0.001)
    with tools.attempt("a") as attempt:
        with pytest.raises((NeedsApproval, EffectFailed)):
            attempt.call(drop, "users", step="late")
        threading.Event().wait(0.005)
        with pytest.raises(EffectFailed, match="deadline"):
            attempt.call(drop, "users", step="late")
    tools, drop = dropping(log, world)
    with tools.attempt("b") as attempt:
        with pytest.raises(NeedsApproval):
            attempt.call(drop, "users")
        assert attempt.cancel().status == "cancelled"
    with pytest.raises(WrongDecision, match="cancelled"):
        say(log, "b@1:1", "approve")
    assert list_intents(log) == []
    assert len(world) == 0


def test_people_who_decide_at_once_are_told_and_the_log_stays_whole(log: EventLog, world: Ledger) -> None:
    tools, drop = dropping(log, world)
    with tools.attempt("a") as attempt, pytest.raises(NeedsApproval):
        attempt.call(drop, "users")
    version = fold(EFFECTS, log).intents["a@1:1"].version
    answers: list[str] = []

    def decide(decision: Any) -> None:
        try:
            resolve(log, "a@1:1", decision, expected_version=version, actor=decision, reason="r")
            answers.append(decision)
        except WrongDecision:
            return

    threads = [threading.Thread(target=decide, args=(decision,)) for decision in ("approve", "deny") * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 1
    left = fold(EFFECTS, log).intents["a@1:1"]
    assert (left.approved_seq is not None, left.state) == (
        (True, IntentState.PENDING) if answers == ["approve"] else (False, IntentState.COMMITTED)
    )


@pytest.mark.parametrize("decision", ["approve", "deny", "happened", "abandon"])
@pytest.mark.parametrize("then", ["call", "deadline", "cancel"])
def test_a_guard_that_did_not_see_the_decision_writes_nothing_that_cannot_follow(
    log: EventLog, world: Ledger, decision: str, then: str
) -> None:
    """The decision comes between the guard's look at the intent and its own write: the fold of the log must still hold."""
    tools, drop = dropping(log, world, deadline=0.2 if then == "deadline" else 3600)
    with tools.attempt("a") as attempt:
        with pytest.raises(NeedsApproval):
            attempt.call(drop, "users", step="x")
        assert attempt._guard is not None
        core = attempt._guard.core
        core.refresh("a@1:x")
        say(log, "a@1:x", decision)
        core.refresh = lambda text: None  # type: ignore[method-assign]  # as if the decision came right behind the look
        if then == "deadline":
            threading.Event().wait(0.25)
        if then == "cancel":
            attempt.cancel()
        else:
            with pytest.raises((NeedsApproval, EffectFailed)) if then == "call" or decision != "happened" else _nothing():
                attempt.call(drop, "users", step="x")
        del core.refresh  # type: ignore[method-assign]
    state = fold(EFFECTS, log).intents["a@1:x"]
    assert len(world) == 0
    if decision != "approve":
        assert state.state is (IntentState.ABANDONED if decision == "abandon" else IntentState.COMMITTED)
    elif then != "call":
        assert state.state.finished


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_the_fold_refuses_what_was_sent_unapproved(log: EventLog, world: Ledger) -> None:
    tools, drop = dropping(log, world)
    with tools.attempt("a") as attempt, pytest.raises(NeedsApproval):
        attempt.call(drop, "users")
    log.commit(ev.dispatched("a@1:1", try_number=1, pid=1, by="guard"))
    with pytest.raises(FoldError, match="nobody has approved"):
        fold(EFFECTS, log)


def test_what_does_not_wait_is_the_owners(log: EventLog, world: Ledger) -> None:
    """A plain Pending of a living process may be sent at any moment: nobody approves or denies it from outside."""
    pending = ev.pending(
        IntentId.parse("a@1:1"), tool="t", version="1", class_=EffectClass.KEYED, digest="0" * 64, key="k", key_scope="attempt", args={}
    )
    log.commit(pending)
    owner = log.own("effects:a")
    with pytest.raises(StillRunning):
        say(log, "a@1:1", "deny")
    assert owner is not None
    owner.release()
    say(log, "a@1:1", "deny")
    with pytest.raises(WrongDecision):
        say(log, "a@1:1", "approve")


def test_a_state_goes_through_json(log: EventLog, world: Ledger) -> None:
    tools, drop = dropping(log, world)
    with tools.attempt("a") as attempt:
        for step in ("x", "y"):
            with pytest.raises(NeedsApproval):
                attempt.call(drop, "users", step=step)
    say(log, "a@1:y", "approve")
    log.commit(Event("unrelated", {}))
    state = fold(EFFECTS, log)
    again = EFFECTS.load(json.loads(json.dumps(EFFECTS.pack(state))))
    assert EFFECTS.dump(again) == EFFECTS.dump(state)
    assert [one.waits_for_approval for one in again.intents.values()] == [True, False]


def test_on_the_command_line(tmp_path: Path, world: Ledger) -> None:
    path = tmp_path / "log"
    with EventLog.open(path) as log:
        tools, drop = dropping(log, world)
        with tools.attempt("a") as attempt:
            for step in "xyz":
                with pytest.raises(NeedsApproval):
                    attempt.call(drop, step, step=step)

    def call(*args: str) -> tuple[int, str]:
        result = CliRunner().invoke(
            main, [args[0], args[1], str(path), *args[2:]] if args[0] == "effects" else [args[0], str(path), *args[1:]]
        )
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    code, text = call("status")
    assert code == 1
    assert text.startswith("3 waiting for a decision")
    assert "a@1:x  drop  non_idempotent  pending: waits for an approval, since" in text
    assert call("effects", "resolve", "a@1:x", "--approve", "--reason", "r", "--actor", "ann") == (0, "a@1:x is pending\n")
    assert call("effects", "resolve", "a@1:x", "--approve", "--reason", "r", "--actor", "ann") == (
        0,
        "a@1:x is pending (recorded before)\n",
    )
    denied = ["effects", "resolve", "a@1:y", "--deny", "--reason", "no", "--actor", "ann"]
    assert call(*denied, "--dry-run") == (0, "a@1:y would be committed\n")
    assert call(*denied) == (0, "a@1:y is committed\n")
    assert call(*denied) == (0, "a@1:y is committed (recorded before)\n")
    code, text = call("effects", "resolve", "--state", "pending", "--approve", "--reason", "all", "--actor", "bob")
    assert (code, text.splitlines()[-1]) == (1, "eventlog effects resolve: 1 were not decided")  # x is approved already
    assert "a@1:z is pending" in text
    with EventLog.open(path) as log:
        tools, drop = dropping(log, world)
        with tools.attempt("a") as attempt:
            assert attempt.call(drop, "x", step="x") == "dropped x"
            with pytest.raises(NotSent, match="denied by ann: no"):
                attempt.call(drop, "y", step="y")
            assert attempt.call(drop, "z", step="z") == "dropped z"


def test_the_same_approval_twice_is_one(log: EventLog, world: Ledger) -> None:
    tools, drop = dropping(log, world)
    with tools.attempt("a") as attempt, pytest.raises(NeedsApproval):
        attempt.call(drop, "users")
    version = fold(EFFECTS, log).intents["a@1:1"].version
    told = [next(resolve_each(log, [("a@1:1", version)], "approve", actor="ann", reason="r")) for _ in range(2)]
    assert [(one.recorded, one.repeated) for one in told] == [(True, False), (False, True)]
    assert len(list(log.read(types={"effect.resolved"}))) == 1


CRASHING = """
import sys
from eventlog import EventLog
from eventlog.recovery import NeedsApproval, Toolbox
from eventlog.testing import Ledger
log, world = EventLog.open(sys.argv[1]), Ledger(sys.argv[2])
tools = Toolbox(log)
drop = tools.guard(lambda table: world.happen("drop", table), name="drop", approval=True)
with tools.attempt("a") as attempt:
    try:
        attempt.call(drop, "users", step="x")
    except NeedsApproval:
        print("waits", flush=True)
        sys.stdin.read(1)  # killed here
"""


def test_a_process_that_dies_while_it_waits_leaves_the_question(tmp_path: Path, world: Ledger) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CRASHING, tmp_path / "log", tmp_path / "world"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"waits\n"
        with EventLog.open(tmp_path / "log") as log:
            say(log, "a@1:x", "approve")
        child.kill()
    with EventLog.open(tmp_path / "log") as log:
        tools, _ = dropping(log, world)
        assert [found.left for found in recover(log, tools).intents] == [IntentState.COMMITTED]
    assert len(world) == 1
