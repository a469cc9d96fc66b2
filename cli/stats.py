"""`eventlog stats`: how much is in the log, of what, in which state; for people, as JSON, or as metrics."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eventlog.cli.options import json_option, log_argument, read_log
from eventlog.cli.output import escape, say, say_json, shown, when, write
from eventlog.cli.progress import progress

if TYPE_CHECKING:
    from eventlog.projections.stats import Stats

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@click.command(
    epilog="""\b
Examples:
  eventlog stats ./log
  eventlog stats ./log --json | jq .intents
  eventlog stats ./log --prometheus > eventlog.prom.tmp && mv eventlog.prom.tmp /var/lib/node_exporter/eventlog.prom"""
)
@log_argument
@click.option("--prometheus", is_flag=True, help="Print metrics in the Prometheus text format, for the textfile collector.")
@click.option("--top", "most", type=click.IntRange(min=0), default=10, show_default=True, metavar="N", help="Name N types and streams.")
@json_option
def stats(log: Path, prometheus: bool, most: int, in_json: bool) -> None:
    """Count what is in LOG: events, commits, bytes, types, streams, effects and deliveries by state."""
    if prometheus and in_json:
        raise click.UsageError("--prometheus and --json exclude each other")
    from eventlog.projections.exposition import exposition
    from eventlog.projections.stats import families, stats_object

    found = _collect(log)
    if prometheus:
        write(exposition(families(found), clean=_label).encode())
    elif in_json:
        say_json(stats_object(found, most))
    else:
        for line in _text(found, most):
            say(line)


def _collect(log: Path) -> Stats:
    from eventlog.projections import COUNTS, STATUS, fold
    from eventlog.projections.stats import stats_of
    from eventlog.survey import survey

    with read_log(log) as handle:
        with progress("commits", unit="bytes") as bar:
            measured = survey(handle.path, progress=bar)  # before the fold: reading syncs, and would hide what is not on disk yet
        with progress("status") as bar:
            status = fold(STATUS, handle, measured.head, progress=bar)
        with progress("counts") as bar:
            counts = fold(COUNTS, handle, measured.head, progress=bar)
        return stats_of(handle.id, shown(handle.path), time.time_ns(), measured, status, counts)


def _label(text: str) -> str:
    """Safe to show, and different for different texts: two samples with equal labels would make the whole page invalid."""
    return escape(text.replace("\\", "\\\\"))


def _text(stats: Stats, most: int) -> list[str]:
    from eventlog.projections.stats import top

    survey = stats.survey
    lines = [f"{stats.path}  {stats.log}"]
    if survey.durable is None:
        durable = "no writer was here since the machine came up, so none says what is on disk"
    elif survey.durable == survey.head:
        durable = "all of it on disk"
    else:
        durable = f"on disk up to {survey.durable}, {survey.head - survey.durable} behind"
    lines.append(f"  head       {survey.head}, {durable}")
    each = stats.events_per_commit
    lines.append(f"  events     {survey.events} in {survey.commits} commits" + (f", {each:.2f} a commit" if each is not None else ""))
    size = stats.bytes_per_event
    lines.append(f"  bytes      {amount(survey.bytes)}, commits {amount(survey.commit_bytes)}" + (f", {size:.1f} an event" if size else ""))
    lines.append(f"  segments   {survey.sealed} sealed, {survey.segments - survey.sealed} open; {survey.marks} marks, {survey.seals} seals")
    if survey.first_ns is not None and survey.last_ns is not None:
        lines.append(f"  time       {when(survey.first_ns)[:19]}Z to {when(survey.last_ns)[:19]}Z")
    if survey.largest is not None:
        largest = survey.largest
        lines.append(f"  largest    {amount(largest.bytes)}: {largest.events} events from seq {largest.first}, {when(largest.time)[:19]}Z")
    lines.append(f"  effects    {_states(stats.intents)}{_oldest(stats.open_intents, 'open', stats.age_s(stats.oldest_open_ns))}")
    lines.append(f"  deliveries {_states(stats.deliveries)}{_oldest(stats.waiting, 'waiting', stats.age_s(stats.oldest_waiting_ns))}")
    lines.append(f"  threads    {_states(stats.threads)}")
    for title, counts in (("types", stats.types), ("streams", stats.streams)):
        lines += ["", f"{len(counts)} {title}"]
        lines += [f"  {count:>9}  {escape(name) or '-'}" for name, count in top(counts, most)]
        if len(counts) > most:
            lines.append(f"             and {len(counts) - most} more (--top)")
    return lines


def _states(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count) or "none"


def _oldest(count: int, what: str, age_s: float | None) -> str:
    return f"; {count} {what}, the oldest for {age(age_s)}" if age_s is not None else ""


def amount(count: float) -> str:
    """Bytes with a unit, three digits."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {_UNITS[unit]}"


def age(seconds: float) -> str:
    """A duration in its largest two units: `3d 4h`, `12s`."""
    whole = int(seconds)
    for unit, size, below, small in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // small}{below}"
    return f"{whole}s" if whole >= 10 else f"{seconds:.1f}s"
