"""A file system that refuses, tears, forgets and loses power, with the log's real code on top of it."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eventlog.testing.cuts import materialize, random_state
from eventlog.testing.disk import ROOT, File, LostSync, Write
from eventlog.testing.tracked import Buffer, TrackedFileSystem

CALLS = (
    "open", "close", "pread", "pwrite", "fdatasync", "fsync", "flock", "fstat", "fchmod", "fallocate", "ftruncate",
    "rename", "unlink", "mkdir", "listdir", "lstat", "drop_cache", "lock_byte", "unlock_byte", "byte_is_locked",
)  # fmt: skip
_NEVER_ASKS_THE_DISK = {"close", "flock", "fstat", "lock_byte", "unlock_byte", "byte_is_locked"}
ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENOLCK, errno.EROFS)


@dataclass
class Fault:
    """One planned failure; `injected` counts how often it struck, `over` says that it was healed."""

    call: str
    nth: int
    errno: int
    times: int | None
    seen: int = 0
    injected: int = 0
    over: bool = False

    def __str__(self) -> str:
        how_long = "for ever" if self.times is None else f"{self.times} time(s)"
        return f"{errno.errorcode[self.errno]} on {self.call} no. {self.nth}, {how_long}"

    def strikes(self, call: str) -> bool:
        if call != self.call or self.over:
            return False
        self.seen += 1
        hit = self.seen >= self.nth and (self.times is None or self.seen < self.nth + self.times)
        self.injected += hit
        return hit


class FaultFileSystem(TrackedFileSystem):
    """Give it to the code under test as its file system: `EventLog.open(fs.root / "log", fs=fs)`.

    All randomness comes from `seed` (random when None); `repr(fs)` and every injected error name it, so that a failure
    can be repeated.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        seed: int | None = None,
        boot_id: bytes | None = None,
        power_cuts: int = 0,
    ) -> None:
        super().__init__(root, boot_id=boot_id)
        self.seed = int.from_bytes(os.urandom(4)) if seed is None else seed
        self.power_cuts = power_cuts
        self.faults: list[Fault] = []
        self._short: dict[int, int] = {}
        self._unreported: dict[int, OSError] = {}  # descriptors that have yet to hear of a failed sync
        self._off = False

    def __repr__(self) -> str:
        faults = "; ".join(map(str, self.faults)) or "no faults"
        return f"FaultFileSystem(seed={self.seed}, power_cuts={self.power_cuts}, {faults})"

    # ---- planning faults

    def fail(self, call: str, nth: int = 1, errno: int = errno.EIO, times: int | None = 1) -> Fault:
        """From the `nth` next call of the method `call` on (from 1), `times` calls raise OSError(errno); None: for
        ever.

        A refused call has no effect, with two exceptions: close frees the descriptor, and a failed fdatasync or fsync
        of a file forgets its dirty pages for good, while reads go on showing them until `drop_cache` or `evict`
        (fsyncgate). As Linux does since 4.13, that is told once more through each other descriptor that was open then,
        and never through one that is opened later.
        """
        if call not in CALLS:
            raise ValueError(f"{call!r} is not a call of the seam: {', '.join(CALLS)}")
        fault = Fault(call, nth, errno, times)
        self.faults.append(fault)
        return fault

    def short_write(self, length: int, nth: int = 1) -> None:
        """The `nth` next pwrite writes only `length` bytes and says so, as the system does near a limit."""
        self._short[self.calls["pwrite"] + nth] = length

    def heal(self) -> None:
        """No planned fault strikes any more: space is back, the disk is well. `faults` still tells what there was."""
        for fault in self.faults:
            fault.over = True
        self._short.clear()

    def flip(self, name: str, offset: int, bit: int = 0) -> None:
        """Damage at rest: one bit of the file `name` (relative to root), on disk and in the cache. `offset` in
        bytes."""
        node = ROOT
        for part in Path(name).parts:
            node = self.disk.directory(node).cache[part]
        file = self.disk.file(node)
        for content in (file.disk, file.cache):
            if offset < len(content):
                content[offset] ^= 1 << bit
        for index, (number, op) in enumerate(file.pending):
            if isinstance(op, Write) and op.offset <= offset < op.offset + len(op.data):
                data = bytearray(op.data)
                data[offset - op.offset] ^= 1 << bit
                file.pending[index] = (number, op._replace(data=bytes(data)))
        with (self.root / name).open("r+b") as real:
            real.seek(offset)
            real.write(file.cache[offset : offset + 1])

    def evict(self) -> None:
        """The kernel needs memory: every clean page is forgotten, so that what a failed sync lost is seen to be
        lost."""
        with self._one_at_a_time:
            for node, file in self.disk.nodes.copy().items():
                if isinstance(file, File):
                    try:
                        path = self._path_of(node)
                    except KeyError:
                        continue  # removed: nobody can open it again
                    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        self._evict(node, fd)
                    finally:
                        os.close(fd)

    def power_cut(self, into: str | os.PathLike[str] | None = None, *, same_boot: bool = False, stop: bool = True) -> FaultFileSystem:
        """Lose power now: whatever uses this file system gets EIO from here on; returns the one found after the reboot.

        What was not synced is dropped, torn by sectors, reordered or left as zeros, and names that were not synced come
        or go, as the seed wills; each cut of one run differs. `into`: a new directory (default: beside `root`).
        `same_boot`: a remount, so the boot id stays the same. `stop=False`: only show what would be left, and go on.
        """
        with self._one_at_a_time:
            self._off = stop
            number = self.power_cuts + 1
            rng = random.Random(f"{self.seed}/{number}")  # noqa: S311  not for secrets
            tree = random_state(self.disk, rng)
        target = Path(into) if into is not None else self.root.with_name(f"{self.root.name}.after-cut-{number}")
        materialize(tree, target)
        boot = self._boot_id if same_boot else None
        return FaultFileSystem(target, seed=self.seed, boot_id=boot, power_cuts=number)

    # ---- the seam

    def _enter(self, call: str) -> None:
        super()._enter(call)
        if self._off and call not in _NEVER_ASKS_THE_DISK:
            raise OSError(errno.EIO, f"the power is off (seed {self.seed})")
        for fault in self.faults:
            if fault.strikes(call):
                raise OSError(fault.errno, f"{os.strerror(fault.errno)} [injected: {fault}, seed {self.seed}]")

    def open(self, name: str, flags: int, *, dir_fd: int | None = None) -> int:
        with self._one_at_a_time:
            fd = super().open(name, flags, dir_fd=dir_fd)
            self._unreported.pop(fd, None)
            return fd

    def fdatasync(self, fd: int, /) -> None:
        with self._one_at_a_time:
            try:
                super().fdatasync(fd)
            except OSError as error:
                self._forget(fd, error)
                raise
            self._report(fd)

    def fsync(self, fd: int) -> None:
        with self._one_at_a_time:
            try:
                super().fsync(fd)
            except OSError as error:
                self._forget(fd, error)
                raise
            self._report(fd)

    def _forget(self, fd: int, error: OSError) -> None:
        self._unreported.pop(fd, None)
        if fd not in self._fds or self._off:
            return
        node = self._fds[fd]
        self._did(LostSync(node))
        if isinstance(self.disk.nodes[node], File):
            self._unreported |= {other: error for other, of in self._fds.copy().items() if of == node and other != fd}

    def _report(self, fd: int) -> None:
        """This sync wrote what was dirty; but what another descriptor's failed sync lost is told here as well, once."""
        if (error := self._unreported.pop(fd, None)) is not None:
            raise OSError(error.errno, f"{error.strerror} [told to another descriptor before]")

    def _write(self, fd: int, data: Buffer, offset: int) -> int:
        length = self._short.pop(self.calls["pwrite"], None)
        return super()._write(fd, data if length is None else memoryview(data)[:length], offset)


def sweep(
    make: Callable[[], FaultFileSystem],
    *,
    calls: Iterable[str] = CALLS,
    errnos: Iterable[int] = ERRNOS,
    times: Iterable[int | None] = (1, None),
) -> Iterator[FaultFileSystem]:
    """Fail the 1st, 2nd, 3rd … call of each kind until a run passes without reaching the fault (SQLite's way).

        for fs in sweep(lambda: FaultFileSystem(fresh_directory())):
            …the workload, over fs, and the checks: fs.faults[0].injected says whether the fault struck…

    Each yielded file system is fresh from `make` and has one fault planned. With `times` None the fault stays until
    `fs.heal()`.
    """
    for call in calls:
        for number in errnos:
            for how_often in times:
                nth = 0
                while True:
                    nth += 1
                    fs = make()
                    fault = fs.fail(call, nth, number, how_often)
                    yield fs
                    if not fault.injected:
                        break
