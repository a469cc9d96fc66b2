"""What may come while a record is on its way to the disk: a close, a cancel, a person, Ctrl-C, a second thread, the end of a loop.

Whatever comes, the program sees what the log says, nothing is told before it is durable, and nobody hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from interrupting import interrupt, within

from eventlog import Event, EventLog, EventLogError, LogClosed, crashpoints
from eventlog.fs import FileSystem
from eventlog.projections import EFFECTS, IntentState, fold
from eventlog.projections import effect_events as ev
from eventlog.recovery import (
    CancelStatus,
    DidNotHappen,
    EffectClass,
    EffectError,
    Happened,
    IntentId,
    IntentView,
    Limits,
    NeedsApproval,
    NotSent,
    RetryPolicy,
    Toolbox,
    ToolContext,
    recover,
    resolve,
)
from eventlog.recovery.sealed import inside_tool
from eventlog.testing import FaultFileSystem


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log") as opened:
        for _ in range(3):
            opened.commit(Event("warm", {}))  # from here on a lone commit takes the short road
        yield opened


def state(log: EventLog, text: str) -> IntentState | None:
    intent = fold(EFFECTS, log).intents.get(text)
    return None if intent is None else intent.state


def types(log: EventLog) -> list[str]:
    return [event.type for event in log.read() if event.type != "warm"]


def states(log: EventLog) -> dict[str, IntentState]:
    return {text: intent.state for text, intent in fold(EFFECTS, log).intents.items()}


# -- the end of a log --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1])
def test_a_log_that_is_closed_under_its_coroutines_leaves_none_of_them_waiting(tmp_path: Path, before: int) -> None:
    """A wait for a record refuses to be cancelled, so it must get its answer even when the thread that writes for coroutines is gone."""

    async def main() -> list[Any]:
        with EventLog.open(tmp_path / "log") as log:
            tools = Toolbox(log)

            @tools.tool()
            async def act(ctx: ToolContext) -> None: ...

            async with tools.attempt("b") as attempt:
                for number in range(before):
                    await attempt.acall(act, step=f"before-{number}")  # now that thread runs
                calls = [asyncio.ensure_future(attempt.acall(act, step=f"s{number}")) for number in range(3)]
                await asyncio.sleep(0)  # their Pending events are in the queue
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = within(10, lambda: asyncio.run(main()))
    assert [type(answer) for answer in answers] == [LogClosed] * 3, answers
    with EventLog.open(tmp_path / "log") as log:
        assert fold(EFFECTS, log).by_state[IntentState.PENDING] == 3, "what was begun is written, as a commit of a thread is"


def test_a_call_that_begins_behind_the_end_of_its_attempt_sends_nothing(log: EventLog) -> None:
    tools = Toolbox(log)

    @tools.tool()
    async def act(ctx: ToolContext) -> None:
        raise AssertionError("sent, while somebody else may own the branch")

    async def main() -> None:
        async with tools.attempt("b") as attempt:
            task = asyncio.ensure_future(attempt.acall(act, step="x"))
        with pytest.raises(EffectError, match="not open"):
            await task

    asyncio.run(main())
    assert types(log) == []


def test_a_coroutine_that_is_closed_takes_its_record_out_of_the_queue(tmp_path: Path) -> None:
    """Else it would come behind the next look at the log, and the next call would write it a second time."""
    fs = Held()
    with EventLog.open(tmp_path / "log", fs=fs) as log:
        tools = Toolbox(log)

        @tools.tool()
        async def act(ctx: ToolContext) -> int:
            return 1

        async def main() -> int:
            async with tools.attempt("b") as attempt:
                fs.hold("leader")
                leader = threading.Thread(target=lambda: log.commit(Event("warm", {})), name="leader")
                leader.start()
                fs.reached.wait(10)
                call = attempt.acall(act, step="x").__await__()
                next(call)  # its Pending is in the queue behind the leader's
                call.close()  # type: ignore[attr-defined]
                assert attempt.intents == []
                fs.go_on.set()
                leader.join()
                answer: int = await attempt.acall(act, step="x")
                return answer

        assert asyncio.run(main()) == 1
        assert states(log) == {"b@1:x": IntentState.COMMITTED}


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------------------


class Held(FileSystem):
    """The real file system; the next sync of the thread of that name is held up when it has `reached` the disk, and then may fail."""

    def __init__(self) -> None:
        self.reached, self.go_on, self.thread, self.fails = threading.Event(), threading.Event(), "", False

    def hold(self, thread: str, *, fails: bool = False) -> None:
        self.thread, self.fails = thread, fails
        self.reached.clear()
        self.go_on.clear()

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        if threading.current_thread().name == self.thread:
            self.thread = ""
            self.reached.set()
            self.go_on.wait(10)
            if self.fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(fd)


SCENES: dict[str, dict[str, Any]] = {"plain": {}, "timeout": {"timeout": 5}, "approved": {"approval": True}}


@pytest.mark.parametrize("scene", SCENES)
def test_ctrl_c_at_any_point_of_a_call_leaves_an_attempt_that_works(scene: str) -> None:
    """The state is what the log says, the step and a cancel come to their end, nothing was sent twice, and the branch is free."""
    stride = 1 if scene == "plain" else 7
    nth = first = random.SystemRandom().randrange(1, stride + 1)
    print(f"first {first}")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as path:
        while contextvars.copy_context().run(_interrupted, Path(path) / str(nth), scene, nth) is not None:
            nth += stride
    print(f"{scene}: {nth} points")
    assert nth > 300


def _interrupted(path: Path, scene: str, nth: int) -> str | None:
    sent: list[int] = []
    with EventLog.open(path, batch_window_ms=600_000) as log:
        for _ in range(3):
            log.commit(Event("warm", {}))
        tools = Toolbox(log)

        @tools.tool(**SCENES[scene])
        def act(ctx: ToolContext, n: int) -> int:
            sent.append(n)
            return n

        attempt = tools.attempt("b").__enter__()
        if scene == "approved":
            with pytest.raises(NeedsApproval):
                attempt.call(act, n=1, step="x")
            resolve(log, "b@1:x", "approve", expected_version=fold(EFFECTS, log).intents["b@1:x"].version, actor="ann", reason="r")

        def call() -> None:
            try:
                attempt.call(act, n=1, step="x")
            except EffectError:
                return  # what it came to is looked at below

        where = interrupt(nth, call)
        assert not inside_tool(), where
        assert {one.id.text: one.state for one in attempt.intents} == states(log), where
        if nth % 2:
            assert within(5, call) is None, where
        cancelled = within(5, attempt.cancel)
        assert not isinstance(cancelled, BaseException), (where, cancelled)
        assert {one.id.text: one.state for one in attempt.intents} == states(log), where
        assert len(sent) <= 1, where
        attempt.__exit__(None, None, None)
        end = time.monotonic() + 5
        while log.owned("effects:b") and time.monotonic() < end:
            time.sleep(0.001)
        assert not log.owned("effects:b"), where
    return where


def test_a_signal_handler_that_cancels_in_the_middle_of_a_call_is_told_so(tmp_path: Path) -> None:
    """It cannot wait for the call that it interrupts."""

    class Signalling(FileSystem):
        armed = False

        def fdatasync(self, fd: int) -> None:  # type: ignore[override]
            os.fdatasync(fd)
            if self.armed:
                self.armed = False
                os.kill(os.getpid(), signal.SIGUSR1)

    fs, refused = Signalling(), []
    with EventLog.open(tmp_path / "log", fs=fs) as log:
        tools = Toolbox(log)

        @tools.tool()
        def act(ctx: ToolContext) -> int:
            return 1

        def handler(number: int, frame: FrameType | None) -> None:
            with pytest.raises(EffectError, match="signal handler"):
                attempt.cancel()
            refused.append(number)

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            with tools.attempt("b") as attempt:
                fs.armed = True
                assert attempt.call(act) == 1
                assert attempt.cancel().happened == ("b@1:1",)
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert refused == [signal.SIGUSR1]


# -- a cancel ----------------------------------------------------------------------------------------------------------------------


def test_a_cancel_does_not_stop_the_loop_that_it_waits_for(tmp_path: Path) -> None:
    """It waits for what is on its way to the log; the coroutine that writes that needs the loop, and must not find it spinning."""
    fs = Held()
    with EventLog.open(tmp_path / "log", fs=fs) as log:
        tools = Toolbox(log)

        @tools.tool()
        async def act(ctx: ToolContext, name: str) -> str:
            return name

        async def main() -> tuple[Any, list[Any]]:
            async with tools.attempt("b") as attempt:
                core = attempt._guard.core  # type: ignore[union-attr]
                first = asyncio.ensure_future(attempt.acall(act, "first", step="first"))
                while "b@1:first" not in states(log):
                    await asyncio.sleep(0)
                fs.hold("eventlog-async")  # the first one's Dispatched
                while not fs.reached.is_set():
                    await asyncio.sleep(0)
                second = asyncio.ensure_future(attempt.acall(act, "second", step="second"))
                for _ in range(3):
                    await asyncio.sleep(0)  # its Pending is in the queue
                cancel = asyncio.ensure_future(attempt.acancel())
                while not core._cancelling:
                    await asyncio.sleep(0)
                fs.go_on.set()
                return await cancel, await asyncio.gather(first, second, return_exceptions=True)

        answer = within(10, lambda: asyncio.run(main()))
        assert not isinstance(answer, BaseException), answer
        cancelled, (first, second) = answer
        assert cancelled.status is CancelStatus.CANCELLED or first != "first"
        assert isinstance(second, EffectError)
        assert states(log)["b@1:second"] is IntentState.CANCELLED


def test_a_cancel_tells_nothing_as_happened_that_no_sync_has_confirmed(tmp_path: Path) -> None:
    fs = Held()
    log = EventLog.open(tmp_path / "log", fs=fs)
    for _ in range(3):
        log.commit(Event("warm", {}))
    tools = Toolbox(log)
    out, come_back = threading.Event(), threading.Event()

    @tools.tool()
    def act(ctx: ToolContext) -> int:
        out.set()
        come_back.wait(10)
        return 1

    attempt = tools.attempt("b").__enter__()

    def call() -> None:
        with pytest.raises(EventLogError):
            attempt.call(act, step="x")

    caller = threading.Thread(target=call, name="caller")
    caller.start()
    out.wait(10)

    def when_it_counts(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_name == "_summary":
            sys.settrace(None)
            fs.hold("caller", fails=True)
            come_back.set()
            fs.reached.wait(10)  # its outcome is written, and folded, and not on the disk

    before = sys.gettrace()
    try:
        sys.settrace(when_it_counts)
        answer = attempt.cancel()
    finally:
        sys.settrace(before)
    fs.go_on.set()
    caller.join()
    assert answer.happened == ()
    assert answer.indeterminate == ("b@1:x",)
    attempt.__exit__(None, None, None)
    with pytest.raises(EventLogError):
        log.close()


@pytest.mark.parametrize(("decision", "where"), [("deny", "happened"), ("happened", "happened"), ("abandon", "indeterminate")])
def test_a_cancel_knows_what_a_person_decided_before_it(log: EventLog, decision: Any, where: str) -> None:
    tools = Toolbox(log)

    @tools.tool(approval=True)
    def drop(ctx: ToolContext) -> None: ...

    with tools.attempt("b") as attempt:
        with pytest.raises(NeedsApproval):
            attempt.call(drop, step="x")
        resolve(log, "b@1:x", decision, expected_version=fold(EFFECTS, log).intents["b@1:x"].version, actor="ann", reason="r")
        answer = attempt.cancel()
        assert getattr(answer, where) == ("b@1:x",), answer
        assert {one.id.text: one.state for one in attempt.intents} == states(log)


# -- two who write about one intent -------------------------------------------------------------------------------------------------


class Out:
    """A call that is out in a thread of its own, until it is told to come back."""

    def __init__(self, log: EventLog, class_: EffectClass = EffectClass.NON_IDEMPOTENT, **options: Any) -> None:
        self.tools, self.left, self.come_back = Toolbox(log), threading.Event(), threading.Event()

        @self.tools.tool(class_, **options)
        def act(ctx: ToolContext) -> int:
            self.left.set()
            assert self.come_back.wait(10)
            if class_ is EffectClass.READ_ONLY:
                ctx.record_external_id("known too late")
            return 1

        def call() -> None:
            try:
                self.answer = self.attempt.call(act, step="x")
            except BaseException as error:  # noqa: BLE001 - looked at by the test
                self.answer = error

        self.answer: Any = None
        self.attempt = self.tools.attempt("b").__enter__()
        self.thread = threading.Thread(target=call, daemon=True)
        self.thread.start()
        assert self.left.wait(10)

    def land(self) -> None:
        self.come_back.set()
        self.thread.join(10)


def test_an_outcome_that_lands_between_a_cancels_look_and_its_word_stands(log: EventLog) -> None:
    out = Out(log)

    def when_it_has_looked(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_name == "classify":
            sys.settrace(None)
            out.land()

    before = sys.gettrace()
    try:
        sys.settrace(when_it_has_looked)
        answer = out.attempt.cancel()
    finally:
        sys.settrace(before)
    assert (out.answer, answer.happened) == (1, ("b@1:x",))
    assert states(log) == {"b@1:x": IntentState.COMMITTED}, "and the log can be folded"
    out.attempt.__exit__(None, None, None)


@pytest.mark.parametrize("says", [Happened("asked"), DidNotHappen("it is not there")])
def test_an_outcome_that_lands_while_the_receiver_is_asked_stands(log: EventLog, says: Any) -> None:
    def ask(view: IntentView) -> Any:
        out.land()
        return says

    out = Out(log, EffectClass.RECONCILABLE, reconcile=ask)
    answer = out.attempt.cancel()
    assert (out.answer, answer.happened) == (1, ("b@1:x",))
    assert states(log) == {"b@1:x": IntentState.COMMITTED}, "and the log can be folded"
    out.attempt.__exit__(None, None, None)


class Door:
    """Holds back a call of which Dispatched is on disk, until it is open; at its end it is."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def _reach(self, name: str) -> None:
        if name == "after-dispatched":
            self.reached.set()
            assert self.open.wait(10)

    def __enter__(self) -> None:
        crashpoints.armed = self._reach

    def __exit__(self, *raised: object) -> None:
        crashpoints.armed = None
        self.open.set()


def test_a_call_that_goes_out_while_the_receiver_is_asked_is_not_said_to_be_dropped(log: EventLog) -> None:
    """The receiver does not have it yet, which says nothing once the call is out."""
    tools, door, out, come_back = Toolbox(log), Door(), threading.Event(), threading.Event()

    def ask(view: IntentView) -> DidNotHappen:
        door.open.set()
        assert out.wait(10)
        return DidNotHappen("it is not there")

    @tools.tool(EffectClass.RECONCILABLE, reconcile=ask)
    def act(ctx: ToolContext) -> int:
        out.set()
        assert come_back.wait(10)
        return 1

    def call() -> None:
        assert attempt.call(act, step="x") == 1

    with tools.attempt("b") as attempt:
        caller = threading.Thread(target=call, daemon=True)
        with door:
            caller.start()
            assert door.reached.wait(10)
            answer = attempt.cancel()
        come_back.set()
        caller.join(10)
    assert answer.indeterminate == ("b@1:x",)
    assert states(log) == {"b@1:x": IntentState.COMMITTED}


@pytest.mark.parametrize("class_", [EffectClass.RECONCILABLE, EffectClass.NON_IDEMPOTENT, EffectClass.READ_ONLY])
def test_what_stands_at_the_door_is_out_for_a_cancel_and_is_held_back_by_it(log: EventLog, class_: EffectClass) -> None:
    """The receiver says truly that it does not have it; nobody may say that it never will, as long as the call can still go out."""
    tools, door, sent = Toolbox(log), Door(), []
    options = {"reconcile": lambda view: DidNotHappen("it is not there")} if class_ is EffectClass.RECONCILABLE else {}

    @tools.tool(class_, **options)
    def act(ctx: ToolContext) -> None:
        sent.append(ctx.intent)

    def call() -> None:
        try:
            attempt.call(act, step="x")
        except EffectError as error:
            refused.append(error)

    refused: list[EffectError] = []
    with tools.attempt("b") as attempt:
        caller = threading.Thread(target=call, daemon=True)
        with door:
            caller.start()
            assert door.reached.wait(10)
            answer = attempt.cancel()
        caller.join(10)
        assert not attempt._guard.core.running  # type: ignore[union-attr]
    assert (sent, len(refused)) == ([], 1)
    harmless = class_ is EffectClass.READ_ONLY
    assert (answer.dropped if harmless else answer.indeterminate) == ("b@1:x",)
    assert states(log) == {"b@1:x": IntentState.CANCELLED if harmless else IntentState.INDETERMINATE}
    assert not log.owned("effects:b")


def test_an_external_id_that_comes_behind_the_end_of_its_intent_is_refused(log: EventLog) -> None:
    out = Out(log, EffectClass.READ_ONLY)
    assert out.attempt.cancel().dropped == ("b@1:x",)
    out.land()
    assert isinstance(out.answer, EffectError)
    assert states(log) == {"b@1:x": IntentState.CANCELLED}, "and the log can be folded"
    out.attempt.__exit__(None, None, None)


def test_a_cancel_that_is_quicker_than_a_deadline_stands(tmp_path: Path) -> None:
    """Both are on their way to the log: the second one is decided anew."""
    fs = Held()
    with EventLog.open(tmp_path / "log", fs=fs) as log:
        tools = Toolbox(log)

        @tools.tool(deadline=0.1, approval=True)
        def act(ctx: ToolContext) -> None: ...

        with tools.attempt("b") as attempt:
            with pytest.raises(EffectError):
                attempt.call(act, step="x")
            time.sleep(0.1)
            if states(log)["b@1:x"] is not IntentState.PENDING:  # a slow machine
                print("its deadline passed before the first look")
                return

            def queued(count: int) -> None:
                while len(log._group._queue) < count:
                    time.sleep(0.001)

            fs.hold("leader")
            leader = threading.Thread(target=lambda: log.commit(Event("warm", {})), name="leader")
            leader.start()
            fs.reached.wait(10)
            canceller = threading.Thread(target=attempt.cancel)
            canceller.start()
            queued(1)
            threads = [leader, canceller, threading.Thread(target=lambda: (queued(2), fs.go_on.set()))]
            threads[-1].start()
            with pytest.raises(EffectError, match="cancelled"):
                attempt.call(act, step="x")
            for thread in threads:
                thread.join(10)
        assert states(log) == {"b@1:x": IntentState.CANCELLED}, "and the log can be folded"


def test_tasks_that_are_cancelled_behind_a_cancel_leave_a_log_that_can_be_folded(log: EventLog) -> None:
    tools = Toolbox(log)

    @tools.tool()
    async def act(ctx: ToolContext) -> None:
        left.set()
        await asyncio.sleep(30)

    left = asyncio.Event()

    async def main() -> None:
        async with tools.attempt("b") as attempt:
            task = asyncio.ensure_future(attempt.acall(act, step="x"))
            await left.wait()
            assert (await attempt.acancel()).indeterminate == ("b@1:x",)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()

    asyncio.run(main())
    assert states(log) == {"b@1:x": IntentState.INDETERMINATE}


# -- the world and the clock -------------------------------------------------------------------------------------------------------


def test_a_deadline_that_passes_while_pending_is_written_holds(tmp_path: Path) -> None:
    class Slow(FileSystem):
        takes_s = 0.0

        def fdatasync(self, fd: int) -> None:  # type: ignore[override]
            os.fdatasync(fd)
            time.sleep(self.takes_s)

    fs = Slow()
    with EventLog.open(tmp_path / "log", fs=fs) as log:
        for _ in range(3):
            log.commit(Event("warm", {}))
        tools = Toolbox(log)

        @tools.tool(deadline=0.02)
        def act(ctx: ToolContext) -> None:
            raise AssertionError("sent behind its deadline")

        with tools.attempt("b") as attempt:
            fs.takes_s = 0.04
            with pytest.raises(NotSent, match="deadline"):
                attempt.call(act)


def test_a_tool_that_changes_its_arguments_does_not_change_its_next_try(log: EventLog) -> None:
    tools, seen = Toolbox(log), []

    @tools.tool(retry=RetryPolicy(attempts_max=3, initial_s=0.0))
    def act(ctx: ToolContext, items: list[Any]) -> None:
        seen.append(repr(items))
        items[1]["k"].append("changed")
        items.append("changed")
        if len(seen) < 3:
            raise NotSent("again")

    with tools.attempt("b") as attempt:
        attempt.call(act, ["a", {"k": [1]}])
    assert seen == [repr(["a", {"k": [1]}])] * 3


def test_what_was_sent_once_is_not_sent_again_when_its_tool_asks_for_an_approval_now(log: EventLog) -> None:
    common: dict[str, Any] = {"digest": "0" * 64, "key": "k", "key_scope": "attempt", "options": {"key_ttl_ms": 3_600_000}}
    log.commit(ev.pending(IntentId.parse("a@1:1"), tool="drop", version="1", class_=EffectClass.KEYED, args={"table": "users"}, **common))
    log.commit(ev.dispatched("a@1:1", try_number=1, pid=1, by="guard"))
    tools = Toolbox(log)

    @tools.tool(EffectClass.KEYED, key_ttl=timedelta(hours=1), approval=True)
    def drop(ctx: ToolContext, table: str) -> None:
        raise AssertionError("sent unapproved")

    (found,) = recover(log, tools).intents
    assert (found.left, found.error) == (IntentState.INDETERMINATE, "its tool asks for an approval now, and nobody has given one")


# -- cancelled tasks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["coroutine", "thread", "coroutine with a timeout", "thread with a timeout", "large"])
def test_a_task_that_is_cancelled_anywhere_ends_cancelled_and_in_a_record(log: EventLog, kind: str) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    tools = Toolbox(log, Limits(blob_bytes_min=10) if kind == "large" else None)
    options: dict[str, Any] = {"timeout": 10} if "timeout" in kind else {}
    sent: list[str] = []

    @tools.tool(name="act", **options)
    async def acting(ctx: ToolContext, text: str) -> str:
        sent.append(str(ctx.intent))
        await asyncio.sleep(0)
        return text

    @tools.tool(name="thread", **options)
    def acting_in_a_thread(ctx: ToolContext, text: str) -> str:
        sent.append(str(ctx.intent))
        return text

    async def main() -> None:
        async with tools.attempt("b") as attempt:
            tool = acting_in_a_thread if "thread" in kind else acting
            for delay in range(40):
                task = asyncio.ensure_future(attempt.acall(tool, "x" * 40, step=f"s{delay}"))
                for _ in range(delay):
                    await asyncio.sleep(0 if chance.random() < 0.9 else 0.0002)
                asked = task.cancel()
                if chance.random() < 0.5:
                    await asyncio.sleep(0)
                    task.cancel()
                done, _ = await asyncio.wait([task], timeout=10)
                assert done, f"turn {delay}: it hangs"
                assert task.cancelled() is asked, f"turn {delay}"
                if delay == 1 and kind == "large":
                    assert sent == [], "who is cancelled while its arguments are stored sends nothing"
            while attempt._guard.core.running:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)
            assert {one.id.text: one.state for one in attempt.intents} == states(log)

    asyncio.run(main())
    assert IntentState.DISPATCHED not in states(log).values(), "each of them ends in a record"
    assert len(sent) == len(set(sent))


def test_an_id_that_a_task_notes_behind_the_end_of_its_call_does_not_stop_the_loop(log: EventLog) -> None:
    tools, told = Toolbox(log), []

    @tools.tool(timeout=0.01)
    async def act(ctx: ToolContext) -> None:
        async def watch() -> None:
            try:
                while True:
                    ctx.record_external_id("id")
                    await asyncio.sleep(0)
            except EffectError as error:
                told.append(str(error))
            except EventLogError:
                told.append("over")

        told.append(asyncio.ensure_future(watch()))
        await asyncio.sleep(30)

    async def main() -> None:
        async with tools.attempt("b") as attempt:
            with pytest.raises(EffectError):
                await attempt.acall(act, step="x")
            task = told.pop(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    assert not isinstance(within(10, lambda: asyncio.run(main())), BaseException)


# -- the power -----------------------------------------------------------------------------------------------------------------------


def test_what_is_sent_or_told_is_on_the_disk_whatever_fails_beside_it(tmp_path: Path) -> None:
    """Threads and coroutines in one attempt, a disk that fails, a cancel: at each call, and each answer, the power is cut to look."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    cuts = sum(_powerless(tmp_path / str(number), chance) for number in range(8))
    print(f"{cuts} cuts")
    assert cuts > 8


def _powerless(path: Path, chance: random.Random) -> int:
    path.mkdir()
    fs = FaultFileSystem(path / "disk", seed=chance.randrange(2**32))
    (path / "disk").mkdir(exist_ok=True)
    log = EventLog.open(fs.root / "log", fs=fs)
    tools, looking, wrong, cuts = Toolbox(log), threading.Lock(), [], [0]

    def look(text: str, *allowed: IntentState) -> None:
        with looking:
            cuts[0] += 1
            after = fs.power_cut(into=path / f"cut-{cuts[0]}", stop=False)
        with EventLog.open(after.root / "log", fs=after) as left:
            found = states(left).get(text)
        if found not in allowed:
            wrong.append((fs, text, found))

    @tools.tool()
    def act(ctx: ToolContext) -> None:
        look(str(ctx.intent), IntentState.DISPATCHED, IntentState.INDETERMINATE)

    def thread(name: str) -> None:
        for number in range(2):
            try:
                attempt.call(act, step=f"{name}-{number}")
            except EventLogError:
                continue
            look(f"b@1:{name}-{number}", IntentState.COMMITTED)

    async def one(number: int) -> None:
        try:
            await attempt.acall(act, step=f"task-{number}")
        except EventLogError:
            return
        look(f"b@1:task-{number}", IntentState.COMMITTED)

    async def coroutines() -> None:
        await asyncio.gather(*(one(number) for number in range(3)))

    with tools.attempt("b") as attempt:
        if chance.random() < 0.6:
            fs.fail(chance.choice(["fdatasync", "pwrite"]), nth=chance.randrange(1, 25), times=chance.choice([1, None]))
        threads = [threading.Thread(target=thread, args=(f"thread{number}",), daemon=True) for number in range(chance.randrange(1, 3))]
        threads.append(threading.Thread(target=lambda: asyncio.run(coroutines()), daemon=True))
        for each in threads:
            each.start()
        if chance.random() < 0.5:
            try:
                answer = attempt.cancel(grace=chance.choice([0, 0.01]))
            except EventLogError:
                answer = None
            for text in answer.happened if answer is not None else ():
                look(text, IntentState.COMMITTED)
            for text in answer.dropped if answer is not None else ():
                look(text, IntentState.CANCELLED)
        for each in threads:
            each.join(20)
        assert not any(each.is_alive() for each in threads), fs
    try:
        log.close()
    except EventLogError:
        assert fs.faults, fs
    assert wrong == []
    return cuts[0]


def test_ctrl_c_while_a_call_begins_or_is_given_up_leaves_its_result_recorded_and_the_branch_free(tmp_path: Path) -> None:
    """Its thread is the only one to say when it is over, so it must know that nobody waits for it any more."""
    seen: set[str] = set()

    def interrupted(path: Path, nth: int) -> str | None:
        with EventLog.open(path) as log:
            tools = Toolbox(log)
            sent, go_on = threading.Event(), threading.Event()

            @tools.tool(timeout=0.001)
            def act(ctx: ToolContext) -> int:
                sent.set()
                go_on.wait(10)
                return 1

            with tools.attempt("b") as attempt:

                def call() -> None:
                    with contextlib.suppress(EffectError):
                        attempt.call(act, step="x")

                where = interrupt(nth, call)
                busy = [thread for thread in threading.enumerate() if thread.name == "eventlog-tool"]
            if where is not None and where.startswith("drive.py") and sent.is_set():
                seen.add(where)
                assert log.owned("effects:b"), where  # it is still out: nobody else may send it
            go_on.set()
            for thread in busy:
                thread.join(10)
            assert not log.owned("effects:b"), where
            if where in seen:
                kinds = [event.type for event in log.read(streams={"b@1:x"})]
                assert ev.LATE in kinds or ev.COMMITTED in kinds, (nth, where, kinds)
        return where

    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as path:
        nth = 300  # before that nothing is out
        while contextvars.copy_context().run(interrupted, Path(path) / str(nth), nth) is not None:
            nth += 1
    assert len(seen) >= 3, seen
