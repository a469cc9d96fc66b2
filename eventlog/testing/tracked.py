"""A file system behind the seam that does the real calls and keeps, beside them, the model of what is durable."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import Counter
from pathlib import Path

from eventlog.fs import REAL, FileSystem
from eventlog.testing.disk import (
    ROOT,
    Ack,
    Create,
    Directory,
    Disk,
    File,
    Grow,
    Op,
    Rename,
    Resize,
    Sync,
    Unlink,
    Write,
)

Buffer = bytes | bytearray | memoryview


class TrackedFileSystem(FileSystem):
    """Real files under `root`, with every call counted and recorded.

    `calls`: how often each method was called; `ops`: what was done, in order, from the state `initial` on; `disk`: the
    model after it. `root` (made if missing) stands for one mounted file system: put the log one level below it, so that
    its parent is tracked too. Syncs are modelled, not done: the machine that runs the test is not going to lose power.
    `boot_id` is random, as after a reboot. Locks are real, so handles of one process exclude each other; other
    processes must not write under `root`.
    """

    def __init__(self, root: str | os.PathLike[str], *, boot_id: bytes | None = None) -> None:
        self.root = Path(root).absolute()
        self.root.mkdir(parents=True, exist_ok=True)
        self.calls: Counter[str] = Counter()
        self.ops: list[Op] = []
        self.initial, origin = Disk.load(self.root)
        self.disk = Disk.load(self.root)[0]
        self.clock_offset = 0  # nanoseconds that `now` is ahead of the machine
        self._boot_id = boot_id if boot_id is not None else os.urandom(16)
        self._node_of = {identity: node for node, identity in origin.items()}
        self._fds: dict[int, int] = {}
        self._next_node = len(origin)
        self._one_at_a_time = threading.RLock()

    def ack(self, what: object) -> None:
        """Note that `what` was promised to the outside world: from here on every crash must keep it."""
        with self._one_at_a_time:
            self._did(Ack(what))

    # ---- hooks

    def _enter(self, call: str) -> None:
        """Every call passes here first; a subclass may raise OSError."""
        self.calls[call] += 1

    def _did(self, op: Op) -> None:
        self.ops.append(op)
        self.disk.apply(op)

    # ---- the seam

    def open(self, name: str, flags: int, *, dir_fd: int | None = None) -> int:
        with self._one_at_a_time:
            self._enter("open")
            parent = self._parent(name, dir_fd)
            base = os.path.basename(name)
            fd = REAL.open(name, flags, dir_fd=dir_fd)
            status = os.fstat(fd)
            identity = (status.st_dev, status.st_ino)
            if flags & os.O_CREAT and parent is not None and base not in self.disk.directory(parent).cache:
                # Also when the inode number is known: the system hands out those of removed files again.
                self._create(parent, base, identity, directory=False)
            elif identity not in self._node_of and parent is not None:
                raise AssertionError(f"{name}: made behind the back of the file system under test")
            if identity in self._node_of:
                self._fds[fd] = self._node_of[identity]
                if flags & os.O_TRUNC:
                    self._did(Resize(self._fds[fd], 0))
            return fd

    def close(self, fd: int) -> None:
        with self._one_at_a_time:
            self._fds.pop(fd, None)
            os.close(fd)  # before the hook: Linux frees the descriptor even when close reports an error
            self._enter("close")

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        with self._one_at_a_time:
            self._enter("pread")
            return os.pread(fd, length, offset)

    def pwrite(self, fd: int, data: Buffer, offset: int, /) -> int:  # type: ignore[override]
        with self._one_at_a_time:
            self._enter("pwrite")
            return self._write(fd, data, offset)

    def fdatasync(self, fd: int, /) -> None:
        with self._one_at_a_time:
            self._enter("fdatasync")
            self._sync(fd)

    def fsync(self, fd: int) -> None:
        with self._one_at_a_time:
            self._enter("fsync")
            self._sync(fd)

    def flock(self, fd: int, operation: int, /) -> None:  # type: ignore[override]
        with self._one_at_a_time:
            self._enter("flock")
        fcntl.flock(fd, operation)  # may block: never with our own lock held

    def fstat(self, fd: int, /) -> os.stat_result:
        with self._one_at_a_time:
            self._enter("fstat")
            return os.fstat(fd)

    def fchmod(self, fd: int, mode: int) -> None:
        with self._one_at_a_time:
            self._enter("fchmod")
            os.fchmod(fd, mode)

    def fallocate(self, fd: int, offset: int, length: int) -> None:
        with self._one_at_a_time:
            self._enter("fallocate")
            REAL.fallocate(fd, offset, length)
            if fd in self._fds:
                self._did(Grow(self._fds[fd], offset + length))

    def ftruncate(self, fd: int, length: int) -> None:
        with self._one_at_a_time:
            self._enter("ftruncate")
            os.ftruncate(fd, length)
            if fd in self._fds:
                self._did(Resize(self._fds[fd], length))

    def rename(self, source: str, target: str, *, dir_fd: int) -> None:
        with self._one_at_a_time:
            self._enter("rename")
            REAL.rename(source, target, dir_fd=dir_fd)
            parent = self._parent(source, dir_fd)
            assert parent == self._parent(target, dir_fd), "the seam renames within one directory"
            if parent is not None:
                self._did(Rename(parent, os.path.basename(source), os.path.basename(target)))

    def unlink(self, name: str, *, dir_fd: int) -> None:
        with self._one_at_a_time:
            self._enter("unlink")
            REAL.unlink(name, dir_fd=dir_fd)
            parent = self._parent(name, dir_fd)
            if parent is not None:
                self._did(Unlink(parent, os.path.basename(name)))

    def mkdir(self, name: str, *, dir_fd: int | None = None) -> None:
        with self._one_at_a_time:
            self._enter("mkdir")
            REAL.mkdir(name, dir_fd=dir_fd)
            parent = self._parent(name, dir_fd)
            if parent is not None:
                status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
                self._create(parent, os.path.basename(name), (status.st_dev, status.st_ino), directory=True)

    def listdir(self, fd: int) -> list[str]:
        with self._one_at_a_time:
            self._enter("listdir")
            return os.listdir(fd)

    def lstat(self, name: str, *, dir_fd: int | None = None) -> os.stat_result:
        with self._one_at_a_time:
            self._enter("lstat")
            return REAL.lstat(name, dir_fd=dir_fd)

    def drop_cache(self, fd: int) -> None:
        with self._one_at_a_time:
            self._enter("drop_cache")
            if fd in self._fds:
                self._evict(self._fds[fd], fd)

    def lock_byte(self, fd: int, offset: int) -> bool:
        with self._one_at_a_time:
            self._enter("lock_byte")
            return REAL.lock_byte(fd, offset)

    def unlock_byte(self, fd: int, offset: int) -> None:
        with self._one_at_a_time:
            self._enter("unlock_byte")
            REAL.unlock_byte(fd, offset)

    def byte_is_locked(self, fd: int, offset: int) -> bool:
        with self._one_at_a_time:
            self._enter("byte_is_locked")
            return REAL.byte_is_locked(fd, offset)

    def boot_id(self) -> bytes:
        return self._boot_id

    def now(self) -> int:
        return time.time_ns() + self.clock_offset

    # ---- inside

    def _write(self, fd: int, data: Buffer, offset: int) -> int:
        count = os.pwrite(fd, data, offset)
        if fd in self._fds:
            self._did(Write(self._fds[fd], offset, bytes(memoryview(data)[:count])))
        return count

    def _sync(self, fd: int) -> None:
        os.fstat(fd)  # a closed descriptor is an error here as well
        if fd in self._fds:
            self._did(Sync(self._fds[fd]))

    def _create(self, parent: int, name: str, identity: tuple[int, int], *, directory: bool) -> None:
        node, self._next_node = self._next_node, self._next_node + 1
        self._node_of[identity] = node
        self._did(Create(parent, name, node, directory))

    def _parent(self, name: str, dir_fd: int | None) -> int | None:
        """The node of the directory that holds `name`; None when that is not below `root`."""
        status = os.stat(os.path.dirname(name) or ".", dir_fd=dir_fd)
        node = self._node_of.get((status.st_dev, status.st_ino))
        return node if node is None or isinstance(self.disk.nodes[node], Directory) else None

    def _evict(self, node: int, fd: int) -> None:
        """Clean pages are read from the disk again: bytes whose sync failed are gone, dirty ones stay."""
        file = self.disk.nodes[node]
        if not isinstance(file, File):
            return
        content = file.torn(len(file.pending), 0)
        if content == file.cache:
            return
        assert len(content) == len(file.cache), "an eviction never changes a size"
        file.cache[:] = content
        # The caller's descriptor may be read-only.
        with open(f"/proc/self/fd/{fd}", "r+b", buffering=0) as real:
            real.write(content)

    def _path_of(self, node: int) -> Path:
        """Where a node is now. Raises KeyError for one that has no name any more."""
        # Copies of the tables: a garbage collection in between may close somebody's log, through this very file system.

        def walk(at: int, path: Path) -> Path | None:
            if at == node:
                return path
            directory = self.disk.nodes[at]
            if isinstance(directory, Directory):
                for name, child in directory.cache.copy().items():
                    if (found := walk(child, path / name)) is not None:
                        return found
            return None

        found = walk(ROOT, self.root)
        if found is None:
            raise KeyError(node)
        return found
