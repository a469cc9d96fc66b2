"""Seed 000, integration test: a real child, a real SIGKILL in both windows, an outside witness, counted syncs, no way past the guard."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog import EventLog
from eventlog.fs import FileSystem
from eventlog.projections import EFFECTS, Intent, IntentState, Verdict, fold
from eventlog.recovery import EffectClass, Recovery, Toolbox, ToolContext, UnguardedEffect, recover
from eventlog.recovery import sealed as sealed_module
from eventlog.testing import Ledger, run_child, strace

AGENT = Path(__file__).parent / "effects_agent.py"
ROOT = Path(__file__).parent.parent
FLOORS = ("eventlog", "projections", "recovery", "cli")


def crash(tmp_path: Path, point: str) -> tuple[Intent, Recovery, list[Any]]:
    """Kill the agent at `point`, reopen, and say what the log, recovery and the witness say."""
    log_path, witness = tmp_path / "log", tmp_path / "witness"
    child = run_child(f"{AGENT}:one_effect", [str(log_path), str(witness)], crash_at=point)
    assert child.killed, child.stderr
    assert child.returncode == -9
    with EventLog.open(log_path) as log:
        (intent,) = fold(EFFECTS, log).intents.values()
        report = recover(log)
        recorded = [event.data["as"] for event in log.read(types={"effect.classified"})]
        assert recorded == [found.verdict.value for found in report.intents], "the classification itself has to be an event"
        assert recover(log).recorded == 0, "a second recovery has nothing new to record"
        assert [event.data["as"] for event in log.read(types={"effect.classified"})] == recorded
    return intent, report, Ledger(witness).entries()


def test_window_a_was_never_sent(tmp_path: Path) -> None:
    """Row 7 of research/effects.md as well: what was accepted is on disk before anything else happens."""
    intent, report, witness = crash(tmp_path, "after-pending")
    assert intent.state is IntentState.PENDING
    assert [found.verdict for found in report.intents] == ["never sent"]
    assert report.attempts == {"order-17@1": Verdict.NEVER_SENT}
    assert witness == [], "the witness outside the log has to agree that nothing happened"


@pytest.mark.parametrize(("point", "happened"), [("after-dispatched", 0), ("after-effect", 1)])
def test_window_b_may_have_been_sent(tmp_path: Path, point: str, happened: int) -> None:
    intent, report, witness = crash(tmp_path, point)
    assert intent.state is IntentState.DISPATCHED
    assert [found.verdict for found in report.intents] == ["may have been sent"]
    assert report.attempts == {"order-17@1": Verdict.MAY_HAVE_BEEN_SENT}
    assert len(witness) == happened, "both worlds leave the same log: that is why it says `may`"


def test_the_two_windows_differ(tmp_path: Path) -> None:
    _, first, _ = crash(tmp_path / "a", "after-pending")
    _, second, _ = crash(tmp_path / "b", "after-dispatched")
    assert first.intents[0].verdict != second.intents[0].verdict


def test_outside_the_windows_nothing_is_open(tmp_path: Path) -> None:
    for point, events in (("before-pending", 0), ("after-committed", 4)):
        log_path, witness = tmp_path / point, tmp_path / f"{point}.witness"
        assert run_child(f"{AGENT}:one_effect", [str(log_path), str(witness)], crash_at=point).killed
        with EventLog.open(log_path) as log:
            assert int(log.head) == events
            assert recover(log).intents == []
        assert len(Ledger(witness).entries()) == (events > 0)


class CountingFileSystem(FileSystem):
    """The real file system, counting what makes things durable."""

    def __init__(self) -> None:
        self.fdatasyncs = 0

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self.fdatasyncs += 1
        os.fdatasync(fd)


def test_one_guarded_effect_is_three_commits_and_three_syncs(tmp_path: Path) -> None:
    fs = CountingFileSystem()
    with EventLog.open(tmp_path / "log", fs=fs) as log:
        tools = Toolbox(log)

        @tools.tool()
        def nothing(ctx: ToolContext) -> None:
            return None

        with tools.attempt("order-17", 1) as attempt:
            attempt.call(nothing)  # the first may grow the segment
            head, syncs = int(log.head), fs.fdatasyncs
            attempt.call(nothing)
            assert fs.fdatasyncs - syncs == 3
            commits = [[row[0] for row in rows] for _, _, rows in log.commits(head)]
        assert commits == [["effect.pending"], ["effect.dispatched"], ["effect.outcome", "effect.committed"]]


def test_three_syncs_as_the_kernel_counts_them(tmp_path: Path) -> None:
    reason = strace.why_not()
    if reason is not None:
        pytest.skip(reason)
    trace = tmp_path / "trace"
    subprocess.run(
        ["strace", "-f", "-o", str(trace), "-e", "trace=fdatasync,fsync,openat", sys.executable, str(AGENT), str(tmp_path / "log")],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    text = trace.read_text()
    between = text[text.index('/begin"') : text.index('/end"')]
    assert len(re.findall(r"\bfdatasync\(", between)) == 3
    assert not re.findall(r"\bfsync\(", between)


# -- the bypass audit -----------------------------------------------------------------------------------------------------------


WAYS = ("__wrapped__", "__func__", "__self__", "__closure__", "__defaults__", "__kwdefaults__", "__code__", "__dict__", "__call__")
WAYS += ("__get__", "func", "args", "keywords", "fget", "__kwdefaults__")  # partial, property
WAYS += ("cell_contents", "gi_frame", "cr_frame", "f_locals", "__objclass__", "__module__", "__doc__", "__signature__")
LEAVES = (str, bytes, int, float, bool, type(None), types.CodeType, types.MethodWrapperType, types.WrapperDescriptorType)


def reachable(*roots: Any) -> Iterator[tuple[str, Any]]:
    """Everything that attributes, containers, closures, generators, defaults and bound methods lead to; the collector is not asked.

    What is outside the library (a module that is not ours, and classes and functions of such) is not entered: it leads to this test.
    """
    seen: dict[int, Any] = {}
    queue: list[tuple[str, Any]] = [(f"root{number}", root) for number, root in enumerate(roots)]
    while queue:
        path, value = queue.pop()
        if id(value) in seen:
            continue
        assert len(seen) < 100_000, f"the walk does not end: {path[-300:]}"
        seen[id(value)] = value
        yield path, value
        if isinstance(value, LEAVES):
            continue
        module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if isinstance(value, types.ModuleType | type | types.BuiltinFunctionType) and not str(module).startswith(("eventlog", __name__)):
            continue
        if isinstance(value, dict | types.MappingProxyType):
            queue += [(f"{path}[{key!r:.40}]", item) for key, item in list(value.items())]
            queue += [(f"{path} key", key) for key in list(value)]
        elif isinstance(value, list | tuple | set | frozenset):
            queue += [(f"{path}[]", item) for item in list(value)]
        ours = str(getattr(type(value), "__module__", "")).startswith(("eventlog", __name__)) or isinstance(value, type | types.ModuleType)
        for name in {*WAYS, *(dir(value) if ours else vars(value) if hasattr(value, "__dict__") else ())}:
            try:
                item = getattr(value, name)
            except Exception:  # noqa: BLE001 - an attribute that cannot be read leads nowhere
                continue
            queue.append((f"{path}.{name}", item))


def test_no_object_leads_to_a_tool(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        tools = Toolbox(log)
        called: list[str] = []

        def secret(ctx: ToolContext) -> str:
            called.append("secret")
            return "done"

        handle = tools.tool(EffectClass.READ_ONLY)(secret)
        with tools.attempt("order-17", 1) as attempt:
            attempt.call(handle)
            assert called == ["secret"], "the guard itself has to reach it"
            found = list(reachable(handle, tools, attempt, sealed_module, eventlog.recovery))
        assert len(found) > 500, f"the walk saw only {len(found)} objects"
        assert any(value is handle for _, value in found)
        ways = [path for path, value in found if value is secret or value is secret.__code__]
        assert not ways, f"the raw function is reachable: {ways[0]}"


def hidden(secret: Any) -> dict[str, Any]:
    """Ways to keep a function that an audit has to see through."""

    def generator() -> Iterator[None]:
        kept = [secret]
        yield
        del kept

    class Holder:
        kept = types.MappingProxyType({"x": [secret]})
        method = secret
        prop = property(secret)

    running = generator()
    next(running)
    return {
        "a list in a dict": {"a": [secret]},
        "a closure": lambda: secret,
        "a default": lambda kept=secret: kept,
        "a partial": functools.partial(secret, 1),
        "a bound method": Holder().method,
        "a proxy in a class": Holder(),
        "a wrapper": functools.wraps(secret)(lambda: None),
        "a running generator": running,
    }


@pytest.mark.parametrize("way", sorted(hidden(len)))
def test_the_walk_would_see_a_leak(way: str) -> None:
    def secret(*args: object) -> None:
        """Stands for a tool."""

    assert any(value is secret for _, value in reachable({"a": hidden(secret)[way]})), way


def test_calling_past_the_guard_is_refused(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        tools = Toolbox(log)
        called: list[int] = []

        @tools.tool()
        def act(ctx: ToolContext) -> None:
            called.append(1)

        for way in (lambda: act(None), lambda: act(), lambda: next(act._seal), lambda: next(act._seal)):
            with pytest.raises(UnguardedEffect):
                way()
        with pytest.raises(UnguardedEffect):
            __import__("copy").copy(act)
        with pytest.raises(AttributeError):
            act.spec = None  # type: ignore[assignment]
        with pytest.raises(UnguardedEffect), tools.attempt("b", 1) as attempt:
            attempt.call(lambda ctx: called.append(2))  # type: ignore[arg-type]
        assert called == []
        assert int(log.head) == 0, "a refused call records nothing"


def test_a_tool_cannot_use_its_permit_twice(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        tools = Toolbox(log)
        called: list[str] = []

        @tools.tool(EffectClass.READ_ONLY)
        def other(ctx: ToolContext) -> None:
            called.append("other")

        @tools.tool(EffectClass.READ_ONLY)
        def outer(ctx: ToolContext) -> list[str]:
            refused = []
            for handle in (other, outer):
                try:
                    next(handle._seal)
                except UnguardedEffect as error:
                    refused.append(type(error).__name__)
            called.append("outer")
            return refused

        with tools.attempt("b", 1) as attempt:
            assert attempt.call(outer) == ["UnguardedEffect", "UnguardedEffect"]
        assert called == ["outer"]


def test_only_the_guard_opens_seals() -> None:
    """The source tree: permits are made in one place, and only the two drivers run what is sealed."""
    seen: dict[str, int] = {}
    makers: set[str] = set()
    runners: set[str] = set()
    writers: set[str] = set()
    for floor in FLOORS:  # named one by one: rglob does not follow the links inside eventlog/
        for path in (ROOT / floor).rglob("*.py"):
            text = path.read_text()
            seen[floor] = seen.get(floor, 0) + 1
            name = path.relative_to(ROOT).as_posix()
            if re.search(r"\bPermit\(", text) and "class Permit" not in text:
                makers.add(name)
            if re.search(r"\brun_sealed\(", text) and "def run_sealed" not in text:
                runners.add(name)
            if re.search(r"\bev\.dispatched\(", text):
                writers.add(name)
    assert set(seen) == set(FLOORS)
    assert all(count >= 3 for count in seen.values()), seen
    assert sum(seen.values()) >= 40, seen
    assert makers == {"recovery/drive.py"}
    assert runners == {"recovery/drive.py"}
    assert writers == {"recovery/guard.py"}
