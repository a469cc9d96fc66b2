"""The enumerator finds every planted mistake in a toy log, in this process and in a real one, and none in the right
one."""

from __future__ import annotations

import errno
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from eventlog.testing import (
    CrashState,
    FaultFileSystem,
    Ledger,
    TrackedFileSystem,
    check,
    crash_again,
    crash_states,
    recording,
    run_child,
    strace,
)

_TOY = Path(__file__).parent / "faults" / "toylog.py"
_spec = importlib.util.spec_from_file_location("toylog", _TOY)
assert _spec is not None
assert _spec.loader is not None
toylog = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(toylog)


def checker(bug: str = "") -> Callable[[Path, Sequence[object]], None]:
    def looks(path: Path, acks: Sequence[object]) -> None:
        log = toylog.ToyLog(path / "log", bug=bug)
        found = list(log.records)
        assert found == [toylog.payload(n) for n in range(len(found))], "not a prefix"
        assert len(found) >= max((int(str(a)) for a in acks), default=0), f"{len(found)} events, promised {acks[-1:]}"
        log.append(toylog.payload(len(found)))
        log.close()
        again = toylog.ToyLog(path / "log", bug=bug)
        again.close()
        assert len(again.records) == len(found) + 1, "an append after recovery is lost at the next open"

    return looks


def run_toy(fs: TrackedFileSystem, bug: str, count: int = 4) -> None:
    log = toylog.ToyLog(fs.root / "log", fs, bug)
    for n in range(len(log.records), count):
        fs.ack(log.append(toylog.payload(n)))
    log.close()


@pytest.mark.parametrize("seed", range(3))
def test_the_right_log_breaks_no_promise(tmp_path: Path, seed: int) -> None:
    fs = TrackedFileSystem(tmp_path / "disk")
    run_toy(fs, "", 10)
    report = check(crash_states(fs, seed=seed), checker(), tmp_path / "work")
    assert report.states > 60
    assert report.acks == 10
    print(f"{report.states} states, seed {seed}")


@pytest.mark.parametrize("bug", ["nodirsync", "noparentsync", "nosync", "notrunc", "nocrc", "zero"])
def test_each_planted_mistake_is_found(tmp_path: Path, bug: str) -> None:
    fs = TrackedFileSystem(tmp_path / "disk")
    run_toy(fs, bug)
    with pytest.raises(AssertionError, match="seed 1, after operation"):
        check(crash_states(fs, seed=1), checker(bug), tmp_path / "work")


@pytest.mark.parametrize(("bug", "found"), [("", False), ("noreopensync", True)])
def test_serving_what_a_dead_process_left_unsynced_is_found(tmp_path: Path, bug: str, found: bool) -> None:
    fs = TrackedFileSystem(tmp_path / "disk")
    log = toylog.ToyLog(fs.root / "log", fs, bug)
    log.append(toylog.payload(0), sync=False)  # and here it is killed: its bytes stay in the page cache
    after = toylog.ToyLog(fs.root / "log", fs, bug)
    fs.ack(len(after.records))  # somebody was told of the event
    after.close()
    log.close()
    run = crash_states(fs, seed=3)
    if found:
        with pytest.raises(AssertionError, match="promised"):
            check(run, checker(bug), tmp_path / "work")
    else:
        check(run, checker(bug), tmp_path / "work")


def test_double_crash(tmp_path: Path) -> None:
    fs = TrackedFileSystem(tmp_path / "disk")
    run_toy(fs, "", 3)
    single = check(crash_states(fs, seed=5), checker(), tmp_path / "work")
    double = check(
        crash_states(fs, seed=5),
        checker(),
        tmp_path / "work",
        recover=lambda again: run_toy(again, "", 4),
    )
    assert double.states > 10 * single.states
    assert double.acks == 3 + 1
    # A recovery that never finishes cutting leaves states that the single crash does not see.
    torn = CrashState({"log": None, "log/log": b"torn"}, (), "by hand")
    cut = {len(s.tree.get("log/log") or b"") for s in crash_again(torn, lambda f: run_toy(f, "", 1), tmp_path, seed=1)}
    assert {0, 4} < cut


def test_a_recording_without_its_syncs_must_fail(tmp_path: Path) -> None:
    fs = TrackedFileSystem(tmp_path / "disk")
    run_toy(fs, "")
    for kinds in ({"files": True}, {"directories": True}):
        run = recording(fs).without_syncs(**kinds)
        with pytest.raises(AssertionError, match="promised"):
            check(crash_states(run, seed=1), checker(), tmp_path / "work")


@pytest.mark.parametrize(("bug", "lost"), [("", False), ("retry", True)])
def test_a_sync_that_is_tried_again_loses_what_it_acknowledged(tmp_path: Path, bug: str, lost: bool) -> None:
    fs = FaultFileSystem(tmp_path / "disk")
    log = toylog.ToyLog(fs.root / "log", fs, bug)
    fs.ack(log.append(toylog.payload(0)))
    fs.fail("fdatasync", errno=errno.EIO)
    try:
        fs.ack(log.append(toylog.payload(1)))
    except OSError:
        assert not lost
    log.close()
    run = crash_states(fs, seed=1)
    if lost:
        with pytest.raises(AssertionError, match="promised"):
            check(run, checker(), tmp_path / "work")
    else:
        check(run, checker(), tmp_path / "work")


@pytest.mark.parametrize("bug", ["", "nodirsync", "noparentsync", "nosync", "notrunc", "nocrc", "zero"])
def test_a_real_process_under_strace(tmp_path: Path, bug: str) -> None:
    if (why := strace.why_not()) is not None:
        pytest.skip(why)
    root = tmp_path / "disk"
    root.mkdir()
    run, done = strace.record([sys.executable, str(_TOY), str(root / "log"), bug, "10"], root)
    assert done.stdout == "".join(f"ACK {n}\n" for n in range(1, 11))
    if bug:
        with pytest.raises(AssertionError, match="promise"):
            check(crash_states(run, seed=1), checker(bug), tmp_path / "work")
    else:
        assert check(crash_states(run, seed=1), checker(), tmp_path / "work").states > 60


def test_strace_injects_errors_and_kills(tmp_path: Path) -> None:
    if (why := strace.why_not()) is not None:
        pytest.skip(why)
    command = [sys.executable, str(_TOY), str(tmp_path / "log"), "", "3"]
    ran, struck = strace.inject(command, "fdatasync", "error=EIO", 3)
    assert struck
    assert ran.stdout == "ACK 1\n"
    assert "Input/output error" in ran.stderr
    ran, struck = strace.inject(command, "pwrite64", "signal=KILL", 1, on=tmp_path / "log" / "log")
    assert struck
    assert ran.returncode == -9
    ran, struck = strace.inject(command, "fdatasync", "error=EIO", 50)
    assert not struck
    assert ran.returncode == 0


def killed_between(path: str) -> None:
    ledger = Ledger(path)
    ledger.happen("push", {"commit": "abc"})
    from eventlog import crashpoints

    crashpoints.reach("after-push")
    ledger.happen("never")


def test_the_ledger_survives_a_kill_and_knows_keys(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    assert run_child(f"{__file__}:killed_between", [str(path)], crash_at="after-push").killed
    assert [entry.effect for entry in Ledger(path).entries()] == ["push"]
    assert Ledger(path).find(effect="push")[0].data == {"commit": "abc"}
    with path.open("ab") as file:
        file.write(b'["half')
    keyed = Ledger(path, dedupe=True, answers=False)
    assert [keyed.happen("charge", 10, key="k") for _ in range(3)] == [True, False, False]
    assert [(entry.effect, entry.key) for entry in keyed.entries()] == [("push", None), ("charge", "k")]
    assert len(keyed) == 2
    with pytest.raises(PermissionError, match="cannot be asked"):
        keyed.find(key="k")
