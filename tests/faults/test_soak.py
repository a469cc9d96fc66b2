"""The long run, short: one storm, one round of power cuts, one of failing calls, with a new seed every time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from eventlog.testing.soak import soak
from eventlog.testing.storm import storm


def test_the_soak_runs_a_round_of_each_kind_and_prints_its_table() -> None:
    command = [sys.executable, "-m", "eventlog.testing.soak", "--minutes", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"seed \d+\n", done.stdout)
    for row in (r"power cut +[\d,]+ +0", r"commits acknowledged under them\) +[\d,]+ +0"):
        assert re.search(row, done.stdout), row


def test_a_broken_promise_ends_the_soak_with_the_seed() -> None:
    def broken(base: Path, seed: int, tried: object) -> None:
        raise AssertionError("acknowledged and lost: 7")

    said: list[str] = []
    assert soak(0, 5, said.append, [broken]) == 1
    assert re.search(r"BROKEN PROMISE in round 1 \(broken, seed \d+\) of seed 5: acknowledged and lost: 7", said[-1])


def test_a_storm_notices_what_is_missing(tmp_path: Path) -> None:
    """A witness who was promised one commit more than there is must be believed."""
    result = storm(tmp_path, processes=2, threads=2, commits=20, kills=1, followers=1, seed=3)
    assert result.events >= result.acknowledged > 0
    from eventlog import EventLog
    from eventlog.testing.storm import check_order

    name, numbers = next(iter(result.acked.items()))
    with EventLog.open(tmp_path / "log") as log:
        assert check_order(log, result.acked) == result.events
        with pytest.raises(AssertionError, match="promised"):
            check_order(log, {name: [*numbers, 10_000]})
