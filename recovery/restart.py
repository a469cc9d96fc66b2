"""After a crash: say of every unfinished intent what it is, record that, and resolve what can be resolved."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from eventlog import Conflict, Event, EventLog, Expect
from eventlog.errors import CommitError, EventLogError, LogClosed, LogPoisoned
from eventlog.projections import effect_events as ev
from eventlog.projections.effects import EFFECTS, EffectsState, Intent
from eventlog.projections.folding import View
from eventlog.projections.intent import EffectClass, IntentState, Verdict
from eventlog.recovery.attempt import Attempt
from eventlog.recovery.errors import AttemptBusy, EffectError, Indeterminate, NotYet
from eventlog.recovery.toolbox import Toolbox
from eventlog.recovery.writing import owner_name

__all__ = ["Found", "Recovery", "arecover", "recover"]

BRANCHES_AT_ONCE = 256


@dataclass(slots=True)
class Found:
    """One unfinished intent, as recovery found it and as it left it.

    `state` and `verdict` are those found; `left` the state after recovery; `error` what stood in its way, `until_ns` when to try again.
    """

    id: str
    tool: str
    effect_class: EffectClass
    state: IntentState
    verdict: Verdict
    tries: int
    first_seq: int
    left: IntentState
    recorded: bool = False
    error: str | None = None
    until_ns: int | None = None

    @property
    def resolved(self) -> bool:
        return self.left.finished


@dataclass(slots=True)
class Recovery:
    """What recover() did. `intents` are in the order of their Pending events; `alive` names the attempts left alone: their owner lives."""

    intents: list[Found] = field(default_factory=list)
    alive: list[str] = field(default_factory=list)
    recorded: int = 0

    @property
    def never_sent(self) -> list[Found]:
        return [found for found in self.intents if found.verdict is Verdict.NEVER_SENT]

    @property
    def may_have_been_sent(self) -> list[Found]:
        return [found for found in self.intents if found.verdict is Verdict.MAY_HAVE_BEEN_SENT]

    @property
    def indeterminate(self) -> list[Found]:
        """What still may have happened without a record."""
        return [found for found in self.intents if found.left in (IntentState.DISPATCHED, IntentState.INDETERMINATE)]

    @property
    def attempts(self) -> dict[str, Verdict]:
        """The worst verdict of each attempt."""
        worst: dict[str, Verdict] = {}
        for found in self.intents:
            attempt = _attempt_of(found.id)
            if worst.get(attempt) is not Verdict.MAY_HAVE_BEEN_SENT:
                worst[attempt] = found.verdict
        return worst


def _attempt_of(text: str) -> str:
    branch, _, rest = text.rpartition("@")
    return f"{branch}@{rest.partition(':')[0]}"


def recover(
    log: EventLog,
    tools: Toolbox | None = None,
    *,
    concurrency: int = 4,
    patience_s: float = 0.0,
    dry_run: bool = False,
) -> Recovery:
    """Classify every unfinished intent, record each classification once, and, with `tools`, resolve it by its class (docs/effects.md).

    Without `tools` it only classifies. Attempts with a live owner are left alone. `concurrency` branches are resolved at a time; an
    intent that raises does not stop the others. `patience_s` is how long to wait for a receiver that is still at it. `dry_run` records
    nothing and does nothing. It may be interrupted and run again at any point: it records nothing twice.
    """
    if tools is not None and not dry_run and tools.bound_to_a_loop():
        raise EffectError(f"{log.path}: recover() cannot run async tools inside an event loop: use await arecover(log, tools)")
    report = _classify(log, tools, dry_run)
    if tools is not None and not dry_run:
        _resolve(tools, report, concurrency, patience_s)
    return report


def _classify(log: EventLog, tools: Toolbox | None, dry_run: bool) -> Recovery:
    if tools is not None and tools.log is not log:
        raise EffectError(f"{log.path}: the Toolbox belongs to another log")
    view: View[EffectsState] = tools.view if tools is not None else View(log, EFFECTS)
    report = Recovery()
    pending = iter(view.read(_open_branches))
    while batch := list(islice(pending, BRANCHES_AT_ONCE)):
        _classify_batch(log, tools, view, batch, report, dry_run)
    report.intents.sort(key=lambda found: found.first_seq)
    view.keep()
    return report


def _open_branches(state: EffectsState, seq: int) -> list[str]:
    return list(dict.fromkeys(state.intents[text].id.branch for text in state.open.values()))


def _classify_batch(
    log: EventLog, tools: Toolbox | None, view: View[EffectsState], batch: Sequence[str], report: Recovery, dry_run: bool
) -> None:
    with contextlib.ExitStack() as stack:
        mine: set[str] = set()
        for branch in batch:
            if dry_run:
                free = not log.owned(owner_name(branch))
            else:
                owner = log.own(owner_name(branch))
                free = owner is not None
                if owner is not None:
                    stack.callback(owner.release)
            if free:
                mine.add(branch)
        while True:
            # Looked at again under the locks: the owner before us may have written up to its end.
            found, events, seq, alive = view.read(lambda state, at: _look(state, at, batch, mine, tools))
            if events and not dry_run:
                try:
                    log.commit(events, expect=Expect({event.stream for event in events}, seq))
                except Conflict:
                    continue
                report.recorded += len(events)
                for one in found:
                    one.recorded = one.recorded and not dry_run
            break
        report.intents.extend(found)
        report.alive.extend(alive)


def _look(
    state: EffectsState, seq: int, batch: Sequence[str], mine: set[str], tools: Toolbox | None
) -> tuple[list[Found], list[Event], int, list[str]]:
    found: list[Found] = []
    events: list[Event] = []
    alive: dict[str, None] = {}
    for intent in (one for branch in batch for one in _open_of(state, branch)):
        verdict = intent.verdict
        if intent.id.branch not in mine:
            alive[intent.id.attempt_text] = None
            continue
        if verdict is None:
            continue
        class_ = _class_of(intent, tools)
        new = intent.classified is not verdict
        if new:
            events.append(ev.classified(str(intent.id), verdict, try_number=intent.tries, by="recovery", class_=class_))
        found.append(Found(str(intent.id), intent.tool, class_, intent.state, verdict, intent.tries, intent.first_seq, intent.state, new))
    return found, events, seq, list(alive)


def _open_of(state: EffectsState, branch: str) -> Iterator[Intent]:
    for number in state.branches.get(branch, ()):
        for text in state.attempts[f"{branch}@{number}"].intents:
            intent = state.intents[text]
            if not intent.state.finished:
                yield intent


def _class_of(intent: Intent, tools: Toolbox | None) -> EffectClass:
    tool = tools.get(intent.tool) if tools is not None else None
    return max(intent.effect_class, tool.spec.effect_class) if tool is not None else intent.effect_class


Branch = list[tuple[int, list[Found]]]  # attempt numbers in order, with what was found of each


def _by_branch(report: Recovery) -> list[tuple[str, Branch]]:
    by_attempt: dict[str, list[Found]] = {}
    for found in report.intents:
        by_attempt.setdefault(_attempt_of(found.id), []).append(found)
    branches: dict[str, Branch] = {}
    for attempt, found_here in by_attempt.items():
        branch, _, number = attempt.rpartition("@")
        branches.setdefault(branch, []).append((int(number), found_here))
    return [(branch, sorted(attempts, key=lambda one: one[0])) for branch, attempts in branches.items()]


def _resolve(tools: Toolbox, report: Recovery, concurrency: int, patience_s: float) -> None:
    """Branch by branch: steps of a branch in their order, branches beside each other, never more than `concurrency` calls out."""

    def resolve_branch(branch: str, attempts: Branch) -> None:
        for number, found_here in attempts:
            with _opened(tools, branch, number, found_here) as attempt:
                for found in found_here if attempt is not None else ():
                    with _noted(attempt, found):
                        attempt._finish(tools.get(found.tool), found.id, "recovery", patience_s)

    work = _by_branch(report)
    if concurrency <= 1 or len(work) <= 1:
        for branch, attempts in work:
            resolve_branch(branch, attempts)
        return
    with ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="eventlog-recover") as pool:
        # Each in the caller's context, so that what it has (a trace, a deadline) goes along.
        for done in [pool.submit(contextvars.copy_context().run, resolve_branch, branch, attempts) for branch, attempts in work]:
            done.result()


async def arecover(log: EventLog, tools: Toolbox, *, concurrency: int = 4, patience_s: float = 0.0) -> Recovery:
    """recover(log, tools) on the running event loop, for async tools and hooks that are bound to it, as an MCP session is."""
    report = await asyncio.to_thread(_classify, log, tools, False)
    limit = asyncio.Semaphore(max(concurrency, 1))

    async def resolve_branch(branch: str, attempts: Branch) -> None:
        async with limit:
            for number, found_here in attempts:
                with _opened(tools, branch, number, found_here) as attempt:
                    for found in found_here if attempt is not None else ():
                        with _noted(attempt, found):
                            await attempt._afinish(tools.get(found.tool), found.id, "recovery", patience_s)

    await asyncio.gather(*(resolve_branch(branch, attempts) for branch, attempts in _by_branch(report)))
    return report


@contextlib.contextmanager
def _opened(tools: Toolbox, branch: str, number: int, found_here: list[Found]) -> Iterator[Any]:
    """The attempt, owned; None when it came to life since we looked."""
    attempt = tools.attempt(branch, number)
    try:
        attempt._enter_for_recovery()
    except AttemptBusy as busy:
        for found in found_here:
            found.error = str(busy)
        yield None
        return
    try:
        yield attempt
    finally:
        attempt._leave()


@contextlib.contextmanager
def _noted(attempt: Attempt, found: Found) -> Iterator[None]:
    """Whatever one intent comes to is noted in the report: the fault of one must not strand the others (research: effects, row 25)."""
    try:
        yield
    except Indeterminate as left:
        found.error, found.until_ns = left.reason, left.until_ns
    except NotYet as waits:
        found.error, found.until_ns = str(waits), waits.until_ns
    except (CommitError, LogPoisoned, LogClosed):
        raise  # not the fault of this intent: nothing more can be recorded
    except EventLogError as error:
        found.error = str(error)
    except Exception as error:  # noqa: BLE001 - a tool may raise anything while its request is read back
        found.error = f"{type(error).__name__}: {error}"
    found.left = attempt._state_of(found.id) or found.left
