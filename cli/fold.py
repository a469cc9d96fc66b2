"""`eventlog fold`: the state that a projection makes of the events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eventlog.cli.options import SEQ, json_option, load_attribute, log_argument, moment, no_snapshot_option, read_log
from eventlog.cli.output import as_json, escape, flush, plain, say, say_json
from eventlog.cli.progress import progress

if TYPE_CHECKING:
    from eventlog import EventLog
    from eventlog.projections import Projection

# Written out, so that --help needs no fold; a test holds it against the registry.
BUILT_IN = ("counts", "deliveries", "effects", "status", "transcript")


@click.command(
    epilog="""\b
Examples:
  eventlog fold ./log                              # counts: events by type and stream
  eventlog fold ./log -p effects --upto 120
  eventlog fold ./log -p status --until 2026-11-30T14:00:00Z
  eventlog fold ./log -p my_module:orders --json   # a Projection of yours"""
)
@log_argument
@click.option(
    "-p",
    "--projection",
    default="counts",
    show_default=True,
    metavar="NAME|module:attr",
    help=f"Built in: {', '.join(BUILT_IN)}. Or a Projection of yours; the current directory is searched first.",
)
@click.option("--upto", type=SEQ, metavar="SEQ", help="The state after this event, not after the last.")
@click.option("--until", callback=moment, metavar="TIME", help="The state as it was then: 2026-11-30T14:00:00Z, or 2h (ago).")
@click.option("--since", callback=moment, metavar="TIME", help="Begin with nothing at that time: for projections that count.")
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Processes that share a long fold that can be merged.  [default: CPUs]"
)
@no_snapshot_option
@json_option
def fold(
    log: Path,
    projection: str,
    upto: int | None,
    until: int | None,
    since: int | None,
    workers: int | None,
    no_snapshot: bool,
    in_json: bool,
) -> None:
    """Fold LOG and print the state: everything that is known follows from the events, in their order."""
    chosen = _projection(projection)
    from eventlog.projections import View

    with read_log(log, keeps=True) as handle:
        last = int(handle.head) if upto is None else min(upto, int(handle.head))
        if until is not None:
            last = min(last, handle.seq_at(until))
        after = 0 if since is None else handle.seq_at(since - 1)
        view = View(handle, chosen, after=after, snapshots=not no_snapshot, keeps=False)
        if not after and not no_snapshot and _shared(chosen, handle, workers):
            from eventlog.projections.parallel import fold_in_parallel

            state = fold_in_parallel(_home(projection), handle, last, workers=workers)
        else:
            with progress(f"fold {projection}") as report:
                state = view.refresh(last, progress=report)[0]
        value = plain(chosen.dump(state))
        if in_json:
            say_json({"projection": chosen.name, "version": chosen.version, "seq": last, "state": value})
        else:
            _print(value)
        flush()
        view.keep()  # nobody waits for it


def _projection(spec: str) -> Projection[Any]:
    from eventlog.projections import BUILT_IN as KNOWN
    from eventlog.projections import Projection

    if spec in KNOWN:
        return KNOWN[spec]
    if ":" not in spec:
        raise click.UsageError(f"no projection {spec!r}; built in are {', '.join(KNOWN)}, yours is module:attr")
    found = load_attribute(spec, "projection")
    if not isinstance(found, Projection):
        raise click.UsageError(f"projection {spec} is not a Projection but {type(found).__name__}")
    return found


def _shared(projection: Projection[Any], handle: EventLog, workers: int | None) -> bool:
    if projection.merge is None:
        return False
    from eventlog.projections.parallel import pays

    return pays(projection, handle, workers)


def _home(spec: str) -> str:
    return spec if ":" in spec else f"eventlog.projections:{spec.upper()}"


def _print(value: Any, indent: str = "") -> None:
    """A JSON value for people: nested by indentation, simple things on one line, without what is null."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            if item is not None:
                _print_item(f"{escape(key)}:", item, indent)
    elif isinstance(value, list) and value:
        for item in value:
            _print_item("-", item, indent)
    else:
        say(f"{indent}{_simple(value)}")


def _print_item(lead: str, item: Any, indent: str) -> None:
    if isinstance(item, (dict, list)) and item and not _fits(item):
        say(f"{indent}{lead}")
        _print(item, f"{indent}  ")
    else:
        say(f"{indent}{lead} {_simple(item)}")


def _fits(value: dict[str, Any] | list[Any]) -> bool:
    items = list(value.values()) if isinstance(value, dict) else value
    return len(items) <= 6 and not any(isinstance(item, (dict, list)) for item in items) and len(as_json(value)) <= 90


def _simple(value: Any) -> str:
    return escape(value) if isinstance(value, str) else escape(as_json(value).decode())
