"""The question to the receiver whether an effect happened, and what is written of its answer."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from eventlog.projections import effect_events as ev
from eventlog.projections.effects import Intent
from eventlog.recovery.answers import Answer, IntentView, Unknown
from eventlog.recovery.decide import Settle
from eventlog.recovery.ops import AskHook, Op, Steps, Write
from eventlog.recovery.records import Records
from eventlog.recovery.tool import Tool
from eventlog.recovery.values import clean_text

__all__ = ["ask", "settle"]


def ask(records: Records, tool: Tool, intent: Intent, request: dict[str, Any]) -> Generator[Op, Any, Answer]:
    """Ask the reconcile hook of the tool. A hook that raises, or says something else, has no answer: Unknown."""
    view = IntentView(
        intent.id.text,
        intent.tool,
        records.arguments(request),
        request["key"],
        intent.tries,
        intent.dispatched_ns or 0,
        tuple(intent.external_ids or ()),
    )
    try:
        answer = yield AskHook(tool, view)
    except GeneratorExit:
        raise
    except Unknown as unknown:
        return unknown
    except Exception as error:  # noqa: BLE001 - a hook that raises has no answer, and must not stop the others
        return Unknown(f"the reconcile hook raised {type(error).__name__}: {clean_text(str(error), 300)}")
    return answer if isinstance(answer, Answer) else Unknown(f"the reconcile hook returned {type(answer).__name__}")


def settle(records: Records, tool: Tool, intent: Intent, seen: int, what: Settle) -> Steps:
    """What the receiver says, if nothing came since it was asked (`seen`): the call itself may have come back, in another thread."""
    text, actor = intent.id.text, f"eventlog {records.by}"
    if not what.happened:
        event = ev.resolved(text, "not_happened", reason=what.reason, actor=actor, source="reconcile", seen=seen)
        yield Write(text, lambda now, cancelled: (event,) if now is not None and now.version == seen else None)
        return
    kind, result, _, _ = yield from records.keep(tool, what.outcome)
    happened = ev.resolved(text, "happened", reason="the receiver has it", actor=actor, source="reconcile", seen=seen)
    done = ev.completed(text, kind=kind, try_number=intent.tries, source="reconciled", result=result)
    yield Write(text, lambda now, cancelled: (happened, *done) if now is not None and now.version == seen else None)
