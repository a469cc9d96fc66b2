"""`python -m benchmarks`: take the figures, print them as a table, write them as JSON, and into the documents."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import documents, machine, report, slowdisk
from benchmarks.race import Bench, Result
from benchmarks.workloads import SYNCED, WORKLOADS, load

ROUNDS = 9
QUICK_SCALE, QUICK_ROUNDS = 0.1, 3
FORMAT = 2


def run(
    names: Sequence[str], *, rounds: int, scale: float, place: Path, say: Callable[[str], None], calm: float | None = None
) -> dict[str, Any]:
    """Run these workloads below `place`; what is written as JSON. Leaves nothing there.

    If none is named: all, or, where syncs are stretched, those that wait for one.
    """
    start = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="eventlog-bench-", dir=place))
    try:
        where = machine.describe(root)
        if where["sync_us"] is not None and where["fdatasync_us"] < where["sync_us"]:
            raise RuntimeError(f"a sync takes {where['fdatasync_us']} us behind a shim that should let it last {where['sync_us']} us")
        bench = Bench(root, rounds, scale, calm, say=say)
        results: list[Result] = []
        seconds: dict[str, float] = {}
        wanted = list(names or (WORKLOADS if where["sync_us"] is None else SYNCED))
        for number, name in enumerate(wanted, 1):
            begun = time.monotonic()
            say(f"workload {number} of {len(wanted)}: {name}")
            results += load(name)(bench)
            for left in root.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            seconds[name] = round(time.monotonic() - begun, 1)
    finally:
        shutil.rmtree(root)
    return {
        "format": FORMAT,
        "machine": where,
        "rounds": rounds,
        "scale": scale,
        "seconds": {**seconds, "all": round(time.monotonic() - start, 1)},
        "figures": [result.as_json() for result in results],
        "races": [race.as_json() for race in bench.races],
        "peers": bench.peers,
        "skipped": bench.skipped,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"workloads, of: {', '.join(WORKLOADS)} (default: all; with --sync-us {', '.join(SYNCED)})"
    )
    parser.add_argument("--json", metavar="FILE", help="write the results here, too; - for standard output instead of the table")
    parser.add_argument("--record", action="store_true", help="write them into benchmarks/results/ and into README.md and docs/")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work and 3 rounds: to see that it runs")
    parser.add_argument("--calm", type=float, metavar="CORES", help="do a round again if others took more cores than that meanwhile")
    parser.add_argument(
        "--sync-us", type=int, metavar="US", help="let each sync of every side last at least so many us, as on a slower disk (needs cc)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where to write: on the disk to be measured (default: %(default)s)")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in WORKLOADS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such workload; there are: {', '.join(WORKLOADS)}")
    if options.record and (options.names or options.quick or options.scale != 1):
        parser.error("--record takes all workloads in full: what the documents say comes from one run")
    if options.sync_us is not None and not 0 < options.sync_us <= slowdisk.US_MAX:
        parser.error(f"--sync-us: {options.sync_us} is not from 1 to {slowdisk.US_MAX}")
    errors = Console(stderr=True)
    if (kind := machine.file_system(Path(options.dir))) in {"tmpfs", "ramfs"}:
        if options.record:
            parser.error(f"--dir: {options.dir} is a {kind}, where a sync costs nothing: name a directory on a disk")
        errors.print(f"warning: {options.dir} is a {kind}, where a sync costs nothing: name a directory on a disk with --dir", markup=False)
    if options.sync_us is not None and options.sync_us != slowdisk.stretched_us():
        try:
            return slowdisk.run_again(options.sync_us, sys.argv[1:] if arguments is None else arguments)
        except slowdisk.Refused as error:
            errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
            return 2
    rounds, scale = (min(QUICK_ROUNDS, options.rounds), QUICK_SCALE) if options.quick else (options.rounds, options.scale)
    with errors.status("measuring") as status:

        def say(text: str) -> None:
            status.update(text)
            if text.startswith("skipped") or (text.startswith("workload") and not errors.is_terminal):
                errors.print(text, markup=False, highlight=False)

        found = run(options.names, rounds=rounds, scale=scale, place=Path(options.dir), say=say, calm=options.calm)
    text = report.as_json(found)
    if options.json == "-":
        sys.stdout.write(text)
        return 0
    console = Console()
    report.show(found, console if console.is_terminal else Console(width=160))
    if options.json:
        Path(options.json).write_text(text, encoding="utf-8")
    if options.record:
        file = documents.record(json.loads(text))
        said = f"recorded as {file}; README.md, docs/performance.md and docs/plots/ are written from the newest: look at them, and commit"
        console.print(said, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
