"""The tools of a program, and the only door to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from eventlog import EventLog
from eventlog.errors import ReadOnly
from eventlog.projections.effects import EFFECTS, EffectsState
from eventlog.projections.folding import View
from eventlog.projections.intent import EffectClass
from eventlog.recovery.attempt import Attempt
from eventlog.recovery.blobs import Blobs
from eventlog.recovery.errors import BadTool
from eventlog.recovery.observing import Observer
from eventlog.recovery.ops import Limits
from eventlog.recovery.tool import KeyScope, RetryPolicy, Tool, make_tool

__all__ = ["Toolbox"]

_NO_RETRY = RetryPolicy()


class Toolbox:
    """Tools that act on the world, guarded by intents in `log` (design section 5, seed 000).

    tools = Toolbox(log)

    @tools.tool(EffectClass.KEYED, key_ttl=timedelta(hours=24))
    def charge(ctx, amount): ...

    with tools.attempt("order-17", 1) as attempt:
        receipt = attempt.call(charge, amount=10)
    """

    def __init__(self, log: EventLog, limits: Limits | None = None, *, observer: Observer | None = None) -> None:
        """`observer` is shown each effect (observing.py; otel.py makes spans of them)."""
        if log.read_only:
            raise ReadOnly(f"{log.path}: a Toolbox records every effect; open the log for writing")
        self.log = log
        self.limits = limits if limits is not None else Limits()
        self.view: View[EffectsState] = View(log, EFFECTS, keeps=False)  # kept when an attempt is over: no call waits for it
        self.blobs = Blobs(log.path)
        self.observer = observer
        self._tools: dict[str, Tool] = {}

    def tool(self, effect_class: EffectClass = EffectClass.NON_IDEMPOTENT, /, **options: Any) -> Callable[[Callable[..., Any]], Tool]:
        """Register the decorated function and put a sealed handle in its place; the options are those of guard()."""

        def register(function: Callable[..., Any]) -> Tool:
            return self.guard(function, effect_class, **{"takes_ctx": True, **options})

        return register

    def guard(
        self,
        function: Callable[..., Any],
        effect_class: EffectClass = EffectClass.NON_IDEMPOTENT,
        /,
        *,
        name: str | None = None,
        version: str = "1",
        takes_ctx: bool = False,
        key_ttl: timedelta | None = None,
        key_scope: KeyScope = "attempt",
        operation: str | None = None,
        key_argument: str | None = None,
        reconcile: Callable[..., Any] | None = None,
        settle_after: timedelta = timedelta(0),
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: RetryPolicy = _NO_RETRY,
        not_sent: tuple[type[BaseException], ...] = (),
        rejects: tuple[type[BaseException], ...] = (),
        classify: Callable[[BaseException], BaseException | None] | None = None,
        encode: Callable[[Any], Any] | None = None,
        decode: Callable[[Any], Any] | None = None,
        resource: str | None = None,
        emits: bool = False,
        approval: bool = False,
    ) -> Tool:
        """Guard any callable, without a decorator; it is called without ctx unless `takes_ctx`.

        - `name`, `version`: recorded with each intent; recovery finds the tool by its name.
        - `key_ttl`: KEYED: how long the receiver remembers a key. `key_scope`: "attempt", "branch", or "operation" with `operation=` the
          name of the argument that holds the business id. `key_argument`: the argument that is given our key, whatever the caller passed.
        - `reconcile(view) -> Happened | DidNotHappen | InProgress | Unknown` asks the receiver; it changes nothing, may be async, and may
          be asked again. DidNotHappen is believed only `settle_after` the last dispatch.
        - `timeout` (seconds or timedelta) of one try; a try that exceeds it is Unknown. `deadline`: nothing is sent so long after Pending.
        - `not_sent`, `rejects`: exception classes that say so; `classify(error)` may translate one into NotSent, Rejected or Unknown.
        - `encode`, `decode`: from a result to JSON and back. `resource`: the argument that names what an IDEMPOTENT tool overwrites.
        - `approval`: a person has to approve each call before it is sent (destructive tools); until then the call raises NeedsApproval.
        - `emits`: a TRANSACTIONAL tool whose whole effect is ctx.emit(event).

        Raises BadTool when the class lacks what it needs at recovery, and for a name that is taken.
        """
        made = make_tool(
            function,
            effect_class,
            name=name,
            version=version,
            takes_ctx=takes_ctx,
            key_scope=key_scope,
            operation=operation,
            key_argument=key_argument,
            key_ttl=key_ttl,
            settle_after=settle_after,
            timeout=timeout,
            deadline=deadline,
            resource=resource,
            emits=emits,
            approval=approval,
            retry=retry,
            not_sent=not_sent,
            rejects=rejects,
            classify=classify,
            encode=encode,
            decode=decode,
            reconcile=reconcile,
        )
        if made.spec.name in self._tools:
            raise BadTool(f"{made.spec.name}: the name is taken in this Toolbox; give name=, it is what recovery looks for")
        self._tools[made.spec.name] = made
        return made

    def attempt(self, branch: str, number: int = 1) -> Attempt:
        """The guard for one attempt of a branch; open it with `with`. Opening raises UnresolvedIntents, StaleAttempt or AttemptBusy."""
        return Attempt(self, branch, number)

    def get(self, name: str) -> Tool | None:
        """The tool of that name, sealed as ever."""
        return self._tools.get(name)

    def bound_to_a_loop(self) -> bool:
        """Is an event loop running in this thread, and does a tool need one?"""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return any(tool.spec.is_async for tool in self._tools.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._tools))
