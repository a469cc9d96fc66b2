"""P40, P41: any bytes and any kind of file in place of a log's own: a typed error, soon, in bounded memory; never a hang or a traceback.

Through the command line: test_cli."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest
from interrupting import within
from propkit import cold, copy, event, fill, forge, found, segments_of, snapshot

from eventlog import Corrupt, Event, EventLog, EventLogError, Expect, Recorded, frames
from eventlog.audit import verify
from eventlog.projections import COUNTS, fold


class _Any:
    """Decides on anything that is there."""

    initial = 0

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[[int, Recorded], int]] = {"*": lambda state, e: state + 1}


def everything(path: Path) -> None:
    """Every way to look at a log, and to write to it. Any EventLogError is an answer; anything else is a bug."""

    def attempt(work: Callable[[], object]) -> None:
        result = within(5, work)
        if isinstance(result, BaseException) and not isinstance(result, EventLogError):
            raise result

    def reading() -> None:
        with EventLog.open(path, read_only=True) as log:
            asks: list[Callable[[], object]] = [
                lambda: list(log.read()),
                lambda: list(log.read(types={"t", "test.n"}, streams={"s", "s1"})),
                lambda: list(log.follow(timeout=0)),
                lambda: fold(COUNTS, log),
                lambda: log.head.text,
                lambda: log.segments(),
                lambda: log.owned("x"),
            ]
            for ask in asks:
                try:
                    ask()
                except EventLogError:
                    continue

    attempt(reading)
    attempt(lambda: verify(path))
    attempt(lambda: verify(path, expect=(2, "00" * 32)))

    def writing() -> None:
        with EventLog.open(path) as log:
            dos: list[Callable[[], object]] = [
                lambda: log.commit(Event("t", {}), expect=Expect({"zz"}, 1)),
                lambda: log.transact(_Any(), lambda state: Event("t", {})),
                lambda: log.commit(event(1)),
            ]
            for do in dos:
                try:
                    do()
                except EventLogError:
                    continue

    attempt(writing)


BODIES = {
    "deep list": b"[" * 900 + b"]" * 900,
    "deep row": b'[["t","s",' + b'{"a":' * 1000 + b"1" + b"}" * 1000 + b"]]",
    "very deep": b"[" * 200_000,
    "a str": b'["abc"]',
    "an int": b"[7]",
    "a dict": b'[{"a":1,"b":2,"c":3}]',
    "type a list": b'[[["x"],"s",{}]]',
    "type a dict": b'[[{"a":1},"s",{}]]',
    "type an int": b'[[1,"s",{}]]',
    "stream a dict": b'[["t",{"a":1},{}]]',
    "data a str": b'[["t","s","x"]]',
    "data a list": b'[["t","s",[]]]',
    "null": b"[null]",
    "two of three": b'[["t","s"]]',
    "four": b'[["t","s",{},1]]',
    "no list": b'{"a":1}',
    "no JSON": b"{",
    "no UTF-8": b'["\xff"]',
    "five thousand digits": b'[["t","s",{"n":' + b"9" * 5000 + b"}]]",
    "lone surrogate": b'[["t","s",{"n":"\\ud800"}]]',
    "doubled keys": b'[["t","s",{"n":1,"n":2}]]',
    "nothing": b"",
}


@pytest.mark.parametrize("body", list(BODIES))
def test_p40_a_hostile_body_under_right_checksums(tmp_path: Path, body: str) -> None:
    path = fill(tmp_path / "log", 1)
    forge(segments_of(path)[0], BODIES[body])
    cold(path)
    everything(copy(path, tmp_path / "copy"))
    audit = verify(path)
    assert not audit.ok or body in ("five thousand digits", "doubled keys")
    with EventLog.open(path, read_only=True) as log:
        try:
            events = list(log.read())
        except Corrupt:
            return
        for e in events:
            assert type(e.type) is str
            assert type(e.stream) is str
            assert type(e.data) is dict


@pytest.mark.parametrize(
    ("kind", "events", "durable"),
    [(frames.MARK, 5, None), (frames.SEAL, 5, None), (frames.SEAL, 0, None), (frames.EVENTS, 0, None), (frames.EVENTS, 2**32 - 1, None)]
    + [(frames.EVENTS, 1, 2**63), (frames.EVENTS, 1, 2**64 - 1), (frames.MARK, 0, 2**64 - 1)],
)
def test_p40_hostile_headers_under_right_checksums(tmp_path: Path, kind: int, events: int, durable: int | None) -> None:
    path = fill(tmp_path / "log", 1)
    body = b"[]" if kind == frames.EVENTS and events == 0 else b'[["t","s",{}]]'
    forge(segments_of(path)[0], body, kind=kind, events=events, durable=durable)
    cold(path)
    assert not verify(path).ok
    everything(path)


def test_p40_any_bytes_in_any_file(tmp_path: Path) -> None:
    """Mutations with the checksums made right again afterwards, so that what is behind the checksum is tested, not the checksum."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    template = fill(tmp_path / "template", 14, size=500)
    kinds: set[str] = set()
    for turn in range(45):
        path = copy(template, tmp_path / "log")
        if turn % 3 == 0:  # the lock keeps its contents: they are hostile too
            raw = bytearray((template / "lock").read_bytes())
            raw[chance.randrange(len(raw))] = chance.randrange(256)
            packed = bytes(raw[8:80])
            raw[4:8] = crc32(packed).to_bytes(4, "little")
            (path / "lock").write_bytes(raw)
        file = chance.choice([*segments_of(path), path / "log.json"])
        raw = bytearray(file.read_bytes())
        for _ in range(chance.choice((1, 1, 3))):
            at = chance.randrange(min(len(raw), 80 + 64 * chance.randrange(1, 20)))
            raw[at] = chance.choice((0, 0xFF, chance.randrange(256)))
            if chance.random() < 0.1:
                del raw[chance.randrange(80, len(raw) + 1) :]
        if file.suffix == ".seg" and len(raw) > 80:
            raw[76:80] = crc32(raw[:76]).to_bytes(4, "little")
            salt = crc32(raw[:76])
            offset = 80
            while raw[offset : offset + 1] and raw[offset] and offset + 64 <= len(raw):
                length = struct.unpack_from("<I", raw, offset + 8)[0]
                body = bytes(raw[offset + 64 : offset + 64 + length])
                struct.pack_into("<I", raw, offset + 12, crc32(body))
                struct.pack_into("<I", raw, offset + 4, crc32(bytes(raw[offset + 8 : offset + 64]), salt))
                offset += 64 + length
        file.write_bytes(raw)
        try:
            found(path, read_only=True)
            kinds.add("fine")
        except (EventLogError, AssertionError, KeyError, IndexError) as error:  # the last three: events that are another's, in order
            kinds.add(type(error).__name__)
        everything(path)
    print(kinds)
    assert {"fine", "Corrupt"} <= kinds


NAMES = ["log.json", "lock", "owners", "segments/00000000000000000001.seg", "segments"]
KINDS = ["fifo", "symlink", "hard link", "directory", "socket"]
ODD = [(name, what) for name in NAMES for what in KINDS if (name, what) != ("segments", "hard link")]


@pytest.mark.parametrize(("name", "what"), ODD)
def test_p41_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, name: str, what: str) -> None:
    """In place of any file of the log: an error, or (for what can be done without) no notice; never a hang, never a write through it."""
    import socket

    path = fill(tmp_path / "log", 3)
    target, away = path / name, tmp_path / "away"
    if target.exists():
        target.rename(away)
    else:
        away.write_bytes(b"precious")
    if what == "fifo":
        os.mkfifo(target)
    elif what == "symlink":
        target.symlink_to(away)
    elif what == "directory":
        target.mkdir()
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as sock:
            here = os.open(target.parent, os.O_RDONLY)
            try:
                sock.bind(f"/proc/self/fd/{here}/{target.name}")
            finally:
                os.close(here)
    else:
        os.link(away, target)
    before = snapshot(away) if away.is_dir() else away.read_bytes()
    everything(path)
    if what != "hard link" or name.endswith(".seg"):
        assert (snapshot(away) if away.is_dir() else away.read_bytes()) == before, "written through a link"
    if name.endswith(".seg"):
        with pytest.raises(EventLogError):
            EventLog.open(path)
