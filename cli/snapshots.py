"""`eventlog snapshots`: the kept states of folds. They are a cache: dropping them costs time once, and no event ever."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from eventlog.cli.options import json_option, log_argument, read_log
from eventlog.cli.output import escape, say, say_json, shown


@click.group(
    epilog="""\b
Examples:
  eventlog snapshots list ./log
  eventlog snapshots drop ./log --projection effects"""
)
def snapshots() -> None:
    """Kept states of folds: a cache, with which an answer costs what is new."""


@snapshots.command(
    "list",
    epilog="""\b
Examples:
  eventlog snapshots list ./log
  eventlog snapshots list ./log --json | jq 'select(.usable | not)'""",
)
@log_argument
@json_option
def list_snapshots(log: Path, in_json: bool) -> None:
    """List the snapshots in LOG, and say of each whether it can be used, or why it cannot."""
    from eventlog.projections.registry import BUILT_IN
    from eventlog.projections.snapshots import look

    with read_log(log) as handle:
        found = [look(handle.snapshots, entry, BUILT_IN) for entry in handle.snapshots.entries()]
    if in_json:
        for one in found:
            say_json(one._asdict())
    elif found:
        now = time.time_ns()
        _table(["PROJECTION", "VERSION", "SEQ", "BYTES", "AGE", "USABLE"], [_row(one, now) for one in found])


def _row(one: Any, now_ns: int) -> list[str]:
    age = "?" if one.written_ns is None else f"{max(0, now_ns - one.written_ns) // 10**9} s"
    name = "?" if one.projection is None else escape(one.projection)
    return [name, str(one.version), str(one.seq), str(one.bytes), age, "yes" if one.usable else f"no: {escape(one.why_not or '')}"]


def _table(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@snapshots.command(
    "drop",
    epilog="""\b
Examples:
  eventlog snapshots drop ./log
  eventlog snapshots drop ./log --projection effects""",
)
@log_argument
@click.option("--projection", metavar="NAME", help="Only those of this projection, of every version.")
@json_option
def drop_snapshots(log: Path, projection: str | None, in_json: bool) -> None:
    """Remove snapshots from LOG. No answer changes: the next fold reads every event, and leaves new ones."""
    with read_log(log) as handle:
        gone = handle.snapshots.drop(projection)
    if in_json:
        say_json({"dropped": len(gone)})
    else:
        say(f"{len(gone)} snapshots dropped: {shown(log)}")
