"""The tail record: what the writers of one boot tell each other through the file `lock` (design 3.4).

It lives in the page cache and is never synced. It can be deleted, zeroed or damaged at any time without losing an event: a writer that
cannot believe it scans. It says where the log ends, so that a commit by another process costs no scan, and how much of that is on disk,
so that readers, openers and closers skip every sync that it proves unnecessary.

Two parts, each with its own check. The *record* is written under the flock. The *durable word* is written after a sync, without the lock:
it may lag and never leads. It holds the low bits of the epoch, which changes whenever the meaning of an offset does (a new segment, a
cut), so that a word written late by a slow writer means nothing instead of something wrong.

The record is believed only with this boot's id and in the very file that it was written to: a copy of a live log, or a file system that
was mounted again from an old image of the page cache, must not vouch for bytes that it never saw. (A remount in the same boot keeps both;
so what lies beyond the durable word is scanned before it is believed, see `opening`.)
"""

from __future__ import annotations

import struct
from zlib import crc32

from eventlog.light import NamedTuple

RECORD_BYTES = 80
TELL_BYTES = 16 << 10  # telling of each commit was a fifth of its cost; who looks finds what was not told yet
WORD_OFFSET = 128
READ_BYTES = WORD_OFFSET + 16

_MAGIC = b"\xf5evt"
_RECORD = struct.Struct("<16sQQQQQQQ")
_WHERE = struct.Struct("<16sQQQ")  # the first half of a record: boot, inode, epoch, segment
_SAME = struct.Struct("<4sI40sQQQQ")
_ENDS = struct.Struct("<40sQQQQ")
_WORD = struct.Struct("<QQ")
_OFFSET_BITS = 40
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_ALL = (1 << 64) - 1
_EPOCH_MASK = (1 << (64 - _OFFSET_BITS)) - 1

assert _RECORD.size + 8 == RECORD_BYTES


class TailRecord(NamedTuple):
    """Where the log ends. `seq` is the next one due; `suspect` an offset behind which a sync failed (segment 0: none did)."""

    boot: bytes
    inode: int
    epoch: int
    segment: int
    end: int
    seq: int
    suspect_segment: int = 0
    suspect: int = 0


def pack(record: TailRecord) -> bytes:
    packed = _RECORD.pack(*record)
    return _MAGIC + crc32(packed).to_bytes(4, "little") + packed


def parse(data: bytes) -> TailRecord | None:
    """The record at the start of `data`, or None if none is there that checks."""
    packed = data[8 : 8 + _RECORD.size]
    if data[:4] != _MAGIC or len(packed) < _RECORD.size or crc32(packed) != int.from_bytes(data[4:8], "little"):
        return None
    return TailRecord(*_RECORD.unpack(packed))


def where(record: TailRecord) -> bytes:
    """What stays the same in a record from commit to commit: its boot, inode, epoch and segment, packed."""
    return _WHERE.pack(*record[:4])


def pack_end(place: bytes, end: int, seq: int) -> bytes:
    """`pack` for a record of this `where` without a suspect: a commit among several writers makes one."""
    packed = _ENDS.pack(place, end, seq, 0, 0)
    return _MAGIC + crc32(packed).to_bytes(4, "little") + packed


def parse_end(data: bytes, place: bytes) -> tuple[int, int] | None:
    """The end and the next seq that a record of this `where` tells. None: it is another one, or suspects something, or does not check."""
    if len(data) < RECORD_BYTES:
        return None
    magic, check, found, end, seq, suspect, _ = _SAME.unpack_from(data)
    if found != place or suspect or magic != _MAGIC or crc32(data[8:RECORD_BYTES]) != check:
        return None
    return end, seq


def pack_word(epoch: int, durable: int) -> bytes:
    word = ((epoch & _EPOCH_MASK) << _OFFSET_BITS) | durable
    return _WORD.pack(word, word ^ _ALL)  # its complement is check enough for eight bytes, and a third of the price of a CRC


def parse_word(data: bytes, epoch: int) -> int:
    """The durable offset that the word in `data` (from the start of the file) gives for this epoch; 0 when it gives none."""
    if len(data) < READ_BYTES:
        return 0
    word, check = _WORD.unpack_from(data, WORD_OFFSET)
    if word ^ check != _ALL or word >> _OFFSET_BITS != epoch & _EPOCH_MASK:
        return 0
    return int(word & _OFFSET_MASK)
