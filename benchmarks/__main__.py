"""`python -m benchmarks`: take the figures, print them as a table, write them as JSON."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import commits, crowds, effects, folds, machine, optional, report, snapshots
from benchmarks.race import Bench, Result

WORKLOADS: dict[str, Callable[[Bench], list[Result]]] = {
    "immediate": commits.immediate,
    "batched": commits.batched,
    "stores": optional.stores,
    "fold": folds.full_fold,
    "memory": folds.memory,
    "opening": folds.opening,
    "crowd": crowds.crowd,
    "processes": crowds.processes,
    "effects": effects.effects,
    "verify": folds.verifying,
    "snapshots": snapshots.snapshots,
}
QUICK_SCALE = 0.1
FORMAT = 1


def run(
    names: Sequence[str], *, rounds: int, scale: float, place: Path, say: Callable[[str], None], calm: float | None = None
) -> dict[str, Any]:
    """Run these workloads (all, if none is named) below `place`; what is written as JSON. Leaves nothing there."""
    root = Path(tempfile.mkdtemp(prefix="eventlog-bench-", dir=place))
    try:
        where = machine.describe(root, machine.sync_costs(root))
        bench = Bench(root, rounds, scale, calm, say=say)
        results: list[Result] = []
        for name in names or WORKLOADS:
            results += WORKLOADS[name](bench)
            for left in root.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    finally:
        shutil.rmtree(root)
    return {
        "format": FORMAT,
        "machine": where,
        "rounds": rounds,
        "scale": scale,
        "figures": [result.as_json() for result in results],
        "skipped": bench.skipped,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"workloads, of: {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--json", metavar="FILE", help="write the results here, too; - for standard output instead of the table")
    parser.add_argument("--rounds", type=int, default=15, help="rounds that count (default: 15)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work and 3 rounds: to see that it runs")
    parser.add_argument("--calm", type=float, metavar="CORES", help="do a round again if others took more cores than that meanwhile")
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where to write: on the disk to be measured (default: %(default)s)")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in WORKLOADS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such workload; there are: {', '.join(WORKLOADS)}")
    errors = Console(stderr=True)
    rounds, scale = (min(3, options.rounds), QUICK_SCALE) if options.quick else (options.rounds, options.scale)
    with errors.status("measuring") as status:
        found = run(options.names, rounds=rounds, scale=scale, place=Path(options.dir), say=status.update, calm=options.calm)
    if options.json == "-":
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return 0
    console = Console()
    report.show(found, console if console.is_terminal else Console(width=160))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
