"""The benchmarks run, and say what they promise to say. How fast anything was is never asserted: that is for people to read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORKLOADS = ("immediate", "batched", "stores", "fold", "memory", "opening", "crowd", "processes", "effects", "verify", "snapshots")
IN_THE_TABLE = {
    "immediate": ["IMMEDIATE commit : bare pwrite+fdatasync loop", "IMMEDIATE commit : sqlite3 WAL FULL"],
    "batched": ["BATCHED commit : sqlite3 WAL NORMAL transaction", "BATCHED commit of 100 events : sqlite3 executemany"],
    "fold": ["fold, commits of 1 : orjson.loads of the bodies", "fold, commits of 100 : orjson.loads of the bodies"],
    "memory": ["fold memory over the bare interpreter"],
    "opening": ["open for writing, 2 MiB : 1 MiB", "open read-only, 2 MiB : 1 MiB"],
    "crowd": [f"{who} IMMEDIATE : bare single loop" for who in ("16 threads", "64 threads", "64 coroutines")],
    "processes": ["8 processes IMMEDIATE : bare loop of one", "8 processes IMMEDIATE : 8 on sqlite3 WAL FULL"],
    "effects": ["guarded effect : bare 3 x (pwrite+fdatasync)", "16 guarded effects in flight : bare single loop"],
    "snapshots": ["status, fold, 10,000 events : 1,000 events", "hook decision, 10,000 events : 1,000 events"],
    "verify": ["verify, commits of 1 : sha256+crc32 of the bytes"],
}


def run(*arguments: str, place: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments, "--dir", str(place)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every workload once, as small as it goes."""
    place = tmp_path_factory.mktemp("bench")
    done = run("--scale", "0.001", "--rounds", "2", "--json", "-", place=place)
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == [], "a benchmark left files behind"
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_workload_gives_its_figures(found: dict[str, Any], workload: str) -> None:
    figures = {figure["name"]: figure for figure in found["figures"] if figure["workload"] == workload}
    assert set(IN_THE_TABLE.get(workload, ())) <= set(figures), f"{sorted(figures)}; skipped: {found['skipped']}"
    if not figures:
        assert workload == "stores"
        assert set(found["skipped"]) >= {"lmdb put", "litequeue put"}
    for figure in figures.values():
        assert {"metric", "unit", "kind", "target", "at_most", "met", "syncs_per_operation", "load", "note"} <= set(figure)
        for part in ("ours", "peer", "value"):
            spread = figure[part]
            assert spread["min"] <= spread["median"] <= spread["max"]
            assert len(spread["values"]) == (1 if part == "value" and figure["kind"] == "worst" else 2)
        assert figure["ours"]["min"] > 0
        assert figure["peer"]["min"] > 0
        assert (figure["met"] is None) == (figure["target"] is None)


def test_a_ratio_is_taken_within_each_round(found: dict[str, Any]) -> None:
    ratios = [figure for figure in found["figures"] if figure["kind"] == "ratio"]
    assert len(ratios) > 10
    for figure in ratios:
        pairs = zip(figure["ours"]["values"], figure["peer"]["values"], strict=True)
        assert figure["value"]["values"] == pytest.approx([ours / peer for ours, peer in pairs], rel=1e-3)


def test_syncs_are_counted(found: dict[str, Any]) -> None:
    syncs = {figure["ours"]["name"]: figure["syncs_per_operation"] for figure in found["figures"]}
    assert syncs["eventlog IMMEDIATE"] == 1
    assert syncs["guarded effect"] == 3
    assert syncs["eventlog, 64 coroutines"] < 0.5
    assert syncs["guarded effects, 16 in flight"] < 3
    assert syncs["eventlog BATCHED"] < 1


def test_the_machine_is_described(found: dict[str, Any]) -> None:
    assert {
        "date",
        "cpu",
        "cores",
        "system",
        "file_system",
        "device",
        "write_cache",
        "fdatasync_us",
        "python",
        "sqlite",
        "versions",
    } <= set(found["machine"])
    assert found["format"] == 1
    assert found["rounds"] == 2


def test_the_table_is_for_people_and_the_file_for_programs(tmp_path: Path) -> None:
    file, place = tmp_path / "out.json", tmp_path / "place"
    place.mkdir()
    done = run("immediate", "--scale", "0.001", "--rounds", "1", "--calm", "64", "--json", str(file), place=place)
    assert done.returncode == 0, done.stderr
    assert "IMMEDIATE commit : bare pwrite+fdatasync loop" in done.stdout
    assert "0 rounds above 64 thrown away" in done.stdout
    figures = json.loads(file.read_text())["figures"]
    assert len(figures) >= 2
    assert {figure["workload"] for figure in figures} == {"immediate"}
    table = subprocess.run(
        [sys.executable, "-m", "benchmarks.report", str(file)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert table.startswith("| figure (ours : peer) |")
    assert table.count("\n| IMMEDIATE commit") == len(figures)


def test_an_unknown_workload_is_a_usage_error(tmp_path: Path) -> None:
    done = run("nonsense", place=tmp_path)
    assert done.returncode == 2
    assert "nonsense: no such workload; there are: immediate" in done.stderr
