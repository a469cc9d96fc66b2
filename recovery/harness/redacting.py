"""Taking secrets and bulk out of what is recorded. Best effort: a pattern finds what looks like a secret, not what is one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["DEFAULT_PATTERNS", "REDACTED", "Redactor"]

REDACTED = "[redacted]"
TEXT_CHARS_MAX = 16_384  # of one string
ITEMS_MAX = 1_000  # of one array or object
STRINGS_CHARS_MAX = 262_144  # of one event
_DEPTH_MAX = 40
_LOOK_CHARS_MAX = 262_144  # a pattern is not run over more of one string than this; the rest is cut off anyway

_NAMES = "password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key"
DEFAULT_PATTERNS = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # AWS
    r"\bgh[pousr]_[0-9A-Za-z]{20,}|\bgithub_pat_[0-9A-Za-z_]{20,}|\bglpat-[0-9A-Za-z_-]{20,}",
    r"\bsk-[0-9A-Za-z_-]{16,}",  # model APIs
    r"\bxox[abeoprs]-[0-9A-Za-z-]{10,}|\bnpm_[0-9A-Za-z]{30,}|\bpypi-[0-9A-Za-z_-]{30,}",
    r"\beyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}",  # JSON web tokens
    r"(?i)\b(?:bearer|basic)\s+[0-9A-Za-z+/._~-]{12,}=*",
    r"(?<=://)[^\s/:@]{1,200}:[^\s/@]{1,200}(?=@)",  # user:password in an address
    # name = value, "name": "value", --name=value
    rf"(?i)\b[\w.-]{{0,40}}(?:{_NAMES})[\w.-]{{0,40}}[\"']?\s{{0,3}}[=:]\s{{0,3}}(?:\"[^\"\n]{{0,500}}\"|'[^'\n]{{0,500}}'|[^\s\"',;&]{{1,500}})",
)
_SECRET_NAME = re.compile(r"(?i)password|passwd|passphrase|secret|token$|api[_-]?key|access[_-]?key|private[_-]?key|^authorization$")


class Redactor:
    """Replaces what matches one of the patterns (`more` beside the default ones) by `[redacted]`, and cuts what is long.

    What comes out can be recorded: no lone surrogates, no NaN, no integers beyond 64 bits, no depth. Raises re.error for a bad pattern.
    """

    def __init__(self, more: Sequence[str] = ()) -> None:
        self._patterns = [re.compile(pattern) for pattern in (*DEFAULT_PATTERNS, *more)]
        self._named = [_SECRET_NAME, *(re.compile(pattern) for pattern in more)]
        self._left = STRINGS_CHARS_MAX

    def clean(self, value: Any) -> Any:
        """A copy that may be recorded, for one event."""
        self._left = STRINGS_CHARS_MAX
        return self._clean(value, 0)

    def _clean(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int):
            return value if -(2**63) <= value < 2**64 else self._text(hex(value))
        if isinstance(value, float):
            return value if value - value == 0 else str(value)
        if depth >= _DEPTH_MAX:
            return "[too deep]"
        if isinstance(value, list):
            return [self._clean(one, depth + 1) for one in value[:ITEMS_MAX]] + self._more(len(value))
        if isinstance(value, dict):
            kept = list(value.items())[:ITEMS_MAX]
            found = {self._text(key): self._member(key, one, depth) for key, one in kept}
            return found if len(value) <= ITEMS_MAX else {**found, "…": self._more(len(value))[0]}
        return f"[{type(value).__name__}]"

    def _member(self, key: str, value: Any, depth: int) -> Any:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and any(one.search(key) for one in self._named):
            return REDACTED
        return self._clean(value, depth + 1)

    @staticmethod
    def _more(length: int) -> list[str]:
        return [f"… [{length - ITEMS_MAX} more]"] if length > ITEMS_MAX else []

    def _text(self, text: str) -> str:
        length = len(text)
        text = text[:_LOOK_CHARS_MAX].encode(errors="replace").decode()
        for pattern in self._patterns:
            text = pattern.sub(REDACTED, text)
        room = min(TEXT_CHARS_MAX, self._left)
        if length > _LOOK_CHARS_MAX or len(text) > room:
            text = f"{text[:room]}… [cut: {length} characters]"
        self._left = max(0, self._left - len(text))
        return text
