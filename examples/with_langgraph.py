"""LangGraph: the node's tool calls the guarded one. ToolNode runs tools in threads of its own, so the step is named by the tool call."""

from typing import Annotated, Any

from langchain_core.tools import BaseTool, InjectedToolCallId, tool

from eventlog.recovery import Attempt, Tool


def charge_tool(attempt: Attempt, charge: Tool) -> BaseTool:
    """Give this to ToolNode([...])."""

    @tool
    def charge_customer(amount: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> dict[str, Any]:
        """Charge the customer."""
        result: dict[str, Any] = attempt.call(charge, amount=amount, step=f"call:{tool_call_id}")
        return result

    return charge_customer
