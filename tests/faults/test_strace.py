"""Real processes whose system calls fail, or that die at one: by strace, call by call (P1, P3, P5, P6, P14, P17).

strace counts per thread; the agent has one. A SIGKILL at a call means that the call is not executed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from eventlog import EventLog
from eventlog.testing import strace

_AGENT = Path(__file__).parent / "agent.py"
COMMITS = 7


def tell(stdout: str, word: str) -> set[int]:
    return {int(line.split()[1]) for line in stdout.splitlines() if line.startswith(word + " ")}


def judge(path: Path, stdout: str, acked: set[int], what: str) -> set[int]:
    """The promises after a run; `acked` from runs before. Returns the commits that are there."""
    acked = acked | tell(stdout, "ACK") | tell(stdout, "LAZY")  # a batched commit survives a kill of the process at once
    never = tell(stdout, "NEVER")
    with EventLog.open(path) as log:
        events = [(e.data["n"], e.data["i"]) for e in log.read()]
    found = {n for n, _ in events}
    assert events == [(n, i) for n in sorted(found) for i in range(2)], f"{what}: order, or a commit is not whole"
    assert acked <= found, f"{what}: acknowledged and lost: {sorted(acked - found)}\n{stdout}"
    assert not never & found, f"{what}: never written and there: {sorted(never & found)}\n{stdout}"
    return found


def sweep(tmp_path: Path, syscall: str, action: str, *, first_life: bool) -> int:
    """Strike the k-th call on the log's files for k = 1, 2, 3 … until a run passes. Returns how often it struck."""
    if (why := strace.why_not()) is not None:
        pytest.skip(why)
    template = tmp_path / "template"
    agent = [sys.executable, str(_AGENT)]
    acked: set[int] = set()
    if not first_life:
        done, _ = strace.inject([*agent, str(template), "3"], "pwrite64", "signal=KILL", 4, on=template / "lock")
        acked = tell(done.stdout, "ACK") | tell(done.stdout, "LAZY")
    for nth in range(1, 200):
        path = tmp_path / "log"
        shutil.rmtree(path, ignore_errors=True)
        if not first_life:
            shutil.copytree(template, path)
        # Only calls on the log count: an interpreter opens hundreds of files of its own.
        files = [tmp_path, path, path / "lock", path / "log.json.tmp", path / "segments"]
        files += [path / "segments" / f"{number:020d}.seg" for number in (1, 5, 7, 9, 11, 13)]
        ran, struck = strace.inject([*agent, str(path), str(COMMITS)], syscall, action, nth, on=files)
        if not struck:
            assert "CLOSED" in ran.stdout, ran.stderr
            judge(path, ran.stdout, acked, "no fault")
            return nth - 1
        what = f"{action} at {syscall} no. {nth}"
        if action.startswith("signal"):
            assert ran.returncode == -9, what
        found = judge(path, ran.stdout, acked, what)
        again, _ = strace.inject([*agent, str(path), "1"], "pwrite64", "error=EIO", 10_000)
        assert "CLOSED" in again.stdout, f"{what}: the next process: {again.stderr}"
        assert judge(path, again.stdout, found, what) > found, f"{what}: the next process could not commit"
    raise AssertionError("two hundred calls and no end")


FIRST = ["pwrite64", "fdatasync", "fsync", "fallocate", "ftruncate", "openat", "mkdir", "mkdirat", "renameat", "flock", "fchmod"]
AFTER_A_KILL = ["pwrite64", "fdatasync", "fsync", "ftruncate", "flock"]


@pytest.mark.parametrize(("syscall", "life"), [(name, "first") for name in FIRST] + [(name, "after a kill") for name in AFTER_A_KILL])
def test_sigkill_at_every_call(tmp_path: Path, syscall: str, life: str) -> None:
    struck = sweep(tmp_path, syscall, "signal=KILL", first_life=life == "first")
    print(f"SIGKILL at {syscall}, {life} life: {struck} times, 0 acknowledged lost")


@pytest.mark.parametrize(
    ("syscall", "error"),
    [("fdatasync", "EIO"), ("pwrite64", "ENOSPC"), ("pwrite64", "EIO"), ("fsync", "EIO"), ("fallocate", "ENOSPC")]
    + [("flock", "ENOLCK"), ("openat", "EMFILE"), ("ftruncate", "EIO")],
)
def test_error_at_every_call(tmp_path: Path, syscall: str, error: str) -> None:
    struck = sweep(tmp_path, syscall, f"error={error}", first_life=True)
    assert struck > 0
    print(f"{error} at {syscall}: {struck} times, 0 acknowledged lost")
