"""The crash matrix: every effect class, killed by SIGKILL at every point, and then recovered or cancelled; an independent witness counts.

`EXPECTED` is the resolution table of docs/effects.md written out by hand, not computed from the code that it checks.
Run it with `run_matrix(directory)`; it takes one child process for each of the 72 cells.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

from eventlog import Event, EventLog, crashpoints
from eventlog.projections.effects import EFFECTS
from eventlog.projections.folding import fold
from eventlog.projections.intent import EffectClass, IntentState
from eventlog.recovery.answers import DidNotHappen, Happened, IntentView
from eventlog.recovery.context import ToolContext
from eventlog.recovery.errors import EffectError
from eventlog.recovery.restart import recover
from eventlog.recovery.tool import Tool
from eventlog.recovery.toolbox import Toolbox

__all__ = ["ENDINGS", "EXPECTED", "POINTS", "Cell", "Result", "run_cell", "run_matrix"]

POINTS = ("before-pending", "after-pending", "after-dispatched", "in-tool", "after-effect", "after-committed")
"""In order; `in-tool` is after the effect and before the tool returns, the others are those of the guard."""
CELL_S = 60.0
Ending = Literal["crash", "cancel"]
ENDINGS: tuple[Ending, ...] = ("crash", "cancel")


class Cell(NamedTuple):
    """What is there in the end: the state (None: no intent was ever recorded), effects in the world, and calls that reached it."""

    state: IntentState | None
    effects: int
    calls: int


class Result(NamedTuple):
    effect_class: EffectClass
    point: str
    ending: Ending
    found: IntentState | None  # before recovery
    cell: Cell
    expected: Cell

    @property
    def ok(self) -> bool:
        return self.cell == self.expected


_C, _X, _N = IntentState.COMMITTED, IntentState.CANCELLED, IntentState.INDETERMINATE
_E = EffectClass
_NONE, _DROPPED, _DONE = Cell(None, 0, 0), Cell(_X, 0, 0), Cell(_C, 1, 1)
_READ, _READ_TWICE = Cell(_C, 0, 1), Cell(_C, 0, 2)
_TWO_CALLS = Cell(_C, 1, 2)
_RIDDLE_0, _RIDDLE_1 = Cell(_N, 0, 0), Cell(_N, 1, 1)
_READ_DROPPED = Cell(_X, 0, 1)

# By class and ending, in the order of POINTS.
EXPECTED: dict[tuple[EffectClass, Ending], tuple[Cell, ...]] = {
    (_E.READ_ONLY, "crash"): (_READ, _READ, _READ, _READ_TWICE, _READ_TWICE, _READ),
    (_E.TRANSACTIONAL, "crash"): (_DONE, _DONE, _DONE, _TWO_CALLS, _TWO_CALLS, _DONE),
    (_E.IDEMPOTENT, "crash"): (_DONE, _DONE, _DONE, _TWO_CALLS, _TWO_CALLS, _DONE),
    (_E.KEYED, "crash"): (_DONE, _DONE, _DONE, _TWO_CALLS, _TWO_CALLS, _DONE),
    (_E.RECONCILABLE, "crash"): (_DONE, _DONE, _DONE, _DONE, _DONE, _DONE),
    (_E.NON_IDEMPOTENT, "crash"): (_DONE, _DONE, _RIDDLE_0, _RIDDLE_1, _RIDDLE_1, _DONE),
    (_E.READ_ONLY, "cancel"): (_NONE, _DROPPED, _DROPPED, _READ_DROPPED, _READ_DROPPED, _READ),
    (_E.TRANSACTIONAL, "cancel"): (_NONE, _DROPPED, _DROPPED, _READ_DROPPED, _READ_DROPPED, _DONE),
    (_E.IDEMPOTENT, "cancel"): (_NONE, _DROPPED, _RIDDLE_0, _RIDDLE_1, _RIDDLE_1, _DONE),
    (_E.KEYED, "cancel"): (_NONE, _DROPPED, _RIDDLE_0, _RIDDLE_1, _RIDDLE_1, _DONE),
    (_E.RECONCILABLE, "cancel"): (_NONE, _DROPPED, _DROPPED, _DONE, _DONE, _DONE),
    (_E.NON_IDEMPOTENT, "cancel"): (_NONE, _DROPPED, _RIDDLE_0, _RIDDLE_1, _RIDDLE_1, _DONE),
}


class World:
    """Everything outside: what was asked of it, and what came of that. It shares nothing with the log (but TRANSACTIONAL does)."""

    def __init__(self, directory: Path, effect_class: EffectClass) -> None:
        from eventlog.testing import Ledger  # only whoever runs a matrix needs it

        self.effect_class = effect_class
        self.calls = Ledger(directory / "calls")
        self.ledger = Ledger(directory / "effects", dedupe=effect_class is _E.KEYED)
        self.file = directory / "file"

    def act(self, ctx: ToolContext, item: str) -> dict[str, str]:
        self.calls.happen("call", item, key=ctx.idempotency_key)
        if self.effect_class is _E.TRANSACTIONAL:
            ctx.emit(Event("world.changed", {"item": item}, "world"))
        elif self.effect_class is _E.IDEMPOTENT:
            self.file.write_text(item)
        elif self.effect_class is not _E.READ_ONLY:
            self.ledger.happen("act", item, key=ctx.idempotency_key)
        crashpoints.reach("in-tool")
        return {"did": item}

    def ask(self, view: IntentView) -> Happened | DidNotHappen:
        found = self.ledger.find(key=view.idempotency_key)
        return Happened({"did": found[0].data}) if found else DidNotHappen("not in the ledger")

    def effects(self, log: EventLog) -> int:
        if self.effect_class is _E.TRANSACTIONAL:
            return sum(1 for _ in log.read(types={"world.changed"}))
        return int(self.file.exists()) if self.effect_class is _E.IDEMPOTENT else len(self.ledger)


def _tools(log: EventLog, world: World) -> tuple[Toolbox, Tool]:
    tools = Toolbox(log)
    options: dict[EffectClass, dict[str, Any]] = {
        _E.TRANSACTIONAL: {"emits": True},
        _E.KEYED: {"key_ttl": timedelta(hours=24)},
        _E.RECONCILABLE: {"reconcile": world.ask},
    }
    return tools, tools.tool(world.effect_class, **options.get(world.effect_class, {}))(world.act)


def act_once(directory: str, effect_class: str) -> None:
    """What the child runs: one guarded effect."""
    with EventLog.open(Path(directory) / "log") as log:
        tools, act = _tools(log, World(Path(directory), EffectClass(effect_class)))
        with tools.attempt("order-17", 1) as attempt:
            attempt.call(act, item="it")


def run_cell(directory: Path, effect_class: EffectClass, point: str, ending: Ending) -> Result:
    """Run one effect in a child, kill it at `point`, then recover and go on (crash) or cancel the attempt. `directory` must be new."""
    from eventlog.testing import run_child

    directory.mkdir(parents=True)
    try:
        child = run_child(f"{__name__}:act_once", [str(directory), effect_class.value], crash_at=point, timeout=CELL_S)
    except subprocess.TimeoutExpired:
        raise EffectError(f"{effect_class.value}: the child that was to be killed at {point} did not end within {CELL_S:g} s") from None
    if not child.killed:
        raise EffectError(f"{effect_class.value}: the child was not killed at {point}: {child.stderr}")
    world = World(directory, effect_class)
    with EventLog.open(directory / "log") as log:
        found = _state(log)
        tools, act = _tools(log, world)
        if ending == "crash":
            recover(log, tools)
            try:
                with tools.attempt("order-17", 1) as attempt:
                    attempt.call(act, item="it")
            except EffectError:
                pass  # Indeterminate: the state below says so
        else:
            with tools.attempt("order-17", 1) as attempt:
                attempt.cancel()
            recover(log, tools)  # must not bring back what was cancelled
        cell = Cell(_state(log), world.effects(log), len(world.calls))
    return Result(effect_class, point, ending, found, cell, EXPECTED[effect_class, ending][POINTS.index(point)])


def run_matrix(directory: Path, each: Callable[[Result], None] | None = None, *, seconds_max: float | None = None) -> list[Result]:
    """All cells, each in a directory of its own below `directory`; `each` sees them as they come.

    No further cell is begun when `seconds_max` have passed: the list is short then.
    """
    results: list[Result] = []
    started = time.monotonic()
    for effect_class, point, ending in cells():
        if results and seconds_max is not None and time.monotonic() - started > seconds_max:
            break
        result = run_cell(directory / f"{effect_class.value}-{point}-{ending}", effect_class, point, ending)
        results.append(result)
        if each is not None:
            each(result)
    return results


def cells() -> Iterator[tuple[EffectClass, str, Ending]]:
    return ((effect_class, point, ending) for ending in ENDINGS for effect_class in EffectClass for point in POINTS)


def _state(log: EventLog) -> IntentState | None:
    return next((intent.state for intent in fold(EFFECTS, log).intents.values()), None)
