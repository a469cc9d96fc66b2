"""Folds and views: what they give, what they refuse, and that the effects fold knows every impossible transition."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eventlog.projections
from eventlog import Event, EventLog, Recorded
from eventlog.projections import (
    BUILT_IN,
    COUNTS,
    EFFECTS,
    EVERY_TYPE,
    STATUS,
    BadIntentId,
    EffectClass,
    FoldError,
    IntentId,
    IntentState,
    Projection,
    Verdict,
    View,
    fold,
)
from eventlog.projections import effect_events as ev

ID = IntentId("order-17", 1, 1)
TEXT = str(ID)


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with EventLog.open(tmp_path / "log") as opened:
        yield opened


def numbers(log: EventLog, *counts: int) -> None:
    """Commits of so many events; event n is of type num.even or num.odd and says n."""
    number = int(log.head)
    for count in counts:
        log.commit([Event("num.odd" if n % 2 else "num.even", {"n": n}) for n in range(number + 1, number + count + 1)])
        number += count


ODD: Projection[tuple[int, ...]] = Projection("odd", 1, (), {"num.odd": lambda state, event: (*state, event.data["n"])})


def test_fold_gives_each_event_of_its_types_once_in_order(log: EventLog) -> None:
    numbers(log, 1, 3, 2, 5)
    assert fold(ODD, log) == (1, 3, 5, 7, 9, 11)


@pytest.mark.parametrize("upto", range(12))
def test_upto_cuts_inside_a_commit(log: EventLog, upto: int) -> None:
    numbers(log, 1, 3, 2, 5)
    assert fold(ODD, log, upto) == tuple(n for n in range(1, 12, 2) if n <= upto)


def test_a_handler_gets_what_was_recorded(log: EventLog) -> None:
    log.commit([Event("a.b", {"x": [1]}, "s"), Event("a.c", {}, "t")])
    got: Projection[list[Recorded]] = Projection("got", 1, [], {EVERY_TYPE: lambda state, event: [*state, event]})
    assert fold(got, log) == list(log.read())
    assert all(type(event) is Recorded for event in fold(got, log))


def test_a_fold_does_not_change_the_initial_state(log: EventLog) -> None:
    def add(state: list[int], event: Recorded) -> list[int]:
        state.append(event.seq)
        return state

    numbers(log, 3)
    grows: Projection[list[int]] = Projection("grows", 1, [], {"num.odd": add})
    assert fold(grows, log) == [1, 3]
    assert fold(grows, log) == [1, 3]
    assert grows.initial == []


def test_progress_ends_at_the_head(log: EventLog) -> None:
    for _ in range(3):
        log.commit([Event("num.odd", {"n": 1})] * 15_000)
    seen: list[tuple[int, int]] = []
    fold(ODD, log, progress=lambda done, last: seen.append((done, last)))
    assert seen[-1] == (45_000, 45_000)
    assert len(seen) >= 2
    assert seen == sorted(seen)


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8), looks=st.sets(st.integers(0, 7)))
def test_a_view_is_the_fold_wherever_it_looked(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], looks: set[int]) -> None:
    with EventLog.open(tmp_path_factory.mktemp("view") / "log") as log:
        view = View(log, ODD)
        for number, size in enumerate(sizes):
            numbers(log, size)
            if number in looks:
                assert view.state == fold(ODD, log)
                assert view.seq == int(log.head)
        assert view.state == fold(ODD, log)


def test_a_view_stops_before_the_event_that_a_handler_refuses(log: EventLog) -> None:
    def refuse(state: int, event: Recorded) -> int:
        if event.data["n"] == 5:
            raise ValueError("no\nfives")
        return state + 1

    until5: Projection[int] = Projection("until5", 1, 0, {"num.odd": refuse})
    numbers(log, 2)
    view = View(log, until5)
    assert view.state == 1
    numbers(log, 4)
    for _ in range(2):
        with pytest.raises(FoldError) as caught:
            view.refresh()
        assert (caught.value.projection, caught.value.seq, caught.value.type) == ("until5", 5, "num.odd")
        assert str(caught.value) == "projection 'until5': event 5 (num.odd): ValueError: no fives"
        assert (view.peek(), view.seq) == (2, 4)
    assert view.refresh(4) == (2, 4)
    with pytest.raises(FoldError, match="event 5"):
        fold(until5, log)
    assert fold(until5, log, 4) == 2
    assert fold(ODD, log) == (1, 3, 5), "other folds do not mind"


def test_a_view_begins_again_after_an_interrupt(log: EventLog) -> None:
    fail = [True]

    def add(state: list[int], event: Recorded) -> list[int]:
        state.append(event.seq)
        if event.seq == 3 and fail.pop():
            raise KeyboardInterrupt
        return state

    numbers(log, 5)
    view = View(log, Projection("interrupted", 1, [], {EVERY_TYPE: add}))
    fail += [False, False]
    fail.append(True)
    with pytest.raises(KeyboardInterrupt):
        view.refresh()
    assert view.state == [1, 2, 3, 4, 5], "an event that was half folded must not be folded twice"


def test_projections_are_checked_when_they_are_made() -> None:
    for arguments in (("", 1, 0, {"a": None}), ("x", 0, 0, {"a": None}), ("x", 1, 0, {})):
        with pytest.raises(ValueError, match="projection"):
            Projection(*arguments)  # type: ignore[arg-type]


def test_counts(log: EventLog) -> None:
    log.commit([Event("a", {}, "s"), Event("b", {}, "s"), Event("a", {}, "t")])
    assert COUNTS.dump(fold(COUNTS, log)) == {"events": 3, "types": {"a": 2, "b": 1}, "streams": {"s": 2, "t": 1}}


# -- intent ids -----------------------------------------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=20)
steps = st.integers(1, 10**9) | names.filter(lambda name: "@" not in name and not (name.isascii() and name.isdigit()))


@given(branch=names, attempt=st.integers(1, 10**6), step=steps)
def test_an_intent_id_reads_back(branch: str, attempt: int, step: int | str) -> None:
    id_ = IntentId(branch, attempt, step)
    assert IntentId.parse(str(id_)) == id_


@pytest.mark.parametrize("branch", ["a@b", "a:b", "a@1:2", "@", ":", "a@1", " x", "ü@ß:1"])
def test_awkward_branches(branch: str) -> None:
    assert IntentId.parse(str(IntentId(branch, 3, "s:t"))) == IntentId(branch, 3, "s:t")


BAD_TEXTS = ["", "a", "a@1", "a@x:1", "@1:1", "a@0:1", "a@01:1", "a@1:", "a@1:0", "a@-1:1", "a\n@1:1", "a@\u0663:1"]


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_bad_ids_are_refused(text: str) -> None:
    with pytest.raises(BadIntentId):
        IntentId.parse(text)


BAD_PARTS = [("", 1, 1), ("a", 0, 1), ("a", True, 1), ("a", 1, 0), ("a", 1, "7"), ("a", 1, "x@y"), ("a\x00", 1, 1), ("\ud800", 1, 1)]


@pytest.mark.parametrize("parts", BAD_PARTS)
def test_bad_parts_are_refused(parts: tuple[Any, Any, Any]) -> None:
    with pytest.raises(BadIntentId):
        IntentId(*parts)


def test_classes_are_ordered_by_danger() -> None:
    read, keyed, opaque = EffectClass.READ_ONLY, EffectClass.KEYED, EffectClass.NON_IDEMPOTENT
    assert sorted([opaque, keyed, read]) == [read, keyed, opaque]
    assert max(EffectClass.KEYED, EffectClass.IDEMPOTENT) is EffectClass.KEYED
    assert max(EffectClass) is EffectClass.NON_IDEMPOTENT
    assert EffectClass.READ_ONLY < EffectClass.TRANSACTIONAL <= EffectClass.TRANSACTIONAL
    assert not EffectClass.KEYED > EffectClass.NON_IDEMPOTENT


# -- the effects fold -----------------------------------------------------------------------------------------------------------


def pending(id_: IntentId = ID, **more: Any) -> Event:
    options = {"tool": "t", "version": "1", "class_": EffectClass.KEYED, "digest": "d", "key": "k", "key_scope": "attempt", "args": {}}
    return ev.pending(id_, **{**options, **more})


def dispatched(try_number: int = 1, *, resend: bool = False) -> Event:
    return ev.dispatched(TEXT, try_number=try_number, pid=1, by="guard", resend=resend)


def done(kind: Any = "ok", source: str = "call") -> tuple[Event, Event]:
    return ev.completed(TEXT, kind=kind, try_number=1, source=source, result={"value": 1})


def resolved(decision: Any) -> Event:
    return ev.resolved(TEXT, decision, reason="r", actor="a", source="human", seen=1)


def classified(verdict: Verdict) -> Event:
    return ev.classified(TEXT, verdict, try_number=1, by="recovery", class_=EffectClass.KEYED)


not_sent = ev.not_sent(TEXT, try_number=1, error={"type": "X", "message": "", "verdict": "not_sent"})
late = ev.late(TEXT, kind="ok", try_number=1, result={"value": 2})
cancelled = ev.attempt_cancelled("order-17", 1, reason="r", actor="a")
P, D, C = IntentState.PENDING, IntentState.DISPATCHED, IntentState.COMMITTED
N, X, A = IntentState.INDETERMINATE, IntentState.CANCELLED, IntentState.ABANDONED

POSSIBLE: list[tuple[Sequence[Event], IntentState]] = [
    ([pending()], P),
    ([pending(), dispatched()], D),
    ([pending(), dispatched(), *done()], C),
    ([pending(), dispatched(), dispatched(2, resend=True), *done()], C),
    ([pending(), dispatched(), not_sent], P),
    ([pending(), dispatched(), not_sent, dispatched(2)], D),
    ([pending(), *done("error")], C),
    ([pending(), *done(source="human")], C),
    ([pending(), dispatched(), resolved("indeterminate")], N),
    ([pending(), dispatched(), resolved("indeterminate"), *done()], C),
    ([pending(), dispatched(), resolved("indeterminate"), resolved("not_happened")], P),
    ([pending(), dispatched(), resolved("retry"), dispatched(2)], D),
    ([pending(), dispatched(), resolved("abandon")], A),
    ([pending(), dispatched(), resolved("dropped")], X),
    ([pending(), resolved("superseded")], X),
    ([pending(), cancelled], X),
    ([pending(), dispatched(), cancelled], D),
    ([pending(), dispatched(), cancelled, not_sent], X),
    ([pending(), dispatched(), cancelled, resolved("not_happened")], X),
    ([pending(), dispatched(), cancelled, *done()], C),
    ([pending(), classified(Verdict.NEVER_SENT)], P),
    ([pending(), dispatched(), classified(Verdict.MAY_HAVE_BEEN_SENT)], D),
    ([pending(), dispatched(), *done(), late], C),
    ([pending(), dispatched(), ev.evidence(TEXT, "x"), *done()], C),
]

IMPOSSIBLE: list[Sequence[Event]] = [
    [dispatched()],
    [done()[0]],
    [done()[1]],
    [pending(), pending()],
    [pending(), done()[1]],
    [pending(), done()[0]],
    [pending(), dispatched(), done()[1]],
    [pending(), dispatched(), done()[0], done()[0]],
    [pending(), dispatched(), done()[0], Event("other", {}), done()[1]],
    [pending(), dispatched(), done()[0], dispatched(2, resend=True)],
    [pending(), dispatched(), dispatched()],
    [pending(), dispatched(), dispatched(2)],
    [pending(), dispatched(2)],
    [pending(), dispatched(), *done(), dispatched(2)],
    [pending(), dispatched(), *done(), done()[0]],
    [pending(), not_sent],
    [pending(), dispatched(), dispatched(2, resend=True), ev.not_sent(TEXT, try_number=2, error={})],
    [pending(), dispatched(), dispatched(2, resend=True), not_sent],
    [pending(), classified(Verdict.MAY_HAVE_BEEN_SENT)],
    [pending(), dispatched(), classified(Verdict.NEVER_SENT)],
    [pending(), dispatched(), *done(), classified(Verdict.MAY_HAVE_BEEN_SENT)],
    [pending(), resolved("indeterminate")],
    [pending(), resolved("not_happened")],
    [pending(), dispatched(), *done(), resolved("retry")],
    [pending(), dispatched(), resolved("superseded")],
    [pending(), dispatched(), resolved("abandon"), done()[0]],
    [pending(), dispatched(), resolved("nonsense")],
    [cancelled, pending()],
    [cancelled, cancelled],
    [pending(), dispatched(), cancelled, dispatched(2, resend=True)],
    [pending()._replace(stream="order-17@1:2")],
    [cancelled._replace(stream="order-17@2")],
    [Event("effect.pending", {}, TEXT)],
    [pending(class_=EffectClass.KEYED), Event("effect.dispatched", {}, TEXT)],
]


@pytest.mark.parametrize(("events", "state"), POSSIBLE, ids=lambda value: None)
def test_what_may_follow(log: EventLog, events: Sequence[Event], state: IntentState) -> None:
    log.commit(events)
    folded = fold(EFFECTS, log)
    intent = folded.intents[TEXT]
    assert intent.state is state
    assert folded.by_state[state] == 1
    assert sum(folded.by_state.values()) == 1
    assert [str(one.id) for one in folded.open_intents()] == ([] if state.finished else [TEXT])
    assert intent.version == max(seq for seq, event in enumerate(events, 1) if event.stream == TEXT or (state is X and event is cancelled))
    assert (intent.request is None) == state.finished, "what is finished must not keep its arguments in memory"


@pytest.mark.parametrize("events", IMPOSSIBLE, ids=lambda value: None)
def test_what_cannot_follow(log: EventLog, events: Sequence[Event]) -> None:
    log.commit(events)
    with pytest.raises(FoldError) as caught:
        fold(EFFECTS, log)
    assert caught.value.seq == len(events)
    assert fold(EFFECTS, log, len(events) - 1) is not None, "everything before it stays usable"


def test_builders_refuse_what_cannot_be(log: EventLog) -> None:
    with pytest.raises(ValueError, match="one of them"):
        pending(args=None)
    with pytest.raises(ValueError, match="one of them"):
        pending(args_blob={"sha256": "", "bytes": 1})
    with pytest.raises(BadIntentId):
        ev.attempt_cancelled("", 1, reason="r", actor="a")


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@pytest.mark.parametrize("cut", [0, 1, 2, 3, 5])
def test_a_dumped_state_goes_on_as_if_it_had_never_stopped(log: EventLog, name: str, cut: int) -> None:
    """What a snapshot needs: fold(load(pack(fold up to n)), tail) == fold(everything)."""
    projection = BUILT_IN[name]
    other = IntentId("order-18", 2, "name")
    log.commit([pending(), dispatched(), pending(other), resolved("indeterminate"), *done()])
    log.commit(ev.attempt_cancelled("order-18", 2, reason="", actor="x"))
    state = projection.load(json.loads(json.dumps(projection.pack(fold(projection, log, cut)))))
    for event in log.read(cut):
        handler = projection.handlers.get(event.type, projection.handlers.get(EVERY_TYPE))
        if handler is not None:
            state = handler(state, event)
    assert projection.dump(state) == projection.dump(fold(projection, log))


def test_status_shows_what_waits_for_a_person_first(log: EventLog) -> None:
    log.commit([Event("x", {}), pending(IntentId("b", 1, 1)), pending(), dispatched(), resolved("indeterminate")])
    shown = STATUS.dump(fold(STATUS, log))
    assert list(shown)[:2] == ["undecided", "unfinished"]
    assert [line["id"] for line in shown["undecided"]] == [TEXT]
    assert [line["id"] for line in shown["unfinished"]] == ["b@1:1"]
    assert shown["events"] == shown["last_seq"] == 5


def test_open_intents_are_in_the_order_of_their_pending_events(log: EventLog) -> None:
    ids = [IntentId("b", 1, n) for n in (5, 3, 9)]
    log.commit([pending(id_) for id_ in ids])
    first = str(ids[0])
    log.commit([ev.dispatched(first, try_number=1, pid=1, by="guard"), ev.not_sent(first, try_number=1, error={})])
    assert [one.id for one in fold(EFFECTS, log).open_intents()] == ids


def test_the_first_floor_imports_no_upper_floor_and_nothing_slow() -> None:
    code = (
        "import sys, eventlog.projections as p; "
        "print([m for m in ('click', 'sortedcontainers', 'eventlog.recovery', 'eventlog.cli', 'asyncio', 'rich') if m in sys.modules])"
    )
    root = Path(__file__).parent.parent
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert ran.stdout.strip() == "[]"


def test_a_second_copy_of_the_floor_is_refused() -> None:
    root = Path(__file__).parent.parent
    ran = subprocess.run([sys.executable, "-c", "import projections"], capture_output=True, text=True, check=False, cwd=root)
    assert "import eventlog.projections, not projections" in ran.stderr


def test_every_export_is_intended() -> None:
    exported = eventlog.projections.__all__
    assert sorted(exported, key=lambda name: (not name.isupper(), not name[0].isupper(), name)) == exported
    assert all(hasattr(eventlog.projections, name) for name in exported)
