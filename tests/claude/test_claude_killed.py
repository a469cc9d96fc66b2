"""The real Claude Code, killed by SIGKILL or interrupted at the moments that a payload may be lost in, and resumed."""

from __future__ import annotations

import threading

import pytest
from fake_model import Turn
from isolated import Run
from lab import Lab, touch

PAYLOAD = "the parent branch moved: e\u0301\r\n\x02 and a last line"


def die_in_the_batch(lab: Lab) -> None:
    """Killed inside PostToolBatch: our hook is through, a foreign one holds the program there, and nothing went to the model yet."""
    there = lab.program("sleep-in-batch", f"[ -e {lab.place}/in-batch ] && exit; touch {lab.place}/in-batch; sleep 60")
    run = lab.first(settings=lab.settings(foreign={"PostToolBatch": [there]}))
    lab.until(lambda: (lab.place / "in-batch").exists() and bool(lab.events("delivery.completed")), "PostToolBatch")
    run.kill()
    assert len(lab.model.requests()) == 1


def die_while_a_hook_sleeps(lab: Lab) -> None:
    """Killed while the reconciler works for a call; the hook, an orphan now, runs to its end and finds nobody to tell."""
    lab.slow()
    run = lab.first()
    lab.until(lambda: (lab.place / "reconciled").exists(), "reconciler")
    run.kill()
    lab.quick()
    lab.until(lambda: lab.intent().payload is not None, "end of the orphan")


def die_while_another_hook_sleeps(lab: Lab) -> None:
    """Killed when our hook has answered a call, and a foreign hook of the same call has not: the answer was never used."""
    there = lab.program("sleep-in-call", f"[ -e {lab.place}/in-call ] && exit; touch {lab.place}/in-call; sleep 60")
    run = lab.first(settings=lab.settings(foreign={"PreToolUse": [there]}))
    lab.until(lambda: (lab.place / "in-call").exists() and bool(lab.events("delivery.marked")), "mark")
    run.kill()


def die_with_a_request_in_flight(lab: Lab) -> None:
    """Killed when the model has been given the payload and has not answered."""
    gate = threading.Event()
    lab.model.turns[1:1] = [Turn("never read", gate=gate)]
    run = lab.first()
    given = lab.model.wait(2)
    assert lab.holds(given, PAYLOAD)
    run.kill()
    gate.set()


DEATHS = [die_in_the_batch, die_while_a_hook_sleeps, die_while_another_hook_sleeps, die_with_a_request_in_flight]


@pytest.mark.parametrize("die", DEATHS, ids=lambda die: die.__name__)
def test_killed_and_resumed_by_hand(lab: Lab, die: object) -> None:
    """The new process of the thread is told the same bytes at its first call, whatever the conversation still holds."""
    assert callable(die)
    lab.script(Turn(touch("one"), touch("two")), Turn(touch("three")), Turn(touch("four")), Turn("all done"))
    lab.detect(PAYLOAD)
    die(lab)
    lab.until(lambda: lab.intent().payload is not None, "payload")
    assert lab.events("delivery.acknowledged") == [], lab.story()
    lives = len(lab.model.requests())
    run = again(lab)
    assert run.wait() == 0
    assert lab.events("sync.materialized")[0].data["payload"] == PAYLOAD
    assert len(lab.events("sync.materialized")) == 1
    assert any(lab.holds(one, PAYLOAD) for one in lab.model.requests()[lives:]), lab.story()
    assert not lab.ran() & {"one", "two"}
    assert lab.ran(), lab.story()  # and it was let through in the end
    lab.audit("web#1")


@pytest.mark.parametrize("die", DEATHS, ids=lambda die: die.__name__)
def test_killed_under_its_launcher(lab: Lab, die: object) -> None:
    """The launcher starts the replacement by itself, with the payload as its first prompt, and the first turn after that acknowledges."""
    assert callable(die)
    lab.launched()
    lab.script(Turn(touch("one"), touch("two")), Turn(touch("three")), Turn("all done"))
    lab.detect(PAYLOAD)
    die(lab)
    lab.sandbox.runs[0].wait()
    if lab.intent().state.value != "acknowledged":  # it was not prepared when the program died: there was nothing to start another for
        assert die is die_while_a_hook_sleeps
        assert lab.resume().wait() == 0
    accepted = lab.events("delivery.accepted")
    assert len(accepted) == 1
    first = next(one for one in lab.model.requests() if one.arrived_ns > accepted[0].time)
    assert lab.holds(first, PAYLOAD)
    assert {event.data["evidence"] for event in lab.events("delivery.acknowledged")} == {"startup_echo"}
    lab.audit("web#1", ran={"three"})


def again(lab: Lab) -> Run:
    """Resume; where the crash left no conversation behind (killed in the first batch, it was not on disk yet), begin anew."""
    run = lab.resume()
    run.wait()
    return run if "No conversation found" not in run.said() else lab.start("-p", "go on")


def test_a_launcher_that_is_killed_takes_its_agent_along_and_the_next_one_delivers(lab: Lab) -> None:
    gate = threading.Event()
    lab.launched()
    lab.script(Turn(touch("one")), Turn("never read", gate=gate), Turn(touch("two")), Turn("all done"))
    lab.detect(PAYLOAD)
    run = lab.first()
    lab.model.wait(2)
    run.child.kill()
    run.child.wait()
    lab.until(lambda: not run.pids(), "end of the agent")
    gate.set()
    assert lab.events("delivery.acknowledged") == []
    run = lab.resume()
    assert run.wait() == 0, run.said()
    assert [event.data["evidence"] for event in lab.events("delivery.acknowledged")] == ["startup_echo"]
    lab.audit("web#1", ran={"two"})


def test_of_two_processes_of_one_thread_only_the_newer_may_acknowledge(lab: Lab) -> None:
    """The old one still waits for its model when a second one is started: whatever it does later, it proves nothing."""
    gate = threading.Event()
    lab.script(Turn(touch("one")), Turn(touch("old"), gate=gate), Turn(touch("two")), Turn(touch("three")), Turn("all done"))
    lab.detect(PAYLOAD)
    old = lab.first()
    lab.model.wait(2)
    assert lab.start("-p", "I am another").wait() == 0
    gate.set()
    assert old.wait() == 0
    assert "old" not in lab.ran()
    told = lab.events("delivery.acknowledged")
    assert len(told) == 1
    assert told[0].data["call"] not in lab.model.requests()[1].calls
    lab.audit("web#1", ran={"three"})


def test_interrupted_before_anything_was_prepared(lab: Lab) -> None:
    """No hook tells of an interrupt: the open batch shows in the next prompt, and the same process is told then."""
    lab.script(Turn(touch("one"), touch("two")), Turn(touch("three")), Turn(touch("four")), Turn("all done"))
    lab.detect(PAYLOAD)
    lab.slow()
    run = lab.start("--session-id", lab.session, "-p", talk=True)
    run.send(user("do it"))
    lab.until(lambda: (lab.place / "reconciled").exists(), "reconciler")
    interrupt(lab, run)
    lab.quick()
    run.send(user("what happened?"))
    assert run.close_input() == 0
    assert "doesn't want to proceed" in lab.results(1)[0]
    assert PAYLOAD in lab.results(2)[0]
    lab.audit("web#1", ran={"four"})


def test_interrupted_after_the_answer_left_our_hook(lab: Lab) -> None:
    """Our hook has said it, the log says Delivered, and the model never read it: nothing this process does may acknowledge it."""
    there = lab.program("sleep-in-call", f"[ -e {lab.place}/in-call ] && exit; touch {lab.place}/in-call; sleep 60")
    lab.script(Turn(touch("one"), touch("two")), Turn(touch("three")), Turn("that did not work"))
    lab.detect(PAYLOAD)
    run = lab.start("--session-id", lab.session, "-p", talk=True, settings=lab.settings(foreign={"PreToolUse": [there]}))
    run.send(user("do it"))
    lab.until(lambda: (lab.place / "in-call").exists() and bool(lab.events("delivery.marked")), "mark")
    interrupt(lab, run)
    run.send(user("what happened?"))
    assert run.close_input() == 0
    assert not any(lab.holds(one, PAYLOAD) for one in lab.model.requests())
    assert "eventlog agent run" in lab.results(2)[0]  # blocked, and told what helps
    assert len(lab.events("delivery.restart_bound")) == 1
    assert lab.events("delivery.acknowledged") == []
    lab.script(Turn(touch("four")), Turn(touch("five")), Turn("all done"))
    assert lab.resume().wait() == 0
    lab.audit("web#1", ran={"five"})


def interrupt(lab: Lab, run: Run) -> None:
    run.send({"type": "control_request", "request_id": "stop-1", "request": {"subtype": "interrupt"}})
    lab.until(lambda: any(one.get("type") == "result" for one in run.messages()), "interrupt")


def user(text: str) -> dict[str, object]:
    return {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": text}]}}
