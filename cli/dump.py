"""`eventlog dump`: every event, the same bytes every time."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from eventlog import EventLog, Recorded
from eventlog.cli.options import log_argument, read_log, since_option, until_option
from eventlog.cli.output import as_json, note, when, write
from eventlog.cli.progress import progress

REDACTED = "[redacted]"


class Redactor:
    """Replaces what a pattern finds. The log itself keeps everything: a hash chain forbids anything else."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        try:
            self._patterns = [re.compile(pattern) for pattern in patterns]
        except re.error as error:
            raise click.BadParameter(f"{error.pattern!r}: {error}", param_hint="--redact") from None
        self.count = 0

    def _finds(self, text: str) -> bool:
        return any(pattern.search(text) for pattern in self._patterns)

    def clean(self, value: Any, *, condemned: bool = False) -> Any:
        """The value without its secrets. What stands below a key that matches goes as a whole, numbers too: a PIN is one."""
        if isinstance(value, dict):
            return {key: self.clean(item, condemned=condemned or self._finds(key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.clean(item, condemned=condemned) for item in value]
        if value is None or isinstance(value, bool) or not (condemned or self._finds(str(value))):
            return value
        self.count += 1
        return REDACTED


def event_object(event: Recorded) -> dict[str, Any]:
    """An event as `dump` and `tail --json` print it, and as `append` takes it back."""
    return {"seq": event.seq, "time": when(event.time), "type": event.type, "stream": event.stream, "data": event.data}


def _cloud_event(log_id: str) -> Callable[[Recorded], dict[str, Any]]:
    """CloudEvents 1.0, JSON format. `subject` may not be empty there; `sequence` (an extension) must sort as text."""
    source = f"urn:eventlog:{log_id}"

    def convert(event: Recorded) -> dict[str, Any]:
        subject = {"subject": event.stream} if event.stream else {}
        return {
            "specversion": "1.0",
            "id": str(event.seq),
            "source": source,
            "type": event.type,
            **subject,
            "time": when(event.time),
            "sequence": f"{event.seq:020d}",
            "datacontenttype": "application/json",
            "data": event.data,
        }

    return convert


@click.command(
    epilog="""\b
Examples:
  eventlog dump ./log | head
  eventlog dump ./log --redact '(?i)token|password' > for-the-bug-report.jsonl
  eventlog dump ./log | eventlog append ./copy
  eventlog dump ./log --since 2026-11-30T14:00:00Z --until 2026-11-30T15:00:00Z"""
)
@log_argument
@click.option("--segment", type=click.IntRange(min=1), metavar="N", help="Only the file of this number (the digits of its name).")
@since_option
@until_option
@click.option("--format", "form", type=click.Choice(["jsonl", "json", "cloudevents"]), default="jsonl", show_default=True)
@click.option(
    "--redact",
    multiple=True,
    metavar="PATTERN",
    help="Replace values whose key or text matches this regular expression. May be given more than once.",
)
def dump(log: Path, segment: int | None, since: int | None, until: int | None, form: str, redact: tuple[str, ...]) -> None:
    """Print the events of LOG: one JSON object a line, with seq, time, type, stream and data.

    The same log gives the same bytes, and `eventlog append` of a dump gives equal events. At damage the dump ends with 3: what was
    printed before it is sound.
    """
    redactor = Redactor(redact) if redact else None
    with read_log(log) as handle:
        after, upto = _span(handle, segment)
        total = (upto or int(handle.head)) - after
        convert = _cloud_event(handle.id) if form == "cloudevents" else event_object
        opening, between, closing = (b"[\n", b",\n", b"\n]\n") if form == "json" else (b"", b"\n", b"\n")
        # A file that grows silently wants a bar; on a terminal the events themselves show that it moves.
        with progress("dump", wanted=sys.stdout is not None and not sys.stdout.isatty()) as report:
            lead = opening
            for event in handle.read(after, upto=upto, since=since, until=until):
                if redactor is not None:
                    event = event._replace(stream=redactor.clean(event.stream), data=redactor.clean(event.data))
                write(lead + as_json(convert(event)))
                lead = between
                if report is not None and event.seq % 1000 == 0:
                    report(event.seq - after, total)
        if lead is between:
            write(closing)
        elif form == "json":
            write(b"[]\n")
    if redactor is not None:
        note(f"eventlog dump: {redactor.count} values redacted")


def _span(handle: EventLog, segment: int | None) -> tuple[int, int | None]:
    """The seqs to print, as (after, upto). No limit where there is none: behind a limit nobody looks for damage."""
    if segment is None:
        return 0, None
    numbers = [info.number for info in handle.segments()]
    if segment not in numbers:
        known = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
        raise click.BadParameter(f"no segment {segment} in {handle.path}; there are {known}", param_hint="--segment")
    later = numbers[numbers.index(segment) + 1 :]
    return segment - 1, later[0] - 1 if later else None
