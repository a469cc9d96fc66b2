"""Arguments and results as data: canonical before they are used, so that the first run sees exactly what every later one sees."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

from eventlog import Event
from eventlog.digests import sha256
from eventlog.errors import PayloadError
from eventlog.payload import encode

__all__ = ["Unencodable", "canonical", "clean_text", "counted", "digest_of", "idempotency_key", "own_copy"]

_LIMIT = 2**40  # the log has its own limit on a commit; here only the rule counts
REPR_CHARS_MAX = 1000
SHORT_BYTES = 256
_scalars_only = frozenset({str, int, bool, type(None)}).issuperset  # float: NaN has no JSON
_plain_values = frozenset({str, int, float, bool, type(None)}).issuperset
_OPTIONS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


@dataclass(frozen=True, slots=True)
class Unencodable:
    """Stands for a result that has no JSON form: the effect is Committed, its value is gone. Give the tool an `encode=`.

    `type` names its class, `repr` shows its beginning, `why` says what could not be kept.
    """

    type: str
    repr: str
    why: str

    @classmethod
    def of(cls, value: object, why: str) -> Unencodable:
        try:
            shown = repr(value)
        except Exception as error:  # noqa: BLE001 - a broken __repr__ must not lose a Committed
            shown = f"<repr raised {type(error).__name__}>"
        return cls(f"{type(value).__module__}.{type(value).__qualname__}", clean_text(shown, REPR_CHARS_MAX), clean_text(why, 300))


def _flat_json(values: dict[str, Any], option: int) -> bytes | None:
    """The JSON of an object that it gives back as it is: the usual one, judged by C code alone. None: it takes a closer look."""
    if _scalars_only(map(type, values.values())):
        try:
            return orjson.dumps(values, None, option)  # of names it takes plain strings only
        except TypeError:
            return None
    return None


def canonical(value: Any) -> tuple[Any, bytes]:
    """The value as the log would give it back (tuples are lists), and its JSON. Raises PayloadError with the path to what is not JSON."""
    kind = type(value)
    if value is None or kind is bool or (kind is str and value.isascii()):
        return value, orjson.dumps(value)
    if kind is dict and (flat := _flat_json(value, _OPTIONS)) is not None:
        return dict(value), flat
    body = encode(Event("value", {"value": value}), _LIMIT).body
    restored = orjson.loads(body)[0][2]["value"]
    return restored, orjson.dumps(restored, option=_OPTIONS)


def canonical_args(args: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The same for named arguments; the error names the argument. It may be `args` itself that comes back."""
    if not args:
        return {}, b"{}"
    if (flat := _flat_json(args, orjson.OPT_SORT_KEYS)) is not None:
        return args, flat
    try:
        body = encode(Event("args", args), _LIMIT).body
    except PayloadError as error:
        raise PayloadError(error.path.replace("events[0].data.", "", 1).replace("events[0].data", "", 1), error.why) from None
    restored: dict[str, Any] = orjson.loads(body)[0][2]
    return restored, orjson.dumps(restored, option=orjson.OPT_SORT_KEYS)


def own_copy(args: dict[str, Any]) -> dict[str, Any]:
    """Canonical arguments for a tool, which may change what it is given: the next try is made with what is recorded."""
    if _plain_values(map(type, args.values())):
        return args
    copied: dict[str, Any] = orjson.loads(orjson.dumps(args))
    return copied


def digest_of(body: bytes) -> str:
    """SHA-256 in hex."""
    # OpenSSL is the faster one for what is long; to begin takes it three times as long, and most requests are short.
    return (hashlib.sha256 if len(body) > SHORT_BYTES else sha256)(body).hexdigest()


def idempotency_key(counted: bytes) -> str:
    """40 hexadecimal characters of the SHA-256 of counted parts.

    40, because the shortest limit of a payment provider is 45 (research: effects 1.3).
    """
    return sha256(counted).hexdigest()[:40]


def counted(*parts: str) -> bytes:
    """The parts, each with its length before it, so that ("a", "1/2") and ("a/1", "2") differ."""
    return b"".join([b"%d:%b" % (len(part), part) for part in map(str.encode, parts)])


def clean_text(text: str, chars_max: int) -> str:
    """Text that every log takes: lone surrogates replaced, cut to `chars_max`."""
    text = text if len(text) <= chars_max else text[: chars_max - 1] + "…"
    return text.encode("utf-8", "replace").decode()
