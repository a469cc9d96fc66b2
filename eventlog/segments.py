"""Segment files: names, headers, seals, and the chain of hashes between them (docs/format.md).

A segment is a header, frames, and, once it is sealed, a seal frame and a footer that leads to it. Its header holds the SHA-256 of the
whole segment before it: one changed byte anywhere changes every later hash.
"""

from __future__ import annotations

import errno
import os
import struct
from zlib import crc32

from eventlog.errors import Corrupt, UnsupportedFormat
from eventlog.fs import FileSystem, is_regular, let_go
from eventlog.light import NamedTuple

FORMAT_VERSION = 1
HEADER_BYTES = 80
FOOTER_BYTES = 24
NO_HASH = bytes(32)  # "the segment before" the first one

_HEADER = struct.Struct("<8sII16sQ32sI")  # and the CRC of these 76 bytes
_FOOTER = struct.Struct("<QI")  # and the CRC of these 12 bytes from the salt on, and the magic
_MAGIC = b"evlogseg"
_END_MAGIC = b"evlogend"
_READ_BYTES = 1 << 20


class Header(NamedTuple):
    """What a segment says of itself. `salt` starts the CRC of every frame header in it."""

    number: int
    previous: bytes
    salt: int


def name_of(number: int) -> str:
    return f"{number:020d}.seg"


def list_numbers(fs: FileSystem, segments_fd: int, root: str) -> list[int]:
    """The numbers of all segments, in order. Other names (kept copies, an editor's leftovers) are nobody's business.

    `root` is the log, for the message. Raises Corrupt for a name that ends like a segment's and is none: somebody renamed one.
    """
    numbers = []
    for name in fs.listdir(segments_fd):
        # Every open lists them all: a regular expression for each would be most of its time in a log of a gigabyte.
        if name[20:] == ".seg" and name.isascii() and name[:20].isdigit():
            numbers.append(int(name[:20]))
        elif name.endswith(".seg"):
            raise Corrupt(f"{root}/segments/{name!r:.80}: not the name of a segment (20 digits); it was renamed: name it back")
    return sorted(numbers)


def pack_header(log_id: bytes, number: int, previous: bytes) -> bytes:
    packed = _HEADER.pack(_MAGIC, FORMAT_VERSION, 0, log_id, number, previous, 0)
    return packed + crc32(packed).to_bytes(4, "little")


def parse_header(data: bytes, log_id: bytes, number: int, root: str) -> Header:
    """Check a header against the log and the name that it should have. Raises Corrupt or UnsupportedFormat."""
    where = f"{root}/segments/{name_of(number)}"
    if len(data) < HEADER_BYTES or data[:8] != _MAGIC or crc32(data[:76]) != int.from_bytes(data[76:80], "little"):
        raise Corrupt(f"{where}: the header at offset 0 does not check; restore the file from a copy", segment=number)
    _, version, flags, found_id, found, previous, _ = _HEADER.unpack_from(data)
    if version != FORMAT_VERSION or flags:
        raise UnsupportedFormat(f"{where}: format {version}, flags {flags:#x}; this version reads format 1: upgrade")
    if found_id != log_id:
        raise Corrupt(f"{where}: belongs to the log {found_id.hex()}, not to {log_id.hex()}", segment=number)
    if found != number:
        raise Corrupt(f"{where}: its header says that it is {name_of(found)}; rename it back", segment=number)
    return Header(number, previous, crc32(data[:76]))


class Footer(NamedTuple):
    """Where the seal frame stands, and the CRC-32 of everything before the footer; 0: sealed before there was one."""

    seal_offset: int
    checksum: int


def pack_footer(seal_offset: int, checksum: int, salt: int) -> bytes:
    packed = _FOOTER.pack(seal_offset, checksum)
    return packed + crc32(packed, salt).to_bytes(4, "little") + _END_MAGIC


def parse_footer(data: bytes, salt: int) -> Footer | None:
    """What these 24 bytes say; None if they are no footer."""
    if len(data) != FOOTER_BYTES or data[16:] != _END_MAGIC or crc32(data[:12], salt) != int.from_bytes(data[12:16], "little"):
        return None
    return Footer(*_FOOTER.unpack_from(data))


def open_segment(fs: FileSystem, segments_fd: int, number: int, root: str, *, write: bool) -> tuple[int, int]:
    """Open one segment and refuse a link or a device in its place. Returns descriptor and size.

    Raises Corrupt when the file is missing or is no plain file; OSError as open does.
    """
    where = f"{root}/segments/{name_of(number)}"
    try:
        fd = fs.open(name_of(number), os.O_RDWR if write else os.O_RDONLY, dir_fd=segments_fd)
    except FileNotFoundError:
        raise Corrupt(f"{where}: missing; restore it from a copy", segment=number) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Corrupt(f"{where}: a symbolic link; a segment must be a plain file", segment=number) from None
        raise
    try:
        status = fs.fstat(fd)
        if not is_regular(status):
            raise Corrupt(f"{where}: not a plain file with a single name", segment=number)
    except BaseException:
        let_go(fs, fd)
        raise
    return fd, status.st_size


def digest(fs: FileSystem, fd: int, length: int) -> bytes:
    """SHA-256 of the first `length` bytes. Raises OSError; a file that is shorter gives another hash, never an endless loop."""
    import hashlib  # OpenSSL, for whole segments; not loaded by who only writes a little

    hasher = hashlib.sha256()
    offset = 0
    while offset < length:
        chunk = fs.pread(fd, min(_READ_BYTES, length - offset), offset)
        if not chunk:
            break
        hasher.update(chunk)
        offset += len(chunk)
    return hasher.digest()


def checksum(fs: FileSystem, fd: int, length: int) -> int:
    """CRC-32 of the first `length` bytes: a third of the price of `digest`. Raises OSError."""
    value = offset = 0
    while offset < length:
        chunk = fs.pread(fd, min(_READ_BYTES, length - offset), offset)
        if not chunk:
            break
        value = crc32(chunk, value)
        offset += len(chunk)
    return value
