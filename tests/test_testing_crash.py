"""Crash points: armed only in a child made for it, by a real SIGKILL, at exactly the place that was named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eventlog import crashpoints
from eventlog.testing import record_points, run_child
from eventlog.testing.child import arm


def three_steps(path: str) -> None:
    """The program under test: it says on disk how far it got."""
    for step in range(3):
        crashpoints.reach("before-step")
        with Path(path).open("a") as file:
            file.write(f"{step}\n")
        crashpoints.reach("after-step")
    print("done")


HERE = f"{__file__}:three_steps"


@pytest.mark.parametrize(
    ("point", "nth", "written"),
    [("before-step", 1, ""), ("after-step", 1, "0\n"), ("before-step", 3, "0\n1\n"), ("after-step", 3, "0\n1\n2\n")],
)
def test_a_child_dies_exactly_at_the_named_place(tmp_path: Path, point: str, nth: int, written: str) -> None:
    path = tmp_path / "steps"
    result = run_child(HERE, [str(path)], crash_at=point, nth=nth)
    assert result.killed
    assert result.returncode == -9
    assert result.points[-1] == point
    assert (path.read_text() if path.exists() else "") == written


def test_unarmed_and_never_reached_run_to_the_end(tmp_path: Path) -> None:
    for options in ({}, {"crash_at": "no-such-point"}, {"crash_at": "after-step", "nth": 4}):
        result = run_child(HERE, [str(tmp_path / "steps")], **options)
        assert not result.killed
        assert result.returncode == 0, result.stderr
        assert result.stdout == "done\n"


def test_recorded_points_are_the_places_of_a_sweep(tmp_path: Path) -> None:
    places = record_points(HERE, [str(tmp_path / "steps")])
    assert places == [(point, nth) for nth in (1, 2, 3) for point in ("before-step", "after-step")]


def test_scripts_modules_and_code_are_run_as_python_runs_them(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("WORD = 'found'\n")
    code = (
        "import sys, helper\nfrom eventlog import crashpoints\n"
        "print(__name__, helper.WORD, sys.argv[1:], sys.stdin.read(), flush=True)\n"
        "crashpoints.reach('here')\nprint('late')\n"
    )
    (tmp_path / "script.py").write_text(code)
    for target in ([str(tmp_path / "script.py")], ["-m", "script"], ["-c", code]):
        result = run_child(target, ["a", 1], crash_at="here", cwd=tmp_path, stdin="in")
        assert result.killed, result.stderr
        assert result.stdout == "__main__ found ['a', '1'] in\n"


def test_a_failing_child_is_not_called_killed(tmp_path: Path) -> None:
    result = run_child(["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], crash_at="here")
    assert result.returncode == -9
    assert not result.killed
    with pytest.raises(RuntimeError, match="ended with 1"):
        record_points(["-c", "raise SystemExit(1)"])
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(["-c", "import time; time.sleep(60)"], timeout=0.5)
    with pytest.raises(ValueError, match="counts from 1"):
        run_child(HERE, [str(tmp_path)], nth=0)
    with pytest.raises(ValueError, match="module:function"):
        run_child("no_colon")


def test_nothing_can_arm_a_process_that_is_not_such_a_child() -> None:
    with pytest.raises(RuntimeError, match="only in a child"):
        arm(report_fd=None, crash_at="x", nth=1)
    assert crashpoints.armed is None
    # Not even a process that has the whole kit imported and every variable set.
    code = (
        "import eventlog.testing.child as c, eventlog.crashpoints as p\n"
        "try:\n    c.arm(report_fd=None, crash_at='x', nth=1)\nexcept RuntimeError: pass\n"
        "p.reach('x'); print(p.armed)"
    )
    variables = {f"EVENTLOG_{name}": "x" for name in ("CRASH_AT", "CRASHPOINT", "CRASH", "TESTING")}
    ran = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "None\n")
    for source in (Path(crashpoints.__file__), *(Path(crashpoints.__file__).parent / "testing").glob("*.py")):
        assert "EVENTLOG_" not in source.read_text(), source


def test_the_kit_costs_production_nothing() -> None:
    code = "import sys, eventlog; print([name for name in sys.modules if name.startswith('eventlog.testing')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
