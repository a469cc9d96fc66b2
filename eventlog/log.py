"""EventLog: the handle that users hold."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from eventlog import forks, lock, payload
from eventlog.background import Background
from eventlog.batch import Batch
from eventlog.directory import Directory
from eventlog.entry import Entry
from eventlog.errors import EventLogError, LockTimeout, LogClosed, LogNotFound, NotWritten, ReadOnly, again
from eventlog.events import Commit, Durability, Event, Expect
from eventlog.fs import REAL, FileSystem
from eventlog.group import Group
from eventlog.light import TYPE_CHECKING, Lazy, TypeVar
from eventlog.lock import Owner, WriterLock
from eventlog.reader import Reader
from eventlog.reading import Reading
from eventlog.snapshotfiles import SnapshotFiles
from eventlog.transactions import Foldable, Transactions, plain
from eventlog.watermark import Watermark
from eventlog.writer import Writer

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path
    from typing import Any, Self

    from eventlog import coroutines
    from eventlog.coroutines import CoroutinePlace, LoopWakes
    from eventlog.payload import Draft
else:
    coroutines = Lazy("eventlog.coroutines")  # for who runs an event loop

S = TypeVar("S")

# Bound once: looking up a member in its Enum, twice a commit, was 4 % of a BATCHED one.
_IMMEDIATE, _BATCHED, _new = Durability.IMMEDIATE, Durability.BATCHED, tuple.__new__

SEGMENT_BYTES_MAX = 16 << 20
SEGMENT_BYTES_LEAST = 4 << 10
COMMIT_BYTES_MAX = 16 << 20
COMMIT_BYTES_LIMIT = 1 << 30  # a commit is held in memory whole, and its length has 32 bits


class EventLog(Reading):
    """One append-only log of events in a directory. Safe for threads; any number of processes may have it open and write.

    Use it as a context manager, or `close` it; like the end of the interpreter, both leave nothing that is not on disk.
    """

    _gone = True  # nothing is left to close, or not open yet

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        read_only: bool = False,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        commit_bytes_max: int = COMMIT_BYTES_MAX,
        batch_window_ms: float = 50,
        batch_bytes: int = 4 << 20,
        lock_timeout: float = 10.0,
        fs: FileSystem = REAL,
    ) -> EventLog:
        """Open the log at `path`, making it (mode 0700) unless `create` is False. `read_only` never writes a byte or a name.

        With an infinite `batch_window_ms` nothing is synced before flush, close or an IMMEDIATE commit asks for it: neither what this
        handle writes BATCHED nor what it finds written and unconfirmed. `lock_timeout` is in seconds. What a crash left
        half done is mended, and said in `log.mended`.
        Raises LogNotFound, UnsafeLog, Corrupt (damage that no crash explains), UnsupportedFormat, LockTimeout, NotWritten
        (the system refused; nothing was harmed).
        """
        if segment_bytes_max < SEGMENT_BYTES_LEAST:
            raise ValueError(f"segment_bytes_max: {segment_bytes_max} is less than {SEGMENT_BYTES_LEAST}")
        if not 0 < commit_bytes_max <= COMMIT_BYTES_LIMIT:
            raise ValueError(f"commit_bytes_max: {commit_bytes_max} is not in 1..{COMMIT_BYTES_LIMIT}")
        where = os.path.abspath(os.fspath(path))
        directory = writer = None
        try:
            directory = Directory.open(fs, where, create=create and not read_only, write=not read_only)
            if not directory.load() and (read_only or not create):
                raise LogNotFound(f"{where}: no log here (no log.json)")
            if not read_only:
                writer = _open_writer(directory, segment_bytes_max, lock_timeout, patient=batch_window_ms == float("inf"))
        except BaseException as error:
            if directory is not None:
                directory.close()
            if isinstance(error, OSError) and not isinstance(error, EventLogError):
                raise NotWritten(f"{where}: cannot be opened ({error.strerror or error}); mend that, then open it again", error) from error
            raise
        return cls(directory, writer, commit_bytes_max, batch_window_ms / 1000, batch_bytes)

    def __init__(self, directory: Directory, writer: Writer | None, commit_bytes_max: int, window: float, batch_bytes: int) -> None:
        """Use `EventLog.open`."""
        self._path, self.id, self.read_only = directory.path, directory.id.hex(), writer is None
        self._directory, self._fs, self._writer = directory, directory.fs, writer
        self._commit_bytes_max = commit_bytes_max
        self._watermark, self._reader = Watermark(directory), Reader(directory)
        self._watermark.on_move = self._reader.forget
        self.snapshots = SnapshotFiles(directory, self._reader, self._watermark, may_write=not self.read_only)
        self._closed: str | None = None  # why every call is refused
        self._closing = threading.Lock()
        self._loops: weakref.WeakKeyDictionary[Any, LoopWakes] = weakref.WeakKeyDictionary()
        self._wakes: LoopWakes | None = None  # of the loop that was the last to commit
        if writer is not None:
            self._group = Group(writer)
            self._watermark.on_sync_failure = writer.give_up
            self._transactions = Transactions(writer, self._reader, self.snapshots, commit_bytes_max)
            self._batch = Batch(writer, self._group, window, batch_bytes)
            self._async_leader = Background("eventlog-async", self._group.lead_for_others, to_the_end=True)
        self._gone = False
        _open_logs.add(self)
        forks.watch(self)

    # -- writing ----------------------------------------------------------------------------------------------------------------

    def commit(
        self, events: Event | Iterable[Event], durability: Durability = Durability.IMMEDIATE, expect: Expect | None = None
    ) -> Commit:
        """Append the events as one atomic commit: a reader, and a crash, sees all of them or none.

        Raises PayloadError (the value would not come back equal), Conflict (`expect` did not hold), NotWritten, OutcomeUnknown,
        LogPoisoned, LockTimeout, LogClosed, ReadOnly. Only OutcomeUnknown leaves a doubt; after all others nothing was written.
        """
        writer = self._writer
        if self._closed is not None or writer is None or self._transactions.deciding:
            writer = self._for_writing()
        draft = payload.encode(events, self._commit_bytes_max)
        if expect is not None:
            expect = self._transactions.look_ahead(expect)
        written = None
        if durability is _IMMEDIATE:
            written = self._group.alone(draft, None if expect is None else expect.after)
        elif expect is None:
            written = writer.append(draft)
            if written is not None:
                self._batch.grew()
        if written is not None:
            first, now = written
            return _new(Commit, (first, first + draft[1] - 1, now, durability))
        if durability is _IMMEDIATE:
            entry = self._group.commit(draft, expect)
        else:
            entry = Entry(draft, expect)
            writer.locked(writer.write, (entry,))
            if entry.error is None:
                self._batch.grew()
            else:
                self._group.commit(None)  # a refusal is told only when what it rests on is durable
        if entry.error is not None:
            raise again(entry.error)
        return _new(Commit, (entry.first, entry.first + draft[1] - 1, entry.time, durability))

    async def acommit(
        self, events: Event | Iterable[Event], durability: Durability = Durability.IMMEDIATE, expect: Expect | None = None
    ) -> Commit:
        """`commit` for coroutines: no lock, write or sync on the event loop; coroutines that wait together share one sync.

        A cancelled one is withdrawn if its turn has not come; else it is written all the same.
        """
        self._for_writing()
        draft = payload.encode(events, self._commit_bytes_max)
        future = coroutines.running_loop().create_future()
        place = self.begin_commit(draft, durability, expect, future)
        try:
            await future
        except BaseException:  # cancelled, or the coroutine was closed
            self.withdraw(place)
            raise
        return self.end_commit(place, durability)

    # For the floors above, which have something to do while the disk writes:

    def draft(self, events: Sequence[Event], *, proved: bool = False) -> Draft:
        """The events of a commit, encoded ahead of it; `proved`: see `payload.encode_proved`. Raises PayloadError."""
        return (payload.encode_proved if proved else payload.encode)(events, self._commit_bytes_max)

    def commit_draft(self, draft: Draft, expect: Expect | None, meanwhile: Callable[[int, int], None]) -> None:
        """`commit`, IMMEDIATE. `meanwhile(first seq, time)` is called once if it is written: before it is durable, or when it is.

        Should that raise, the commit is in the log, and nobody has synced it.
        """
        if self._closed is not None or self._writer is None or self._transactions.deciding:
            self._for_writing()
        if expect is not None:
            expect = self._transactions.look_ahead(expect)
        if self._group.alone(draft, None if expect is None else expect.after, meanwhile) is None:
            entry = self._group.commit(draft, expect)
            if entry.error is not None:
                raise again(entry.error)
            meanwhile(entry.first, entry.time)

    def begin_commit(self, draft: Draft, durability: Durability, expect: Expect | None, future: asyncio.Future[None]) -> CoroutinePlace:
        """The first half of `acommit`: queue it, without blocking. `future` belongs to the running loop, and is set when the commit has its
        outcome. Raises what is to be refused at once."""
        if self._closed is not None or self._writer is None or self._transactions.deciding:
            self._for_writing()
        durable = durability is _IMMEDIATE
        if expect is not None:
            expect, durable = plain(expect), True
        loop, wakes = future.get_loop(), self._wakes
        if wakes is None or wakes.loop() is not loop:
            wakes = self._loops.get(loop)
            if wakes is None:
                wakes = self._loops[loop] = coroutines.LoopWakes(loop, self._async_leader)
            self._wakes = wakes
        place = coroutines.CoroutinePlace(draft, expect, durable, future, wakes)
        self._group.enqueue(place)
        return place

    def withdraw(self, place: CoroutinePlace) -> None:
        """Instead of it, for a coroutine that ends before: if its turn has not come, it is never written."""
        self._group.withdraw(place)

    def end_commit(self, place: CoroutinePlace, durability: Durability) -> Commit:
        """The second half, when the future of the place is set: the receipt, or its error raised."""
        if place.error is not None:
            raise again(place.error)
        if durability is _BATCHED:
            self._batch.open_window()
        draft, first = place.draft, place.first
        assert draft is not None
        return _new(Commit, (first, first + draft[1] - 1, place.time, durability))

    def transact(
        self,
        projection: Foldable[S],
        decide: Callable[[S], Event | Iterable[Event] | None],
        durability: Durability = Durability.IMMEDIATE,
    ) -> Commit | None:
        """Decide on the state at the head, and append what was decided before anybody else can append.

        `decide(state)` runs under the writer lock: keep it pure and short. It returns the events to append, or None (or none) to refuse;
        a refusal is returned only when all that it rests on is durable. Commit or transact inside it raises. Errors as in `commit`.
        """
        writer = self._for_writing()
        entry = self._transactions.transact(projection, decide)
        if entry is not None and entry.error is not None:
            raise again(entry.error)
        if entry is not None and durability is Durability.BATCHED:
            self._batch.grew()
        elif entry is not None or writer.dirty():
            self._sync()
        if entry is None or entry.draft is None:
            return None
        return Commit(entry.first, entry.first + entry.draft.events - 1, entry.time, durability)

    def keep(self, projection: Foldable[Any]) -> bool:
        """Write a snapshot of what `transact` has folded with this projection, if enough was folded since the last one; was one written?

        For a process that lives for a moment: call it when its answer is out. It may sync, and raises what `flush` raises.
        """
        writer = self._for_writing()
        if not self._transactions.is_due(projection):
            return False
        if writer.dirty():
            self._sync()
        return self._transactions.keep(projection)

    def flush(self) -> None:
        """Make everything that this handle has written durable. Raises OutcomeUnknown, LogPoisoned."""
        writer = self._for_writing()
        if writer.dirty():
            self._sync()
        with contextlib.suppress(NotWritten, LockTimeout):  # the mark is only a help to whoever opens next
            writer.locked(writer.mark)

    def _sync(self) -> None:
        entry = self._group.commit(None)
        if entry.error is not None:
            raise again(entry.error)

    # -- what it is -------------------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """Where the log is: an absolute path."""
        from pathlib import Path

        return Path(self._path)

    @property
    def mended(self) -> list[str]:
        """What this handle found torn by a crash and mended, a line each."""
        return list(self._writer.view.mended) if self._writer is not None else []

    # -- owner locks ------------------------------------------------------------------------------------------------------------

    def own(self, name: str) -> Owner | None:
        """Own `name` for as long as this process lives and does not release it; None while somebody alive owns it (design 3.4)."""
        self._for_writing()
        return lock.take_owner(self._fs, self._directory.fd, name)

    def owned(self, name: str) -> bool:
        """Does somebody alive own `name`?"""
        self._check_open()
        return lock.is_owned(self._fs, self._directory.fd, name)

    # -- end --------------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable and let go; again is fine. Raises OutcomeUnknown if the disk refuses, and is closed all the same."""
        self._close(mark=True)

    def _close(self, *, mark: bool) -> None:
        with self._closing:
            if self._gone:
                return
            self._closed = "the log is closed; open it again"
        writer = self._writer
        try:
            if writer is not None and not writer.closed:
                self._batch.close()
                self._async_leader.close()
                if writer.dirty():
                    self._sync()
                if mark and writer.poison is None:
                    # Only a help to whoever opens next: everything is on disk already.
                    with contextlib.suppress(NotWritten, LockTimeout):
                        writer.locked(writer.mark)
        finally:  # an interrupt in the middle of this leaves the rest to a second close
            try:
                if writer is not None:
                    writer.close()
            finally:
                self._watermark.close()
                self._directory.close()
                _open_logs.discard(self)
                self._gone = True

    def after_fork_in_child(self) -> None:
        """The child must neither write the parent's batch a second time, nor unlock its lock, nor keep it locked."""
        if self._closed is None:
            self._closed, self._gone = "this handle belongs to the parent process; open the log again in the child", True
            _open_logs.discard(self)
            self._watermark.close(forked=True)
            if self._writer is not None:  # not its close: another thread of the parent may have held its locks
                self._writer.view.close()
            self._directory.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except EventLogError:
            if kind is None:  # else what went wrong first says more
                raise

    def __del__(self) -> None:
        # Dropped without close: what was committed BATCHED must not depend on when the process ends. No mark: that takes the writer
        # lock, and the garbage collector may call us while this very thread holds it for another handle.
        if not self._gone:
            with contextlib.suppress(EventLogError):
                self._close(mark=False)

    def __repr__(self) -> str:
        return f"<EventLog {self._path}{' read-only' if self.read_only else ''}{' closed' if self._closed else ''}>"

    # -- inside -----------------------------------------------------------------------------------------------------------------

    def _for_writing(self) -> Writer:
        if self._closed is not None:
            raise LogClosed(f"{self._path}: {self._closed}")
        if self._writer is None:
            raise ReadOnly(f"{self._path}: opened read-only; open it for writing to do that")
        if self._transactions.deciding == threading.get_ident():
            raise EventLogError(f"{self._path}: decide() runs under the writer lock: return the events instead of writing them")
        return self._writer


def _open_writer(directory: Directory, segment_bytes_max: int, lock_timeout: float, *, patient: bool) -> Writer:
    """Take the lock, make the log if there is none, find its end. Closes what it opened when it fails."""
    writer_lock = WriterLock(directory.fs, directory.fd, directory.path, lock_timeout)
    writer = Writer(directory, writer_lock, segment_bytes_max)
    writer.view.patient = patient
    try:
        try:
            writer_lock.acquire()
            if not directory.id and not directory.load():
                directory.make()
            writer.view.find()
        finally:
            writer_lock.release()
    except BaseException:
        writer.view.close()
        raise
    return writer


_open_logs: weakref.WeakSet[EventLog] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """The end of the interpreter leaves nothing behind that was committed BATCHED."""
    errors = []
    for log in list(_open_logs):
        try:
            log.close()
        except EventLogError as error:  # the others are closed first
            errors.append(error)
    if errors:
        raise errors[0]
