"""README.md and docs/performance.md say what the newest file under benchmarks/results/ says, and nothing else: their tables are generated.

Between two marks each of them holds a block that `python -m benchmarks.report --write` writes; a test fails when a block, or a plot under
docs/plots/, is not what the newest file gives. A run with stretched syncs (slowdisk.py) is never that file: the newest of those has a
section of its own, and none if there is none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import report
from benchmarks.charts import charts
from benchmarks.workloads import SYNCED

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PLOTS = Path("benchmarks", "results"), Path("docs", "plots")
BEGIN = "<!-- benchmarks: written by `python -m benchmarks.report --write`, not by hand -->"
END = "<!-- benchmarks: end -->"


class Headline(NamedTuple):
    """A row of the README: a figure by its name, and the words for both sides. `ours` "" continues the row above."""

    figure: str
    ours: str
    peer: str


HEADLINES = (
    Headline("commit : sqlite3 WAL FULL", "commit, IMMEDIATE, one thread", "sqlite3 WAL FULL"),
    Headline("commit : lmdb", "", "lmdb"),
    Headline("commit : rocksdict", "", "RocksDB, sync on"),
    Headline("commit : pwrite+fdatasync", "", "a bare pwrite + fdatasync loop"),
    Headline("64 coroutines : bare loop of one thread", "the same, 64 coroutines", "the bare loop, alone"),
    Headline("16 threads : bare loop of one thread", "the same, 16 threads", "the bare loop, alone"),
    Headline("16 threads : 16 on sqlite3 WAL FULL", "", "sqlite3 WAL FULL"),
    Headline("8 processes : 8 on sqlite3 WAL FULL", "the same, 8 processes", "sqlite3 WAL FULL"),
    Headline("8 processes, worst wait : sqlite3's (all rounds)", "the worst wait among them", "sqlite3 WAL FULL"),
    Headline("BATCHED commit : sqlite3 WAL NORMAL transaction", "commit, BATCHED", "sqlite3 WAL NORMAL"),
    Headline("BATCHED commit of 100 events : sqlite3 executemany", "commit of 100 events, BATCHED", "sqlite3 executemany"),
    Headline("guarded effect : sqlite3 WAL FULL outbox", "guarded effect", "sqlite3 outbox, 3 transactions"),
    Headline("guarded effect : eventsourcing, 3 saves", "", "eventsourcing, 3 saves"),
    Headline("guarded effect : DBOS (SQLite) step", "", "DBOS on SQLite, recorded after the call only"),
    Headline("guarded effect : LangGraph (SqliteSaver) node", "", "LangGraph, recorded after the call only"),
    Headline("16 guarded effects in flight, coroutines : bare single loop", "16 of them in flight, coroutines", "the bare loop, alone"),
    Headline("16 guarded effects in flight, coroutines : 16 threads on the sqlite3 outbox", "", "16 threads on the sqlite3 outbox"),
    Headline("16 guarded effects in flight : bare single loop", "16 of them in flight, threads", "the bare loop, alone"),
    Headline("16 guarded effects in flight : as many on the sqlite3 outbox", "", "as many on the sqlite3 outbox"),
    Headline("fold, commits of 1 : orjson.loads of the bodies", "fold, one-event commits", "`orjson.loads` of the bodies in memory"),
    Headline("fold, commits of 1 : sqlite3 SELECT + loads", "", "sqlite3 SELECT + loads"),
    Headline("fold, commits of 1 : eventsourcing notifications", "", "eventsourcing"),
    Headline("fold, commits of 100 : sqlite3 SELECT + loads", "fold, commits of 100", "sqlite3 SELECT + loads"),
    Headline("selective fold, commits of 1 : fold of everything", "fold of 1 event in 1,000", "the fold of everything"),
    Headline("selective fold, commits of 1 : sqlite3 with an index on type", "", "sqlite3 with an index on type"),
    Headline("status, fold, 10,000,000 events : 10,000 events", "status of 10 million events, with snapshots", "of 10,000 events"),
    Headline("hook decision, 10,000,000 events : 10,000 events", "a hook's decision in them", "in 10,000 events"),
    Headline("follower at work, p99 from commit to reader", "commit to a reader in another process, p99", ""),
    Headline("open for writing, 1024 MiB : 1 MiB", "open 1 GiB for writing", "open 1 MiB"),
    Headline("fold memory over the bare interpreter", "fold of 10 million events, memory", "over the bare interpreter"),
)


def headline_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """Rows for those headlines that were measured; what was skipped is missing."""
    figures = {figure["name"]: figure for figure in found["figures"]}
    rows: list[list[str]] = []
    said = ""
    for line in HEADLINES:
        said = line.ours or said
        figure = figures.get(line.figure)
        if figure is None:
            continue
        first = not rows or rows[-1][-1] != said
        _, value, _, _, ours, peer, syncs = report.cells(figure)
        rate = ours + (f", {syncs} sync{'' if syncs == '1' else 's'} each" if syncs and figure["metric"] == "rate" else "")
        if figure["kind"] in {"value", "difference"}:
            rate, value = value, ""
        beside = f"{line.peer}: {peer}" if peer and figure["kind"] != "difference" else line.peer
        rows.append([said if first else "", rate if first else "", beside, value, said])
    return [row[:-1] for row in rows]


def readme_block(found: Mapping[str, Any], stretched: Mapping[str, Any] | None = None) -> str:
    where = found["machine"]
    text = (
        f"Ratios within one run, interleaved, medians of {found['rounds']} rounds; {where['cores']} cores of {where['cpu']}, "
        f"{where['system']}, {where['file_system']}, a disk that confirms an fdatasync in "
        f"{where['fdatasync_us']:.0f} µs; {where['date'][:10]}."
    )
    lines = [text, "", *report.table(("", "ours", "beside", "ratio"), headline_rows(found)), ""]
    if stretched is not None:
        lines += [_targets_met(found, stretched), ""]
    drawn = charts(found)
    lines += [f"![{name.removesuffix('.svg')}]({(PLOTS / name).as_posix()})" for name in ("commits.svg", "effects.svg") if name in drawn]
    return "\n".join(lines)


def _synced(found: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    """The figures, or the races, in which operations wait for a sync."""
    return [one for one in found[part] if one["workload"] in SYNCED]


def _targets_met(found: Mapping[str, Any], stretched: Mapping[str, Any]) -> str:
    """One sentence on how much of the targets hangs on the disk."""
    slow, fast = ({figure["name"]: figure["met"] for figure in _synced(run, "figures")} for run in (stretched, found))
    names = [name for name, met in slow.items() if met is not None and fast.get(name) is not None]
    return (
        f"Of the {len(names)} targets for what waits for a sync, {sum(fast[name] for name in names)} are met on this disk, and "
        f"{sum(slow[name] for name in names)} where each sync of every side is stretched to {stretched['machine']['sync_us']} µs: "
        "[docs/performance.md](docs/performance.md)."
    )


def stretched_section(found: Mapping[str, Any], stretched: Mapping[str, Any]) -> list[str]:
    """The run with stretched syncs, with the medians of the other beside."""
    here = {figure["name"]: report.cells(figure)[1] for figure in _synced(found, "figures")}
    disk_us, us = found["machine"]["fdatasync_us"], stretched["machine"]["sync_us"]
    rows = [[*report.cells(figure), here.get(figure["name"], "")] for figure in _synced(stretched, "figures")]
    lines = [f"### On a slower disk: each sync lasts {us} µs at least", ""]
    lines += [
        "A run of its own, not of a disk: syncs of every side were stretched (`--sync-us`, see Method). Only what waits for a sync. The "
    ]
    lines[-1] += f"last column is the median above, from the disk as it is, where an fdatasync takes {disk_us:.0f} µs."
    lines += ["", *report.table((*report.HEADINGS, f"median at {disk_us:.0f} µs"), rows), "", report.conditions(stretched), ""]
    lines += [f"Skipped: {peer}: {reason}\n" for peer, reason in stretched["skipped"].items()]
    return [*lines, *(f"- {race['title']}: {race['load']}" for race in _synced(stretched, "races")), ""]


def performance_block(found: Mapping[str, Any], stretched: Mapping[str, Any] | None = None) -> str:
    versions = found["machine"]["versions"]
    lines = ["### Figures", "", *report.table(report.HEADINGS, [report.cells(figure) for figure in found["figures"]]), ""]
    lines += [report.conditions(found), ""]
    lines += [f"Skipped: {peer}: {reason}\n" for peer, reason in found["skipped"].items()]
    lines += ["### Peers, and what they promise", ""]
    lines += report.table(("side", "settings", "at a power cut"), [[name, *peer.values()] for name, peer in found["peers"].items()])
    lines += ["", "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".", ""]
    for name in charts(found):
        lines += [f"![{name.removesuffix('.svg')}](plots/{name})", ""]
    lines += ["### All sides", ""]
    for race in found["races"]:
        lines += [f"**{race['title']}** ({race['load']})", "", *report.table(*report.side_table(race)), ""]
    if stretched is not None:
        lines += stretched_section(found, stretched)
    return "\n".join(lines).rstrip()


def replaced(text: str, block: str) -> str:
    """The document with this block between its marks. Raises ValueError unless it has both marks, once."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in after:
        raise ValueError(f"not one block between {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{block}\n\n{END}{after}"


def _newest(root: Path, *, stretched: bool) -> dict[str, Any] | None:
    """The last by name, which is by date, of the one kind or the other. What is in a file decides, not its name."""
    for file in sorted((root / RESULTS).glob("*.json"), reverse=True):
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if (found["machine"].get("sync_us") is not None) == stretched:
            return found
    return None


def newest(root: Path = ROOT) -> dict[str, Any]:
    """The results that the documents are about: of a disk as it is. Raises FileNotFoundError without any."""
    if (found := _newest(root, stretched=False)) is None:
        raise FileNotFoundError(f"{root / RESULTS}: no results; make some with: python -m benchmarks --record")
    return found


def newest_stretched(root: Path = ROOT) -> dict[str, Any] | None:
    """The results with stretched syncs that the documents show, too; None without any."""
    return _newest(root, stretched=True)


def wanted(root: Path = ROOT) -> dict[Path, str]:
    """Path -> what must be in it, for the newest results."""
    found, stretched = newest(root), newest_stretched(root)
    blocks = {
        root / "README.md": readme_block(found, stretched),
        root / "docs" / "performance.md": performance_block(found, stretched),
    }
    files = {path: replaced(path.read_text(encoding="utf-8"), block) for path, block in blocks.items()}
    return {**files, **{root / PLOTS / name: svg for name, svg in charts(found).items()}}


def write(root: Path = ROOT) -> list[Path]:
    """Write the blocks and the plots; a plot that is drawn no more is removed."""
    files = wanted(root)
    (root / PLOTS).mkdir(exist_ok=True)
    for old in (root / PLOTS).glob("*.svg"):
        if old not in files:
            old.unlink()
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return list(files)


def record(found: Mapping[str, Any], root: Path = ROOT) -> Path:
    """Keep these results as the newest of their kind, and write the documents."""
    where = found["machine"]
    kind = "" if where.get("sync_us") is None else f"-sync{where['sync_us']}us"
    file = root / RESULTS / f"{where['date'].replace(':', '')}-{where['file_system']}{kind}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(report.as_json(found), encoding="utf-8")
    write(root)
    return file
