"""Deliveries with real hook processes on one log: a SIGKILL at every crash point that a delivery passes, and eight siblings at once."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eventlog import EventLog
from eventlog.projections import DELIVERIES, SyncState, fold
from eventlog.projections import delivery_events as ev
from eventlog.projections.delivery_words import SyncIntent
from eventlog.recovery import Deliveries
from eventlog.recovery.delivery_words import Done, launcher_name
from eventlog.recovery.harness import find_payload, frame_startup
from eventlog.testing import ChildResult, run_child

HOOK = str(Path(__file__).with_name("delivery_hook.py"))
EXIT_2 = "PreToolUse hook error: No stderr output"


def hook(log: Path, *args: str, crash_at: str | None = None, nth: int = 1) -> ChildResult:
    return run_child([HOOK, str(log), *args], crash_at=crash_at, nth=nth)


def text_of(result: ChildResult) -> str:
    """What the harness puts into the result of the call: under `|| exit 2` a hook that died denies, with whatever it had printed before."""
    try:
        answer = json.loads(result.stdout)
    except ValueError:
        return EXIT_2
    return "it ran" if "allow" in answer else f"PreToolUse hook error: {answer['deny']}"


def intent(log: Path) -> SyncIntent:
    with EventLog.open(log, read_only=True) as handle:
        return fold(DELIVERIES, handle).intents["web#1"]


class Agent:
    """A harness process: turns of one call, and an independent note of what its model has read."""

    def __init__(self, log: Path, process: str) -> None:
        self.log, self.process = log, process
        self.request: list[str] = []
        self.read: dict[str, str] = {}
        self.calls = 0

    def turn(self, *, crash_at: str | None = None, nth: int = 1, batch_crash: tuple[str, int] | None = None) -> str:
        for text in self.request:
            self.read.update(find_payload(text))
        self.request = []
        self.calls += 1
        call = f"{self.process}-{self.calls}"
        text = text_of(hook(self.log, "pre", self.process, call, crash_at=crash_at, nth=nth))
        assert intent(self.log).state is not SyncState.ACKNOWLEDGED or "web#1" in self.read, "acknowledged, and not read"
        crash = batch_crash or (None, 1)
        hook(self.log, "batch", self.process, "", json.dumps({call: text}), crash_at=crash[0], nth=crash[1])
        self.request.append(text)
        return text


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    """Every crash point of a hook that delivers."""
    log = tmp_path_factory.mktemp("points") / "log"
    assert hook(log, "detect", "", "op-1").returncode == 0
    result = hook(log, "pre", "pid-1", "c1")
    assert result.returncode == 0, result.stderr
    seen: dict[str, int] = {}
    places = []
    for point in result.points:
        seen[point] = seen.get(point, 0) + 1
        places.append((point, seen[point]))
    return places


def test_a_delivery_passes_a_point_before_and_after_every_commit_and_around_stdout(points: list[tuple[str, int]]) -> None:
    names = [point for point, _ in points]
    for commit in ("pre-tool-use", "materialize", "mark"):
        assert f"before-{commit}" in names
        assert f"after-{commit}" in names
    assert names.index("after-pre-tool-use") < names.index("before-reconciler") < names.index("before-materialize")
    assert names.index("before-stdout") < names.index("after-stdout") < names.index("before-mark")


@pytest.mark.parametrize("dies", ["the hook", "the whole agent"])
def test_a_kill_at_every_point_loses_nothing_and_acknowledges_nothing_unread(
    points: list[tuple[str, int]], dies: str, tmp_path: Path
) -> None:
    for number, (point, nth) in enumerate(points):
        log = tmp_path / f"{number}" / "log"
        log.parent.mkdir()
        hook(log, "detect", "", "op-1")
        agent = Agent(log, "pid-1")
        if dies == "the hook":
            agent.turn(crash_at=point, nth=nth)
        else:
            assert hook(log, "pre", "pid-1", "pid-1-1", crash_at=point, nth=nth).killed, (point, nth)
            agent = Agent(log, "pid-2")
        payloads = {known.sha256 for known in [intent(log)] if known.sha256 is not None}
        for _ in range(3):
            if agent.turn() == "it ran":
                break
        known = intent(log)
        assert known.state is SyncState.ACKNOWLEDGED, (point, nth, known)
        assert agent.read == {"web#1": known.sha256}, (point, nth)
        assert payloads <= {known.sha256}, "payload drift"


@pytest.mark.parametrize("point", ["before-batch", "after-batch"])
def test_a_kill_of_the_boundary_hook_for_ever_ends_in_a_restart_not_in_a_loss(point: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    hook(log, "detect", "", "op-1")
    agent = Agent(log, "pid-1")
    texts = [agent.turn(batch_crash=(point, 1)) for _ in range(3)]
    if point == "before-batch":
        assert len(set(texts)) == 1, "the same bytes, as to a sibling"
        assert intent(log).state is SyncState.DELIVERED
        again = Agent(log, "pid-2")
        assert "web#1" in again.turn()
        assert again.turn() == "it ran"
        assert again.read == {"web#1": intent(log).sha256}
    else:
        assert intent(log).state is SyncState.ACKNOWLEDGED
        assert agent.read == {"web#1": intent(log).sha256}


@pytest.mark.parametrize("point", ["before-accept", "after-accept"])
def test_a_kill_around_the_handshake_is_retried_with_new_ids_or_is_the_handshake(point: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    hook(log, "detect", "", "op-1")
    Agent(log, "pid-1").turn(batch_crash=("before-batch", 1))
    with EventLog.open(log) as handle:
        owner = handle.own(launcher_name("web"))
        assert owner is not None
        with owner:
            desk = Deliveries(handle)
            assert isinstance(desk.bind_restart("web", "the batch was never completed"), Done)
            ids = []
            for attempt in (1, 2):
                waiting = desk.startup_of("web")
                assert waiting is not None
                known, proof = waiting
                assert known.payload is not None
                ids += [proof.startup_id, proof.incarnation]
                process = f"replacement-{attempt}"
                first_input = frame_startup(known.id, known.payload, proof.startup_id)
                died = hook(log, "prompt", process, "", first_input, crash_at=point if attempt == 1 else None)
                assert died.killed is (attempt == 1), died
                assert desk.state.intents["web#1"].state is SyncState.DELIVERED  # by the batch, and perhaps by the handshake
                if desk.startup_of("web") is None:
                    break
                desk.bind_restart("web", "it died before the handshake")
            assert len(set(ids)) == len(ids) == (4 if point == "before-accept" else 2)
            assert hook(log, "pre", process, "c1").stdout == '{"allow": true}'
            known = desk.state.intents["web#1"]
            assert (known.state, known.evidence) == (SyncState.ACKNOWLEDGED, "startup_echo")


@pytest.mark.parametrize("point", ["before-pre-tool-use", "after-pre-tool-use", "before-stdout", "after-stdout"])
def test_a_kill_of_the_hook_that_acknowledges(point: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    hook(log, "detect", "", "op-1")
    agent = Agent(log, "pid-1")
    agent.turn()
    agent.turn(crash_at=point)
    assert agent.turn() == "it ran"
    assert intent(log).state is SyncState.ACKNOWLEDGED
    assert agent.read == {"web#1": intent(log).sha256}


def test_eight_siblings_at_once_are_all_blocked_with_the_same_bytes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    hook(log, "detect", "", "op-1")
    calls = [f"c{n}" for n in range(8)]

    def sibling(call: str) -> str:
        command = [sys.executable, HOOK, str(log), "pre", "pid-1", call]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(sibling, calls))
    assert len(set(answers)) == 1
    assert "deny" in json.loads(answers[0])
    assert (tmp_path / "reconciled").read_text() == "web#1\n", "one reconciler ran"
    with EventLog.open(log, read_only=True) as handle:
        types = [event.type for event in handle.read()]
    assert (types.count(ev.BLOCKED), types.count(ev.MATERIALIZED), types.count(ev.MARKED), types.count(ev.ADMITTED)) == (1, 1, 1, 8)
    texts = {call: json.loads(answer)["deny"] for call, answer in zip(calls, answers, strict=True)}
    hook(log, "batch", "pid-1", "", json.dumps(texts))
    assert hook(log, "pre", "pid-1", "later").stdout == '{"allow": true}'
    assert intent(log).state is SyncState.ACKNOWLEDGED
