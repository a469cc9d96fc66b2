"""What an exception says about the effect: surely not sent, definitely refused, or nobody knows (research: effects 1.4).

Whatever no table here knows is Unknown: a tool that stumbled over the answer may well have sent the request. A tool says otherwise by
raising NotSent or Rejected, or by naming its exceptions at registration (`not_sent=`, `rejects=`).
httpx, requests and urllib3 exceptions are recognised by the names of their classes, so that nothing has to be imported.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from eventlog.errors import PayloadError
from eventlog.recovery.answers import Unknown
from eventlog.recovery.errors import EffectFailed, NotSent, Rejected
from eventlog.recovery.values import canonical, clean_text

__all__ = ["Failure", "FailureVerdict", "judge", "judge_status"]

FailureVerdict = Literal["not_sent", "rejected", "unknown"]
MESSAGE_CHARS_MAX = 4000
Types = tuple[type[BaseException], ...]

# The connection was never made. ECONNRESET, EPIPE and ETIMEDOUT are not here: they come after bytes have left.
_NOT_SENT_ERRNOS = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL})
# The kernel refused the call itself.
_REJECTED_ERRNOS = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EROFS, errno.ENAMETOOLONG}
)
_NOT_SENT_CLASSES = frozenset(
    {
        "httpx.ConnectError",
        "httpx.ConnectTimeout",
        "httpx.PoolTimeout",
        "httpx.UnsupportedProtocol",
        "httpx.InvalidURL",
        "httpcore.ConnectError",
        "httpcore.ConnectTimeout",
        "requests.exceptions.ConnectTimeout",
        "requests.exceptions.InvalidURL",
        "requests.exceptions.InvalidSchema",
        "requests.exceptions.MissingSchema",
        "requests.exceptions.SSLError",
        "urllib3.exceptions.NewConnectionError",
        "urllib3.exceptions.NameResolutionError",
        "urllib3.exceptions.ConnectTimeoutError",
        "ssl.SSLCertVerificationError",
    }
)
_MCP_NOT_SENT_CODES = frozenset({-32601, -32602, -32600, -32700})  # no such method, bad parameters: answered before the tool ran
# 408, 409, 425 and 429 are not definitive: the first may have arrived, the others ask to come again.
_STATUS_UNDECIDED = frozenset({408, 409, 425, 429})


@dataclass(frozen=True, slots=True)
class Failure:
    """`error` is what is recorded; `retry_after` is in seconds, from the receiver."""

    verdict: FailureVerdict
    error: dict[str, Any]
    retry_after: float | None = None


def judge(
    error: BaseException,
    *,
    not_sent: Types = (),
    rejects: Types = (),
    classify: Callable[[BaseException], BaseException | None] | None = None,
) -> Failure:
    """Classify what a tool raised. `classify` may translate it into NotSent, Rejected or Unknown first (None: no opinion)."""
    named = error
    if classify is not None and isinstance(error, Exception):
        try:
            named = classify(error) or error
        except Exception as broken:  # noqa: BLE001 - a broken opinion is no opinion
            named = Unknown(f"classify= raised {type(broken).__name__}: {broken}")
    verdict, retry_after = _verdict(named, not_sent, rejects)
    recorded: dict[str, Any] = {
        "type": type_name(error),
        "message": clean_text(str(error), MESSAGE_CHARS_MAX),
        "verdict": verdict,
    }
    data = getattr(named, "data", None) if isinstance(named, EffectFailed | Unknown) else None
    if data is not None:
        try:
            recorded["data"] = canonical(data)[0]
        except PayloadError as bad:
            recorded["data_dropped"] = clean_text(str(bad), 300)
    return Failure(verdict, recorded, retry_after)


def type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def judge_status(status: int) -> FailureVerdict:
    """What an HTTP status code says about a request that was answered with it."""
    return "rejected" if 400 <= status < 500 and status not in _STATUS_UNDECIDED else "unknown"


def _verdict(error: BaseException, not_sent: Types, rejects: Types) -> tuple[FailureVerdict, float | None]:
    if isinstance(error, NotSent):
        return "not_sent", error.retry_after
    if isinstance(error, Rejected):
        return "rejected", None
    if isinstance(error, Unknown) or not isinstance(error, Exception):
        return "unknown", None  # Ctrl-C, SystemExit, a cancelled await: at any moment
    if isinstance(error, not_sent):
        return "not_sent", None
    if isinstance(error, rejects):
        return "rejected", None
    status = _status_of(error)
    if status is not None:
        return judge_status(status), None
    if _mcp_code_of(error) in _MCP_NOT_SENT_CODES:
        return "not_sent", None
    if _known_not_sent(error):
        return "not_sent", None
    if isinstance(error, OSError) and error.errno in _REJECTED_ERRNOS and not isinstance(error, socket.gaierror):
        return "rejected", None
    return "unknown", None


def _known_not_sent(error: BaseException) -> bool:
    if isinstance(error, ConnectionRefusedError | socket.gaierror):
        return True
    if isinstance(error, OSError) and error.errno in _NOT_SENT_ERRNOS:
        return True
    if _NOT_SENT_CLASSES & {f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}" for kind in type(error).__mro__}:
        return True
    if _NOT_SENT_CLASSES & {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}:
        return True
    # requests.ConnectionError says the same for "refused" and for "reset": urllib3's reason tells them apart.
    inner = error.args[0] if error.args and isinstance(error.args[0], BaseException) else None
    reason = getattr(inner, "reason", None)
    return isinstance(reason, BaseException) and reason is not error and _known_not_sent(reason)


def _status_of(error: BaseException) -> int | None:
    root = type(error).__module__.partition(".")[0]
    if root in ("httpx", "requests", "aiohttp", "urllib"):
        response = getattr(error, "response", None)
        for holder, name in ((response, "status_code"), (error, "status"), (error, "code")):
            status = getattr(holder, name, None)
            if type(status) is int and 100 <= status < 600:
                return status
    return None


def _mcp_code_of(error: BaseException) -> int | None:
    if type(error).__module__.partition(".")[0] != "mcp":
        return None
    code = getattr(getattr(error, "error", None), "code", None)
    return code if type(code) is int else None
