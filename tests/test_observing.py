"""Observers of guarded effects: what they are shown, that they can stop nothing; and the OpenTelemetry spans that one of them makes."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.projections import EFFECTS, IntentState, fold
from eventlog.projections import effect_events as ev
from eventlog.recovery import (
    EffectClass,
    EffectFailed,
    Indeterminate,
    IntentId,
    NonDeterminism,
    NotSent,
    ObservedEffect,
    ObserverFailed,
    Rejected,
    RetryPolicy,
    Toolbox,
    ToolContext,
    arecover,
    recover,
)

SECRET = "s3cret-argument"
RESULT = "s3cret-result"


class Diary:
    """An observer that writes down what it was shown, at the beginning and at the end."""

    def __init__(self) -> None:
        self.seen: list[tuple[ObservedEffect, str | None]] = []
        self.open = 0

    @contextlib.contextmanager
    def effect(self, effect: ObservedEffect) -> Iterator[None]:
        assert (effect.state, effect.tries, effect.source) == (None, 0, None)
        self.open += 1
        error: str | None = None
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self.open -= 1
            self.seen.append((effect, error))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log") as opened:
        yield opened


def shown(diary: Diary) -> list[tuple[str, str, str | None, int, int, bool, str | None, str | None]]:
    return [
        (one.intent, one.tool, one.state.value if one.state else None, one.tries, one.sent, one.replayed, one.source, error)
        for one, error in diary.seen
    ]


def test_what_an_observer_is_shown(log: EventLog) -> None:
    diary = Diary()
    tools = Toolbox(log, observer=diary)
    failures: list[Exception] = []

    @tools.tool(EffectClass.NON_IDEMPOTENT, retry=RetryPolicy(attempts_max=3, initial_s=0.0))
    def act(ctx: ToolContext, text: str) -> str:
        assert diary.open == 1
        if failures:
            raise failures.pop(0)
        return text

    def once() -> None:
        with tools.attempt("a") as attempt:
            assert attempt.call(act, text="fine") == "fine"
            failures[:] = [NotSent("busy"), NotSent("busy")]
            attempt.call(act, text="third time")
            failures[:] = [Rejected("no")]
            with pytest.raises(Rejected):
                attempt.call(act, text="refused")
            failures[:] = [TimeoutError("?")]
            with pytest.raises(Indeterminate):
                attempt.call(act, text="lost")

    once()
    first = [
        ("a@1:1", "act", "committed", 1, 1, False, "call", None),
        ("a@1:2", "act", "committed", 3, 3, False, "call", None),
        ("a@1:3", "act", "committed", 1, 1, False, "call", "Rejected"),
        ("a@1:4", "act", "indeterminate", 1, 1, False, "recovery", "Indeterminate"),
    ]
    assert shown(diary) == first
    diary.seen.clear()
    head = log.head
    once()
    assert log.head == head
    replayed = [(*line[:4], 0, line[2] == "committed", *line[6:]) for line in first]
    assert shown(diary) == replayed
    with tools.attempt("a") as attempt, pytest.raises(NonDeterminism):
        attempt.call(act, text="something else")
    assert shown(diary)[-1][-1] == "NonDeterminism"
    assert diary.open == 0


def dispatched(log: EventLog, branch: str, class_: EffectClass = EffectClass.IDEMPOTENT) -> None:
    """An intent that went out before its process died."""
    id_ = IntentId(branch, 1, 1)
    pending = ev.pending(id_, tool="act", version="1", class_=class_, digest="0" * 64, key="k", key_scope="attempt", args={"text": SECRET})
    log.commit(pending)
    log.commit(ev.dispatched(id_.text, try_number=1, pid=1, by="guard"))


def test_recovery_is_observed_too_with_the_worse_class(log: EventLog) -> None:
    diary = Diary()
    tools = Toolbox(log, observer=diary)
    for branch in ("a", "b"):
        dispatched(log, branch)
    dispatched(log, "c", EffectClass.NON_IDEMPOTENT)

    @tools.tool(EffectClass.IDEMPOTENT)
    def act(ctx: ToolContext, text: str) -> str:
        return RESULT

    recover(log, tools, concurrency=3)
    assert sorted(shown(diary)) == [
        ("a@1:1", "act", "committed", 2, 1, False, "resend", None),
        ("b@1:1", "act", "committed", 2, 1, False, "resend", None),
        ("c@1:1", "act", "indeterminate", 1, 0, False, "recovery", "Indeterminate"),
    ]
    assert {(one.by, one.effect_class.value) for one, _ in diary.seen} == {("recovery", "idempotent"), ("recovery", "non_idempotent")}
    diary.seen.clear()
    dispatched(log, "d")
    asyncio.run(arecover(log, tools))
    assert ("d@1:1", "act", "committed", 2, 1, False, "resend", None) in shown(diary)


def test_an_intent_whose_tool_is_unknown_here_is_shown_as_recorded(log: EventLog) -> None:
    diary = Diary()
    dispatched(log, "a")
    recover(log, Toolbox(log, observer=diary))
    assert shown(diary) == [("a@1:1", "act", "dispatched", 1, 0, False, None, "Indeterminate")]


class Broken:
    """Raises at the beginning, at the end, or wants to swallow what the tool raised."""

    def __init__(self, when: str) -> None:
        self.when = when

    def effect(self, effect: ObservedEffect) -> Any:
        if self.when == "call":
            raise ValueError("broken")
        return self

    def __enter__(self) -> None:
        if self.when == "enter":
            raise ValueError("broken")

    def __exit__(self, *raised: object) -> bool:
        if self.when == "exit":
            raise ValueError("broken")
        return True


@pytest.mark.parametrize("when", ["call", "enter", "exit", "swallow"])
@pytest.mark.parametrize("strict", [False, True], ids=["warnings", "warnings-are-errors"])
def test_an_observer_can_stop_and_change_nothing(log: EventLog, when: str, strict: bool, recwarn: pytest.WarningsRecorder) -> None:
    tools = Toolbox(log, observer=Broken(when))

    @tools.tool(EffectClass.NON_IDEMPOTENT)
    def act(ctx: ToolContext, good: bool) -> str:
        if not good:
            raise Rejected("no")
        return "done"

    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error" if strict else "always")
        with tools.attempt("a") as attempt:
            assert attempt.call(act, good=True) == "done"
            with pytest.raises(Rejected):
                attempt.call(act, good=False)
    told = [str(one.message) for one in caught if one.category is ObserverFailed]
    assert told == ([] if strict or when == "swallow" else ["Broken: ValueError: broken"] * 2)
    assert [intent.state for intent in fold(EFFECTS, log).intents.values()] == [IntentState.COMMITTED] * 2


def test_without_an_observer_nothing_is_made(log: EventLog) -> None:
    tools = Toolbox(log)
    act = tools.guard(len, EffectClass.READ_ONLY)
    with tools.attempt("a") as attempt:
        assert attempt._observed("a@1:1", act) is attempt._observed("a@1:2", None)
        assert attempt.call(act, [1]) == 1


def test_the_guard_imports_no_tracer() -> None:
    code = "import sys\nfrom eventlog.recovery import *\nprint([name for name in sys.modules if name.startswith('opentelemetry')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
    assert ran.stdout.strip() == "[]"


# -- OpenTelemetry --------------------------------------------------------------------------------------------------------------


class Spans:
    """A tracer and what it has finished."""

    def __init__(self) -> None:
        sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra 'extras' is not installed: opentelemetry-sdk")
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self.exporter = InMemorySpanExporter()
        provider = sdk.TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")

    @property
    def done(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def traced(log: EventLog, spans: Spans) -> Toolbox:
    from eventlog.recovery.otel import OpenTelemetry

    return Toolbox(log, observer=OpenTelemetry(spans.tracer))


def test_a_span_for_each_effect_without_what_it_was_about(traced: Toolbox, spans: Spans) -> None:
    @traced.tool(EffectClass.NON_IDEMPOTENT)
    def charge(ctx: ToolContext, card: str, fail: str = "") -> str:
        if fail:
            raise {"rejected": Rejected, "lost": TimeoutError}[fail](f"{card}: {RESULT}")
        return RESULT

    for _ in range(2):
        with traced.attempt("order-17") as attempt:
            assert attempt.call(charge, SECRET) == RESULT
            with pytest.raises(EffectFailed):
                attempt.call(charge, SECRET, fail="rejected")
            with pytest.raises(Indeterminate):
                attempt.call(charge, SECRET, fail="lost")
    common = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "charge",
        "eventlog.effect.class": "non_idempotent",
        "eventlog.effect.by": "guard",
        "eventlog.effect.try": 1,
    }
    told = [dict(span.attributes) for span in spans.done]
    assert [{name: one.pop(name) for name in common} for one in told] == [common] * 6
    ids = [one.pop("gen_ai.tool.call.id") for one in told]
    assert ids == ["order-17@1:1", "order-17@1:2", "order-17@1:3"] * 2
    committed = {"eventlog.effect.state": "committed", "eventlog.effect.source": "call"}
    rejected = {**committed, "error.type": "eventlog.recovery.errors.Rejected"}
    lost = {
        "eventlog.effect.state": "indeterminate",
        "eventlog.effect.source": "recovery",
        "error.type": "eventlog.recovery.errors.Indeterminate",
    }
    sent, replayed, left = (
        {"eventlog.effect.sent": count, "eventlog.effect.replayed": over} for count, over in ((1, False), (0, True), (0, False))
    )
    assert told == [
        {**committed, **sent},
        {**rejected, **sent},
        {**lost, **sent},
        {**committed, **replayed},
        {**rejected, **replayed},
        {**lost, **left},
    ]
    assert [span.name for span in spans.done] == ["execute_tool charge"] * 6
    assert [span.status.status_code.name for span in spans.done] == ["UNSET", "ERROR", "ERROR"] * 2
    everything = "".join(span.to_json() for span in spans.done)
    assert SECRET not in everything
    assert RESULT not in everything
    assert not any(span.events for span in spans.done)


def test_what_a_tool_does_is_a_child_of_its_span_in_every_way_to_run_it(traced: Toolbox, spans: Spans) -> None:
    """In the caller's thread, in a thread of its own (a timeout), as a coroutine, and among others that run beside it."""
    threads: set[int] = set()

    def inner(n: int) -> int:
        threads.add(threading.get_ident())
        with spans.tracer.start_as_current_span(f"inner {n}"):
            return n

    async def ainner(n: int) -> int:
        await asyncio.sleep(0)
        return inner(n)

    plain = traced.guard(inner, EffectClass.READ_ONLY, name="plain")
    timed = traced.guard(inner, EffectClass.READ_ONLY, name="timed", timeout=30)
    coroutine = traced.guard(ainner, EffectClass.READ_ONLY, name="coroutine")
    with traced.attempt("a") as attempt:
        attempt.call(plain, 1)
        attempt.call(timed, 2)

    async def main() -> None:
        async with traced.attempt("b") as attempt:
            await asyncio.gather(attempt.acall(plain, 3), attempt.acall(coroutine, 4), attempt.acall(coroutine, 5))

    asyncio.run(main())
    by_id = {span.context.span_id: span for span in spans.done}
    children = {span.name: by_id[span.parent.span_id].attributes["gen_ai.tool.call.id"] for span in spans.done if "inner" in span.name}
    assert children == {"inner 1": "a@1:1", "inner 2": "a@1:2", "inner 3": "b@1:1", "inner 4": "b@1:2", "inner 5": "b@1:3"}
    assert len(threads) == 3


def test_spans_of_recovery_are_children_of_the_callers(log: EventLog, traced: Toolbox, spans: Spans) -> None:
    @traced.tool(EffectClass.IDEMPOTENT)
    def act(ctx: ToolContext, text: str) -> str:
        return RESULT

    for branch in "abc":
        dispatched(log, branch)
    with spans.tracer.start_as_current_span("start-up") as outer:
        recover(log, traced, concurrency=3)
    found = [span for span in spans.done if span.name == "execute_tool act"]
    assert sorted(span.attributes["gen_ai.tool.call.id"] for span in found) == ["a@1:1", "b@1:1", "c@1:1"]
    assert {span.parent.span_id for span in found} == {outer.get_span_context().span_id}
    assert {span.attributes["eventlog.effect.by"] for span in found} == {"recovery"}
    assert {span.attributes["eventlog.effect.source"] for span in found} == {"resend"}


def test_a_cancelled_await_ends_its_span(traced: Toolbox, spans: Spans) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        @traced.tool(EffectClass.NON_IDEMPOTENT)
        async def wait(ctx: ToolContext) -> None:
            begun.set()
            await asyncio.sleep(60)

        async with traced.attempt("a") as attempt:
            task = asyncio.ensure_future(attempt.acall(wait, step="only"))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    (span,) = spans.done
    assert span.attributes["error.type"] == "asyncio.exceptions.CancelledError"
    assert span.attributes["eventlog.effect.state"] == "indeterminate"
