"""Snapshot files: what a fold had come to at some seq, kept beside the log in `snapshots/` (docs/projections.md, design section 4).

Only a cache. Each file says which log, seq, projection and version it is of, carries a SHA-256 of itself, and quotes the header of the
frame that ends at its seq: one read of those 64 bytes in the segment proves that the log still is the one that was folded, and where its
next frame begins. What does not prove itself is not used. Nothing here can lose an event: the folder can be deleted, zeroed or damaged at
any time. This floor knows bytes and places; what the bodies mean, the first floor does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable, Iterator

from eventlog import crashpoints, frames, segments
from eventlog.digests import sha256
from eventlog.directory import Directory, write_all
from eventlog.errors import EventLogError
from eventlog.fs import is_regular, let_go, sync
from eventlog.light import NamedTuple
from eventlog.reader import Reader
from eventlog.watermark import Watermark

__all__ = ["KEPT", "Debt", "Gone", "SnapshotEntry", "SnapshotFiles", "Unusable"]

FOLDER = "snapshots"
FORMAT = 1
KEPT = 3  # of each projection and version: the newest may turn out damaged, and a look back may want an older one
BODY_BYTES_MAX = 256 << 20  # a body is held in memory whole, twice
_NAME_BYTES_MAX = 4096
_VERSION_MAX = 2**64 - 1  # somebody may take a hash for one
_TMP_NS_MAX = 600 * 10**9  # an unfinished file of that age is nobody's any more

_MAGIC = b"evlogsnp"
_HEADER = struct.Struct("<8sII16sQQQ64sQQ")  # magic, format, name bytes, log id, seq, segment, offset, frame header, version, body bytes
_DIGEST_BYTES = 32


# What writing costs: two syncs, and by the byte the dump, the encoding and the write (measured: docs/decisions.md).
WRITE_NS, WRITE_NS_PER_BYTE = 2_000_000, 40
WORTH = 2  # a snapshot is due when what was folded since the last one cost this many times its writing
EVENTS_LEAST = 1_000  # a log of a few events is answered at once, and left as it is


class Debt:
    """What was folded since a snapshot: `spent_ns` of reading and handlers, since event `seq`. That snapshot had `size` bytes (0: none)."""

    __slots__ = ("seq", "size", "spent_ns")

    def __init__(self) -> None:
        self.seq = self.size = self.spent_ns = 0

    def is_due(self, seq: int) -> bool:
        """Has folding up to `seq` cost so much more than a snapshot that one should be kept?"""
        return seq - self.seq >= EVENTS_LEAST and self.spent_ns >= WORTH * (WRITE_NS + WRITE_NS_PER_BYTE * self.size)

    def settle(self, seq: int, size: int) -> None:
        """A snapshot of `size` bytes is there; 0: none could be had, and the next try is a debt away."""
        self.seq, self.spent_ns = seq, 0
        if size:
            self.size = size


class Unusable(Exception):
    """A snapshot that must not be used, and why, in a few words. `for_good`: nobody will ever use it; else it could not be looked at."""

    def __init__(self, why: str, *, for_good: bool = True) -> None:
        super().__init__(why)
        self.for_good = for_good


class Gone(Unusable):
    """Another process has dropped it meanwhile."""

    def __init__(self) -> None:
        super().__init__("it is gone", for_good=False)


class SnapshotEntry(NamedTuple):
    """A file in `snapshots/`, as its name has it. `key` is a digest of the projection's name: no file name is made from data."""

    file: str
    key: str
    version: int
    seq: int


class Contents(NamedTuple):
    """What a file that checks says."""

    log_id: bytes
    seq: int
    segment: int
    offset: int
    frame: bytes
    version: int
    name: str
    body: bytes


def key_of(name: str) -> str:
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def parse_name(file: str) -> SnapshotEntry | None:
    key, _, rest = file.partition(".")
    version, _, rest = rest.partition(".")
    seq, _, suffix = rest.partition(".")
    plain = version.isascii() and version.isdigit() and len(version) <= 20 and seq.isascii() and seq.isdigit() and len(seq) == 20
    return SnapshotEntry(file, key, int(version), int(seq)) if plain and suffix == "snap" and len(key) == 32 else None


def pack(contents: Contents) -> bytes:
    name = contents.name.encode("utf-8", "surrogatepass")
    head = _HEADER.pack(
        _MAGIC, FORMAT, len(name), contents.log_id, contents.seq, contents.segment, contents.offset, contents.frame, contents.version,
        len(contents.body),
    )  # fmt: skip
    data = b"".join((head, name, contents.body))
    return data + sha256(data).digest()


def parse(data: bytes) -> Contents:
    """Raises Unusable for whatever `pack` did not make."""
    if len(data) < _HEADER.size + _DIGEST_BYTES or data[:8] != _MAGIC:
        raise Unusable("cut off, or not a snapshot")
    view = memoryview(data)
    if sha256(view[:-_DIGEST_BYTES]).digest() != view[-_DIGEST_BYTES:]:
        raise Unusable("damaged: it does not match its checksum")
    _, format_, name_bytes, log_id, seq, segment, offset, frame, version, body_bytes = _HEADER.unpack_from(data)
    if format_ != FORMAT:
        raise Unusable(f"format {format_}, this version reads format {FORMAT}")
    if _HEADER.size + name_bytes + body_bytes + _DIGEST_BYTES != len(data):
        raise Unusable("damaged: its lengths do not add up")
    body = bytes(view[_HEADER.size + name_bytes : -_DIGEST_BYTES])
    try:
        name = str(view[_HEADER.size : _HEADER.size + name_bytes], "utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise Unusable("damaged: its name is no text") from None
    return Contents(log_id, seq, segment, offset, frame, version, name, body)


class SnapshotFiles:
    """The snapshots of one log, as one handle sees them. `may_write`: False for a read-only handle, whose user may allow it all the same.

    Reading raises nothing but Unusable, and writing nothing: no disk that is full, and no folder that is not ours, fails a fold.
    """

    def __init__(self, directory: Directory, reader: Reader, watermark: Watermark, *, may_write: bool) -> None:
        self._directory, self._fs, self._reader, self._watermark = directory, directory.fs, reader, watermark
        self.may_write = may_write

    @property
    def log_id(self) -> str:
        return self._directory.id.hex()

    # -- reading ----------------------------------------------------------------------------------------------------------------

    def find(self, name: str, version: int) -> list[SnapshotEntry]:
        """The snapshots of this projection and version, newest first."""
        with self._folder() as fd:
            if fd < 0:
                return []
            key = key_of(name)
            return sorted((one for one in self._list(fd) if (one.key, one.version) == (key, version)), key=lambda one: -one.seq)

    def entries(self) -> list[SnapshotEntry]:
        """All of them, by projection, version and seq."""
        with self._folder() as fd:
            return sorted(self._list(fd), key=lambda one: one[1:]) if fd >= 0 else []

    def head(self) -> int:
        """The last seq that is there, durable or not. Errors as in reading the log."""
        return self._watermark.head()

    def size_and_time(self, entry: SnapshotEntry) -> tuple[int, int | None]:
        """The bytes of the file, and when it was written, in ns since the epoch; (0, None) when it is gone."""
        with self._folder() as fd:
            try:
                status = self._fs.lstat(entry.file, dir_fd=fd)
            except OSError:
                return 0, None
            return status.st_size, status.st_mtime_ns

    def read(self, entry: SnapshotEntry) -> Contents:
        """What the file says; it need not fit this log. Raises Unusable."""
        with self._folder() as fd:
            if fd < 0:
                raise Gone
            return self._read(fd, entry)

    def _read(self, folder: int, entry: SnapshotEntry) -> Contents:
        contents = parse(self._bytes(folder, entry))
        if (key_of(contents.name), contents.version, contents.seq) != entry[1:]:
            raise Unusable(f"it is of {contents.name!r:.80} version {contents.version} at seq {contents.seq}, and was renamed")
        return contents

    def _bytes(self, folder: int, entry: SnapshotEntry) -> bytes:
        try:
            file = self._fs.open(entry.file, os.O_RDONLY, dir_fd=folder)
            try:
                status = self._fs.fstat(file)
                if not is_regular(status):
                    raise Unusable("not a plain file with a single name")
                if status.st_size > BODY_BYTES_MAX + _NAME_BYTES_MAX + _HEADER.size + _DIGEST_BYTES:
                    raise Unusable(f"{status.st_size} bytes are more than a snapshot may have")
                pieces: list[bytes] = []
                at = 0
                while piece := self._fs.pread(file, status.st_size - at, at):
                    pieces.append(piece)
                    at += len(piece)
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
            finally:
                let_go(self._fs, file)
        except FileNotFoundError:
            raise Gone from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Unusable("a symbolic link") from None
            raise Unusable(f"cannot be read ({error.strerror})", for_good=False) from None

    def prove(self, contents: Contents, head: int) -> None:
        """Is this log, which ends at `head`, the one that was folded? Reading goes on from there without a scan. Raises Unusable."""
        if contents.log_id != self._directory.id:
            raise Unusable(f"it belongs to the log {contents.log_id.hex()}")
        if contents.seq > head:
            raise Unusable(f"it is of seq {contents.seq}, and the log ends at {head}: the log was cut or replaced")
        try:
            fd, size = segments.open_segment(self._fs, self._directory.segments_fd, contents.segment, self._directory.path, write=False)
            try:
                start = self._fs.pread(fd, segments.HEADER_BYTES, 0)
                salt = segments.parse_header(start, self._directory.id, contents.segment, self._directory.path).salt
                found = self._fs.pread(fd, frames.FRAME_HEADER_BYTES, contents.offset)
            finally:
                let_go(self._fs, fd)
        except OSError as error:
            raise Unusable(f"its place in the log cannot be looked at ({error})", for_good=False) from None
        except EventLogError as error:
            raise Unusable(f"its place in the log is not there any more ({error})") from None
        reach = frames.reach(found, salt)
        if found != contents.frame or reach is None or reach[1] != contents.seq or contents.offset + reach[0] > size:
            raise Unusable(f"another event has seq {contents.seq} in this log now: the log was cut or replaced")
        self._reader.remember(contents.seq + 1, contents.segment, contents.offset + reach[0])

    # -- writing ----------------------------------------------------------------------------------------------------------------

    def write(self, name: str, version: int, seq: int, make_body: Callable[[], bytes | None]) -> int:
        """Keep a state of that seq, if it is durable and nobody else is keeping one. The bytes of the newest that is now kept, or 0.

        `make_body` is called once it is clear that the file will be written; None: it cannot be made. Written whole and synced beside
        its name, then renamed: it is there whole or not at all. Older ones go.
        """
        if not self.may_write or seq <= 0 or version > _VERSION_MAX:
            return 0
        try:
            return self._write(name, version, seq, make_body)
        except (EventLogError, OSError):
            return 0

    def _write(self, name: str, version: int, seq: int, make_body: Callable[[], bytes | None]) -> int:
        directory, fs = self._directory, self._fs
        owner = fs.fstat(directory.fd)
        # Not by a stranger, who would leave files that the log's owner cannot read; nor, as root could, where nobody is to write.
        if owner.st_uid != fs.effective_uid() or not owner.st_mode & stat.S_IWUSR:
            return 0
        mark = self._watermark.durable(seq)  # never ahead of what a power cut leaves (reliability P35)
        place = self._reader.frame_that_ends(seq, mark) if seq < mark.seq else None
        if place is None:  # in the middle of a commit
            return 0
        with self._folder(make=True) as fd:
            if fd < 0 or not self._alone(fd):
                return 0
            key = key_of(name)
            mine = [one for one in self._list(fd) if one.key == key]
            for one in mine:
                if one.version == version and one.seq >= seq:
                    try:
                        contents = self._read(fd, one)
                        self.prove(contents, self.head())
                        return len(contents.body)
                    except Unusable as why:
                        if why.for_good:
                            self._unlink(fd, one.file)
            body = make_body()
            if body is None or len(body) > BODY_BYTES_MAX or len(name) > _NAME_BYTES_MAX // 4:
                return 0
            made = SnapshotEntry(f"{key}.{version}.{seq:020d}.snap", key, version, seq)
            self._put(fd, made.file, pack(Contents(directory.id, seq, *place, version, name, body)))
            self._tidy(fd, [*(one for one in mine if one.file != made.file), made], version)
            return len(body)

    def _put(self, folder: int, file: str, data: bytes) -> None:
        fs = self._fs
        tmp = f"{file}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
        fd = fs.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=folder)
        try:
            crashpoints.reach("snapshot-begun")
            try:
                write_all(fs, fd, data, 0)
                crashpoints.reach("snapshot-written")
                sync(fs.fsync, fd)
            finally:
                let_go(fs, fd)
            crashpoints.reach("snapshot-synced")
            fs.rename(tmp, file, dir_fd=folder)
        except BaseException:
            self._unlink(folder, tmp)
            raise
        crashpoints.reach("snapshot-renamed")
        sync(fs.fsync, folder)

    def _tidy(self, folder: int, mine: list[SnapshotEntry], version: int) -> None:
        """Drop what is no longer needed: all but the newest, earlier versions, and what a crash left unfinished."""
        current = sorted((one for one in mine if one.version == version), key=lambda one: -one.seq)
        for one in [*current[KEPT:], *(one for one in mine if one.version < version)]:
            self._unlink(folder, one.file)
            crashpoints.reach("snapshot-dropped")
        now = self._fs.now()
        for file in self._fs.listdir(folder):
            if file.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    if abs(now - self._fs.lstat(file, dir_fd=folder).st_mtime_ns) > _TMP_NS_MAX:
                        self._unlink(folder, file)

    def discard(self, entry: SnapshotEntry) -> None:
        """Remove one that is not to be used, if we may."""
        if self.may_write:
            with self._folder() as fd:
                if fd >= 0:
                    self._unlink(fd, entry.file)

    def drop(self, name: str | None = None) -> list[str]:
        """Remove the snapshots of one projection, or everything in the folder; the names that went. Raises OSError."""
        key = key_of(name) if name is not None else None
        gone: list[str] = []
        with self._folder() as fd:
            for file in sorted(self._fs.listdir(fd)) if fd >= 0 else ():
                if key is None or file.startswith(f"{key}."):
                    self._fs.unlink(file, dir_fd=fd)
                    gone.append(file)
        return gone

    # -- inside -----------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _folder(self, *, make: bool = False) -> Iterator[int]:
        """A descriptor of `snapshots/`; -1 where there is none, or none that we may use."""
        flags = os.O_RDONLY | os.O_DIRECTORY
        fd = -1
        try:
            fd = self._fs.open(FOLDER, flags, dir_fd=self._directory.fd)
        except OSError as error:
            if make and error.errno == errno.ENOENT:
                with contextlib.suppress(OSError):
                    with contextlib.suppress(FileExistsError):
                        self._fs.mkdir(FOLDER, dir_fd=self._directory.fd)
                        sync(self._fs.fsync, self._directory.fd)
                    fd = self._fs.open(FOLDER, flags, dir_fd=self._directory.fd)
        try:
            yield fd
        finally:
            let_go(self._fs, fd)

    def _list(self, fd: int) -> list[SnapshotEntry]:
        try:
            files = self._fs.listdir(fd)
        except OSError:
            return []
        return [entry for entry in map(parse_name, files) if entry is not None]

    def _alone(self, fd: int) -> bool:
        """Be the only one to write here, as long as this descriptor is open; others have better things to do than the same work."""
        try:
            self._fs.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _unlink(self, folder: int, file: str) -> None:
        with contextlib.suppress(OSError):
            self._fs.unlink(file, dir_fd=folder)
