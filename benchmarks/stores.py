"""What every workload writes, and the stores that it writes to: ours, a bare file, and sqlite3.

The event is that of an agent runtime: a tool call's record with a number, a flag, a duration and text; its frame's body has 200 bytes.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from eventlog import Event, EventLog, frames, payload
from eventlog.fs import FileSystem

TYPE, STREAM = "bench.made", "agent-7@1"
BODY_BYTES = 200
_STEP_MIN, _STEP_MAX, _FILE_MAX = 64 << 10, 1 << 20, 16 << 20  # as our segments grow
COMMIT_MAX = 64 << 20


def event(number: int, body_bytes: int = BODY_BYTES) -> Event:
    """An event whose one-event commit has a body of `body_bytes` (128 at least)."""
    data = {"n": number, "tool": "git.push", "ok": True, "ms": 12.5, "note": ""}
    room = body_bytes - len(payload.encode(Event(TYPE, data, STREAM), COMMIT_MAX).body.rstrip())
    return Event(TYPE, {**data, "note": ("the quick brown fox jumps over the lazy dog, " * (1 + room // 45))[:room]}, STREAM)


def events(count: int, first: int = 0) -> list[Event]:
    """Distinct events, all of one size."""
    return [event(1_000_000 + first + number) for number in range(count)]


def frame_of(made: Event | Sequence[Event]) -> bytes:
    """The bytes that our log writes for this commit."""
    draft = payload.encode(made, COMMIT_MAX)
    return frames.encode(draft, 1, 0, 0, frames.EVENTS, 0)


class BareFile:
    """The least that a durable append can be: pwrite and fdatasync in a loop, on a file that grows as our segments do.

    No encoding, no checksum, no lock: the frames are made beforehand. A new file each 16 MiB, as ours, but without a seal. Growth in
    the same steps matters: a loop that changes the size at every write is a third slower, and would flatter us.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._number, self._fd = path, 0, -1
        path.mkdir()
        self._next()

    def _next(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._number += 1
        self._fd = os.open(self._path / f"{self._number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end = self._allocated = 0

    def write(self, frames_: Iterable[bytes]) -> Iterator[None]:
        """pwrite, fdatasync, for each of the frames: one at each step."""
        fd, end, allocated = self._fd, self._end, self._allocated
        pwrite, sync = os.pwrite, os.fdatasync
        for frame in frames_:
            after = end + len(frame)
            if after > allocated:
                if after > _FILE_MAX:
                    self._next()
                    fd, end, allocated, after = self._fd, 0, 0, len(frame)
                wanted = max(after, min(allocated + min(max(_STEP_MIN, allocated), _STEP_MAX), _FILE_MAX))
                os.posix_fallocate(fd, allocated, wanted - allocated)
                allocated = wanted
            pwrite(fd, frame, end)
            sync(fd)
            end = after
            self._end, self._allocated = end, allocated
            yield

    def close(self) -> None:
        os.close(self._fd)


def sqlite(path: Path, synchronous: str) -> sqlite3.Connection:
    """sqlite3 as its own documentation would have a log of events: WAL, rows appended to an INTEGER PRIMARY KEY, nothing indexed.

    FULL syncs the WAL at each commit: what our IMMEDIATE promises. NORMAL syncs at checkpoints only: a power cut may take the last
    transactions, as of our BATCHED (which bounds the loss to 50 ms; NORMAL does not). Automatic checkpoints at 1000 pages, the page
    size and the cache are the defaults. isolation_level=None: the module begins no transaction behind our back. The time-out is far
    above any wait here, so that no writer fails where ours would have waited.
    """
    connection = sqlite3.connect(path, isolation_level=None, timeout=60.0, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("CREATE TABLE IF NOT EXISTS events(seq INTEGER PRIMARY KEY, time INTEGER, type TEXT, stream TEXT, data BLOB)")
    return connection


INSERT = "INSERT INTO events(time, type, stream, data) VALUES(?, ?, ?, ?)"


def row(made: Event, now: Callable[[], int]) -> tuple[int, str, str, bytes]:
    """What sqlite is given for an event. It has to be encoded and stamped for any store, so this is part of the peer's time as of ours."""
    return now(), made.type, made.stream, orjson.dumps(made.data)


class CountingFileSystem(FileSystem):
    """The real file system, with every sync counted. Never used while timing: a Python call for each sync costs."""

    def __init__(self) -> None:
        self.syncs = 0

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self.syncs += 1
        os.fsync(fd)


def syncs_of(path: Path, operations: int, work: Callable[[EventLog], Any], **options: Any) -> float:
    """Syncs for each operation of `work`, growth and rotation included, opening and closing not."""
    fs = CountingFileSystem()
    with EventLog.open(path, fs=fs, **options) as log:
        before = fs.syncs
        work(log)
        return (fs.syncs - before) / operations
