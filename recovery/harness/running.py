"""One hook process: the harness's JSON on standard input, at most one JSON object on standard output, and an exit code (design section 6).

A harness lets a call run when its hook fails in any way but two: the JSON that denies, or exit code 2. So whatever goes wrong before a
PreToolUse is answered ends in one of these, within a deadline of our own that is shorter than the harness's. Every other hook ends with 0
whatever happens, and a line on standard error: a block of PostToolBatch or Stop would end the agent's loop.

A call that passes is the common case, and what it does not need is imported where it is needed.
"""

from __future__ import annotations

import os
import time

# Built in: `signal` would make enums of all its numbers first.
from _signal import ITIMER_REAL, SIGALRM, setitimer, signal  # type: ignore[import-not-found,unused-ignore]
from contextlib import suppress

from eventlog import crashpoints
from eventlog.errors import EventLogError
from eventlog.jsonroad import loads
from eventlog.light import TYPE_CHECKING, Protocol
from eventlog.log import EventLog
from eventlog.recovery.delivery_words import Block, FailClosed, PassThrough
from eventlog.recovery.desk import Deliveries
from eventlog.recovery.harness.heard import (
    BATCH,
    CALL,
    ENDED,
    NOTHING,
    PROMPT,
    RETURNED,
    REWRITTEN,
    SESSION_ENDED,
    STARTED,
    STOP,
    Heard,
    NotUnderstood,
)
from eventlog.recovery.harness.process import NoProcess, process_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from eventlog.recovery.harness.adapter import Adapter
    from eventlog.recovery.reconciler import Outcome, SyncTask

__all__ = ["DENIED", "FINE", "Options", "run"]

FINE, DENIED = 0, 2
_NO_WINDOW = float("inf")  # no thread that syncs: this process does, or the next
_LAST_WORDS_S = 0.2  # for a line on standard error
_left_open: list[EventLog] = []  # a handle that is dropped would sync
_INPUT_BYTES_MAX = 64 << 20  # a PostToolBatch holds the results of all its calls


class Options:
    """What the command line says. `deadline_s`: for all that this hook does before it has answered. `redact`: patterns for `record`.

    `reconciler`: a program and its arguments, quoted as for a shell; none is involved.
    """

    __slots__ = ("deadline_s", "harness", "log", "reconciler", "record", "redact", "thread")

    def __init__(
        self,
        harness: str,
        log: str,
        thread: str,
        *,
        reconciler: str | None = None,
        deadline_s: float = 20.0,
        record: bool = False,
        redact: Sequence[str] = (),
    ) -> None:
        self.harness, self.log, self.thread, self.reconciler = harness, log, thread, reconciler
        self.deadline_s, self.record, self.redact = deadline_s, record, redact


class Harness(Protocol):
    """What a module has to know of its harness."""

    EVENTS: dict[str, str]

    def agent_pid(self, environ: Mapping[str, str]) -> int: ...
    def hear(self, data: dict[str, Any], thread: str, process: str) -> Heard: ...
    def again(self, session: str | None) -> list[str]: ...


class Running:
    """The state of one hook process: what its exit code would be now."""

    def __init__(self, options: Options, started: float) -> None:
        self.options = options
        self.harness = _harness(options.harness)
        self.ends = started + options.deadline_s
        self.code_if_late = DENIED  # until it is known that nobody waits for a yes or no
        self.stdout = 1

    @property
    def left_s(self) -> float:
        return max(0.05, self.ends - time.monotonic())

    def deny(self, text: str) -> None:
        """Write the denial, all of it. Raises OSError: then the harness has not got it."""
        crashpoints.reach("before-output")
        write_all(self.stdout, denial(text))
        self.code_if_late = FINE
        crashpoints.reach("after-output")

    def reconcile(self, task: SyncTask) -> Outcome:
        """Run the user's program, for as long as this hook has time."""
        import shlex

        from eventlog.recovery.reconciler import ReconcilerFailed, program

        text = self.options.reconciler or ""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ReconcilerFailed(f"--reconciler {text!r}: {error}") from None
        if not words:
            raise ReconcilerFailed(f"--reconciler {text!r} names no program")
        return program(words, timeout_s=self.left_s * 0.9)(task)


def _harness(name: str) -> Harness:
    if name == "codex":
        from eventlog.recovery.harness import codex

        return codex
    from eventlog.recovery.harness import claude_code

    return claude_code


def run(options: Options, environ: Mapping[str, str], started: float) -> int:
    """Be a hook; the exit code. `started`: of this process, by time.monotonic()."""
    running = Running(options, started)
    try:
        _streams()
        _alarm(running)
        heard = _hear(running, environ)
        if heard.kind != NOTHING:
            _act(running, heard)
    except (EventLogError, NoProcess, OSError) as error:
        text = str(error) if isinstance(error, (EventLogError, NoProcess)) else f"{error.strerror or error}"
        return _failed(running, text)
    except Exception as error:  # noqa: BLE001  a fault of ours must not let a call through, either
        return _failed(running, f"{type(error).__name__}: {error}")
    return FINE


def _failed(running: Running, why: str) -> int:
    """One line, and the code for what was asked."""
    help_ = f"; no call runs until this is mended; see: eventlog status {running.options.log}" if running.code_if_late == DENIED else ""
    _note(f"eventlog hook: {why}{help_}")
    return running.code_if_late


def _note(line: str) -> None:
    from eventlog.recovery.harness.saying import one_line

    with suppress(OSError):  # nobody listens: the exit code still speaks
        write_all(2, one_line(line).encode(errors="replace") + b"\n")


def _streams() -> None:
    """A standard stream that is closed must not become a file of the log: what is written to it would stand there. This one takes nothing,
    so that a denial that nobody can read fails, too."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)


def _alarm(running: Running) -> None:
    """Whatever this process hangs in: after the deadline it is over. Like a kill -9, which every step of the protocol survives."""

    def late(_number: int, _frame: object) -> None:
        signal(SIGALRM, lambda _number, _frame: os._exit(running.code_if_late))  # nobody reads standard error, and it is full
        setitimer(ITIMER_REAL, _LAST_WORDS_S)
        os._exit(_failed(running, f"no answer in {running.options.deadline_s:g} s"))

    signal(SIGALRM, late)
    setitimer(ITIMER_REAL, running.left_s)


def _hear(running: Running, environ: Mapping[str, str]) -> Heard:
    try:
        data: Any = loads(read_all(0))
    except ValueError:
        raise NotUnderstood("standard input is not one JSON object") from None
    if not isinstance(data, dict):
        raise NotUnderstood("standard input is not one JSON object")
    event = data.get("hook_event_name")
    if isinstance(event, str) and running.harness.EVENTS.get(event, CALL) != CALL:
        running.code_if_late = FINE  # nobody waits for a yes or no
    return running.harness.hear(data, running.options.thread, process_key(running.harness.agent_pid(environ)))


def _act(running: Running, heard: Heard) -> None:
    """A call that passes leaves its events in the page cache, where a kill cannot reach them: the next PostToolBatch, Stop or opener syncs
    them, and what a power cut takes of them is about a process that it takes as well."""
    options = running.options
    log = EventLog.open(options.log, create=False, lock_timeout=running.left_s * 0.5, batch_window_ms=_NO_WINDOW)
    try:
        deliveries = Deliveries(log, running.reconcile if options.reconciler else None, wait_s=running.left_s * 0.9)
        if options.harness == "codex" and heard.kind in (CALL, STOP, PROMPT):
            from eventlog.recovery.harness.codex import proofs

            deliveries.batch_shown(heard.caller, heard.call or None, proofs(heard))
        passes = heard.kind == CALL and _call(deliveries, heard, running)
        if heard.kind != CALL:
            from eventlog.recovery.harness.adapter import Adapter, Capabilities

            _TELL[heard.kind](Adapter(deliveries, Capabilities(True, True, True)), heard)
        if options.record:
            _record(log, running, heard)
        if passes:
            _left_open.append(log)
        else:
            deliveries.keep()  # the answer is out
            log.close()
    except BaseException:
        with suppress(EventLogError):  # what went wrong first says more
            log.close()
        raise


def _record(log: EventLog, running: Running, heard: Heard) -> None:
    """When all else is done. It may fail: then one thing less is known of the session, and that is all."""
    from eventlog.recovery.harness.recording import record

    try:
        record(log, running.options.harness, heard, running.options.redact)
    except (EventLogError, OSError) as error:
        _note(f"eventlog hook: not recorded: {error}")


def _call(deliveries: Deliveries, heard: Heard, running: Running) -> bool:
    """Answer a call. Does it pass?"""
    answer = deliveries.admit(heard.caller, heard.call)
    if isinstance(answer, PassThrough):
        running.code_if_late = FINE  # that is the answer: to say nothing
        return True
    if isinstance(answer, Block):
        from eventlog.recovery.harness.carrier import Carrier

        running.deny(Carrier(deliveries.log.path).text(answer.intent, answer.payload))
        deliveries.mark_delivered(answer)
    else:
        running.deny(_closed(answer, heard, deliveries, running))
    return False


def _closed(answer: FailClosed, heard: Heard, deliveries: Deliveries, running: Running) -> str:
    """What a call is answered with when nothing can be given to the agent, or not to this process."""
    import shlex

    text = f"eventlog: {answer.reason}. {answer.what_to_do}"
    if answer.restart:
        words = ["eventlog", "agent", "run", "--log", os.fsdecode(deliveries.log.path), "--thread", heard.caller.thread, "--"]
        text += f"; or let this do it: {shlex.join([*words, *running.harness.again(heard.caller.session)])}"
    return text


def _started(adapter: Adapter, heard: Heard) -> None:
    adapter.deliveries.start_incarnation(heard.caller)
    if heard.data.get("source") != "startup":
        adapter.deliveries.turn_observed(heard.caller, "compacted")


def _ended(adapter: Adapter, heard: Heard) -> None:
    deliveries, caller = adapter.deliveries, heard.caller
    state = deliveries.state
    thread = state.threads.get(caller.thread)
    if thread is not None and thread.live is not None and state.incarnations[thread.live].process == caller.process:
        deliveries.retire_incarnation(caller.thread, thread.live, SESSION_ENDED)


_TELL: dict[str, Callable[[Adapter, Heard], object]] = {
    RETURNED: lambda adapter, heard: adapter.deliveries.call_returned(heard.caller, heard.call),
    BATCH: lambda adapter, heard: adapter.post_tool_batch(heard.caller, heard.results),
    PROMPT: lambda adapter, heard: adapter.user_prompt_submit(heard.caller, heard.text),
    STOP: lambda adapter, heard: adapter.deliveries.turn_observed(heard.caller, "stop"),
    REWRITTEN: lambda adapter, heard: adapter.deliveries.turn_observed(heard.caller, "compacted"),
    STARTED: _started,
    ENDED: _ended,
}


def denial(text: str) -> bytes:
    """The one JSON object that denies a call, for both harnesses. ASCII: escapes reach the model as the same characters, in any locale."""
    import json

    said = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": text}
    return json.dumps({"hookSpecificOutput": said}).encode("ascii")


def write_all(fd: int, data: bytes) -> None:
    """Raises OSError (the reader has gone)."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_all(fd: int) -> bytes:
    """Raises NotUnderstood for more than any harness says, OSError."""
    parts, size = [], 0
    while part := os.read(fd, 1 << 20):
        parts.append(part)
        size += len(part)
        if size > _INPUT_BYTES_MAX:
            raise NotUnderstood(f"standard input holds more than {_INPUT_BYTES_MAX} bytes")
    return b"".join(parts)
