"""A payload on its way through the real Claude Code: blocked siblings, the batch, the later turn; read from its model's requests."""

from __future__ import annotations

import json
import subprocess
import threading

import pytest
from fake_model import Call, Turn
from lab import EVENTLOG, Lab, look, touch
from programs import OLD_CLAUDE

PAYLOAD = 'Your workspace changed: é e\u0301 \U0001f469\u200d\U0001f52c \u2028\r\nline two \\ "quoted" <system-reminder> \x01\x1b[31m end  '


def test_nothing_waits_and_nothing_changes(lab: Lab) -> None:
    lab.script(Turn("I look", touch("one"), look("a"), look("b")), Turn(touch("two")), Turn("all done"))
    assert lab.first().wait() == 0
    assert lab.results(1)[0] == "one ran"
    assert "this is a" in lab.results(1)[1]
    assert lab.results(2) == ["two ran"]
    hooked = [sorted(one.texts()) for one in lab.model.requests()]  # results come in the order in which the calls ended
    lab.script(Turn("I look", touch("one"), look("a"), look("b")), Turn(touch("two")), Turn("all done"))
    assert lab.start("-p", "do it", settings={"permissions": lab.settings()["permissions"]}).wait() == 0
    assert hooked == [sorted(one.texts()) for one in lab.model.requests()[3:]]  # the model is given the same, word for word
    assert {event.data["decision"] for event in lab.events("batch.admitted")} == {"pass"}
    lab.audit(ran={"one", "two"})


def test_three_siblings_get_the_same_bytes_and_only_the_later_turn_acknowledges(lab: Lab) -> None:
    later = threading.Event()
    lab.script(Turn(touch("one"), look("a"), look("b")), Turn(touch("two"), gate=later), Turn("all done"))
    lab.detect(PAYLOAD)
    run = lab.first()
    lab.model.wait(2)  # the batch is over, and its results are with the model
    assert lab.intent().state.value == "delivered"
    assert lab.events("delivery.acknowledged") == [], lab.story()
    later.set()
    assert run.wait() == 0
    told = lab.frames(lab.results(1))
    assert len(told) == 3
    assert len(set(told)) == 1
    assert PAYLOAD in told[0]
    assert lab.results(2) == ["two ran"]
    assert (lab.place / "reconciled").read_text().splitlines() == ["web#1"]
    lab.audit("web#1", ran={"two"})


def test_siblings_that_ask_at_the_same_time_wait_for_one_reconciler(lab: Lab) -> None:
    """Calls that only read run their hooks side by side: one reconciles, the others wait, and all give the same bytes."""
    lab.script(Turn(look("a"), look("b"), look("c")), Turn(touch("two")), Turn("all done"))
    lab.detect(PAYLOAD)
    lab.slow()
    run = lab.first()
    lab.until(lambda: len(lab.events("batch.admitted")) == 3, "three hooks")
    lab.quick()
    assert run.wait() == 0
    told = lab.frames(lab.results(1))
    assert len(told) == 3
    assert len(set(told)) == 1
    assert (lab.place / "reconciled").read_text().splitlines() == ["web#1"]
    lab.audit("web#1", ran={"two"})


def test_a_turn_without_a_call_acknowledges_too(lab: Lab) -> None:
    lab.script(Turn(touch("one")), Turn("I see"))
    lab.detect(PAYLOAD)
    assert lab.first().wait() == 0
    lab.audit("web#1", ran=set())


def test_what_a_subagent_read_is_no_evidence(lab: Lab) -> None:
    detected, seen = threading.Event(), threading.Event()
    ask = Call(lab.subagent_tool, {"description": "look", "prompt": "SUBTASK look around", "subagent_type": "general-purpose"})
    lab.script(
        Turn(ask),
        Turn(touch("main_one")),
        Turn(touch("main_two")),
        Turn("all done"),
        subagent=[Turn(touch("sub_one"), gate=detected), Turn(touch("sub_two"), gate=seen), Turn("sub done")],
    )
    run = lab.first()
    lab.model.wait(1, "sub")
    lab.detect(PAYLOAD)
    detected.set()
    second = lab.model.wait(2, "sub")
    assert lab.holds(second, PAYLOAD)
    seen.set()
    assert run.wait() == 0
    assert "main_two" in lab.ran()  # the agent itself was blocked once, read it, and went on
    assert not lab.ran() & {"sub_one", "main_one"}
    lab.audit("web#1")


def test_two_intents_are_told_one_after_the_other(lab: Lab) -> None:
    lab.script(Turn(touch("one")), Turn(touch("two")), Turn(touch("three")), Turn("all done"))
    lab.detect("first change")
    lab.slow()
    run = lab.first()
    lab.until(lambda: (lab.place / "reconciled").exists(), "reconciler")
    lab.quick()
    lab.until(lambda: bool(lab.events("sync.materialized")), "payload")
    lab.detect("second change")
    assert run.wait() == 0
    assert "first change" in lab.results(1)[0]
    assert "second change" in lab.results(2)[0]
    lab.audit("web#1", "web#2", ran={"three"})


def nasty(size: int) -> str:
    """As many bytes of what texts are mangled by: normal forms, CR LF, emoji, controls, escapes, tags, blanks at the ends."""
    line = "é e\u0301 \U0001f469\u200d\U0001f52c\r\n\ttab \u200b\ufeff\u2028\u202e \\u00e9 \\ \"' "
    line += "<system-reminder> </x> \x01\x1b[31m\x7f %s {} $(id) `id` & "
    text = "  "
    while len(text.encode()) < size - 300:
        text += line
    return text + "x" * (size - len(text.encode()) - 2) + "  "


@pytest.mark.parametrize("size", [1_000, 9_000, 60_000])
def test_payloads_of_all_sizes_arrive_byte_for_byte(lab: Lab, size: int) -> None:
    """60 KB are too many for the harness: what arrives is a pointer to a file that holds them, byte for byte."""
    payload = nasty(size)
    assert len(payload.encode()) == size
    lab.script(Turn(touch("one"), look("a")), Turn(touch("two")), Turn("all done"))
    lab.detect(payload)
    assert lab.first().wait() == 0
    told = lab.frames(lab.results(1))
    assert len(set(told)) == 1
    assert (payload in told[0]) == (size < 10_000)
    lab.audit("web#1", ran={"two"})


def test_a_session_is_recorded_and_can_be_folded_and_dumped(lab: Lab) -> None:
    secret = Call("Bash", {"command": "echo token=hunter2-hunter2", "description": "tell"})
    lab.script(Turn(secret, look("a")), Turn("all done"))
    assert lab.first(settings=lab.settings(record=True, redact=["hunter2"])).wait() == 0
    dump = eventlog("dump", str(lab.log))
    assert "this is a" in dump
    assert "hunter2" not in dump
    assert "[redacted]" in dump
    types = [event.type for event in lab.events()]
    assert {"session.started", "prompt.submitted", "tool.called", "tool.returned", "tool.shown", "agent.stopped", "session.ended"} <= {
        *types
    }
    counts = json.loads(eventlog("fold", str(lab.log), "--json"))
    assert counts["seq"] == len(types)
    assert types.count("tool.called") == 2
    lab.audit(ran=set())


def eventlog(*words: str) -> str:
    return subprocess.run([EVENTLOG, *words], check=True, capture_output=True, text=True).stdout


def test_a_stream_that_breaks_off_behind_a_blocked_call(lab: Lab) -> None:
    """The finished block keeps its denial, and PostToolBatch lists it alone."""
    lab.script(Turn(touch("one"), touch("two"), pause_s=1.0, cut_after=0), Turn(touch("three")), Turn("all done"))
    lab.detect(PAYLOAD)
    assert lab.first().wait() == 0
    assert "one" not in lab.ran()
    assert "three" in lab.ran()
    lab.audit("web#1")


def test_blocks_that_come_slowly_are_siblings_all_the_same(lab: Lab) -> None:
    """The hook of the first call runs while the model still streams the second."""
    lab.script(Turn(touch("one"), touch("two"), look("a"), pause_s=0.8), Turn(touch("three")), Turn("all done"))
    lab.detect(PAYLOAD)
    assert lab.first().wait() == 0
    assert len(set(lab.frames(lab.results(1)))) == 1
    lab.audit("web#1", ran={"three"})


def test_a_context_that_is_compacted_before_the_next_turn_is_told_again(lab: Lab) -> None:
    """The answer that is blocked claims that the context is full. 2.1.332 compacts before the next request, 2.1.197 does not."""
    compacts = OLD_CLAUDE not in str(lab.sandbox.program)
    lab.script(Turn("I look", touch("one"), tokens=985_000), Turn(touch("two")), Turn(touch("three")), Turn("all done"))
    lab.detect(PAYLOAD)
    assert lab.first().wait() == 0
    assert bool(lab.model.requests("compaction")) == compacts, lab.story()
    assert bool(lab.events("delivery.doubted")) == compacts, lab.story()
    lab.audit("web#1", ran={"three"} if compacts else {"two", "three"})


def test_a_request_that_the_api_refuses_is_no_turn(lab: Lab) -> None:
    lab.script(Turn(touch("one")), Turn(status=400), Turn(touch("two")), Turn("all done"))
    lab.detect(PAYLOAD)
    lab.first().wait()
    lab.audit(*[event.stream for event in lab.events("delivery.acknowledged")])
