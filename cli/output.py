"""What reaches the terminal or the pipe: escaped, flushed, and never lost in silence.

A payload is somebody else's text. Printed raw it can move the cursor, retitle the window, or reorder a line so that it reads as the
opposite (reliability P43), so no control or bidi character leaves here unescaped: not from events, not from file names.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import orjson

# C0, DEL, C1, lone surrogates, the bidi marks, embeddings, overrides and isolates, the two line separators that only some readers
# split on, and the invisible ones (zero-width space, byte order mark, tags). Zero-width joiners stay: scripts and emoji need them.
_HOSTILE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]")
# The same set in UTF-8, for finished JSON, where such a character can only stand inside a string.
_HOSTILE_UTF8 = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8b\x8e\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf|\xf3\xa0[\x80\x81][\x80-\xbf]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class OutputFailed(Exception):
    """Standard output would not take what was written. Not an OSError, so that nobody takes it for a failure of the log."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error
        self.so = "what was printed is not complete"
        self.reader_left = isinstance(error, BrokenPipeError)
        self.code = EXIT.fine  # of a command whose reader left: see `answering`


class Exit(NamedTuple):
    """The exit codes, which scripts rely on (design 7)."""

    fine: int = 0
    no: int = 1  # the answer is no: verify failed, something waits for a decision
    usage: int = 2  # also: no log at that path, a bad line on standard input
    damaged: int = 3
    busy: int = 4
    failed: int = 5  # the system refused: disk full, no permission, standard output gone
    interrupted: int = 130


EXIT = Exit()


@contextmanager
def answering(code: int) -> Iterator[int]:
    """Print an answer whose code counts even if nobody reads the text to its end: `eventlog verify LOG | head -1` must not say 0."""
    try:
        yield code
        flush()
    except OutputFailed as failure:
        failure.code = code
        raise


def escape(text: str) -> str:
    """Make one line of text safe to show; everything printable, in any script, stays as it is."""
    return _HOSTILE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    if code < 0x100:
        return _SHORT.get(character) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shown(path: str | os.PathLike[str]) -> str:
    """A file name as text: bytes that are not UTF-8 become `\\xNN`, controls are escaped."""
    return escape(os.fsencode(path).decode("utf-8", "backslashreplace"))


def as_json(value: Any) -> bytes:
    """One JSON text without a line end: UTF-8, with control and bidi characters as `\\uNNNN`."""
    text = orjson.dumps(value)
    if text.isascii() and b"\x7f" not in text:  # JSON itself escapes C0
        return text
    return _HOSTILE_UTF8.sub(lambda match: json.dumps(match.group().decode())[1:-1].encode(), text)


def plain(value: Any) -> Any:
    """The JSON form of a state of somebody's fold: records and mappings become objects, sets sorted lists, what is unknown its text."""
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, AbstractSet):
        return sorted((plain(item) for item in value), key=repr)
    if isinstance(value, (Sequence, ValuesView)) and not isinstance(value, (bytes, bytearray)):
        return [plain(item) for item in value]
    return str(value)


def when(time_ns: int) -> str:
    """RFC 3339, UTC, nanoseconds."""
    seconds, fraction = divmod(time_ns, 10**9)
    return f"{_second(seconds)}.{fraction:09d}Z"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    except (ValueError, OverflowError, OSError):
        # A clock far off (or forged) has no RFC 3339 form. The order is the seq, so the event is still shown.
        return f"@{seconds}"


def _stdout() -> BinaryIO:
    if sys.stdout is None:  # closed by the caller: `eventlog … >&-`
        raise OutputFailed(OSError(9, "standard output is closed"))
    return sys.stdout.buffer


def write(line: bytes) -> None:
    """Bytes to standard output, buffered. Raises OutputFailed."""
    try:
        _stdout().write(line)
    except OSError as error:
        raise OutputFailed(error) from error


def flush() -> None:
    """Hand what is buffered to the system: a follower waits for it, and a full disk must be heard of. Raises OutputFailed."""
    try:
        _stdout().flush()
    except OSError as error:
        raise OutputFailed(error) from error


def say(text: str = "") -> None:
    """One line of text that is safe already (see `escape`), in the terminal's own encoding."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    write(text.encode(encoding, "backslashreplace") + b"\n")


def say_json(value: Any) -> None:
    write(as_json(value) + b"\n")


def note(text: str) -> None:
    """One line on standard error; a closed one is nobody's failure."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(escape(text).encode("utf-8", "backslashreplace").decode() + "\n")
            sys.stderr.flush()
        except OSError:
            return


def on_terminal() -> bool:
    """Is standard output a terminal that wants colours?"""
    return sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def discard_stdout() -> None:
    """After a failure, stop the interpreter from flushing the same bytes again at exit and printing its own complaint."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError, AttributeError):  # not a real file: under a test runner
        return
