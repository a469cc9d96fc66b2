"""`eventlog recover`: say of everything that a crash left unfinished what it is, and resolve what can be resolved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eventlog import EventLog
from eventlog.cli.options import json_option, load_attribute, log_argument
from eventlog.cli.output import EXIT, answering, escape, note, say, say_json, when

if TYPE_CHECKING:
    from eventlog.recovery import Found, Recovery, Toolbox


@click.command(
    epilog="""\b
Examples:
  eventlog recover ./log --dry-run
  eventlog recover ./log                               # classify, and record it
  eventlog recover ./log --tools my_agent:toolbox      # and resolve: send, ask, record"""
)
@log_argument
@click.option(
    "--tools",
    metavar="module:toolbox",
    help="A function that takes the open EventLog and gives a Toolbox. The current directory is searched first.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be found; record and send nothing.")
@json_option
def recover(log: Path, tools: str | None, dry_run: bool, in_json: bool) -> int:
    """Classify every unfinished effect of LOG: "never sent" or "may have been sent", and record that, once.

    With --tools each is then resolved by its class: sent, sent again with its key, or asked for. Attempts whose process is alive are left
    alone. Exit code 1 when something is left that may have been sent.
    """
    from eventlog.recovery import recover as run

    with EventLog.open(log, create=False, read_only=dry_run and tools is None) as handle:
        for line in handle.mended:
            note(f"eventlog recover: {line}")
        report = run(handle, _toolbox(handle, tools) if tools is not None else None, dry_run=dry_run)
    with answering(EXIT.no if report.indeterminate else EXIT.fine) as code:
        if in_json:
            say_json(_object(report))
        else:
            _print(report, dry_run)
    return code


def _toolbox(handle: EventLog, spec: str) -> Toolbox:
    from eventlog.recovery import Toolbox

    make = load_attribute(spec, "--tools")
    if isinstance(make, Toolbox) or not callable(make):
        raise click.UsageError(f"--tools {spec} is not a function; it has to take the log and give a Toolbox")
    try:
        made = make(handle)
    except Exception as error:  # it is code of the user's
        raise click.UsageError(f"--tools {spec}: {type(error).__name__}: {error}") from error
    if not isinstance(made, Toolbox):
        raise click.UsageError(f"--tools {spec} gave {type(made).__name__}, not a Toolbox")
    return made


def _object(report: Recovery) -> dict[str, Any]:
    return {
        "intents": [
            {
                "id": found.id,
                "tool": found.tool,
                "class": found.effect_class.value,
                "state": found.state.value,
                "verdict": found.verdict.value,
                "tries": found.tries,
                "left": found.left.value,
                "recorded": found.recorded,
                "error": found.error,
                "until_ns": found.until_ns,
            }
            for found in report.intents
        ],
        "alive": report.alive,
        "recorded": report.recorded,
    }


def _print(report: Recovery, dry_run: bool) -> None:
    for found in report.intents:
        what = f"{escape(found.id)}  {escape(found.tool)}  {found.effect_class.value}"
        say(f"{what}  {found.state.value}: {found.verdict.value}{_left(found)}")
    for attempt in report.alive:
        say(f"{escape(attempt)}  left alone: its process is alive")
    if not report.intents and not report.alive:
        say("nothing is unfinished")
    elif dry_run:
        say("nothing was recorded or sent (--dry-run)")


def _left(found: Found) -> str:
    text = f"; now {found.left.value}" if found.left is not found.state else ""
    if found.error:
        text += f" ({escape(found.error)})"
    if found.until_ns is not None:
        text += f"; again after {when(found.until_ns)[:19]}Z"
    return text
