"""The crash test for users' runtimes passes a right guard, and catches five wrong ones: else it would prove nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventlog.recovery import EffectError
from eventlog.recovery.crashtest import CrashReport, CrashRow, crashtest
from eventlog.testing import strace

PROGRAM = Path(__file__).parent.parent / "examples" / "broken_guards.py"


def judge(kind: str, each: list[CrashRow] | None = None, points: tuple[str, ...] | None = None) -> CrashReport:
    return crashtest(
        ["python", str(PROGRAM), kind, "{dir}"],
        effects_file="{dir}/effects",
        count_syncs=kind in ("right", "no-fsync", "batched-intents"),
        points=points,
        each=each.append if each is not None else None,
    )


def test_a_right_guard_passes() -> None:
    seen: list[CrashRow] = []
    report = judge("right", seen)
    assert report.all_problems == []
    assert (report.ok, report.effects, len(report.rows)) == (True, 2, 12)
    assert seen == report.rows
    rows = {(row.point, row.nth): row for row in report.rows}
    assert rows["after-pending", 1].states == {"b@1:1": "never sent"}
    assert rows["in-tool", 2].states == {"b@1:1": "committed", "b@1:2": "may have been sent"}
    assert (rows["in-tool", 2].effects_after, rows["in-tool", 2].indeterminate, rows["in-tool", 2].duplicates) == (2, 1, 0)
    assert (rows["after-dispatched", 1].lost, rows["after-dispatched", 1].indeterminate) == (1, 1)


@pytest.mark.parametrize(
    ("kind", "point", "caught"),
    [
        ("two-records", "in-tool", "the log knows of 0 that may have been sent"),
        ("outcome-before-committed", "after-outcome", "an outcome without effect.committed"),
        ("retry-of-unknown", "in-tool", "was sent 2 times"),
    ],
)
def test_wrong_guards_are_caught_by_a_kill(kind: str, point: str, caught: str) -> None:
    report = judge(kind, points=(point,))
    assert not report.ok
    assert any(caught in problem for problem in report.all_problems), report.all_problems


@pytest.mark.parametrize(("kind", "syncs"), [("no-fsync", 0.5), ("batched-intents", 2)])
def test_guards_that_do_not_sync_are_caught_by_counting(kind: str, syncs: float) -> None:
    reason = strace.why_not()
    if reason is not None:
        pytest.skip(reason)
    report = judge(kind, points=())
    assert any("syncs for 2 effects" in problem for problem in report.problems), report.all_problems
    assert report.syncs_each == syncs


def test_what_cannot_be_tested_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EffectError, match="dir"):
        crashtest(["python", "x.py"])
    empty = tmp_path / "empty.py"
    empty.write_text("")
    with pytest.raises(EffectError, match="no crash point"):
        crashtest(["python", str(empty), "{dir}"])
    empty.write_text("raise SystemExit('out of order')")
    with pytest.raises(EffectError, match="out of order"):
        crashtest([str(empty), "{dir}"])
