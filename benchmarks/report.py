"""The results as text: a table for people (rich), and Markdown; all pure functions of what the file says.

`python -m benchmarks.report FILE` prints the table in Markdown; `--write` writes the newest files under benchmarks/results/ into README.md
and docs/ (benchmarks/documents.py).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_NUMBERS = re.compile(r"\[\s+([-+.,\de\s]+?)\s+\]")


def as_json(found: Mapping[str, Any]) -> str:
    """One line for each list of numbers: the file is read by people, too, and in diffs."""
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    return _NUMBERS.sub(lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", text)


def amount(value: float) -> str:
    """Three or four digits, thousands apart."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"


def ratio(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.2 else f"{value:.3f}" if value >= 0.02 else f"{value:.1g}"


def syncs(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def cells(figure: Mapping[str, Any]) -> list[str]:
    """Figure, value, spread, target, our rate, theirs, syncs."""
    value, target = figure["value"], figure["target"]
    sign = "<=" if figure["at_most"] else ">="
    verdict = "" if figure["met"] is None else (" yes" if figure["met"] else " NO")
    ours, peer = figure["ours"], figure["peer"]
    unit = figure["unit"] if figure["kind"] in {"difference", "value"} else ""
    return [
        figure["name"],
        f"{ratio(value['median'])} {unit}".strip(),
        f"{ratio(value['min'])}-{ratio(value['max'])}",
        "" if target is None else f"{sign} {ratio(target)}{verdict}",
        f"{amount(ours['median'])} {figure['unit']}",
        "" if peer is None else f"{amount(peer['median'])} {figure['unit']}",
        syncs(figure["syncs_per_operation"]),
    ]


HEADINGS = ("figure (ours : peer)", "median", "spread", "target", "ours", "peer", "syncs/op")


def conditions(found: Mapping[str, Any]) -> str:
    """One line on where and when."""
    where = found["machine"]
    stretched = f"each sync STRETCHED to {where['sync_us']} us at least (sync_us), " if where.get("sync_us") else ""
    return (
        f"{where['date']}, {where['cores']} cores of {where['cpu']}, {where['system']}, {where['file_system']} on {where['device']} "
        f"({where['write_cache']}), fdatasync {where['fdatasync_us']} us (p99 {where['fdatasync_p99_us']}), {stretched}"
        f"{where['python']}, sqlite {where['sqlite']}, "
        + ", ".join(f"{name} {version}" for name, version in where["versions"].items())
        + f"; {found['rounds']} rounds in {found['seconds']['all']:.0f} s"
        + (f", {found['scale']:g} of the full size" if found["scale"] != 1 else "")
    )


def loads(found: Mapping[str, Any]) -> dict[str, str]:
    """Race -> how many cores others took meanwhile."""
    return {race["title"]: race["load"] for race in found["races"]}


def show(found: Mapping[str, Any], console: Console) -> None:
    table = Table(*HEADINGS, title="eventlog figures")
    for figure in found["figures"]:
        style = None if figure["met"] is not False else "red"
        table.add_row(*map(escape, cells(figure)), style=style)
    console.print(table)
    for race in found["races"]:
        headings, rows = side_table(race)
        sides = Table(*headings, title=race["title"])
        for row in rows:
            sides.add_row(*map(escape, row))
        console.print(sides)
    console.print(escape(conditions(found)))
    for title, load in loads(found).items():
        console.print(escape(f"{title}: {load}"))
    for peer, reason in found["skipped"].items():
        console.print(escape(f"skipped: {peer}: {reason}"))


UNITS = {"rate": "a second", "p50_ms": "p50 ms", "p99_ms": "p99 ms", "worst_ms": "max ms", "ms": "ms", "mib": "MiB", "seconds": "s"}
"""The metrics that are shown of a side, and what their columns are called."""


def side_table(race: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """What was measured of every side of a race: headings and rows. The median of the rounds; of the worst waits the worst."""
    sides = race["sides"]
    metrics = [metric for metric in UNITS if any(metric in side["metrics"] for side in sides)]
    counted = any(side["syncs_per_operation"] is not None for side in sides)
    rows = []
    for side in sides:
        row = [side["name"]]
        for metric in metrics:
            spread = side["metrics"].get(metric)
            row.append("" if spread is None else amount(spread["max" if metric == "worst_ms" else "median"]))
            if metric == "rate":
                row.append("" if spread is None else f"{amount(spread['min'])} to {amount(spread['max'])}")
        rows.append([*row, syncs(side["syncs_per_operation"])] if counted else row)
    headings = ["side"]
    for metric in metrics:
        headings += [UNITS[metric], "spread"] if metric == "rate" else [UNITS[metric]]
    return [*headings, "syncs/op"] if counted else headings, rows


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of Markdown."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def markdown(found: Mapping[str, Any]) -> str:
    return "\n".join([*table(HEADINGS, [cells(figure) for figure in found["figures"]]), "", conditions(found), ""])


def main(arguments: Sequence[str]) -> int:
    from benchmarks import documents

    if list(arguments) == ["--write"]:
        for path in documents.write():
            print(f"written: {path}")
        return 0
    if len(arguments) != 1:
        print("usage: python -m benchmarks.report FILE | --write", file=sys.stderr)
        return 2
    sys.stdout.write(markdown(json.loads(Path(arguments[0]).read_text(encoding="utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
