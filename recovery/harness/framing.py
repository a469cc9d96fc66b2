"""Payloads in a frame: id, length and digest, so that the very bytes can be found in whatever a harness makes of a text.

Claude Code puts words before a deny reason, Codex before and behind it; the words depend on the version, so a receipt is never a comparison
of whole strings. A frame that was cut, escaped or replaced is not found, and then nothing is proved.

A payload that is larger than what every harness carries unchanged, or that no command line carries (NUL), stays in the log, and a pointer
travels: where a copy of it lies, its digest, and its beginning. The pointer has a frame like any payload, which says of what payload it is
(`of=`). The receipt is then for the pointer, whole: the agent was told what to read and where; whether it read the file, nobody knows.
"""

from __future__ import annotations

import hashlib
import re

__all__ = ["BYTES_MAX", "UNITS_MAX", "find_payload", "find_startup", "fits", "frame", "frame_startup", "pointer"]

UNITS_MAX = 9_500
"""UTF-16 units of a whole text that Claude Code and Codex carry unchanged, in every place that they have for one (measured)."""
BYTES_MAX = 30_000
"""The same in bytes of UTF-8."""

_BEGINNING = 2_000  # characters of a large payload that the pointer shows
_OF_NAME = re.compile(r"%(10[0-9a-f]{4}|[0-9a-f]{1,5});")
_HEAD = re.compile(r"\[eventlog delivery (\S+) chars=([0-9]{1,9}) sha256=([0-9a-f]{64})(?: of=([0-9a-f]{64}))?(?: startup=(\S+))?\]\n")


def _frame(intent: str, text: str, more: str) -> str:
    digest, name = hashlib.sha256(text.encode()).hexdigest(), _name(intent)
    return f"[eventlog delivery {name} chars={len(text)} sha256={digest}{more}]\n{text}\n[end of eventlog delivery {name}]"


def _name(intent: str) -> str:
    """The id as one word of the head: a thread may be called anything, `my web` as well."""
    return "".join(one if one.isprintable() and one not in " %" else f"%{ord(one):x};" for one in intent)


def _intent(name: str) -> str:
    return _OF_NAME.sub(lambda found: chr(int(found[1], 16)), name)


def fits(text: str) -> bool:
    """Is it of a size and of characters that are carried unchanged everywhere, also as an argument of a program?"""
    return "\0" not in text and len(text.encode("utf-16")) // 2 - 1 <= UNITS_MAX and len(text.encode()) <= BYTES_MAX


def pointer(payload: str, path: str) -> tuple[str, str]:
    """What travels in the place of a payload that cannot: it lies at `path`. And the payload's digest. The same bytes, always."""
    body = payload.encode()
    digest = hashlib.sha256(body).hexdigest()
    why = "with NUL characters, which cannot be carried here" if "\0" in payload else "too many to be carried here"
    beginning = payload[:_BEGINNING].replace("\0", "\\0")
    text = (
        f"This message has {len(body)} bytes, {why}. Read all of it before you do anything else, in the file\n"
        f"{path}\n(sha256 {digest}). It begins:\n{beginning}\n… and goes on in the file."
    )
    return text, digest


def frame(intent: str, payload: str, path: str | None = None) -> str:
    """The text that a blocked call is answered with. The same payload gives the same text, always. With `path`: a pointer to that file."""
    if path is None:
        return _frame(intent, payload, "")
    text, whole = pointer(payload, path)
    return _frame(intent, text, f" of={whole}")


def frame_startup(intent: str, payload: str, startup_id: str, path: str | None = None) -> str:
    """The first input of a replacement: the payload, or a pointer to `path`, tagged with its one-use id."""
    if path is None:
        return _frame(intent, payload, f" startup={startup_id}")
    text, whole = pointer(payload, path)
    return _frame(intent, text, f" of={whole} startup={startup_id}")


def _find(text: str) -> list[tuple[str, str, str | None]]:
    found = []
    for head in _HEAD.finditer(text):
        payload = text[head.end() : head.end() + int(head[2])]
        whole = text.startswith(f"\n[end of eventlog delivery {head[1]}]", head.end() + int(head[2]))
        if whole and hashlib.sha256(payload.encode(errors="surrogatepass")).hexdigest() == head[3]:
            found.append((_intent(head[1]), head[4] or head[3], head[5]))
    return found


def find_payload(text: str) -> dict[str, str]:
    """intent -> SHA-256 of each payload that stands in the text whole, or that a whole pointer leads to: a receipt for batch_completed."""
    return {intent: digest for intent, digest, _ in _find(text)}


def find_startup(text: str) -> tuple[str, str] | None:
    """The intent and the startup id of the tagged payload in this prompt, if it is there whole."""
    return next(((intent, startup) for intent, _, startup in _find(text) if startup is not None), None)
