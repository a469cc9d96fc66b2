"""`eventlog crashtest`: kill the user's own program at every crash point of every effect, run it again, and print what came of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from eventlog.cli.options import json_option
from eventlog.cli.output import EXIT, answering, escape, flush, say, say_json

if TYPE_CHECKING:
    from eventlog.recovery.crashtest import CrashReport, CrashRow

_WIDTHS = (24, 8, 8, 8, 8, 8)


@click.command(
    context_settings={"allow_interspersed_args": False},  # what comes after the first word of COMMAND is not ours
    epilog="""\b
Examples:
  eventlog crashtest --effects-file {dir}/effects -- python agent.py {dir}
  eventlog crashtest --json -- python -m my.agent --home {dir}""",
)
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
@click.option("--effects-file", metavar="FILE", help="Where the world notes a line for each effect. Without it only the log is judged.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=1), default=60.0, show_default=True, help="Seconds that one run may take."
)
@json_option
def crashtest(command: tuple[str, ...], effects_file: str | None, timeout_s: float, in_json: bool) -> int:
    """Run COMMAND, a Python program that uses a Toolbox; then kill it by SIGKILL at each crash point that it passed, and run it again.

    Each time {dir}, in COMMAND and FILE, is a new directory: the program has to keep its log and its world there. What the log says is held
    against the effects file. Exit code 1 when an effect happened twice that must not, was lost in silence, or was not known to the log.
    """
    from eventlog.recovery import EffectError
    from eventlog.recovery.crashtest import crashtest as run

    seen = 0

    def each(row: CrashRow) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            say(_line("KILLED AT", "EFFECTS", "AGAIN", "TWICE", "LOST", "LEFT") + "CLASSIFIED")
        _row(row)

    try:
        report = run(command, effects_file=effects_file, timeout_s=timeout_s, each=None if in_json else each)
    except EffectError as error:  # no {dir}, no effect, or it fails even when it is left alone: nothing was tested
        raise click.UsageError(str(error).removeprefix("crashtest: ")) from None
    with answering(EXIT.fine if report.ok else EXIT.no) as code:
        if in_json:
            say_json({"ok": report.ok} | asdict(report))
        else:
            _end(report, effects_file is not None)
    return code


def _line(*cells: object) -> str:
    return "".join(str(cell).ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True))


def _row(row: CrashRow) -> None:
    """A line as soon as the crash is over: a program that takes long is worth watching."""
    known = ", ".join(f"{escape(intent)} {state}" for intent, state in row.states.items()) or "no intent"
    counted: tuple[Any, ...] = (row.effects_at_crash, row.effects_after, row.duplicates, row.lost, row.indeterminate)
    say(_line(f"{escape(row.point)} #{row.nth}", *counted) + known)
    for problem in row.problems:
        say(f"  ! {escape(problem)}")
    flush()


def _end(report: CrashReport, witnessed: bool) -> None:
    say()
    undisturbed = f"undisturbed: {report.effects} effects" if witnessed else "no --effects-file: only the log was judged"
    say(f"{len(report.rows)} crashes; {undisturbed}")
    if report.syncs_each is not None:
        say(f"{report.syncs_each:g} syncs an effect")
    else:
        say(f"syncs were not counted: {escape(report.why_no_syncs or 'no effect was committed')}")
    for problem in report.problems:
        say(f"  ! {escape(problem)}")
    say(
        "no effect happened twice that its class forbids, and none was lost in silence"
        if report.ok
        else f"{len(report.all_problems)} problems"
    )
