"""The delivery protocol as pure decisions: `command(state, …, facts) -> Decided(events, answer)` (design section 6, seed 003).

| command                               | asks or tells                                      | answers |
|---------------------------------------|----------------------------------------------------|---------|
| detect, coalesce                      | the agent must hear of an operation                | Done, Refused |
| pre_tool_use                          | may this call run? acknowledges first, then admits | PassThrough, Reconcile, Block, Wait, … |
| materialize                           | the reconciler's result, all of it                 | Done, Refused (moved: reconcile again) |
| mark_delivered                        | stdout took the payload                            | Done, Refused |
| call_returned, batch_completed        | results are there; with receipts: what they held   | Done |
| turn_observed                         | a prompt, a Stop, a compaction                     | Done, FailClosed |
| start_incarnation, retire_incarnation | a process came, went                               | Done, FailClosed, Refused |
| bind_restart, accept_startup          | a replacement is launched, took its first input    | Done, Refused |
| recovery_required, topology_diverged  | it cannot be reconciled                            | Done, Refused |
| supersede, resolve                    | it is moot; a person decided                       | Done, Refused |

Nothing here reads a clock, a log or the world; `Facts` brings what is needed. `eventlog.recovery.desk.Deliveries` is the shell.
"""

from __future__ import annotations

from eventlog.recovery.delivery_hooks import batch_completed, call_returned, mark_delivered, pre_tool_use, turn_observed
from eventlog.recovery.delivery_startup import accept_startup, bind_restart, retire_incarnation, start_incarnation
from eventlog.recovery.delivery_words import (
    BATCH_BOUNDARY,
    RECEIPTS,
    STARTUP_DELIVERY,
    Admission,
    Block,
    Caller,
    Decided,
    DeliveryLimits,
    Done,
    Facts,
    FailClosed,
    PassThrough,
    Reconcile,
    Refused,
    Wait,
)
from eventlog.recovery.delivery_work import (
    SyncDecision,
    coalesce,
    detect,
    materialize,
    recovery_required,
    resolve,
    supersede,
    topology_diverged,
)

__all__ = [
    "BATCH_BOUNDARY",
    "RECEIPTS",
    "STARTUP_DELIVERY",
    "Admission",
    "Block",
    "Caller",
    "Decided",
    "DeliveryLimits",
    "Done",
    "Facts",
    "FailClosed",
    "PassThrough",
    "Reconcile",
    "Refused",
    "SyncDecision",
    "Wait",
    "accept_startup",
    "batch_completed",
    "bind_restart",
    "call_returned",
    "coalesce",
    "detect",
    "mark_delivered",
    "materialize",
    "pre_tool_use",
    "recovery_required",
    "resolve",
    "retire_incarnation",
    "start_incarnation",
    "supersede",
    "topology_diverged",
    "turn_observed",
]
