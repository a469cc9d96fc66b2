"""Large values beside the log, named by their SHA-256: durable before the commit that names them, stored once, verified when read."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import Any

from eventlog.errors import Corrupt

__all__ = ["Blobs"]

_HEX = frozenset("0123456789abcdef")


class Blobs:
    """The directory `blobs/` of a log. A reference is {"sha256": hex, "bytes": length}."""

    def __init__(self, log_path: Path) -> None:
        self.path = log_path / "blobs"

    def put(self, body: bytes) -> dict[str, Any]:
        """Store durably; raises OSError. A blob that is there already, whole, is not written again."""
        name = hashlib.sha256(body).hexdigest()
        reference = {"sha256": name, "bytes": len(body)}
        target = self.path / name
        try:
            if target.stat().st_size == len(body):
                # Perhaps of a process that died before its own fsync: the name and the bytes must be durable before ours says so.
                self._sync(target)
                self._sync(self.path)
                return reference
        except FileNotFoundError:
            pass
        if not self.path.is_dir():
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._sync(self.path.parent)
        scratch = self.path / f".{name}.{secrets.token_hex(4)}"
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                view = memoryview(body)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(scratch, target)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        self._sync(self.path)
        return reference

    def get(self, reference: dict[str, Any]) -> bytes:
        """Read and verify; raises Corrupt when the blob is missing or is not what was stored."""
        name = str(reference["sha256"])
        if len(name) != 64 or not set(name) <= _HEX:  # it comes from a log: it must not lead anywhere else
            raise Corrupt(f"{self.path}: the log names the blob {name!r:.80}, which is no SHA-256")
        try:
            body = (self.path / name).read_bytes()
        except FileNotFoundError:
            raise Corrupt(f"{self.path / name}: the log names this blob and it is missing; restore it from a copy") from None
        if hashlib.sha256(body).hexdigest() != name:
            raise Corrupt(f"{self.path / name}: its bytes do not match its name; restore it from a copy")
        return body

    @staticmethod
    def _sync(path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
