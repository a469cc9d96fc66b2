"""What a launcher does next, as a pure function of the fold and of what became of the process that it started (design section 6).

| what is there                                        | next |
|------------------------------------------------------|------|
| nothing started yet, a live incarnation whose process is gone | Retire it (what it may have been given is bound to a restart) |
| nothing started yet, its process lives               | Leave: it is somebody's agent |
| a startup that an earlier launcher may have launched | Bind: new ids, so that a process of then cannot present them |
| a startup that waits                                 | End what runs, then Launch with the tagged payload as the first input |
| the attempt ended before its handshake               | Bind new ids, bounded; then the loud state |
| the process crashed with a delivery that is not proved | Retire it: a replacement is bound |
| the process ended by itself, or was told to          | Leave with its code |
| only a person can go on                              | Leave with the command |
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

from eventlog.projections.delivery_words import DeliveriesState, RestartStartup, SyncIntent
from eventlog.recovery.delivery_steps import claimed_by, loud
from eventlog.recovery.harness.heard import SESSION_ENDED

__all__ = [
    "Attempt",
    "Bind",
    "End",
    "Ended",
    "Launch",
    "Leave",
    "Retire",
    "Seen",
    "Stay",
    "Step",
    "next_step",
    "startup_in",
]

Way = Literal["own", "resume", "anew"]
_USER_ENDED = frozenset({-signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGQUIT, 128 + signal.SIGINT})
_NOT_STARTED = frozenset({126, 127})
LOUD, BUSY = 1, 4


@dataclass(frozen=True, slots=True)
class Attempt:
    """The process that the launcher started last: with which startup id, if any, and how its conversation was chosen.

    `own`: as the user's command line says. `late`: it prints, and did not take its first input in the time that it has for that.
    """

    way: Way
    startup_id: str | None
    late: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended: `code` as subprocess says it (-9: SIGKILL); `by_us`: the launcher ended it for its replacement."""

    code: int
    by_us: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What a launcher knows beside the fold. `stale`: the startup id that was there before it came. `told`: by which signal it was
    told to leave, or 0.

    `alive`: the live incarnation's process is there (asked before the first start only). `ended` is None while the attempt runs.
    `way`: what the last Bind said about the attempt after it. `printing`: the agent runs one prompt and ends.
    """

    attempt: Attempt | None = None
    ended: Ended | None = None
    stale: str | None = None
    alive: bool = False
    told: int = 0
    printing: bool = False
    way: Way | None = None
    restarts_max: int = 5


@dataclass(frozen=True, slots=True)
class Stay:
    """Nothing to do until the log grows or the process ends."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a process, in this way, with this startup delivery as its first input, if there is one."""

    way: Way
    intent: SyncIntent | None = None
    startup_id: str | None = None


@dataclass(frozen=True, slots=True)
class End:
    """End the process: SIGTERM, then SIGKILL, its whole group."""

    reason: str


@dataclass(frozen=True, slots=True)
class Bind:
    """New ids for the next attempt (bind_restart), or the loud state when there were enough. `way`: how to start that attempt."""

    reason: str
    way: Way | None = None


@dataclass(frozen=True, slots=True)
class Retire:
    """That incarnation is over (retire_incarnation)."""

    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Exit with this code; `note` is a line for people."""

    code: int
    note: str = ""


Step = Stay | Launch | End | Bind | Retire | Leave


def startup_in(state: DeliveriesState, thread: str) -> tuple[SyncIntent, RestartStartup] | None:
    """The startup delivery that waits to be accepted."""
    intent = state.active(thread)
    if intent is None or not intent.state.prepared or not isinstance(intent.proof, RestartStartup) or intent.proof.accepted_ns is not None:
        return None
    return intent, intent.proof


def next_step(state: DeliveriesState, thread: str, seen: Seen) -> Step:
    """The one decision. Do what it says, then ask again."""
    if seen.told and seen.attempt is None:
        return Leave(128 + seen.told)
    if seen.attempt is None:
        return _first(state, thread, seen)
    if seen.ended is None:
        return Stay() if seen.told else _running(state, thread, seen.attempt)
    return _after(state, thread, seen, seen.attempt, seen.ended)


def _first(state: DeliveriesState, thread: str, seen: Seen) -> Step:
    intent, known = state.active(thread), state.threads.get(thread)
    if intent is not None and intent.state.loud:
        return Leave(LOUD, loud_line(intent))
    live = state.incarnations[known.live] if known is not None and known.live is not None else None
    if live is not None:
        if seen.alive:
            return Leave(BUSY, f"process {live.process} is the agent of thread {thread}; end it first")
        return Retire(live.id, "its process is gone, and a launcher starts another")
    waiting = startup_in(state, thread)
    if waiting is None:
        return Launch("own")
    if waiting[1].startup_id == seen.stale:
        return Bind("another launcher may have launched this attempt")
    return Launch("own", waiting[0], waiting[1].startup_id)


def _running(state: DeliveriesState, thread: str, attempt: Attempt) -> Step:
    waiting = startup_in(state, thread)
    if waiting is None:
        return Stay()
    intent, proof = waiting
    if proof.startup_id != attempt.startup_id:
        if _leaving(state, thread):
            return Stay()
        return End(f"{intent.id} has to reach a new process")
    if attempt.late:
        return End(f"it did not take its first input; are the hooks installed? see: eventlog hook doctor (startup attempt {proof.attempt})")
    return Stay()


def _leaving(state: DeliveriesState, thread: str) -> bool:
    """Did the last process of the thread say that its session is over? It ends by itself then, and how is what counts: a user who has quit
    wants no replacement."""
    for incarnation in reversed(state.incarnations.values()):
        if incarnation.thread == thread and incarnation.process is not None:
            return incarnation.reason == SESSION_ENDED
    return False


def _after(state: DeliveriesState, thread: str, seen: Seen, attempt: Attempt, ended: Ended) -> Step:
    intent, known = state.active(thread), state.threads.get(thread)
    code = 128 - ended.code if ended.code < 0 else ended.code
    if intent is None:
        return Leave(code)
    left = f"{intent.id} is {intent.state.value} and not proved to be read; the next start delivers it first"
    if intent.state.loud:
        by_itself = ended.code > 0 and not ended.by_us and seen.way is None
        return Leave(code if by_itself else LOUD, loud_line(intent))
    if seen.told or (ended.code in _USER_ENDED and not ended.by_us):
        return Leave(code, left if intent.state.prepared else "")
    waiting = startup_in(state, thread)
    if waiting is not None:
        return _replace(waiting[0], waiting[1], seen, attempt, ended, Leave(code, left))
    live = state.incarnations[known.live] if known is not None and known.live is not None else None
    if live is not None and claimed_by(intent, live):
        if ended.code < 0:
            return Retire(live.id, f"its process was ended by signal {-ended.code} before the delivery was proved")
        return Leave(code, left)
    return Leave(code, left if intent.state.prepared else "")


def _replace(intent: SyncIntent, proof: RestartStartup, seen: Seen, attempt: Attempt, ended: Ended, leave: Leave) -> Step:
    """A startup waits, and nothing runs."""
    if proof.startup_id == attempt.startup_id:  # this very attempt ended before it took its first input
        if ended.code in _NOT_STARTED or (attempt.way == "own" and ended.code >= 0 and not ended.by_us):
            return leave  # the command line itself is wrong: trying again mends nothing
        # A conversation that cannot be resumed (its transcript was never written) ends at once, with a code and without a hook. A crash
        # says nothing of the kind, and the conversation is worth another try.
        lost = attempt.way == "resume" and ended.code > 0 and not ended.by_us
        why = f"startup attempt {proof.attempt} ended with {ended.code} before it took its first input"
        return Bind(why, "anew" if lost else attempt.way)
    if proof.attempt > seen.restarts_max:
        return Bind(f"{seen.restarts_max} attempts are enough")
    if seen.way is None and not ended.by_us and (ended.code > 0 or (ended.code == 0 and not seen.printing)):
        return leave  # the user has quit, or the agent says that it failed; what was bound on its way out can wait for the next start
    return Launch(seen.way or "resume", intent, proof.startup_id)


def loud_line(intent: SyncIntent) -> str:
    """The one line of a state that only a person leaves; LOG stands for the path of the log."""
    closed = loud(intent)
    return f"{closed.reason}; {closed.what_to_do}"
