"""The directory of a log: making one, finding one, refusing an unsafe one.

Made in an order that a crash cannot spoil: lock, segments/, the first segment, and `log.json` last, by rename. Without `log.json` there is
no log yet, and the next opener makes it again (reliability P9, P13, P41).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from eventlog import frames, segments
from eventlog.errors import Corrupt, LogNotFound, UnsafeLog, UnsupportedFormat
from eventlog.fs import DIRECTORY_MODE, FileSystem, let_go, sync
from eventlog.jsonroad import dumps, loads
from eventlog.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

FORMAT_VERSION = 1
_DESCRIPTION_BYTES_MAX = 1 << 16
_OUR_NAMES = {"lock", "owners", "segments", "snapshots", "log.json.tmp"}


class Directory:
    """An open log directory: its descriptors, and what `log.json` says: `id` (16 bytes) and `first`, the number of the first segment."""

    def __init__(self, fs: FileSystem, path: str, dir_fd: int) -> None:
        self.fs, self.path, self.fd = fs, path, dir_fd
        self.segments_fd = -1
        self.id = b""
        self.first = 1

    @classmethod
    def open(cls, fs: FileSystem, where: str | os.PathLike[str], *, create: bool, write: bool) -> Directory:
        """Open the directory, making it and its parents when asked to. `load` or `make` must follow.

        Raises LogNotFound, UnsafeLog, or OSError.
        """
        path = os.fspath(where)
        if create:
            _make_directories(fs, path)
        try:
            dir_fd = fs.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            raise LogNotFound(f"{path}: no log here") from None
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise UnsafeLog(f"{path}: a log is a directory, and not a symbolic link; give the real path") from None
            raise
        directory = cls(fs, path, dir_fd)
        try:
            if write:
                directory._refuse_unsafe()
        except BaseException:
            directory.close()
            raise
        return directory

    def _refuse_unsafe(self) -> None:
        status = self.fs.fstat(self.fd)
        uid = self.fs.effective_uid()
        if status.st_uid != uid:
            raise UnsafeLog(f"{self.path}: owned by uid {status.st_uid}, we are {uid}; write as its owner, or read only")
        if status.st_mode & stat.S_IWOTH:
            raise UnsafeLog(f"{self.path}: everybody may write here (mode {status.st_mode & 0o7777:o}); chmod 700 it first")

    def load(self) -> bool:
        """Read `log.json`. False if there is none. Raises Corrupt, UnsupportedFormat."""
        try:
            fd = self.fs.open("log.json", os.O_RDONLY, dir_fd=self.fd)
        except FileNotFoundError:
            return False
        try:
            if not stat.S_ISREG(self.fs.fstat(fd).st_mode):
                raise Corrupt(f"{self.path}/log.json: not a plain file; `eventlog repair` writes it again from the segments")
            text = self.fs.pread(fd, _DESCRIPTION_BYTES_MAX, 0)
        finally:
            let_go(self.fs, fd)
        where = f"{self.path}/log.json"
        try:
            description: Any = loads(text)
            version, log_id, first = description["format"], bytes.fromhex(description["id"]), description.get("first", 1)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Corrupt(f"{where}: damaged; `eventlog repair` writes it again from the segments") from None
        if type(version) is not int or type(first) is not int or len(log_id) != 16 or not 1 <= first < 2**63:
            raise Corrupt(f"{where}: damaged; `eventlog repair` writes it again from the segments")
        if version > FORMAT_VERSION:
            raise UnsupportedFormat(f"{where}: format {version}; this version reads format {FORMAT_VERSION}: upgrade")
        self.id, self.first = log_id, first
        if self.segments_fd < 0:
            self.open_segments()
        return True

    def open_segments(self) -> None:
        """Raises Corrupt when there is no segments/, UnsafeLog when it is no directory."""
        try:
            self.segments_fd = self.fs.open("segments", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.fd)
        except FileNotFoundError:
            raise Corrupt(f"{self.path}/segments: missing; restore it from a copy") from None
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise UnsafeLog(f"{self.path}/segments: not a directory; restore it") from None
            raise

    def make(self, first: int = 1) -> None:
        """Make a new log in this directory. The caller holds the writer lock and has seen that `load` finds none.

        Raises Corrupt when segments with events stand here without their `log.json`.
        """
        fs = self.fs
        with contextlib.suppress(FileExistsError):
            fs.mkdir("segments", dir_fd=self.fd)
        self.open_segments()
        if set(fs.listdir(self.fd)) <= _OUR_NAMES:  # it may have been here before us; but a place that others use is not ours to close
            fs.fchmod(self.fd, DIRECTORY_MODE)
        for number in segments.list_numbers(fs, self.segments_fd, self.path):
            self._refuse_orphan(number)
            fs.unlink(segments.name_of(number), dir_fd=self.segments_fd)
        self.id, self.first = os.urandom(16), first
        let_go(fs, create_segment(fs, self.segments_fd, segments.pack_header(self.id, first, segments.NO_HASH), first))
        # Twice: names of one directory may reach the disk in any order, and log.json must not be there before segments/ is.
        sync(fs.fsync, self.fd)
        self.write_description()
        sync(fs.fsync, self.fd)
        _sync_directory(fs, os.path.dirname(self.path))

    def _refuse_orphan(self, number: int) -> None:
        """A crash in the middle of making leaves one segment without a frame; anything more is somebody's log."""
        fd, size = segments.open_segment(self.fs, self.segments_fd, number, self.path, write=False)
        try:
            head = self.fs.pread(fd, segments.HEADER_BYTES + frames.FRAME_HEADER_BYTES, 0)
        finally:
            let_go(self.fs, fd)
        if any(head[segments.HEADER_BYTES :]):
            raise Corrupt(
                f"{self.path}/log.json: missing, but segments/{segments.name_of(number)} holds {size} bytes; "
                "`eventlog repair` writes it again"
            )

    def write_description(self) -> None:
        """Write `log.json` by rename, so that it is there whole or not at all."""
        fs = self.fs
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(fs.now() // 10**9))
        text = dumps({"format": FORMAT_VERSION, "id": self.id.hex(), "created": now, "first": self.first}) + b"\n"
        with contextlib.suppress(FileNotFoundError):
            fs.unlink("log.json.tmp", dir_fd=self.fd)
        fd = fs.open("log.json.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=self.fd)
        try:
            write_all(fs, fd, text, 0)
            sync(fs.fsync, fd)
        finally:
            let_go(fs, fd)
        fs.rename("log.json.tmp", "log.json", dir_fd=self.fd)

    def sync_names(self) -> None:
        """Make every name in the log durable (reliability P9)."""
        sync(self.fs.fsync, self.segments_fd)
        sync(self.fs.fsync, self.fd)

    def close(self) -> None:
        fds = (self.segments_fd, self.fd)
        self.segments_fd = self.fd = -1  # first: whoever fails on a closed descriptor can then tell why
        let_go(self.fs, *fds)


def _make_directories(fs: FileSystem, path: str) -> None:
    """mkdir -p, each name made durable in its parent before anything is built on it."""
    missing = []
    while True:
        try:
            fs.lstat(path)
            break
        except FileNotFoundError:
            missing.append(path)
            path = os.path.dirname(path)
    for made in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process makes the same log
            fs.mkdir(made)
        _sync_directory(fs, os.path.dirname(made))


def _sync_directory(fs: FileSystem, path: str) -> None:
    fd = fs.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(fs.fsync, fd)
    finally:
        let_go(fs, fd)


def create_segment(fs: FileSystem, segments_fd: int, header: bytes, number: int) -> int:
    """Make the file of a segment, header durable, name durable. Returns its descriptor, open for writing.

    An unfinished file of that name, left by a crash, is made anew in place.
    """
    fd = fs.open(segments.name_of(number), os.O_RDWR | os.O_CREAT, dir_fd=segments_fd)
    try:
        fs.ftruncate(fd, 0)
        write_all(fs, fd, header, 0)
        sync(fs.fsync, fd)
        sync(fs.fsync, segments_fd)
    except BaseException:
        let_go(fs, fd)
        raise
    return fd


def write_all(fs: FileSystem, fd: int, data: bytes, offset: int) -> None:
    """pwrite until all is written: one call moves what it likes (2 GiB at most, and less at a full disk)."""
    done = fs.pwrite(fd, data, offset)
    while done < len(data):
        done += fs.pwrite(fd, data[done:], offset + done)
