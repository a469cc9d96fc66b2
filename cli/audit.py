"""`eventlog head`, `verify` and `repair`: is this still the log that was written?"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eventlog import Corrupt, LogNotFound
from eventlog.cli.options import json_option, log_argument, read_log
from eventlog.cli.output import EXIT, answering, escape, note, say, say_json, shown
from eventlog.cli.progress import progress

if TYPE_CHECKING:
    from eventlog.audit import Audit

_HEAD = re.compile(r"([0-9]{1,20}):([0-9a-fA-F]{64})\Z")


class HeadText(click.ParamType[tuple[int, str]]):
    """`SEQ:HASH`, as `eventlog head` prints it."""

    name = "SEQ:HASH"

    def convert(self, value: str | tuple[int, str], param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, str]:
        if isinstance(value, tuple):
            return value
        found = _HEAD.match(value.strip())
        if not found:
            self.fail(f"{value!r} is not SEQ:HASH, a number and 64 hex digits, as eventlog head prints it", param, ctx)
        return int(found[1]), found[2].lower()


@click.command(
    epilog="""\b
Example:
  eventlog head ./log > head.txt      # keep it elsewhere: in a commit, on another host
  eventlog verify ./log --expect "$(cat head.txt)" """
)
@log_argument
@json_option
def head(log: Path, in_json: bool) -> None:
    """Print SEQ:HASH: the last seq, and a hash that stands for every byte before it."""
    with read_log(log) as handle:
        found = handle.head
        try:
            text = found.hash
        except ValueError as error:  # the tail record knows an end that the bytes no longer show
            raise Corrupt(f"{handle.path}: {error}; run: eventlog verify {log}", seq=int(found)) from error
        if in_json:
            say_json({"seq": int(found), "hash": text, "log": handle.id})
        else:
            say(f"{int(found)}:{text}")


@click.command(
    epilog="""\b
Examples:
  eventlog verify ./log
  eventlog verify ./log --expect 1200:9f2c…      # from `eventlog head`, kept elsewhere"""
)
@log_argument
@click.option("--expect", type=HeadText(), help="This must be in the log: a head that was printed earlier.")
@json_option
def verify(log: Path, expect: tuple[int, str] | None, in_json: bool) -> int:
    """Read every byte of LOG and check every stored field. Exit code 0: all is as it was written. 1: it is not.

    A log whose end was cut off at the edge of a commit, or that was replaced as a whole, looks perfect from inside: only --expect with
    a head that was kept elsewhere can tell.
    """
    from eventlog.audit import verify as check

    with progress("verify", unit="bytes") as report:
        audit = check(log, expect=expect, progress=report)
    with answering(EXIT.fine if audit.ok else EXIT.no) as code:
        (_print_audit_json if in_json else _print_audit)(log, audit)
    return code


def _print_audit(log: Path, audit: Audit) -> None:
    for problem in audit.problems:
        say(f"problem: {escape(str(problem))}")
    counted = f"{audit.events} events, {audit.commits} commits, {audit.segments} segments"
    if audit.torn_bytes:
        say(f"note: {audit.torn_bytes} bytes after the last whole commit were never acknowledged; the next writer cuts them off")
    end = f"head {audit.head}:{audit.head_hash}" if audit.head_hash else f"readable up to seq {audit.head}"
    say(f"{'ok' if audit.ok else 'NOT OK'}: {shown(log)}: {counted}; {end}")


def _print_audit_json(log: Path, audit: Audit) -> None:
    say_json(
        {
            "ok": audit.ok,
            "path": shown(log),
            "events": audit.events,
            "commits": audit.commits,
            "segments": audit.segments,
            "bytes": audit.bytes,
            "head": {"seq": audit.head, "hash": audit.head_hash or None},
            "torn_bytes": audit.torn_bytes,
            "problems": [problem._asdict() for problem in audit.problems],
        }
    )


@click.command(
    epilog="""\b
Examples:
  eventlog verify ./log            # first: what is damaged?
  cp -a ./log ./log-as-it-was
  eventlog repair ./log"""
)
@log_argument
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal to ask on.")
@json_option
def repair(log: Path, yes: bool, in_json: bool) -> int:
    """Give up what is damaged, so that LOG can be written again: it then ends where its first damage begins.

    Nothing is deleted: what is cut off is kept beside the segments, and named. A copy from elsewhere is always better. A log that is
    whole is left alone.
    """
    from eventlog.repair import repair as run

    if not yes and not (sys.stdin is not None and sys.stdin.isatty()):
        raise click.UsageError("repair gives up events, and there is no terminal to ask on; say --yes")
    problems = _problems(log)
    for problem in problems:
        note(f"problem: {problem}")
    if problems and not yes and not click.confirm(f"End {shown(log)} there, and keep what is cut off beside it?", err=True):
        note("nothing was changed")
        return EXIT.no
    done = run(log)
    if in_json:
        say_json({"path": shown(log), "actions": done.actions, "lost_from": done.lost_from, "kept": done.kept})
        return EXIT.fine
    for action in done.actions:
        say(escape(action))
    if done.lost_from is not None:
        say(f"lost: every event from seq {done.lost_from} on")
    elif not done.actions:
        say("nothing to repair")
    for name in done.kept:
        say(f"kept: {shown(log / 'segments' / name)}")
    return EXIT.fine


def _problems(log: Path) -> list[str]:
    """What is wrong, as verify sees it. A missing log.json is damage too, where there are segments."""
    from eventlog.audit import verify as check

    with progress("verify", unit="bytes") as report:
        try:
            return [str(problem) for problem in check(log, progress=report).problems]
        except LogNotFound as error:
            if (log / "segments").is_dir():
                return [str(error)]
            raise
