"""What a disk may hold after a power cut: a model of files and names, each with what is durable and what is pending.

The rules are the ones that POSIX gives, not the kinder ones of one file system (reliability 3.1):
- written bytes are durable after a sync of that file; before it any part of them may have landed, in any order, by
512-byte sectors,
  and the new size may be there without the bytes (they read as zeros) or the bytes without the size (they are gone);
- a name that was made, renamed or removed is durable after a sync of its directory, whatever became of the file;
- a sync of a file does not make its name durable; real ext4 and XFS do it, so a real power cut never shows this
mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SECTOR = 512  # bytes that a disk writes as one
ROOT = 0


class Create(NamedTuple):
    """A new name `name` in directory `parent` for the new node `node`."""

    parent: int
    name: str
    node: int
    directory: bool


class Rename(NamedTuple):
    parent: int
    source: str
    target: str


class Unlink(NamedTuple):
    parent: int
    name: str


class Write(NamedTuple):
    node: int
    offset: int
    data: bytes


class Resize(NamedTuple):
    """The size becomes `size` (ftruncate)."""

    node: int
    size: int


class Grow(NamedTuple):
    """The size becomes at least `size`, with zeros (fallocate)."""

    node: int
    size: int


class Sync(NamedTuple):
    """fsync or fdatasync that succeeded. `before`: it covers what was pending at that number of operations (None:
    everything)."""

    node: int
    before: int | None = None


class LostSync(NamedTuple):
    """A failed sync: the kernel marks the dirty pages clean; what they held never reaches the disk (fsyncgate)."""

    node: int


class Ack(NamedTuple):
    """Something was promised to the outside world here."""

    what: object


class Nothing(NamedTuple):
    """Takes the place of an operation that was left out, so that the numbers of the others stay."""


Op = Create | Rename | Unlink | Write | Resize | Grow | Sync | LostSync | Ack | Nothing
Tree = dict[str, bytes | None]  # path relative to the root -> content, None for a directory


@dataclass
class File:
    """`disk` is durable, `cache` is what a reader sees, `pending` leads from one to the other."""

    disk: bytearray = field(default_factory=bytearray)
    cache: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Write | Resize | Grow]] = field(default_factory=list)

    def land(self, data_cut: Callable[[int], int], size_cut: int) -> bytes:
        """Content when of each sector the first `data_cut(sector)` pending operations landed, and of the size
        `size_cut`."""
        content, size = bytearray(self.disk), len(self.disk)
        for k, (_, op) in enumerate(self.pending):
            if isinstance(op, Write):
                end = op.offset + len(op.data)
                if k < size_cut:
                    size = max(size, end)
                content.extend(bytes(max(0, end - len(content))))
                at = op.offset
                while at < end:
                    upto = min(end, (at // SECTOR + 1) * SECTOR)
                    if k < data_cut(at // SECTOR):
                        content[at:upto] = op.data[at - op.offset : upto - op.offset]
                    at = upto
            elif k < size_cut:
                if isinstance(op, Resize):
                    content[op.size :] = bytes(max(0, len(content) - op.size))
                    size = op.size
                else:
                    size = max(size, op.size)
        content.extend(bytes(max(0, size - len(content))))
        return bytes(content[:size])

    def torn(self, whole: int, part: int) -> bytes:
        """Content when `whole` pending operations landed and of the next, if it is a write, the first `part` bytes."""
        content = bytearray(self.disk)
        for _, op in self.pending[:whole]:
            _apply(content, op)
        if whole < len(self.pending):
            op = self.pending[whole][1]
            if isinstance(op, Write):
                _apply(content, op._replace(data=op.data[:part]))
        return bytes(content)


@dataclass
class Directory:
    disk: dict[str, int] = field(default_factory=dict)
    cache: dict[str, int] = field(default_factory=dict)
    pending: list[tuple[int, Create | Rename | Unlink]] = field(default_factory=list)

    def land(self, landed: Callable[[], bool]) -> dict[str, int]:
        """Names when each pending operation landed or not; a rename is one operation and never half done."""
        names = dict(self.disk)
        for _, op in self.pending:
            if landed():
                _apply_name(names, op)
        return names


class Disk:
    """The model. `apply` every operation in order; `tree` gives one legal state after a cut here."""

    def __init__(self) -> None:
        self.nodes: dict[int, File | Directory] = {ROOT: Directory()}
        self.applied = 0

    @classmethod
    def load(cls, path: Path) -> tuple[Disk, dict[int, tuple[int, int]]]:
        """A disk that holds, durably, what is at `path` now, and for each node the (device, inode) that it came
        from."""
        disk = cls()
        origin = {ROOT: _identity(path)}

        def walk(node: int, at: Path) -> None:
            directory = disk.directory(node)
            for entry in sorted(at.iterdir()):
                child = len(disk.nodes)
                origin[child] = _identity(entry)
                if entry.is_dir() and not entry.is_symlink():
                    disk.nodes[child] = Directory()
                    walk(child, entry)
                elif entry.is_file() and not entry.is_symlink():
                    content = entry.read_bytes()
                    disk.nodes[child] = File(bytearray(content), bytearray(content))
                else:
                    raise ValueError(f"{entry}: the disk model knows regular files and directories only")
                directory.disk[entry.name] = directory.cache[entry.name] = child

        walk(ROOT, path)
        return disk, origin

    def copy(self) -> Disk:
        """The same durable state; there must be nothing pending."""
        copied = Disk()
        for node, found in self.nodes.items():
            assert not found.pending, "only a disk at rest is copied"
            if isinstance(found, File):
                copied.nodes[node] = File(bytearray(found.disk), bytearray(found.cache))
            else:
                copied.nodes[node] = Directory(dict(found.disk), dict(found.cache))
        return copied

    def file(self, node: int) -> File:
        found = self.nodes[node]
        assert isinstance(found, File), f"node {node} is a directory"
        return found

    def directory(self, node: int) -> Directory:
        found = self.nodes[node]
        assert isinstance(found, Directory), f"node {node} is a file"
        return found

    def apply(self, op: Op) -> None:
        if isinstance(op, Create | Rename | Unlink):
            if isinstance(op, Create):
                self.nodes[op.node] = Directory() if op.directory else File()
            parent = self.directory(op.parent)
            _apply_name(parent.cache, op)
            parent.pending.append((self.applied, op))
        elif isinstance(op, Write | Resize | Grow):
            file = self.file(op.node)
            _apply(file.cache, op)
            file.pending.append((self.applied, op))
        elif isinstance(op, Sync):
            self._sync(op.node, self.applied if op.before is None else op.before)
        elif isinstance(op, LostSync):
            self._lose(op.node)
        self.applied += 1

    def _sync(self, node: int, before: int) -> None:
        found = self.nodes[node]
        if isinstance(found, File):
            for number, op in found.pending:
                if number < before:
                    _apply(found.disk, op)
            found.pending = [(number, op) for number, op in found.pending if number >= before]
        else:
            for number, name_op in found.pending:
                if number < before:
                    _apply_name(found.disk, name_op)
            found.pending = [(number, name_op) for number, name_op in found.pending if number >= before]

    def _lose(self, node: int) -> None:
        # The size lives in the inode, not in the lost pages: it stays, and the next sync makes it durable over the
        # hole. Names stay pending: a file system that cannot write its directories stops altogether, it does not forget
        # some.
        file = self.nodes[node]
        if isinstance(file, File):
            file.pending = [(number, Grow(node, op.offset + len(op.data)) if isinstance(op, Write) else op) for number, op in file.pending]

    def tree(self, names: Callable[[Directory], dict[str, int]], data: Callable[[File], bytes]) -> Tree:
        """Every file and directory that a reader finds after the cut, by the two choices."""
        result: Tree = {}

        def walk(node: int, prefix: str) -> None:
            for name, child in sorted(names(self.directory(node)).items()):
                found = self.nodes[child]
                if isinstance(found, File):
                    result[prefix + name] = data(found)
                else:
                    result[prefix + name] = None
                    walk(child, f"{prefix}{name}/")

        walk(ROOT, "")
        return result


def _apply(content: bytearray, op: Write | Resize | Grow) -> None:
    if isinstance(op, Write):
        content.extend(bytes(max(0, op.offset - len(content))))
        content[op.offset : op.offset + len(op.data)] = op.data
    elif isinstance(op, Resize):
        del content[op.size :]
        content.extend(bytes(op.size - len(content)))
    else:
        content.extend(bytes(max(0, op.size - len(content))))


def _apply_name(names: dict[str, int], op: Create | Rename | Unlink) -> None:
    if isinstance(op, Create):
        names[op.name] = op.node
    elif isinstance(op, Unlink):
        names.pop(op.name, None)
    elif op.source in names:  # its creation may not have landed: then there is nothing to rename
        names[op.target] = names.pop(op.source)


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino
