"""What people ask and decide: which effects are open, and what becomes of one that nobody but a person can close."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from eventlog import Conflict, Event, EventLog, Expect, Recorded
from eventlog.errors import PayloadError
from eventlog.projections import effect_events as ev
from eventlog.projections.effects import EFFECTS, EffectsState, Intent
from eventlog.projections.folding import View, fold
from eventlog.projections.intent import EffectClass, IntentId, IntentState
from eventlog.recovery.errors import StillRunning, WrongDecision
from eventlog.recovery.values import canonical
from eventlog.recovery.writing import owner_name

__all__ = ["Decided", "HumanDecision", "decide_human", "history", "list_intents", "resolve", "resolve_each"]

HumanDecision = Literal["happened", "not_happened", "retry", "abandon", "approve", "deny"]
_DECISIONS: tuple[HumanDecision, ...] = ("happened", "not_happened", "retry", "abandon", "approve", "deny")
_S = IntentState
_OPEN_TO: dict[str, tuple[IntentState, ...]] = {
    "happened": (_S.PENDING, _S.DISPATCHED, _S.INDETERMINATE),
    "not_happened": (_S.DISPATCHED, _S.INDETERMINATE),
    "retry": (_S.DISPATCHED, _S.INDETERMINATE),
    "abandon": (_S.PENDING, _S.DISPATCHED, _S.INDETERMINATE),
    "approve": (_S.PENDING,),
    "deny": (_S.PENDING,),
}


def list_intents(
    log: EventLog | EffectsState,
    *,
    state: IntentState | Collection[IntentState] | None = None,
    class_: EffectClass | Collection[EffectClass] | None = None,
    older_than: timedelta | float | None = None,
    branch: str | None = None,
    tool: str | None = None,
    now_ns: int | None = None,
) -> list[Intent]:
    """The intents that fit every filter, those that need a decision first, then by age. Default: the unfinished ones.

    `older_than` (seconds or timedelta) goes by the last dispatch, or the Pending event of what was never dispatched.
    Pass `state=list(IntentState)` for all. Takes no lock, on any log, read-only too.
    """
    folded = log if isinstance(log, EffectsState) else fold(EFFECTS, log)
    states = None if state is None else {state} if isinstance(state, IntentState) else set(state)
    classes = None if class_ is None else {class_} if isinstance(class_, EffectClass) else set(class_)
    age_s = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
    latest_ns = None if age_s is None else (now_ns if now_ns is not None else time.time_ns()) - round(age_s * 1e9)
    candidates: Iterable[Intent] = folded.open_intents() if states is None else folded.intents.values()
    chosen = [
        intent
        for intent in candidates
        if (states is None or intent.state in states)
        and (classes is None or intent.effect_class in classes)
        and (branch is None or intent.id.branch == branch)
        and (tool is None or intent.tool == tool)
        and (latest_ns is None or (intent.dispatched_ns or intent.pending_ns) <= latest_ns)
    ]
    return sorted(chosen, key=lambda intent: (not intent.needs_decision, intent.first_seq))


def history(log: EventLog, intent: IntentId | str) -> list[Recorded]:
    """Every event about one intent and about its attempt, in order."""
    id_ = IntentId.parse(intent) if isinstance(intent, str) else intent
    return list(log.read(types=set(EFFECTS.handlers), streams={str(id_), id_.attempt_text}))


def decide_human(
    intent: Intent | None, text: str, decision: HumanDecision, *, expected_version: int, actor: str, reason: str, outcome: Any = None
) -> Sequence[Event]:
    """The events of a person's decision, as a pure function of the state that it meets. Raises WrongDecision."""
    if decision not in _DECISIONS:
        raise WrongDecision(f"{decision!r} is no decision; choose one of {', '.join(_DECISIONS)}")
    if not reason.strip() or not actor.strip():
        raise WrongDecision(f"{text}: a decision needs an actor and a reason; whoever reads this log later was not there")
    if intent is None:
        raise WrongDecision(f"{text}: there is no such intent in this log")
    if intent.version != expected_version:
        raise WrongDecision(
            f"{text}: it is {intent.state.value} at version {intent.version} now, and was at {expected_version} when you looked: look again"
        )
    if intent.state not in _OPEN_TO[decision]:
        raise WrongDecision(f"{text}: it is {intent.state.value}, where {decision} decides nothing")
    if decision in ("approve", "deny") and intent.approved_seq is not None:
        raise WrongDecision(f"{text}: it was approved at seq {intent.approved_seq}")
    if outcome is not None and decision != "happened":
        raise WrongDecision(f"{text}: an outcome belongs to the decision happened, not to {decision}")
    resolved = ev.resolved(text, decision, reason=reason, actor=actor, source="human", seen=expected_version)
    if decision == "deny":
        denied = {"type": "Denied", "message": f"denied by {actor}: {reason}", "verdict": "not_sent"}
        return (resolved, *ev.completed(text, kind="error", try_number=intent.tries, source="human", result={"error": denied}))
    if decision != "happened":
        return (resolved,)
    try:
        plain = canonical(outcome)[0]
    except PayloadError as error:
        raise WrongDecision(f"{text}: the outcome is not JSON: {error.why}") from None
    return (resolved, *ev.completed(text, kind="ok", try_number=intent.tries, source="human", result={"value": plain}))


def resolve(
    log: EventLog,
    intent: IntentId | str,
    decision: HumanDecision,
    *,
    expected_version: int,
    actor: str,
    reason: str,
    outcome: Any = None,
) -> Intent:
    """Record a person's decision, if the intent is still at `expected_version` (what was shown); the intent as it is then.

    - "happened": Committed, with `outcome` (a JSON value) as its result.
    - "not_happened", "retry": Pending again; the next recovery or restart sends it, with the same key ("retry" says: perhaps it
      happened, do it all the same).
    - "approve": what waits for an approval may be sent; its caller makes the call again, or recovery sends it.
    - "deny": it is not sent; its call raises NotSent with the reason. Both are for intents that were never sent.
    - "abandon": closed without an answer; the branch may go on, and its call raises Abandoned.

    In a cancelled attempt, "not_happened" and "retry" close the intent: nothing of it is sent any more.
    Raises WrongDecision when the state moved on, StillRunning while the process that makes the call is alive.
    """
    id_ = IntentId.parse(intent) if isinstance(intent, str) else intent
    return _record(View(log, EFFECTS), id_, decision, expected_version=expected_version, actor=actor, reason=reason, outcome=outcome)


def _record(
    view: View[EffectsState], id_: IntentId, decision: HumanDecision, *, expected_version: int, actor: str, reason: str, outcome: Any
) -> Intent:
    log, text = view.log, str(id_)
    while True:
        state, seq = view.refresh()
        found = state.intents.get(text)
        events = decide_human(found, text, decision, expected_version=expected_version, actor=actor, reason=reason, outcome=outcome)
        # Nobody but the owner of the branch may write about an intent that does not wait for a person: be the owner meanwhile.
        alone = found is None or found.needs_decision
        owner = None if alone else log.own(owner_name(id_.branch))
        if owner is None and not alone:
            raise _alive(text)
        try:
            log.commit(events, expect=Expect({text, id_.attempt_text}, seq))
        except Conflict:
            continue  # decided anew: most likely the version has moved on, and decide_human says so
        finally:
            if owner is not None:
                owner.release()
        return view.state.intents[text]


def _alive(text: str) -> StillRunning:
    return StillRunning(f"{text}: the process that makes this call is alive; wait for it or end it, then decide")


class Decided(NamedTuple):
    """What became of one decision. `intent` is as it is now, or, in a dry run, as it would be; None: there is none.

    `recorded`: by this call. `repeated`: this very decision was in the log already. `refused`: why nothing was recorded.
    """

    id: str
    intent: Intent | None
    recorded: bool = False
    repeated: bool = False
    refused: WrongDecision | StillRunning | None = None


def resolve_each(
    log: EventLog,
    versions: Iterable[tuple[IntentId | str, int]],
    decision: HumanDecision,
    *,
    actor: str,
    reason: str,
    outcome: Any = None,
    dry_run: bool = False,
) -> Iterator[Decided]:
    """`resolve` for many, each on its own: (intent, the version that was shown). One that is refused does not stop the others.

    Safe to run again after a crash or a lost answer: a decision that is in the log already (the same decision, actor, reason and
    outcome, about the same version, or with nothing after it) is `repeated`, not refused, and not recorded twice. `dry_run` takes no lock.
    """
    view = View(log, EFFECTS)
    for intent, version in [*versions]:
        id_ = IntentId.parse(intent) if isinstance(intent, str) else intent
        text = str(id_)
        try:
            if dry_run:
                state, seq = view.refresh()
                found = state.intents.get(text)
                events = decide_human(found, text, decision, expected_version=version, actor=actor, reason=reason, outcome=outcome)
                if found is not None and not found.needs_decision and log.owned(owner_name(id_.branch)):
                    raise _alive(text)
                yield Decided(text, _would_be(state, id_, events, seq))
                continue
            done = _record(view, id_, decision, expected_version=version, actor=actor, reason=reason, outcome=outcome)
            yield Decided(text, done, recorded=True)
        except StillRunning as error:
            yield Decided(text, view.state.intents.get(text), refused=error)
        except WrongDecision as error:
            now = view.state.intents.get(text)
            if now is not None and _is_recorded(log, now, decision, version, actor=actor, reason=reason, outcome=outcome):
                yield Decided(text, now, repeated=True)
            else:
                yield Decided(text, now, refused=error)


def _would_be(state: EffectsState, id_: IntentId, events: Sequence[Event], seq: int) -> Intent:
    """The intent after events that are not in the log, found by the fold itself on a copy."""
    part = state.only(id_.branch, id_.attempt)
    for number, event in enumerate(events, seq + 1):
        part = EFFECTS.handlers[event.type](part, Recorded(number, 0, event.type, event.stream, event.data))
    return part.intents[str(id_)]


def _is_recorded(log: EventLog, intent: Intent, decision: HumanDecision, version: int, *, actor: str, reason: str, outcome: Any) -> bool:
    """Is this very decision the first that came after `version`, or, if nothing came, the last thing that is known of the intent?"""
    text, long = str(intent.id), 3 if decision in ("happened", "deny") else 1  # resolved, outcome, committed
    after = version if intent.version > version else intent.version - long
    events: list[Recorded] = []
    for event in log.read(max(after, 0), upto=intent.version, streams={text}):
        events.append(event)
        if len(events) == long:
            break
    if not events or events[0].type != ev.RESOLVED:
        return False
    known = events[0].data
    if (known["decision"], known["actor"], known["reason"], known["source"]) != (decision, actor, reason, "human"):
        return False
    if decision != "happened":
        return True
    try:
        return bool(events[1].data.get("value") == canonical(outcome)[0])
    except PayloadError:
        return False
