"""`eventlog effects list` and `show`: the external effects that are in the log (`resolve`: effects_resolve.py)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from eventlog.cli.dump import event_object
from eventlog.cli.effects_choose import STATES, choose, effect_object, filters, find_effect, fold_effects
from eventlog.cli.effects_resolve import resolve_effect
from eventlog.cli.options import json_option, log_argument, read_log
from eventlog.cli.output import EXIT, answering, as_json, escape, say, say_json, when

if TYPE_CHECKING:
    from eventlog.projections import Intent

__all__ = ["STATES", "effects"]


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
  eventlog effects list ./log --state indeterminate --json
  eventlog effects list ./log --class non_idempotent --older-than 2h --open --fail-if-any""",
)
@log_argument
@click.option("--open", "only_open", is_flag=True, help="Only those without an end.")
@filters
@click.option("--fail-if-any", is_flag=True, help="Exit with 1 when there is one to list: for scripts.")
@json_option
def list_effects(
    log: Path,
    only_open: bool,
    states: tuple[str, ...],
    classes: tuple[str, ...],
    older_than: int | None,
    branch: str | None,
    fail_if_any: bool,
    in_json: bool,
) -> int:
    """List effects, oldest first."""
    with read_log(log) as handle:
        state = fold_effects(handle)
    found = choose(state, states, classes, older_than, branch)
    if only_open:
        found = [intent for intent in found if not intent.state.finished]
    with answering(EXIT.no if found and fail_if_any else EXIT.fine) as code:
        if in_json:
            for intent in found:
                say_json(effect_object(intent))
        elif found:
            _table(found)
    return code


def _table(found: list[Intent]) -> None:
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
        found = find_effect(fold_effects(handle), intent, log)
        events = list(handle.read(found.first_seq - 1, streams={intent}))
    if in_json:
        say_json({"intent": effect_object(found), "events": [event_object(event) for event in events]})
        return
    for name, value in effect_object(found).items():
        if value is None or name == "request":  # the request is the first of the events below
            continue
        text = when(value) if name.endswith("_ns") else value if isinstance(value, str) else as_json(value).decode()
        say(f"{name.removesuffix('_ns') + ':':<18}{escape(text)}")
    say()
    for event in events:
        say(f"{event.seq:>6}  {when(event.time)}  {event.type}  {escape(as_json(event.data).decode())}")


effects.add_command(resolve_effect)
