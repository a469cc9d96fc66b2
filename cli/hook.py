"""`eventlog hook`: what a harness runs at each step of an agent. Parsed without click, which would be a third of the time of a call."""

from __future__ import annotations

import os
import sys
import time

from eventlog import jsonroad
from eventlog.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

HARNESSES = ("claude-code", "codex")
DEADLINE_S = 20.0
_OPTIONS = ("--log", "--thread", "--reconciler", "--deadline", "--redact")
_USAGE = "--log DIR --thread NAME [--reconciler PROGRAM] [--deadline SECONDS] [--record [--redact PATTERN]...]"


def run(words: list[str]) -> int:
    """`eventlog hook HARNESS …`; the exit code. Wrong usage is 2, which denies a call."""
    started = time.monotonic()
    jsonroad.take_the_short_one()  # before anything else of the library is there
    from eventlog.recovery.harness.running import Options
    from eventlog.recovery.harness.running import run as run_hook

    harness, found, redact, record = words[0], dict[str, str](), list[str](), False
    rest = iter(words[1:])
    for one in rest:
        name, equals, value = one.partition("=")
        if one == "--record":
            record = True
            continue
        if name not in _OPTIONS:
            _wrong(harness, f"unknown option {one!r}")
        if not equals:
            value = next(rest, "")
        if not value:
            _wrong(harness, f"{name} needs a value")
        if name == "--redact":
            redact.append(value)
        else:
            found[name] = value
    if "--log" not in found or "--thread" not in found:
        _wrong(harness, "--log and --thread are needed")
    options = Options(
        harness,
        found["--log"],
        found["--thread"],
        reconciler=found.get("--reconciler"),
        deadline_s=_seconds(harness, found["--deadline"]) if "--deadline" in found else DEADLINE_S,
        record=record,
        redact=redact,
    )
    if redact:
        _check_patterns(harness, redact)
    return run_hook(options, os.environ, started)


def _seconds(harness: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86_400:
        _wrong(harness, f"--deadline {text!r} is no number of seconds")
    return seconds


def _check_patterns(harness: str, patterns: list[str]) -> None:
    import re

    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            _wrong(harness, f"--redact {pattern!r}: {error}")


def _wrong(harness: str, why: str) -> NoReturn:
    sys.stderr.write(f"eventlog hook {harness}: {why} (usage: eventlog hook {harness} {_USAGE})\n")
    raise SystemExit(2)
