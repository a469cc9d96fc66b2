"""One hook process: the harness's JSON on standard input, at most one JSON object on standard output, and an exit code (design section 6).

A harness lets a call run when its hook fails in any way but two: the JSON that denies, or exit code 2. So whatever goes wrong before a
PreToolUse is answered ends in one of these, within a deadline of our own that is shorter than the harness's. Every other hook ends with 0
whatever happens, and a line on standard error: a block of PostToolBatch or Stop would end the agent's loop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from eventlog import EventLog
from eventlog.errors import EventLogError
from eventlog.recovery.delivery_words import Block, FailClosed, PassThrough
from eventlog.recovery.desk import Deliveries
from eventlog.recovery.harness.adapter import Adapter, Capabilities
from eventlog.recovery.harness.heard import BATCH, CALL, ENDED, NOTHING, PROMPT, RETURNED, REWRITTEN, STARTED, STOP, Heard, NotUnderstood
from eventlog.recovery.harness.process import NoProcess, process_key
from eventlog.recovery.reconciler import Outcome, SyncTask, program

__all__ = ["DENIED", "FINE", "Options", "run"]

FINE, DENIED = 0, 2
_INPUT_BYTES_MAX = 64 << 20  # a PostToolBatch holds the results of all its calls
_EVERYTHING = Capabilities(batch_boundary=True, receipts=True, startup_delivery=True)


class Options:
    """What the command line says. `deadline_s`: for all that this hook does before it has answered. `redact`: patterns for `record`."""

    __slots__ = ("deadline_s", "harness", "log", "reconciler", "record", "redact", "thread")

    def __init__(
        self,
        harness: str,
        log: str,
        thread: str,
        *,
        reconciler: list[str] | None = None,
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
        self.harness: Harness = import_module(f"eventlog.recovery.harness.{options.harness.replace('-', '_')}")  # type: ignore[assignment]
        self.ends = started + options.deadline_s
        self.code_if_late = DENIED  # until it is known that nobody waits for a yes or no
        self.stdout = 1

    @property
    def left_s(self) -> float:
        return max(0.05, self.ends - time.monotonic())

    def allow(self) -> None:
        """Say nothing: the harness goes on."""
        self.code_if_late = FINE

    def deny(self, text: str) -> None:
        """Write the denial, all of it. Raises OSError: then the harness has not got it."""
        write_all(self.stdout, denial(text))
        self.code_if_late = FINE

    def reconcile(self, task: SyncTask) -> Outcome:
        """Run the user's program, for as long as this hook has time."""
        assert self.options.reconciler is not None
        return program(self.options.reconciler, timeout_s=self.left_s * 0.9)(task)


def run(options: Options, environ: Mapping[str, str], started: float) -> int:
    """Be a hook; the exit code. `started`: of this process, by time.monotonic()."""
    running = Running(options, started)
    try:
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

    try:
        write_all(2, one_line(line).encode(errors="replace") + b"\n")
    except OSError:
        pass  # nobody listens: the exit code still speaks


def _alarm(running: Running) -> None:
    """Whatever this process hangs in: after the deadline it is over. Like a kill -9, which every step of the protocol survives."""
    import signal

    def late(_signal: int, _frame: object) -> None:
        code = _failed(running, f"no answer in {running.options.deadline_s:g} s")
        os._exit(code)

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, running.left_s)


def _hear(running: Running, environ: Mapping[str, str]) -> Heard:
    import json

    try:
        data: Any = json.loads(read_all(0))
    except ValueError:
        raise NotUnderstood("standard input is not one JSON object") from None
    if not isinstance(data, dict):
        raise NotUnderstood("standard input is not one JSON object")
    event = data.get("hook_event_name")
    if isinstance(event, str) and running.harness.EVENTS.get(event, CALL) != CALL:
        running.code_if_late = FINE  # nobody waits for a yes or no
    return running.harness.hear(data, running.options.thread, process_key(running.harness.agent_pid(environ)))


def _act(running: Running, heard: Heard) -> None:
    options = running.options
    reconciler = running.reconcile if options.reconciler else None
    with EventLog.open(options.log, create=False, lock_timeout=running.left_s * 0.5) as log:
        deliveries = Deliveries(log, reconciler, wait_s=running.left_s * 0.9)
        adapter = Adapter(deliveries, _EVERYTHING)
        if options.harness == "codex" and heard.kind in (CALL, STOP, PROMPT):
            from eventlog.recovery.harness.codex import proofs

            deliveries.batch_shown(heard.caller, heard.call or None, proofs(heard))
        _TELL[heard.kind](adapter, heard, running)
        if options.record:
            _record(log, running, heard)


def _record(log: EventLog, running: Running, heard: Heard) -> None:
    """When all else is done. It may fail: then one thing less is known of the session, and that is all."""
    from eventlog.recovery.harness.recording import record

    try:
        record(log, running.options.harness, heard, running.options.redact)
    except (EventLogError, OSError) as error:
        _note(f"eventlog hook: not recorded: {error}")


def _call(adapter: Adapter, heard: Heard, running: Running) -> None:
    answer = adapter.deliveries.admit(heard.caller, heard.call)
    if isinstance(answer, PassThrough):
        running.allow()
    elif isinstance(answer, Block):
        running.deny(adapter.carrier.text(answer.intent, answer.payload))
        adapter.deliveries.mark_delivered(answer)
    else:
        running.deny(_closed(answer, heard, adapter, running))


def _closed(answer: FailClosed, heard: Heard, adapter: Adapter, running: Running) -> str:
    """What a call is answered with when nothing can be given to the agent, or not to this process."""
    import shlex

    text = f"eventlog: {answer.reason}. {answer.what_to_do}"
    if answer.restart:
        words = ["eventlog", "agent", "run", "--log", os.fsdecode(adapter.deliveries.log.path), "--thread", heard.caller.thread, "--"]
        text += f"; or let this do it: {shlex.join([*words, *running.harness.again(heard.caller.session)])}"
    return text


def _started(adapter: Adapter, heard: Heard, _running: Running) -> None:
    adapter.deliveries.start_incarnation(heard.caller)
    if heard.data.get("source") != "startup":
        adapter.deliveries.turn_observed(heard.caller, "compacted")


def _ended(adapter: Adapter, heard: Heard, _running: Running) -> None:
    deliveries, caller = adapter.deliveries, heard.caller
    state = deliveries.state
    thread = state.threads.get(caller.thread)
    if thread is not None and thread.live is not None and state.incarnations[thread.live].process == caller.process:
        deliveries.retire_incarnation(caller.thread, thread.live, "its session ended")


_TELL: dict[str, Callable[[Adapter, Heard, Running], object]] = {
    CALL: _call,
    RETURNED: lambda adapter, heard, _: adapter.deliveries.call_returned(heard.caller, heard.call),
    BATCH: lambda adapter, heard, _: adapter.post_tool_batch(heard.caller, heard.results),
    PROMPT: lambda adapter, heard, _: adapter.user_prompt_submit(heard.caller, heard.text),
    STOP: lambda adapter, heard, _: adapter.deliveries.turn_observed(heard.caller, "stop"),
    REWRITTEN: lambda adapter, heard, _: adapter.deliveries.turn_observed(heard.caller, "compacted"),
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
