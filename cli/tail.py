"""`eventlog tail`: the last events, and those to come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import click

from eventlog import Corrupt, EventLog, Recorded
from eventlog.cli.dump import event_object
from eventlog.cli.options import SEQ, json_option, log_argument, read_log, since_option, until_option
from eventlog.cli.output import as_json, escape, flush, on_terminal, say, say_json, when

_WINDOW = 1000  # events looked at first, from the end, when a filter hides some


@click.command(
    epilog="""\b
Examples:
  eventlog tail ./log
  eventlog tail ./log -f --type effect.dispatched --stream order-17
  eventlog tail ./log --after 1200 --json
  eventlog tail ./log --since 2h --type effect.classified"""
)
@log_argument
@click.option("-f", "--follow", is_flag=True, help="Go on with new events as they come; Ctrl-C ends.")
@click.option("-n", "lines", type=click.IntRange(min=0), metavar="N", help="The last N events.  [default: 10]")
@click.option("--after", type=SEQ, metavar="SEQ", help="All events after this one, instead of the last N.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only events of this type. May be given more than once.")
@click.option("--stream", "streams", multiple=True, metavar="STREAM", help="Only events of this stream. May be given more than once.")
@since_option
@until_option
@json_option
def tail(
    log: Path,
    follow: bool,
    lines: int | None,
    after: int | None,
    types: tuple[str, ...],
    streams: tuple[str, ...],
    since: int | None,
    until: int | None,
    in_json: bool,
) -> None:
    """Print the last events of LOG, oldest first."""
    if lines is not None and (after, since, until) != (None, None, None):
        raise click.UsageError("-n and --after, --since or --until exclude each other")
    if follow and until is not None:
        raise click.UsageError("--follow and --until exclude each other")
    with read_log(log) as handle:
        head = int(handle.head)
        wanted_types, wanted_streams = set(types) or None, set(streams) or None
        if (after, since, until) == (None, None, None):
            events = _last(handle, head, 10 if lines is None else lines, wanted_types, wanted_streams)
        else:
            events = handle.read(after or 0, types=wanted_types, streams=wanted_streams, since=since, until=until)
        show = _Line(coloured=on_terminal())
        seen = max(head, after or 0)
        for event in events:
            say_json(event_object(event)) if in_json else say(show(event))
            seen = max(seen, event.seq)
        if not follow:
            return
        flush()
        for event in handle.follow(seen, types=wanted_types, streams=wanted_streams):
            say_json(event_object(event)) if in_json else say(show(event))
            flush()


def _last(handle: EventLog, head: int, count: int, types: set[str] | None, streams: set[str] | None) -> Iterator[Recorded]:
    """The last `count` events that match, from a window at the end that doubles until it holds enough. Raises damage after them."""
    if count == 0:
        return
    window = count if types is None and streams is None else max(count, _WINDOW)
    while True:
        after = max(0, head - window)
        found: deque[Recorded] = deque(maxlen=count)
        damage: Corrupt | None = None
        try:
            found.extend(handle.read(after, types=types, streams=streams))
        except Corrupt as error:
            damage = error
        if len(found) == count or after == 0 or damage is not None:
            yield from found
            if damage is not None:
                raise damage
            return
        window *= 2


class _Line:
    """One event as a line for people."""

    def __init__(self, *, coloured: bool) -> None:
        self._coloured = coloured

    def __call__(self, event: Recorded) -> str:
        parts = [
            f"{event.seq:>6}",
            when(event.time)[:23] + "Z",
            escape(event.type),
            escape(event.stream) or "-",
            escape(as_json(event.data).decode()),
        ]
        if self._coloured:
            for index, colour in ((0, "bright_black"), (1, "bright_black"), (2, "cyan"), (3, "yellow")):
                parts[index] = click.style(parts[index], fg=colour)
        return "  ".join(parts)
