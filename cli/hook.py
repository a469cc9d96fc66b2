"""`eventlog hook`: what a harness runs at each step of an agent. Parsed without click, which would be a third of the time of a call."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from eventlog import jsonroad
from eventlog.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

HARNESSES = ("claude-code", "codex")
DEADLINE_S = 20.0
_OPTIONS = ("--log", "--thread", "--reconciler", "--deadline", "--redact")
_USAGE = "--log DIR --thread NAME [--reconciler PROGRAM] [--deadline SECONDS] [--record [--redact PATTERN]...]"
_HELP = f"""\
Usage: eventlog hook claude-code|codex {_USAGE}

  What the agent's program runs at each of its steps: it reads the event from standard input, and answers a tool call.

  --log DIR             The log. It has to be there.
  --thread NAME         Whose hooks these are: one name for each agent's line of work.
  --reconciler PROGRAM  Brings the workspace up to date when a change waits, and says what the agent is told (docs/deliveries.md). A
                        program and its arguments, quoted as for a shell; none is involved.
  --deadline SECONDS    Deny a call when it has no answer by then. Keep it below the timeout of the hook.  [default: {DEADLINE_S:g}]
  --record              Record every event as one of the session, redacted.
  --redact PATTERN      With --record: take this out as well (a regular expression). May be given more than once.

  Nothing on standard output lets a call run. A JSON object, or exit code 2, denies it; every other failure of this process would let it
  run, so install it for PreToolUse as `eventlog hook … || exit 2`.

Examples:
  eventlog hook claude-code --log ~/logs/web --thread web --reconciler './reconcile --fast'
  eventlog hook install claude-code --help
"""


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
        if one in ("-h", "--help"):  # and not as somebody's value: this lets a call run
            sys.stdout.write(_HELP)
            sys.stdout.flush()
            return 0
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
    from eventlog.recovery.harness.saying import one_line

    line = one_line(f"eventlog hook {harness}: {why} (usage: eventlog hook {harness} {_USAGE})")
    with suppress(OSError):  # a closed one is nobody's failure
        os.write(2, line.encode(errors="replace") + b"\n")
    raise SystemExit(2)
