"""Payloads in a frame: id, length and digest, so that the very bytes can be found in whatever a harness makes of a text.

Claude Code puts words before a deny reason, Codex before and behind it; the words depend on the version, so a receipt is never a comparison
of whole strings. A frame that was cut, escaped or replaced is not found, and then nothing is proved.
"""

from __future__ import annotations

import hashlib
import re

__all__ = ["find_payload", "find_startup", "frame", "frame_startup"]

_HEAD = re.compile(r"\[eventlog delivery (\S+) chars=(\d+) sha256=([0-9a-f]{64})( startup=(\S+))?\]\n")


def _frame(intent: str, payload: str, more: str) -> str:
    digest = hashlib.sha256(payload.encode()).hexdigest()
    return f"[eventlog delivery {intent} chars={len(payload)} sha256={digest}{more}]\n{payload}\n[end of eventlog delivery {intent}]"


def frame(intent: str, payload: str) -> str:
    """The text that a blocked call is answered with. The same payload gives the same text, always."""
    return _frame(intent, payload, "")


def frame_startup(intent: str, payload: str, startup_id: str) -> str:
    """The first input of a replacement: the payload, tagged with its one-use id."""
    return _frame(intent, payload, f" startup={startup_id}")


def _find(text: str) -> list[tuple[str, str, str | None]]:
    found = []
    for head in _HEAD.finditer(text):
        payload = text[head.end() : head.end() + int(head[2])]
        whole = text.startswith(f"\n[end of eventlog delivery {head[1]}]", head.end() + int(head[2]))
        if whole and hashlib.sha256(payload.encode(errors="surrogatepass")).hexdigest() == head[3]:
            found.append((head[1], head[3], head[5]))
    return found


def find_payload(text: str) -> dict[str, str]:
    """intent -> SHA-256 of each payload that stands in the text whole. What a result says, as a receipt for batch_completed."""
    return {intent: digest for intent, digest, _ in _find(text)}


def find_startup(text: str) -> tuple[str, str] | None:
    """The intent and the startup id of the tagged payload in this prompt, if it is there whole."""
    return next(((intent, startup) for intent, _, startup in _find(text) if startup is not None), None)
