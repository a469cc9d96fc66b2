"""The one who changes files: a Python callable, or a program, between Block(intent) and materialize (design section 6).

    def reconciler(task: SyncTask) -> Reconciled | NeedsPerson | Diverged: ...

A program gets the task as one JSON object on stdin ({"intent", "thread", "base", "triggers"}) and prints one JSON object:

    {"operation": "…", "commit": "…", "payload": "…", "anchor": "…"}       reconciled
    {"recovery_required": "why", "copy": "where the edits are"}            a person has to decide
    {"topology_diverged": "why"}                                           the workspaces are not what was taken for granted

Any other end (exit code, timeout, broken output, an exception) is a failure: the intent stays Reconciling, its calls stay blocked, and the
next hook tries again. So a reconciler has to be repeatable: it may die anywhere, and may find its own work half done or done. When the
program ends, or its time is over, what it left running in its process group is ended, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from tempfile import TemporaryFile
from typing import IO, Any

from eventlog.errors import EventLogError

__all__ = ["Diverged", "NeedsPerson", "Reconciled", "Reconciler", "ReconcilerFailed", "SyncTask", "program"]

_OUTPUT_BYTES_MAX = 8 << 20
_ERRORS_BYTES_MAX = 64 << 10
_LOOK_S = 0.01


class ReconcilerFailed(EventLogError):
    """The reconciler did not come to an answer. Nothing was recorded, and nobody was let through."""


@dataclass(frozen=True, slots=True)
class SyncTask:
    """What has to be reconciled. `base` is where the thread has to come to; it may move while you work, and then you are asked again.

    `owner_fd` is the descriptor of the lock that says that somebody is at work on this: a child process that inherits it keeps the lock, so
    that nobody begins a second time beside it when the hook that started it is killed.
    """

    intent: str
    thread: str
    base: str
    triggers: tuple[str, ...]
    owner_fd: int = field(default=-1, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The result operation, the workspace commit that it led to, what the agent is told, and the place in its transcript."""

    operation: str
    commit: str
    payload: str
    anchor: str


@dataclass(frozen=True, slots=True)
class NeedsPerson:
    """Going on would lose something. `copy`: where it was saved."""

    reason: str
    copy: str | None = None


@dataclass(frozen=True, slots=True)
class Diverged:
    """No common history, another parent: not a state that a reconciler can mend."""

    reason: str


Outcome = Reconciled | NeedsPerson | Diverged


def fault(outcome: object) -> str | None:
    """Why this cannot be recorded: it lacks something, or holds what is no text. None when it can."""
    if not isinstance(outcome, (Reconciled, NeedsPerson, Diverged)):
        return f"it is {type(outcome).__name__}, and has to be Reconciled, NeedsPerson or Diverged"
    fields = {one.name: getattr(outcome, one.name) for one in dataclass_fields(outcome)}
    for name, value in fields.items():
        if value is None and name == "copy":
            continue
        if not isinstance(value, str) or not value:
            return f"its {name} is {value!r:.40}, and has to be a text"
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return f"its {name} has a lone surrogate at character {error.start}, which no text holds"
    return None


Reconciler = Callable[[SyncTask], Outcome]


def program(command: Sequence[str], *, timeout_s: float = 60.0, cwd: str | None = None) -> Reconciler:
    """A reconciler that runs `command` (a list, no shell). Raises ReconcilerFailed when called and the program does not answer."""
    argv = list(command)
    if not argv or isinstance(command, str):
        raise ValueError("a program is a list of words, and needs at least one")

    def run(task: SyncTask) -> Outcome:
        text = json.dumps({"intent": task.intent, "thread": task.thread, "base": task.base, "triggers": list(task.triggers)})
        # Files, not pipes: what a program leaves running keeps a pipe open, and its answer would never be over.
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(text.encode())
            given.seek(0)
            code = _run(argv, (given, out, err), cwd, task, timeout_s)
            if code != 0:
                said = " ".join(_read(err, _ERRORS_BYTES_MAX).decode(errors="replace").split())[-300:]
                raise ReconcilerFailed(f"{argv[0]}: exit code {code} for {task.intent}: {said}")
            answer = _read(out, _OUTPUT_BYTES_MAX + 1)
        if len(answer) > _OUTPUT_BYTES_MAX:
            raise ReconcilerFailed(f"{argv[0]}: more than {_OUTPUT_BYTES_MAX} bytes about {task.intent}")
        return parse(argv[0], answer)

    return run


def _run(argv: list[str], streams: tuple[IO[bytes], IO[bytes], IO[bytes]], cwd: str | None, task: SyncTask, timeout_s: float) -> int:
    """Its exit code. When it is over, so is all that it started: nobody but the agent changes files then, or keeps the owner lock."""
    given, out, err = streams
    inherited = (task.owner_fd,) if task.owner_fd >= 0 else ()
    try:
        process = subprocess.Popen(  # noqa: S603  the user's own program, no shell
            argv, stdin=given, stdout=out, stderr=err, cwd=cwd, pass_fds=inherited, process_group=0
        )
    except OSError as error:
        raise ReconcilerFailed(f"{argv[0]}: cannot be run: {error.strerror}") from error
    deadline = time.monotonic() + timeout_s
    try:
        # While it is not reaped its pid, and so the name of its group, cannot be given to anybody else.
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > deadline:
                raise ReconcilerFailed(f"{argv[0]}: no answer about {task.intent} in {timeout_s:.3g} s; it was ended")
            time.sleep(_LOOK_S)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode


def _read(file: IO[bytes], length: int) -> bytes:
    file.seek(0)
    return file.read(length)


def parse(name: str, output: bytes) -> Outcome:
    """Read what a program printed. Raises ReconcilerFailed."""
    try:
        answer: Any = json.loads(output)
    except (ValueError, RecursionError):
        raise ReconcilerFailed(f"{name}: standard output is not one JSON object") from None
    if not isinstance(answer, dict):
        raise ReconcilerFailed(f"{name}: standard output is not one JSON object")
    if answer.get("recovery_required"):
        copy = answer.get("copy")
        return NeedsPerson(str(answer["recovery_required"]), None if copy is None else str(copy))
    if answer.get("topology_diverged"):
        return Diverged(str(answer["topology_diverged"]))
    fields: dict[str, Any] = {field: answer.get(field) for field in ("operation", "commit", "payload", "anchor")}
    missing = [field for field, value in fields.items() if not isinstance(value, str) or not value]
    if missing:
        raise ReconcilerFailed(f"{name}: the answer lacks {', '.join(missing)}")
    return Reconciled(**fields)
