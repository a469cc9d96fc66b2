"""The request of an intent: its key, what is recorded of it before anything leaves, and whether a replay makes the same one."""

from __future__ import annotations

import functools
from typing import Any

import orjson

from eventlog import Event
from eventlog.projections import effect_events as ev
from eventlog.projections.effects import Intent
from eventlog.projections.intent import IntentId
from eventlog.recovery.errors import NonDeterminism
from eventlog.recovery.tool import Tool
from eventlog.recovery.values import clean_text, counted, idempotency_key

__all__ = ["check_same", "pending_event"]


def pending_event(
    tool: Tool, named: dict[str, Any], digest: str, id_: IntentId, log_id: str, *, blob: dict[str, Any] | None, now_ns: int
) -> Event:
    """effect.pending for a call with the canonical arguments `named`; `blob` refers to them when they are too large to go inline."""
    spec = tool.spec
    options = spec.options
    if spec.deadline_s is not None or spec.operation is not None or spec.resource is not None:
        options = dict(options)
    if spec.deadline_s is not None:
        options["deadline_ns"] = now_ns + round(spec.deadline_s * 1e9)
    if spec.operation is not None:
        options["operation"] = str(named[spec.operation])
    if spec.resource is not None:
        options["resource"] = f"{spec.name}:{orjson.dumps(named[spec.resource]).decode()}"
    return ev.pending(
        id_,
        tool=spec.name,
        version=spec.version,
        class_=spec.effect_class,
        digest=digest,
        key=_key(tool, id_, log_id, options.get("operation")),
        key_scope=spec.key_scope,
        options=options,
        args=named if blob is None else None,
        args_blob=blob,
    )


def _key(tool: Tool, id_: IntentId, log_id: str, operation: str | None) -> str:
    """Derived by us, never taken from the caller, who may be a model that makes a new one for each try (research: effects 1.3)."""
    spec = tool.spec
    if spec.key_scope == "operation":
        return idempotency_key(counted(log_id, "operation", spec.name, operation or ""))
    scope, number = ("attempt", str(id_.attempt)) if spec.key_scope == "attempt" else ("branch", "")
    before, after = _around(log_id, id_.branch, scope, number, spec.name)
    step = str(id_.step).encode()
    return idempotency_key(b"%b%d:%b%b" % (before, len(step), step, after))


@functools.lru_cache(1024)
def _around(log_id: str, branch: str, scope: str, number: str, tool: str) -> tuple[bytes, bytes]:
    """What comes before and behind the step: the same for each step of an attempt with that tool."""
    return counted(log_id, branch, scope, number), counted(tool)


def check_same(intent: Intent, tool: Tool, named: dict[str, Any], digest: str) -> None:
    if intent.tool == tool.spec.name and intent.digest == digest:
        return
    recorded = (intent.request or {}).get("args")
    was = f"{intent.tool}({_shown(recorded)})" if recorded is not None else f"{intent.tool} with arguments of digest {intent.digest[:12]}"
    now = f"{tool.spec.name}({_shown(named)})"
    if recorded is None:
        now += f", digest {digest[:12]}"
    raise NonDeterminism(
        f"{intent.id} is recorded as {was}, and is now called as {now}; nothing was sent: "
        "restart with the recorded program, or in a new attempt",
        intent=str(intent.id),
        recorded=(intent.tool, intent.digest),
        now=(tool.spec.name, digest),
    )


def _shown(named: dict[str, Any]) -> str:
    return clean_text(", ".join(f"{name}={value!r}" for name, value in named.items()), 200)
