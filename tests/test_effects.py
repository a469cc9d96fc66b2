"""The guard: what it records, replays and refuses; every row of research/effects.md section 3 that can be tried on us is named `row N`."""

from __future__ import annotations

import asyncio
import datetime
import errno
import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import eventlog.recovery
from eventlog import Event, EventLog
from eventlog.errors import Corrupt, EventLogError, LogPoisoned, ReadOnly
from eventlog.fs import FileSystem
from eventlog.projections import EFFECTS, IntentState, fold
from eventlog.recovery import (
    AttemptBusy,
    BadArguments,
    BadTool,
    EffectClass,
    EffectError,
    EffectFailed,
    Indeterminate,
    IntentView,
    Limits,
    NonDeterminism,
    NotSent,
    Rejected,
    RetryPolicy,
    StaleAttempt,
    StepRequired,
    Toolbox,
    ToolContext,
    Unencodable,
    Unknown,
    UnresolvedIntents,
    recover,
)
from eventlog.recovery.failures import judge
from eventlog.testing import Ledger

FAST = RetryPolicy(attempts_max=5, initial_s=0.0)


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


def types(log: EventLog) -> list[str]:
    return [event.type.removeprefix("effect.") for event in log.read()]


def state(log: EventLog, text: str) -> IntentState:
    return fold(EFFECTS, log).intents[text].state


# -- record and replay ----------------------------------------------------------------------------------------------------------


def test_what_pending_records_before_anything_leaves(log: EventLog, tools: Toolbox) -> None:
    seen: list[dict[str, Any]] = []

    @tools.tool(EffectClass.KEYED, version="7", key_ttl=timedelta(hours=24), deadline=60, timeout=5, retry=FAST)
    def charge(ctx: ToolContext, amount: int, currency: str = "EUR") -> str:
        seen.extend(event.data for event in log.read(types={"effect.pending"}))
        return ctx.idempotency_key

    with tools.attempt("order-17", 1) as attempt:
        key = attempt.call(charge, amount=10)
    (data,) = seen
    expected = {"branch": "order-17", "attempt": 1, "step": 1, "tool": "charge", "version": "7", "class": "keyed", "key_scope": "attempt"}
    expected |= {"args": {"amount": 10, "currency": "EUR"}, "key": key, "key_ttl_ms": 86_400_000, "timeout_ms": 5000}
    assert {name: data[name] for name in expected} == expected
    assert data["retry"] == {"attempts_max": 5}
    assert len(data["digest"]) == 64
    assert data["deadline_ns"] - log_time(log, 1) == pytest.approx(60e9, abs=5e9)


def log_time(log: EventLog, seq: int) -> int:
    return next(log.read(seq - 1, upto=seq)).time


def test_a_committed_step_is_replayed_without_a_call(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    @tools.tool()
    def act(ctx: ToolContext, n: int) -> Any:
        world.happen("act", n)
        return {"n": (n, [n]), "text": "ü"}

    first = [run(tools, act, range(3)) for _ in range(1)]
    head = int(log.head)
    again = run(tools, act, range(3))
    assert again == first[0], "the first return value equals the replayed one"
    assert first[0][1] == {"n": [1, [1]], "text": "ü"}
    assert int(log.head) == head
    assert len(world) == 3


def run(tools: Toolbox, tool: Any, values: Any) -> list[Any]:
    with tools.attempt("order-17", 1) as attempt:
        return [attempt.call(tool, value) for value in values]


def test_row_1_a_task_retry_does_not_repeat_its_effects(tools: Toolbox, world: Ledger) -> None:
    @tools.tool()
    def pay(ctx: ToolContext, to: str) -> str:
        world.happen("pay", to)
        return f"paid {to}"

    def task() -> list[str]:
        with tools.attempt("order-17", 1) as attempt:
            paid = [attempt.call(pay, to) for to in ("a", "b")]
            if len(world) == 2 and not failed:
                failed.append(1)
                raise RuntimeError("the task fails after both")
            return paid

    failed: list[int] = []
    with pytest.raises(RuntimeError):
        task()
    assert task() == ["paid a", "paid b"]
    assert [entry.data for entry in world.entries()] == ["a", "b"]


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "", "a\n", [], {"a": {"b": [1, None]}}, "ü" * 10, 2**63])
def test_values_come_back_equal(tools: Toolbox, value: Any) -> None:
    @tools.tool()
    def give(ctx: ToolContext) -> Any:
        return value

    with tools.attempt("b", 1) as attempt:
        first = attempt.call(give)
    with tools.attempt("b", 1) as attempt:
        assert attempt.call(give) == first == value


def test_row_17_nondeterminism_names_both_and_sends_nothing(tools: Toolbox, world: Ledger, log: EventLog) -> None:
    @tools.tool()
    def pay(ctx: ToolContext, amount: int) -> None:
        world.happen("pay", amount)

    @tools.tool()
    def refund(ctx: ToolContext, amount: int) -> None:
        world.happen("refund", amount)

    run(tools, pay, [1, 2])
    head = int(log.head)
    for tool, amount in ((pay, 3), (refund, 2)):
        with tools.attempt("order-17", 1) as attempt:
            attempt.call(pay, 1)
            with pytest.raises(NonDeterminism, match=r"order-17@1:2") as caught:
                attempt.call(tool, amount)
            assert caught.value.recorded[0] == "pay"
            assert caught.value.now[0] == tool.spec.name
            assert caught.value.recorded != caught.value.now
            assert f"{tool.spec.name}(amount={amount})" in str(caught.value)
    assert int(log.head) == head
    assert len(world) == 2


def test_nondeterminism_of_an_open_step_shows_the_recorded_arguments(tools: Toolbox, log: EventLog) -> None:
    @tools.tool()
    def act(ctx: ToolContext, n: int) -> None:
        raise TimeoutError

    with tools.attempt("b", 1) as attempt, pytest.raises(Indeterminate):
        attempt.call(act, 1)
    with tools.attempt("b", 1) as attempt, pytest.raises(NonDeterminism, match=r"act\(n=1\).*act\(n=2\)"):
        attempt.call(act, 2)


def test_arguments_that_cannot_be_recorded_are_refused_before_anything(tools: Toolbox, log: EventLog) -> None:
    @tools.tool()
    def act(ctx: ToolContext, where: Any, **more: Any) -> None:
        raise AssertionError("never")

    with tools.attempt("b", 1) as attempt:
        for bad in (b"x", float("nan"), {1: 2}, object(), 2**70):
            with pytest.raises(BadArguments, match="argument where"):
                attempt.call(act, {"deep": [bad]})
        with pytest.raises(BadArguments, match="missing a required argument"):
            attempt.call(act)
    assert int(log.head) == 0


def test_every_kind_of_parameter_arrives_as_it_was_given(tools: Toolbox) -> None:
    @tools.tool()
    def all_kinds(ctx: ToolContext, a: int, /, b: int, *rest: int, c: int, d: int = 4, **more: int) -> list[Any]:
        return [a, b, list(rest), c, d, more]

    with tools.attempt("b", 1) as attempt:
        assert attempt.call(all_kinds, 1, 2, 3, c=5, e=6) == [1, 2, [3], 5, 4, {"e": 6}]


def test_the_tool_sees_canonical_arguments(tools: Toolbox) -> None:
    """A resend can only give what was recorded, so the first call gets the same."""

    @tools.tool()
    def kind(ctx: ToolContext, pair: Any) -> str:
        return type(pair).__name__

    with tools.attempt("b", 1) as attempt:
        assert attempt.call(kind, (1, 2)) == "list"


@pytest.mark.parametrize(("count", "expected"), [(10, "Unencodable"), (11, "Unencodable")])
def test_row_21_what_has_no_json_form_still_commits(log: EventLog, tools: Toolbox, count: int, expected: str) -> None:
    results = {10: threading.Lock(), 11: (n for n in range(3))}

    @tools.tool()
    def give(ctx: ToolContext) -> Any:
        return results[count]

    with tools.attempt("b", 1) as attempt:
        first = attempt.call(give)
    with tools.attempt("b", 1) as attempt:
        assert attempt.call(give) == first
    assert type(first).__name__ == expected
    assert isinstance(first, Unencodable)
    assert state(log, "b@1:1") is IntentState.COMMITTED
    assert recover(log).intents == []


def test_encode_and_decode(tools: Toolbox) -> None:
    @tools.tool(encode=lambda value: value.isoformat(), decode=lambda text: datetime.date.fromisoformat(text))
    def when(ctx: ToolContext) -> Any:
        return datetime.date(2026, 1, 2)

    for _ in range(2):
        with tools.attempt("b", 1) as attempt:
            assert attempt.call(when) == datetime.date(2026, 1, 2)


def test_row_18_a_huge_result_is_committed_once(log: EventLog, world: Ledger) -> None:
    tools = Toolbox(log, Limits(result_bytes_max=1 << 20))

    @tools.tool(retry=FAST)
    def fetch(ctx: ToolContext, size: int) -> str:
        world.happen("fetch", size)
        return "x" * size

    with tools.attempt("b", 1) as attempt:
        assert len(attempt.call(fetch, 900_000)) == 900_000
        with pytest.raises(EffectFailed, match="result_bytes_max is 1048576") as first:
            attempt.call(fetch, 2 << 20)
    with tools.attempt("b", 1) as attempt:
        assert len(attempt.call(fetch, 900_000)) == 900_000
        with pytest.raises(EffectFailed) as again:
            attempt.call(fetch, 2 << 20)
    assert str(first.value) == str(again.value)
    assert [entry.data for entry in world.entries()] == [900_000, 2 << 20]


def test_row_19_equal_results_are_stored_once(log: EventLog, tools: Toolbox) -> None:
    @tools.tool()
    def same(ctx: ToolContext, n: int) -> str:
        return "y" * (1 << 20)

    with tools.attempt("b", 1) as attempt:
        for n in range(30):
            attempt.call(same, n)
    assert sum(file.stat().st_size for file in log.path.rglob("*") if file.is_file()) < 5 << 20
    assert len(list((log.path / "blobs").iterdir())) == 1
    assert all((log.path / "blobs").stat().st_mode & 0o077 == 0 for _ in (1,))


def test_a_result_that_the_log_cannot_take_still_commits(tmp_path: Path, world: Ledger) -> None:
    with EventLog.open(tmp_path / "small", commit_bytes_max=8000) as log:
        tools = Toolbox(log)

        @tools.tool()
        def fetch(ctx: ToolContext) -> str:
            world.happen("fetch")
            return "x" * 20_000

        @tools.tool()
        def huge(ctx: ToolContext) -> str:
            (log.path / "blobs").write_text("in the way")
            return "x" * 200_000

        results = []
        for _ in range(2):
            with tools.attempt("b", 1) as attempt:
                results.append([attempt.call(fetch)])
        (log.path / "blobs").rename(tmp_path / "away")
        for result in results:
            with tools.attempt("c", 1) as attempt:
                result.append(attempt.call(huge))
        assert results[0] == results[1]
        assert results[0][0] == "x" * 20_000
        assert "blobs" in results[0][1].why

        @tools.tool(EffectClass.TRANSACTIONAL, emits=True)
        def emit(ctx: ToolContext) -> None:
            ctx.emit(Event("wallet.booked", {"note": "y" * 20_000}))

        with tools.attempt("d", 1) as attempt, pytest.raises(EffectFailed, match="commit_bytes_max is 8000"):
            attempt.call(emit)
        assert list(log.read(types={"wallet.booked"})) == []
    assert len(world) == 1


def test_large_arguments_are_blobs_too_and_damage_is_noticed(log: EventLog, tools: Toolbox) -> None:
    @tools.tool()
    def size(ctx: ToolContext, text: str) -> str:
        return text[:100_000]

    def call() -> Any:
        with tools.attempt("b", 1) as attempt:
            return attempt.call(size, text="z" * 200_000)

    assert call() == call()
    (pending,) = log.read(types={"effect.pending"})
    assert "args" not in pending.data
    assert pending.data["args_blob"]["bytes"] > 200_000
    for blob in (log.path / "blobs").iterdir():
        blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    with pytest.raises(Corrupt, match="do not match"):
        call()


# -- failures -------------------------------------------------------------------------------------------------------------------


class HTTPStatusError(Exception):
    """Looks like that of httpx, which is not needed for it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.response = type("Response", (), {"status_code": status})()


HTTPStatusError.__module__ = "httpx"
ConnectTimeout = type("ConnectTimeout", (Exception,), {"__module__": "httpx"})
ReadTimeout = type("ReadTimeout", (Exception,), {"__module__": "httpx"})
McpError = type("McpError", (Exception,), {"__module__": "mcp.shared.exceptions", "error": type("E", (), {"code": -32602})()})
NewConnectionError = type("NewConnectionError", (Exception,), {"__module__": "urllib3.exceptions"})
MaxRetryError = type("MaxRetryError", (Exception,), {"__module__": "urllib3.exceptions", "reason": NewConnectionError("refused")})
RequestsConnectionError = type("ConnectionError", (OSError,), {"__module__": "requests.exceptions"})


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (NotSent("x"), "not_sent"),
        (Rejected("x"), "rejected"),
        (Unknown("x"), "unknown"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "not_sent"),
        (socket.gaierror(-2, "x"), "not_sent"),
        (OSError(errno.EHOSTUNREACH, "x"), "not_sent"),
        (ConnectionResetError(errno.ECONNRESET, "x"), "unknown"),
        (BrokenPipeError(errno.EPIPE, "x"), "unknown"),
        (TimeoutError("x"), "unknown"),
        (OSError(errno.ETIMEDOUT, "x"), "unknown"),
        (FileNotFoundError(errno.ENOENT, "x"), "rejected"),
        (PermissionError(errno.EACCES, "x"), "rejected"),
        (OSError(errno.ENOSPC, "x"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
        (asyncio.CancelledError(), "unknown"),
        (ValueError("x"), "unknown"),
        (HTTPStatusError(400), "rejected"),
        (HTTPStatusError(404), "rejected"),
        (HTTPStatusError(422), "rejected"),
        (HTTPStatusError(408), "unknown"),
        (HTTPStatusError(409), "unknown"),
        (HTTPStatusError(429), "unknown"),
        (HTTPStatusError(500), "unknown"),
        (HTTPStatusError(503), "unknown"),
        (ConnectTimeout("x"), "not_sent"),
        (ReadTimeout("x"), "unknown"),
        (McpError("x"), "not_sent"),
        (RequestsConnectionError(MaxRetryError("x")), "not_sent"),
        (RequestsConnectionError("reset"), "unknown"),
    ],
)
def test_what_an_exception_says(error: BaseException, verdict: str) -> None:
    assert judge(error).verdict == verdict


def test_a_registration_may_say_more() -> None:
    assert judge(ValueError("x"), rejects=(ValueError,)).verdict == "rejected"
    assert judge(KeyError("x"), not_sent=(LookupError,)).verdict == "not_sent"
    assert judge(ValueError("x"), classify=lambda error: NotSent("no", retry_after=3)).retry_after == 3
    assert judge(ValueError("x"), classify=lambda error: None).verdict == "unknown"
    assert judge(ValueError("x"), classify=lambda error: 1 / 0).verdict == "unknown"  # type: ignore[arg-type, return-value]
    assert judge(NotSent("a\ud800b", data={"x": {1}})).error["message"] == "a?b"


def test_a_rejection_is_an_outcome_and_replays_equal(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    @tools.tool(retry=FAST)
    def pay(ctx: ToolContext) -> None:
        world.happen("asked")
        raise Rejected("card declined", data={"code": 51})

    raised = []
    for _ in range(2):
        with tools.attempt("b", 1) as attempt, pytest.raises(Rejected) as caught:
            attempt.call(pay)
        raised.append(caught.value)
    assert [(str(e), e.data, e.error_type, e.intent) for e in raised] == [
        ("b@1:1: card declined", {"code": 51}, "eventlog.recovery.errors.Rejected", "b@1:1")
    ] * 2
    assert len(world) == 1
    assert types(log) == ["pending", "dispatched", "outcome", "committed"]


def test_not_sent_is_retried_in_every_class_and_each_try_is_recorded(log: EventLog, tools: Toolbox) -> None:
    tries: list[int] = []

    @tools.tool(EffectClass.NON_IDEMPOTENT, retry=FAST)
    def act(ctx: ToolContext) -> int:
        tries.append(ctx.try_number)
        if ctx.try_number < 3:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        return ctx.try_number

    with tools.attempt("b", 1) as attempt:
        assert attempt.call(act) == 3
    assert tries == [1, 2, 3]
    assert types(log) == ["pending", *["dispatched", "not_sent"] * 2, "dispatched", "outcome", "committed"]


def test_attempts_include_the_first_and_the_last_failure_is_the_outcome(log: EventLog, tools: Toolbox) -> None:
    tries: list[int] = []

    @tools.tool(retry=RetryPolicy(attempts_max=2, initial_s=0.0))
    def act(ctx: ToolContext) -> int:
        tries.append(ctx.try_number)
        raise NotSent("down")

    for _ in range(2):
        with tools.attempt("b", 1) as attempt, pytest.raises(NotSent, match="down"):
            attempt.call(act)
    assert tries == [1, 2]
    assert recover(log, tools).intents == [], "what the caller was told is final: recovery must not send it behind its back"


def test_row_4_an_unknown_try_is_never_repeated_by_a_policy(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    @tools.tool(EffectClass.NON_IDEMPOTENT, retry=FAST)
    def transfer(ctx: ToolContext) -> None:
        world.happen("transfer")
        raise TimeoutError("the answer was lost")

    with tools.attempt("b", 1) as attempt, pytest.raises(Indeterminate, match="at most once") as caught:
        attempt.call(transfer)
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert len(world) == 1
    assert state(log, "b@1:1") is IntentState.INDETERMINATE
    assert types(log) == ["pending", "dispatched", "classified", "resolved"]
    with tools.attempt("b", 1) as attempt, pytest.raises(Indeterminate):
        attempt.call(transfer)
    recover(log, tools)
    assert len(world) == 1


@pytest.mark.parametrize("class_", [EffectClass.READ_ONLY, EffectClass.IDEMPOTENT, EffectClass.KEYED])
def test_unknown_is_repeated_where_the_class_allows_it(log: EventLog, tools: Toolbox, class_: EffectClass) -> None:
    keys: set[str] = set()
    resends: list[bool] = []

    @tools.tool(class_, key_ttl=timedelta(hours=1), retry=FAST)
    def act(ctx: ToolContext) -> str:
        keys.add(ctx.idempotency_key)
        resends.append(ctx.resend)
        if len(resends) < 3:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        return "done"

    with tools.attempt("b", 1) as attempt:
        assert attempt.call(act) == "done"
    assert resends == [False, True, True]
    assert len(keys) == 1, "every try sends the same key"


def test_a_read_that_keeps_failing_is_an_error_not_a_riddle(log: EventLog, tools: Toolbox) -> None:
    @tools.tool(EffectClass.READ_ONLY)
    def look(ctx: ToolContext) -> None:
        raise ValueError("bad page")

    with tools.attempt("b", 1) as attempt, pytest.raises(EffectFailed, match="bad page") as caught:
        attempt.call(look)
    assert caught.value.error_type == "ValueError"
    assert state(log, "b@1:1") is IntentState.COMMITTED


def test_a_refused_resend_says_nothing_about_the_first(log: EventLog, tools: Toolbox) -> None:
    """412 on the second try may well mean that the first one worked."""
    tries: list[int] = []

    @tools.tool(EffectClass.IDEMPOTENT, retry=FAST)
    def put(ctx: ToolContext) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        raise Rejected("precondition failed")

    with tools.attempt("b", 1) as attempt, pytest.raises(Indeterminate):
        attempt.call(put)
    assert state(log, "b@1:1") is not IntentState.COMMITTED


def test_ctrl_c_in_a_tool_is_recorded_and_goes_on(log: EventLog, tools: Toolbox) -> None:
    @tools.tool()
    def act(ctx: ToolContext) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), tools.attempt("b", 1) as attempt:
        attempt.call(act)
    assert types(log) == ["pending", "dispatched", "classified", "resolved"]
    assert state(log, "b@1:1") is IntentState.INDETERMINATE


class InterruptingFileSystem(FileSystem):
    """The real file system; Ctrl-C comes when the n-th sync from now is done, which is when a commit is on disk and has not returned."""

    left = -1

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        os.fdatasync(fd)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_ctrl_c_in_a_commit_that_is_there_all_the_same(tmp_path: Path, world: Ledger, nth: int) -> None:
    fs = InterruptingFileSystem()
    with EventLog.open(tmp_path / "log", fs=fs) as log:
        tools = Toolbox(log)

        @tools.tool(EffectClass.KEYED, key_ttl=timedelta(hours=1))
        def act(ctx: ToolContext, n: int) -> int:
            world.happen("act", key=ctx.idempotency_key)
            return n

        with tools.attempt("b", 1) as attempt:
            attempt.call(act, 0)
            fs.left = nth
            with pytest.raises((KeyboardInterrupt, EventLogError)):
                attempt.call(act, 1)
            try:
                assert attempt.call(act, 1, step=2) == 1
            except EventLogError as error:
                assert isinstance(error, LogPoisoned), "either the handle is done for, or it knows what it wrote"
    with EventLog.open(tmp_path / "log") as log:
        tools = Toolbox(log)
        tools.tool(EffectClass.KEYED, name="act", key_ttl=timedelta(hours=1))(lambda ctx, n: n)
        recover(log, tools)
        assert state(log, "b@1:2") is IntentState.COMMITTED, "and the fold finds nothing impossible"


def test_stop_iteration_does_not_break_the_seal(tools: Toolbox) -> None:
    @tools.tool(EffectClass.READ_ONLY)
    def act(ctx: ToolContext) -> None:
        raise StopIteration(3)

    with tools.attempt("b", 1) as attempt:
        for _ in range(2):
            with pytest.raises(EffectFailed) as caught:
                attempt.call(act)
            assert caught.value.error_type == "StopIteration"


def test_row_13_a_try_that_is_still_running_is_not_repeated_beside_itself(log: EventLog, tools: Toolbox) -> None:
    running, most = [0], [0]
    go = threading.Event()

    @tools.tool(EffectClass.IDEMPOTENT, timeout=0.05, retry=FAST)
    def slow(ctx: ToolContext) -> str:
        running[0] += 1
        most[0] = max(most[0], running[0])
        go.wait(10)
        running[0] -= 1
        return "late"

    attempt = tools.attempt("b", 1).__enter__()
    with pytest.raises(Indeterminate, match="not come back"):
        attempt.call(slow)
    attempt.__exit__(None, None, None)
    assert log.owned("effects:b"), "a call that is still out is somebody alive"
    assert recover(log, tools).alive == ["b@1"]
    go.set()
    wait_for(lambda: not log.owned("effects:b"))
    assert (running, most) == ([0], [1])
    with tools.attempt("b", 1) as again:
        assert again.call(slow) == "late", "a late result is kept, and is the outcome"
    assert types(log) == ["pending", "dispatched", "classified", "outcome", "committed"]


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_no_try_is_made_behind_the_deadline(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    @tools.tool(deadline=60, retry=RetryPolicy(attempts_max=50, initial_s=0.0))
    def act(ctx: ToolContext) -> None:
        world.happen("tried")
        raise NotSent("down", retry_after=0 if ctx.try_number < 3 else 120)

    with tools.attempt("b", 1) as attempt, pytest.raises(NotSent):
        attempt.call(act)
    assert len(world) == 3
    assert state(log, "b@1:1") is IntentState.COMMITTED


def test_row_30_tries_are_counted_over_a_restart(tmp_path: Path, world: Ledger) -> None:
    code = (
        "import sys; from eventlog import EventLog; from eventlog.recovery import *; from eventlog.testing import Ledger\n"
        "log = EventLog.open(sys.argv[1]); tools = Toolbox(log)\n"
        "@tools.tool(retry=RetryPolicy(attempts_max=4, initial_s=0.0))\n"
        "def act(ctx):\n"
        "    Ledger(sys.argv[2]).happen('try', ctx.try_number)\n"
        "    if ctx.try_number == 2 and sys.argv[3] == 'die': raise NotSent('down', retry_after=60)\n"
        "    raise NotSent('down')\n"
        "with tools.attempt('b', 1) as attempt: attempt.call(act)\n"
    )
    root = str(Path(eventlog.recovery.__file__).parent.parent.parent)
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log"), str(world.path), "die"], cwd=root)
    wait_for(lambda: len(world) == 2)
    with EventLog.open(tmp_path / "log") as log:
        wait_for(lambda: types(log).count("not_sent") == 2)
        child.kill()
        child.wait()
        intent = fold(EFFECTS, log).intents["b@1:1"]
        assert (intent.state, intent.tries) == (IntentState.PENDING, 2)
        assert intent.retry_at_ns is not None
        assert intent.retry_at_ns > time.time_ns() + 30e9, "Retry-After outlives the crash"


# -- keys -----------------------------------------------------------------------------------------------------------------------


def test_row_3_the_runtime_owns_the_key(tools: Toolbox) -> None:
    @tools.tool(EffectClass.KEYED, key_ttl=timedelta(hours=1))
    def pay(ctx: ToolContext, amount: int, idempotency_key: str = "") -> list[str]:
        return [idempotency_key, ctx.idempotency_key]

    with tools.attempt("b", 1) as attempt:
        sent, ours = attempt.call(pay, 1, idempotency_key="the model's own")
    assert sent == ours != "the model's own"
    with tools.attempt("b", 1) as attempt:
        assert attempt.call(pay, 1, idempotency_key="another at the next try") == [ours, ours]


def test_key_scopes(log: EventLog, tools: Toolbox) -> None:
    keys: dict[str, list[str]] = {"attempt": [], "branch": [], "operation": []}
    made = {}
    for scope in keys:

        def pay(ctx: ToolContext, order: str) -> str:
            return ctx.idempotency_key

        made[scope] = tools.tool(
            EffectClass.KEYED, name=scope, key_ttl=timedelta(hours=1), key_scope=scope, operation="order" if scope == "operation" else None
        )(pay)
    for branch, number in (("a", 1), ("a", 2), ("b", 1)):
        with tools.attempt(branch, number) as attempt:
            for scope, tool in made.items():
                keys[scope].append(attempt.call(tool, "o-1"))
    assert len(set(keys["attempt"])) == 3
    assert keys["branch"][0] == keys["branch"][1] != keys["branch"][2]
    assert len(set(keys["operation"])) == 1
    assert all(len(key) == 40 and key.isascii() for found in keys.values() for key in found)
    # What a receiver remembers outlives a version of ours: the parts and their order stay.
    first = [
        (scope, derived(log.id, *parts))
        for scope, parts in (
            ("attempt", ("a", "attempt", "1", "1", "attempt")),
            ("branch", ("a", "branch", "", "2", "branch")),
            ("operation", ("operation", "operation", "o-1")),
        )
    ]
    assert [(scope, keys[scope][0]) for scope in keys] == first


def derived(*parts: str) -> str:
    counted = b"".join(b"%d:%b" % (len(part.encode()), part.encode()) for part in parts)
    return hashlib.sha256(counted).hexdigest()[:40]


def test_row_2_a_new_attempt_waits_for_what_the_old_one_may_have_done(log: EventLog, tools: Toolbox) -> None:
    @tools.tool(EffectClass.KEYED, key_ttl=timedelta(hours=1), key_scope="operation", operation="order")
    def keyed(ctx: ToolContext, order: str) -> str:
        seen.append(ctx.idempotency_key)
        if len(seen) == 1:
            raise TimeoutError
        return "paid"

    @tools.tool()
    def opaque(ctx: ToolContext) -> None:
        raise TimeoutError

    seen: list[str] = []
    with tools.attempt("a", 1) as attempt, pytest.raises(Indeterminate):
        attempt.call(keyed, order="17")
    with tools.attempt("a", 2) as attempt:
        assert attempt.call(keyed, order="17") == "paid"
    assert seen[0] == seen[1], "scope operation: the new attempt carries the old key"
    with tools.attempt("b", 1) as attempt, pytest.raises(Indeterminate):
        attempt.call(opaque)
    with pytest.raises(UnresolvedIntents, match="b@1:1") as caught, tools.attempt("b", 2):
        pass
    assert caught.value.intents == ("b@1:1",)


# -- who may act ----------------------------------------------------------------------------------------------------------------


def test_one_live_attempt_a_branch_and_none_older_than_the_newest(log: EventLog, tools: Toolbox) -> None:
    @tools.tool()
    def act(ctx: ToolContext) -> int:
        return 1

    with tools.attempt("b", 1) as attempt:
        attempt.call(act)
        for number in (1, 2):
            with pytest.raises(AttemptBusy), tools.attempt("b", number):
                pass
        with tools.attempt("other", 1) as other:
            other.call(act)
    with tools.attempt("b", 2) as attempt:
        attempt.call(act)
    with pytest.raises(StaleAttempt, match="attempt 2"), tools.attempt("b", 1):
        pass


def test_a_call_that_outlives_its_attempt_keeps_the_branch(log: EventLog, tools: Toolbox) -> None:
    go, out = threading.Event(), threading.Event()

    @tools.tool()
    def act(ctx: ToolContext) -> str:
        out.set()
        go.wait(10)
        return "done"

    with tools.attempt("b", 1) as attempt:
        thread = threading.Thread(target=lambda: attempt.call(act, step="s"))
        thread.start()
        assert out.wait(10)
    assert log.owned("effects:b"), "its thread still acts for the branch"
    go.set()
    thread.join()
    assert not log.owned("effects:b")
    assert state(log, "b@1:s") is IntentState.COMMITTED


def test_a_late_result_after_the_log_was_closed_changes_nothing(tmp_path: Path) -> None:
    go, gone = threading.Event(), threading.Event()
    with EventLog.open(tmp_path / "log") as log:
        tools = Toolbox(log)

        @tools.tool(timeout=0.02)
        def act(ctx: ToolContext) -> str:
            go.wait(10)
            gone.set()
            return "too late"

        with tools.attempt("b", 1) as attempt, pytest.raises(Indeterminate):
            attempt.call(act)
    go.set()
    assert gone.wait(10)
    wait_for(lambda: not any(thread.name == "eventlog-tool" for thread in threading.enumerate()))
    with EventLog.open(tmp_path / "log") as log:
        assert not log.owned("effects:b")
        assert state(log, "b@1:1") is IntentState.DISPATCHED
        assert [found.verdict for found in recover(log).intents] == ["may have been sent"]


def test_an_attempt_is_open_once(tools: Toolbox) -> None:
    @tools.tool()
    def act(ctx: ToolContext) -> int:
        return 1

    attempt = tools.attempt("b", 1)
    with pytest.raises(EffectError, match="not open"):
        attempt.call(act)
    with attempt:
        pass
    with pytest.raises(EffectError, match="not open"):
        attempt.call(act)
    with pytest.raises(EffectError, match="opened once"), attempt:
        pass


def test_a_tool_of_another_toolbox_is_refused(log: EventLog, tools: Toolbox) -> None:
    @Toolbox(log).tool()
    def act(ctx: ToolContext) -> None:
        raise AssertionError("never")

    with tools.attempt("b", 1) as attempt, pytest.raises(BadTool, match="another Toolbox"):
        attempt.call(act)


def test_row_14_one_step_runs_once_across_threads(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    @tools.tool()
    def act(ctx: ToolContext) -> str:
        world.happen("act")
        time.sleep(0.05)
        return "once"

    results: list[Any] = []
    with tools.attempt("b", 1) as attempt:
        threads = [threading.Thread(target=lambda: results.append(attempt.call(act, step="only"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == ["once"] * 8
    assert len(world) == 1


def test_row_14_one_step_runs_once_across_processes(tmp_path: Path, world: Ledger) -> None:
    code = (
        "import sys, time; from eventlog import EventLog; from eventlog.recovery import *; from eventlog.testing import Ledger\n"
        "log = EventLog.open(sys.argv[1]); tools = Toolbox(log)\n"
        "@tools.tool()\n"
        "def act(ctx): Ledger(sys.argv[2]).happen('act'); time.sleep(0.05); return 'once'\n"
        "for _ in range(1000):\n"
        "    try:\n"
        "        with tools.attempt('b', 1) as attempt: print(attempt.call(act)); break\n"
        "    except AttemptBusy: time.sleep(0.01)\n"
    )
    root = str(Path(eventlog.recovery.__file__).parent.parent.parent)
    command = [sys.executable, "-c", code, str(tmp_path / "log"), str(world.path)]
    children = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [child.communicate(timeout=60)[0].strip() for child in children] == ["once"] * 3
    assert len(world) == 1


def test_other_threads_name_their_steps(tools: Toolbox) -> None:
    @tools.tool()
    def act(ctx: ToolContext) -> str:
        return str(ctx.intent)

    caught: list[Any] = []

    def work() -> None:
        try:
            attempt.call(act)
        except StepRequired as error:
            caught.append(error)
        caught.append(attempt.call(act, step="mine"))

    with tools.attempt("b", 1) as attempt:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert attempt.call(act) == "b@1:1", "a refused call takes no number"
    assert isinstance(caught[0], StepRequired)
    assert caught[1] == "b@1:mine"


def test_calls_inside_a_tool_name_their_step(tools: Toolbox) -> None:
    @tools.tool(EffectClass.READ_ONLY)
    def inner(ctx: ToolContext) -> str:
        return str(ctx.intent)

    @tools.tool(EffectClass.READ_ONLY)
    def outer(ctx: ToolContext) -> str:
        with pytest.raises(StepRequired):
            attempt.call(inner)
        return str(attempt.call(inner, step="inner"))

    with tools.attempt("b", 1) as attempt:
        assert attempt.call(outer) == "b@1:inner"


def test_row_31_many_threads_and_a_reading_process(tmp_path: Path, log: EventLog, tools: Toolbox) -> None:
    @tools.tool()
    def act(ctx: ToolContext, n: int) -> int:
        return n

    results: list[int] = []
    with tools.attempt("b", 1) as attempt:

        def work(number: int) -> None:
            results.extend(attempt.call(act, n, step=f"{number}-{n}") for n in range(20))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        with EventLog.open(log.path, read_only=True) as reader:
            while any(thread.is_alive() for thread in threads):
                fold(EFFECTS, reader)
        for thread in threads:
            thread.join()
    folded = fold(EFFECTS, log)
    assert folded.by_state[IntentState.COMMITTED] == len(results) == 320


def test_row_32_an_open_reader_blocks_no_writer(log: EventLog, tools: Toolbox) -> None:
    @tools.tool()
    def act(ctx: ToolContext, n: int) -> int:
        return n

    run(tools, act, range(20))
    reader = log.read()
    first = [next(reader) for _ in range(5)]
    with tools.attempt("other", 1) as attempt:
        for n in range(50):
            attempt.call(act, n)
    rest = list(reader)
    assert [event.seq for event in first + rest] == list(range(1, 81)), "it goes on to where the head was when it began"


# -- registration ---------------------------------------------------------------------------------------------------------------


def ask(view: IntentView) -> Any:
    return Unknown("?")


@pytest.mark.parametrize(
    ("class_", "options", "why"),
    [
        (EffectClass.KEYED, {}, "key_ttl"),
        (EffectClass.RECONCILABLE, {}, "reconcile"),
        (EffectClass.TRANSACTIONAL, {}, "emits=True"),
        (EffectClass.TRANSACTIONAL, {"emits": True, "reconcile": ask}, "emits=True"),
        (EffectClass.IDEMPOTENT, {"emits": True}, "TRANSACTIONAL"),
        (EffectClass.IDEMPOTENT, {"resource": "nowhere"}, "nowhere"),
        (EffectClass.IDEMPOTENT, {"operation": "x"}, "go together"),
        (EffectClass.IDEMPOTENT, {"key_scope": "operation"}, "go together"),
        (EffectClass.READ_ONLY, {"version": 2}, "version=2 is no plain string"),
        (EffectClass.READ_ONLY, {"name": IntentState.PENDING}, "no plain string"),
    ],
)
def test_a_registration_that_could_not_be_recovered_is_refused(tools: Toolbox, class_: EffectClass, options: Any, why: str) -> None:
    with pytest.raises(BadTool, match=why):

        @tools.tool(class_, **options)
        def act(ctx: ToolContext, x: int) -> None:
            raise AssertionError("never")


def test_other_bad_registrations(tools: Toolbox, log: EventLog) -> None:
    with pytest.raises(BadTool, match="step"):
        tools.tool()(lambda ctx, step: None)
    with pytest.raises(BadTool, match="ctx"):
        tools.tool()(lambda: None)
    tools.guard(lambda: 1, name="one")
    with pytest.raises(BadTool, match="taken"):
        tools.guard(lambda: 2, name="one")
    with pytest.raises(BadTool):
        RetryPolicy(attempts_max=0)
    with EventLog.open(log.path, read_only=True) as reader, pytest.raises(ReadOnly):
        Toolbox(reader)


def test_the_default_class_is_the_most_dangerous(tools: Toolbox) -> None:
    assert tools.tool()(lambda ctx: None).spec.effect_class is EffectClass.NON_IDEMPOTENT
    assert tools.guard(len).spec.effect_class is EffectClass.NON_IDEMPOTENT


def test_any_callable_can_be_guarded_without_a_decorator(tools: Toolbox) -> None:
    class Client:
        def get(self, key: str) -> str:
            return key.upper()

    get = tools.guard(Client().get, EffectClass.READ_ONLY)
    with tools.attempt("b", 1) as attempt:
        assert attempt.call(get, key="x") == "X"


def test_a_transactional_tool_commits_its_events_with_its_outcome(log: EventLog, tools: Toolbox) -> None:
    @tools.tool(EffectClass.TRANSACTIONAL, emits=True)
    def book(ctx: ToolContext, amount: int) -> int:
        ctx.emit(Event("wallet.booked", {"amount": amount}, "wallet"))
        if amount < 0:
            raise ValueError("negative")
        return amount

    with tools.attempt("b", 1) as attempt:
        attempt.call(book, 5)
        with pytest.raises(EffectFailed, match="negative"):
            attempt.call(book, -1)
    assert [event.data["amount"] for event in log.read(types={"wallet.booked"})] == [5]
    assert [row[0] for row in list(log.commits())[2][2]] == ["wallet.booked", "effect.outcome", "effect.committed"]


# -- coroutines -----------------------------------------------------------------------------------------------------------------


def test_gather_numbers_its_steps_when_it_calls(tools: Toolbox) -> None:
    @tools.tool(EffectClass.READ_ONLY)
    async def look(ctx: ToolContext, n: int) -> str:
        await asyncio.sleep(0.02 / (n + 1))
        return f"{n} as {ctx.intent}"

    async def main() -> list[str]:
        async with tools.attempt("b", 1) as attempt:
            return list(await asyncio.gather(*(attempt.acall(look, n) for n in range(5))))

    first = asyncio.run(main())
    assert first == [f"{n} as b@1:{n + 1}" for n in range(5)]
    assert asyncio.run(main()) == first


def test_one_attempt_over_two_loops(tools: Toolbox) -> None:
    @tools.tool(EffectClass.READ_ONLY)
    async def look(ctx: ToolContext) -> str:
        return str(ctx.intent)

    with tools.attempt("b", 1) as attempt:

        async def main() -> str:
            return str(await attempt.acall(look))

        assert [asyncio.run(main()), asyncio.run(main())] == ["b@1:1", "b@1:2"]


def test_other_tasks_name_their_steps(tools: Toolbox) -> None:
    @tools.tool(EffectClass.READ_ONLY)
    async def look(ctx: ToolContext) -> str:
        return str(ctx.intent)

    async def main() -> None:
        async with tools.attempt("b", 1) as attempt:

            async def other() -> str:
                with pytest.raises(StepRequired):
                    await attempt.acall(look)
                return str(await attempt.acall(look, step="other"))

            assert await asyncio.create_task(other()) == "b@1:other"

    asyncio.run(main())


def test_sync_and_async_tools_in_their_own_calls(tools: Toolbox) -> None:
    @tools.tool(EffectClass.READ_ONLY)
    def sync(ctx: ToolContext) -> bool:
        return threading.current_thread() is threading.main_thread()

    @tools.tool(EffectClass.READ_ONLY)
    async def coroutine(ctx: ToolContext) -> None:
        return None

    async def main() -> None:
        async with tools.attempt("b", 1) as attempt:
            assert await attempt.acall(sync) is False, "a synchronous tool must not stop the event loop"
            with pytest.raises(EffectError, match="acall"):
                attempt.call(coroutine)

    asyncio.run(main())


def test_row_9_a_cancelled_await_ends_in_a_record(log: EventLog, tools: Toolbox) -> None:
    @tools.tool()
    async def act(ctx: ToolContext) -> None:
        started.set()
        await asyncio.sleep(30)

    started = asyncio.Event()

    async def main() -> None:
        async with tools.attempt("b", 1) as attempt:
            task = asyncio.ensure_future(attempt.acall(act, step="only"))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert types(log) == ["pending", "dispatched", "classified", "resolved"]
    assert state(log, "b@1:only") is IntentState.INDETERMINATE


def test_an_await_that_is_cancelled_before_the_call_was_never_sent(log: EventLog, tools: Toolbox, world: Ledger) -> None:
    @tools.tool()
    async def act(ctx: ToolContext) -> None:
        world.happen("act")

    async def main() -> None:
        async with tools.attempt("b", 1) as attempt:
            for delay in range(40):  # ends in every place of the protocol
                task = asyncio.ensure_future(attempt.acall(act, step=f"s{delay}"))
                for _ in range(delay):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    states = [intent.state for intent in fold(EFFECTS, log).intents.values()]
    sent = sum(one not in (IntentState.PENDING, IntentState.CANCELLED) for one in states)
    assert len(world) <= sent
    assert not any(one is IntentState.DISPATCHED for one in states), "each of them ends in a record"


def test_an_async_timeout_is_unknown(log: EventLog, tools: Toolbox) -> None:
    @tools.tool(timeout=0.02)
    async def act(ctx: ToolContext) -> None:
        await asyncio.sleep(30)

    async def main() -> None:
        async with tools.attempt("b", 1) as attempt:
            with pytest.raises(Indeterminate) as caught:
                await attempt.acall(act)
            assert "0.02 s" in str(caught.value.__cause__)

    asyncio.run(main())
    assert state(log, "b@1:1") is IntentState.INDETERMINATE


class ThreadNotingFileSystem(FileSystem):
    """The real file system, noting which threads wait for the disk."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self.threads.add(threading.current_thread().name)
        os.fdatasync(fd)


def test_row_33_no_sync_happens_on_the_event_loop(tmp_path: Path) -> None:
    fs = ThreadNotingFileSystem()
    with EventLog.open(tmp_path / "log", fs=fs) as log:
        tools = Toolbox(log)

        @tools.tool()
        async def act(ctx: ToolContext, n: int) -> str:
            return "x" * (100_000 if n == 3 else 1)

        async def main() -> None:
            async with tools.attempt("b", 1) as attempt:
                fs.threads.clear()
                await asyncio.gather(*(attempt.acall(act, n) for n in range(50)))
                assert fs.threads
                assert threading.main_thread().name not in fs.threads

        asyncio.run(main())


def test_every_export_is_intended() -> None:
    exported = eventlog.recovery.__all__
    assert sorted(exported, key=lambda name: (not name[0].isupper(), name)) == exported
    assert all(hasattr(eventlog.recovery, name) for name in exported)
