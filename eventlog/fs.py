"""The one seam to the operating system.

Everything that the log asks of the kernel goes through a `FileSystem`: production runs over `REAL`, the fault tests run the same
code over a file system that drops, tears and refuses (`eventlog.testing`). Names are relative to a directory descriptor wherever
there is one, so that a log that is moved while it is open keeps writing into itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import stat
import struct
import time
from collections.abc import Callable

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

# On Linux O_NOFOLLOW refuses a symbolic link in the last component; a log never follows one (reliability P41).
# O_NONBLOCK: nobody may make us wait by putting a fifo in the place of a file.
_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_OFD_LOCK = struct.Struct("@hhqqi")  # struct flock of 64-bit Linux: type, whence, start, length, pid


def _full_sync(fd: int) -> None:
    """macOS: fsync there does not reach the platter, F_FULLFSYNC does."""
    fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined,unused-ignore]


@functools.cache
def _boot_id() -> bytes:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return bytes.fromhex(file.read().decode().strip().replace("-", ""))
    except OSError:
        return bytes(16)


class FileSystem:
    """The real one. A subclass may change any call; the log uses no other way to the disk.

    Every method raises OSError as its system call does. Offsets and lengths are bytes.
    """

    # The hot calls are bound straight to the C functions: a wrapper here would be paid by every commit.
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    flock = staticmethod(fcntl.flock)
    fstat = staticmethod(os.fstat)
    now = staticmethod(time.time_ns)

    fdatasync = staticmethod(getattr(os, "fdatasync", _full_sync))

    def size(self, fd: int) -> int:
        """The size of a file, without a stat: since Linux 6.13 a file whose times were asked for gets a new time stamp at its next write,
        and the next fdatasync then waits for the journal (measured: 26 of 72 microseconds)."""
        return os.lseek(fd, 0, os.SEEK_END)

    def next_data(self, fd: int, offset: int) -> int | None:
        """The next byte at or behind `offset` that is not in a hole; None if there is none. Any offset may be answered, if it is before."""
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            return offset
        except AttributeError:  # no SEEK_DATA on this system
            return offset

    def open(self, name: str, flags: int, *, dir_fd: int | None = None) -> int:
        """Open without following a link and without leaking into child processes; a file that is created has mode 0600."""
        fd = os.open(name, flags | _ALWAYS, FILE_MODE, dir_fd=dir_fd)
        if flags & os.O_CREAT and os.fstat(fd).st_mode & 0o777 != FILE_MODE:
            os.fchmod(fd, FILE_MODE)  # the umask had its say
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)

    def fsync(self, fd: int) -> None:
        """Make a file, or the names in a directory, durable."""
        os.fsync(fd)

    def fchmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)

    def fallocate(self, fd: int, offset: int, length: int) -> None:
        """Reserve zeroed space; the size grows when it must."""
        if hasattr(os, "posix_fallocate"):
            try:
                return os.posix_fallocate(fd, offset, length)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                    raise
        # macOS, and file systems that cannot reserve: a sparse extension, which costs a size change only.
        return os.ftruncate(fd, max(os.fstat(fd).st_size, offset + length))

    def ftruncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def rename(self, source: str, target: str, *, dir_fd: int) -> None:
        os.rename(source, target, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def unlink(self, name: str, *, dir_fd: int) -> None:
        os.unlink(name, dir_fd=dir_fd)

    def mkdir(self, name: str, *, dir_fd: int | None = None) -> None:
        """Make a directory of mode 0700, whatever the umask says."""
        os.mkdir(name, DIRECTORY_MODE, dir_fd=dir_fd)
        os.chmod(name, DIRECTORY_MODE, dir_fd=dir_fd)

    def listdir(self, fd: int) -> list[str]:
        # A descriptor of our own: os.listdir(fd) works on a dup, whose read position all threads that list it would share.
        own = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
        try:
            return os.listdir(own)
        finally:
            os.close(own)

    def lstat(self, name: str, *, dir_fd: int | None = None) -> os.stat_result:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)

    def drop_cache(self, fd: int) -> None:
        """Ask the kernel to forget the clean cached pages of a file, so that the next read comes from the disk."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def begin_write_out(self, fd: int, offset: int, length: int) -> None:
        """Let the kernel begin to write these bytes to the disk, and do not wait: a hint, for who has something to do before it syncs.

        It keeps the pages (DONTNEED drops whole clean pages only, and these are on their way); an error of the disk is told by the sync.
        """
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)

    def lock_byte(self, fd: int, offset: int) -> bool:
        """Try to own one byte of a file for as long as this open file description lives. False: someone alive owns it."""
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _OFD_LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def unlock_byte(self, fd: int, offset: int) -> None:
        """Own it no longer, nor does any process that inherited the description."""
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _OFD_LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, offset, 1, 0))

    def byte_is_locked(self, fd: int, offset: int) -> bool:
        """Does another open file description own this byte?"""
        asked = _OFD_LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
        return int(_OFD_LOCK.unpack(answer)[0]) != fcntl.F_UNLCK

    def boot_id(self) -> bytes:
        """16 bytes that change with every boot; zeros where the system has no such thing (then nothing is believed)."""
        return _boot_id()

    def effective_uid(self) -> int:
        return os.geteuid()


REAL = FileSystem()


class SyncFailed(OSError):
    """fsync or fdatasync failed: what it should have made durable is in an unknown state, whatever the errno says (fsyncgate)."""


def sync(call: Callable[[int], None], fd: int) -> None:
    """Call fs.fsync or fs.fdatasync, and tell its failure from that of a write. Raises SyncFailed."""
    try:
        call(fd)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror) from error


def let_go(fs: FileSystem, *fds: int) -> None:
    """Close descriptors. What close(2) may complain of (NFS, a quota) is nothing we rely on: data is synced before, or not promised."""
    for fd in fds:
        if fd >= 0:
            with contextlib.suppress(OSError):
                fs.close(fd)


def is_regular(status: os.stat_result) -> bool:
    """A plain file with one name: a hard link or a device could be written by someone who does not know our lock."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1
