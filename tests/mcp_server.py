"""A real MCP server over stdio, for the tests: it appends to the ledger that it is given, and may die in the middle of a call."""

import os
import sys

from eventlog.testing import Ledger

try:
    from mcp.server import MCPServer as Server
    from mcp.types import ToolAnnotations

    HINTS = {"read": ToolAnnotations(read_only_hint=True), "put": ToolAnnotations(idempotent_hint=True)}
except ImportError:  # before version 2
    from mcp.server.fastmcp import FastMCP as Server
    from mcp.types import ToolAnnotations

    HINTS = {"read": ToolAnnotations(readOnlyHint=True), "put": ToolAnnotations(idempotentHint=True)}

world = Ledger(sys.argv[1])
server = Server("test")


def act(name: str, die: bool) -> str:
    first = not world.find(effect=name)
    world.happen(name)
    if die and first:
        os._exit(1)
    return f"did {name}"


@server.tool(annotations=HINTS["read"])
def read(die: bool = False) -> str:
    return act("read", die)


@server.tool(annotations=HINTS["put"])
def put(die: bool = False) -> str:
    return act("put", die)


@server.tool()
def post(die: bool = False) -> str:
    return act("post", die)


@server.tool()
def pay(idempotency_key: str = "", die: bool = False) -> str:
    world.happen("key", key=idempotency_key)
    return act("pay", die)


@server.tool()
def broken() -> str:
    raise ValueError("no such customer")


if __name__ == "__main__":
    server.run("stdio")
