"""Letting somebody watch guarded effects, as a tracer does, without the guard knowing any tracer.

An observer is told of an effect before anything of it is recorded, and again when its call is over. It is shown names, numbers and states,
never arguments or results: those may hold what must not leave the log. It can stop or change nothing: what it raises is warned of.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from eventlog.errors import EventLogError
from eventlog.projections.intent import EffectClass, IntentState
from eventlog.recovery.core import AttemptCore

__all__ = ["ObservedEffect", "Observer", "ObserverFailed", "observing"]


@dataclass(slots=True)
class ObservedEffect:
    """One call of a tool through the guard, or one intent that recovery brings to its end (`by` "recovery").

    Known from the beginning: `intent` (`branch@attempt:step`), `tool`, `effect_class`. Known at the end: `state`, `tries` (how often it was
    sent in all, by earlier runs too), `sent` (how often of them in this call), `replayed` (it was over before: the recorded outcome was
    given, nothing was sent), `source` (who brought it to its end, or left it to a person: "call", "resend", "reconciled",
    "human", "recovery", "cancel"; None: nobody yet).
    """

    intent: str
    tool: str
    effect_class: EffectClass
    by: str
    state: IntentState | None = None
    tries: int = 0
    sent: int = 0
    replayed: bool = False
    source: str | None = None


class Observer(Protocol):
    """What `Toolbox(log, observer=...)` takes."""

    def effect(self, effect: ObservedEffect) -> AbstractContextManager[object]:
        """Entered before anything is recorded, in the thread or task of the caller; left with the exception that the caller gets, if any.

        By then the rest of `effect` is filled in.
        """


class ObserverFailed(UserWarning):
    """An observer raised. The effect took its way all the same."""


@contextlib.contextmanager
def observing(observer: Observer, core: AttemptCore, text: str, tool: str, effect_class: EffectClass, by: str) -> Iterator[None]:
    """Around the call for the intent `text`."""
    before = core.get(text)
    tries = before.tries if before is not None else 0
    over = before is not None and before.state.finished
    effect = ObservedEffect(text, tool, effect_class, by)
    manager: AbstractContextManager[object] | None = None
    try:
        manager = observer.effect(effect)
        manager.__enter__()
    except Exception as error:  # noqa: BLE001 - who only looks must not be able to stop an effect
        manager = None
        _warn(observer, error)
    try:
        yield
    finally:
        try:
            after = core.get(text)
        except EventLogError:
            after = None  # it cannot be read; who only looks must not hide what the call came to
        if after is not None:
            effect.state, effect.tries, effect.source = after.state, after.tries, after.source
            effect.sent, effect.replayed = after.tries - tries, over
        if manager is not None:
            raised = sys.exc_info()
            try:
                manager.__exit__(*raised)
            except Exception as error:  # noqa: BLE001
                if error is not raised[1]:
                    _warn(observer, error)


def _warn(observer: Observer, error: Exception) -> None:
    with contextlib.suppress(Warning):  # -W error: even then the effect comes first
        warnings.warn(f"{type(observer).__qualname__}: {type(error).__name__}: {error}", ObserverFailed, stacklevel=2)
