"""`eventlog effects resolve`: a person's decision about one effect, or about all that a filter leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from eventlog import EventLog
from eventlog.cli.effects_choose import choose, effect_object, filters, find_effect, fold_effects
from eventlog.cli.options import SEQ, json_option, log_argument, user_name
from eventlog.cli.output import EXIT, OutputFailed, escape, flush, note, say, say_json

if TYPE_CHECKING:
    from eventlog.recovery import Decided, HumanDecision


@click.command(
    "resolve",
    epilog="""\b
Examples:
  eventlog effects resolve ./log order-17@1:3 --happened --reason "the bank shows it" --outcome '{"receipt": 7}'
  eventlog effects resolve ./log order-17@1:3 --expect-version 41 --not-happened --reason "asked support, ticket 512"
  eventlog effects resolve ./log --class non_idempotent --older-than 3d --abandon --reason "the shop is closed" --dry-run""",
)
@log_argument
@click.argument("intents", nargs=-1, metavar="[INTENT]...")
@filters
@click.option("--happened", "decision", flag_value="happened", help="It did happen: committed, with --outcome as its result.")
@click.option("--not-happened", "decision", flag_value="not_happened", help="It did not: the next run sends it, with the same key.")
@click.option("--retry", "decision", flag_value="retry", help="Perhaps it did; the next run sends it all the same.")
@click.option("--abandon", "decision", flag_value="abandon", help="Nobody knows; the branch goes on without it.")
@click.option("--approve", "decision", flag_value="approve", help="It waits for an approval: it may be sent.")
@click.option("--deny", "decision", flag_value="deny", help="It waits for an approval: it is not sent, and its call fails.")
@click.option("--reason", required=True, help="How you know; whoever reads the log later was not there.")
@click.option("--actor", metavar="NAME", help="Who decides.  [default: the user's name]")
@click.option("--outcome", metavar="JSON", help="With --happened: what the call would have returned.")
@click.option("--expect-version", "--version", "seen", type=SEQ, metavar="N", help="Only if it is still at this version, as `show` said.")
@click.option("--dry-run", is_flag=True, help="Show what would be decided; record nothing.")
@json_option
def resolve_effect(
    log: Path,
    intents: tuple[str, ...],
    states: tuple[str, ...],
    classes: tuple[str, ...],
    older_than: int | None,
    branch: str | None,
    decision: str | None,
    reason: str,
    actor: str | None,
    outcome: str | None,
    seen: int | None,
    dry_run: bool,
    in_json: bool,
) -> int:
    """Record a person's decision about each INTENT (branch@attempt:step), or about all that the filters leave. Nothing is sent.

    Filters without --state leave those that are indeterminate. Each decision holds only for the version that was looked at; run again, the
    same decision is not recorded twice. Exit code 1 when one was refused, else 4 when the process of one is alive.
    """
    from eventlog.recovery import resolve_each

    filtered = bool(states or classes or older_than is not None or branch is not None)
    _check(intents, filtered, decision, outcome, seen)
    result = _outcome(outcome)
    with EventLog.open(log, create=False, read_only=dry_run) as handle:
        state = fold_effects(handle)
        if filtered:
            chosen = choose(state, states or ("indeterminate",), classes, older_than, branch)
        else:
            chosen = [find_effect(state, text, log) for text in dict.fromkeys(intents)]
        decided = resolve_each(
            handle,
            [(intent.id, intent.version if seen is None else seen) for intent in chosen],
            cast("HumanDecision", decision),
            actor=actor or user_name(),
            reason=reason,
            outcome=result,
            dry_run=dry_run,
        )
        if len(chosen) == 1 and not filtered:
            return _one(next(decided), dry_run, in_json)
        return _each(decided, dry_run, in_json)


def _check(intents: tuple[str, ...], filtered: bool, decision: str | None, outcome: str | None, seen: int | None) -> None:
    if decision is None:
        raise click.UsageError("decide: one of --happened, --not-happened, --retry, --abandon, --approve, --deny")
    if bool(intents) == filtered:
        raise click.UsageError("name intents, or choose them by --state, --class, --older-than, --branch: one of the two")
    if outcome is not None and decision != "happened":
        raise click.UsageError("--outcome belongs to --happened")
    if seen is not None and len(set(intents)) != 1:
        raise click.UsageError("--expect-version is about one intent; several are decided at the versions that this command finds")


def _outcome(text: str | None) -> Any:
    if text is None:
        return None
    import json

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON value")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="--outcome") from None


def _one(done: Decided, dry_run: bool, in_json: bool) -> int:
    """One that was named: what is refused is an error like any other."""
    if done.refused is not None:
        raise done.refused
    _print(done, dry_run, in_json)
    return EXIT.fine


def _each(decided: Iterator[Decided], dry_run: bool, in_json: bool) -> int:
    """A line each, as soon as it is decided."""
    refused: list[Decided] = []
    for number, done in enumerate(decided, 1):
        if done.refused is not None:
            refused.append(done)
        try:
            _print(done, dry_run, in_json)
            flush()
        except OutputFailed as failure:
            # Not quiet, even if the reader only left: what comes after was not decided.
            failure.reader_left, failure.so = False, f"stopped after {number} decisions; the same command goes on"
            raise
    return _code(refused)


def _code(refused: Iterable[Decided]) -> int:
    from eventlog.cli.app import code_of

    codes = {code_of(done.refused) for done in refused if done.refused is not None}
    if codes:
        note(f"eventlog effects resolve: {len(list(refused))} were not decided")
    return min(codes, default=EXIT.fine)


def _print(done: Decided, dry_run: bool, in_json: bool) -> None:
    if in_json:
        known = effect_object(done.intent) if done.intent is not None else {"id": done.id}
        say_json(known | {"recorded": done.recorded, "repeated": done.repeated, "refused": str(done.refused) if done.refused else None})
    elif done.refused is not None:
        say(f"not decided: {escape(str(done.refused))}")
    elif done.intent is not None:
        how = "would be" if dry_run and not done.repeated else "is"
        say(f"{escape(done.id)} {how} {done.intent.state.value}{' (recorded before)' if done.repeated else ''}")
