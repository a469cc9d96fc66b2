"""MCP annotations become classes, and a real client session over stdio is guarded (research/effects.md 1.6 and row 5)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.projections import EFFECTS, IntentState, fold
from eventlog.recovery import BadTool, EffectClass, EffectError, Toolbox, arecover
from eventlog.recovery.mcp import KEY_META, guard_mcp_tool
from eventlog.testing import Ledger

E = EffectClass


@pytest.mark.parametrize(
    ("annotations", "trusted", "expected"),
    [
        (None, True, E.NON_IDEMPOTENT),
        ({}, True, E.NON_IDEMPOTENT),
        ({"readOnlyHint": True}, True, E.READ_ONLY),
        ({"readOnlyHint": True, "idempotentHint": False, "destructiveHint": True}, True, E.READ_ONLY),
        ({"idempotentHint": True}, True, E.IDEMPOTENT),
        ({"readOnlyHint": False, "idempotentHint": False}, True, E.NON_IDEMPOTENT),
        ({"readOnlyHint": "true"}, True, E.NON_IDEMPOTENT),
        ({"destructiveHint": False}, True, E.NON_IDEMPOTENT),
        ({"readOnlyHint": True, "idempotentHint": True}, False, E.NON_IDEMPOTENT),
        (type("ToolAnnotations", (), {"read_only_hint": True})(), True, E.READ_ONLY),
    ],
)
def test_annotations(annotations: Any, trusted: bool, expected: EffectClass) -> None:
    assert EffectClass.from_mcp(annotations, trusted=trusted) is expected


def test_local_policy() -> None:
    assert EffectClass.from_mcp(None, trusted=True, has_key=True) is E.KEYED
    assert EffectClass.from_mcp(None, trusted=True, can_ask=True) is E.RECONCILABLE
    assert EffectClass.from_mcp(None, trusted=False, has_key=True, can_ask=True) is E.NON_IDEMPOTENT


class FakeSession:
    """Stands for a server that notes what it is sent (the real one is below)."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = []

    async def call_tool(self, name: str, arguments: dict[str, Any], *, meta: dict[str, Any] | None = None) -> Any:
        self.sent.append((name, arguments, meta))
        return {"content": [], "isError": True}


def test_the_key_goes_where_it_belongs(tmp_path: Path) -> None:
    session = FakeSession()
    tool = type("Tool", (), {"name": "pay", "inputSchema": {"properties": {"key": {}, "amount": {}}}, "annotations": None})()

    async def main() -> None:
        with EventLog.open(tmp_path / "log") as log:
            tools = Toolbox(log)
            with pytest.raises(BadTool, match="names no argument"):
                guard_mcp_tool(tools, session, tool, key_argument="nowhere")
            pay = guard_mcp_tool(tools, session, tool, trusted=True, server="bank", key_argument="key", key_ttl=timedelta(hours=1))
            assert (pay.spec.name, pay.spec.effect_class) == ("bank.pay", E.KEYED)
            async with tools.attempt("b", 1) as attempt:
                answer = await attempt.acall(pay, {"amount": 1, "key": "the model's"})
            assert answer == {"content": [], "isError": True}, "isError is an answer"
            (pending,) = log.read(types={"effect.pending"})
            key = pending.data["key"]
            assert session.sent == [("pay", {"amount": 1, "key": key}, {KEY_META: key})]

    asyncio.run(main())


@contextlib.asynccontextmanager
async def connected(world: Path) -> AsyncIterator[Any]:
    mcp = pytest.importorskip("mcp", reason="the mcp package is not installed (pip install 'eventlog[mcp]')")
    from mcp.client.stdio import stdio_client  # type: ignore[import-not-found,unused-ignore]

    root = str(Path(__file__).parent.parent)
    parameters = mcp.StdioServerParameters(
        command=sys.executable,
        args=[str(Path(__file__).parent / "mcp_server.py"), str(world)],
        env={**os.environ, "PYTHONPATH": root},
    )
    async with stdio_client(parameters) as (reader, writer), mcp.ClientSession(reader, writer) as session:
        await session.initialize()
        yield session


async def guarded(tools: Toolbox, session: Any, trusted: bool = True) -> dict[str, Any]:
    return {tool.name: guard_mcp_tool(tools, session, tool, trusted=trusted) for tool in (await session.list_tools()).tools}


def test_a_real_session(tmp_path: Path) -> None:
    async def main() -> None:
        with EventLog.open(tmp_path / "log") as log:
            tools = Toolbox(log)
            async with connected(tmp_path / "world") as session, tools.attempt("b", 1) as attempt:
                handles = await guarded(tools, session)
                classes = {name: handle.spec.effect_class for name, handle in handles.items()}
                assert classes == {
                    "read": E.READ_ONLY,
                    "put": E.IDEMPOTENT,
                    "post": E.NON_IDEMPOTENT,
                    "pay": E.NON_IDEMPOTENT,
                    "broken": E.NON_IDEMPOTENT,
                }
                first = await attempt.acall(handles["post"], {})
                assert first["content"][0]["text"] == "did post"
                wrong = await attempt.acall(handles["broken"], {})
                assert wrong["isError"] is True
            async with connected(tmp_path / "world") as session, Toolbox(log).attempt("b", 1) as again:
                handles = await guarded(again._toolbox, session)
                assert await again.acall(handles["post"], {}) == first
            assert [entry.effect for entry in Ledger(tmp_path / "world").entries()] == ["post"]

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize(
    ("name", "trusted", "left", "calls"),
    [
        ("read", True, IntentState.COMMITTED, 1),  # what failed changed nothing: the failure is its outcome
        ("put", True, IntentState.COMMITTED, 2),
        ("post", True, IntentState.INDETERMINATE, 1),
        ("read", False, IntentState.INDETERMINATE, 1),
        ("put", False, IntentState.INDETERMINATE, 1),
    ],
)
def test_row_5_a_transport_that_drops_mid_call(tmp_path: Path, name: str, trusted: bool, left: IntentState, calls: int) -> None:
    """The server dies after the effect; on the next connection only what may be sent again is."""

    async def main() -> None:
        with EventLog.open(tmp_path / "log") as log:
            with contextlib.suppress(ExceptionGroup):
                async with connected(tmp_path / "world") as session:
                    tools = Toolbox(log)
                    handles = await guarded(tools, session, trusted)
                    async with tools.attempt("b", 1) as attempt:
                        with pytest.raises(EffectError):
                            await asyncio.wait_for(attempt.acall(handles[name], {"die": True}), 20)
            async with connected(tmp_path / "world") as session:
                tools = Toolbox(log)
                await guarded(tools, session, trusted)
                await arecover(log, tools)
            assert fold(EFFECTS, log).intents["b@1:1"].state is left
            assert len(Ledger(tmp_path / "world")) == calls

    asyncio.run(asyncio.wait_for(main(), 60))
