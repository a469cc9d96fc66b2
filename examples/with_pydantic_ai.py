"""Pydantic AI: the agent's tool calls the guarded one, and names the step by the id of the tool call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_ai import RunContext

from eventlog.recovery import Attempt, Tool


def charge_tool(attempt: Attempt, charge: Tool) -> Callable[..., Any]:
    """Give this to Agent(tools=[...])."""

    async def charge_customer(ctx: RunContext[None], amount: int) -> dict[str, Any]:
        """Charge the customer."""
        result: dict[str, Any] = await attempt.acall(charge, amount=amount, step=f"call:{ctx.tool_call_id}")
        return result

    # The decorator-free way to register reads the annotations, which are strings here.
    charge_customer.__annotations__ = {"ctx": RunContext[None], "amount": int, "return": dict[str, Any]}
    return charge_customer
