"""One handle's view of the tail, and how it is kept true among processes (design 3.4).

Under the lock, before each append: has the tail record changed, and is there nothing at the place where the next frame goes? Whatever the
answer, the bytes decide, never the record: it only saves looking. All methods but `tell_durable` need the writer lock.
"""

from __future__ import annotations

from eventlog import tailrecord
from eventlog.directory import Directory
from eventlog.examine import scan
from eventlog.frames import FRAME_HEADER_BYTES
from eventlog.fs import let_go
from eventlog.lock import WriterLock
from eventlog.opening import Tail, find_tail
from eventlog.segments import list_numbers
from eventlog.tailrecord import READ_BYTES, RECORD_BYTES, WORD_OFFSET, TailRecord, pack_word

_UNKNOWN = b"unknown"  # no record begins with it
_SHARED_FOR = 16  # commits for which a meeting with another writer is remembered


class TailView:
    """Where the log ends, as this handle knows it: `tail`; the record that says so: `record`; how far that goes: `told`.

    `where`: what each record says of the open segment, beside its end. `shared`: others were writing lately. `moves` counts how often the
    tail was found where it should not be: what was folded from beyond it may be gone. `lost`: frames of this handle, which nobody had
    confirmed, are gone. `mended` says what was found torn, a line each.
    `retired` are descriptors that a sync in another thread may still be using.
    """

    def __init__(self, directory: Directory, lock: WriterLock) -> None:
        self.lock = lock
        self.record = self.where = b""
        self.told = 0
        self.moves = 0
        self.lost = False
        self.shared = 0
        self.mended: list[str] = []
        self.retired: list[int] = []
        self.tail: Tail
        self._directory, self._fs, self._pwrite = directory, directory.fs, directory.fs.pwrite
        self._boot = self._fs.boot_id()
        self.patient = False  # what is found unconfirmed may wait for our first sync

    def catch_up(self) -> None:
        """Make the view true: others may have appended, rotated, cut, or died in the middle of a write. Raises OSError, Corrupt, …"""
        fs, tail = self._fs, self.tail
        end = tail.end
        data = fs.pread(self.lock.fd, READ_BYTES, 0)
        if not data.startswith(self.record) and not self.adopt(data):
            self.find()
        elif fs.pread(tail.fd, FRAME_HEADER_BYTES, tail.end).strip(b"\0") and not self._extend():
            self.find()
        self.shared = _SHARED_FOR if self.tail is not tail or tail.end != end else max(0, self.shared - 1)

    def adopt(self, data: bytes) -> bool:
        """Take over what another process says of the segment that we have open. False: look for yourself."""
        told = tailrecord.parse_end(data, self.where)
        if told is None:
            return False
        tail = self.tail
        end, seq = told
        if end > tail.end:  # else it lags behind what we have seen for ourselves
            if end > tail.allocated:
                tail.allocated = self._fs.size(tail.fd)
                if end > tail.allocated:
                    return False
            tail.end, tail.seq, tail.events_end = end, seq, end
            self.shared = _SHARED_FOR
        durable = tailrecord.parse_word(data, tail.epoch)
        if durable > tail.durable:
            tail.durable = durable
        self.record = data[:RECORD_BYTES]
        return True

    def _extend(self) -> bool:
        """Something stands where our next frame would go: take it in, if it is whole frames. False: look closer."""
        tail = self.tail
        size = self._fs.size(tail.fd)
        found = scan(self._directory, tail.fd, tail.salt, tail.end, tail.seq, size)
        if found.seal is not None or found.stop.reason not in ("zeros", "end"):
            return False  # the segment was sealed, or somebody died in the middle of a write
        tail.end, tail.seq, tail.allocated = found.stop.offset, found.stop.seq, size
        tail.events_end, tail.marked = max(tail.events_end, found.events_end), max(tail.marked, found.said)
        return True

    def find(self) -> None:
        """Look for the tail from the beginning, and mend what a crash left. Raises what `find_tail` raises."""
        tail = find_tail(self._directory, self.lock, self._boot, patient=self.patient)
        old = getattr(self, "tail", None)
        if old is not None and old.last is not None and old.last[0] >= old.durable:
            # What we wrote last and nobody confirmed: is it still there? If not, some of it was acknowledged as BATCHED.
            offset, data = old.last
            self.lost = self._fs.pread(old.fd, len(data), offset) != data
        begun = 0
        if old is not None and tail.number != old.number:
            numbers = list_numbers(self._fs, self._directory.segments_fd, self._directory.path)
            begun = sum(old.number < number <= tail.number for number in numbers)
        self.replace(tail, begun)

    def replace(self, tail: Tail, begun: int) -> None:
        """Go on from this tail, and tell the others. `begun` segments came since the one that was known.

        Where offsets mean something new, the epoch moves on: a slow writer's durable word must not count any more. Where they do
        not, it must stay, or two writers would chase each other.
        """
        old = getattr(self, "tail", None)
        tail.epoch += tail.moved
        if old is not None:
            self.moves += tail.epoch - old.epoch != begun  # a new segment takes nothing away; all else may, whoever did it
        self.tail = tail
        if old is not None:  # not before: interrupted between the two, a descriptor in use would be closed
            self.retired.append(old.fd)
        self.mended += tail.report
        tail.report = []
        self.where = tailrecord.where(TailRecord(self._boot, self.lock.inode, tail.epoch, tail.number, tail.end, tail.seq))
        self.tell()
        self.tell_durable()

    def tell(self) -> None:
        """Write the tail record. Of a lone writer it may lag (`TELL_BYTES`): who reads it scans on from there. Among several writers each
        commit is told: adopting a record costs a fifth of walking the frames of seven others."""
        tail = self.tail
        self.told = tail.end
        self._write(tailrecord.pack_end(self.where, tail.end, tail.seq))

    def _write(self, packed: bytes) -> None:
        self.record = _UNKNOWN  # should the write be interrupted
        try:
            self._fs.pwrite(self.lock.fd, packed, 0)
            self.record = packed
        except OSError:
            pass  # a hint that is lost costs others a look; the commit itself is in the log

    def distrust(self) -> None:
        """Whatever the record says next time, look."""
        self.record = _UNKNOWN

    def tell_durable(self) -> None:
        """Write the durable word. The one thing that needs no lock: it may lag, and the epoch says what it belongs to."""
        tail, pwrite = self.tail, self._pwrite
        try:  # noqa: SIM105 - contextlib.suppress takes as long as the write, after every sync
            pwrite(self.lock.fd, pack_word(tail.epoch, tail.durable), WORD_OFFSET)
        except OSError:
            pass  # a word that is lost costs others a sync

    def tell_suspect(self) -> None:
        """Tell every process that behind the durable part of our segment nothing may be believed: our sync failed.

        What else the record says stays: others may have gone on meanwhile.
        """
        tail = self.tail
        record = tailrecord.parse(self._fs.pread(self.lock.fd, READ_BYTES, 0))
        if record is None or record.inode != self.lock.inode:
            record = TailRecord(self._boot, self.lock.inode, tail.epoch, tail.number, tail.end, tail.seq)
        self._write(tailrecord.pack(record._replace(suspect_segment=tail.number, suspect=tail.durable)))

    def close_retired(self) -> None:
        """Close descriptors that no sync uses any more. Called by whoever has the right to sync."""
        while self.retired:
            let_go(self._fs, self.retired.pop())

    def close(self) -> None:
        self.close_retired()
        """Let go of every descriptor; again is fine."""
        if hasattr(self, "tail"):
            let_go(self._fs, self.tail.fd)
            self.tail.fd = -1
        self.lock.close()
