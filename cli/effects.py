"""`eventlog effects`: the external effects that are in the log, and deciding about one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from eventlog import EventLog
from eventlog.cli.dump import event_object
from eventlog.cli.options import SEQ, json_option, log_argument, read_log
from eventlog.cli.output import as_json, escape, say, say_json, when
from eventlog.cli.progress import progress

if TYPE_CHECKING:
    from eventlog.projections import EffectsState, Intent
    from eventlog.recovery.people import HumanDecision

# Written out, so that --help needs no fold; a test holds it against IntentState.
STATES = ("pending", "dispatched", "committed", "indeterminate", "cancelled", "abandoned")


@click.group(
    epilog="""\b
Examples:
  eventlog effects list ./log --open
  eventlog effects show ./log order-17@1:3"""
)
def effects() -> None:
    """External effects: what was sent, what may have been sent, what is done."""


@effects.command(
    "list",
    epilog="""\b
Examples:
  eventlog effects list ./log
  eventlog effects list ./log --state indeterminate --json""",
)
@log_argument
@click.option("--open", "only_open", is_flag=True, help="Only those without an end.")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only those in this state. May be given more than once.")
@json_option
def list_effects(log: Path, only_open: bool, states: tuple[str, ...], in_json: bool) -> None:
    """List effects, oldest first."""
    with read_log(log) as handle:
        state = _fold(handle)
    found = state.open_intents() if only_open else list(state.intents.values())
    if states:
        found = [intent for intent in found if intent.state.value in states]
    if in_json:
        for intent in found:
            say_json(_object(intent))
        return
    rows = [("INTENT", "TOOL", "CLASS", "STATE", "TRIES", "SINCE")] + [
        (
            escape(str(intent.id)),
            escape(intent.tool),
            intent.effect_class.value,
            intent.state.value,
            str(intent.tries),
            when(intent.dispatched_ns or intent.pending_ns)[:19] + "Z",
        )
        for intent in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if found:
        for row in rows:
            say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@effects.command(
    "show",
    epilog="""\b
Example:
  eventlog effects show ./log order-17@1:3""",
)
@log_argument
@click.argument("intent")
@json_option
def show_effect(log: Path, intent: str, in_json: bool) -> None:
    """Everything that the log holds about INTENT (branch@attempt:step): what is known, the request, and its events."""
    with read_log(log) as handle:
        found = _find(_fold(handle), intent, log)
        events = list(handle.read(found.first_seq - 1, streams={intent}))
    if in_json:
        say_json({"intent": _object(found), "events": [event_object(event) for event in events]})
        return
    for name, value in _object(found).items():
        if value is None or name == "request":  # the request is the first of the events below
            continue
        text = when(value) if name.endswith("_ns") else value if isinstance(value, str) else as_json(value).decode()
        say(f"{name.removesuffix('_ns') + ':':<18}{escape(text)}")
    say()
    for event in events:
        say(f"{event.seq:>6}  {when(event.time)}  {event.type}  {escape(as_json(event.data).decode())}")


@effects.command(
    "resolve",
    epilog="""\b
Examples:
  eventlog effects resolve ./log order-17@1:3 --happened --reason "the bank shows it" --outcome '{"receipt": 7}'
  eventlog effects resolve ./log order-17@1:3 --not-happened --reason "asked support, ticket 512\"""",
)
@log_argument
@click.argument("intent")
@click.option("--happened", "decision", flag_value="happened", help="It did happen: committed, with --outcome as its result.")
@click.option("--not-happened", "decision", flag_value="not_happened", help="It did not: the next run sends it, with the same key.")
@click.option("--retry", "decision", flag_value="retry", help="Perhaps it did; the next run sends it all the same.")
@click.option("--abandon", "decision", flag_value="abandon", help="Nobody knows; the branch goes on without it.")
@click.option("--reason", required=True, help="How you know; whoever reads the log later was not there.")
@click.option("--actor", metavar="NAME", help="Who decides.  [default: the user's name]")
@click.option("--outcome", metavar="JSON", help="With --happened: what the call would have returned.")
@click.option("--version", "seen", type=SEQ, metavar="N", help="Only if it is still at this version, as `show` printed it.")
@json_option
def resolve_effect(
    log: Path, intent: str, decision: str | None, reason: str, actor: str | None, outcome: str | None, seen: int | None, in_json: bool
) -> None:
    """Record a person's decision about INTENT (branch@attempt:step). Nothing is sent by this command."""
    from eventlog.recovery import resolve

    if decision is None:
        raise click.UsageError("decide: one of --happened, --not-happened, --retry, --abandon")
    result = _outcome(outcome)
    with EventLog.open(log, create=False) as handle:
        found = _find(_fold(handle), intent, log)
        resolved = resolve(
            handle,
            intent,
            cast("HumanDecision", decision),
            expected_version=found.version if seen is None else seen,
            actor=actor or _user(),
            reason=reason,
            outcome=result,
        )
    if in_json:
        say_json(_object(resolved))
    else:
        say(f"{escape(intent)} is {resolved.state.value}")


def _outcome(text: str | None) -> Any:
    if text is None:
        return None
    import json

    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="--outcome") from None


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no name for this uid, and none in the environment
        import os

        return f"uid {os.getuid()}"


def _fold(handle: EventLog) -> EffectsState:
    from eventlog.projections import EFFECTS, fold

    with progress("fold effects") as report:
        return fold(EFFECTS, handle, progress=report)


def _find(state: EffectsState, text: str, log: Path) -> Intent:
    found = state.intents.get(text)
    if found is None:
        raise click.UsageError(f"no intent {text!r} in {log}; see: eventlog effects list {log}")
    return found


def _object(intent: Intent) -> dict[str, Any]:
    from eventlog.projections.effects import dump_intent

    return dump_intent(intent)
