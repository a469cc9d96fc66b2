"""How long an fdatasync takes on a disk right now, measured by doing some: in a nameless file beside the log, never in it."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from eventlog.errors import EventLogError
from eventlog.fs import REAL, FileSystem, let_go

__all__ = ["DiskProbe", "ProbeFailed"]

_BYTES = 4096  # a page: what a small commit makes dirty
_SPACE_BYTES = 64 << 10  # reserved before, as segments are: a growing file would be measured with its journal


class ProbeFailed(EventLogError, OSError):
    """The directory does not take the probe's file, or is on another file system than the log."""


class DiskProbe:
    """Every `pause_s` seconds, in a thread of its own, a page is overwritten and synced; `take()` gives the durations in seconds.

    Each one is a real sync: it costs what a commit costs, and makes those of the writers a little slower. Use it as a context manager.
    """

    def __init__(self, where: Path, log: Path, pause_s: float = 0.2, fs: FileSystem = REAL) -> None:
        """`where` has to be on the file system of `log`. Raises ProbeFailed."""
        self._fs, self._pause_s = fs, pause_s
        self._taken: list[float] = []
        self._guard, self._end = threading.Lock(), threading.Event()
        self.failure: OSError | None = None
        try:
            directory = where.resolve()
            if os.stat(directory).st_dev != os.stat(log / "segments").st_dev:
                raise ProbeFailed(f"{where}: on another file system than {log}; name a directory beside it")
            self._fd = _nameless(fs, directory)
            fs.fallocate(self._fd, 0, _SPACE_BYTES)
            fs.fdatasync(self._fd)
        except OSError as error:
            let_go(fs, getattr(self, "_fd", -1))
            if isinstance(error, EventLogError):
                raise
            raise ProbeFailed(f"{where}: cannot be probed ({error.strerror}); name a directory where you may write") from error
        self._thread = threading.Thread(target=self._run, name="eventlog-probe", daemon=True)

    def _run(self) -> None:
        page, at = os.urandom(_BYTES), 0
        while not self._end.wait(self._pause_s):
            begin = time.perf_counter()
            try:
                self._fs.pwrite(self._fd, page, at)
                self._fs.fdatasync(self._fd)
            except OSError as error:  # a full or failing disk: said, not measured
                self.failure = error
                return
            took = time.perf_counter() - begin
            at = (at + _BYTES) % _SPACE_BYTES
            with self._guard:
                self._taken.append(took)

    def take(self) -> list[float]:
        """What was measured since the last call."""
        with self._guard:
            taken, self._taken = self._taken, []
        return taken

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
        let_go(self._fs, self._fd)


def _nameless(fs: FileSystem, directory: Path) -> int:
    """A file that is gone when it is closed, even by kill -9. Raises OSError."""
    flag = getattr(os, "O_TMPFILE", 0)
    if flag:
        try:
            return fs.open(str(directory), os.O_RDWR | flag)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
                raise
    fd = fs.open(str(directory), os.O_RDONLY | os.O_DIRECTORY)
    try:
        name = f".eventlog-probe-{os.urandom(8).hex()}"
        made = fs.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, dir_fd=fd)
        with contextlib.suppress(OSError):
            fs.unlink(name, dir_fd=fd)
        return made
    finally:
        let_go(fs, fd)
