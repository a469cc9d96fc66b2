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
_LOOK_CHARS_MAX = 65_536  # a pattern is not run over more of one string than this; the rest is cut off anyway

# What a secret is called. Some short words count only as the last part of a name (DB_PASS), and some are others' beginnings (author).
_NAMES = (
    r"(?:passw(?:or)?d|passphrase|passcode|secret(?!ar)|token(?!s\b|iz)|(?:api|access|private|signing|encryption|account)[_-]?key|credential"
    r"|(?<![a-z])auth(?![a-z.])|[_-](?:pass|pwd|pat|psk)(?![a-z])|(?<!\w)pass(?==))"
)
_NAMED = rf"[\w.-]{{0,40}}{_NAMES}[\w.-]{{0,40}}"
# Quoted in any of these ways, also within a string that is quoted itself; or up to where a word ends.
_VALUE = r"""(?:\"{3}[\s\S]*?\"{3}|'{3}[\s\S]*?'{3}|\\+[\"'][^\"'\n]*+[\"']?|\"(?:\\.|[^\"\\\n])*+\"?|'[^'\n]*+'?|[^\s\"',;&<]++)"""
DEFAULT_PATTERNS = (
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    r"\A[\s\S]*?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----",  # its beginning is not in this text
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[0-9A-Za-z_-]{30,}|\bya29\.[0-9A-Za-z_-]{20,}",  # clouds
    r"\bgh[pousr]_[0-9A-Za-z]{20,}|\bgithub_pat_[0-9A-Za-z_]{20,}|\bglpat-[0-9A-Za-z_-]{20,}",
    r"\bsk-[0-9A-Za-z_-]{16,}|\bhf_[0-9A-Za-z]{20,}|\bgsk_[0-9A-Za-z]{20,}",  # model APIs
    r"\b[srp]k_(?:live|test)_[0-9A-Za-z]{10,}|\bwhsec_[0-9A-Za-z+/=]{20,}|\bSG\.[0-9A-Za-z_-]{16,}\.[0-9A-Za-z_-]{16,}",
    r"\bxox[abeoprs]-[0-9A-Za-z-]{10,}|\bxapp-[0-9A-Za-z-]{10,}|\bnpm_[0-9A-Za-z]{30,}|\bpypi-[0-9A-Za-z_-]{30,}",
    r"\bhooks\.slack\.com/(?:services|workflows)/[^\s\"'<>]+|\bdiscord(?:app)?\.com/api/webhooks/[^\s\"'<>]+",
    r"\beyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}",  # JSON web tokens
    r"(?i)\b(?:proxy-)?authorization\\*[\"']?\s{0,3}[=:]\s{0,3}\\*[\"']?[^\"'\r\n]++|\b(?:set-)?cookie\\*[\"']?:\s{0,3}\\*[\"']?[^\"'\r\n]++",
    r"(?i)\b(?:bearer|basic)\s+[0-9A-Za-z+/._~-]{12,}=*",
    r"(?<=://)[^\s/?#\"'<>]{1,400}(?=@)",  # user:password in an address, or a token alone
    r"(?i)[?&][\w.-]{0,40}(?:sig|signature|key|code|credential)=[^\s&#\"'<>]++",
    # name = value, "name": "value", --name=value, \"name\": \"value\", name%3Dvalue
    rf"(?i)\b{_NAMED}(?:\\*[\"'])?(?:\s{{0,3}}(?:=>|:=|[=:])\s{{0,3}}|%3[ad]){_VALUE}",
    rf"(?i)(?<![\w-])--?[\w-]{{0,40}}{_NAMES}[\w-]{{0,40}}\s+(?!-){_VALUE}",  # --name value
    rf"(?i)\b\w{{0,40}}_{_NAMES}\w{{0,40}}\s+[0-9A-Za-z+/=._~-]{{12,}}",  # set aws_secret_access_key VALUE
    rf"(?i)<[\w:.-]{{0,40}}{_NAMES}[\w:.-]{{0,40}}>[^<]++",
    rf"(?i)\blogin\s+\S{{1,200}}\s+password\s+{_VALUE}",  # .netrc
    r"(?<!\S)(?:-u|-U|--user|--proxy-user)[\s=]{0,3}[\"']?[^\s:\"']{1,200}:[^\s\"']++",
    rf"\b(?:sshpass|login|mysql\w*|mariadb\w*|mongo\w*|redis-cli)\b[^\n|;&]{{0,200}}?\s-[pa]\s?(?![\s-]){_VALUE}",
)
# Of a field or an element. A number is kept where the name may be that of a count.
_SECRET_NAME = re.compile(rf"(?i){_NAMES}|tokens$|^pwd$|^cookies?$|authorization$")
_SECRET_NUMBER = re.compile(r"(?i)passw(?:or)?d|passphrase|passcode|secret|token$|api[_-]?key|access[_-]?key|private[_-]?key")
_OPTION_OR_NAME = re.compile(rf"(?i)-{{0,2}}{_NAMED}:?|(?:proxy-)?authorization:?|(?:set-)?cookie:?|-u|--user|--proxy-user")
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----")
_CALLED = ("name", "key", "header", "variable", "field")  # {"name": "API_KEY", "value": "…"}
_HOLDS = frozenset(("value", "values", "val", "default", "content", "data"))


class Redactor:
    """Replaces what matches one of the patterns (`more` beside the default ones) by `[redacted]`, and cuts what is long.

    What comes out can be recorded: no lone surrogates, no NaN, no integers beyond 64 bits, no depth. Raises re.error for a bad pattern.
    """

    def __init__(self, more: Sequence[str] = ()) -> None:
        self._patterns = [re.compile(pattern) for pattern in (*DEFAULT_PATTERNS, *more)]
        self._more_names = [re.compile(pattern) for pattern in more]
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
            return self._elements(value[:ITEMS_MAX], depth) + self._more(len(value))
        if isinstance(value, dict):
            kept = list(value.items())[:ITEMS_MAX]
            told = any(isinstance(value.get(one), str) and self._is_secret(value[one], value.get("value")) for one in _CALLED)
            found = {self._text(key): REDACTED if told and key in _HOLDS else self._member(key, one, depth) for key, one in kept}
            return found if len(value) <= ITEMS_MAX else {**found, "…": self._more(len(value))[0]}
        return f"[{type(value).__name__}]"

    def _member(self, key: str, value: Any, depth: int) -> Any:
        return REDACTED if self._is_secret(key, value) else self._clean(value, depth + 1)

    def _is_secret(self, name: str, value: Any) -> bool:
        """Is what is called so a secret, of whatever shape?"""
        if value is None or isinstance(value, bool):
            return False
        pattern = _SECRET_NUMBER if isinstance(value, (int, float)) else _SECRET_NAME
        return any(one.search(name) for one in (pattern, *self._more_names))

    def _elements(self, values: list[Any], depth: int) -> list[Any]:
        """A list may be words of a command line, a name and its value, or lines of a key."""
        found: list[Any] = []
        before, in_key = "", False
        for value in values:
            text = value if isinstance(value, str) else ""
            in_key = in_key or (len(text) < _LOOK_CHARS_MAX and bool(_KEY_BEGINS.search(text)))
            told = text and len(before) < 200 and _OPTION_OR_NAME.fullmatch(before) and not text.startswith("-")
            found.append(REDACTED if text and (in_key or told) else self._clean(value, depth + 1))
            in_key = in_key and not _KEY_ENDS.search(text)
            before = text
        return found

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
