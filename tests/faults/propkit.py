"""What the property tests share: logs to damage, frames with right checksums and wrong contents, children, a watch on every byte."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from eventlog import Durability, Event, EventLog, frames
from eventlog.payload import ALL_NAMES, Draft
from eventlog.segments import HEADER_BYTES
from eventlog.testing import FaultFileSystem

LAZY, NOW = Durability.BATCHED, Durability.IMMEDIATE


def event(n: int, size: int = 100) -> Event:
    return Event("test.n", {"n": n, "text": "x" * size}, f"s{n % 3}")


def fill(path: Path, count: int, *, size: int = 300, segment: int = 4096) -> Path:
    """A log of `count` one-event commits over several small segments, closed."""
    with EventLog.open(path, segment_bytes_max=segment) as log:
        for n in range(count):
            log.commit(event(n, size), LAZY)
    return path


def ns(log: EventLog) -> list[int]:
    """The numbers in the log, after a check that seqs are dense."""
    events = list(log.read())
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    return [e.data["n"] for e in events]


def found(path: Path, **options: Any) -> list[int]:
    with EventLog.open(path, **options) as log:
        return ns(log)


def segments_of(path: Path) -> list[Path]:
    return sorted((path / "segments").glob("*.seg"))


def cold(path: Path) -> Path:
    """As after a reboot: what the tail record says counts for nothing."""
    (path / "lock").write_bytes(b"")
    return path


def copy(path: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(path, to)
    return cold(to)


def end_of(segment: Path) -> tuple[int, int]:
    """Where the last frame of a segment ends, and the seq that is due there."""
    data = segment.read_bytes()
    at, seq = HEADER_BYTES, int(segment.stem)
    while data[at : at + 4] == frames.MAGIC:
        length, count = struct.unpack_from("<I", data, at + 8)[0], struct.unpack_from("<I", data, at + 40)[0]
        at, seq = at + frames.FRAME_HEADER_BYTES + length, seq + count
    return at, seq


def forge(
    segment: Path, body: bytes, *, events: int = 1, kind: int = frames.EVENTS, durable: int | None = None, masks: int = ALL_NAMES
) -> None:
    """Append a frame whose checksums, place and seq are right to a segment, whatever its contents: a hostile writer's work."""
    data = segment.read_bytes()
    at, seq = end_of(segment)
    draft = Draft(body + b" " * (-len(body) % 8), events, masks, masks)
    frame = frames.encode(draft, seq, at if durable is None else durable, time.time_ns(), kind, crc32(data[:76]))
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(frame)


def snapshot(path: Path) -> dict[str, tuple[Any, ...]]:
    """Every name under a directory with its bytes, mode, inode and times."""
    seen: dict[str, tuple[Any, ...]] = {}
    for item in [path, *sorted(path.rglob("*"))]:
        status = item.lstat()
        seen[str(item.relative_to(path))] = (
            status.st_mode,
            status.st_ino,
            status.st_mtime_ns,
            status.st_ctime_ns,
            item.read_bytes() if item.is_file() else b"",
        )
    return seen


def python(code: str, *arguments: object, timeout: float = 60, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)
    assert not check or done.returncode == 0, done.stderr
    return done


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child that ends with os._exit; its exit code: 0, or 99 with the exception on standard error."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  the child must never run on into its parent's tests
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def disk(path: Path, seed: int = 1) -> FaultFileSystem:
    return FaultFileSystem(path, seed=seed)


def open_on(fs: FaultFileSystem, **options: Any) -> EventLog:
    return EventLog.open(fs.root / "log", fs=fs, segment_bytes_max=4096, **options)


def needs_root(what: str) -> None:
    if os.geteuid() != 0:
        pytest.skip(f"{what} needs root")


def needs_mounts() -> None:
    needs_root("mounting")
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "t", "/mnt"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"mounting is refused here: {tried.stderr.strip()}")


def in_mounts(script: str, *arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a shell script as root in a private mount namespace; what it mounts goes away with it. $0 is the python to use."""
    needs_mounts()
    command = ["unshare", "-m", "sh", "-euc", script, sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done


@contextmanager
def descriptors_unchanged() -> Iterator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before, "descriptors leaked, or were closed that are not ours"
