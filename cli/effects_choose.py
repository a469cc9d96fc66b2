"""Which effects a command is about: the filters, the fold, and one by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eventlog import EventLog
from eventlog.cli.options import age
from eventlog.cli.progress import progress

if TYPE_CHECKING:
    from eventlog.projections import EffectsState, Intent

# Written out, so that --help needs no fold; a test holds them against IntentState and EffectClass.
STATES = ("pending", "dispatched", "committed", "indeterminate", "cancelled", "abandoned")
CLASSES = ("read_only", "transactional", "idempotent", "keyed", "reconcilable", "non_idempotent")


def filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose intents, the same for looking and for deciding."""
    for option in (
        click.option("--branch", metavar="NAME", help="Only those of this branch."),
        click.option(
            "--older-than", callback=age, metavar="AGE", help="Only those last sent (or recorded) 30s, 10m, 2h, 3d ago or earlier."
        ),
        click.option(
            "--class",
            "classes",
            multiple=True,
            type=click.Choice(CLASSES, case_sensitive=False),
            help="Only those of this class. May be given more than once.",
        ),
        click.option(
            "--state", "states", multiple=True, type=click.Choice(STATES), help="Only those in this state. May be given more than once."
        ),
    ):
        command = option(command)
    return command


def choose(
    state: EffectsState, states: tuple[str, ...], classes: tuple[str, ...], older_than: int | None, branch: str | None
) -> list[Intent]:
    """The intents that the filters leave, oldest first; no states: any."""
    from eventlog.projections import EffectClass, IntentState
    from eventlog.recovery import list_intents

    found = list_intents(
        state,
        state=[IntentState(name) for name in states or STATES],
        class_=[EffectClass(name) for name in classes or CLASSES],
        older_than=older_than,
        branch=branch,
    )
    return sorted(found, key=lambda intent: intent.first_seq)


def fold_effects(handle: EventLog) -> EffectsState:
    """Every effect of the log, with a bar on a terminal."""
    from eventlog.projections import EFFECTS, fold

    with progress("fold effects") as report:
        return fold(EFFECTS, handle, progress=report)


def find_effect(state: EffectsState, text: str, log: Path) -> Intent:
    """The intent of that name. Raises UsageError."""
    found = state.intents.get(text)
    if found is None:
        raise click.UsageError(f"no intent {text!r} in {log}; see: eventlog effects list {log}")
    return found


def effect_object(intent: Intent) -> dict[str, Any]:
    """An intent for --json; its `version` is what --expect-version takes."""
    from eventlog.projections.effects import dump_intent

    return dump_intent(intent)
