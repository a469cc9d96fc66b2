"""A fold that processes share gives what one process gives."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from eventlog import Durability, Event, EventLog, SegmentInfo
from eventlog.errors import EventLogError
from eventlog.projections import COUNTS, Projection, fold
from eventlog.projections.parallel import fold_in_parallel, parts

COUNTS_HOME = "eventlog.projections.counts:COUNTS"


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    handle = EventLog.open(tmp_path / "log", segment_bytes_max=8192)
    for number in range(400):
        handle.commit([Event(f"type.n{(number * k) % 17}", {"n": number}, f"s{number // 3}") for k in (1, 2)], Durability.BATCHED)
    return handle


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_shared_or_not_the_state_is_the_same(log: EventLog, workers: int) -> None:
    with log:
        for upto in (None, 0, 1, 399, 800, 10_000):
            alone = fold(COUNTS, log, upto, snapshots=False)
            shared = fold_in_parallel(COUNTS_HOME, log, upto, workers=workers, least=1)
            assert shared == alone
            assert [list(names) for names in shared] == [list(names) for names in alone]  # the order of first appearance too


def test_a_snapshot_is_where_it_begins(log: EventLog) -> None:
    with log:
        fold_in_parallel(COUNTS_HOME, log, 500, workers=3, least=1)
        assert [entry.seq for entry in log.snapshots.find("counts", 1)] == [500]
        assert fold_in_parallel(COUNTS_HOME, log, workers=3, least=1) == fold(COUNTS, log, snapshots=False)


def test_parts_cover_everything_once_in_order_and_at_segments() -> None:
    segments = [SegmentInfo(number, f"{number}", 100, number < 901) for number in range(1, 1000, 100)]
    for workers in range(1, 12):
        for after in (0, 50, 100, 150, 899, 900, 950):
            for last in (after, 951, 1000):
                cut = parts(segments, after, last, workers, 1)
                assert 1 <= len(cut) <= workers
                assert (cut[0][0], cut[-1][1]) == (after, last)
                assert all(earlier[1] == later[0] for earlier, later in itertools.pairwise(cut))
                assert all((begin % 100 == 0) for begin, _ in cut[1:])
    assert len(parts(segments, 0, 1000, 4, 1)) == 4
    assert parts(segments, 0, 1000, 4, 600) == [(0, 1000)]


def test_what_cannot_be_merged_is_refused_and_a_child_that_fails_is_told(log: EventLog, tmp_path: Path) -> None:
    with log:
        with pytest.raises(ValueError, match="has no merge"):
            fold_in_parallel("eventlog.projections.effects:EFFECTS", log)
        with pytest.raises(TypeError, match="not a Projection"):
            fold_in_parallel("eventlog.projections:fold", log)


MODULE = """
import os
from eventlog.projections import Projection
def one(state, event):
    if event.seq == 5 and os.getpid() != int(os.environ["PARENT"]):
        raise RuntimeError("only here")
    return state + 1
FRAGILE = Projection("fragile", 1, 0, {"*": one}, merge=lambda a, b: a + b)
"""
CODE = """
import os, sys
os.environ["PARENT"] = str(os.getpid())
from eventlog import EventLog
from eventlog.projections.parallel import fold_in_parallel
with EventLog.open(sys.argv[1], read_only=True) as log:
    print(fold_in_parallel("fragile:FRAGILE", log, workers=2, least=1))
"""


def test_a_handler_that_raises_in_a_child_is_an_error_of_the_fold(log: EventLog, tmp_path: Path) -> None:
    log.close()
    (tmp_path / "fragile.py").write_text(MODULE)
    done = subprocess.run([sys.executable, "-c", CODE, str(log.path)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert EventLogError.__name__ in done.stderr
    assert "only here" in done.stderr
    assert done.stdout == ""


def test_the_command_shares_a_fold_of_a_big_log(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from eventlog.cli.fold import fold as command
    from eventlog.projections import parallel

    log.close()
    whole = CliRunner().invoke(command, [str(log.path), "--json", "--workers", "1"])
    monkeypatch.setattr(parallel, "PART_BYTES_LEAST", 1)
    shared = CliRunner().invoke(command, [str(log.path), "--json", "--workers", "3"])
    assert orjson.loads(whole.output) == orjson.loads(shared.output)
    assert orjson.loads(whole.output)["state"]["events"] == 800


def test_merge_is_no_part_of_what_must_be_given() -> None:
    assert Projection("plain", 1, 0, {"*": lambda state, event: state}).merge is None
