"""The writer lock (flock on `lock`) and owner locks (a byte of `owners` each): the kernel frees both when the holder dies.

No pid, no age, no stale-lock guessing (reliability P21): a lock that cannot be had is somebody's who lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from types import TracebackType

from eventlog import forks
from eventlog.errors import EventLogError, LockTimeout, NotWritten, UnsafeLog
from eventlog.fs import FileSystem, is_regular, let_go
from eventlog.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

_TAKE = fcntl.LOCK_EX | fcntl.LOCK_NB
_WAIT_FIRST, _WAIT_MAX = 10e-6, 1e-4  # seconds between tries; the lock is held for tens of microseconds, never for a sync


class WriterLock:
    """The exclusive right to append, among all processes. Its holder also owns the tail record in the same file."""

    def __init__(self, fs: FileSystem, dir_fd: int, path: str, timeout: float) -> None:
        self._fs, self._dir_fd, self._path, self._timeout = fs, dir_fd, path, timeout
        self._flock, self._now, self._fstat = fs.flock, fs.now, fs.fstat
        self.fd, self.inode = self._open()
        self._names_of = 0  # the time of the directory when the inode was last looked at
        self._checked = self.time = 0  # when the inode was last looked at (65 µs units); when the lock was taken, in ns

    def _open(self) -> tuple[int, int]:
        fs = self._fs
        fd = fs.open("lock", os.O_RDWR | os.O_CREAT, dir_fd=self._dir_fd)
        try:
            status = fs.fstat(fd)
            if not is_regular(status) and status.st_nlink:
                raise UnsafeLog(f"{self._path}/lock: not a plain file with a single name; remove it (it holds nothing lasting)")
        except BaseException:
            let_go(fs, fd)
            raise
        return fd, status.st_ino

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it and the file is still the one of that name. `time` is then the time, in ns."""
        flock, clock = self._flock, self._now
        try:
            flock(self.fd, _TAKE)
        except OSError:
            return False
        now = self.time = clock()
        # A stat costs as much as two preads, so once in 65 microseconds will do: nobody can find a lock file gone, make another and
        # find the tail of the log in less, and whoever checks at each turn can still be preempted between the check and the write.
        if now >> 16 == self._checked:
            return True
        try:
            if self._has_its_name():
                return True
        except OSError:
            pass  # `acquire` meets it again, and says what it means
        self.release()
        return False

    def _has_its_name(self) -> bool:
        """Is the file that we have locked still the one of that name?"""
        # The directory first, whose time tells whether a name in it changed: a stat of the lock file itself would make our next
        # write to it cost the journal (see FileSystem.size).
        fstat = self._fstat
        changed = fstat(self._dir_fd).st_mtime_ns
        if changed != self._names_of and not fstat(self.fd).st_nlink:
            return False
        self._checked, self._names_of = self.time >> 16, changed
        return True

    def acquire(self, *, taken: bool = False) -> None:
        """Take the lock; `taken`: somebody had it just now. Raises LockTimeout, or NotWritten when the system refuses locks here: call
        `release` then all the same."""
        fs = self._fs
        try:
            while taken or not self.try_acquire():
                taken = False
                self._wait()
                self.time = fs.now()
                if self._has_its_name():
                    return
                # Somebody removed the file: another process may lock a new one of that name, and two would write (P21).
                fd, inode = self._open()
                let_go(fs, self.fd)
                self.fd, self.inode = fd, inode
        except OSError as error:
            if isinstance(error, EventLogError):
                raise
            raise NotWritten(f"{self._path}/lock: cannot be locked ({error.strerror}); nothing was written", error) from error

    def _wait(self) -> None:
        deadline, pause = time.monotonic() + self._timeout, _WAIT_FIRST
        while True:
            time.sleep(pause)
            try:
                return self._fs.flock(self.fd, _TAKE)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LockTimeout(
                        f"{self._path}/lock: another writer holds it for over {self._timeout:g} s (stopped? `fuser` names it); "
                        "nothing was written"
                    ) from None
            pause = min(pause * 1.5, _WAIT_MAX)

    def release(self) -> None:
        """Give it up; fine, too, when it is not held."""
        # Explicit: a child forked by another thread may hold a copy of the descriptor, and closing ours would not free it.
        try:
            self._fs.flock(self.fd, fcntl.LOCK_UN)
        except OSError:
            self.reopen()

    def reopen(self) -> None:
        """Unlocking failed (never seen): closing the descriptor lets go, too. Without a new one every later lock is refused."""
        let_go(self._fs, self.fd)
        self.fd = -1
        with contextlib.suppress(OSError):
            self.fd, self.inode = self._open()

    def close(self) -> None:
        let_go(self._fs, self.fd)
        self.fd = -1


class Owner:
    """Proof that its holder lives: freed by `release`, or by the kernel when the process dies. Made by `EventLog.own`."""

    def __init__(self, fs: FileSystem, fd: int, byte: int) -> None:
        self._fs, self._fd, self._byte = fs, fd, byte
        forks.watch(self)

    def after_fork_in_child(self) -> None:
        # The child's copy of the descriptor would keep the byte owned after its parent died.
        self._close()

    def release(self) -> None:
        """Give it up, also for a child process that inherited it; again is fine."""
        if self._fd >= 0:
            # Explicit: what a child left running in the background has the descriptor, too, and would own this for as long as it lives.
            with contextlib.suppress(OSError):
                self._fs.unlock_byte(self._fd, self._byte)
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            let_go(self._fs, fd)

    def fileno(self) -> int:
        """The descriptor that the lock belongs to: a child process that inherits it owns what we own, for as long as it lives."""
        return self._fd

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def __del__(self) -> None:
        self._close()


def _owner_byte(name: str) -> int:
    """62 bits of SHA-256: two names that share a byte would only make one of them wait in vain, once in an age."""
    from eventlog.digests import sha256

    return int.from_bytes(sha256(name.encode()).digest()[:8], "little") >> 2


def _open_owners(fs: FileSystem, dir_fd: int, flags: int) -> int:
    try:
        fd = fs.open("owners", flags, dir_fd=dir_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnsafeLog(f"owners: cannot be opened as a plain file ({error.strerror}); it holds nothing lasting: remove it") from error
    if not stat.S_ISREG(fs.fstat(fd).st_mode):
        let_go(fs, fd)
        raise UnsafeLog("owners: not a plain file; it holds nothing lasting: remove it")
    return fd


def take_owner(fs: FileSystem, dir_fd: int, name: str) -> Owner | None:
    """Own `name`, or None while anybody alive does. A descriptor each: the lock belongs to the open file description."""
    fd = _open_owners(fs, dir_fd, os.O_RDWR | os.O_CREAT)
    try:
        byte = _owner_byte(name)
        if fs.lock_byte(fd, byte):
            fd, owned = -1, fd
            return Owner(fs, owned, byte)
        return None
    finally:
        let_go(fs, fd)


def is_owned(fs: FileSystem, dir_fd: int, name: str) -> bool:
    """Does anybody alive own `name`? Writes nothing."""
    try:
        fd = _open_owners(fs, dir_fd, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return fs.byte_is_locked(fd, _owner_byte(name))
    finally:
        let_go(fs, fd)
