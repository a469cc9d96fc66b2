"""What a fold is: a name, a version, a beginning and one pure function for each type of event."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eventlog import Recorded
from eventlog.errors import EventLogError
from eventlog.light import TYPE_CHECKING, Generic, TypeVar
from eventlog.snapshotfiles import SnapshotFiles

if TYPE_CHECKING:
    from typing import Any

__all__ = ["EVERY_TYPE", "FoldError", "Handler", "ImpossibleTransition", "Projection"]

S = TypeVar("S")
Handler = Callable[[S, Recorded], S]

EVERY_TYPE = "*"
"""The key of the handler that takes each event whose type has no handler of its own (no event type is spelled like this)."""


class ImpossibleTransition(EventLogError):
    """An event that does not follow from the ones before it."""


class FoldError(EventLogError):
    """A handler raised: the event does not fit what came before it, or the handler has a fault.

    `projection` is the name, `seq` the number of the event, `type` its type. Events and every other fold stay usable; a View stays
    at the event before.
    """

    def __init__(self, projection: str, seq: int, type_: str, why: str) -> None:
        super().__init__(f"projection {projection!r}: event {seq} ({type_}): {why}")
        self.projection = projection
        self.seq = seq
        self.type = type_
        self.why = why

    def __reduce__(self) -> tuple[type[FoldError], tuple[str, int, str, str]]:
        return type(self), (self.projection, self.seq, self.type, self.why)


class Projection(Generic[S]):
    """A pure fold over ordered events (design section 4).

    `name` and `version` identify the meaning of a stored state: raise the version whenever a handler changes. `handlers` maps an
    event type to `(state, event) -> state`; events of other types are skipped without being decoded, unless `EVERY_TYPE` has a
    handler. A handler uses no clock, no random and no I/O. It may change the state that it is given and return it, but has to check
    first and change then: what it did before it raised cannot be taken back.
    `dump` makes a state a JSON value, `load` is its inverse (seq and sort order included); without them the state is taken as JSON.
    A state that does not come back exactly gets no snapshot (docs/projections.md).
    `pack`, where it can be had, is a shorter form than `dump`, for snapshots; `load` is then its inverse, and `dump` is what people see.
    `merge(a, b)`, where it can be had, makes one state of that of some events and that, folded by itself, of those right behind them:
    then processes can share a long fold.
    """

    __slots__ = ("__weakref__", "_initial", "comes_back", "dump", "handlers", "load", "merge", "name", "pack", "state_is_json", "version")

    def __init__(
        self,
        name: str,
        version: int,
        initial: S,
        handlers: Mapping[str, Handler[S]],
        dump: Callable[[S], Any] | None = None,
        load: Callable[[Any], S] | None = None,
        merge: Callable[[S, S], S] | None = None,
        pack: Callable[[S], Any] | None = None,
    ) -> None:
        if not name or not handlers:
            raise ValueError(f"projection {name!r}: needs a name and at least one handler")
        if version < 1:
            raise ValueError(f"projection {name!r}: version {version} is not a positive number")
        self.name = name
        self.version = version
        self._initial = initial
        self.handlers = dict(handlers)
        self.dump: Callable[[S], Any] = dump if dump is not None else _same
        self.load: Callable[[Any], S] = load if load is not None else _same
        self.merge = merge
        self.pack = pack if pack is not None else self.dump
        self.state_is_json = dump is None
        self.comes_back = (dump is None) == (load is None)  # a dump alone is for display

    @property
    def initial(self) -> S:
        """The state before the first event. Each call gives its own copy, because handlers may change a state in place."""
        copies = getattr(self._initial, "__deepcopy__", None)
        if copies is not None:
            made: S = copies({})
            return made
        import copy

        return copy.deepcopy(self._initial)

    @property
    def types(self) -> frozenset[str] | None:
        """The event types that a log has to decode for this fold; None: all."""
        return None if EVERY_TYPE in self.handlers else frozenset(self.handlers)

    def resume(self, files: SnapshotFiles, upto: int | None = None) -> tuple[S, int, int] | None:
        """A state that was kept: (state, after which event, bytes). See `eventlog.projections.snapshots`."""
        kept = files.find(self.name, self.version) if self.comes_back else None
        if not kept:
            return None
        from eventlog.projections import snapshots  # many a process folds a log that has none, and decides without it

        return snapshots.resume(self, files, kept, upto)

    def keep(self, files: SnapshotFiles, state: S, seq: int) -> int:
        """Write down the state after event `seq`: the bytes that it took, or 0."""
        from eventlog.projections import snapshots

        return snapshots.keep(self, files, state, seq)

    def __repr__(self) -> str:
        return f"<Projection {self.name} v{self.version}, {len(self.handlers)} handlers>"


def _same(value: Any) -> Any:
    return value
