"""Run any Python program in a child process and kill it with SIGKILL at a named crash point (seed 000, step 4)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple


class ChildResult(NamedTuple):
    """How a child ended.

    `returncode` as subprocess gives it (-9 after SIGKILL); `killed`: the armed point was reached and ended the process
    (False: the program never came there, or died of something else); `stdout`, `stderr`: what it had written (bytes in
    its own buffers die with it, as they do in life); `points`: every crash point that it passed, in order, the fatal
    one included.
    """

    returncode: int
    killed: bool
    stdout: str
    stderr: str
    points: tuple[str, ...]


def run_child(
    target: str | Sequence[str],
    args: Sequence[object] = (),
    *,
    crash_at: str | None = None,
    nth: int = 1,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float | None = 60.0,
    stdin: str | None = None,
) -> ChildResult:
    """Run `target` in a fresh interpreter; when it reaches `crash_at` for the `nth` time (from 1) it gets SIGKILL right
    there.

    `target`: "package.module:function" or "path/file.py:function", called with `args` (anything JSON can carry); or an
    argument list as after `python`: ["-m", "my.agent", "x"], ["script.py", "x"], ["-c", "code"]. `env` is added to this
    process's environment. `timeout` in seconds; then the child is killed and subprocess.TimeoutExpired raised. A point
    that is never reached is not an error here: assert `.killed`.
    """
    if nth < 1:
        raise ValueError(f"nth counts from 1, not {nth}")
    if isinstance(target, str):
        if ":" not in target:
            raise ValueError(f"{target!r}: a target is 'module:function', 'file.py:function' or an argument list")
        command = [target, json.dumps(list(args))]
    else:
        command = [*target, *(str(arg) for arg in args)]
        if not command:
            raise ValueError("an empty argument list names no program")
    # Files, not pipes: a grandchild that outlives the killed child would hold a pipe open, and a full one would block
    # the child.
    with tempfile.TemporaryFile() as report, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        options = ["--report", str(report.fileno()), "--nth", str(nth)]
        if crash_at is not None:
            options += ["--crash-at", crash_at]
        child = subprocess.Popen(  # noqa: S603  the test's own program
            [sys.executable, "-m", "eventlog.testing.child", *options, "--", *command],
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            pass_fds=[report.fileno()],
        )
        try:
            child.communicate(stdin.encode() if stdin is not None else None, timeout=timeout)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        points = tuple(_text(report).splitlines())
        reached = crash_at is not None and points[-1:] == (crash_at,) and points.count(crash_at) >= nth
        return ChildResult(child.returncode, reached and child.returncode == -signal.SIGKILL, _text(out), _text(err), points)


def record_points(
    target: str | Sequence[str],
    args: Sequence[object] = (),
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float | None = 60.0,
) -> list[tuple[str, int]]:
    """Run `target` unharmed; every crash point that it passed, in order, as (name, how many times it had been reached
    by then).

    Each pair is one place to crash: `for point, nth in record_points(t): run_child(t, crash_at=point, nth=nth)`.
    Raises RuntimeError with the child's stderr if it did not end with 0.
    """
    result = run_child(target, args, env=env, cwd=cwd, timeout=timeout)
    if result.returncode != 0:
        raise RuntimeError(f"the run to be recorded ended with {result.returncode}: {result.stderr}")
    seen: Counter[str] = Counter()
    places = []
    for point in result.points:
        seen[point] += 1
        places.append((point, seen[point]))
    return places


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
