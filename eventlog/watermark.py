"""How far a reader may go: the end of what is there, and of what is durable (design 3.4, reliability P8).

A reader takes no lock and hands out nothing that a power cut could still take back. The tail record says for free how far that is;
beyond it the reader syncs for itself (a read-only descriptor can).
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator

from eventlog import segments, tailrecord
from eventlog.directory import Directory
from eventlog.errors import Corrupt, EventLogError, LogClosed, Unreadable, UnsupportedFormat
from eventlog.examine import check_previous, examine, list_segments, refusal, scan
from eventlog.frames import FRAME_HEADER_BYTES
from eventlog.fs import SyncFailed, let_go, sync
from eventlog.light import NamedTuple
from eventlog.segments import HEADER_BYTES, name_of
from eventlog.tailrecord import TailRecord

_RACY_NS = 50_000_000  # a time stamp moves in ticks: a change in the same tick would not be seen (as in git's index)
_NOTHING_TO_SYNC = (errno.EROFS, errno.EINVAL)  # a read-only file system has no dirty pages


class Mark(NamedTuple):
    """Everything before byte `end` of segment `number` may be read; the next seq would be `seq`. `damage` is what stands there instead.

    `safe`: up to this byte of the segment all is durable. It is less than the end only where somebody looks, for the sake of
    writing, at what may yet be lost.
    """

    number: int
    end: int
    seq: int
    damage: Corrupt | UnsupportedFormat | None = None
    safe: int = 2**63


@contextlib.contextmanager
def unreadable(directory: Directory) -> Iterator[None]:
    """Turn what the system says while reading into our own error."""
    try:
        yield
    except OSError as error:
        if isinstance(error, EventLogError):
            raise
        if directory.fd < 0:
            raise LogClosed(f"{directory.path}: the log was closed meanwhile; open it again") from error
        raise Unreadable(f"{directory.path}: cannot be read ({error.strerror}); mend that, then read again") from error


class Watermark:
    """The high-water mark of one log, as one handle sees it. Safe for threads."""

    def __init__(self, directory: Directory) -> None:
        self._directory, self._fs = directory, directory.fs
        self._boot = self._fs.boot_id()
        self._guard = threading.Lock()
        self._lock_fd, self._inode, self._names_of = -1, 0, 0
        self.on_sync_failure: Callable[[OSError], None] | None = None  # a handle that can write tells the others
        self.on_move: Callable[[], None] | None = None
        self.moves = 0  # how often the log was cut, as far as its epochs tell: what was read before may be gone (`eventlog repair`)
        self._told: tuple[int, int] | None = None  # epoch and segment of the last record
        self._closed = False
        self._durable: Mark | None = None
        self._epoch = self._durable_epoch = 0  # of the record that was looked at last (0: there was none to believe), and of that mark
        self._segment_fd, self._segment, self._fresh = -1, 0, True
        self._seen: tuple[tuple[int, int], int, int, int] | None = None  # how far frames behind the record were walked, in which epoch
        self._scanned: tuple[tuple[int, ...], Mark] | None = None

    def close(self, *, forked: bool = False) -> None:
        if forked:  # another thread of the parent may have held it
            self._guard = threading.Lock()
        with self._guard:
            self._closed = True
            let_go(self._fs, self._lock_fd, self._segment_fd)
            self._lock_fd = self._segment_fd = -1
            self._segment = 0

    def head(self) -> int:
        """The seq of the last event that is there, durable or not."""
        with self._guard, unreadable(self._directory):
            return self._look()[0].seq - 1

    def seen(self) -> Mark:
        """The mark up to which all is there, durable or not. Errors as in `durable`."""
        with self._guard, unreadable(self._directory):
            return self._look()[0]._replace(safe=0)

    def extent(self) -> tuple[Mark, int]:
        """The mark up to which all is there, and up to which byte of its segment the writers say that it is on disk (0: they say nothing).

        Nothing is synced for the answer. Errors as in `durable`.
        """
        with self._guard, unreadable(self._directory):
            mark, _, word = self._look()
            return mark, word

    def durable(self, upto: int | None = None) -> Mark:
        """The mark up to which all is durable, after a sync if that is what it takes. With `upto`, a mark that covers that seq may do.

        Raises Unreadable when the disk does not confirm it, Corrupt or UnsupportedFormat when names or headers are wrong.
        """
        try:
            return self._find_durable(upto)
        except Unreadable as error:
            if self.on_sync_failure is not None and isinstance(error.__cause__, SyncFailed):
                self.on_sync_failure(error.__cause__)
            raise

    def _find_durable(self, upto: int | None) -> Mark:
        with self._guard, unreadable(self._directory):
            known = self._durable
            if known is not None and upto is not None and known.seq > upto:
                return known
            mark, events_end, word = self._look()
            if known is not None and known.number == mark.number and self._durable_epoch == self._epoch:
                word = max(word, known.end)
            if events_end > word:
                self._sync(mark.number)
            self._durable, self._durable_epoch = mark if mark.damage is None else None, self._epoch
            return mark

    def _look(self) -> tuple[Mark, int, int]:
        """What is there: the mark, the end of the last frame with events, and the durable word.

        The tail record lags behind a run of commits by a little, so the frames behind it are walked; and while they are, the log
        may go on into the next segment: look again.
        """
        while True:
            if self._closed:
                raise LogClosed(f"{self._directory.path}: the log was closed meanwhile; open it again")
            record, word = self._record()
            self._epoch = 0 if record is None else record.epoch
            if record is None:
                mark = self._by_scan(0)
                self._told = self._told or (0, mark.number)
                return mark, mark.end, 0
            if self._told != (record.epoch, record.segment):
                self._compare(record)
            if record.suspect_segment:
                mark = self._before_suspect(record)
                return mark, mark.end, 0
            fd = self._open(record.segment)
            end, seq, events_end = record.end, record.seq, record.end if word < record.end else 0
            seen = self._seen
            if seen is not None and seen[0] == (record.epoch, record.segment) and seen[1] > end:
                _, end, seq, events_end = seen
            if end < word or self._fs.pread(fd, FRAME_HEADER_BYTES, end).strip(b"\0"):
                header = segments.parse_header(
                    self._fs.pread(fd, HEADER_BYTES, 0), self._directory.id, record.segment, self._directory.path
                )
                found = scan(self._directory, fd, header.salt, end, seq, self._fs.size(fd))
                gone = found.stop.offset < word
                if (gone or found.seal is not None) and self._record()[0] != record:
                    continue
                if gone:  # what the disk had confirmed does not check any more: no half-written tail looks like that
                    mark = self._by_scan(word)
                    return mark, mark.end, 0
                end, seq, events_end = found.stop.offset, found.stop.seq, max(events_end, found.events_end)
                self._seen = ((record.epoch, record.segment), end, seq, events_end)
            return Mark(record.segment, end, seq), events_end, word

    def _compare(self, record: TailRecord) -> None:
        """An epoch begins with each segment, and with each cut."""
        if self._told is not None:
            epoch, segment = self._told
            begun = sum(segment < number <= record.segment for number in list_segments(self._directory))
            if record.epoch - epoch != begun:
                self.moves += 1
                self._durable = None
                if self.on_move is not None:
                    self.on_move()
        self._told = (record.epoch, record.segment)

    def _record(self) -> tuple[TailRecord | None, int]:
        """The tail record, if it is to be believed, and its durable word."""
        fs = self._fs
        names = fs.fstat(self._directory.fd).st_mtime_ns  # not a stat of the lock file: it would make the writers' next write dearer
        if self._lock_fd < 0 or (names != self._names_of and not fs.fstat(self._lock_fd).st_nlink):
            let_go(fs, self._lock_fd)
            self._lock_fd = -1
            try:
                self._lock_fd = fs.open("lock", os.O_RDONLY, dir_fd=self._directory.fd)
            except OSError:  # no writer was here, or we may not look: then the segments themselves tell
                return None, 0
            self._inode = fs.fstat(self._lock_fd).st_ino
            self._seen = None  # epochs of another file are other epochs
        self._names_of = names
        data = fs.pread(self._lock_fd, tailrecord.READ_BYTES, 0)
        record = tailrecord.parse(data)
        if record is None or record.boot != self._boot or self._boot == bytes(16) or record.inode != self._inode:
            return None, 0
        word = tailrecord.parse_word(data, record.epoch)
        return (record, word) if word >= HEADER_BYTES else (None, 0)

    def _open(self, number: int) -> int:
        if self._segment != number:
            let_go(self._fs, self._segment_fd)
            self._segment_fd, self._segment = -1, 0
            self._segment_fd, _ = segments.open_segment(self._fs, self._directory.segments_fd, number, self._directory.path, write=False)
            self._segment = number
            # Errors from before this open are not reported to us: what the cache holds may not be what the disk holds.
            self._fresh = True
        return self._segment_fd

    def _sync(self, number: int) -> None:
        fd = self._open(number)
        try:
            sync(self._fs.fdatasync, fd)
        except OSError as error:
            if error.errno not in _NOTHING_TO_SYNC:
                raise Unreadable(
                    f"{self._directory.path}/segments/{name_of(number)}: the disk does not confirm its end ({error.strerror}); "
                    "nothing beyond the confirmed part is handed out"
                ) from error
        if self._fresh:
            self._fs.drop_cache(fd)
            self._fresh = False

    def _by_scan(self, word: int) -> Mark:
        """Find the end by looking at the last segment: nobody has written since the machine came up, or we may not read `lock`; or it is
        damaged, as far as the durable `word` tells."""
        directory, fs = self._directory, self._fs
        numbers = list_segments(directory)
        number = numbers[-1]
        fd = self._open(number)
        status = fs.fstat(fd)
        key = (number, word, status.st_size, status.st_mtime_ns)
        if self._scanned is not None and self._scanned[0] == key:
            return self._scanned[1]
        finding = examine(directory, fd, status.st_size, number, check_previous(directory, numbers), word)
        from eventlog.tail import Action

        stop, row = finding.scan.stop, finding.row
        damage = refusal(directory, row, number, stop) if row.action in (Action.REFUSE, Action.UPGRADE) else None
        mark = Mark(number, max(stop.offset, HEADER_BYTES), stop.seq, damage)
        again = fs.fstat(fd)
        if damage is not None and not word and (again.st_size, again.st_mtime_ns) != key[2:]:
            return self._by_scan(word)  # somebody was writing while we looked
        if fs.now() - status.st_mtime_ns > _RACY_NS:
            self._scanned = (key, mark)
        return mark

    def _before_suspect(self, record: TailRecord) -> Mark:
        """A writer's sync failed: until a writer has looked, nothing behind that place is handed out."""
        fd = self._open(record.suspect_segment)
        header = segments.parse_header(
            self._fs.pread(fd, HEADER_BYTES, 0), self._directory.id, record.suspect_segment, self._directory.path
        )
        stop = scan(self._directory, fd, header.salt, HEADER_BYTES, record.suspect_segment, record.suspect).stop
        return Mark(record.suspect_segment, stop.offset, stop.seq)
