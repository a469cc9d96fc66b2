"""What is written about one intent, and read back: each function yields the write, guarded by the state that it fits."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import orjson

from eventlog import Event
from eventlog.errors import PayloadError
from eventlog.projections import effect_events as ev
from eventlog.projections.effects import Intent
from eventlog.projections.intent import IntentState
from eventlog.recovery.blobs import Blobs
from eventlog.recovery.core import AttemptCore
from eventlog.recovery.decide import Facts
from eventlog.recovery.errors import EffectFailed
from eventlog.recovery.failures import Failure, judge
from eventlog.recovery.ops import Limits, Op, Steps, Store, Write
from eventlog.recovery.tool import Tool
from eventlog.recovery.values import Unencodable, canonical

__all__ = ["Records", "error_data", "outcome_or_late"]

_P, _D, _I = IntentState.PENDING, IntentState.DISPATCHED, IntentState.INDETERMINATE


Encoded = tuple[ev.Kind, dict[str, Any], Any, bytes | None]
"""Kind and fields of an outcome, what the caller gets, and what is so large that it has to be stored beside the log first."""


class Records:
    """Reads and writes for the intents of one attempt; `by` ("guard" or "recovery") is on whose behalf."""

    def __init__(self, core: AttemptCore, blobs: Blobs, limits: Limits, by: str) -> None:
        self.core = core
        self.blobs = blobs
        self.limits = limits
        self.by = by

    def arguments(self, request: dict[str, Any]) -> dict[str, Any]:
        if "args_blob" in request:
            loaded: dict[str, Any] = orjson.loads(self.blobs.get(request["args_blob"]))
            return loaded
        return dict(request["args"])

    def encode(self, tool: Tool, value: Any, *, spill: bool = False) -> Encoded:
        """A result as it is recorded, and as a replay would give it; `spill`: as a blob in any case."""
        spec = tool.spec
        try:
            plain, body = canonical(spec.encode(value) if spec.encode is not None else value)
        except PayloadError as error:
            return _unencodable(value, f"{error.path.replace('events[0].data.value', 'result', 1)}: {error.why}")
        except Exception as error:  # noqa: BLE001 - the effect happened: a broken encoder must not lose its Committed
            return _unencodable(value, f"encode= raised {type(error).__name__}: {error}")
        if len(body) > self.limits.result_bytes_max:
            message = f"the result takes {len(body)} bytes, result_bytes_max is {self.limits.result_bytes_max}; the effect happened"
            return "error", {"error": error_data("ResultTooLarge", message, "unknown")}, None, None
        large = spill or len(body) > self.limits.blob_bytes_min
        return "ok", {"value": plain}, plain if spec.decode is None else spec.decode(plain), body if large else None

    def keep(self, tool: Tool, value: Any, *, spill: bool = False) -> Generator[Op, Any, Encoded]:
        """The same, with what is large stored."""
        encoded = self.encode(tool, value, spill=spill)
        return encoded if encoded[3] is None else (yield from self.store(value, encoded))

    def store(self, value: Any, encoded: Encoded) -> Generator[Op, Any, Encoded]:
        """Put what is large beside the log."""
        kind, _, returned, body = encoded
        try:
            return kind, {"blob": (yield Store(body or b""))}, returned, None
        except OSError as error:
            return _unencodable(value, f"blobs: {error}")  # the effect happened: that has to be recorded, with or without its value

    @staticmethod
    def _decoded(tool: Tool | None, plain: Any) -> Any:
        return tool.spec.decode(plain) if tool is not None and tool.spec.decode is not None else plain

    def replay(self, tool: Tool | None, intent: Intent) -> Any:
        outcome = self.core.outcome(intent)
        if outcome["kind"] == "error":
            raise EffectFailed.recorded(intent.id.text, outcome["error"])
        if outcome["kind"] == "unencodable":
            return Unencodable(**outcome["value"])
        plain = orjson.loads(self.blobs.get(outcome["blob"])) if "blob" in outcome else outcome["value"]
        return self._decoded(tool, plain)

    def late(self, tool: Tool, text: str, try_number: int, value: Any, error: BaseException | None) -> Steps:
        """A call came back after its caller had given it up. Recorded as the outcome while nobody has decided, as evidence after that."""
        if error is None:
            kind, result, _, _ = yield from self.keep(tool, value)
        else:
            failure = judge(error, not_sent=tool.spec.not_sent, rejects=tool.spec.rejects, classify=tool.spec.classify)
            kind, result = "error", {"error": failure.error}
            if failure.verdict == "unknown":
                return  # it is recorded already that nobody knows
            if failure.verdict == "not_sent":
                gone = ev.resolved(text, "not_happened", reason=failure.error["message"], actor="the call itself", source="call", seen=0)
                yield Write(text, lambda now, cancelled: (gone,) if _waits(now, try_number) and not _resent(now) else None)
                return
        done = ev.completed(text, kind=kind, try_number=try_number, source="call", result=result)
        discard = tool.spec.emits
        yield Write(text, lambda now, cancelled: outcome_or_late(now, discard, try_number, done))

    def not_sent(self, intent: Intent, try_number: int, error: dict[str, Any], retry_at_ns: int | None) -> Steps:
        text = intent.id.text
        event = ev.not_sent(text, try_number=try_number, error=error, retry_at_ns=retry_at_ns)
        yield Write(text, lambda now, cancelled: (event,) if _at(now, _D, try_number) else None)

    def fail(self, intent: Intent, failure: Failure) -> Steps:
        text, try_number = intent.id.text, intent.tries
        done = ev.completed(text, kind="error", try_number=try_number, source="call", result={"error": failure.error})
        yield Write(text, lambda now, cancelled: outcome_or_late(now, False, try_number, done, pending_too=True))

    def classify(self, intent: Intent, facts: Facts, error: dict[str, Any] | None) -> Steps:
        text = intent.id.text

        def decide_classified(now: Intent | None, cancelled: bool) -> Sequence[Event] | None:
            if now is None or now.verdict is None or (now.classified is now.verdict and error is None):
                return None
            return (ev.classified(text, now.verdict, try_number=now.tries, by=self.by, class_=facts.effect_class, error=error),)

        yield Write(text, decide_classified)

    def resolve(self, intent: Intent, state: IntentState, decision: ev.Decision, reason: str) -> Steps:
        """Close it, or leave it to a person, if it is in the `state` that this was decided on: another thread may have been quicker."""
        text, seen = intent.id.text, intent.version
        source = "cancel" if self.core.cancelled else "recovery"

        def decide_resolved(now: Intent | None, cancelled: bool) -> Sequence[Event] | None:
            if now is None or now.state is not state:
                return None
            return (ev.resolved(text, decision, reason=reason, actor=f"eventlog {self.by}", source=source, seen=seen),)

        yield Write(text, decide_resolved)


def _unencodable(value: Any, why: str) -> Encoded:
    gone = Unencodable.of(value, why)
    return "unencodable", {"value": {"type": gone.type, "repr": gone.repr, "why": gone.why}}, gone, None


def error_data(kind: str, message: str, verdict: str = "not_sent") -> dict[str, Any]:
    return {"type": kind, "message": message, "verdict": verdict}


def outcome_or_late(
    now: Intent | None, discard: bool, try_number: int, done: Sequence[Event], *, pending_too: bool = False
) -> Sequence[Event] | None:
    """The outcome `done`, if the intent still waits for that try; evidence of it, if it was closed or sent again meanwhile."""
    if now is None:
        return None
    open_ = now.state in (_D, _I) or (pending_too and now.state is _P)
    if not open_ or now.tries != try_number:
        _, outcome, text = done[-2]  # behind what the tool emitted, before its Committed
        result = {name: value for name, value in outcome.items() if name not in ("kind", "try", "source")}
        return (ev.late(text, kind=outcome["kind"], try_number=try_number, result=result),)
    return None if discard else done


def _at(now: Intent | None, state: IntentState, tries: int) -> bool:
    return now is not None and now.state is state and now.tries == tries


def _waits(now: Intent | None, tries: int) -> bool:
    return now is not None and now.state in (_D, _I) and now.tries == tries


def _resent(now: Intent | None) -> bool:
    return now is not None and now.resent
