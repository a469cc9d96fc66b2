"""Who decides begins at a snapshot too: hooks, guards, recovery. And nobody who waits for an answer waits for one to be written."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from eventlog import Durability, Event, EventLog, crashpoints, snapshotfiles
from eventlog.projections import COUNTS, DELIVERIES, EFFECTS, View, fold
from eventlog.projections.snapshots import keep
from eventlog.recovery import EffectClass, Toolbox, recover
from eventlog.recovery.delivery_words import Caller
from eventlog.recovery.desk import Deliveries

HOOK = """
import sys
from eventlog import EventLog
from eventlog.projections.deliveries import DELIVERIES
from eventlog.recovery.delivery_words import Caller
from eventlog.recovery.desk import Deliveries
log = EventLog.open(sys.argv[1])
desk = Deliveries(log)
answer = desk.pre_tool_use(Caller("web", process=sys.argv[2], prompt="p1"), sys.argv[2])
print(type(answer).__name__, log._transactions._debts[DELIVERIES].seq, flush=True)
desk.keep()
log.close()
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of three thousand events, in this process always worth a snapshot, so that no test depends on the clock."""
    monkeypatch.setattr(snapshotfiles, "WRITE_NS", 0)
    monkeypatch.setattr(snapshotfiles, "WRITE_NS_PER_BYTE", 0)
    with EventLog.open(tmp_path / "log") as handle:
        grow(handle)
    return tmp_path / "log"


def grow(handle: EventLog) -> None:
    for _ in range(30):
        handle.commit([Event("tool.output", {"n": n}) for n in range(100)], Durability.BATCHED)


def kept(log: Path) -> dict[str, int]:
    """Projection -> the seq at which the next fold of it would begin."""
    with EventLog.open(log, read_only=True) as handle:
        found = {one.name: one.resume(handle.snapshots) for one in (COUNTS, DELIVERIES, EFFECTS)}
    return {name: one[1] for name, one in found.items() if one is not None}


def test_a_hook_keeps_what_it_folded_and_the_next_one_begins_there(log: Path) -> None:
    with EventLog.open(log) as handle:
        desk = Deliveries(handle)
        desk.pre_tool_use(Caller("web", process="1", prompt="p0"), "call-0")
        assert desk.state.seq == handle.head
        assert kept(log) == {}, "before its answer is out, a hook writes none"
        desk.keep()
        at = int(handle.head)
    assert kept(log) == {"deliveries": at}
    ran = subprocess.run([sys.executable, "-c", HOOK, str(log), "2"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"PassThrough {at}\n"
    with EventLog.open(log, read_only=True) as handle:
        Deliveries(handle).keep()  # says nothing, does nothing
        assert Deliveries(handle).state == fold(DELIVERIES, handle, snapshots=False)


def test_a_hook_pays_for_no_module_more_than_the_one(log: Path) -> None:
    with EventLog.open(log) as handle:
        assert keep(DELIVERIES, handle.snapshots, *View(handle, DELIVERIES).refresh()) > 0
    code = HOOK.replace("log = EventLog", "before = set(sys.modules)\nlog = EventLog", 1)
    code = code.replace("desk.keep()", "print(sorted(set(sys.modules) - before))\ndesk.keep()")
    ran = subprocess.run([sys.executable, "-c", code, str(log), "2"], capture_output=True, text=True, check=True)
    assert "'eventlog.projections.snapshots'" in ran.stdout
    for heavy in ("pathlib", "tempfile", "warnings", "shutil", "random", "asyncio", "inspect"):
        assert f"'{heavy}'" not in ran.stdout


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_a_guard_keeps_its_fold_when_its_attempt_is_over(log: Path, monkeypatch: pytest.MonkeyPatch, on_a_loop: bool) -> None:
    said: list[str] = []
    monkeypatch.setattr(crashpoints, "armed", said.append)
    with EventLog.open(log) as handle:
        tools = Toolbox(handle)
        push = tools.guard(lambda n: n, EffectClass.IDEMPOTENT, name="push")

        async def acall() -> None:
            async with tools.attempt("b", 1) as attempt:
                assert await attempt.acall(push, 1) == 1
                said.append("called")

        if on_a_loop:
            asyncio.run(acall())
        else:
            with tools.attempt("b", 1) as attempt:
                assert attempt.call(push, 1) == 1
                said.append("called")
    points = [one for one in said if one == "called" or one.startswith("snapshot")]
    assert points[0] == "called"
    assert "snapshot-renamed" in points
    assert kept(log) == {"effects": 3000}


@pytest.mark.parametrize("with_tools", [False, True])
def test_recovery_begins_at_one_and_keeps_one(log: Path, with_tools: bool) -> None:
    with EventLog.open(log) as handle:
        assert recover(handle, Toolbox(handle) if with_tools else None).intents == []
        assert kept(log) == {"effects": 3000}
        grow(handle)
        view = View(handle, EFFECTS)
        assert view.refresh(3000)[1] == 3000
        assert recover(handle).intents == []
    assert kept(log) == {"effects": 6000}


def test_transact_with_any_foldable_still_works(log: Path) -> None:
    class Plain:
        initial = 0
        handlers = {"tool.output": lambda state, event: state + 1}  # noqa: RUF012

    plain = Plain()
    with EventLog.open(log) as handle:
        assert handle.transact(plain, lambda state: Event("seen", {"n": state}))
        assert handle.keep(plain) is False
        assert next(iter(handle.read(3000))).data == {"n": 3000}
