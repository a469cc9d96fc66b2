"""`eventlog status`: what waits for a decision, then what is in the log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from eventlog import EventLog
from eventlog.cli.options import json_option, log_argument, no_snapshot_option, read_log
from eventlog.cli.output import EXIT, answering, escape, on_terminal, say, say_json, shown, when
from eventlog.cli.progress import progress

if TYPE_CHECKING:
    from eventlog.projections import Counts, Intent, Status, View

_LINES_MAX = 20  # of each kind: a screen, not a report
_NOTHING = "nothing waits for a decision"


class Report(NamedTuple):
    """Everything that the display shows, at one head."""

    state: Status
    counts: Counts
    head: int
    segments: int
    bytes: int


@click.command(
    epilog="""\b
Examples:
  eventlog status ./log
  eventlog status ./log --watch
  eventlog status ./log --json | jq .undecided"""
)
@log_argument
@click.option("--watch", is_flag=True, help="Stay and show each change; Ctrl-C ends.")
@no_snapshot_option
@json_option
def status(log: Path, watch: bool, no_snapshot: bool, in_json: bool) -> int:
    """Show what waits for a decision first, then open effects, then how much is in LOG.

    Exit code 1 when an effect or a delivery waits for a decision that only a person can make.
    """
    from eventlog.projections import COUNTS, STATUS, View

    with read_log(log, keeps=True) as handle:
        states = View(handle, STATUS, snapshots=not no_snapshot, keeps=False)
        counts = View(handle, COUNTS, snapshots=not no_snapshot, keeps=False)
        if watch:
            if in_json or sys.stdout is None or not sys.stdout.isatty():
                raise click.UsageError("--watch needs a terminal; in a script, follow with: eventlog tail LOG -f --json")
            _watch(handle, states, counts)
        with progress("status") as bar:
            report = _look(handle, states, counts, bar)
        loud = any(intent.state.loud for intent in report.state.waiting)
        with answering(EXIT.no if report.state.undecided or loud else EXIT.fine) as code:
            if in_json:
                say_json(_object(handle, report))
            else:
                for line in _text(handle, report, coloured=on_terminal()):
                    say(line)
        states.keep()  # the answer is out: nobody waits for it
        counts.keep()
    return code


def _look(handle: EventLog, states: View[Status], counts: View[Counts], bar: Any = None) -> Report:
    head = int(handle.head)
    segments = handle.segments()
    return Report(
        states.refresh(head, progress=bar)[0],
        counts.refresh(head, progress=bar)[0],
        head,
        len(segments),
        sum(info.bytes for info in segments),
    )


def _object(handle: EventLog, report: Report) -> dict[str, Any]:
    from eventlog.projections.status import summary

    dumped = summary(report.state)
    return {
        "path": shown(handle.path),
        "log": handle.id,
        "head": report.head,
        "segments": report.segments,
        "bytes": report.bytes,
        "first_ns": dumped["first_ns"],
        "last_ns": dumped["last_ns"],
        "undecided": dumped["undecided"],
        "unfinished": dumped["unfinished"],
        "intents": dumped["intents"],
        "threads": dumped["threads"],
        "waiting": dumped["waiting"],
        "types": dict(sorted(report.counts.types.items())),
    }


def _text(handle: EventLog, report: Report, *, coloured: bool) -> list[str]:
    def paint(text: str, **how: Any) -> str:
        return click.style(text, **how) if coloured else text

    state = report.state
    lines: list[str] = []
    undecided, unfinished = state.undecided, state.unfinished
    if undecided:
        lines.append(paint(f"{len(undecided)} waiting for a decision", fg="red", bold=True))
        lines += _intents(undecided)
        lines.append(f"  decide with: eventlog effects show {shown(handle.path)} {escape(str(undecided[0].id))}, then effects resolve")
    elif not any(intent.state.loud for intent in state.waiting):
        lines.append(paint(_NOTHING, fg="green"))
    if unfinished:
        lines.append(paint(f"{len(unfinished)} unfinished", fg="yellow"))
        lines += _intents(unfinished)
        lines.append("  if their process is gone: eventlog recover")
    lines += _threads(handle, state, paint)
    lines += ["", f"{shown(handle.path)}  {handle.id}"]
    lines.append(f"  head {report.head}, {report.segments} segments, {report.bytes} bytes")
    if state.first_ns is not None and state.last_ns is not None:
        lines.append(f"  first {when(state.first_ns)[:19]}Z, last {when(state.last_ns)[:19]}Z")
    finished = {name.value: count for name, count in state.effects.by_state.items() if count and name.finished}
    if finished:
        lines.append("  effects " + ", ".join(f"{count} {name}" for name, count in finished.items()))
    kinds = sorted(report.counts.types.items(), key=lambda kind: (-kind[1], kind[0]))
    lines += [f"  {count:>9}  {escape(name)}" for name, count in kinds[:_LINES_MAX]]
    if len(kinds) > _LINES_MAX:
        lines.append(f"             and {len(kinds) - _LINES_MAX} more types (eventlog fold)")
    return lines


def _threads(handle: EventLog, state: Status, paint: Any) -> list[str]:
    """The threads that are not in sync, blocking first, and what waits to be delivered to them."""
    lines: list[str] = []
    colours = {"conflicted": "red", "pending": "yellow"}
    for thread in [one for one in state.threads if one["status"] in colours][:_LINES_MAX]:
        text = f"{thread['status']}: {escape(thread['thread'])}, its agent is {thread['agent']}"
        lines.append(paint(text, fg=colours[thread["status"]], bold=thread["status"] == "conflicted"))
        for intent in [one for one in state.waiting if one.thread == thread["thread"]][:_LINES_MAX]:
            reason = f"  ({escape(intent.reason)})" if intent.reason else ""
            lines.append(f"  {escape(intent.id)}  {intent.state.value}, since {when(intent.detected_ns)[:19]}Z{reason}")
    if any(intent.state.loud for intent in state.waiting):
        lines.append(f"  decide with: eventlog deliveries resolve {shown(handle.path)} INTENT --retry (or --drop) --reason TEXT")
    return lines


def _intents(intents: list[Intent]) -> list[str]:
    lines = [f"  {line(intent)}" for intent in intents[:_LINES_MAX]]
    if len(intents) > _LINES_MAX:
        lines.append(f"  and {len(intents) - _LINES_MAX} more (eventlog effects list --open)")
    return lines


def line(intent: Intent) -> str:
    """An intent in a line: what it is, what is known of it, since when."""
    verdict = intent.verdict
    known = f"{intent.state.value}: {verdict.value}" if verdict is not None else intent.state.value
    if intent.waits_for_approval:
        known = "pending: waits for an approval"
    reason = f"  ({escape(intent.reason)})" if intent.reason else ""
    since = when(intent.dispatched_ns or intent.pending_ns)[:19]
    return f"{escape(str(intent.id))}  {escape(intent.tool)}  {intent.effect_class.value}  {known}, since {since}Z{reason}"


def _watch(handle: EventLog, states: View[Status], counts: View[Counts]) -> None:
    """Redraw at each change until Ctrl-C."""
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        while True:
            report = _look(handle, states, counts)
            live.update(Text.from_ansi("\n".join(_text(handle, report, coloured=True))), refresh=True)
            states.keep()
            counts.keep()
            handle.wait(report.head)  # what came while we drew is seen at once
