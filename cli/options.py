"""Arguments that several commands share, and opening a log to read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from eventlog import EventLog

# Existence is checked by the log itself: it tells a directory without a log from no directory at all.
log_argument = click.argument("log", type=click.Path(path_type=Path), metavar="LOG")
json_option = click.option("--json", "in_json", is_flag=True, help="Print JSON with stable field names.")
no_snapshot_option = click.option("--no-snapshot", is_flag=True, help="Fold every event: use no snapshot, and leave none.")
log_option = click.option("--log", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The log.")
thread_option = click.option("--thread", required=True, metavar="NAME", help="The thread: one agent's line of work.")
SEQ = click.IntRange(min=0)
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def age(_ctx: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """`30s`, `10m`, `2h` or `3d` in seconds: the callback of an option."""
    if text is None:
        return None
    digits, unit = text[:-1], text[-1:]
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and unit in _UNITS_S):
        raise click.BadParameter(f"{text!r} is no age; write 30s, 10m, 2h or 3d")
    return int(digits) * _UNITS_S[unit]


def moment(_ctx: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """`2026-11-30`, `2026-11-30T14:00:00Z` (without a zone: UTC, as it is printed) or `2h` ago, in ns: the callback of an option."""
    if text is None:
        return None
    import time
    from datetime import UTC, datetime, timedelta

    if text[:-1].isdigit() and text[-1:] in _UNITS_S:
        return time.time_ns() - (age(_ctx, _option, text) or 0) * 10**9
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; write 2026-11-30, 2026-11-30T14:00:00Z, or 2h for two hours ago") from None
    since_epoch = (found if found.tzinfo else found.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since_epoch // timedelta(microseconds=1) * 1000  # not timestamp(): a float has no room for it


since_option = click.option("--since", callback=moment, metavar="TIME", help="Only events from then on: 2026-11-30T14:00:00Z, or 2h (ago).")
until_option = click.option("--until", callback=moment, metavar="TIME", help="Only events up to then.")


def user_name() -> str:
    """Who decides, when nobody else is named."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no name for this uid, and none in the environment
        import os

        return f"uid {os.getuid()}"


def read_log(path: Path, *, keeps: bool = False) -> EventLog:
    """Open for reading: not a byte, name or time of the log changes. Raises LogNotFound, Corrupt, UnsupportedFormat.

    `keeps`: of the log's own; a fold that was long may leave a snapshot beside it, where its owner could write.
    """
    log = EventLog.open(path, create=False, read_only=True)
    log.snapshots.may_write = keeps
    return log


def load_attribute(spec: str, what: str) -> Any:
    """`module:attribute`, imported with the current directory on the path, as `python -m` would. Raises UsageError.

    Whatever the user's module raises becomes one line: it is their code, and our traceback would only hide it.
    """
    import sys
    from importlib import import_module

    module, _, attribute = spec.partition(":")
    if not module or not attribute:
        raise click.UsageError(f"{what} {spec!r} is not of the form module:attribute")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
    except Exception as error:
        raise click.UsageError(f"{what} {spec}: {type(error).__name__}: {error}") from error
    return found
