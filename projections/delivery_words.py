"""The words of the delivery protocol: a sync intent with its outbox and its proof, and who is there to hear it (seed 003)."""

from __future__ import annotations

import enum

from eventlog.light import TYPE_CHECKING
from eventlog.projections.projection import ImpossibleTransition
from eventlog.values import dataclass, field, replace

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "MAIN",
    "Batch",
    "Chain",
    "DeliveriesState",
    "Incarnation",
    "Presence",
    "RestartStartup",
    "SoftBatch",
    "SyncIntent",
    "SyncState",
    "Thread",
    "number_of",
]

MAIN = "main"
"""The chain of turns of the agent itself. Subagents have chains of their own, and what one of them read, the agent did not."""

_REMEMBERED = 64  # closed batches and past prompts of a chain: a hook that outlives that many is not one of a live process


class SyncState(enum.StrEnum):
    """Where an intent is (seed 003)."""

    DETECTED = "detected"
    RECONCILING = "reconciling"
    MATERIALIZED = "materialized"
    DELIVERED = "delivered"
    ACKNOWLEDGED = "acknowledged"
    RECOVERY_REQUIRED = "recovery_required"
    TOPOLOGY_DIVERGED = "topology_diverged"
    SUPERSEDED = "superseded"

    @property
    def resolved(self) -> bool:
        """Nothing is left to deliver."""
        return self in (SyncState.ACKNOWLEDGED, SyncState.SUPERSEDED)

    @property
    def loud(self) -> bool:
        """Only a person leaves it."""
        return self in (SyncState.RECOVERY_REQUIRED, SyncState.TOPOLOGY_DIVERGED)

    @property
    def prepared(self) -> bool:
        """Its payload is fixed and not yet acknowledged."""
        return self in (SyncState.MATERIALIZED, SyncState.DELIVERED)


@dataclass(frozen=True, slots=True)
class SoftBatch:
    """The proof by a blocked batch. `calls`: those that were blocked. `seen`: whose result held the payload (None: no receipts).

    `doubted`: the context was rewritten since the bytes went out, before a later turn.
    """

    incarnation: str
    chain: str
    turn: int
    batch: int
    bound_ns: int
    prompt: str | None = None
    calls: tuple[str, ...] = ()
    completed_ns: int | None = None
    seen: tuple[str, ...] | None = None
    doubted: bool = False

    @property
    def proves(self) -> bool:
        """The exact batch is over, and nothing says that it did not carry the payload: a later turn may acknowledge."""
        whole = self.seen is None or bool(self.seen)
        return self.completed_ns is not None and whole and not self.doubted and self.chain == MAIN


@dataclass(frozen=True, slots=True)
class RestartStartup:
    """The proof by a replacement process, whose first input is the payload, tagged with the one-use `startup_id`."""

    incarnation: str
    startup_id: str
    attempt: int
    bound_ns: int
    accepted_ns: int | None = None
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class SyncIntent:
    """One change that the agent of a thread must hear about, with its outbox and its proof of delivery.

    `version` is the seq of its last event: name it when you decide. `payload` is dropped when the intent is acknowledged or
    superseded; its digest stays. `redeliveries`: completed batches in a row that did not carry it. `restarts`: startup attempts.
    """

    id: str
    thread: str
    state: SyncState
    base: str
    triggers: tuple[str, ...]
    detected_ns: int
    first_seq: int
    version: int
    operation: str | None = None
    commit: str | None = None
    payload: str | None = None
    sha256: str | None = None
    anchor: str | None = None
    prepared_ns: int | None = None
    delivered_ns: int | None = None
    acknowledged_ns: int | None = None
    evidence: str | None = None
    recovered: bool = False
    redeliveries: int = 0
    restarts: int = 0
    reason: str | None = None
    saved_copy: str | None = None
    proof: SoftBatch | RestartStartup | None = None


class Presence(enum.StrEnum):
    """Minted: its process was not seen yet. Live: the agent of the thread. Retired: over."""

    MINTED = "minted"
    LIVE = "live"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One process of a thread's runtime. `delivered_intent_id` is the marker of seed 003: what was delivered to it last, unacknowledged."""

    id: str
    thread: str
    presence: Presence
    process: str | None = None
    session: str | None = None
    capabilities: frozenset[str] = frozenset()
    delivered_intent_id: str | None = None
    barred: bool = False
    reason: str | None = None


@dataclass(slots=True)
class Batch:
    """The calls since the last boundary. The first one fixed `decision`; `calls` says of each whether it has its result."""

    number: int
    decision: str
    intent: str | None = None
    prompt: str | None = None
    calls: dict[str, bool] = field(default_factory=dict)


@dataclass(slots=True)
class Chain:
    """One line of model turns. `turn` grows at a proved boundary only; `closed` are the calls of past batches, with their decisions."""

    turn: int = 1
    batch: int = 0
    open: Batch | None = None
    prompt: str | None = None
    idle: bool = False
    closed: dict[str, tuple[int, str]] = field(default_factory=dict)
    past: dict[str, None] = field(default_factory=dict)

    def close(self, more: tuple[str, ...] = ()) -> None:
        """Remember the calls of the open batch, and `more` that ended with it."""
        decision = self.open.decision if self.open is not None else "pass"
        for call in (*(self.open.calls if self.open is not None else ()), *more):
            self.closed.setdefault(call, (self.batch, decision))
        self.open = None
        if len(self.closed) > _REMEMBERED * 8:
            oldest = self.batch - _REMEMBERED
            self.closed = {call: known for call, known in self.closed.items() if known[0] > oldest}

    def leave_prompt(self) -> None:
        if self.prompt is not None:
            self.past[self.prompt] = None
            while len(self.past) > _REMEMBERED:
                del self.past[next(iter(self.past))]

    def copy(self) -> Chain:
        batch = replace(self.open, calls=dict(self.open.calls)) if self.open is not None else None
        return replace(self, open=batch, closed=dict(self.closed), past=dict(self.past))


@dataclass(slots=True)
class Thread:
    """One agent's line of work. `open`: its unresolved intents; the first is the active one. `chains`: of the live incarnation."""

    name: str
    count: int = 0
    open: list[str] = field(default_factory=list)
    live: str | None = None
    minted: str | None = None
    processes: dict[str, str] = field(default_factory=dict)  # process -> its last incarnation
    chains: dict[str, Chain] = field(default_factory=dict)

    @property
    def active(self) -> str | None:
        """The lowest unresolved intent."""
        return self.open[0] if self.open else None

    def chain(self, name: str) -> Chain:
        found = self.chains.get(name)
        return found if found is not None else self.chains.setdefault(name, Chain())

    def copy(self) -> Thread:
        chains = {name: chain.copy() for name, chain in self.chains.items()}
        return replace(self, open=list(self.open), processes=dict(self.processes), chains=chains)


@dataclass(slots=True)
class DeliveriesState:
    """All threads, intents and incarnations. `startups`: every startup delivery id that was ever minted, with its intent."""

    threads: dict[str, Thread] = field(default_factory=dict)
    intents: dict[str, SyncIntent] = field(default_factory=dict)
    incarnations: dict[str, Incarnation] = field(default_factory=dict)
    startups: dict[str, str] = field(default_factory=dict)
    seq: int = 0

    def active(self, thread: str) -> SyncIntent | None:
        """The intent that the thread has to hear about next."""
        known = self.threads.get(thread)
        return self.intents[known.open[0]] if known is not None and known.open else None

    def unresolved(self) -> list[SyncIntent]:
        """In the order of their detection, all threads."""
        found = [self.intents[name] for thread in self.threads.values() for name in thread.open]
        return sorted(found, key=lambda intent: intent.first_seq)

    def only(self, thread: str) -> DeliveriesState:
        """A copy of what decisions about one thread rest on; changing it changes nothing here."""
        part = DeliveriesState(incarnations=dict(self.incarnations), startups=dict(self.startups), seq=self.seq)
        known = self.threads.get(thread)
        if known is not None:
            part.threads[thread] = known.copy()
            part.intents = {name: self.intents[name] for name in known.open}
        return part

    def __deepcopy__(self, memo: dict[int, Any]) -> DeliveriesState:
        threads = {name: thread.copy() for name, thread in self.threads.items()}
        return DeliveriesState(threads, dict(self.intents), dict(self.incarnations), dict(self.startups), self.seq)


def number_of(intent: str) -> tuple[str, int]:
    """The thread and the number of `thread#number`. Raises ImpossibleTransition."""
    thread, mark, number = intent.rpartition("#")
    if not mark or not thread or not (number.isascii() and number.isdigit()) or number.startswith("0"):
        raise ImpossibleTransition(f"{intent!r} is no sync intent: it has to look like thread#number")
    return thread, int(number)
