"""What a model says, and how two APIs put that on the wire. A stream comes in pieces: (index of the block, its events)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Call", "Piece", "Turn", "message", "messages", "responses"]

Piece = tuple[int | None, list[dict[str, Any]]]


@dataclass(frozen=True)
class Call:
    """The model wants a tool. Without an id it gets one that no other call of this FakeModel has."""

    name: str
    input: dict[str, Any]
    id: str = ""


class Turn:
    """One answer of the model: texts and calls. `gate`: answer only once it is set. `pause_s` follows each block. `cut_after`: the
    connection breaks after that block. `status`: an HTTP error instead. `tokens`: how long the request claims to have been."""

    def __init__(
        self,
        *blocks: str | Call,
        gate: threading.Event | None = None,
        pause_s: float = 0.0,
        cut_after: int | None = None,
        status: int | None = None,
        tokens: int = 10,
    ) -> None:
        self.blocks, self.gate, self.pause_s, self.cut_after, self.status, self.tokens = blocks, gate, pause_s, cut_after, status, tokens


# -- the Messages API (Claude Code) --------------------------------------------------------------------------------------------------


def message(number: int, turn: Turn, model: str) -> dict[str, Any]:
    """The whole answer at once."""
    usage = {"input_tokens": turn.tokens, "output_tokens": 20, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {
        "id": f"msg_{number:03d}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [_whole(block) for block in turn.blocks],
        "stop_reason": "tool_use" if any(isinstance(block, Call) for block in turn.blocks) else "end_turn",
        "stop_sequence": None,
        "usage": usage,
    }


def messages(number: int, turn: Turn, model: str) -> Iterator[Piece]:
    """The same as a stream."""
    whole = message(number, turn, model)
    yield None, [{"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}]
    for index, block in enumerate(turn.blocks):
        if isinstance(block, Call):
            empty: dict[str, Any] = {**_whole(block), "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block.input)}
        else:
            empty, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block}
        yield (
            index,
            [
                {"type": "content_block_start", "index": index, "content_block": empty},
                {"type": "content_block_delta", "index": index, "delta": delta},
                {"type": "content_block_stop", "index": index},
            ],
        )
    stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield None, [{"type": "message_delta", "delta": stop, "usage": whole["usage"]}, {"type": "message_stop"}]


def _whole(block: str | Call) -> dict[str, Any]:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}


# -- the Responses API (Codex) -------------------------------------------------------------------------------------------------------


def responses(number: int, turn: Turn, model: str) -> Iterator[Piece]:
    """The stream of one response."""
    head = {"id": f"resp_{number:03d}", "object": "response", "model": model, "status": "in_progress", "output": []}
    yield None, [{"type": "response.created", "response": head}]
    items = [_item(number, index, block) for index, block in enumerate(turn.blocks)]
    for index, item in enumerate(items):
        started, done = ({"type": f"response.output_item.{word}", "output_index": index, "item": item} for word in ("added", "done"))
        yield index, [started, done]
    usage = {"input_tokens": turn.tokens, "output_tokens": 20, "total_tokens": turn.tokens + 20}
    yield None, [{"type": "response.completed", "response": {**head, "status": "completed", "output": items, "usage": usage}}]


def _item(number: int, index: int, block: str | Call) -> dict[str, Any]:
    if isinstance(block, str):
        content = [{"type": "output_text", "text": block, "annotations": []}]
        return {"type": "message", "id": f"msg_{number:03d}_{index}", "role": "assistant", "status": "completed", "content": content}
    if "code" in block.input:  # a tool that takes a text: the JavaScript that newer models of Codex call everything from
        text = {"name": block.name, "input": block.input["code"], "call_id": block.id}
        return {"type": "custom_tool_call", "id": f"ctc_{number:03d}_{index}", "status": "completed", **text}
    arguments = {"name": block.name, "arguments": json.dumps(block.input), "call_id": block.id}
    return {"type": "function_call", "id": f"fc_{number:03d}_{index}", "status": "completed", **arguments}
