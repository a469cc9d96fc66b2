"""The second floor: what acts on the world, and what is done after a crash (design section 5, seed 000).

from eventlog.recovery import EffectClass, Toolbox, recover

tools = Toolbox(log)

@tools.tool(EffectClass.NON_IDEMPOTENT)
def send(ctx, to, text): ...

with tools.attempt("order-17", 1) as attempt:
    attempt.call(send, to="a@example.org", text="hello")

report = recover(log, tools)
"""

from __future__ import annotations

from eventlog.light import TYPE_CHECKING, of

if __name__ != "eventlog.recovery":  # a second copy of every class would break isinstance
    raise ImportError("import eventlog.recovery, not recovery")


if TYPE_CHECKING:
    from typing import Any

    from eventlog.projections.intent import BadIntentId, EffectClass, IntentId, IntentState, Verdict
    from eventlog.recovery.answers import DidNotHappen, Happened, InProgress, IntentView, Unknown
    from eventlog.recovery.attempt import Attempt, Cancellation, CancelStatus
    from eventlog.recovery.context import ToolContext
    from eventlog.recovery.delivery_words import Block, Caller, DeliveryLimits, FailClosed, PassThrough
    from eventlog.recovery.desk import Deliveries
    from eventlog.recovery.errors import (
        Abandoned,
        AttemptBusy,
        AttemptCancelled,
        BadArguments,
        BadTool,
        EffectError,
        EffectFailed,
        Indeterminate,
        NeedsApproval,
        NonDeterminism,
        NotSent,
        NotYet,
        Rejected,
        StaleAttempt,
        StepRequired,
        StillRunning,
        UnguardedEffect,
        UnresolvedIntents,
        WrongDecision,
    )
    from eventlog.recovery.observing import ObservedEffect, Observer, ObserverFailed
    from eventlog.recovery.ops import Limits
    from eventlog.recovery.people import Decided, HumanDecision, history, list_intents, resolve, resolve_each
    from eventlog.recovery.reconciler import Diverged, NeedsPerson, Reconciled, ReconcilerFailed, SyncTask
    from eventlog.recovery.restart import Found, Recovery, arecover, recover
    from eventlog.recovery.tool import RetryPolicy, Tool
    from eventlog.recovery.toolbox import Toolbox
    from eventlog.recovery.values import Unencodable
    from eventlog.recovery.writing import CancelToken

__all__ = [
    "Abandoned",
    "Attempt",
    "AttemptBusy",
    "AttemptCancelled",
    "BadArguments",
    "BadIntentId",
    "BadTool",
    "Block",
    "Caller",
    "CancelStatus",
    "CancelToken",
    "Cancellation",
    "Decided",
    "Deliveries",
    "DeliveryLimits",
    "DidNotHappen",
    "Diverged",
    "EffectClass",
    "EffectError",
    "EffectFailed",
    "FailClosed",
    "Found",
    "Happened",
    "HumanDecision",
    "InProgress",
    "Indeterminate",
    "IntentId",
    "IntentState",
    "IntentView",
    "Limits",
    "NeedsApproval",
    "NeedsPerson",
    "NonDeterminism",
    "NotSent",
    "NotYet",
    "ObservedEffect",
    "Observer",
    "ObserverFailed",
    "PassThrough",
    "Reconciled",
    "ReconcilerFailed",
    "Recovery",
    "Rejected",
    "RetryPolicy",
    "StaleAttempt",
    "StepRequired",
    "StillRunning",
    "SyncTask",
    "Tool",
    "ToolContext",
    "Toolbox",
    "Unencodable",
    "UnguardedEffect",
    "Unknown",
    "UnresolvedIntents",
    "Verdict",
    "WrongDecision",
    "arecover",
    "history",
    "list_intents",
    "recover",
    "resolve",
    "resolve_each",
]

# Loaded when first asked for: a hook is a process that lives for a moment, and must not pay for what it does not use.
_HOMES = {
    "Abandoned": "eventlog.recovery.errors",
    "Attempt": "eventlog.recovery.attempt",
    "AttemptBusy": "eventlog.recovery.errors",
    "AttemptCancelled": "eventlog.recovery.errors",
    "BadArguments": "eventlog.recovery.errors",
    "BadIntentId": "eventlog.projections.intent",
    "BadTool": "eventlog.recovery.errors",
    "CancelStatus": "eventlog.recovery.attempt",
    "CancelToken": "eventlog.recovery.writing",
    "Cancellation": "eventlog.recovery.attempt",
    "Decided": "eventlog.recovery.people",
    "DidNotHappen": "eventlog.recovery.answers",
    "EffectClass": "eventlog.projections.intent",
    "EffectError": "eventlog.recovery.errors",
    "EffectFailed": "eventlog.recovery.errors",
    "Found": "eventlog.recovery.restart",
    "Happened": "eventlog.recovery.answers",
    "HumanDecision": "eventlog.recovery.people",
    "InProgress": "eventlog.recovery.answers",
    "Indeterminate": "eventlog.recovery.errors",
    "IntentId": "eventlog.projections.intent",
    "IntentState": "eventlog.projections.intent",
    "IntentView": "eventlog.recovery.answers",
    "Limits": "eventlog.recovery.ops",
    "NeedsApproval": "eventlog.recovery.errors",
    "NonDeterminism": "eventlog.recovery.errors",
    "NotSent": "eventlog.recovery.errors",
    "NotYet": "eventlog.recovery.errors",
    "ObservedEffect": "eventlog.recovery.observing",
    "Observer": "eventlog.recovery.observing",
    "ObserverFailed": "eventlog.recovery.observing",
    "Recovery": "eventlog.recovery.restart",
    "Rejected": "eventlog.recovery.errors",
    "RetryPolicy": "eventlog.recovery.tool",
    "StaleAttempt": "eventlog.recovery.errors",
    "StepRequired": "eventlog.recovery.errors",
    "StillRunning": "eventlog.recovery.errors",
    "Tool": "eventlog.recovery.tool",
    "ToolContext": "eventlog.recovery.context",
    "Toolbox": "eventlog.recovery.toolbox",
    "Unencodable": "eventlog.recovery.values",
    "UnguardedEffect": "eventlog.recovery.errors",
    "Unknown": "eventlog.recovery.answers",
    "UnresolvedIntents": "eventlog.recovery.errors",
    "Verdict": "eventlog.projections.intent",
    "WrongDecision": "eventlog.recovery.errors",
    "arecover": "eventlog.recovery.restart",
    "history": "eventlog.recovery.people",
    "list_intents": "eventlog.recovery.people",
    "recover": "eventlog.recovery.restart",
    "resolve": "eventlog.recovery.people",
    "resolve_each": "eventlog.recovery.people",
    "Deliveries": "eventlog.recovery.desk",
    "Caller": "eventlog.recovery.delivery_words",
    "Block": "eventlog.recovery.delivery_words",
    "FailClosed": "eventlog.recovery.delivery_words",
    "PassThrough": "eventlog.recovery.delivery_words",
    "DeliveryLimits": "eventlog.recovery.delivery_words",
    "Reconciled": "eventlog.recovery.reconciler",
    "NeedsPerson": "eventlog.recovery.reconciler",
    "Diverged": "eventlog.recovery.reconciler",
    "SyncTask": "eventlog.recovery.reconciler",
    "ReconcilerFailed": "eventlog.recovery.reconciler",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = of(home, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
