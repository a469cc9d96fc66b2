"""Peers that need a package: `pip install .[bench]`. What is not installed is skipped, and the report says so."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from benchmarks.commits import IMMEDIATE, commit_all, ours
from benchmarks.race import Bench, Figure, Result, Sample, Side, timed
from benchmarks.stores import events, syncs_of


class Peer(NamedTuple):
    """`make(module, bench, count)` gives its side; `target` is the least ratio of ours to it."""

    package: str
    title: str
    target: float | None
    note: str
    make: Callable[[Any, Bench, int], Side]


def load(bench: Bench, peer: Peer, count: int) -> Side | None:
    """The side of a peer, or None, with the reason printed, when its package is not there."""
    try:
        module = importlib.import_module(peer.package)
    except ImportError as error:
        bench.skip(peer.title, f"{error}; pip install .[bench]")
        return None
    return peer.make(module, bench, count)


def _lmdb(lmdb: Any, bench: Bench, count: int) -> Side:
    """sync=True, the default: each transaction is on disk when it returns, as ours. append=True: keys ascend, its fastest way."""
    made = events(count)

    def turn() -> Sample:
        path = bench.place("lmdb")
        path.mkdir()
        with contextlib.closing(lmdb.open(os.fspath(path), map_size=1 << 30)) as environment:

            def work() -> None:
                for number, one in enumerate(made):
                    with environment.begin(write=True) as transaction:
                        transaction.put(number.to_bytes(8, "big"), orjson.dumps([*one]), append=True)

            return timed(count, work)

    return turn


def _litequeue(litequeue: Any, bench: Bench, count: int) -> Side:
    """It opens sqlite in WAL mode with synchronous=NORMAL: no sync at a put. Set to FULL here, to promise what we do."""
    made = events(count)

    def turn() -> Sample:
        queue = litequeue.LiteQueue(os.fspath(bench.place("queue.db")))
        queue.conn.execute("PRAGMA synchronous=FULL")
        try:
            return timed(count, lambda: [queue.put(orjson.dumps([*one]).decode()) for one in made])
        finally:
            queue.close()

    return turn


def _eventsourcing(eventsourcing: Any, bench: Bench, count: int) -> Side:
    """Its sqlite recorder on a file: WAL, and sqlite's default of synchronous=FULL, so it is as durable as we are.

    Three saves for an effect, as ours: pending, dispatched, committed.
    """
    application: Any = importlib.import_module("eventsourcing.application")
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

    def turn() -> Sample:
        path = os.fspath(bench.place("eventsourcing.db"))
        app = application.Application(env={"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": path})

        def work() -> None:
            for _ in range(count):
                effect = Effect("nothing", "the quick brown fox")
                app.save(effect)
                effect.dispatched()
                app.save(effect)
                effect.committed("ok")
                app.save(effect)

        try:
            return timed(count, work)
        finally:
            app.close()

    return turn


class _DBOS:
    """DBOS on SQLite with its defaults, one workflow that calls a no-op step again and again: a step is recorded once, after the call.

    One system database for all rounds, since a process has one DBOS.
    """

    def __init__(self, dbos: Any, path: Path) -> None:
        logging.getLogger("dbos").setLevel(logging.CRITICAL)
        with contextlib.redirect_stdout(io.StringIO()):
            config = {"name": "bench", "system_database_url": f"sqlite:///{path}", "run_admin_server": False, "log_level": "CRITICAL"}
            dbos.DBOS(config=config)

            step = dbos.DBOS.step()(_step)

            def workflow(count: int) -> float:
                return timed(count, lambda: [step("the quick brown fox") for _ in range(count)])["rate"]

            self.workflow = dbos.DBOS.workflow()(workflow)
            dbos.DBOS.launch()
        self.id = dbos.SetWorkflowID

    def run(self, count: int) -> Sample:
        with self.id(str(uuid.uuid4())):
            return {"rate": float(self.workflow(count))}


def _step(text: str) -> dict[str, bool]:
    return {"ok": True}


_running: dict[int, _DBOS] = {}


def _dbos(dbos: Any, bench: Bench, count: int) -> Side:
    if not _running:
        _running[0] = _DBOS(dbos, bench.place("dbos.sqlite"))
    return lambda: _running[0].run(max(5, count // 4))


EFFECT_PEERS = (
    Peer("eventsourcing", "eventsourcing, 3 saves", 1.3, "sqlite recorder, three events for an effect as ours", _eventsourcing),
    Peer("dbos", "DBOS (SQLite) step", 3.0, "one record a step, after the call: crashes before and after it look the same", _dbos),
)
STORE_PEERS = (
    Peer("lmdb", "lmdb put", None, "sync=True", _lmdb),
    Peer("litequeue", "litequeue put", None, "synchronous=FULL set by us: its own NORMAL syncs nothing at a put", _litequeue),
)


def stores(bench: Bench) -> list[Result]:
    """One durable 200-byte event a commit, in stores that people use for it."""
    count = bench.size(500, 10)
    made = events(count)
    name = "eventlog IMMEDIATE"
    sides: dict[str, Side] = {name: ours(bench, made, IMMEDIATE)}
    figures = []
    for peer in STORE_PEERS:
        side = load(bench, peer, count)
        if side is not None:
            sides[peer.title] = side
            figures.append(Figure(f"IMMEDIATE commit : {peer.title}", name, peer.title, peer.target, note=peer.note))
    if not figures:
        return []
    return bench.race("stores", sides, figures, {name: syncs_of(bench.place("log"), count, lambda log: commit_all(log, made, IMMEDIATE))})
