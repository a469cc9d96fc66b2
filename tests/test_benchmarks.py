"""The benchmarks run, and say what they promise to say. How fast anything was is never asserted: that is for people to read."""

from __future__ import annotations

import copy
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # behind everything else: `benchmarks` is not installed, and nothing that is must be found here instead

from benchmarks import documents, report, slowdisk  # noqa: E402
from benchmarks.charts import charts  # noqa: E402
from benchmarks.commits import IMMEDIATE, commit_all  # noqa: E402
from benchmarks.effect_peers import EFFECTS  # noqa: E402
from benchmarks.machine import file_system  # noqa: E402
from benchmarks.peers import STORES  # noqa: E402
from benchmarks.race import Bench  # noqa: E402
from benchmarks.stores import events, syncs_of  # noqa: E402
from benchmarks.svg import OURS, Bar, Group, chart  # noqa: E402
from benchmarks.syncs import MARK, durable_calls  # noqa: E402
from benchmarks.workloads import SYNCED, WORKLOADS  # noqa: E402

pytestmark = pytest.mark.timeout(600)  # the first test waits for every workload: 40 s alone with all peers, minutes on a busy machine
IN_THE_TABLE = {
    "commit": ["commit : pwrite+fdatasync", "commit : sqlite3 WAL FULL"],
    "batched": ["BATCHED commit : sqlite3 WAL NORMAL transaction", "BATCHED commit of 100 events : sqlite3 executemany"],
    "threads": [f"{who} : bare loop of one thread" for who in ("16 threads", "64 threads", "64 coroutines")],
    "processes": ["8 processes : bare loop of one", "8 processes : 8 on sqlite3 WAL FULL"],
    "effects": [
        "guarded effect : bare 3 x (pwrite+fdatasync)",
        "16 guarded effects in flight : bare single loop",
        "16 guarded effects in flight, coroutines : bare single loop",
    ],
    "snapshots": ["status, fold, 10,000 events : 1,000 events", "hook decision, 10,000 events : 1,000 events"],
    "fold": ["fold, commits of 1 : orjson.loads of the bodies", "fold, commits of 100 : sqlite3 SELECT + loads"],
    "selective": ["selective fold, commits of 1 : fold of everything"],
    "follow": ["follower at work, p99 from commit to reader", "follower idle, p99 from commit to reader"],
    "opening": ["open for writing, 3 MiB : 1 MiB", "open read-only, 3 MiB : 1 MiB"],
    "status": ["status of 1,000 events : 100 events"],
    "hooks": ["a hook that lets a call pass : a bare interpreter"],
    "memory": ["fold memory over the bare interpreter"],
    "verify": ["verify, commits of 1 : sha256+crc32 of the bytes"],
}


def run(*arguments: str, place: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments, "--dir", str(place)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=560, check=False, env={**os.environ, **environ})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> dict[str, Any]:
    """Every workload once, as small as it goes; once for all worker processes of pytest, the first of which does it."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with (shared / "benchmarks.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if not (text := file.read()):
            place = tmp_path_factory.mktemp("bench")
            done = run("--scale", "0.001", "--rounds", "2", "--json", "-", place=place)
            assert done.returncode == 0, done.stderr
            assert list(place.iterdir()) == [], "a benchmark left files behind"
            text = done.stdout
            file.write(text)
    result = json.loads(text)
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_workload_gives_its_figures(found: dict[str, Any], workload: str) -> None:
    figures = {figure["name"]: figure for figure in found["figures"] if figure["workload"] == workload}
    assert set(IN_THE_TABLE.get(workload, ())) <= set(figures), f"{sorted(figures)}; skipped: {found['skipped']}"
    assert figures
    for figure in figures.values():
        assert {"metric", "unit", "kind", "target", "at_most", "met", "syncs_per_operation", "load", "note"} <= set(figure)
        for part in ("ours", "peer", "value"):
            spread = figure[part]
            if part == "peer" and figure["kind"] == "value":
                assert spread is None
                continue
            assert spread["min"] <= spread["median"] <= spread["max"]
            once = workload == "memory" or "without snapshots" in figure["name"] or (part == "value" and figure["kind"] == "worst")
            assert len(spread["values"]) == (1 if once else 2)
        assert figure["ours"]["min"] > 0
        assert (figure["met"] is None) == (figure["target"] is None)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_side_of_a_race_is_in_the_file(found: dict[str, Any], workload: str) -> None:
    races = [race for race in found["races"] if race["workload"] == workload]
    named = {figure["ours"]["name"] for figure in found["figures"] if figure["workload"] == workload}
    sides = {side["name"]: side for race in races for side in race["sides"]}
    assert named <= set(sides)
    for race in races:
        assert len(race["sides"]) >= 2
        assert race["title"]
        headings, rows = report.side_table(race)
        assert len(rows) == len(race["sides"])
        assert {len(row) for row in rows} == {len(headings)}


def test_every_peer_took_part_or_is_said_to_be_missing(found: dict[str, Any]) -> None:
    for store in (*STORES.values(), *EFFECTS.values()):
        if store.missing():
            assert store.missing() in found["skipped"][store.title]
        else:
            assert found["peers"][store.title] == {"settings": store.settings, "power_cut": store.power_cut}
            assert any(side["name"].startswith(store.title) for race in found["races"] for side in race["sides"]), store.title
        assert store.settings
        assert store.power_cut


def test_a_ratio_is_taken_within_each_round(found: dict[str, Any]) -> None:
    ratios = [figure for figure in found["figures"] if figure["kind"] == "ratio"]
    assert len(ratios) > 30
    for figure in ratios:
        pairs = zip(figure["ours"]["values"], figure["peer"]["values"], strict=True)
        assert figure["value"]["values"] == pytest.approx([ours / peer for ours, peer in pairs], rel=1e-3)


def test_syncs_are_counted(found: dict[str, Any], tmp_path: Path) -> None:
    syncs = {side["name"]: side["syncs_per_operation"] for race in found["races"] for side in race["sides"]}
    assert syncs["eventlog IMMEDIATE, 64 coroutines"] < 0.6  # by our own seam: with strace or without
    assert syncs["guarded effects, 16 in flight"] < 3
    assert syncs["guarded effects, 16 in flight, coroutines"] < 1
    assert syncs["eventlog BATCHED x100"] < 1
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: the syncs of one thread, ours and the peers', are not counted")
    failed = [peer for peer in found["skipped"] if peer.startswith("syncs of")]
    if failed:
        pytest.skip(f"strace counts nothing here: {found['skipped'][failed[0]]}")
    made = events(20)
    assert syncs["eventlog IMMEDIATE"] == syncs_of(tmp_path / "log", 20, lambda log: commit_all(log, made, IMMEDIATE)) == 1
    assert syncs["guarded effect"] == 3
    assert syncs["pwrite+fdatasync"] == syncs["sqlite3 WAL FULL"] == 1
    assert syncs["sqlite3 WAL FULL outbox"] == 3
    assert 0 < syncs["eventlog IMMEDIATE, 8 processes"] <= 1.5
    for store in (*STORES.values(), *EFFECTS.values()):
        if not store.missing() and store.kind not in {"eventlog-batched", "sqlite-normal"}:
            assert syncs[store.title] >= 1, f"{store.title} is not as durable as we are"


def test_what_counts_as_a_sync_in_a_trace() -> None:
    trace = f"""\
11 openat(AT_FDCWD, "data.mdb", O_RDWR|O_CREAT|O_CLOEXEC, 0644) = 5
11 openat(AT_FDCWD, "data.mdb", O_WRONLY|O_DSYNC|O_CLOEXEC) = 6
11 openat(AT_FDCWD, "other", O_WRONLY|O_SYNC) = 7
11 close(7) = 0
11 fdatasync(5) = 0
11 {MARK}) = -1 EBADF (Bad file descriptor)
11 pwrite64(5, "x", 1, 0) = 1
11 fdatasync(5) = 0
11 pwrite64(6, "x", 1, 0) = 1
11 pwrite64(7, "x", 1, 0) = 1
12 fsync(5 <unfinished ...>
11 write(16, "11 fdatasync(5)", 15) = 15
12 <... fsync resumed>) = 0
11 msync(0x7f, 4096, MS_SYNC) = 0
11 msync(0x7f, 4096, MS_ASYNC) = 0
11 {MARK} <unfinished ...>
12 <... msync resumed>) = 0
11 fsync(5) = 0
"""
    assert durable_calls(trace) == 4
    with pytest.raises(ValueError, match="1 marks"):
        durable_calls(trace.partition("12 fsync")[0])


def test_the_machine_is_described(found: dict[str, Any]) -> None:
    assert {
        "date",
        "cpu",
        "cores",
        "system",
        "file_system",
        "device",
        "write_cache",
        "sync_us",
        "fdatasync_us",
        "python",
        "sqlite",
        "versions",
    } <= set(found["machine"])
    assert found["machine"]["sync_us"] is None
    assert found["format"] == 2
    assert found["rounds"] == 2
    assert set(found["seconds"]) == {*WORKLOADS, "all"}


def test_the_table_is_for_people_and_the_file_for_programs(tmp_path: Path) -> None:
    file, place = tmp_path / "out.json", tmp_path / "place"
    place.mkdir()
    done = run("verify", "--scale", "0.001", "--rounds", "1", "--calm", "64", "--json", str(file), place=place)
    assert done.returncode == 0, done.stderr
    assert "verify, commits of 1 : sha256+crc32 of the bytes" in done.stdout
    assert "0 rounds above 64 thrown away" in done.stdout
    figures = json.loads(file.read_text())["figures"]
    assert {figure["workload"] for figure in figures} == {"verify"}
    table = subprocess.run(
        [sys.executable, "-m", "benchmarks.report", str(file)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert table.startswith("| figure (ours : peer) |")
    assert table.count("\n| verify, commits of") == len(figures)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "nonsense: no such workload; there are: commit"),
        (["verify", "--record"], "--record takes all workloads in full"),
        (["commit", "--record", "--sync-us", "110"], "--record takes all workloads in full"),
        (["commit", "--sync-us", "0"], "0 is not from 1 to 1000000"),
    ],
)
def test_usage_errors(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = run(*arguments, place=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


def test_figures_of_a_tmpfs_are_not_recorded() -> None:
    place = Path("/dev/shm")
    if not place.is_dir() or file_system(place) != "tmpfs":
        pytest.skip("no tmpfs at /dev/shm here")
    done = run("--record", place=place)
    assert done.returncode == 2
    assert "is a tmpfs, where a sync costs nothing" in done.stderr


def test_the_documents_say_what_the_newest_results_say() -> None:
    """README.md, docs/performance.md and docs/plots/ are those that `python -m benchmarks.report --write` would write."""
    wanted = documents.wanted()
    assert {path for path in wanted if path.suffix == ".svg"} == set((ROOT / "docs" / "plots").glob("*.svg"))
    for path, text in wanted.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is stale: python -m benchmarks.report --write"


def test_no_figure_of_the_readme_is_written_by_hand() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, after = text.partition(documents.BEGIN)[0], text.partition(documents.END)[2]
    for part in (before, after):
        assert not re.search(r"\d\s*(/s|events/s|commits/s|effects/s|µs)", part), "a measured rate outside the generated block"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with the documents that a recording writes, and an old plot."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "docs" / "plots").mkdir(parents=True)
    (tmp_path / "docs" / "plots" / "drawn-no-more.svg").write_text("<svg/>")
    for name in ("README.md", "docs/performance.md"):
        (tmp_path / name).write_text(f"before\n{documents.BEGIN}\nold\n{documents.END}\nafter\n")
    return tmp_path


def test_recording_writes_file_documents_and_plots(found: dict[str, Any], checkout: Path) -> None:
    for date in ("2026-01-02T03:04:05Z", "2026-01-02T03:05:05Z"):
        results = {**found, "machine": {**found["machine"], "date": date}}
        file = documents.record(results, checkout)
        assert json.loads(file.read_text()) == results == documents.newest(checkout)
    for path, text in documents.wanted(checkout).items():
        assert path.read_text() == text
    readme = (checkout / "README.md").read_text()
    assert readme.startswith("before\n")
    assert readme.endswith("\nafter\n")
    assert "\nold\n" not in readme
    assert not (checkout / "docs" / "plots" / "drawn-no-more.svg").exists()
    assert (checkout / "docs" / "plots" / "commits.svg").exists()
    for target in re.findall(r"\]\(([^)]+\.svg)\)", readme):
        assert (checkout / target).exists()


@pytest.mark.parametrize("date", ["2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"])
def test_a_stretched_run_never_passes_for_a_disk(found: dict[str, Any], checkout: Path, date: str) -> None:
    """Recorded before or after the run of the disk as it is: it has a section of its own, and nothing else of the documents is from it."""
    documents.record({**found, "machine": {**found["machine"], "date": "2026-01-02T00:00:00Z"}}, checkout)
    alone = {path: path.read_text() for path in documents.wanted(checkout)}
    slow = copy.deepcopy(found)
    slow["machine"].update(date=date, sync_us=110, fdatasync_us=114.3)
    slow["skipped"] = {"a peer": "not here"}
    for figure in slow["figures"]:
        figure["value"].update(median=77.77)  # a number to be found again
        figure["met"] = None if figure["met"] is None else True
    file = documents.record(slow, checkout)
    assert file.name == f"{date.replace(':', '')}-{found['machine']['file_system']}-sync110us.json"
    assert documents.newest(checkout)["machine"]["sync_us"] is None
    assert documents.newest_stretched(checkout) == slow
    together = {path: path.read_text() for path in documents.wanted(checkout)}
    assert {path: text for path, text in together.items() if path.suffix == ".svg"} == {
        path: text for path, text in alone.items() if path.suffix == ".svg"
    }
    before, section = together[checkout / "docs" / "performance.md"].split("### On a slower disk: each sync lasts 110 µs at least")
    assert before.rstrip() + f"\n\n{documents.END}\nafter\n" == alone[checkout / "docs" / "performance.md"]
    shown = [figure for figure in slow["figures"] if figure["workload"] in SYNCED]
    assert section.count("| 77.77 |") == len(shown) > 20
    assert "each sync STRETCHED to 110 us at least (sync_us)" in section
    assert "Skipped: a peer: not here" in section
    assert "fold" not in section
    readme = together[checkout / "README.md"]
    sentence = f"Of the {sum(figure['met'] is not None for figure in shown)} targets for what waits for a sync, "
    (line,) = [line for line in readme.splitlines() if line.startswith(sentence)]
    assert "is stretched to 110 µs" in line
    assert readme.replace(f"{line}\n\n", "") == alone[checkout / "README.md"]
    file.unlink()
    documents.write(checkout)
    assert {path: path.read_text() for path in documents.wanted(checkout)} == alone


def test_a_document_without_its_marks_is_refused() -> None:
    good = f"a {documents.BEGIN} b {documents.END} c"
    assert documents.replaced(good, "new") == f"a {documents.BEGIN}\n\nnew\n\n{documents.END} c"
    for text in ("", documents.BEGIN, documents.END, good + good, f"{documents.END} {documents.BEGIN}"):
        with pytest.raises(ValueError, match="not one block"):
            documents.replaced(text, "new")


def test_the_report_is_a_pure_function_of_the_results(found: dict[str, Any]) -> None:
    before = copy.deepcopy(found)
    first = [report.markdown(found), documents.readme_block(found), documents.performance_block(found), charts(found)]
    again = json.loads(report.as_json(found))
    assert again == found == before
    assert [report.markdown(again), documents.readme_block(again), documents.performance_block(again), charts(again)] == first


def test_a_skipped_peer_is_missing_from_the_readme_and_said_below(found: dict[str, Any]) -> None:
    results = copy.deepcopy(found)
    results["figures"] = [figure for figure in results["figures"] if figure["name"] != "commit : sqlite3 WAL FULL"]
    results["skipped"]["sqlite3"] = "not here"
    assert "commit, IMMEDIATE, one thread" in documents.readme_block(results), "the words move to the next row of the same thing"
    assert "Skipped: sqlite3: not here" in documents.performance_block(results)


def test_every_headline_is_a_figure_that_is_measured(found: dict[str, Any]) -> None:
    """A workload that renames a figure must not quietly drop it from the README. Sizes differ here: numbers are not compared."""
    missing = [reason for reason in found["skipped"].values() if "pip install" in reason]
    if missing:
        pytest.skip(f"figures of peers that are not installed are missing: {missing}")
    measured = {re.sub(r"\d[\d,]*", "#", figure["name"]) for figure in found["figures"]}
    assert {re.sub(r"\d[\d,]*", "#", line.figure) for line in documents.HEADLINES} <= measured


def test_a_chart_is_well_formed_and_says_everything() -> None:
    bars = [Bar("a <b> & c", 10.0, 8.0, 12.0, OURS, "1 sync"), Bar("wild", 1.0, 0.5, 500.0, "#98a1ab"), Bar("none", 0.0, 0.0, 0.0, OURS)]
    svg = chart("Title", "unit", [Group("group", bars)])
    tree = ElementTree.fromstring(svg)
    words = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert words == ["Title", "unit", "ours", "peers", "group", "a <b> & c", "10.0 · 1 sync", "wild", "1", "none", "0"]
    widths = [float(element.attrib["width"]) for element in tree.iter("{http://www.w3.org/2000/svg}rect")][2:]  # behind the legend
    assert widths[0] > 5 * widths[1] > widths[2] == 1.0
    _, _, width, height = map(float, tree.attrib["viewBox"].split())
    for element in tree.iter():
        assert float(element.get("x", 0)) + float(element.get("width", 0) if element is not tree else 0) <= width
        assert float(element.get("y", 0)) <= height
    assert all(at <= width for at in map(float, re.findall(r"[MH](\d+\.?\d*)", svg))), "a whisker leaves the chart"
    assert "script" not in svg
    assert "href" not in svg


def test_a_round_that_others_disturbed_is_done_again(tmp_path: Path) -> None:
    """And a race that is never calm ends, with what it has."""
    turns: list[int] = []

    def side() -> dict[str, float]:
        turns.append(1)
        return {"rate": 1.0, "children_cpu_s": 0.0}

    bench = Bench(tmp_path, 1, calm=-1.0)  # nobody can take less than nothing
    bench.race("w", {"a": side, "b": side}, [])
    rounds_thrown_away = 4
    assert len(turns) == 2 * (1 + rounds_thrown_away + 1)
    assert f"{rounds_thrown_away} rounds above -1 thrown away" in bench.races[0].load


NEEDS_CC = pytest.mark.skipif(shutil.which("cc") is None, reason="no cc here: the shim that stretches syncs cannot be compiled")
STRETCHED = """
import os, sys, threading, time
from pathlib import Path
from benchmarks.slowdisk import stretched_us
from benchmarks.workers import Crew

fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
direct = os.open(sys.argv[1], os.O_WRONLY | os.O_DSYNC)
for sync in (lambda: os.fdatasync(fd), lambda: os.fsync(fd), lambda: os.pwrite(direct, b"x", 0)):
    other = []
    thread = threading.Thread(target=lambda: (time.sleep(0.01), other.append("ran meanwhile")))
    thread.start()
    start, cpu = time.monotonic(), time.process_time()
    sync()
    seconds, cpu, meanwhile = time.monotonic() - start, time.process_time() - cpu, list(other)
    thread.join()
    assert seconds >= 0.3, f"a sync of {seconds} s"
    assert cpu < 0.1, f"{cpu} s of CPU while it waited"
    assert meanwhile, "the interpreter was locked while it waited"
took = []
for _ in range(5):
    os.posix_fadvise(fd, 0, 1, os.POSIX_FADV_DONTNEED)  # lets the disk begin
    time.sleep(0.3)
    start = time.monotonic()
    os.fdatasync(fd)
    took.append(time.monotonic() - start)
assert 0.15 <= min(took) < 0.3, f"syncs of {took} s behind half of one"
start = time.monotonic()
os.fdatasync(fd)
assert time.monotonic() - start >= 0.3, "a sync that nothing was begun for"
with Crew("bare", Path(sys.argv[1] + ".bare"), 1) as crew:
    _, _, took = crew.work(2)
assert min(took) >= 0.3, f"syncs of {took} s in a process of its own"
try:
    os.fdatasync(999_999)
except OSError as error:
    print(stretched_us(), error.strerror)
"""


@NEEDS_CC
def test_a_stretched_sync_sleeps_and_lets_others_run(tmp_path: Path) -> None:
    """Every kind of it, and those of a process that the first one starts."""
    environ = {**slowdisk.preloaded(slowdisk.built(tmp_path), 300_000), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", STRETCHED, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "300000 Bad file descriptor\n", "")
    assert slowdisk.stretched_us() is None, "of this process, which is not behind it"


@NEEDS_CC
def test_stretched_syncs_meet_every_side(tmp_path: Path) -> None:
    """Peers in C and Rust included; a side that syncs twice a commit waits twice."""
    us = 2000
    done = run("commit", "--scale", "0.001", "--rounds", "1", "--sync-us", str(us), "--json", "-", place=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    found = json.loads(done.stdout)
    assert found["machine"]["sync_us"] == us <= found["machine"]["fdatasync_us"]
    assert "each sync STRETCHED to 2000 us at least (sync_us)" in report.conditions(found)
    waits = {side["name"]: side["metrics"]["p50_ms"]["median"] for race in found["races"] for side in race["sides"]}
    assert {"eventlog IMMEDIATE", "pwrite+fdatasync", "sqlite3 WAL FULL"} <= set(waits)
    for name, ms in waits.items():
        assert ms >= us / 1000 * (2 if name.startswith("lmdb") else 1), name


@pytest.mark.parametrize(
    ("cc", "environ", "said"),
    [
        ("", {}, "--sync-us needs a C compiler, and there is no cc in PATH: install one, such as gcc"),
        ("#!/bin/sh\necho 'x.c:1: error: no such header' >&2\nexit 1\n", {}, "cannot compile slowdisk.c: x.c:1: error: no such header"),
        ("", {slowdisk.VARIABLE: "110"}, "syncs are not stretched to 110 us: the loader did not heed LD_PRELOAD"),
    ],
    ids=["no compiler", "no headers", "no preloading"],
)
def test_syncs_that_cannot_be_stretched_are_refused_in_one_line(cc: str, environ: dict[str, str], said: str, tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("not Linux: refused before a compiler is looked for")
    if cc:
        (tmp_path / "cc").write_text(cc)
        (tmp_path / "cc").chmod(0o755)
    done = run("commit", "--sync-us", "110", place=tmp_path, PATH=str(tmp_path), **environ)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]  # of a temporary directory on a tmpfs
    assert said in line


def test_syncs_are_not_stretched_without_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(slowdisk.Refused, match="needs Linux"):
        slowdisk.built(tmp_path)
