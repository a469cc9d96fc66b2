"""`eventlog hook`: what a harness runs at each step of an agent. Parsed without click, which would be a third of the time of a call."""

from __future__ import annotations

import os
import sys
import time
from typing import NoReturn

HARNESSES = ("claude-code",)
_USAGE = "eventlog hook claude-code --log DIR --thread NAME [--reconciler PROGRAM] [--deadline SECONDS]"
DEADLINE_S = 20.0


def run(words: list[str]) -> int:
    """`eventlog hook HARNESS …`; the exit code. Wrong usage is 2, which denies a call."""
    started = time.monotonic()
    from eventlog.recovery.harness.running import Options
    from eventlog.recovery.harness.running import run as run_hook

    found: dict[str, str] = {}
    names = {"--log": "log", "--thread": "thread", "--reconciler": "reconciler", "--deadline": "deadline"}
    rest = iter(words[1:])
    for one in rest:
        name, equals, value = one.partition("=")
        if name not in names:
            _wrong(f"unknown option {one!r}")
        if not equals:
            value = next(rest, "")
        if not value:
            _wrong(f"{name} needs a value")
        found[names[name]] = value
    if "log" not in found or "thread" not in found:
        _wrong("--log and --thread are needed")
    reconciler = None
    if "reconciler" in found:
        import shlex

        try:
            reconciler = shlex.split(found["reconciler"])
        except ValueError as error:
            _wrong(f"--reconciler: {error}")
    try:
        deadline_s = float(found.get("deadline", DEADLINE_S))
    except ValueError:
        deadline_s = -1
    if not 0 < deadline_s < 86_400:
        _wrong("--deadline is a number of seconds")
    return run_hook(Options(found["log"], found["thread"], reconciler, deadline_s), os.environ, started)


def _wrong(why: str) -> NoReturn:
    sys.stderr.write(f"eventlog hook: {why} (usage: {_USAGE})\n")
    raise SystemExit(2)
