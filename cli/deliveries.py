"""`eventlog deliveries`: what agents have to hear about, how far that is, and deciding about what nobody can deliver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from eventlog import EventLog
from eventlog.cli.dump import event_object
from eventlog.cli.options import SEQ, json_option, log_argument, read_log, user_name
from eventlog.cli.output import EXIT, as_json, escape, note, say, say_json, when
from eventlog.cli.progress import progress

if TYPE_CHECKING:
    from eventlog.projections import DeliveriesState, SyncIntent

# Written out, so that --help needs no fold; a test holds it against SyncState.
STATES = ("detected", "reconciling", "materialized", "delivered", "acknowledged", "recovery_required", "topology_diverged", "superseded")


@click.group(
    epilog="""\b
Examples:
  eventlog deliveries detect ./log web --base 4f1c09a
  eventlog deliveries list ./log --open
  eventlog deliveries show ./log web#3"""
)
def deliveries() -> None:
    """Deliveries: what an agent must hear about, and whether it is proved that it did."""


@deliveries.command(
    "detect",
    epilog="""\b
Examples:
  eventlog deliveries detect ./log web --base "$(git rev-parse main)"
  eventlog deliveries detect ./log web --base 4f1c09a --trigger "merge of api" --trigger op-18""",
)
@log_argument
@click.argument("thread")
@click.option("--base", required=True, metavar="COMMIT", help="Where THREAD has to come to; the reconciler is given it.")
@click.option("--trigger", "triggers", multiple=True, metavar="OP", help="What happened. May be given more than once.  [default: COMMIT]")
@json_option
def detect_delivery(log: Path, thread: str, base: str, triggers: tuple[str, ...], in_json: bool) -> int:
    """Say that the agent of THREAD has to hear of a change. It joins the newest intent until that is prepared; said again, it is known."""
    from eventlog.recovery.delivery_words import Refused
    from eventlog.recovery.desk import Deliveries

    with EventLog.open(log) as handle:
        done = Deliveries(handle).detect(thread, base=base, triggers=triggers or (base,))
    if isinstance(done, Refused):
        note(f"eventlog: {done.reason}")
        return EXIT.no
    if in_json:
        say_json({"intent": done.intent.id if done.intent else None, "note": done.note})
    else:
        say(f"{escape(done.intent.id) if done.intent else escape(thread)}: {done.note or 'detected'}")
    return EXIT.fine


@deliveries.command(
    "list",
    epilog="""\b
Examples:
  eventlog deliveries list ./log --open
  eventlog deliveries list ./log --thread web --json""",
)
@log_argument
@click.option("--open", "only_open", is_flag=True, help="Only those that are not resolved.")
@click.option("--thread", metavar="NAME", help="Only those of this thread.")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only those in this state. May be given more than once.")
@json_option
def list_deliveries(log: Path, only_open: bool, thread: str | None, states: tuple[str, ...], in_json: bool) -> None:
    """List sync intents, oldest first."""
    with read_log(log) as handle:
        state = _fold(handle)
    found = [
        intent
        for intent in state.intents.values()
        if (thread is None or intent.thread == thread)
        and (not states or intent.state.value in states)
        and not (only_open and intent.state.resolved)
    ]
    if in_json:
        for intent in found:
            say_json(_object(intent))
        return
    rows = [("INTENT", "STATE", "PROOF", "TRIGGERS", "SINCE")] + [
        (
            escape(intent.id),
            intent.state.value,
            type(intent.proof).__name__ if intent.proof is not None else "-",
            str(len(intent.triggers)),
            when(intent.detected_ns)[:19] + "Z",
        )
        for intent in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if found:
        for row in rows:
            say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@deliveries.command(
    "show",
    epilog="""\b
Examples:
  eventlog deliveries show ./log web#3
  agent "$(eventlog deliveries show ./log web#3 --startup)\"""",
)
@log_argument
@click.argument("intent")
@click.option("--startup", is_flag=True, help="Print the tagged payload alone, byte for byte: the first input of a replacement.")
@json_option
def show_delivery(log: Path, intent: str, startup: bool, in_json: bool) -> int:
    """Everything that the log holds about INTENT (thread#number): what is known, and its events."""
    with read_log(log) as handle:
        found = _find(_fold(handle), intent, log)
        if startup:
            return _startup(handle, found)
        events = list(handle.read(found.first_seq - 1, streams={intent}))
    if in_json:
        say_json({"intent": _object(found), "events": [event_object(event) for event in events]})
        return EXIT.fine
    for name, value in _object(found).items():
        if value is None:
            continue
        text = when(value) if name.endswith("_ns") else value if isinstance(value, str) else as_json(value).decode()
        say(f"{name.removesuffix('_ns') + ':':<18}{escape(text)}")
    say()
    for event in events:
        say(f"{event.seq:>6}  {when(event.time)}  {event.type}  {escape(as_json(event.data).decode())}")
    return EXIT.fine


def _startup(log: EventLog, intent: SyncIntent) -> int:
    """What the replacement's first input has to be. Not escaped: it is for a program, and has to be these bytes."""
    from eventlog.cli.output import write
    from eventlog.projections.delivery_words import RestartStartup
    from eventlog.recovery.harness.carrier import Carrier

    proof = intent.proof
    if not isinstance(proof, RestartStartup) or proof.accepted_ns is not None or intent.payload is None:
        note(f"eventlog: {intent.id} is {intent.state.value}, and waits for no replacement")
        return EXIT.no
    # As a launcher gives it: whole, or a pointer to a copy, for it has to be one argument of a program.
    write(Carrier(log.path).startup(intent.id, intent.payload, proof.startup_id).encode())
    return EXIT.fine


@deliveries.command(
    "resolve",
    epilog="""\b
Examples:
  eventlog deliveries resolve ./log web#3 --retry --reason "cleaned the worktree"
  eventlog deliveries resolve ./log web#3 --drop --reason "the branch is gone\"""",
)
@log_argument
@click.argument("intent")
@click.option("--retry", "decision", flag_value="retry", help="It is loud (recovery_required, topology_diverged): go on with it.")
@click.option("--drop", "decision", flag_value="drop", help="Nobody has to hear of it any more. This is no acknowledgement.")
@click.option("--reason", required=True, help="Why; whoever reads the log later was not there.")
@click.option("--actor", metavar="NAME", help="Who decides.  [default: the user's name]")
@click.option("--version", "seen", type=SEQ, metavar="N", help="Only if it is still at this version, as `show` printed it.")
@json_option
def resolve_delivery(log: Path, intent: str, decision: str | None, reason: str, actor: str | None, seen: int | None, in_json: bool) -> int:
    """Record a person's decision about INTENT (thread#number). Nothing is sent to anybody by this command."""
    from eventlog.recovery.delivery_words import Refused
    from eventlog.recovery.delivery_work import SyncDecision
    from eventlog.recovery.desk import Deliveries

    if decision is None:
        raise click.UsageError("decide: one of --retry, --drop")
    with EventLog.open(log, create=False) as handle:
        desk = Deliveries(handle)
        found = _find(desk.state, intent, log)
        version = found.version if seen is None else seen
        done = desk.resolve(intent, cast("SyncDecision", decision), reason=reason, actor=actor or user_name(), seen=version)
        resolved = desk.state.intents[intent]
    if isinstance(done, Refused):
        note(f"eventlog: {done.reason}" + (f"; {done.what_to_do}" if done.what_to_do else ""))
        return EXIT.no
    if in_json:
        say_json(_object(resolved))
    else:
        say(f"{escape(intent)} is {resolved.state.value}")
    return EXIT.fine


def _fold(handle: EventLog) -> DeliveriesState:
    from eventlog.projections import DELIVERIES, fold

    with progress("fold deliveries") as report:
        return fold(DELIVERIES, handle, progress=report)


def _find(state: DeliveriesState, text: str, log: Path) -> SyncIntent:
    found = state.intents.get(text)
    if found is None:
        raise click.UsageError(f"no intent {text!r} in {log}; see: eventlog deliveries list {log}")
    return found


def _object(intent: SyncIntent) -> dict[str, Any]:
    from eventlog.projections.deliveries import dump_intent

    return dump_intent(intent)
