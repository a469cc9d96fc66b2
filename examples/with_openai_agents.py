"""OpenAI Agents SDK: the agent's tool calls the guarded one, and names the step by the id of the tool call."""

from __future__ import annotations

from typing import Any

from agents import FunctionTool, function_tool
from agents.tool_context import ToolContext

from eventlog.recovery import Attempt, Tool


def charge_tool(attempt: Attempt, charge: Tool) -> FunctionTool:
    """Give this to Agent(tools=[...])."""

    @function_tool(failure_error_function=None)  # Indeterminate must not become a text that invites the model to try again
    async def charge_customer(ctx: ToolContext[Any], amount: int) -> dict[str, Any]:
        """Charge the customer."""
        result: dict[str, Any] = await attempt.acall(charge, amount=amount, step=f"call:{ctx.tool_call_id}")
        return result

    return charge_customer
