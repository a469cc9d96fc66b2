"""Fail the 1st, 2nd, 3rd … call of every kind, with every errno, until a run passes (P5, P6, P17, P18)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from eventlog.testing import FaultFileSystem
from eventlog.testing.nthcall import DRILLS, Run, drill


@pytest.mark.parametrize("name", DRILLS)
def test_fail_the_nth_call_until_it_passes(tmp_path: Path, name: str) -> None:
    struck = drill(name, tmp_path / "once", times=(1,))
    struck += drill(name, tmp_path / "for-ever", times=(None,), errnos=(errno.EIO, errno.ENOSPC))
    print(f"{name}: {struck} faults, 0 acknowledged events lost")
    assert struck > 100


def test_the_judge_would_notice_what_is_lost_and_what_is_there_against_its_word(tmp_path: Path) -> None:
    run = Run(FaultFileSystem(tmp_path / "disk"))
    log = run.open()
    assert all(run.commit() for _ in range(3))
    log.close()
    run.acked.add(3)
    with pytest.raises(AssertionError, match=r"acknowledged and lost: \[3\]"):
        run.check(run.fs, "opened again")
    run.acked.remove(3)
    run.never.add(2)
    with pytest.raises(AssertionError, match=r"NotWritten and there: \[2\]"):
        run.check(run.fs, "opened again")
