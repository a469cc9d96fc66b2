"""Appending under the writer lock, rotating, and making durable (design 3.4).

The order is the protocol: flock, look at the tail, assign seqs, pwrite, tail record, unlock, fdatasync, acknowledge. Syncing after
unlocking lets the kernel join the syncs of many processes. One `Writer` belongs to one handle; `mutex` stands for it among threads.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from fcntl import LOCK_UN

from eventlog.directory import Directory, write_all
from eventlog.entry import Entry
from eventlog.errors import Conflict, EventLogError, LogClosed, LogPoisoned, NotWritten, OutcomeUnknown
from eventlog.events import Expect
from eventlog.frames import EVENTS, FRAME_HEADER_BYTES, MARK, encode
from eventlog.fs import SyncFailed
from eventlog.light import TYPE_CHECKING, Lazy, TypeVar
from eventlog.lock import WriterLock
from eventlog.opening import NO_ROOM, confirmed, succeed
from eventlog.payload import Draft
from eventlog.segments import HEADER_BYTES, name_of
from eventlog.tailrecord import READ_BYTES, TELL_BYTES
from eventlog.tailview import TailView

if TYPE_CHECKING:
    from eventlog import indexes
else:
    indexes = Lazy("eventlog.indexes")  # for who seals a segment

T = TypeVar("T")

_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_NOTHING = Draft(b"", 0, 0, 0)
_ZEROS = bytes(FRAME_HEADER_BYTES)
_UNCONFIRMED = "the disk did not confirm what was written; open the log again: it reads what really is there"


class Writer:
    """The right to move the end of the log. `poison` says, once a failure made this handle useless, why."""

    def __init__(self, directory: Directory, lock: WriterLock, segment_bytes_max: int) -> None:
        self.directory, self.lock, self.segment_bytes_max = directory, lock, segment_bytes_max
        self.view = TailView(directory, lock)
        # Reentrant, so that a signal handler that commits in the middle of a commit is told so instead of waiting for itself.
        self.mutex = threading.RLock()
        self.syncing = threading.RLock()
        self.poison: str | None = None
        self.closed = False
        self.find_conflict: Callable[[Expect, int], int | None] = lambda expect, head: None
        self._fs = fs = directory.fs
        # Bound once, here and in the lock: found through the class, each of the nine calls of a commit takes 40 ns more.
        self._pread, self._pwrite, self._flock, self._fdatasync = fs.pread, fs.pwrite, fs.flock, fs.fdatasync
        self._wrote = self._inside = False

    # -- under the lock ---------------------------------------------------------------------------------------------------------

    def locked(self, work: Callable[..., T], *arguments: object) -> T:
        """Run `work` with the lock held and a tail that is true. Raises LockTimeout, NotWritten, LogPoisoned, Corrupt.

        Written so that an exception from a signal handler, at any bytecode, leaves the locks free; a frame that was cut short by it
        is found and mended by whoever comes next, in whatever process.
        """
        with self.mutex:
            self._check()
            try:
                self._inside = True
                self.lock.acquire()
                try:
                    self.view.catch_up()
                except OSError as error:
                    self._refuse(error, "could not look at the tail")
                if self.view.lost:
                    self.poison = (
                        f"{self.directory.path}: commits that were acknowledged as BATCHED are gone: the disk lost them, and told another "
                        "handle; open the log again and look for them"
                    )
                    raise LogPoisoned(self.poison)
                return work(*arguments)
            finally:
                self._inside = False
                # Straight into C: a function of ours could be interrupted at its entry, and the lock stay with a living process.
                try:
                    self._fs.flock(self.lock.fd, LOCK_UN)
                except OSError:
                    self.lock.reopen()

    def _check(self) -> None:
        if self._inside:
            raise EventLogError(f"{self.directory.path}: used by a signal handler in the middle of a commit: set a flag in it, or raise")
        if self.closed:
            raise LogClosed(f"{self.directory.path}: {self.poison}")
        if self.poison is not None:
            raise LogPoisoned(self.poison)

    def append(self, draft: Draft, after_seq: int | None = None, *, begin: bool = False) -> tuple[int, int] | None:
        """The short road of `locked(write)`, for one commit while nothing special is going on: returns its first seq and its time.

        None, with nothing done, when anything is: the record does not tell what others wrote, the segment or the reserved room ends
        here, or there is an event behind `after_seq` (up to there the caller knows that nothing conflicts with what it expects).
        `begin`: let the disk begin at once, and do not wait: the sync that follows then waits for less. Raises what `_append` raises.
        """
        lock, view, pread, pwrite, flock = self.lock, self.view, self._pread, self._pwrite, self._flock
        with self.mutex:
            if self.poison is not None or self._inside:
                return None
            try:
                self._inside = True
                if not lock.try_acquire():
                    lock.acquire(taken=True)
                tail = view.tail
                try:
                    data = pread(lock.fd, READ_BYTES, 0)
                    if not data.startswith(view.record):
                        if not view.adopt(data):
                            return None
                    elif view.shared:
                        view.shared -= 1
                    end, seq = tail.end, tail.seq
                    after = end + FRAME_HEADER_BYTES + len(draft[0])
                    if (
                        after > tail.allocated
                        or after > self.segment_bytes_max
                        or tail.rewrite is not None
                        or (after_seq is not None and seq > after_seq + 1)
                        or pread(tail.fd, FRAME_HEADER_BYTES, end) != _ZEROS
                    ):
                        return None
                except OSError:
                    return None  # the long road meets it again, and says what it means
                now, durable = lock.time, tail.durable
                data = encode(draft, seq, durable, now, EVENTS, tail.salt)
                try:
                    done = pwrite(tail.fd, data, end)
                    if done < len(data):
                        write_all(self._fs, tail.fd, data[done:], end + done)
                except OSError as error:
                    self._take_back(len(data), error)
                if begin:
                    try:  # noqa: SIM105 - contextlib.suppress takes as long as the call
                        self._fs.begin_write_out(tail.fd, end, len(data))
                    except OSError:
                        pass  # a hint
                tail.last = (end, data)
                if tail.headers_end == end:
                    tail.headers += data[:FRAME_HEADER_BYTES]
                    tail.headers_end = after
                tail.end = tail.events_end = after
                tail.seq, tail.marked, self._wrote = seq + draft[1], durable, True
                if view.shared or after - view.told >= TELL_BYTES:
                    view.tell()
                return seq, now
            finally:
                self._inside = False
                try:
                    flock(lock.fd, LOCK_UN)
                except OSError:
                    lock.reopen()

    def write(self, entries: Sequence[Entry]) -> None:
        """Append the entries that have a draft, in order; each ends up with `first` and `time`, or with an `error`.

        Frames are joined into one pwrite as far as the segment has room. Call it through `locked`.
        """
        tail, now, limit = self.view.tail, self.lock.time, self.segment_bytes_max
        joined: list[bytes] = []
        waiting: list[Entry] = []
        end, seq, durable, salt = tail.end, tail.seq, tail.durable, tail.salt
        for entry in entries:
            draft = entry.draft
            if draft is None:
                continue
            size = FRAME_HEADER_BYTES + len(draft[0])
            full = end + size > limit and end > HEADER_BYTES
            if full or entry.expect is not None:
                failure = self._put(joined, waiting, end, seq) or (self._rotate() if full else None)
                joined, waiting = [], []
                if failure is not None:
                    # Nothing more of a batch is written: a smaller commit might fit, over what was left half done.
                    for late in entries[entries.index(entry) :]:
                        if late.draft is not None:
                            late.error = failure
                    return
                tail = self.view.tail
                end, seq, durable, salt = tail.end, tail.seq, tail.durable, tail.salt
                if entry.expect is not None and not self._holds(entry):
                    continue
            joined.append(encode(draft, seq, durable, now, EVENTS, salt))
            entry.first, entry.time, entry.writing = seq, now, True
            waiting.append(entry)
            end += size
            seq += draft[1]
        self._put(joined, waiting, end, seq)
        view = self.view
        if view.shared or view.tail.end - view.told >= TELL_BYTES:
            view.tell()

    def _holds(self, entry: Entry) -> bool:
        assert entry.expect is not None
        try:
            seq = self.find_conflict(entry.expect, self.view.tail.seq - 1)
        except EventLogError as error:  # it could not be looked at: this entry's trouble alone
            entry.error = error
            return False
        if seq is None:
            return True
        entry.error = Conflict(f"seq {seq}: an event came to a watched stream after seq {entry.expect.after}; read it and decide again")
        return False

    def _put(self, joined: list[bytes], waiting: list[Entry], end: int, seq: int) -> EventLogError | None:
        """Write the joined frames at the tail and move it to (end, seq). A failure is given to every waiting entry, and back."""
        if not joined:
            return None
        try:
            self._append(joined[0] if len(joined) == 1 else b"".join(joined))
        except EventLogError as error:
            for entry in waiting:
                entry.first, entry.error, entry.writing = 0, error, False
            return error
        tail = self.view.tail
        tail.keep_headers(joined, end)
        tail.end, tail.seq, tail.events_end = end, seq, end
        tail.marked, self._wrote = max(tail.marked, tail.durable), True
        for entry in waiting:
            entry.writing = False
        return None

    def _append(self, data: bytes) -> None:
        """pwrite at the tail, with room made first. Raises NotWritten when nothing of it stays, OutcomeUnknown when that is not sure."""
        fs, tail = self._fs, self.view.tail
        needed = tail.end + len(data)
        try:
            if needed > tail.allocated:
                tail.grow(fs, needed, self.segment_bytes_max, others=self.view.shared > 0)
            if tail.rewrite is not None:
                offset, marks = tail.rewrite
                write_all(fs, tail.fd, marks, offset)
                tail.rewrite = None
            write_all(fs, tail.fd, data, tail.end)
        except OSError as error:
            self._take_back(len(data), error)
        tail.last = (tail.end, data)

    def _take_back(self, length: int, error: OSError) -> None:
        """A write failed: put zeros where a part of it may stand, so that it never appears later."""
        fs, tail = self._fs, self.view.tail
        where = f"{self.directory.path}/segments/{name_of(tail.number)}: offset {tail.end}"
        try:
            size = fs.size(tail.fd)
            stands = fs.pread(tail.fd, min(length, max(0, size - tail.end)), tail.end)
            written = len(stands.rstrip(b"\0"))  # no more: a file size limit may lie right behind it
            if written:
                write_all(fs, tail.fd, bytes(written), tail.end)
        except OSError as second:
            self.poison = f"{where}: a write failed ({error.strerror}) and could not be taken back ({second.strerror}); open the log again"
            raise OutcomeUnknown(self.poison, error) from error
        self._refuse(error, f"segments/{name_of(tail.number)}: offset {tail.end}: could not write")

    def _refuse(self, error: OSError, what: str) -> None:
        """Raise the error for a failure that left nothing of ours in the log; poison the handle unless room is all that lacked."""
        if isinstance(error, EventLogError):
            raise error
        message = f"{self.directory.path}: {what} ({error.strerror}); nothing was written"
        if isinstance(error, SyncFailed):
            self._doubt(error)
            self._warn_others()
        elif error.errno not in NO_ROOM | _NO_DESCRIPTOR:
            self.poison = f"{message}; this handle is done: open the log again"
        raise NotWritten(self.poison or message, error) from error

    def _rotate(self) -> EventLogError | None:
        """Seal the segment and begin the next, or give back why not. What is left half done is finished by whoever comes next."""
        tail = self.view.tail
        if tail.unconfirmed is not None:  # a sealed segment is confirmed, all of it
            try:
                self.sync()
            except EventLogError as error:
                return error
        before, seal = indexes.seal(self.directory, tail, self._fs.now())
        begin = tail.end + len(before)
        try:
            try:
                self.view.distrust()  # should this fail half-way: a seal may stand behind the tail that we know
                self._append(before + seal)
                with self.syncing:  # two syncs at once on one descriptor share an error: only one of them would see it
                    if self.poison is not None:
                        raise LogPoisoned(self.poison)
                    new = succeed(self.directory, tail, begin, begin + len(seal))
            except OSError as error:
                self._refuse(error, f"segments/{name_of(tail.number)}: could not begin the next segment")
        except EventLogError as error:
            return error
        new.epoch = tail.epoch
        self.view.replace(new, 1)
        return None

    # -- without the lock -------------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything durable that this handle has written, or has seen others write in the open segment. One thread at a time.

        Raises OutcomeUnknown, and poisons, when the disk refuses. fdatasync is never tried again after it failed: the kernel has marked
        the pages clean, and a second call would succeed over the hole.
        """
        view, fdatasync, failure = self.view, self._fdatasync, None
        tail = view.tail
        fd, end = tail.fd, tail.end
        with self.syncing:
            if self.poison is None:
                try:
                    fdatasync(fd)
                    if tail.unconfirmed is not None and view.tail is tail:
                        self._confirm()
                except OSError as error:
                    # Before anybody else may sync this descriptor: the error is reported once. And before any call: Ctrl-C during the
                    # sync that fails comes at the next one.
                    failure, self.poison = error, _UNCONFIRMED
                    self._doubt(error)
        with self.mutex:
            if failure is not None:
                self._warn_others()
            ours = view.tail is tail  # else its offsets mean something else, or what others wrote before is not confirmed
            if self.poison is not None:
                if self.closed and ours and end <= tail.durable:
                    return  # closed meanwhile, and synced by that
                raise OutcomeUnknown(self.poison, failure) from failure
            if ours and end > tail.durable:
                tail.durable = end
                view.tell_durable()

    def _confirm(self) -> None:
        """Our sync says nothing of what others wrote before we opened the file, if its write-back failed for them. Raises OSError."""
        if not confirmed(self.directory, self.view.tail):
            raise OSError(errno.EIO, "what others wrote before this handle was opened is not on it")

    def _doubt(self, error: OSError) -> None:
        tail = self.view.tail
        self.poison = (
            f"{self.directory.path}/segments/{name_of(tail.number)}: offset {tail.durable}: the disk did not confirm what follows "
            f"({error.strerror}); open the log again: it reads what really is there"
        )

    def give_up(self, error: OSError) -> None:
        """A sync by a reader of this handle failed: what it could not confirm may be gone, for everybody."""
        with self.mutex:
            if self.poison is None:
                self._doubt(error)
                self._warn_others()

    def _warn_others(self) -> None:
        """A sync failed: whatever other processes sync from now on would succeed, and what they acknowledge would be locked away
        behind the hole. The caller holds `mutex`, and in a rotation the lock."""
        if self.closed:
            return  # meanwhile, and the descriptors with it: who opens the log next confirms what the record cannot prove
        held = self._inside
        try:
            if not held:
                self.lock.acquire()
            self.view.tell_suspect()
        except (OSError, EventLogError):
            self.view.distrust()  # no word to the others: whoever opens next confirms what the record cannot prove
        finally:
            if not held:
                self.lock.release()

    def mark(self) -> None:
        """Write down, in the log, how far it is known to be on disk, unless a later frame says so already. Through `locked`."""
        tail = self.view.tail
        if self._wrote and tail.durable == tail.end == tail.events_end > tail.marked:
            if self.view.told != tail.end:
                self.view.tell()  # before the mark: then record and durable word meet, and nobody syncs for a mark's sake
            frame = encode(_NOTHING, tail.seq, tail.durable, self.lock.time, MARK, tail.salt)
            self._append(frame)
            tail.marked = tail.durable
            tail.keep_headers((frame,), tail.end + len(frame))
            tail.end += len(frame)

    def dirty(self) -> bool:
        """Is there an event that, as far as we know, the disk has not confirmed?"""
        return self.view.tail.durable < self.view.tail.events_end

    def close(self) -> None:
        """Let go, when nobody is in the middle of anything: what slipped in behind the last sync is synced, later calls raise LogClosed.

        Raises OutcomeUnknown when the disk refuses that.
        """
        failure = None
        with self.mutex, self.syncing:
            if not self.closed and self.poison is None and self.dirty():
                try:
                    self._fs.fdatasync(self.view.tail.fd)
                    self._confirm()
                    self.view.tail.durable = self.view.tail.end
                    self.view.tell_durable()
                except OSError as error:
                    failure = error
                    self._doubt(error)
                    self._warn_others()
            doubt = self.poison
            self.poison, self.closed = "the log is closed; open it again", True
            self.view.close()
        if failure is not None:
            raise OutcomeUnknown(doubt or "", failure) from failure
