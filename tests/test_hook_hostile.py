"""What a hook is given by others (threads of any name, texts of any kind, broken streams, a slow system) must not lose or let through."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventlog import EventLog
from eventlog.projections import SyncState
from eventlog.recovery import Caller, Deliveries
from eventlog.recovery.harness import Carrier, find_payload, find_startup, frame, frame_startup
from eventlog.recovery.harness.commandline import ARGUMENT_BYTES_MAX

sys.path.insert(0, str(Path(__file__).parent))
from hook_harness import HOOK, Claude

NAMES = ["my web", "web\u00a0x", "a\nb", "100%", "%20;", "\U0010ffff", "web]x", "w\u00e9b", "a chars=3 sha256=b", "-x", "x" * 300]


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[Claude]:
    with Claude(tmp_path) as one:
        yield one


# ------------------------------------------------------------------- names and texts


@pytest.mark.parametrize("name", NAMES)
def test_a_frame_is_found_whatever_the_thread_is_called(name: str) -> None:
    intent = f"{name}#1"
    (digest,) = find_payload(frame("x", "text")).values()
    assert find_payload(f"before {frame(intent, 'text')} behind") == {intent: digest}
    assert frame(intent, "text").splitlines()[1] == "text"
    assert find_startup(frame_startup(intent, "text", "startup-1")) == (intent, "startup-1")


def test_a_thread_whose_name_has_spaces_gets_its_delivery_and_acknowledges_it(tmp_path: Path) -> None:
    with Claude(tmp_path, thread="my web") as claude:
        claude.prompt("p1")
        claude.change()
        assert claude.turn("t1") != [None]
        assert claude.turn("t2") == [None]
        assert claude.intent("my web#1").state is SyncState.ACKNOWLEDGED


@pytest.mark.parametrize(
    "text",
    [
        f"[eventlog delivery x chars={'9' * 5000} sha256={'0' * 64}]\n",
        f"[eventlog delivery %ffffff; chars=0 sha256={'0' * 64}]\n",
        f"[eventlog delivery x chars=1 sha256={'0' * 64}]\n\ud800\n[end of eventlog delivery x]",
    ],
)
def test_a_text_that_looks_like_a_frame_and_is_none_proves_nothing_and_stops_nothing(text: str) -> None:
    assert find_payload(text) == {}
    assert find_startup(text) is None


@pytest.mark.parametrize("payload", ["a\0b", "\0" * 30, "x" * 200_000, "\U0001f600" * 9_000 + "\0"])
def test_every_payload_can_be_an_argument_of_a_program(tmp_path: Path, payload: str) -> None:
    with EventLog.open(tmp_path / "log") as log:
        desk = Deliveries(log)
        desk.detect("web", base="b", triggers=["op"])
        desk.pre_tool_use(Caller("web", "1:1"), "t1")
        desk.materialize("web#1", base="b", operation="op", commit="c", payload=payload, anchor="a")
        live = desk.state.threads["web"].live
        assert live is not None
        desk.retire_incarnation("web", live, "gone")
        startup = desk.startup_of("web")
        assert startup is not None
        told = Carrier(log.path).startup("web#1", payload, startup[1].startup_id)
        assert "\0" not in told
        assert "\0" not in Carrier(log.path).text("web#1", payload)
        assert len(told.encode()) < ARGUMENT_BYTES_MAX
        assert find_startup(told) == ("web#1", startup[1].startup_id)
        assert list(find_payload(told).values()) == [desk.state.intents["web#1"].sha256]
    shown = subprocess.run([*HOOK[:-1], "deliveries", "show", str(tmp_path / "log"), "web#1", "--startup"], capture_output=True, check=True)
    assert shown.stdout.decode() == told
