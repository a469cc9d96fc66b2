"""`eventlog append`: JSON lines in, one commit a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click

from eventlog import Durability, Event, EventLog, EventLogError, PayloadError
from eventlog.cli.options import log_argument
from eventlog.cli.output import EXIT, OutputFailed, flush, note, write

LINE_BYTES_MAX = 64 * 2**20  # of input; what one commit may hold is commit_bytes_max, and JSON escapes take up to six times that
_ACCEPTED = {"type", "stream", "data", "seq", "time", "commit"}  # the last three are a dump's: the log gives new ones
_TOO_LONG = 21  # digits: 64 bits take at most 20, and int() of a huge text is slow and may be refused without saying where


class BadLine(Exception):
    """A line that cannot be committed; the message begins with the field."""


@click.command(
    epilog="""\b
Example:
  echo '{"type": "note.added", "stream": "order-17", "data": {"text": "hello"}}' | eventlog append ./log
  eventlog dump ./log | eventlog append ./copy"""
)
@log_argument
@click.option(
    "--durability",
    type=click.Choice(["immediate", "batched"]),
    default="immediate",
    show_default=True,
    help="immediate: each printed line would survive a power cut. batched: so would everything, once the command has ended with 0.",
)
def append(log: Path, durability: str) -> int:
    """Append JSON lines from standard input to LOG, which is created if need be.

    An object {"type", "stream", "data"} is one commit of one event; an array of objects is one atomic commit. Prints {"first", "last"},
    the seqs, for each commit as soon as it is made. A bad line ends the command with 2: all lines before it are in the log and were
    printed, nothing of it or after it is.
    """
    from eventlog.cli.app import code_of

    if sys.stdin is None:
        raise click.UsageError("standard input is closed; JSON lines are read from it")
    if sys.stdin.isatty():
        note("eventlog append: reading JSON lines from the terminal; Ctrl-D ends")
    commits, kind = 0, Durability(durability)
    with EventLog.open(log) as handle:
        for mended in handle.mended:
            note(f"eventlog append: {mended}")
        for number, line in _lines(sys.stdin.buffer):
            try:
                events, whole = _events(line)
                commit = handle.commit(events, kind)
            except PayloadError as error:
                return _refuse(number, f"{_place(error.path, whole)}: {error.why}", commits)
            except BadLine as error:
                return _refuse(number, str(error), commits)
            except EventLogError as error:  # the disk, the lock, damage: only here is it known how far we came
                note(f"eventlog append: standard input, line {number}: {error}; {commits} commits were printed before it")
                return code_of(error)
            commits += 1
            try:
                write(b'{"first":%d,"last":%d}\n' % (commit.first, commit.last))
                flush()
            except OutputFailed as failure:
                # Not quiet, even if the reader only left: the rest of the input was not appended.
                failure.reader_left, failure.so = False, f"stopped after line {number} of standard input, which is in the log"
                raise
        handle.flush()
    return EXIT.fine


def _refuse(number: int, why: str, commits: int) -> int:
    before = f"the {commits} commits before it are in the log" if commits else "nothing was appended"
    note(f"eventlog append: standard input, line {number}: {why}; {before}")
    return EXIT.usage


def _place(path: str, whole: bool) -> str:
    """The log speaks of `events[0].data.x`; a line that is one object has no list in it."""
    return path.removeprefix("events").removeprefix("[0].") if whole else path.removeprefix("events") or "the array"


def _lines(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines ended by `\\n` and nothing else (U+2028 and U+0085 are text), each as soon as a pipe delivers it. Blank ones are skipped."""
    number = 0
    while line := source.readline(LINE_BYTES_MAX + 1):
        number += 1
        if line.strip(b" \t\r\n"):
            yield number, line


def _events(line: bytes) -> tuple[list[Event], bool]:
    """The events of one line, and whether it was one object rather than an array. Raises BadLine."""
    if len(line) > LINE_BYTES_MAX:
        raise BadLine(f"longer than {LINE_BYTES_MAX} bytes")
    try:
        value = _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise BadLine(f"byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadLine(f"column {error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise BadLine("nested too deep") from None
    if isinstance(value, dict):
        return [_event(value, "")], True
    if not isinstance(value, list):
        raise BadLine(f"expected an object or an array of objects, got {_name(value)}")
    return [_event(item, f"[{index}]") for index, item in enumerate(value)], False


def _event(value: Any, where: str) -> Event:
    if not isinstance(value, dict):
        raise BadLine(f"{where}: expected an object, got {_name(value)}")
    dot = f"{where}." if where else ""
    if not value.keys() <= _ACCEPTED:
        field = min(value.keys() - _ACCEPTED)
        raise BadLine(f"{dot}{field}: unknown field; an event has type, stream and data")
    for field in ("type", "data"):
        if field not in value:
            raise BadLine(f"{dot}{field}: missing")
    return Event(value["type"], value["data"], value.get("stream", ""))


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two equal keys in one object: loaders keep the last and say nothing, so what was meant cannot be known (reliability P31)."""
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadLine(f"{key}: the key is there twice in one object")
            seen.add(key)
    return made


def _integer(digits: str) -> int:
    """Exact, or something that the payload rule refuses with the path to it: a loader that makes floats of big integers loses digits."""
    return int(digits) if len(digits) <= _TOO_LONG else 2**64


_DECODER = json.JSONDecoder(object_pairs_hook=_no_twins, parse_int=_integer)  # json.loads would make one for each line


def _name(value: Any) -> str:
    return {bool: "true or false", type(None): "null", str: "a string"}.get(
        type(value), "a number" if isinstance(value, (int, float)) else "an array"
    )
