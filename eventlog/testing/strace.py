"""Record a real program, with its children, by strace, and run programs with system calls that fail (reliability 3.1,
3.4)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from eventlog.testing.crashstates import Recording
from eventlog.testing.disk import Ack, Create, Directory, Disk, Grow, Op, Rename, Resize, Sync, Unlink, Write

_TRACED = (
    "open,openat,creat,write,pwrite64,writev,pwritev,ftruncate,fallocate,rename,renameat,renameat2,unlink,unlinkat,"
    "mkdir,mkdirat,rmdir,fsync,fdatasync,link,linkat,symlink,symlinkat"
)
_LINE = re.compile(rb"^(\d+) +(.*)$")
_CALL = re.compile(rb"^(\w+)\((.*)\) += (-?\d+|\?)(?:<(.*?)>)?(.*)$", re.DOTALL)
_FD = re.compile(rb"^(-?\d+|AT_FDCWD)(?:<(.*)>)?$", re.DOTALL)


def why_not() -> str | None:
    """None when strace works here, else one line that says why not (print it when you skip)."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(  # noqa: S603
        [_strace(), "-f", "-qq", "-o", os.devnull, "-e", "trace=none", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()}"


def inject(
    command: Sequence[str],
    syscall: str,
    action: str,
    nth: int,
    *,
    on: Sequence[str | os.PathLike[str]] | str | os.PathLike[str] = (),
    forever: bool = False,
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> tuple[subprocess.CompletedProcess[str], bool]:
    """Run `command`; its `nth` system call named `syscall` does not happen, `action` does. Returns the run and whether
    it struck.

    strace counts the calls of each thread and each child by themselves. `action`: "error=EIO", "signal=KILL" (the call
    is not executed either), "retval=0" (a lie). `on`: count only calls on these files.
    """
    with tempfile.NamedTemporaryFile(prefix="inject") as log:
        files = [on] if isinstance(on, str | os.PathLike) else on
        where = [part for file in files for part in ("-P", os.fspath(file))]
        struck = f"{syscall}:{action}:when={nth}{'+' if forever else ''}"
        run = subprocess.run(  # noqa: S603
            [
                _strace(),
                "-f",
                "-q",
                "-o",
                log.name,
                *where,
                "-e",
                f"trace={syscall}",
                "-e",
                f"inject={struck}",
                *command,
            ],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **(env or {})},
            timeout=timeout,
        )
        text = log.read()
        return run, b"(INJECTED)" in text or (action.startswith("signal") and b"+++ killed by" in text)


def record(
    command: Sequence[str],
    root: Path,
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    parse_ack: Callable[[str], object] = int,
) -> tuple[Recording, subprocess.CompletedProcess[str]]:
    """Run `command` and record what it and its children do to the files below `root`; a line `ACK x` on stdout is a
    promise of x.

    The lines must be written in one piece (flush after each). Raises RuntimeError if the program fails or does
    something to the files that the model does not know, as a hard link.
    """
    initial = Disk.load(root)[0]
    with tempfile.NamedTemporaryFile(prefix="trace") as trace:
        flags = ["-f", "-qq", "-y", "-xx", "-s", "33554432", "--seccomp-bpf", "-o", trace.name]
        run = subprocess.run(  # noqa: S603
            [_strace(), *flags, "-e", f"trace={_TRACED}", *command],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **(env or {})},
            timeout=timeout,
        )
        if run.returncode != 0:
            raise RuntimeError(f"the run to be recorded ended with {run.returncode}: {run.stderr}")
        ops = _Parser(root.resolve(), initial.copy(), parse_ack).parse(trace.read())
    return Recording(initial, ops), run


class _Parser:
    def __init__(self, root: Path, disk: Disk, parse_ack: Callable[[str], object]) -> None:
        self.root = os.fsencode(root)
        self.disk = disk
        self.parse_ack = parse_ack
        self.ops: list[Op] = []
        self.started: dict[bytes, tuple[bytes, int]] = {}  # pid -> first half of an interrupted line, operations before it

    def parse(self, trace: bytes) -> list[Op]:
        for pid, text, before in self._whole_calls(trace):
            match = _CALL.match(text)
            if match is None:
                continue
            name, arguments, result, returned, _ = match.groups()
            if result != b"?" and int(result) < 0:
                if name in (b"fsync", b"fdatasync"):
                    raise RuntimeError(f"process {pid.decode()}: a real {name.decode()} failed while recording")
                continue
            # "?" is a call cut short by a kill: it may have happened, so it is pending like any other.
            done = int(result) if result != b"?" else None
            self._call(name.decode(), _split(arguments), done, returned, before)
        return self.ops

    def _whole_calls(self, trace: bytes) -> Iterator[tuple[bytes, bytes, int]]:
        for line in trace.split(b"\n"):
            match = _LINE.match(line)
            if match is None:
                continue
            pid, text = match.groups()
            before = len(self.ops)
            if text.endswith(b"<unfinished ...>"):
                self.started[pid] = (text[: -len(b"<unfinished ...>")], before)
                continue
            if text.startswith(b"<... "):
                if pid not in self.started:
                    continue
                first, before = self.started.pop(pid)
                text = first + text[text.index(b" resumed>") + len(b" resumed>") :]
            yield pid, text, before

    def _call(self, name: str, args: list[bytes], result: int | None, returned: bytes | None, before: int) -> None:
        if name in ("open", "openat", "creat"):
            flags = args[1 if name == "open" else 2] if name != "creat" else b"O_CREAT|O_TRUNC"
            path = self._inside(returned and _unhex(returned))
            if path is None:
                return
            if b"O_CREAT" in flags and self._find(path) is None:
                self._create(path, directory=False)
            if b"O_TRUNC" in flags and (node := self._find(path)) is not None:
                self._did(Resize(node, 0))
        elif name in ("write", "pwrite64"):
            fd, path = _fd(args[0])
            data = _unhex(args[1].strip(b'"'))[:result]
            if fd == 1:
                for text in data.decode(errors="replace").splitlines():
                    if text.startswith("ACK "):
                        self._did(Ack(self.parse_ack(text[4:])))
            if (node := self._find(self._inside(path))) is not None:
                if name == "write":  # without a position of its own: modelled as an append, which is what logs do with it
                    self._did(Write(node, len(self.disk.file(node).cache), data))
                else:
                    self._did(Write(node, int(args[3]), data))
        elif name in ("writev", "pwritev"):
            if self._inside(_fd(args[0])[1]) is not None:
                raise RuntimeError(f"{name} is not in the model")
        elif name == "ftruncate":
            if (node := self._find(self._inside(_fd(args[0])[1]))) is not None:
                self._did(Resize(node, int(args[1])))
        elif name == "fallocate":
            if (node := self._find(self._inside(_fd(args[0])[1]))) is not None:
                self._did(Grow(node, int(args[2]) + int(args[3])))
        elif name in ("fsync", "fdatasync"):
            if result is not None and (node := self._find(self._inside(_fd(args[0])[1]))) is not None:
                self._did(Sync(node, before))  # what others wrote while it ran may not be covered
        else:
            self._name_call(name, args)

    def _name_call(self, name: str, args: list[bytes]) -> None:
        paths = [path for path in self._paths(name, args) if path is not None]
        if not paths:
            return
        if name in ("mkdir", "mkdirat"):
            self._create(paths[0], directory=True)
        elif name in ("unlink", "unlinkat", "rmdir"):
            self._did(Unlink(self._parent(paths[0]), _base(paths[0])))
        elif name.startswith("rename"):
            if len(paths) != 2 or os.path.dirname(paths[0]) != os.path.dirname(paths[1]):
                raise RuntimeError(f"{name} from one directory to another is not in the model: {paths}")
            self._did(Rename(self._parent(paths[0]), _base(paths[0]), _base(paths[1])))
        else:
            raise RuntimeError(f"{name} is not in the model: {paths}")

    def _paths(self, name: str, args: list[bytes]) -> Iterator[bytes | None]:
        if name in ("unlink", "mkdir", "rmdir"):
            yield self._inside(_path(b"AT_FDCWD", args[0]))
        elif name in ("rename", "link", "symlink"):
            yield self._inside(_path(b"AT_FDCWD", args[0]))
            yield self._inside(_path(b"AT_FDCWD", args[1]))
        else:
            yield self._inside(_path(args[0], args[1]))
            if name in ("renameat", "renameat2", "linkat"):
                yield self._inside(_path(args[2], args[3]))

    def _did(self, op: Op) -> None:
        self.ops.append(op)
        self.disk.apply(op)

    def _create(self, path: bytes, *, directory: bool) -> None:
        self._did(Create(self._parent(path), _base(path), len(self.disk.nodes), directory))

    def _inside(self, path: bytes | None) -> bytes | None:
        if path is None or not (path == self.root or path.startswith(self.root + b"/")):
            return None
        return path[len(self.root) + 1 :]

    def _find(self, path: bytes | None) -> int | None:
        if path is None:
            return None
        node = 0
        for part in path.split(b"/") if path else []:
            directory = self.disk.nodes[node]
            found = directory.cache.get(os.fsdecode(part)) if isinstance(directory, Directory) else None
            if found is None:
                return None
            node = found
        return node

    def _parent(self, path: bytes) -> int:
        node = self._find(os.path.dirname(path))
        assert node is not None, f"{path!r}: its directory came from nowhere"
        return node


def _strace() -> str:
    return shutil.which("strace") or "strace"


def _unhex(text: bytes) -> bytes:
    return re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), text)


def _split(arguments: bytes) -> list[bytes]:
    """With -xx every string is hexadecimal, so that a comma always separates."""
    return [part.strip() for part in arguments.split(b",")]


def _fd(argument: bytes) -> tuple[int, bytes | None]:
    match = _FD.match(argument)
    if match is None:
        return -1, None
    number = -1 if match[1] == b"AT_FDCWD" else int(match[1])
    return number, _unhex(match[2]) if match[2] is not None else None


def _path(directory: bytes, name: bytes) -> bytes:
    _, base = _fd(directory)
    return os.path.normpath(os.path.join(base or os.fsencode(os.getcwd()), _unhex(name.strip(b'"'))))


def _base(path: bytes) -> str:
    return os.fsdecode(os.path.basename(path))
