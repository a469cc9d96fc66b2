"""`eventlog snapshots`, and what `fold` and `status` do with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eventlog import Durability, Event, EventLog, snapshotfiles
from eventlog.cli import main
from eventlog.projections import COUNTS, STATUS, View
from eventlog.projections import snapshots as rules
from eventlog.projections.snapshots import keep

EVENTS = 3_000


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log that is long enough, whose every answer is worth keeping, so that no test depends on the clock."""
    monkeypatch.setattr(snapshotfiles, "WRITE_NS", 0)
    monkeypatch.setattr(snapshotfiles, "WRITE_NS_PER_BYTE", 0)
    rules._warned.clear()
    with EventLog.open(tmp_path / "log") as handle:
        for _ in range(EVENTS // 100):
            handle.commit([Event("note.added", {"n": n}, f"s{n % 3}") for n in range(100)], Durability.BATCHED)
    return tmp_path / "log"


def call(*args: str | Path) -> tuple[int, str, str]:
    ran = CliRunner().invoke(main, [*map(os.fspath, args)])
    return ran.exit_code, ran.stdout, ran.stderr


def listed(log: Path) -> list[dict[str, Any]]:
    code, out, _ = call("snapshots", "list", log, "--json")
    assert code == 0
    return [json.loads(line) for line in out.splitlines()]


def test_fold_leaves_one_and_uses_it(log: Path) -> None:
    first = call("fold", log, "--json")
    assert first[0] == 0
    assert [(one["projection"], one["version"], one["seq"], one["usable"]) for one in listed(log)] == [("counts", 1, EVENTS, True)]
    assert call("fold", log, "--json") == first
    assert call("fold", log, "--json", "--no-snapshot") == first


def test_no_snapshot_leaves_none(log: Path) -> None:
    assert call("fold", log, "--no-snapshot")[0] == 0
    assert call("status", log, "--no-snapshot")[0] == 0
    assert not (log / "snapshots").exists()


def test_status_leaves_its_two(log: Path) -> None:
    first = call("status", log, "--json")
    assert [one["projection"] for one in listed(log)] == ["counts", "status"] or [one["projection"] for one in listed(log)] == [
        "status",
        "counts",
    ]
    assert call("status", log, "--json") == first
    with EventLog.open(log) as handle:
        handle.commit(Event("note.added", {}))
    assert json.loads(call("status", log, "--json")[1])["types"] == {"note.added": EVENTS + 1}


def test_a_small_log_is_left_as_it_is(tmp_path: Path, log: Path) -> None:
    with EventLog.open(tmp_path / "small") as handle:
        handle.commit([Event("note.added", {"n": n}) for n in range(999)])
    for command in (["fold"], ["status"]):
        assert call(command[0], tmp_path / "small")[0] == 0
    assert not (tmp_path / "small" / "snapshots").exists()


def test_a_damaged_one_is_a_line_on_standard_error_and_the_same_answer(log: Path) -> None:
    first = call("fold", log)
    file = next((log / "snapshots").iterdir())
    file.write_bytes(file.read_bytes()[:-1])
    assert [(one["projection"], one["usable"]) for one in listed(log)] == [(None, False)]
    ran = subprocess.run([sys.executable, "-m", "eventlog.cli", "fold", str(log)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == first[:2]
    assert ran.stderr.startswith("eventlog: warning: snapshot ")
    assert ran.stderr.count("\n") == 1
    assert "damaged" in ran.stderr
    assert file.name not in [one["file"] for one in listed(log) if not one["usable"]], "it was thrown away"


def test_list_says_why_one_is_of_no_use(tmp_path: Path, log: Path) -> None:
    call("status", log)
    with EventLog.open(tmp_path / "other") as other:
        other.commit(Event("a", {}))
    (log / "snapshots").rename(tmp_path / "other" / "snapshots")
    code, out, _ = call("snapshots", "list", tmp_path / "other")
    assert code == 0
    head, *rows = out.splitlines()
    assert head.split() == ["PROJECTION", "VERSION", "SEQ", "BYTES", "AGE", "USABLE"]
    assert len(rows) == 2
    assert all("no: it belongs to the log" in row for row in rows)
    with EventLog.open(log) as handle:
        old = type(STATUS)("status", 1, STATUS.initial, STATUS.handlers, STATUS.dump, STATUS.load, pack=STATUS.pack)
        assert keep(old, handle.snapshots, *View(handle, old).refresh()) > 0
    assert [one["why_not"] for one in listed(log)] == [f"of version 1, and the fold is at version {STATUS.version}"]


def test_drop(log: Path) -> None:
    call("status", log)
    call("fold", log)
    (log / "snapshots" / "left.tmp").write_bytes(b"x")
    assert call("snapshots", "drop", log, "--projection", "nosuch")[:2] == (0, f"0 snapshots dropped: {log}\n")
    assert call("snapshots", "drop", log, "--projection", COUNTS.name)[:2] == (0, f"1 snapshots dropped: {log}\n")
    assert [one["projection"] for one in listed(log)] == ["status"]
    assert json.loads(call("snapshots", "drop", log, "--json")[1]) == {"dropped": 2}
    assert list((log / "snapshots").iterdir()) == []
    assert listed(log) == []
    assert call("snapshots", "list", log)[:2] == (0, "")


def test_verify_and_dump_do_not_look_at_them(log: Path) -> None:
    before = [call(command, log) for command in ("verify", "dump", "head", "tail")]
    call("status", log)
    for file in (log / "snapshots").iterdir():
        file.write_bytes(os.urandom(100))
    (log / "snapshots" / "x").mkdir()
    assert [call(command, log) for command in ("verify", "dump", "head", "tail")] == before
