"""Giving up damaged events, on purpose: never done by itself, copies kept, and every loss said (design 3.5, `eventlog repair`).

Events are dense and chained, so a log ends where the first damage begins. Repair makes it end there: the damaged rest of that segment is
copied beside it (`.torn`) and cut, later segments are renamed (`.lost`), `log.json` is written again if need be. It can crash at any step
and be run again: later segments go first, from the last one down, so that what is left is always the same log with the same damage.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from eventlog import segments, tailrecord
from eventlog.audit import Problem, verify
from eventlog.directory import Directory, create_segment
from eventlog.errors import Corrupt, EventLogError, LogNotFound, NotWritten
from eventlog.frames import Stop
from eventlog.fs import REAL, FileSystem, let_go, sync
from eventlog.lock import WriterLock
from eventlog.opening import Tail, cut
from eventlog.segments import HEADER_BYTES, name_of


class Repair(NamedTuple):
    """What was done, a line each; the first seq that is gone (None: nothing is lost); and the names of what was kept, in segments/."""

    actions: list[str]
    lost_from: int | None
    kept: list[str]


def repair(path: str | os.PathLike[str], *, lock_timeout: float = 10.0, fs: FileSystem = REAL) -> Repair:
    """Make a damaged log writable again, by ending it where its damage begins. Does nothing to a log that is whole.

    Raises LogNotFound, LockTimeout, UnsafeLog, NotWritten (the disk refused; run it again), Corrupt (not even a first header is left).
    """
    where = os.path.abspath(os.fspath(path))
    directory = Directory.open(fs, where, create=False, write=True)
    try:
        lock = WriterLock(fs, directory.fd, where, lock_timeout)
        try:
            lock.acquire()
            return _repair(directory, lock)
        finally:
            lock.release()
            lock.close()
    except OSError as error:
        if isinstance(error, EventLogError):
            raise
        raise NotWritten(f"{where}: could not be repaired ({error.strerror}); mend that, and run it again", error) from error
    finally:
        directory.close()


def _repair(directory: Directory, lock: WriterLock) -> Repair:
    fs = directory.fs
    result = Repair([], None, [])
    try:
        loaded = directory.load()
    except Corrupt:
        loaded = False
    if not loaded:
        _describe(directory, result)
    audit = verify(directory.path, fs=fs)
    if audit.ok:
        return result
    problem = min((p for p in audit.problems if p.segment), key=lambda p: (p.seq, p.segment, p.offset), default=None)
    if problem is None:
        raise Corrupt(f"{directory.path}: {audit.problems[0]}; this cannot be repaired, restore it from a copy")
    _end_at(directory, problem, result)
    fs.pwrite(lock.fd, bytes(tailrecord.READ_BYTES), 0)  # whoever has the log open looks for himself
    return result._replace(lost_from=problem.seq)


def _describe(directory: Directory, result: Repair) -> None:
    """Write log.json again: its id and first number stand in the header of the first segment."""
    fs = directory.fs
    if directory.segments_fd < 0:
        try:
            directory.open_segments()
        except Corrupt:
            raise LogNotFound(f"{directory.path}: neither log.json nor segments/ are here: no log") from None
    numbers = segments.list_numbers(fs, directory.segments_fd, directory.path)
    if not numbers:
        raise LogNotFound(f"{directory.path}: neither log.json nor a segment is here: no log")
    fd, _ = segments.open_segment(fs, directory.segments_fd, numbers[0], directory.path, write=False)
    try:
        head = fs.pread(fd, HEADER_BYTES, 0)
    finally:
        let_go(fs, fd)
    log_id = head[16:32]
    segments.parse_header(head, log_id, numbers[0], directory.path)
    directory.id, directory.first = log_id, numbers[0]
    directory.write_description()
    sync(fs.fsync, directory.fd)
    result.actions.append(f"log.json: written again from {name_of(numbers[0])}")


def _end_at(directory: Directory, problem: Problem, result: Repair) -> None:
    fs = directory.fs
    numbers = segments.list_numbers(fs, directory.segments_fd, directory.path)
    keeps_segment = problem.segment in numbers and problem.offset >= HEADER_BYTES
    for number in reversed([n for n in numbers if n > problem.segment or (n == problem.segment and not keeps_segment)]):
        lost = _free_name(directory, name_of(number))
        fs.rename(name_of(number), lost, dir_fd=directory.segments_fd)
        sync(fs.fsync, directory.segments_fd)
        result.kept.append(lost)
        result.actions.append(f"segments/{name_of(number)}: renamed to {lost}")
    if not keeps_segment:
        if problem.segment == directory.first:  # its header is gone: an empty log of the same id is what is left
            blank = segments.pack_header(directory.id, directory.first, segments.NO_HASH)
            let_go(fs, create_segment(fs, directory.segments_fd, blank, directory.first))
            result.actions.append(f"segments/{name_of(directory.first)}: begun again, empty")
        return
    fd, size = segments.open_segment(fs, directory.segments_fd, problem.segment, directory.path, write=True)
    try:
        header = segments.parse_header(fs.pread(fd, HEADER_BYTES, 0), directory.id, problem.segment, directory.path)
        tail = Tail(fd, problem.segment, header.salt)
        cut(directory, tail, Stop(problem.offset, problem.seq, problem.what), size)
        result.actions.extend(line.replace("unacknowledged ", "") for line in tail.report)
        result.kept.extend(n for n in fs.listdir(directory.segments_fd) if n.startswith(f"{name_of(problem.segment)}.{problem.offset}."))
    finally:
        let_go(fs, fd)


def _free_name(directory: Directory, name: str) -> str:
    taken = set(directory.fs.listdir(directory.segments_fd))
    return next(free for n in range(1, 10_000) if (free := f"{name}.{n}.lost") not in taken)
