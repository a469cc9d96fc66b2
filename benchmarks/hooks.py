"""What a hook costs its agent: `eventlog hook claude-code`, a call that passes, as a whole process in a fresh environment."""

from __future__ import annotations

import compileall
import json
import os
import resource
import shutil
import subprocess
import sys
import venv
from itertools import count
from pathlib import Path
from typing import Any

import eventlog
from benchmarks.race import Bench, Figure, Result, Sample, Side
from eventlog import Durability, Event, EventLog
from eventlog.projections import DELIVERIES, View
from eventlog.projections.snapshots import keep

EVENTS = 1_000_000
CALLS_IN_A_ROUND = 5
# What pip writes for an entry point.
SCRIPT = """#!{python}
# -*- coding: utf-8 -*-
import re
import sys
from eventlog.cli import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""


def environment(place: Path) -> Path:
    """A virtual environment with eventlog in it as an installed package: files, compiled, no editable finder. Its `bin`."""
    venv.create(place, symlinks=True, with_pip=False)
    packages = next((place / "lib").glob("python*")) / "site-packages"
    shutil.copytree(Path(eventlog.__file__).parent, packages / "eventlog", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(packages, quiet=1)
    command = place / "bin" / "eventlog"
    command.write_text(SCRIPT.format(python=place / "bin" / "python"))
    command.chmod(0o755)
    return place / "bin"


def process(command: list[str], text: str, environ: dict[str, str]) -> float:
    """Run it; its CPU time in ms."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0 or done.stdout or done.stderr:
        raise AssertionError(f"{command}: {done}")
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


class Agent:
    """The hooks of one agent on one log."""

    def __init__(self, command: Path, log: Path) -> None:
        self._command = [str(command), "hook", "claude-code", "--log", str(log), "--thread", "web", "--reconciler", "./reconcile --fast"]
        self._environ = {**os.environ, "CLAUDE_PID": str(os.getpid())}
        self._calls = (f"toolu_{n}" for n in count())
        self.hook("UserPromptSubmit", prompt="do it")

    def hook(self, event: str, **more: Any) -> float:
        said = {"session_id": "19736c74", "transcript_path": "/t.jsonl", "cwd": "/repo", "prompt_id": "e3dbc4a7", "hook_event_name": event}
        return process(self._command, json.dumps({**said, **more}), self._environ)

    def turn(self) -> Sample:
        """A batch of calls that all pass: CPU time of one of them; its boundary is reported, and not counted."""
        calls = [{"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": next(self._calls)} for _ in range(CALLS_IN_A_ROUND)]
        ms = sum(self.hook("PreToolUse", **call) for call in calls) / len(calls)
        boundary = self.hook("PostToolBatch", tool_calls=[{**call, "tool_response": "it ran"} for call in calls])
        return {"ms": ms, "boundary_ms": boundary, "children_cpu_s": (ms * len(calls) + boundary) / 1000}


def hooks(bench: Bench) -> list[Result]:
    """A hook against `python -I -c pass` of the same environment, on a small log, and on one of a million events."""
    bin_ = environment(bench.place("environment"))
    logs = {"a small log": 100, "a log of a million events": bench.size(EVENTS, 1_000)}
    sides: dict[str, Side] = {}
    for name, events in logs.items():
        path = bench.place("log")
        with EventLog.open(path) as log:
            bulk = [Event("tool.output", {"text": "x" * 100, "n": n}, "agent") for n in range(100)]
            for _ in range(events // len(bulk)):
                log.commit(bulk, Durability.BATCHED)
            keep(DELIVERIES, log.snapshots, *View(log, DELIVERIES).refresh())
        sides[name] = Agent(bin_ / "eventlog", path).turn

    def bare() -> Sample:
        ms = (
            sum(process([str(bin_ / "python"), "-I", "-c", "pass"], "", dict(os.environ)) for _ in range(CALLS_IN_A_ROUND))
            / CALLS_IN_A_ROUND
        )
        return {"ms": ms, "children_cpu_s": ms * CALLS_IN_A_ROUND / 1000}

    sides["python -I -c pass"] = bare
    small, large = logs
    version = f"Python {sys.version.partition(' ')[0]}"
    return bench.race(
        "hooks",
        sides,
        [
            Figure(
                "a hook that lets a call pass : a bare interpreter",
                small,
                "python -I -c pass",
                3.5,
                "ms",
                "ms CPU",
                at_most=True,
                note=version,
            ),
            Figure("the same on a million events : on a small log", large, small, 1.2, "ms", "ms CPU", at_most=True, note=version),
        ],
    )
