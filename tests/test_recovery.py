"""After a crash, a cancel, and when people decide: what recovery asks, sends, leaves and records (research/effects.md 1.5 and 3)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog import EventLog
from eventlog.projections import EFFECTS, Intent, IntentId, IntentState, fold
from eventlog.projections import effect_events as ev
from eventlog.recovery import (
    Abandoned,
    Attempt,
    AttemptCancelled,
    CancelStatus,
    DidNotHappen,
    EffectClass,
    EffectError,
    EffectFailed,
    Happened,
    Indeterminate,
    InProgress,
    IntentView,
    NotSent,
    RetryPolicy,
    StaleAttempt,
    StillRunning,
    Toolbox,
    ToolContext,
    Unknown,
    UnresolvedIntents,
    WrongDecision,
    arecover,
    history,
    list_intents,
    recover,
    resolve,
)
from eventlog.testing import Ledger, run_child

P, D, C = IntentState.PENDING, IntentState.DISPATCHED, IntentState.COMMITTED
N, X, A = IntentState.INDETERMINATE, IntentState.CANCELLED, IntentState.ABANDONED
HOUR = timedelta(hours=1)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log") as opened:
        yield opened


@pytest.fixture
def tools(log: EventLog) -> Toolbox:
    return Toolbox(log)


@pytest.fixture
def world(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "world")


def left_behind(
    log: EventLog, text: str, tool: str = "act", class_: EffectClass = EffectClass.NON_IDEMPOTENT, *, sent: bool = True, **options: Any
) -> None:
    """What a process that was killed has left: an intent, sent or not. (That a real kill leaves this is what the crash matrix shows.)"""
    id_ = IntentId.parse(text)
    digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # of {}
    key = options.pop("key_scope", "attempt")
    events = [
        ev.pending(id_, tool=tool, version="1", class_=class_, digest=digest, key=f"key of {text}", key_scope=key, args={}, options=options)
    ]
    if sent:
        events.append(ev.dispatched(text, try_number=1, pid=1, by="guard"))
    log.commit(events)


def intent(log: EventLog, text: str = "b@1:1") -> Intent:
    return fold(EFFECTS, log).intents[text]


def state(log: EventLog, text: str = "b@1:1") -> IntentState:
    return intent(log, text).state


# -- classification -------------------------------------------------------------------------------------------------------------


def test_every_unfinished_intent_is_classified_once_and_an_attempt_shows_its_worst(log: EventLog) -> None:
    left_behind(log, "b@1:1", sent=True)
    left_behind(log, "b@1:2", sent=False)
    left_behind(log, "c@3:x", sent=False)
    log.commit(ev.completed("b@1:1", kind="ok", try_number=1, source="call", result={"value": 1}))
    left_behind(log, "b@1:3", sent=True)  # fan-out: a later step may be committed, or open, while an earlier one is not
    report = recover(log)
    assert [(found.id, found.verdict) for found in report.intents] == [
        ("b@1:2", "never sent"),
        ("c@3:x", "never sent"),
        ("b@1:3", "may have been sent"),
    ]
    assert report.attempts == {"b@1": "may have been sent", "c@3": "never sent"}
    assert report.recorded == 3
    head = int(log.head)
    again = recover(log)
    assert (again.recorded, int(log.head)) == (0, head)
    assert [found.id for found in again.intents] == [found.id for found in report.intents]
    recorded = list(log.read(types={"effect.classified"}))
    assert [(event.stream, event.data["as"], event.data["by"]) for event in recorded] == [
        (found.id, found.verdict.value, "recovery") for found in sorted(report.intents, key=lambda found: found.id)
    ]


def test_a_classification_is_made_anew_after_a_new_try(log: EventLog) -> None:
    left_behind(log, "b@1:1")
    assert recover(log).recorded == 1
    version = intent(log).version
    resolve(log, "b@1:1", "not_happened", expected_version=version, actor="me", reason="looked")
    assert [found.verdict for found in recover(log).intents] == ["never sent"]
    log.commit(ev.dispatched("b@1:1", try_number=2, pid=1, by="guard"))
    report = recover(log)
    assert [found.verdict for found in report.intents] == ["may have been sent"]
    assert report.recorded == 1


def test_a_dry_run_records_nothing(log: EventLog, tools: Toolbox) -> None:
    left_behind(log, "b@1:1", class_=EffectClass.IDEMPOTENT)
    head = int(log.head)
    report = recover(log, tools, dry_run=True)
    assert [(found.id, found.recorded) for found in report.intents] == [("b@1:1", True)]
    assert int(log.head) == head


def test_a_live_attempt_is_left_alone(log: EventLog, tools: Toolbox) -> None:
    @tools.tool()
    def act(ctx: ToolContext) -> None:
        report = recover(log, tools)
        assert (report.alive, report.intents) == (["b@1"], [])
        assert [found.id for found in recover(log).intents] == []

    with tools.attempt("b", 1) as attempt:
        attempt.call(act)
    assert state(log) is C


def test_row_24_a_killed_owner_is_not_running_for_ever(tmp_path: Path) -> None:
    agent = Path(__file__).parent / "effects_agent.py"
    child = run_child(f"{agent}:one_effect", [str(tmp_path / "log"), str(tmp_path / "world")], crash_at="after-dispatched")
    assert child.killed
    with EventLog.open(tmp_path / "log") as log:
        assert not log.owned("effects:order-17")
        report = recover(log)
        assert report.alive == []
        assert [found.verdict for found in report.intents] == ["may have been sent"]


def test_a_toolbox_of_another_log_is_refused(tmp_path: Path, tools: Toolbox) -> None:
    with EventLog.open(tmp_path / "other") as other, pytest.raises(EffectError, match="another log"):
        recover(other, tools)


def test_recovery_of_10000_intents_is_flat(log: EventLog) -> None:
    import resource

    for start in range(0, 10_000, 500):
        events = []
        for number in range(start, start + 500):
            text = f"branch-{number}@1:1"
            events.append(
                ev.pending(
                    IntentId.parse(text),
                    tool="t",
                    version="1",
                    class_=EffectClass.KEYED,
                    digest="d",
                    key="k",
                    key_scope="attempt",
                    args={"n": 1},
                )
            )
            events.append(ev.dispatched(text, try_number=1, pid=1, by="guard"))
        log.commit(events)
    before = time.process_time()
    report = recover(log)
    cpu = time.process_time() - before
    assert (len(report.intents), report.recorded) == (10_000, 10_000)
    commits = sum(1 for _ in log.commits(20_000))
    assert commits <= 10_000 / 256 + 1, "classifications share their commits"
    print(f"10,000 intents: {cpu:.2f} s CPU, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most")


# -- resolution -----------------------------------------------------------------------------------------------------------------


def reconciling(answers: list[Any], world: Ledger, views: list[IntentView] | None = None) -> dict[str, Any]:
    def ask(view: IntentView) -> Any:
        if views is not None:
            views.append(view)
        answer = answers.pop(0)
        if isinstance(answer, BaseException) and not isinstance(answer, Unknown):
            raise answer
        return answer

    return {"reconcile": ask}


def acting(tools: Toolbox, world: Ledger, class_: EffectClass, **options: Any) -> Any:
    @tools.tool(class_, **options)
    def act(ctx: ToolContext) -> str:
        world.happen("act", [ctx.try_number, ctx.resend], key=ctx.idempotency_key)
        return "done"

    return act


def test_pending_is_sent_in_every_class(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    acting(tools, world, EffectClass.NON_IDEMPOTENT)
    left_behind(log, "b@1:1", sent=False)
    report = recover(log, tools)
    assert [(found.id, found.left) for found in report.intents] == [("b@1:1", C)]
    assert [entry.data for entry in world.entries()] == [[1, False]]


def test_what_was_never_sent_by_its_deadline_is_an_error_outcome(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    act = acting(tools, world, EffectClass.NON_IDEMPOTENT, deadline=60)
    left_behind(log, "b@1:1", sent=False, deadline_ns=1)
    left_behind(log, "c@1:1", class_=EffectClass.IDEMPOTENT, deadline_ns=1)
    assert [(found.id, found.left) for found in recover(log, tools).intents] == [("b@1:1", C), ("c@1:1", N)]
    with tools.attempt("b", 1) as attempt, pytest.raises(NotSent, match="deadline"):
        attempt.call(act)
    assert len(world) == 0


def test_a_resend_has_the_recorded_key_and_says_so(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    acting(tools, world, EffectClass.KEYED, key_ttl=HOUR)
    left_behind(log, "b@1:1", class_=EffectClass.KEYED, key_ttl_ms=3_600_000)
    recover(log, tools)
    assert [(entry.key, entry.data) for entry in world.entries()] == [("key of b@1:1", [2, True])]
    assert intent(log).source == "resend"


def test_an_expired_key_is_never_sent_again(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    acting(tools, world, EffectClass.KEYED, key_ttl=HOUR)
    left_behind(log, "b@1:1", class_=EffectClass.KEYED, key_ttl_ms=0)
    (found,) = recover(log, tools).intents
    assert found.left is N
    assert "forgotten the key" in str(found.error)
    assert len(world) == 0


def test_an_expired_key_with_a_hook_is_asked_about(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    acting(tools, world, EffectClass.KEYED, key_ttl=HOUR, **reconciling([Happened("as before")], world))
    left_behind(log, "b@1:1", class_=EffectClass.KEYED, key_ttl_ms=0)
    assert [found.left for found in recover(log, tools).intents] == [C]
    with tools.attempt("b", 1) as attempt:
        assert attempt.call(tools.get("act"), step=1) == "as before"  # type: ignore[arg-type]


def test_the_class_may_only_get_worse(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    acting(tools, world, EffectClass.IDEMPOTENT)
    left_behind(log, "b@1:1", class_=EffectClass.NON_IDEMPOTENT)  # the code was changed to IDEMPOTENT since
    assert [found.left for found in recover(log, tools).intents] == [N]
    left_behind(log, "c@1:1", tool="worse", class_=EffectClass.READ_ONLY)

    @tools.tool(EffectClass.NON_IDEMPOTENT)
    def worse(ctx: ToolContext) -> None:
        world.happen("worse")

    assert {found.id: found.left for found in recover(log, tools).intents}["c@1:1"] is N
    assert len(world) == 0


def test_an_unknown_tool_leaves_the_intent_as_it_is(log: EventLog, tools: Toolbox) -> None:
    left_behind(log, "b@1:1", tool="gone", class_=EffectClass.IDEMPOTENT)
    left_behind(log, "c@1:1", tool="gone", sent=False)
    report = recover(log, tools)
    assert [(found.left, "not registered" in str(found.error)) for found in report.intents] == [(D, True), (P, True)]


def test_a_changed_signature_fails_before_anything_is_sent(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    @tools.tool(EffectClass.IDEMPOTENT)
    def act(ctx: ToolContext, amount: int) -> None:
        world.happen("never")

    left_behind(log, "b@1:1", class_=EffectClass.IDEMPOTENT)
    left_behind(log, "c@1:1", class_=EffectClass.IDEMPOTENT, sent=False)
    report = recover(log, tools)
    assert [(found.left, "signature has changed" in str(found.error)) for found in report.intents] == [(D, True), (P, True)]
    assert [event.type for event in log.read(3)] == ["effect.classified", "effect.classified"]
    assert len(world) == 0


@pytest.mark.parametrize(
    ("answer", "left", "sent"),
    [
        (Happened({"id": 7}), C, 0),
        (DidNotHappen("no such order"), C, 1),
        (InProgress(60), D, 0),
        (Unknown("search is down"), N, 0),
        (RuntimeError("hook broken"), N, 0),
        ("nonsense", N, 0),
    ],
)
def test_what_an_answer_of_the_receiver_leads_to(
    log: EventLog, tools: Toolbox, world: Ledger, answer: Any, left: IntentState, sent: int
) -> None:
    views: list[IntentView] = []
    acting(tools, world, EffectClass.RECONCILABLE, **reconciling([answer], world, views))
    left_behind(log, "b@1:1", class_=EffectClass.RECONCILABLE)
    log.commit(ev.evidence("b@1:1", "provider-7"))
    (found,) = recover(log, tools).intents
    assert (found.left, len(world)) == (left, sent)
    assert [(view.intent, view.idempotency_key, view.args, view.tries, view.external_ids) for view in views] == [
        ("b@1:1", "key of b@1:1", {}, 1, ("provider-7",))
    ]
    if isinstance(answer, InProgress):
        assert found.until_ns is not None
    if sent:
        assert [event.data["decision"] for event in log.read(types={"effect.resolved"})] == ["not_happened"]


def test_negative_evidence_counts_only_after_settle_after(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    acting(tools, world, EffectClass.RECONCILABLE, settle_after=HOUR, **reconciling([DidNotHappen()] * 2, world))
    left_behind(log, "b@1:1", class_=EffectClass.RECONCILABLE)
    (found,) = recover(log, tools).intents
    assert (found.left, len(world)) == (D, 0)
    assert found.until_ns == (intent(log).dispatched_ns or 0) + 3600 * 10**9
    assert found.error is not None


def test_a_patient_recovery_polls(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    acting(tools, world, EffectClass.RECONCILABLE, **reconciling([InProgress(0.01), InProgress(0.01), Happened(5)], world))
    left_behind(log, "b@1:1", class_=EffectClass.RECONCILABLE)
    assert [found.left for found in recover(log, tools, patience_s=30).intents] == [C]


def test_an_async_hook_and_an_async_tool_are_driven_too(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    async def ask(view: IntentView) -> Any:
        await asyncio.sleep(0)
        return DidNotHappen()

    @tools.tool(EffectClass.RECONCILABLE, reconcile=ask)
    async def act(ctx: ToolContext) -> str:
        await asyncio.sleep(0)
        world.happen("act")
        return "done"

    left_behind(log, "b@1:1", class_=EffectClass.RECONCILABLE)
    assert [found.left for found in recover(log, tools).intents] == [C]
    assert len(world) == 1


def test_transactional_without_a_row_is_run_and_with_one_is_not(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    acting(tools, world, EffectClass.TRANSACTIONAL, **reconciling([Happened("row"), DidNotHappen()], world))
    left_behind(log, "b@1:1", class_=EffectClass.TRANSACTIONAL)
    left_behind(log, "c@1:1", class_=EffectClass.TRANSACTIONAL)
    assert [found.left for found in recover(log, tools, concurrency=1).intents] == [C, C]
    assert [entry.key for entry in world.entries()] == ["key of c@1:1"]


def test_an_overwritten_resource_is_not_written_back(log: EventLog, tools: Toolbox) -> None:
    written: list[str] = []

    @tools.tool(EffectClass.IDEMPOTENT, resource="path")
    def write(ctx: ToolContext, path: str, text: str) -> None:
        written.append(text)
        if text == "old" and not ctx.resend:
            raise TimeoutError

    for branch, path, text in (("a", "x", "old"), ("b", "y", "old"), ("c", "x", "new")):
        with tools.attempt(branch, 1) as attempt:
            try:
                attempt.call(write, path, text)
            except Indeterminate:
                assert text == "old"
    report = recover(log, tools)
    assert {found.id: found.left for found in report.intents} == {"a@1:1": N, "b@1:1": C}
    assert written == ["old", "old", "new", "old"]


def test_recovery_gives_up_after_so_many_tries(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    @tools.tool(EffectClass.IDEMPOTENT)
    def act(ctx: ToolContext) -> None:
        world.happen("try")
        raise TimeoutError

    left_behind(log, "b@1:1", class_=EffectClass.IDEMPOTENT)
    for _ in range(30):
        recover(log, tools)
    assert len(world) == 9
    assert (state(log), intent(log).tries) == (N, 10)
    assert "no outcome after 10 tries" in str(intent(log).reason)


def test_a_step_found_dispatched_is_resolved_where_it_is_called(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    act = acting(tools, world, EffectClass.IDEMPOTENT)
    left_behind(log, "b@1:1", class_=EffectClass.IDEMPOTENT)
    with tools.attempt("b", 1) as attempt:
        assert attempt.call(act) == "done"
    left_behind(log, "c@1:1", tool="opaque")
    opaque = tools.guard(lambda: world.happen("never"), name="opaque")
    with tools.attempt("c", 1) as attempt, pytest.raises(Indeterminate, match="effects resolve LOG c@1:1"):
        attempt.call(opaque)
    assert state(log, "c@1:1") is N


def test_row_25_one_bad_hook_strands_nobody(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    def ask(view: IntentView) -> Any:
        if view.intent.startswith("b3"):
            raise RuntimeError("bad")
        return Happened(view.intent)

    acting(tools, world, EffectClass.RECONCILABLE, reconcile=ask)
    for number in range(10):
        left_behind(log, f"b{number}@1:1", class_=EffectClass.RECONCILABLE)
    report = recover(log, tools)
    assert [found.left for found in report.intents] == [N if number == 3 else C for number in range(10)]
    assert len(world) == 0


def test_row_25_recovery_can_be_killed_at_any_point(tmp_path: Path) -> None:
    """Kill the recovering process at each point that it passes, run it again: nothing twice, nothing lost."""
    target = f"{Path(__file__)}:recover_three"
    clean = run_child(target, [str(tmp_path / "clean")])
    assert clean.returncode == 0, clean.stderr
    assert set(clean.points) >= {"after-dispatched", "after-effect", "after-committed"}
    for number, point in enumerate(clean.points):
        place = str(tmp_path / f"{number}")
        assert run_child(target, [place], crash_at=point, nth=clean.points[: number + 1].count(point)).killed
        again = run_child(target, [place])
        assert again.returncode == 0, again.stderr
        with EventLog.open(Path(place) / "log") as log:
            assert [one.state for one in fold(EFFECTS, log).intents.values()] == [C, C, C]
        assert sorted(entry.data for entry in Ledger(Path(place) / "world").entries()) == ["a", "b", "c"]


def recover_three(place: str) -> None:
    """Runs in a child: three intents that another process left behind, in a world that honours keys."""
    world = Ledger(Path(place) / "world", dedupe=True)
    with EventLog.open(Path(place) / "log") as log:
        tools = Toolbox(log)

        @tools.tool(EffectClass.KEYED, key_ttl=HOUR)
        def act(ctx: ToolContext) -> None:
            world.happen("act", ctx.intent.branch, key=ctx.idempotency_key)

        if int(log.head) == 0:
            for branch, sent in (("a", True), ("b", False), ("c", True)):
                left_behind(log, f"{branch}@1:1", class_=EffectClass.KEYED, sent=sent, key_ttl_ms=3_600_000)
        recover(log, tools, concurrency=1)


def test_row_26_no_recovery_storm(log: EventLog, tools: Toolbox) -> None:
    now, most, lock = [0], [0], threading.Lock()

    @tools.tool(EffectClass.KEYED, key_ttl=HOUR)
    def act(ctx: ToolContext) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.002)
        with lock:
            now[0] -= 1

    for number in range(60):
        left_behind(log, f"b{number}@1:1", class_=EffectClass.KEYED, key_ttl_ms=3_600_000)
    report = recover(log, tools, concurrency=3)
    assert all(found.left is C for found in report.intents)
    assert 1 <= most[0] <= 3


def test_row_23_bulk_resolution(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    acting(tools, world, EffectClass.RECONCILABLE, reconcile=lambda view: Happened())
    for number in range(50):
        left_behind(log, f"known{number}@1:1", class_=EffectClass.RECONCILABLE)
        left_behind(log, f"opaque{number}@1:1", tool="other")
    recover(log, tools)
    waiting = list_intents(log, class_=EffectClass.NON_IDEMPOTENT)
    assert len(waiting) == len(list_intents(log)) == 50
    for one in waiting:
        resolve(log, one.id, "abandon", expected_version=one.version, actor="op", reason="bulk")
    assert list_intents(log) == []


def test_recovery_does_not_sleep_for_a_receiver_that_asked_to_wait(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    acting(tools, world, EffectClass.NON_IDEMPOTENT)
    left_behind(log, "b@1:1")
    log.commit(ev.not_sent("b@1:1", try_number=1, error={}, retry_at_ns=time.time_ns() + 3600 * 10**9))
    (found,) = recover(log, tools).intents
    assert (found.left, len(world)) == (P, 0)
    assert "asked to wait" in str(found.error)
    assert found.until_ns is not None


def test_recovery_and_cancel_inside_an_event_loop_say_what_to_use(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    @tools.tool(EffectClass.IDEMPOTENT)
    async def act(ctx: ToolContext) -> str:
        world.happen("act")
        return "done"

    left_behind(log, "b@1:1", class_=EffectClass.IDEMPOTENT)

    async def main() -> None:
        head = int(log.head)
        with pytest.raises(EffectError, match="arecover"):
            recover(log, tools)
        async with tools.attempt("other", 1) as attempt:
            with pytest.raises(EffectError, match="acancel"):
                attempt.cancel()
        assert int(log.head) == head
        report = await arecover(log, tools)
        assert [found.left for found in report.intents] == [C]

    asyncio.run(main())
    assert len(world) == 1


def test_a_live_attempt_sees_what_a_person_decided(log: EventLog, tools: Toolbox) -> None:
    @tools.tool()
    def act(ctx: ToolContext) -> None:
        raise TimeoutError

    with tools.attempt("b", 1) as attempt:
        with pytest.raises(Indeterminate):
            attempt.call(act, step="s")
        decide(log, "happened", "b@1:s", outcome="seen")
        assert attempt.call(act, step="s") == "seen"


# -- attempts -------------------------------------------------------------------------------------------------------------------


def test_pending_of_an_older_attempt_is_not_sent_behind_the_newer_one(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    act = acting(tools, world, EffectClass.NON_IDEMPOTENT)
    left_behind(log, "b@1:1", sent=False)
    with tools.attempt("b", 2) as attempt:
        attempt.call(act)
    report = recover(log, tools)
    assert [(found.id, found.left) for found in report.intents] == [("b@1:1", X)]
    assert len(world) == 1
    with pytest.raises(StaleAttempt), tools.attempt("b", 1):
        pass


def test_a_new_attempt_is_refused_until_the_old_one_is_resolved(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    acting(tools, world, EffectClass.NON_IDEMPOTENT)
    left_behind(log, "b@1:1")
    with pytest.raises(UnresolvedIntents), tools.attempt("b", 2):
        pass
    recover(log, tools)
    with pytest.raises(UnresolvedIntents), tools.attempt("b", 2):
        pass
    resolve(log, "b@1:1", "abandon", expected_version=intent(log).version, actor="me", reason="gone")
    with tools.attempt("b", 2):
        pass


# -- cancelling -----------------------------------------------------------------------------------------------------------------


def test_cancel_of_nothing(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    act = acting(tools, world, EffectClass.NON_IDEMPOTENT)
    with tools.attempt("b", 1) as attempt:
        attempt.call(act)
        cancellation = attempt.cancel(reason="the user left", actor="ui")
        assert (cancellation.status, cancellation.happened, cancellation.indeterminate) == (CancelStatus.CANCELLED, ("b@1:1",), ())
        with pytest.raises(AttemptCancelled, match="nothing was sent"):
            attempt.call(act)
        assert attempt.cancel() == cancellation
    with tools.attempt("b", 1) as attempt:
        assert attempt.call(act) == "done", "what is committed is replayed all the same"
        with pytest.raises(AttemptCancelled):
            attempt.call(act)
    assert [event.data["reason"] for event in log.read(types={"attempt.cancelled"})] == ["the user left"]
    assert len(world) == 1


def in_flight(tools: Toolbox, class_: EffectClass, body: Callable[[ToolContext], Any], **options: Any) -> tuple[Attempt, Any, list[Any]]:
    """An attempt with one call that is out, in a thread; what it comes to is put into the list."""
    out = threading.Event()
    ended: list[Any] = []

    @tools.tool(class_, **options)
    def act(ctx: ToolContext) -> Any:
        out.set()
        return body(ctx)

    attempt = tools.attempt("b", 1).__enter__()

    def call() -> None:
        try:
            ended.append(attempt.call(act, step=1))
        except EffectError as error:
            ended.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert out.wait(10)
    return attempt, thread, ended


def test_row_11_a_tool_that_looks_stops_within_the_grace(log: EventLog, tools: Toolbox) -> None:
    def body(ctx: ToolContext) -> None:
        assert ctx.cancelled.wait(10)
        raise NotSent("stopped before it was sent")

    attempt, thread, ended = in_flight(tools, EffectClass.NON_IDEMPOTENT, body)
    cancellation = attempt.cancel(grace=10)
    thread.join()
    attempt.__exit__(None, None, None)
    assert (cancellation.status, cancellation.dropped) == (CancelStatus.CANCELLED, ("b@1:1",))
    assert isinstance(ended[0], AttemptCancelled)
    assert state(log) is X


def test_row_10_a_tool_that_does_not_look_is_indeterminate_and_its_late_result_is_kept(log: EventLog, tools: Toolbox) -> None:
    go = threading.Event()
    attempt, thread, ended = in_flight(tools, EffectClass.NON_IDEMPOTENT, lambda ctx: go.wait(10) and "late")
    cancellation = attempt.cancel(grace=0)
    assert (cancellation.status, cancellation.indeterminate) == (CancelStatus.INDETERMINATE, ("b@1:1",))
    assert state(log) is N
    go.set()
    thread.join()
    attempt.__exit__(None, None, None)
    assert ended == ["late"]
    assert state(log) is C
    assert sum(event.type == "effect.committed" for event in log.read()) == 1


def test_a_call_that_returns_within_the_grace_is_an_outcome(log: EventLog, tools: Toolbox) -> None:
    attempt, thread, ended = in_flight(tools, EffectClass.NON_IDEMPOTENT, lambda ctx: ctx.cancelled.wait(10) and "done")
    cancellation = attempt.cancel(grace=10)
    thread.join()
    assert (cancellation.status, cancellation.happened, ended) == (CancelStatus.CANCELLED, ("b@1:1",), ["done"])
    attempt.__exit__(None, None, None)


def test_a_read_in_flight_is_dropped(log: EventLog, tools: Toolbox) -> None:
    go = threading.Event()
    attempt, thread, ended = in_flight(tools, EffectClass.READ_ONLY, lambda ctx: go.wait(10))
    assert attempt.cancel().status is CancelStatus.CANCELLED
    assert state(log) is X
    go.set()
    thread.join()
    attempt.__exit__(None, None, None)
    assert isinstance(ended[0], AttemptCancelled)
    assert intent(log).late_seq is not None, "the late result is kept as evidence"


def test_emitted_events_of_a_cancelled_call_do_not_appear(log: EventLog, tools: Toolbox) -> None:
    go = threading.Event()

    def body(ctx: ToolContext) -> None:
        ctx.emit(eventlog.Event("wallet.booked", {}))
        go.wait(10)

    attempt, thread, _ = in_flight(tools, EffectClass.TRANSACTIONAL, body, emits=True)
    assert attempt.cancel().status is CancelStatus.CANCELLED
    go.set()
    thread.join()
    attempt.__exit__(None, None, None)
    assert list(log.read(types={"wallet.booked"})) == []
    assert state(log) is X


def test_a_cancelled_call_that_still_runs_is_not_believed_gone(log: EventLog, tools: Toolbox) -> None:
    go = threading.Event()
    attempt, thread, _ = in_flight(tools, EffectClass.RECONCILABLE, lambda ctx: go.wait(10), reconcile=lambda view: DidNotHappen())
    assert attempt.cancel().status is CancelStatus.INDETERMINATE
    go.set()
    thread.join()
    attempt.__exit__(None, None, None)


def test_async_cancel(log: EventLog, tools: Toolbox) -> None:
    async def main() -> None:
        started = asyncio.Event()

        @tools.tool()
        async def act(ctx: ToolContext) -> str:
            started.set()
            while not ctx.cancelled:
                await asyncio.sleep(0.001)
            return "stopped"

        async with tools.attempt("b", 1) as attempt:
            task = asyncio.ensure_future(attempt.acall(act, step="only"))
            await started.wait()
            assert (await attempt.acancel(grace=10)).status is CancelStatus.CANCELLED
            assert await task == "stopped"

    asyncio.run(main())
    assert state(log, "b@1:only") is C


def test_recovery_of_a_cancelled_attempt_sends_nothing(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    acting(tools, world, EffectClass.IDEMPOTENT)
    left_behind(log, "b@1:1", class_=EffectClass.IDEMPOTENT)
    log.commit(ev.attempt_cancelled("b", 1, reason="user", actor="user"))
    assert [found.left for found in recover(log, tools).intents] == [N]
    assert len(world) == 0


# -- people ---------------------------------------------------------------------------------------------------------------------


def decide(log: EventLog, decision: Any, text: str = "b@1:1", **more: Any) -> Intent:
    return resolve(log, text, decision, **{"expected_version": intent(log, text).version, "actor": "ann", "reason": "looked", **more})


def test_people_can_say_that_it_happened(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    act = acting(tools, world, EffectClass.NON_IDEMPOTENT)
    left_behind(log, "b@1:1")
    assert decide(log, "happened", outcome={"receipt": (1, 2)}).state is C
    with tools.attempt("b", 1) as attempt:
        assert attempt.call(act) == {"receipt": [1, 2]}
    assert len(world) == 0
    (event,) = log.read(types={"effect.resolved"})
    assert {**event.data, "seen": 0} == {"decision": "happened", "reason": "looked", "actor": "ann", "source": "human", "seen": 0}


@pytest.mark.parametrize("decision", ["not_happened", "retry"])
def test_people_can_have_it_sent_again_with_the_same_key(log: EventLog, tools: Toolbox, world: Ledger, decision: str) -> None:
    act = acting(tools, world, EffectClass.NON_IDEMPOTENT)
    left_behind(log, "b@1:1")
    recover(log, tools)
    assert decide(log, decision).state is P
    with tools.attempt("b", 1) as attempt:
        assert attempt.call(act) == "done"
    assert [(entry.key, entry.data) for entry in world.entries()] == [("key of b@1:1", [2, False])]


def test_people_can_let_go(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    act = acting(tools, world, EffectClass.NON_IDEMPOTENT)
    left_behind(log, "b@1:1")
    assert decide(log, "abandon", reason="too old to matter").state is A
    with tools.attempt("b", 1) as attempt:
        for _ in range(2):
            with pytest.raises(Abandoned, match="too old to matter") as caught:
                attempt.call(act, step=1)
            assert isinstance(caught.value, EffectFailed)
        assert attempt.call(act, step=2) == "done", "the branch may go on"


def test_a_decision_names_what_it_was_made_on(log: EventLog) -> None:
    left_behind(log, "b@1:1")
    shown = intent(log)
    log.commit(ev.evidence("b@1:1", "provider-7"))
    with pytest.raises(WrongDecision, match="look again"):
        resolve(log, "b@1:1", "abandon", expected_version=shown.version, actor="ann", reason="r")
    decide(log, "abandon")
    head = int(log.head)
    with pytest.raises(WrongDecision):
        decide(log, "retry")
    assert int(log.head) == head


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"decision": "perhaps"}, "no decision"),
        ({"actor": " "}, "actor"),
        ({"reason": ""}, "reason"),
        ({"decision": "retry", "outcome": 1}, "happened"),
        ({"decision": "happened", "outcome": {1}}, "not JSON"),
        ({"text": "c@1:1"}, "no such intent"),
    ],
)
def test_decisions_that_are_refused(log: EventLog, more: dict[str, Any], why: str) -> None:
    left_behind(log, "b@1:1")
    arguments = {"decision": "abandon", "text": "b@1:1", "actor": "ann", "reason": "r", "outcome": None, **more}
    with pytest.raises(WrongDecision, match=why):
        resolve(log, arguments.pop("text"), arguments.pop("decision"), expected_version=2, **arguments)
    assert int(log.head) == 2


def test_nobody_decides_about_a_call_that_is_being_made(log: EventLog, tools: Toolbox) -> None:
    @tools.tool()
    def act(ctx: ToolContext) -> None:
        with pytest.raises(StillRunning):
            decide(log, "abandon")

    with tools.attempt("b", 1) as attempt:
        attempt.call(act)
    assert state(log) is C


def test_a_decision_beside_a_late_result_is_kept_with_the_evidence(log: EventLog, tools: Toolbox) -> None:
    go = threading.Event()

    @tools.tool(timeout=0.02)
    def act(ctx: ToolContext) -> str:
        go.wait(10)
        return "it did happen"

    attempt = tools.attempt("b", 1).__enter__()
    with pytest.raises(Indeterminate):
        attempt.call(act)
    attempt.cancel()
    decide(log, "abandon")
    go.set()
    end = time.monotonic() + 10
    while intent(log).late_seq is None:
        assert time.monotonic() < end
        time.sleep(0.005)
    attempt.__exit__(None, None, None)
    assert state(log) is A
    (late,) = log.read(types={"effect.late"})
    assert late.data["value"] == "it did happen"


def test_a_person_decides_about_what_nobody_is_busy_with(log: EventLog, tools: Toolbox) -> None:
    """While its branch is owned, only an indeterminate intent is anybody else's business; the owner sees what was decided."""

    @tools.tool()
    def act(ctx: ToolContext, silent: bool) -> str:
        if silent:
            raise TimeoutError
        return "done"

    left_behind(log, "b@1:9", sent=False)
    with tools.attempt("b", 1) as attempt:
        with pytest.raises(Indeterminate):
            attempt.call(act, True, step=1)
        with pytest.raises(StillRunning):
            decide(log, "abandon", "b@1:9")
        decide(log, "retry", "b@1:1")
        for step in (2, 3):  # other commits of the owner must not hide the decision from it
            assert attempt.call(act, False, step=step) == "done"
        with pytest.raises(Indeterminate):
            attempt.call(act, True, step=1)
    assert (intent(log).tries, state(log)) == (2, N)
    assert decide(log, "abandon", "b@1:9").state is A


def test_a_decision_overtakes_a_late_result_that_did_not_see_it(log: EventLog, tools: Toolbox) -> None:
    go = threading.Event()

    @tools.tool(timeout=0.02)
    def act(ctx: ToolContext) -> str:
        go.wait(10)
        return "late"

    @tools.tool()
    def other(ctx: ToolContext) -> None:
        return None

    with tools.attempt("b", 1) as attempt:
        with pytest.raises(Indeterminate):
            attempt.call(act)
        with pytest.raises(StillRunning):
            decide(log, "not_happened")  # Dispatched, and its call is out
        attempt.cancel()
        decide(log, "not_happened")
    go.set()
    end = time.monotonic() + 10
    while log.owned("effects:b"):
        assert time.monotonic() < end
        time.sleep(0.005)
    assert (state(log), intent(log).late_seq is not None) == (X, True)


def test_lists_and_history(log: EventLog) -> None:
    left_behind(log, "b@1:1", class_=EffectClass.KEYED)
    left_behind(log, "b@1:2", sent=False)
    left_behind(log, "c@1:1", tool="other")
    log.commit(ev.resolved("c@1:1", "indeterminate", reason="r", actor="a", source="recovery", seen=1))

    def ids(**filters: Any) -> list[str]:
        return [str(one.id) for one in list_intents(log, **filters)]

    assert ids() == ["c@1:1", "b@1:1", "b@1:2"], "what needs a decision comes first"
    assert ids(state=D) == ["b@1:1"]
    assert ids(state={P, D}) == ["b@1:1", "b@1:2"]
    assert ids(class_=EffectClass.KEYED) == ["b@1:1"]
    assert ids(branch="c") == ids(tool="other") == ["c@1:1"]
    assert ids(older_than=HOUR) == []
    assert ids(older_than=HOUR, now_ns=time.time_ns() + 7200 * 10**9) == ids()
    decide(log, "abandon", "c@1:1")
    assert ids(state=list(IntentState)) == ["b@1:1", "b@1:2", "c@1:1"]
    assert [event.type for event in history(log, "c@1:1")] == [
        "effect.pending",
        "effect.dispatched",
        "effect.resolved",
        "effect.resolved",
    ]
    with EventLog.open(log.path, read_only=True) as reader:
        assert [str(one.id) for one in list_intents(reader)] == ["b@1:1", "b@1:2"]


# -- what a crash leaves --------------------------------------------------------------------------------------------------------


def test_row_38_any_tail_opens_and_classifies(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "whole") as log:
        tools = Toolbox(log)

        @tools.tool(EffectClass.IDEMPOTENT, retry=RetryPolicy())
        def act(ctx: ToolContext) -> str:
            return "done"

        with tools.attempt("b", 1) as attempt:
            attempt.call(act)
            attempt.call(act)
        name = log.segments()[0].name
    source = tmp_path / "whole" / "segments" / name
    body = source.read_bytes().rstrip(b"\0")
    states = set()
    for cut in range(len(body) - 700, len(body) + 1, 7):
        place = tmp_path / f"cut{cut}"
        (place / "segments").mkdir(parents=True, mode=0o700)
        place.chmod(0o700)
        (place / "log.json").write_bytes((tmp_path / "whole" / "log.json").read_bytes())
        (place / "log.json").chmod(0o600)
        (place / "segments" / name).write_bytes(body[:cut])
        (place / "segments" / name).chmod(0o600)
        with EventLog.open(place) as log:
            states.add(tuple(one.state for one in fold(EFFECTS, log).intents.values()))
            assert {found.verdict for found in recover(log).intents} <= {"never sent", "may have been sent"}
    assert {(C, P), (C, D), (C, C)} <= states


@pytest.mark.parametrize(
    ("first", "absent"),
    [
        ("import eventlog.recovery", ["asyncio", "sortedcontainers", "eventlog.recovery.guard", "eventlog.projections.effects"]),
        ("from eventlog.recovery import *", ["click", "rich", "eventlog.cli", "eventlog.testing"]),
    ],
)
def test_what_the_second_floor_imports(first: str, absent: list[str]) -> None:
    code = f"import sys\n{first}\nprint([name for name in {absent} if name in sys.modules])"
    root = Path(__file__).parent.parent
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert ran.stdout.strip() == "[]"


def test_what_is_loaded_when_first_asked_for_is_what_is_exported() -> None:
    for floor in (eventlog.recovery, eventlog.projections):
        assert set(floor._HOMES) == set(floor.__all__) <= set(dir(floor))
        assert all(getattr(floor, name) is not None for name in floor.__all__)
        with pytest.raises(AttributeError, match="nonsense"):
            _ = floor.nonsense
