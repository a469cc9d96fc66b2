"""The results as a table: for people (rich), and in Markdown for docs/performance.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def amount(value: float) -> str:
    """Three or four digits, thousands apart."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"


def ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.2 else f"{value:.3f}"


def cells(figure: Mapping[str, Any]) -> list[str]:
    """Figure, value, spread, target, our rate, theirs, syncs."""
    value, target = figure["value"], figure["target"]
    sign = "<=" if figure["at_most"] else ">="
    verdict = "" if figure["met"] is None else (" yes" if figure["met"] else " NO")
    ours, peer = figure["ours"], figure["peer"]
    unit = figure["unit"] if figure["kind"] == "difference" else ""
    return [
        figure["name"],
        f"{ratio(value['median'])} {unit}".strip(),
        f"{ratio(value['min'])}-{ratio(value['max'])}",
        "" if target is None else f"{sign} {ratio(target)}{verdict}",
        f"{amount(ours['median'])} {figure['unit']}",
        f"{amount(peer['median'])} {figure['unit']}",
        "" if figure["syncs_per_operation"] is None else f"{figure['syncs_per_operation']:.3g}",
    ]


HEADINGS = ("figure (ours : peer)", "median", "spread", "target", "ours", "peer", "syncs/op")


def conditions(found: Mapping[str, Any]) -> str:
    """One line on where and when."""
    where = found["machine"]
    return (
        f"{where['date']}, {where['cores']} cores of {where['cpu']}, {where['system']}, {where['file_system']} on {where['device']} "
        f"({where['write_cache']}), fdatasync {where['fdatasync_us']} us, {where['python']}, sqlite {where['sqlite']}, "
        + ", ".join(f"{name} {version}" for name, version in where["versions"].items())
        + f"; {found['rounds']} rounds" + (f", {found['scale']:g} of the full size" if found["scale"] != 1 else "")
    )  # fmt: skip


def show(found: Mapping[str, Any], console: Console) -> None:
    table = Table(*HEADINGS, title="eventlog figures")
    for figure in found["figures"]:
        style = None if figure["met"] is not False else "red"
        table.add_row(*map(escape, cells(figure)), style=style)
    console.print(table)
    console.print(escape(conditions(found)))
    for workload, load in {figure["workload"]: figure["load"] for figure in found["figures"]}.items():
        console.print(escape(f"{workload}: {load}"))
    for peer, reason in found["skipped"].items():
        console.print(escape(f"skipped: {peer}: {reason}"))


def markdown(found: Mapping[str, Any]) -> str:
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(cells(figure)) + " |" for figure in found["figures"]]
    return "\n".join([*lines, "", conditions(found), ""])


if __name__ == "__main__":  # python -m benchmarks.report FILE: the table in Markdown
    sys.stdout.write(markdown(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
