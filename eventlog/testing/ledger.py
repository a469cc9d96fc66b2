"""An independent witness: what really happened in the outside world, whatever the log says about it."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """One effect that happened. `key`: the idempotency key that it came with, or None."""

    effect: str
    key: str | None
    data: Any


class Ledger:
    """A file that plays the outside world for tests: one line for every effect, fsynced before the call returns.

    It shares no code and no directory with the log, and survives kill -9 of the caller at any moment: an effect is in
    it wholly or not at all. Every process opens the same path. `dedupe=True`: a world that honours idempotency keys
    (KEYED effects): the second effect with a key does not happen. `answers=False`: a world that cannot be asked
    (NON_IDEMPOTENT effects): `find` raises.
    """

    def __init__(self, path: str | os.PathLike[str], *, dedupe: bool = False, answers: bool = True) -> None:
        self.path = Path(path)
        self.dedupe = dedupe
        self.answers = answers

    def happen(self, effect: str, data: Any = None, *, key: str | None = None) -> bool:
        """Do the effect: append it and fsync. Returns False when the key was known and nothing happened. `data`: any
        JSON."""
        line = json.dumps([effect, key, data]).encode() + b"\n"
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if self.dedupe and key is not None and any(entry.key == key for entry in self.entries()):
                return False
            # A caller killed inside a large write leaves half a line: end it, or it would swallow this one.
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                os.write(fd, b"\n")
            written = os.write(fd, line)
            if written != len(line):
                raise OSError(f"{self.path}: only {written} of {len(line)} bytes were written")
            os.fsync(fd)
            return True
        finally:
            os.close(fd)

    def entries(self) -> list[Entry]:
        """Everything that happened, in order; for the test, which sees all. A half-written last line did not happen."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_bytes().split(b"\n"):
            try:
                effect, key, data = json.loads(line)
            except ValueError:
                continue
            found.append(Entry(effect, key, data))
        return found

    def find(self, *, effect: str | None = None, key: str | None = None) -> list[Entry]:
        """Ask the world, as a reconciler does. Raises PermissionError when this world cannot be asked."""
        if not self.answers:
            raise PermissionError(f"{self.path}: this world cannot be asked (answers=False)")
        return [entry for entry in self.entries() if effect in (None, entry.effect) and key in (None, entry.key)]

    def __len__(self) -> int:
        return len(self.entries())
