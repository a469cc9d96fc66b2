"""A log of forty lines with switchable mistakes: the negative controls of the testing kit. Each mistake must be found
by it.

`python toylog.py DIRECTORY BUG COUNT` is the same as a real process, with a line `ACK n` for each promise.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from pathlib import Path

from eventlog.fs import REAL, FileSystem

HEAD = struct.Struct("<II")
BUGS = {
    "nodirsync": "the name of the file is never synced",
    "noparentsync": "the name of the directory is never synced",
    "nosync": "a record is never synced",
    "notrunc": "a torn tail is left in place and appended to",
    "nocrc": "the checksum is not looked at",
    "zero": "zeros pass for an empty record",
    "noreopensync": "what a dead process wrote is served without being synced",
    "retry": "a failed fdatasync is tried again",
}


def payload(number: int) -> bytes:
    return (b"event %d " % number) * (1 + (number * 37) % 150)


class ToyLog:
    def __init__(self, path: Path, fs: FileSystem = REAL, bug: str = "") -> None:
        self.fs, self.bug = fs, bug
        parent = fs.open(str(path.parent), os.O_RDONLY | os.O_DIRECTORY)
        if path.name not in fs.listdir(parent):
            fs.mkdir(path.name, dir_fd=parent)
        if bug != "noparentsync":
            fs.fsync(parent)
        directory = fs.open(path.name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent)
        self.fd = fs.open("log", os.O_RDWR | os.O_CREAT, dir_fd=directory)
        if bug != "nodirsync":
            fs.fsync(directory)
        fs.close(directory)
        fs.close(parent)
        self.end = fs.fstat(self.fd).st_size
        self.records, good = self._scan(fs.pread(self.fd, self.end, 0))
        if bug != "notrunc":
            if good < self.end:
                fs.ftruncate(self.fd, good)
            self.end = good
        if bug not in ("noreopensync", "nosync"):
            fs.fdatasync(self.fd)

    def _scan(self, content: bytes) -> tuple[list[bytes], int]:
        records, at = [], 0
        while at + HEAD.size <= len(content):
            length, crc = HEAD.unpack_from(content, at)
            body = content[at + HEAD.size : at + HEAD.size + length]
            if (length == 0 and self.bug != "zero") or len(body) < length:
                break
            if self.bug != "nocrc" and zlib.crc32(body) != crc:
                break
            records.append(body)
            at += HEAD.size + length
        return records, at

    def append(self, body: bytes, *, sync: bool = True) -> int:
        self.end += self.fs.pwrite(self.fd, HEAD.pack(len(body), zlib.crc32(body)) + body, self.end)
        if sync and self.bug != "nosync":
            try:
                self.fs.fdatasync(self.fd)
            except OSError:
                if self.bug != "retry":
                    raise
                self.fs.fdatasync(self.fd)
        self.records.append(body)
        return len(self.records)

    def close(self) -> None:
        self.fs.close(self.fd)


if __name__ == "__main__":
    log = ToyLog(Path(sys.argv[1]), bug=sys.argv[2])
    for n in range(len(log.records), int(sys.argv[3])):
        print(f"ACK {log.append(payload(n))}", flush=True)
    log.close()
