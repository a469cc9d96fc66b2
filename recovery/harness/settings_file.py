"""A settings file on the disk: read, and replaced as a whole, with a copy of what was there.

It is somebody else's file, which programs read and write meanwhile. So: never half of it, never over a change that we have not seen, never
without the way back.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from eventlog.recovery.harness.settings import BadSettings

__all__ = ["SettingsFile", "read", "replace"]

_BYTES_MAX = 4 << 20
_COPIES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """`path`: the file itself, behind any symbolic link. `text` is None where there is none."""

    path: Path
    text: str | None
    mode: int = 0o600
    owner: tuple[int, int] | None = None


def read(path: str | os.PathLike[str]) -> SettingsFile:
    """Read a settings file. Raises BadSettings (no plain file, not UTF-8, too large), OSError."""
    real = Path(os.path.realpath(path))  # dotfiles are often links: the link stays, its target is written
    try:
        fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return SettingsFile(real, None)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise BadSettings(f"{real}: not a plain file")
    with open(fd, "rb") as file:
        body = file.read(_BYTES_MAX + 1)
    if len(body) > _BYTES_MAX:
        raise BadSettings(f"{real}: over {_BYTES_MAX} bytes; this is no settings file")
    try:
        return SettingsFile(real, body.decode(), stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid))
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise BadSettings(f"{real}: line {line}: not UTF-8 at byte {error.start}") from None


def replace(file: SettingsFile, text: str) -> Path | None:
    """Write `text` in its place, atomically; the path of the copy of what was there, if anything was.

    Raises BadSettings when the file is not what was read any more, OSError.
    """
    file.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = file.path.with_name(f".{file.path.name}.eventlog-{os.getpid()}.tmp")
    with contextlib.suppress(FileNotFoundError):
        scratch.unlink()  # of a process with our pid that died
    try:
        _create(scratch, text.encode(), file.mode, file.owner)
        if read(file.path).text != file.text:
            raise BadSettings(f"{file.path}: changed while this command ran; nothing was written: run it again")
        kept = _keep(file)
        os.rename(scratch, file.path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            scratch.unlink()
        raise
    _sync_directory(file.path.parent)
    return kept


def _keep(file: SettingsFile) -> Path | None:
    """A copy beside it under a number that nobody has."""
    if file.text is None:
        return None
    for number in range(1, _COPIES_MAX):
        path = file.path.with_name(f"{file.path.name}.before-eventlog-{number}")
        try:
            _create(path, file.text.encode(), 0o600, file.owner)
        except FileExistsError:
            continue
        _sync_directory(path.parent)
        return path
    raise BadSettings(f"{file.path}: {_COPIES_MAX - 1} copies of it are there; remove some")


def _create(path: Path, body: bytes, mode: int, owner: tuple[int, int] | None) -> None:
    """A new file, on disk when this returns. Raises FileExistsError. `owner`: root writes for whom the file belongs to."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        file.write(body)
        file.flush()
        if owner is not None:
            with contextlib.suppress(PermissionError):
                os.fchown(fd, *owner)
        os.fchmod(fd, mode)
        os.fsync(fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
