"""What delivery decisions take and give: who calls, what is true outside the log, and the answers."""

from __future__ import annotations

from eventlog import Event, Recorded
from eventlog.light import Generic, TypeVar
from eventlog.projections import delivery_events as ev
from eventlog.projections.deliveries import HANDLERS
from eventlog.projections.delivery_words import MAIN, DeliveriesState, Incarnation, SyncIntent, Thread
from eventlog.values import dataclass, field

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
    "Draft",
    "Facts",
    "FailClosed",
    "PassThrough",
    "Reconcile",
    "Refused",
    "Wait",
    "launcher_name",
    "reconciler_name",
]

A_co = TypeVar("A_co", covariant=True)

BATCH_BOUNDARY = "batch_boundary"
"""The harness says, before the next model turn, which calls made up the batch that is over."""
RECEIPTS = "receipts"
"""It shows, with that, the text that the model is given as the result of each call."""
STARTUP_DELIVERY = "startup_delivery"
"""A process can be started with a first input that is passed on byte for byte, and its turns can be tied to that input."""


def launcher_name(thread: str) -> str:
    """What a launcher owns while it lives (log.own): it starts the replacements of that thread."""
    return f"launcher:{thread}"


def reconciler_name(intent: str) -> str:
    """What a reconciler owns while it works on an intent."""
    return f"reconciler:{intent}"


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """`redeliveries_max`: batches in a row that may go unseen; then a restart. `restarts_max`: attempts; then only a person goes on."""

    redeliveries_max: int = 3
    restarts_max: int = 5


@dataclass(frozen=True, slots=True)
class Caller:
    """Who runs a hook: the process (a key that no other process ever has: pid and start time), its chain, and the prompt that it is at.

    `echo`: the startup delivery id that causally led to this call, if the harness can say so; otherwise the prompt does. The session (a
    conversation id) is noted for people and proves nothing: a harness may use it again.
    """

    thread: str
    process: str
    chain: str = MAIN
    prompt: str | None = None
    session: str | None = None
    echo: str | None = None
    capabilities: frozenset[str] = frozenset({BATCH_BOUNDARY, RECEIPTS, STARTUP_DELIVERY})


@dataclass(frozen=True, slots=True)
class Facts:
    """What a decision needs of the world. `fresh`: a new random word, of which it makes the ids that it mints."""

    now_ns: int
    fresh: str
    launcher_alive: bool = False
    reconciler_alive: bool = False
    limits: DeliveryLimits = field(default_factory=DeliveryLimits)


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Let the call run. `acknowledged`: the intent that this call proved to be read."""

    acknowledged: str | None = None


@dataclass(frozen=True, slots=True)
class Reconcile:
    """The block is recorded; now, and not before, the reconciler may touch files. Its result goes to materialize."""

    intent: SyncIntent
    acknowledged: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Deny the call with these bytes. `bound`: tell mark_delivered (incarnation, turn, batch) once they are out, unless that is
    `marked` already."""

    intent: str
    payload: str
    sha256: str
    incarnation: str
    turn: int
    batch: int
    bound: bool = True
    marked: bool = False
    acknowledged: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody reconciles: ask again when the log has grown, until the deadline; then fail closed."""

    intent: str
    acknowledged: str | None = None


@dataclass(frozen=True, slots=True)
class FailClosed:
    """Deny the call. `what_to_do` names the command or the act that helps, with LOG for the path of the log. `restart`: a new process is
    what helps."""

    reason: str
    what_to_do: str
    intent: str | None = None
    acknowledged: str | None = None
    restart: bool = False


Admission = PassThrough | Reconcile | Block | Wait | FailClosed


@dataclass(frozen=True, slots=True)
class Done:
    """Recorded, or known already (`note` says so). `intent`, `incarnation`: what it is about, as it is now."""

    intent: SyncIntent | None = None
    incarnation: Incarnation | None = None
    note: str = ""
    acknowledged: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was recorded. `moved`: the base is another one by now; reconcile again."""

    reason: str
    what_to_do: str = ""
    moved: bool = False


# These lose nothing when a power cut takes them: the process that they are about is gone then too, and what was acknowledged is
# delivered once more.
_CHEAP = frozenset({ev.ADMITTED, ev.RETURNED, ev.BATCH_COMPLETED, ev.PROMPTED, ev.STOPPED, ev.STARTED, ev.SESSION, ev.ACKNOWLEDGED})


@dataclass(frozen=True, slots=True)
class Decided(Generic[A_co]):
    """The events to append, in one commit, and the answer for whoever asked."""

    events: tuple[Event, ...]
    answer: A_co

    @property
    def durable(self) -> bool:
        """Must they be on disk before anybody acts on the answer?"""
        return any(event.type not in _CHEAP for event in self.events)


class Draft:
    """A decision in the making: each event is folded as it is decided. So the next step sees it, and what the fold would refuse is
    never written."""

    def __init__(self, state: DeliveriesState, thread: str, facts: Facts) -> None:
        self.facts = facts
        self.name = thread
        self.state = state.only(thread)
        self.events: list[Event] = []
        self.state.threads.setdefault(thread, Thread(thread))
        self._minted = 0

    def emit(self, event: Event) -> None:
        """Decide on this event."""
        seq = self.state.seq + 1
        self.state = HANDLERS[event.type](self.state, Recorded(seq, self.facts.now_ns, event.type, event.stream, event.data))
        self.events.append(event)

    @property
    def thread(self) -> Thread:
        return self.state.threads[self.name]

    @property
    def active(self) -> SyncIntent | None:
        return self.state.active(self.name)

    @property
    def live(self) -> Incarnation | None:
        id_ = self.thread.live
        return self.state.incarnations[id_] if id_ is not None else None

    def mint(self, what: str) -> str:
        """A new id that nobody can guess."""
        self._minted += 1
        return f"{what}-{self.facts.fresh}-{self._minted}"
