"""Measuring a log by its frame headers: how many commits of which size, marks, seals, and what is known to be on disk.

No body is read and nothing is synced. Like `audit`, it opens the log by itself, by its path, and changes not a byte, name or time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from eventlog import frames, segments
from eventlog.directory import Directory
from eventlog.errors import Corrupt, LogNotFound, UnsupportedFormat
from eventlog.examine import list_segments, reader_of
from eventlog.frames import EVENTS, MARK, SEAL, Frame
from eventlog.fs import REAL, FileSystem, let_go
from eventlog.segments import HEADER_BYTES, name_of
from eventlog.watermark import Mark, Watermark, unreadable

__all__ = ["Gauge", "LargestCommit", "Look", "Survey", "survey"]

_NO_NAME = 0  # a mask that no type fits: bodies are left alone


class LargestCommit(NamedTuple):
    """`bytes`: of its frame, header and padding included; `first`: the seq of its first event; `time`: ns since 1970."""

    first: int
    events: int
    bytes: int
    time: int


class Survey(NamedTuple):
    """What the frame headers say of the commits up to `head`.

    `bytes`: of all segment files, reserved space included; `commit_bytes`: of the frames with events. `first_ns` and `last_ns`: the
    times of the first and the last commit. `durable`: the last seq that the writers say is on disk (None: no writer was here since the
    machine came up, so nobody says anything).
    """

    head: int
    durable: int | None
    segments: int
    sealed: int
    bytes: int
    events: int
    commits: int
    commit_bytes: int
    marks: int
    seals: int
    first_ns: int | None
    last_ns: int | None
    largest: LargestCommit | None


class Look(NamedTuple):
    """One look at the end of a log: the open segment and its end in bytes, the next seq, and up to which byte the writers say that it is
    on disk (0: they say nothing). `frames` with events came since the look before, each with the number of its segment; `moved`: the log
    was cut, or is another one, and what was seen before may be gone."""

    segment: int
    end: int
    seq: int
    durable: int
    frames: list[tuple[int, Frame]]
    moved: bool


@contextmanager
def _opened(path: str | os.PathLike[str], fs: FileSystem) -> Iterator[tuple[Directory, Watermark]]:
    directory = Directory.open(fs, Path(os.path.abspath(path)), create=False, write=False)
    watermark = Watermark(directory)
    try:
        with unreadable(directory):
            if not directory.load():
                raise LogNotFound(f"{directory.path}: no log here (no log.json)")
            yield directory, watermark
    finally:
        watermark.close()
        directory.close()


def survey(
    path: str | os.PathLike[str],
    *,
    upto: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    fs: FileSystem = REAL,
) -> Survey:
    """Measure the log, up to the commit that holds seq `upto`. `progress(done, total)` is called with bytes.

    Raises LogNotFound, Corrupt at the first header that does not check, UnsupportedFormat, Unreadable.
    """
    with _opened(path, fs) as (directory, watermark):
        mark, word = watermark.extent()
        numbers = [number for number in list_segments(directory) if number <= mark.number]
        sizes = {n: fs.lstat(name_of(n), dir_fd=directory.segments_fd).st_size for n in numbers}
        total = sum(sizes.values())
        events = commits = commit_bytes = marks = seals = done = 0
        first_ns = last_ns = None
        largest: LargestCommit | None = None
        durable = numbers[-1] - 1 if word else None  # a segment takes writes only when the one before it is on disk
        for number in numbers:
            if upto is not None and number > upto and number != directory.first:
                break
            for frame in _walk(directory, number, HEADER_BYTES, number, mark):
                if upto is not None and frame.first > upto:
                    break
                if frame.kind != EVENTS:
                    marks += frame.kind == MARK
                    seals += frame.kind == SEAL
                    continue
                size = frame.end - frame.offset
                events += frame.events
                commits += 1
                commit_bytes += size
                first_ns = frame.time if first_ns is None else first_ns
                last_ns = frame.time
                if largest is None or size > largest.bytes:
                    largest = LargestCommit(frame.first, frame.events, size, frame.time)
                if word and number == mark.number and frame.end <= word:
                    durable = frame.first + frame.events - 1
            done += sizes[number]
            if progress is not None:
                progress(done, total)
        head = directory.first - 1 + events
        if durable is not None:
            durable = min(durable, head)
        return Survey(
            head, durable, len(numbers), len(numbers) - 1, total, events, commits, commit_bytes, marks, seals, first_ns, last_ns, largest
        )


def _walk(directory: Directory, number: int, offset: int, seq: int, mark: Mark) -> Iterator[Frame]:
    """The frames of one segment from a place on, up to the mark. Raises Corrupt, UnsupportedFormat: a walk never ends early in silence."""
    fd, size = segments.open_segment(directory.fs, directory.segments_fd, number, directory.path, write=False)
    try:
        header = segments.parse_header(directory.fs.pread(fd, HEADER_BYTES, 0), directory.id, number, directory.path)
        limit = mark.end if number == mark.number else size
        stop = None
        for found, stop in frames.scan(reader_of(directory, fd), offset, limit, seq, header.salt, _NO_NAME, _NO_NAME):  # noqa: B007
            yield from found
            if found and found[-1].kind == SEAL:
                return
    finally:
        let_go(directory.fs, fd)
    assert stop is not None
    if number == mark.number and stop.offset >= limit:
        if mark.damage is not None:
            raise mark.damage
        return
    where = f"{directory.path}/segments/{name_of(number)}: offset {stop.offset}, seq {stop.seq}"
    if stop.newer:
        raise UnsupportedFormat(f"{where}: {stop.reason}; upgrade eventlog to read on")
    reason = stop.reason if stop.reason != "end" else "the segment ends without a seal"
    raise Corrupt(
        f"{where}: {reason}; restore the segment from a copy, or see `eventlog repair`", segment=number, offset=stop.offset, seq=stop.seq
    )


class Gauge:
    """Looks at the end of a log again and again, cheaply: some preads each time, no sync, no lock. For one thread; close it."""

    def __init__(self, path: str | os.PathLike[str], fs: FileSystem = REAL) -> None:
        """Begins at the end of the log. Raises LogNotFound, Corrupt, UnsupportedFormat, Unreadable."""
        self._opened = _opened(path, fs)
        self._directory, self._watermark = self._opened.__enter__()
        try:
            mark, _ = self._watermark.extent()
        except BaseException:
            self.close()
            raise
        self._place = (mark.number, max(mark.end, HEADER_BYTES), mark.seq)

    def look(self) -> Look:
        """What there is now, and which commits are new. Raises as the constructor does."""
        with unreadable(self._directory):
            mark, word = self._watermark.extent()
            number, offset, seq = self._place
            now = (mark.number, max(mark.end, HEADER_BYTES), mark.seq)
            found: list[tuple[int, Frame]] = []
            moved = now[0] < number or (now[0] == number and now[1] < offset) or now[2] < seq
            if not moved:
                while (number, offset) != now[:2]:
                    if number > now[0]:  # sealed, and its successor came while we looked: the next look sees it
                        break
                    for frame in _walk(self._directory, number, offset, seq, mark):
                        offset, seq = frame.end, frame.first + frame.events
                        if frame.kind == EVENTS:
                            found.append((number, frame))
                        elif frame.kind == SEAL:
                            number, offset = seq, HEADER_BYTES
                            break
                    else:
                        break
            self._place = now
            return Look(mark.number, mark.end, mark.seq, word, found, moved)

    def close(self) -> None:
        self._opened.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
