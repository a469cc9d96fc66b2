"""Five ways to guard an effect that look right and are not, and one that is: what `eventlog crashtest` is for.

    eventlog crashtest --effects-file {dir}/effects -- python examples/broken_guards.py two-records {dir}

Each does two effects (a line in a file). Run again after a crash, it goes on where the log says that it was.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from eventlog import Durability, EventLog, crashpoints
from eventlog.projections import EFFECTS, EffectClass, Intent, IntentId, IntentState, fold
from eventlog.projections import effect_events as ev
from eventlog.recovery import Indeterminate, Toolbox, ToolContext, recover

IMMEDIATE, BATCHED = Durability.IMMEDIATE, Durability.BATCHED


def happen(place: Path, what: str) -> str:
    """The effect: one line, on disk before it returns."""
    with open(place / "effects", "a") as file:
        file.write(what + "\n")
        file.flush()
        os.fsync(file.fileno())
    crashpoints.reach("in-tool")
    return what


def right(log: EventLog, place: Path) -> None:
    tools = Toolbox(log)

    @tools.tool(EffectClass.NON_IDEMPOTENT)
    def act(ctx: ToolContext, what: str) -> str:
        return happen(place, what)

    recover(log, tools)
    with tools.attempt("b", 1) as attempt:
        for what in ("one", "two"):
            try:
                attempt.call(act, what)
            except Indeterminate as error:
                print(error)


def broken(kind: str, log: EventLog, place: Path) -> None:
    durability = BATCHED if kind == "no-fsync" else IMMEDIATE
    known = fold(EFFECTS, log).intents
    for step, what in enumerate(("one", "two"), 1):
        id_ = IntentId("b", 1, step)
        text, intent = str(id_), known.get(str(id_))
        if intent is not None and intent.state is IntentState.COMMITTED:
            continue
        if intent is not None and intent.state is IntentState.DISPATCHED and kind != "retry-of-unknown":
            print(f"{text} may have been sent")
            continue
        pending = ev.pending(
            id_, tool="act", version="1", class_=EffectClass.NON_IDEMPOTENT, digest="", key="", key_scope="attempt", args={"what": what}
        )
        dispatched = _dispatched(text, intent)
        outcome, committed = ev.completed(text, kind="ok", try_number=1, source="resend", result={"value": what})
        if kind == "batched-intents":
            if intent is None:
                log.commit([pending, dispatched], durability)
        else:
            if intent is None:
                log.commit(pending, durability)
            crashpoints.reach("after-pending")
            if kind != "two-records":
                log.commit(dispatched, durability)
        crashpoints.reach("after-dispatched")
        happen(place, what)
        crashpoints.reach("after-effect")
        if kind == "outcome-before-committed":
            log.commit(outcome, durability)
            crashpoints.reach("after-outcome")
            log.commit(committed, durability)
        else:
            log.commit([outcome, committed], durability)
        crashpoints.reach("after-committed")


def _dispatched(text: str, intent: Intent | None) -> ev.Event:
    resend = intent is not None and intent.state is IntentState.DISPATCHED
    return ev.dispatched(text, try_number=(intent.tries if intent else 0) + 1, pid=os.getpid(), by="guard", resend=resend)


KINDS = ("two-records", "no-fsync", "batched-intents", "outcome-before-committed", "retry-of-unknown")


def main() -> None:
    kind, place = sys.argv[1], Path(sys.argv[2])
    with EventLog.open(place / "log", batch_window_ms=600_000) as log:
        if kind == "right":
            right(log, place)
        else:
            broken(kind, log, place)


if __name__ == "__main__":
    main()
