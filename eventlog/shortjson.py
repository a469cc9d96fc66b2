"""JSON by the parser and writer in C that Python brings along, without the package around them (a fifth of an interpreter's start)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["dumps", "loads"]


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    """orjson refuses what float() makes an infinity of; one that came in would have no way out again."""
    value = float(text)
    return value if value - value == 0.0 else _refuse(text)


class _Context:
    """What json.JSONDecoder would tell the scanner."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int, parse_constant = staticmethod(_finite), int, staticmethod(_refuse)
    memo: dict[str, str] = {}  # noqa: RUF012  the scanner wants one


def _bare() -> tuple[Callable[[str], Any], Callable[[Any], str]]:
    """Straight into C. Whatever is missing or works otherwise in some Python raises something."""
    import _json

    scan = _json.make_scanner(_Context)  # type: ignore[arg-type,unused-ignore]
    encode = _json.make_encoder(None, _no_default, _json.encode_basestring, None, ":", ",", False, False, False)

    def parse(text: str) -> Any:
        begin = len(text) - len(text.lstrip(" \t\n\r"))
        try:
            value, end = scan(text, begin)
        except StopIteration:
            raise ValueError("not JSON") from None
        if text[end:].strip(" \t\n\r"):
            raise ValueError("more than one JSON value")
        return value

    def write(value: Any) -> str:
        return "".join(encode(value, 0))

    sample = '[{"a":"\\u0001\\"é"},1,-2.5,true,null]'
    if write(parse(f" {sample}\n")) != sample:
        raise ValueError("this Python writes JSON in another way")
    return parse, write


def _whole() -> tuple[Callable[[str], Any], Callable[[Any], str]]:
    import json

    writer = json.JSONEncoder(check_circular=False, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return lambda text: json.loads(text, parse_float=_finite, parse_constant=_refuse), writer.encode


def _no_default(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not a JSON type")


try:
    _parse, _write = _bare()
except Exception:  # noqa: BLE001  any reason is one to take the public road
    _parse, _write = _whole()


def loads(data: bytes) -> Any:
    """Raises ValueError: no UTF-8, no JSON, NaN and the like."""
    try:
        return _parse(data.decode())
    except RecursionError:
        raise ValueError("nested too deep") from None


def dumps(value: Any, *, option: int = 0) -> bytes:
    """UTF-8 without white space, as orjson writes it. The caller has checked the value. `option` is for orjson."""
    return _write(value).encode()
