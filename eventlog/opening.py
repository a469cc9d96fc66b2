"""Finding the end of a log to write behind it, and mending what a crash left. The caller holds the writer lock.

The numbered steps of docs/durability.md: check the names, check the seal before the last segment, find the end (by the tail record where it
can be believed, else by a scan), decide by the table in `tail`, act, sync what was found. Every step can crash and be done again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence

from eventlog import segments, tailrecord
from eventlog.directory import Directory, create_segment, write_all
from eventlog.errors import Corrupt
from eventlog.examine import (
    Finding,
    check_previous,
    examine,
    first_seq_at,
    list_segments,
    pieces,
    previous_hash,
    refusal,
    scan,
    written_end,
)
from eventlog.frames import FRAME_HEADER_BYTES, Stop
from eventlog.fs import FileSystem, SyncFailed, let_go, sync
from eventlog.lock import WriterLock
from eventlog.segments import FOOTER_BYTES, HEADER_BYTES, name_of
from eventlog.tailrecord import TELL_BYTES, TailRecord

# These say "no room", before or in a write that is then taken back: the handle goes on when there is room again.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_STEP_MIN, _STEP_MAX = 64 << 10, 1 << 20  # bytes: a size change at each commit would cost 40 % of it


class Tail:
    """The end of the log, in its open last segment.

    The next frame goes to `end` and begins with `seq`; the last one with events ends at `events_end`; all before `durable` is on disk;
    `marked` is the largest `durable` that a frame says; the file is `allocated` bytes long at least. `moved`: the end is not where the
    tail record of epoch `epoch` has it. `rewrite` (offset, bytes): marks that nobody has confirmed, to be written again with the first
    append, so that its sync covers them. `unconfirmed` (offset, seq, end): what others wrote and this handle has yet to confirm. `last`
    (offset, bytes): the last frame of this handle. `headers`: those of the frames before `headers_end`, for the index, as long as this
    handle alone wrote them. `report` says what was mended, a line each.
    """

    __slots__ = (
        "allocated",
        "durable",
        "end",
        "epoch",
        "events_end",
        "fd",
        "headers",
        "headers_end",
        "last",
        "marked",
        "moved",
        "number",
        "report",
        "rewrite",
        "salt",
        "seq",
        "unconfirmed",
    )

    def __init__(self, fd: int, number: int, salt: int, *, report: list[str] | None = None) -> None:
        self.fd, self.number, self.salt, self.epoch, self.moved = fd, number, salt, 0, True
        self.end = self.events_end = self.durable = self.marked = self.allocated = self.headers_end = HEADER_BYTES
        self.headers = bytearray()
        self.seq = number
        self.rewrite: tuple[int, bytes] | None = None
        self.last: tuple[int, bytes] | None = None
        self.unconfirmed: tuple[int, int, int] | None = None
        self.report = [] if report is None else report

    def keep_headers(self, frames: Sequence[bytes], end: int) -> None:
        """These frames were written from `self.end` to `end`: keep their headers, unless others wrote before them."""
        if self.headers_end == self.end:
            self.headers += b"".join([frame[:FRAME_HEADER_BYTES] for frame in frames])
            self.headers_end = end

    def grow(self, fs: FileSystem, needed: int, limit: int, *, others: bool) -> None:
        """Reserve space up to `needed` in steps, within `limit`; at the end of a disk's room, only what is needed. Raises OSError."""
        if others:
            self.allocated = max(self.allocated, fs.size(self.fd))  # they grow it as well
            if needed <= self.allocated:
                return
        step = min(max(_STEP_MIN, self.allocated), _STEP_MAX)
        wanted = max(needed, min(self.allocated + step, limit))
        try:
            fs.fallocate(self.fd, self.allocated, wanted - self.allocated)
            self.allocated = wanted
        except OSError as error:
            if error.errno not in NO_ROOM or wanted == needed:
                raise
            fs.fallocate(self.fd, self.allocated, needed - self.allocated)
            self.allocated = needed


def find_tail(directory: Directory, lock: WriterLock, boot: bytes, *, patient: bool = False) -> Tail:
    """Find the end, mend what a crash left, make what was found durable. Raises Corrupt, UnsupportedFormat, OSError.

    `patient`: what others wrote and nobody has confirmed may wait for the first sync of this handle (`Tail.unconfirmed`).
    """
    fs = directory.fs
    numbers = list_segments(directory)
    number = numbers[-1]
    data = fs.pread(lock.fd, tailrecord.READ_BYTES, 0)
    record = tailrecord.parse(data)
    # Where nobody tells which epoch it is (a repair, or damage, took the record), some handle may still be in any of those that were.
    epoch = record.epoch if record else int.from_bytes(os.urandom(6), "little")
    word = 0
    if record is not None and record.inode == lock.inode and record.segment == number:
        word = tailrecord.parse_word(data, epoch)  # else it is a copy, or of another segment: it says nothing about these bytes
    previous = check_previous(directory, numbers)
    fd, size = segments.open_segment(fs, directory.segments_fd, number, directory.path, write=True)
    try:
        tail = None
        if word and record is not None and record.boot == boot != bytes(16) and not record.suspect_segment:
            tail = _believe(directory, fd, size, record, word, patient)
        if tail is None:
            if record is not None and record.suspect_segment:
                sync(fs.fdatasync, fd)  # what can still be written is; what is lost must not hide in the cache
            fs.drop_cache(fd)
            tail = _mend(directory, fd, size, number, previous, word)
        tail.epoch = epoch
        return tail
    except SyncFailed:
        # Tell the others, as a writer does: their next sync would succeed, over what was lost.
        known = record or TailRecord(boot, lock.inode, epoch, number, HEADER_BYTES, number)
        with contextlib.suppress(OSError):
            fs.pwrite(lock.fd, tailrecord.pack(known._replace(suspect_segment=number, suspect=max(word, HEADER_BYTES))), 0)
        let_go(fs, fd)
        raise
    except BaseException:
        let_go(fs, fd)
        raise


def _believe(directory: Directory, fd: int, size: int, record: TailRecord, word: int, patient: bool) -> Tail | None:
    """Open in constant time: take the end from the tail record. None if the bytes disagree.

    The word is a frame boundary, and all before it is on disk. What lies between it, the record's end and the true end is scanned: the
    record lags behind a run of commits, and after a remount within one boot (the power-cut lab does it) it may speak of bytes that
    the cut took.
    """
    start, end = min(word, record.end), max(word, record.end)
    if not HEADER_BYTES <= start <= end <= size:
        return None
    header = segments.parse_header(directory.fs.pread(fd, HEADER_BYTES, 0), directory.id, record.segment, directory.path)
    seq = record.seq if start == record.end else first_seq_at(directory, fd, start)
    found = scan(directory, fd, header.salt, start, seq, size)
    stop = found.stop
    if stop.offset < end or (stop.offset == record.end and stop.seq != record.seq):
        return None
    # Under the lock and in one boot, a half frame is the prefix of one write: its first bytes tell.
    if stop.reason not in ("zeros", "end"):
        return None
    tail = Tail(fd, record.segment, header.salt)
    # The record lags by no more than this, so nothing may stand there: a page that was lost would else look like the end.
    if directory.fs.pread(fd, max(0, end - stop.offset) + TELL_BYTES + FRAME_HEADER_BYTES, stop.offset).strip(b"\0"):
        return None
    tail.end, tail.seq, tail.durable, tail.marked, tail.allocated = stop.offset, stop.seq, word, found.said, size
    tail.events_end, tail.moved = found.events_end, False
    if found.events_end > word and patient:
        tail.unconfirmed = (start, seq, stop.offset)
    elif found.events_end > word:
        _confirm(directory, tail, start, seq, size)
    elif stop.offset > word:
        tail.rewrite = (word, directory.fs.pread(fd, stop.offset - word, word))
    return tail


def _confirm(directory: Directory, tail: Tail, start: int, seq: int, size: int) -> None:
    """Sync what was found, then read it again, from the frame of `seq` at `start` on, from the disk.

    A sync that succeeds for us proves nothing about pages whose write-back failed for somebody else before we opened the file: the kernel
    has forgotten them. So the cached pages are dropped, and the frames must still be there.
    """
    fs = directory.fs
    sync(fs.fdatasync, tail.fd)
    fs.drop_cache(tail.fd)
    found = scan(directory, tail.fd, tail.salt, start, seq, size)
    if found.stop.offset < tail.end:
        cut(directory, tail, found.stop, size)
    tail.durable = tail.end


def confirmed(directory: Directory, tail: Tail) -> bool:
    """After a sync of a patient handle: is what it found at its opening still there, when it is read from the disk? (see `_confirm`)"""
    if tail.unconfirmed is not None:
        start, seq, end = tail.unconfirmed
        directory.fs.drop_cache(tail.fd)
        if scan(directory, tail.fd, tail.salt, start, seq, directory.fs.size(tail.fd)).stop.offset < end:
            return False
        tail.unconfirmed = None
    return True


def _mend(directory: Directory, fd: int, size: int, number: int, previous: tuple[int, int] | None, word: int) -> Tail:
    """Scan the whole last segment and do what the table says."""
    fs = directory.fs
    finding: Finding = examine(directory, fd, size, number, previous, word)
    from eventlog.tail import Action

    row, stop = finding.row, finding.scan.stop
    if row.action in (Action.REFUSE, Action.UPGRADE):
        raise refusal(directory, row, number, stop)
    if finding.header is None:
        tail = begin_segment(directory, number, previous, [f"{directory.path}/segments/{name_of(number)}: {row.why}; begun again"])
        let_go(fs, fd)
        return tail
    tail = Tail(fd, number, finding.header.salt)
    tail.end, tail.seq, tail.marked, tail.allocated = stop.offset, stop.seq, finding.scan.said, size
    tail.events_end = finding.scan.events_end
    if row.action is Action.CUT:
        cut(directory, tail, stop, size)
    sync(fs.fdatasync, fd)
    directory.sync_names()
    tail.durable = tail.end
    if finding.scan.seal is not None:
        tail = succeed(directory, tail, finding.scan.seal.offset, tail.end)
        tail.report.append(f"{directory.path}/segments/{name_of(number)}: {row.why}; begun {name_of(tail.number)}")
        let_go(fs, fd)
    return tail


def succeed(directory: Directory, tail: Tail, seal_offset: int, seal_end: int) -> Tail:
    """Finish a segment whose seal frame is written (footer, size, sync), and begin the next. The old descriptor stays open."""
    fs = directory.fs
    checksum = segments.checksum(fs, tail.fd, seal_end)
    write_all(fs, tail.fd, segments.pack_footer(seal_offset, checksum, tail.salt), seal_end)
    size = seal_end + FOOTER_BYTES
    fs.ftruncate(tail.fd, size)
    sync(fs.fsync, tail.fd)
    return begin_segment(directory, tail.seq, (tail.number, size), tail.report)


def begin_segment(directory: Directory, number: int, previous: tuple[int, int] | None, report: list[str]) -> Tail:
    """Make the segment that follows the sealed `previous`."""
    header = segments.pack_header(directory.id, number, previous_hash(directory, previous))
    fd = create_segment(directory.fs, directory.segments_fd, header, number)
    return Tail(fd, number, int.from_bytes(header[-4:], "little"), report=report)


def cut(directory: Directory, tail: Tail, stop: Stop, size: int) -> None:
    """Cut off what was never acknowledged. A copy is kept beside the segment, and is durable before anything is cut."""
    fs = directory.fs
    end = written_end(directory, tail.fd, stop.offset, size)
    name = keep_copy(directory, tail, stop.offset, end) if end > stop.offset else None
    fs.ftruncate(tail.fd, stop.offset)
    sync(fs.fdatasync, tail.fd)
    tail.end, tail.seq, tail.allocated, tail.moved = stop.offset, stop.seq, stop.offset, True
    tail.events_end = min(tail.events_end, tail.end)
    where = f"{directory.path}/segments/{name_of(tail.number)}"
    tail.report.append(
        f"{where}: cut {end - stop.offset} unacknowledged bytes at offset {stop.offset} ({stop.reason})"
        + (f"; copy kept in segments/{name}" if name else "")
    )


def keep_copy(directory: Directory, tail: Tail, offset: int, end: int) -> str:
    """Write these bytes beside their segment, under a name that is free. Returns the name. A full disk leaves no new file."""
    fs, number = directory.fs, tail.number
    for attempt in range(1, 10_000):
        name = f"{name_of(number)}.{offset}.{attempt}.torn"
        try:
            fd = fs.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=directory.segments_fd)
        except FileExistsError:
            continue
        try:
            for at, piece in pieces(directory, tail.fd, offset, end):
                write_all(fs, fd, piece, at - offset)
            sync(fs.fsync, fd)
        except BaseException:
            fs.unlink(name, dir_fd=directory.segments_fd)
            raise
        finally:
            let_go(fs, fd)
        sync(fs.fsync, directory.segments_fd)
        return name
    raise Corrupt(f"{directory.path}/segments/{name_of(number)}.{offset}.*.torn: thousands of kept copies; look at them and move them away")
