"""Random programs, crashes, recoveries, cancels and decisions of people, against a model of the world.

Every action runs in a forked child that opens the log itself; a crash is a real SIGKILL at one of the guard's points, so that nothing is
unwound. The world is a ledger file that the log knows nothing of.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from eventlog import EventLog, crashpoints
from eventlog.projections import EFFECTS, EffectClass, EffectsState, IntentState, fold
from eventlog.recovery import (
    DidNotHappen,
    EffectError,
    Happened,
    IntentView,
    NotSent,
    Rejected,
    Toolbox,
    ToolContext,
    list_intents,
    recover,
    resolve,
)
from eventlog.testing import Ledger

if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)

BRANCHES = ("a", "b@1:1", "c")
POINTS = ("before-pending", "after-pending", "after-dispatched", "in-tool", "after-effect", "after-committed")
OPEN = (IntentState.PENDING, IntentState.DISPATCHED, IntentState.INDETERMINATE)
E = EffectClass


def toolbox(log: EventLog, world: Ledger) -> Toolbox:
    tools = Toolbox(log)

    def body(ctx: ToolContext, n: int, mood: str) -> dict[str, Any]:
        if ctx.try_number == 1 and mood == "not sent":
            raise NotSent("down")
        if ctx.try_number == 1 and mood == "refused":
            raise Rejected("no")
        world.happen("call", str(ctx.intent), key=ctx.idempotency_key)
        crashpoints.reach("in-tool")
        if ctx.try_number == 1 and mood == "silent":
            raise TimeoutError("no answer")
        return {"n": n}

    def ask(view: IntentView) -> Happened | DidNotHappen:
        return Happened({"n": view.args["n"]}) if world.find(key=view.idempotency_key) else DidNotHappen()

    options: dict[EffectClass, dict[str, Any]] = {
        E.KEYED: {"key_ttl": timedelta(hours=1)},
        E.RECONCILABLE: {"reconcile": ask},
        E.TRANSACTIONAL: {"reconcile": ask},
    }
    for class_ in EffectClass:
        tools.tool(class_, name=class_.value, **options.get(class_, {}))(body)
    return tools


class Effects(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="effects-machine-"))
        self.world = Ledger(self.place / "world")
        self.attempts = dict.fromkeys(BRANCHES, 1)
        self.programs: dict[str, list[tuple[EffectClass, str]]] = {branch: [] for branch in BRANCHES}
        self.allowed: Counter[str] = Counter()  # more calls that a person has asked for
        self.final: dict[str, IntentState] = {}
        self.frozen: dict[str, int] = {}  # calls of the intents of cancelled attempts, when they were cancelled
        self.killed = False

    def teardown(self) -> None:
        shutil.rmtree(self.place)

    def child(self, work: Callable[[EventLog, Toolbox], None], point: str | None, nth: int) -> None:
        """Run `work` in a child; kill it when it passes `point` for the nth time."""
        pid = os.fork()
        if pid == 0:
            try:
                left = [nth]

                def armed(name: str) -> None:
                    if name == point:
                        left[0] -= 1
                        if left[0] == 0:
                            os.kill(os.getpid(), signal.SIGKILL)
                            signal.pause()

                crashpoints.armed = armed
                with EventLog.open(self.place / "log") as log:
                    work(log, toolbox(log, self.world))
                os._exit(0)
            except BaseException as error:  # noqa: BLE001 - the child has to say why and to end here, whatever it is
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        self.killed = os.WIFSIGNALED(status)
        assert self.killed or os.WEXITSTATUS(status) == 0, "the child failed: see stderr"

    @rule(
        branch=st.sampled_from(BRANCHES),
        class_=st.sampled_from([*EffectClass, E.NON_IDEMPOTENT, E.NON_IDEMPOTENT]),
        mood=st.sampled_from(["fine", "fine", "fine", "silent", "not sent", "refused"]),
        point=st.sampled_from([None, *POINTS, "in-tool", "after-effect"]),
        nth=st.sampled_from([1, 1, 1, 2]),
    )
    def run_program(self, branch: str, class_: EffectClass, mood: str, point: str | None, nth: int) -> None:
        """The agent (re)starts and makes all calls of its program, with one more at its end, as far as it comes."""
        self.programs[branch].append((class_, mood))

        def work(log: EventLog, tools: Toolbox) -> None:
            try:
                with tools.attempt(branch, self.attempts[branch]) as attempt:
                    for n, (one, its_mood) in enumerate(self.programs[branch], 1):
                        tool = tools.get(one.value)
                        assert tool is not None
                        try:
                            assert attempt.call(tool, n, its_mood, step=n) in ({"n": n}, {"said": "a person"})
                        except EffectError:
                            continue
            except EffectError:
                return  # refused: the invariants say whether that was right

        self.child(work, point, nth)

    @rule(with_tools=st.sampled_from([True, True, False]), point=st.sampled_from([None, None, *POINTS]), nth=st.sampled_from([1, 1, 2]))
    def recovery(self, with_tools: bool, point: str | None, nth: int) -> None:
        def work(log: EventLog, tools: Toolbox) -> None:
            recover(log, tools if with_tools else None, concurrency=1)

        pending = {str(one.id) for one in self.state().open_intents() if one.state is IntentState.PENDING}
        self.child(work, point, nth)
        if self.killed:
            return
        for intent in self.state().open_intents():
            assert intent.classified is intent.verdict, f"{intent} was not classified"
            if with_tools:
                assert intent.state is not IntentState.PENDING, f"{intent} could have been sent"
                cancelled = intent.id.attempt_text in self.cancelled()
                # Or this recovery made its first try, which was not answered: the next one will send it again.
                tried = str(intent.id) in pending and (intent.request or {})["args"]["mood"] == "silent"
                assert cancelled or tried or intent.effect_class is E.NON_IDEMPOTENT, f"{intent} could have been resolved"

    @rule(branch=st.sampled_from(BRANCHES), point=st.none() | st.sampled_from(POINTS))
    def cancel(self, branch: str, point: str | None) -> None:
        def work(log: EventLog, tools: Toolbox) -> None:
            try:
                with tools.attempt(branch, self.attempts[branch]) as attempt:
                    attempt.cancel()
            except EffectError:
                return

        self.child(work, point, 1)
        if f"{branch}@{self.attempts[branch]}" in self.cancelled():
            calls = self.calls()
            self.frozen.update({text: calls[text] for text in self.state().attempts[f"{branch}@{self.attempts[branch]}"].intents})

    @rule(branch=st.sampled_from(BRANCHES))
    def next_attempt(self, branch: str) -> None:
        self.attempts[branch] += 1
        self.programs[branch] = []

    @rule(decision=st.sampled_from(["happened", "not_happened", "retry", "abandon"]), pick=st.integers(0, 5))
    def a_person_decides(self, decision: Any, pick: int) -> None:
        with EventLog.open(self.place / "log") as log:
            waiting = [one for one in list_intents(log) if one.state is not IntentState.PENDING]
            if not waiting:
                return
            one = waiting[pick % len(waiting)]
            outcome = {"said": "a person"} if decision == "happened" else None
            resolve(log, one.id, decision, expected_version=one.version, actor="ann", reason="r", outcome=outcome)
        if decision in ("not_happened", "retry"):
            self.allowed[str(one.id)] += 1

    def state(self) -> EffectsState:
        with EventLog.open(self.place / "log") as log:
            return fold(EFFECTS, log)

    def cancelled(self) -> set[str]:
        return {text for text, record in self.state().attempts.items() if record.cancelled_seq is not None}

    def calls(self) -> Counter[str]:
        return Counter(entry.data for entry in self.world.entries())

    @invariant()
    def the_log_and_the_world_agree(self) -> None:
        state, calls = self.state(), self.calls()
        for text, count in calls.items():
            intent = state.intents.get(text)
            assert intent is not None, f"{text} happened and was never recorded"
            assert intent.tries >= 1, f"{text} happened, and the log says that it was never sent"
            if intent.effect_class in (E.NON_IDEMPOTENT, E.RECONCILABLE, E.TRANSACTIONAL):
                assert count <= 1 + self.allowed[text], f"{text} happened {count} times"
            assert count <= intent.tries, f"{text}: {count} calls in {intent.tries} tries"
        for text, intent in state.intents.items():
            if intent.state is IntentState.COMMITTED and intent.outcome_kind == "ok" and intent.source != "human":
                assert calls[text] >= 1, f"{text} is Committed and did not happen"
        for text, known in self.final.items():
            assert text in state.intents, f"{text} is lost"
            assert state.intents[text].state is known, f"{text} was {known} and is {state.intents[text].state}"
        self.final = {text: intent.state for text, intent in state.intents.items() if intent.state.finished}
        for text, count in self.frozen.items():
            assert calls[text] == count, f"{text} was sent after its attempt was cancelled"


Effects.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestEffects = Effects.TestCase
