"""`eventlog demo --matrix`: every class of effect, killed at every point, then recovered or cancelled, held against the table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eventlog.cli.output import EXIT, answering, on_terminal, say
from eventlog.cli.progress import progress

if TYPE_CHECKING:
    from eventlog.recovery.matrix import Cell, Ending, Result

SECONDS_MAX = 300.0
_HEAD = ("CLASS", "KILLED AT", "THE LOG HAS", "RECOVERED", "CANCELLED")


def show_matrix(home: Path | None) -> int:
    """Run it, print it; the exit code. `home` (new or empty) keeps the logs and the ledgers, else they are deleted."""
    if home is not None:
        return _show(home)
    with tempfile.TemporaryDirectory(prefix="eventlog-matrix-") as scratch:
        return _show(Path(scratch))


def _show(home: Path) -> int:
    from eventlog.recovery import EffectError
    from eventlog.recovery.matrix import cells, run_matrix

    total = sum(1 for _ in cells())
    with progress("crash matrix") as bar:
        seen: list[Result] = []

        def each(result: Result) -> None:
            seen.append(result)
            if bar is not None:
                bar(len(seen), total)

        stopped = None
        try:
            run_matrix(home, each, seconds_max=SECONDS_MAX)
        except EffectError as error:  # a child that was not killed where it should: what came before still stands
            stopped = str(error)
    wrong = [result for result in seen if not result.ok]
    with answering(EXIT.no if wrong else EXIT.fine if len(seen) == total else EXIT.failed) as code:
        _print(seen)
        say()
        say(f"{len(seen)} of {total} cells run, each a process killed by SIGKILL; {len(wrong)} differ from the table of docs/effects.md")
        for result in wrong:
            where = f"{result.effect_class.value}, {result.point}, {result.ending}"
            say(f"  ! {where}: {_cell(result.cell)}; the table says {_cell(result.expected)}")
        if len(seen) < total:
            say(f"  ! stopped: {stopped or f'{SECONDS_MAX:g} seconds have passed'}")
    return code


def _print(results: list[Result]) -> None:
    red: Callable[[str], str] = (lambda text: click.style(text, fg="red")) if on_terminal() else (lambda text: text)
    say("An effect is made in a child process, which is killed. Then: what the log has, and what is there in the end, after recovery and a")
    say("second run, or after a cancel: its state, the effects in the world, and the calls that reached it. Nothing is done twice.")
    rows: dict[tuple[str, str], dict[Ending, Result]] = {}
    endings: tuple[Ending, ...] = ("crash", "cancel")
    for result in results:
        rows.setdefault((result.effect_class.value, result.point), {})[result.ending] = result
    say()
    say("  ".join(f"{head:<16}" for head in _HEAD[:3]) + "  " + "  ".join(f"{head:<28}" for head in _HEAD[3:]).rstrip())
    for (class_, point), by_ending in rows.items():
        found = next(iter(by_ending.values())).found
        texts = [f"{class_:<16}", f"{point:<16}", f"{found.value if found is not None else 'nothing':<16}"]
        for ending in endings:
            one = by_ending.get(ending)
            text = f"{_cell(one.cell) if one is not None else '-':<28}"
            texts.append(red(text) if one is not None and not one.ok else text)
        say("  ".join(texts).rstrip())


def _cell(cell: Cell) -> str:
    state = cell.state.value if cell.state is not None else "nothing"
    return f"{state} {cell.effects}/{cell.calls}"
