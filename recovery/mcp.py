"""Guarding the tools of an MCP server: every call_tool of a client session becomes an intent. Nothing of the `mcp` package is imported.

The protocol has no idempotency key of its own: ours goes into the request's `_meta`, and into an argument of the tool where local
policy names one.
A result with isError is an answer, and is committed as it is; only a call without an answer is Unknown.
"""

from __future__ import annotations

import inspect
from typing import Any

from eventlog.projections.intent import EffectClass
from eventlog.recovery.context import ToolContext
from eventlog.recovery.errors import BadTool
from eventlog.recovery.tool import Tool
from eventlog.recovery.toolbox import Toolbox

__all__ = ["KEY_META", "guard_mcp_tool"]

KEY_META = "io.github.eventlog/idempotency-key"


def guard_mcp_tool(
    tools: Toolbox,
    session: Any,
    tool: Any,
    *,
    trusted: bool = False,
    effect_class: EffectClass | None = None,
    server: str = "mcp",
    key_argument: str | None = None,
    **options: Any,
) -> Tool:
    """Guard one tool of a server: `await attempt.acall(guarded, {"path": "x"})` gives its CallToolResult as a JSON object.

    `session` is an mcp.ClientSession, `tool` one of its list_tools(). The class comes from the annotations if the server is `trusted`, or
    from `effect_class`, your own word, which always wins. `key_argument` names the argument of the tool that takes an idempotency key;
    `server` keeps the tools of two servers apart. `options` are those of Toolbox.guard (reconcile=, key_ttl=, timeout=, ...).
    A session lives on its event loop: after a crash use `await arecover(log, tools)`.
    """
    asks = options.get("reconcile") is not None
    has_key = key_argument is not None and options.get("key_ttl") is not None
    class_ = effect_class
    if class_ is None:
        class_ = EffectClass.from_mcp(getattr(tool, "annotations", None), trusted=trusted, has_key=has_key, can_ask=asks)
    properties = (getattr(tool, "inputSchema", None) or getattr(tool, "input_schema", None) or {}).get("properties", {})
    if key_argument is not None and key_argument not in properties:
        raise BadTool(f"{tool.name}: key_argument={key_argument!r} names no argument of it; it has {sorted(properties)}")
    takes_meta = "meta" in inspect.signature(session.call_tool).parameters

    async def call_tool(ctx: ToolContext, arguments: dict[str, Any]) -> Any:
        sent = dict(arguments)
        if key_argument is not None:
            sent[key_argument] = ctx.idempotency_key
        meta = {"meta": {KEY_META: ctx.idempotency_key}} if takes_meta else {}
        return await session.call_tool(tool.name, sent, **meta)

    return tools.guard(
        call_tool,
        class_,
        **{"name": f"{server}.{tool.name}", "takes_ctx": True, "encode": _plain, **options},
    )


def _plain(result: Any) -> Any:
    dump = getattr(result, "model_dump", None)
    return dump(mode="json", by_alias=True, exclude_none=True) if dump is not None else result
