"""Who else records an external effect durably: the sides of the `effects` workload, each with what it records and when.

Only the first three record before the call, and so can tell a crash before it from one after it. The tool does nothing: what is measured
is the guard around it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import itertools
import logging
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import orjson

from benchmarks.peers import Opened, Store, each, eventsourcing_application
from benchmarks.stores import sqlite
from eventlog import EventLog
from eventlog.recovery import EffectClass, Toolbox

ARGUMENT = "the quick brown fox"


class _Left(TypedDict):
    """The state of LangGraph's graph: effects that are still to be made."""

    left: int


def nothing(text: str) -> dict[str, Any]:
    """The tool."""
    return {"ok": True}


def _guard(path: Path) -> Opened:
    """One attempt; opening it is not timed, since a runtime does it once."""
    log = EventLog.open(path)
    tools = Toolbox(log)
    tool = tools.guard(nothing, EffectClass.NON_IDEMPOTENT)
    entered = contextlib.ExitStack()
    entered.callback(log.close)
    attempt = entered.enter_context(tools.attempt("bench", 1))
    return Opened(each(lambda _: attempt.call(tool, text=ARGUMENT)), entered.close)


def outbox(path: Path) -> sqlite3.Connection:
    """A table of effects with a state, as an outbox is written by hand; sqlite's settings as in stores.sqlite."""
    connection = sqlite(path, "FULL")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS effects(id TEXT PRIMARY KEY, state TEXT, tool TEXT, args BLOB, "
        "pending INTEGER, dispatched INTEGER, committed INTEGER, outcome BLOB) WITHOUT ROWID"
    )
    return connection


def _outbox(path: Path) -> Opened:
    connection = outbox(path)
    execute, now = connection.execute, time.time_ns
    steps, one_at_a_time = itertools.count(1), threading.Lock()  # threads share the connection (peers._sqlite says why)

    def transaction(statement: str, values: tuple[object, ...]) -> None:
        with one_at_a_time:
            execute("BEGIN IMMEDIATE")
            execute(statement, values)
            execute("COMMIT")

    def effect(_: object) -> None:
        id_ = f"bench@1:{next(steps)}"
        transaction(
            "INSERT INTO effects(id, state, tool, args, pending) VALUES(?, 'pending', 'nothing', ?, ?)",
            (id_, orjson.dumps({"text": ARGUMENT}), now()),
        )
        transaction("UPDATE effects SET state = 'dispatched', dispatched = ? WHERE id = ? AND state = 'pending'", (now(), id_))
        result = nothing(ARGUMENT)
        transaction(
            "UPDATE effects SET state = 'committed', outcome = ?, committed = ? WHERE id = ? AND state = 'dispatched'",
            (orjson.dumps(result), now(), id_),
        )

    return Opened(each(effect), connection.close)


@functools.cache
def _effect_class() -> Any:
    """The effect as an aggregate; made once, since eventsourcing knows a class by its name."""
    domain: Any = importlib.import_module("eventsourcing.domain")

    class Effect(domain.Aggregate):  # type: ignore[misc]
        def __init__(self, tool: str, args: str) -> None:
            self.tool, self.args, self.state, self.outcome = tool, args, "pending", ""

        def dispatched(self) -> None:
            self.state = "dispatched"

        def committed(self, outcome: str) -> None:
            self.state, self.outcome = "committed", outcome

        dispatched = domain.event("Dispatched")(dispatched)
        committed = domain.event("Committed")(committed)

    return Effect


def _eventsourcing(path: Path) -> Opened:
    app, made_of = eventsourcing_application(path), _effect_class()

    def effect(_: object) -> None:
        made = made_of("nothing", ARGUMENT)
        app.save(made)
        made.dispatched()
        app.save(made)
        made.committed("ok" if nothing(ARGUMENT)["ok"] else "failed")
        app.save(made)

    return Opened(each(effect), app.close)


class _DBOS:
    """One workflow that calls the step again and again. A process has one DBOS: one system database for all rounds."""

    def __init__(self, path: Path) -> None:
        dbos: Any = importlib.import_module("dbos")
        logging.getLogger("dbos").setLevel(logging.CRITICAL)
        with contextlib.redirect_stdout(io.StringIO()):
            config = {"name": "bench", "system_database_url": f"sqlite:///{path}", "run_admin_server": False, "log_level": "CRITICAL"}
            dbos.DBOS(config=config)
            step = dbos.DBOS.step()(nothing)
            steps = each(lambda _: step(ARGUMENT))

            def workflow(count: int) -> list[float]:
                return steps(range(count))

            self._workflow = dbos.DBOS.workflow()(workflow)
            dbos.DBOS.launch()
        self._named = dbos.SetWorkflowID

    def run(self, items: Sequence[Any]) -> list[float]:
        with self._named(str(uuid.uuid4())):
            return list(self._workflow(len(items)))


_running: list[_DBOS] = []


def _dbos(path: Path) -> Opened:
    if not _running:
        _running.append(_DBOS(path))
    return Opened(_running[0].run, lambda: None)


def _langgraph(path: Path) -> Opened:
    """A graph of one node that runs until all is done; a step is from one call of the node to the next."""
    graph: Any = importlib.import_module("langgraph.graph")
    saver: Any = importlib.import_module("langgraph.checkpoint.sqlite")
    entered = contextlib.ExitStack()
    checkpoints = entered.enter_context(saver.SqliteSaver.from_conn_string(os.fspath(path)))
    begun: list[float] = []

    def node(state: _Left) -> _Left:
        begun.append(time.perf_counter())
        nothing(ARGUMENT)
        return {"left": state["left"] - 1}

    builder = graph.StateGraph(_Left)
    builder.add_node("effect", node)
    builder.add_edge(graph.START, "effect")
    builder.add_conditional_edges("effect", lambda state: "effect" if state["left"] else graph.END)
    app = builder.compile(checkpointer=checkpoints)

    def run(items: Sequence[Any]) -> list[float]:
        begun.clear()
        config = {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": len(items) + 10}
        app.invoke({"left": len(items)}, config, durability="sync")
        moments = [*begun, time.perf_counter()]
        return [after - before for before, after in itertools.pairwise(moments)]

    return Opened(run, entered.close)


EFFECTS = {
    store.kind: store
    for store in (
        Store(
            "guard", "guarded effect", "", _guard,
            settings="three commits, IMMEDIATE: pending, dispatched, outcome with committed",
            power_cut="never sent and may have been sent are told apart",
        ),
        Store(
            "outbox", "sqlite3 WAL FULL outbox", "", _outbox, threads=True,
            settings="three transactions: pending, dispatched, committed with its outcome",
            power_cut="as the guard",
        ),
        Store(
            "eventsourcing-effect", "eventsourcing, 3 saves", "eventsourcing", _eventsourcing,
            settings="sqlite recorder: WAL at sqlite's FULL; three events",
            power_cut="as the guard",
        ),
        # Its SQLite engine sets neither a journal mode nor synchronous: the rollback journal at FULL, four syncs a transaction.
        Store(
            "dbos", "DBOS (SQLite) step", "dbos", _dbos,
            settings="its defaults: rollback journal at FULL; a step is recorded once, after the call",
            power_cut="a crash before the call looks like one after it; the step runs again",
        ),
        # langgraph.types.Durability: "sync" persists before the next step starts. SqliteSaver sets WAL and leaves synchronous at FULL.
        Store(
            "langgraph", "LangGraph (SqliteSaver) node", "langgraph.checkpoint.sqlite", _langgraph,
            settings="durability=sync set by us: by default it persists while the next step runs; a node is recorded after its call",
            power_cut="as DBOS: the node runs again",
        ),
    )
}  # fmt: skip
"""Everything that one effect can be recorded in, by the name that the sync counter knows it by."""
