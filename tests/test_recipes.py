"""The recipes for agent frameworks, run with the real packages where they are installed: an effect survives that the run is made again."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.recovery import EffectClass, Tool, Toolbox, ToolContext
from eventlog.testing import Ledger

pytestmark = pytest.mark.filterwarnings("ignore")  # what other packages warn about is theirs
EXAMPLES = Path(__file__).parent.parent / "examples"


def recipe(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def world(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "world")


@pytest.fixture
def tools(tmp_path: Path, world: Ledger) -> Iterator[tuple[Toolbox, Tool]]:
    with EventLog.open(tmp_path / "log") as log:
        box = Toolbox(log)

        @box.tool(EffectClass.NON_IDEMPOTENT)
        def charge(ctx: ToolContext, amount: int) -> dict[str, int]:
            world.happen("charge", amount)
            return {"charged": amount}

        yield box, charge


def test_openai_agents(tools: tuple[Toolbox, Tool], world: Ledger) -> None:
    pytest.importorskip("agents", reason="openai-agents is not installed")
    from agents.tool_context import ToolContext as AgentsContext  # type: ignore[import-not-found,unused-ignore]

    box, charge = tools
    make = recipe("with_openai_agents").charge_tool

    async def run() -> Any:
        async with box.attempt("order-17", 1) as attempt:
            function = make(attempt, charge)
            arguments = json.dumps({"amount": 10})
            context = AgentsContext(context=None, tool_name=function.name, tool_call_id="call_1", tool_arguments=arguments)
            return await function.on_invoke_tool(context, arguments)

    assert asyncio.run(run()) == asyncio.run(run()) == {"charged": 10}
    assert [entry.data for entry in world.entries()] == [10]


def test_pydantic_ai(tools: tuple[Toolbox, Tool], world: Ledger) -> None:
    ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart  # type: ignore[import-not-found,unused-ignore]
    from pydantic_ai.models.function import FunctionModel  # type: ignore[import-not-found,unused-ignore]

    box, charge = tools
    make = recipe("with_pydantic_ai").charge_tool

    def model(messages: list[Any], info: Any) -> Any:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("charge_customer", {"amount": 10}, tool_call_id="call-1")])
        return ModelResponse(parts=[TextPart(str(messages[-1].parts[0].content))])

    async def run() -> str:
        async with box.attempt("order-17", 1) as attempt:
            agent = ai.Agent(FunctionModel(model), tools=[make(attempt, charge)])
            return str((await agent.run("charge 10")).output)

    assert asyncio.run(run()) == asyncio.run(run()) == "{'charged': 10}"
    assert [entry.data for entry in world.entries()] == [10]


def test_langgraph(tools: tuple[Toolbox, Tool], world: Ledger) -> None:
    pytest.importorskip("langgraph", reason="langgraph is not installed")
    from langchain_core.messages import AIMessage  # type: ignore[import-not-found,unused-ignore]
    from langgraph.graph import END, START, MessagesState, StateGraph  # type: ignore[import-not-found,unused-ignore]
    from langgraph.prebuilt import ToolNode  # type: ignore[import-not-found,unused-ignore]

    box, charge = tools
    make = recipe("with_langgraph").charge_tool

    def run() -> list[str]:
        with box.attempt("order-17", 1) as attempt:
            graph = StateGraph(MessagesState)
            graph.add_node("tools", ToolNode([make(attempt, charge)]))
            graph.add_edge(START, "tools")
            graph.add_edge("tools", END)
            calls = [{"name": "charge_customer", "args": {"amount": n}, "id": f"call-{n}", "type": "tool_call"} for n in (10, 20)]
            result = graph.compile().invoke({"messages": [AIMessage("", tool_calls=calls)]})
            return [str(message.content) for message in result["messages"][1:]]

    assert run() == run() == ['{"charged": 10}', '{"charged": 20}']
    assert sorted(entry.data for entry in world.entries()) == [10, 20]
