"""Hooks that crash, hang, are not there, or are overruled: the call must not run, and nothing may be called delivered that was not."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from fake_model import Turn
from lab import EVENTLOG, Lab, call_hook, touch

PAYLOAD = "the parent branch moved"


def not_there(_lab: Lab, command: str) -> str:
    return command.replace(EVENTLOG, "/nonexistent/eventlog")


def log_is_gone(lab: Lab, command: str) -> str:
    return command.replace(str(lab.log), "/proc/no-such-log")


def usage_error(_lab: Lab, command: str) -> str:
    return command.replace("--thread", "--tread")


def log_is_damaged(lab: Lab, command: str) -> str:
    segment = sorted((lab.log / "segments").iterdir())[0]
    data = bytearray(segment.read_bytes())
    data[200] ^= 0xFF  # in the first commit
    (lab.place / "damaged").mkdir()
    copy = lab.place / "damaged" / "log"
    copy.mkdir(0o700)
    (copy / "segments").mkdir(0o700)
    (copy / "log.json").write_bytes((lab.log / "log.json").read_bytes())
    (copy / "segments" / segment.name).write_bytes(data)
    return command.replace(str(lab.log), str(copy))


@pytest.mark.parametrize("broken", [not_there, log_is_gone, usage_error, log_is_damaged], ids=lambda broken: broken.__name__)
def test_a_hook_that_fails_blocks(lab: Lab, broken: object) -> None:
    """Installed as `… || exit 2`: whatever ends it but a clean answer denies the call."""
    assert callable(broken)
    lab.script(Turn(touch("one")), Turn("I give up"))
    lab.detect(PAYLOAD)
    settings = lab.settings()
    ours = call_hook(settings)
    ours["command"] = broken(lab, ours["command"])
    assert lab.first(settings=settings).wait() == 0
    assert "hook error" in lab.results(1)[0]
    lab.audit(ran=set())


def test_a_hook_that_is_killed_blocks_and_the_next_call_tries_again(lab: Lab) -> None:
    lab.script(Turn(touch("one")), Turn(touch("two")), Turn(touch("three")), Turn("all done"))
    lab.detect(PAYLOAD)
    lab.slow()
    run = lab.first()
    lab.until(lambda: (lab.place / "reconciled").exists(), "reconciler")
    for pid in hooks(lab):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    lab.model.wait(2)
    lab.quick()
    assert run.wait() == 0
    assert PAYLOAD in lab.results(2)[0]
    lab.audit("web#1", ran={"three"})


def hooks(lab: Lab) -> list[int]:
    """The processes of our PreToolUse hook, the shell around it aside."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if b"claude-code" in words and str(lab.log).encode() in words and b"-c" not in words[:2]:
                found.append(int(entry.name))
    assert found, "no hook is at work"
    return found


def test_a_reconciler_that_hangs_blocks_before_the_harness_loses_patience(lab: Lab) -> None:
    """Claude Code lets a call run when its hook takes too long. Ours has a deadline of its own, and it is shorter."""
    lab.script(Turn(touch("one"), touch("two")), Turn("I give up"))
    lab.detect(PAYLOAD)
    lab.slow()
    assert lab.first(settings=lab.settings(timeout_s=5)).wait() == 0
    assert lab.ran() == set()
    lab.quick()
    lab.script(Turn(touch("three")), Turn(touch("four")), Turn("all done"))
    assert lab.resume(settings=lab.settings(timeout_s=5)).wait() == 0
    lab.audit("web#1", ran={"four"})


def deny(lab: Lab, times: int, *, last: bool) -> dict[str, object]:
    """Settings with a foreign hook that denies the first calls and lets the others through; it ends when ours has, or before."""
    answer = '{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"deny","permissionDecisionReason":"FOREIGN"}}'
    ours, theirs = lab.place / "ours", lab.place / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    count = "$(ls -A {} | wc -l)"
    text = [f"n={count.format(theirs)}", f": > {theirs}/$n", f"[ $n -lt {times} ] || exit 0"]
    if last:
        text.append(f"until [ {count.format(ours)} -gt $n ]; do sleep 0.05; done; sleep 0.3")
    settings = lab.settings(foreign={"PreToolUse": [lab.program("foreign", chr(10).join([*text, f"echo '{answer}'"]))]})
    hook = call_hook(settings)
    hook["command"] = f"({hook['command']}); code=$?; : > {ours}/$$; exit $code"
    return settings


def test_a_foreign_hook_that_ends_first_does_no_harm(lab: Lab) -> None:
    """Of several denials the last one to end is what the model is told."""
    lab.slow()
    lab.script(Turn(touch("one")), Turn(touch("two")), Turn("all done"))
    lab.detect(PAYLOAD)
    run = lab.first(settings=deny(lab, 1, last=False))
    lab.until(lambda: (lab.place / "theirs" / "0").exists() and (lab.place / "reconciled").exists(), "foreign hook")
    lab.quick()
    assert run.wait() == 0
    assert PAYLOAD in lab.results(1)[0]
    lab.audit("web#1", ran={"two"})


def test_a_foreign_hook_that_ends_last_replaces_the_payload_and_it_is_told_again(lab: Lab) -> None:
    lab.script(Turn(touch("one")), Turn(touch("two")), Turn(touch("three")), Turn("all done"))
    lab.detect(PAYLOAD)
    assert lab.first(settings=deny(lab, 1, last=True)).wait() == 0
    assert "FOREIGN" in lab.results(1)[0]
    assert PAYLOAD not in lab.results(1)[0]
    assert PAYLOAD in lab.results(2)[0]
    lab.audit("web#1", ran={"three"})


def test_a_foreign_hook_that_always_ends_last_leads_to_a_restart_not_to_a_loss(lab: Lab) -> None:
    lab.script(*(Turn(touch(f"call{number}")) for number in range(6)), Turn("I give up"))
    lab.detect(PAYLOAD)
    assert lab.first(settings=deny(lab, 1000, last=True)).wait() == 0
    assert lab.ran() == set()
    assert lab.intent().state.value in ("materialized", "delivered")
    assert len(lab.events("delivery.restart_bound")) == 1
    lab.script(Turn(touch("later")), Turn(touch("last")), Turn("all done"))
    assert lab.resume().wait() == 0
    lab.audit("web#1", ran={"last"})


def test_the_launcher_starts_the_replacement_when_nothing_else_gets_through(lab: Lab) -> None:
    """A foreign hook replaces the payload three times; then the agent is ended and started again with it as its first prompt."""
    lab.launched()
    lab.script(*(Turn(touch(f"call{number}")) for number in range(5)), Turn(touch("last")), Turn("all done"))
    lab.detect(PAYLOAD)
    run = lab.first(settings=deny(lab, 5, last=True))
    assert run.wait() == 0, run.said()
    assert [event.data["evidence"] for event in lab.events("delivery.acknowledged")] == ["startup_echo"], lab.story()
    lab.audit("web#1")
    assert lab.ran() <= {"last"}
