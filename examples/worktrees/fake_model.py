"""A model API on loopback that answers what a script says, and keeps every request: what stands in there is what a model would have read.

    with FakeModel([Turn(Call("Bash", {"command": "ls"})), Turn("done")]) as model:
        model.listen()                                  # http://127.0.0.1:PORT is model.address
        …
        model.requests("main")[1].texts()               # what the model was given after the call

It speaks as much of the Messages API as Claude Code needs, and of the Responses API for Codex. A turn can be held until the test says go,
be slow between its blocks, break off, or fail. Requests of subagents, of titles and of compactions are told apart and do not use up the
script.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import wire
from wire import Call, Turn

__all__ = ["Call", "Exchange", "FakeModel", "Turn"]

_TOOLS_OF_AN_AGENT = {"Bash", "Read"}  # a request that offers none of them is a side question: a title, a summary of a page
_COMPACTION = ("CRITICAL: Respond with TEXT ONLY", "summary of the conversation", "<summary>")


@dataclass
class Exchange:
    """One request and what was answered. `kind`: main, sub (a subagent), compaction, side. `calls`: ids of the calls sent so far."""

    number: int
    kind: str
    arrived_ns: int
    request: dict[str, Any]
    calls: list[str] = field(default_factory=list)
    answered: bool = False

    def texts(self) -> list[str]:
        """Every string that the model was given, in order; not what it said itself, nor the system prompt."""
        conversation = self.request.get("messages") or self.request.get("input") or []
        return list(
            _strings(
                [
                    item
                    for item in conversation
                    if item.get("role") != "assistant" and item.get("type") not in ("function_call", "custom_tool_call")
                ]
            )
        )

    def result(self, call: str) -> str | None:
        """What the model was told that this call came to."""
        for message in self.request.get("messages", []):
            for block in message["content"] if isinstance(message["content"], list) else []:
                if block.get("type") == "tool_result" and block.get("tool_use_id") == call:
                    return "".join(_strings(block["content"]))
        for item in self.request.get("input", []):
            if item.get("type") in ("function_call_output", "custom_tool_call_output") and item.get("call_id") == call:
                return "".join(_strings(item["output"]))
        return None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
    elif isinstance(value, dict):
        for name, one in value.items():
            if name not in ("type", "role", "id", "tool_use_id", "call_id", "cache_control", "signature"):
                yield from _strings(one)


class FakeModel:
    """The script, the requests, and any number of listening sockets. Safe for threads."""

    def __init__(self, turns: Sequence[Turn] = (), *, subagent: Sequence[Turn] = (), keep: Path | None = None) -> None:
        self.turns, self.subagent, self.keep = list(turns), list(subagent), keep
        self.exchanges: list[Exchange] = []
        self.address = ""
        self._changed = threading.Condition()
        self._used = {"main": 0, "sub": 0}
        self._prompts: list[str] = []  # of the subagents that were asked for
        self._servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []
        self._closing = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def listen(self, listener: socket.socket | None = None) -> str:
        """Serve on this socket (it may belong to another network namespace), or on a free port of loopback; the address."""
        if listener is None:
            listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        server = ThreadingHTTPServer(address, _handler(self), bind_and_activate=False)
        server.socket.close()
        server.socket = listener
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="fake model", daemon=True)
        thread.start()
        self._servers.append((server, thread))
        self.address = f"http://{address[0]}:{address[1]}"
        return self.address

    def close(self) -> None:
        """Answer nothing more."""
        self._closing.set()
        for server, thread in self._servers:
            server.shutdown()
            server.server_close()
            thread.join()
        self._servers.clear()

    def requests(self, kind: str = "main") -> list[Exchange]:
        """All requests of a kind so far."""
        with self._changed:
            return [one for one in self.exchanges if one.kind == kind]

    def wait(self, count: int, kind: str = "main", *, timeout_s: float = 60.0) -> Exchange:
        """The count-th request of a kind, from 1. Raises TimeoutError with what came instead."""
        self.wait_for(lambda: len([one for one in self.exchanges if one.kind == kind]) >= count, f"request {count}", timeout_s)
        return self.requests(kind)[count - 1]

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        """Wait for something that requests and answers bring about. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                came = [(one.kind, one.answered) for one in self.exchanges]
                raise TimeoutError(f"no {what} in {timeout_s} s; requests so far: {came}")

    # -- one request ----------------------------------------------------------------------------------------------------------

    def take(self, body: dict[str, Any]) -> tuple[Exchange, Turn]:
        """File a request, and find its answer in the script."""
        with self._changed:
            kind = self._kind(body)
            number = len(self.exchanges)
            exchange = Exchange(number, kind, time.time_ns(), body)
            if kind in self._used:
                script = self.turns if kind == "main" else self.subagent
                at = self._used[kind]
                self._used[kind] += 1
                turn = script[at] if at < len(script) else Turn("done")
            else:
                turn = Turn("<summary>what was said so far</summary>" if kind == "compaction" else '{"title": "a session"}')
            blocks = [
                Call(b.name, b.input, b.id or f"toolu_{number:03d}_{i}") if isinstance(b, Call) else b for i, b in enumerate(turn.blocks)
            ]
            turn = Turn(*blocks, gate=turn.gate, pause_s=turn.pause_s, cut_after=turn.cut_after, status=turn.status, tokens=turn.tokens)
            self._prompts += [block.input["prompt"] for block in blocks if isinstance(block, Call) and "prompt" in block.input]
            self.exchanges.append(exchange)
            self._changed.notify_all()
        if self.keep is not None:
            self.keep.mkdir(exist_ok=True)
            (self.keep / f"{number:03d}-{kind}.json").write_text(json.dumps(body, indent=1))
        while turn.gate is not None and not turn.gate.wait(0.05) and not self._closing.is_set():
            pass
        return exchange, turn

    def sent(self, exchange: Exchange, call: str | None = None) -> None:
        """A call went out, or with it the end of the answer."""
        with self._changed:
            if call is None:
                exchange.answered = True
            else:
                exchange.calls.append(call)
            self._changed.notify_all()

    def _kind(self, body: dict[str, Any]) -> str:
        messages = body.get("messages") or []
        if "input" in body:
            return "main"
        if not {tool.get("name") for tool in body.get("tools") or []} & _TOOLS_OF_AN_AGENT:
            return "side"
        if messages and any(word in text for text in _strings(messages[-1]) for word in _COMPACTION):
            return "compaction"
        first = list(_strings(messages[0])) if messages else []
        return "sub" if any(prompt in text for text in first for prompt in self._prompts) else "main"


def _handler(model: FakeModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self._json(404, _error("not_found_error", "there is nothing here"))

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
            if "count_tokens" in self.path:
                self._json(200, {"input_tokens": 10})
            elif self.path.startswith(("/v1/messages", "/v1/responses")):
                try:
                    self._answer(*model.take(body), body, responses="responses" in self.path)
                except OSError:  # the client was killed, which is what some tests are about
                    self.close_connection = True
            else:
                self._json(404, _error("not_found_error", "there is nothing here"))

        def _json(self, status: int, value: object) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _answer(self, exchange: Exchange, turn: Turn, body: dict[str, Any], *, responses: bool) -> None:
            if turn.status is not None:
                self._json(turn.status, _error("api_error", "as the script says"))
                return
            if not body.get("stream"):
                for block in turn.blocks:
                    if isinstance(block, Call):
                        model.sent(exchange, block.id)
                self._json(200, wire.message(exchange.number, turn, str(body.get("model"))))
                model.sent(exchange)
                return
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True
            pieces = wire.responses if responses else wire.messages
            for block, events in pieces(exchange.number, turn, str(body.get("model"))):
                if block is not None and isinstance(turn.blocks[block], Call):
                    model.sent(exchange, turn.blocks[block].id)  # before the client can act on it
                for event in events:
                    self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
                if block is not None:
                    time.sleep(turn.pause_s)
                    if turn.cut_after == block:
                        self.connection.shutdown(socket.SHUT_RDWR)
                        return
            model.sent(exchange)

    return Handler


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}
