"""P41-P44 (P40: test_properties_hostile): files and hands; what verify finds and what only a head kept elsewhere does; exit codes.

Through the command line: test_cli (P40, P43, P44)."""

from __future__ import annotations

import json
import os
import stat
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from click.testing import CliRunner
from propkit import cold, copy, event, fill, found, in_child, needs_root, ns, segments_of

from eventlog import Corrupt, Event, EventLog, LogNotFound, UnsafeLog, frames
from eventlog.audit import verify
from eventlog.cli import main as cli
from eventlog.projections import COUNTS, Projection
from eventlog.segments import pack_footer, parse_footer


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777])
def test_p41_modes_are_ours_under_any_umask(tmp_path: Path, umask: int) -> None:
    def work() -> None:
        os.umask(umask)
        with EventLog.open(tmp_path / "deep" / "log", segment_bytes_max=4096) as log:
            for n in range(20):
                log.commit(event(n, 500))
            assert log.own("x") is not None

    if umask == 0o777:
        needs_root("a umask that takes everything")
    assert in_child(work) == 0
    path = tmp_path / "deep" / "log"
    for item in [path, *path.rglob("*")]:
        mode = stat.S_IMODE(item.stat().st_mode)
        assert mode == (0o700 if item.is_dir() else 0o600), item


def test_p41_unsafe_places_are_refused_for_writing_and_can_be_read(tmp_path: Path) -> None:
    path = fill(tmp_path / "log", 3)
    path.chmod(0o707)
    with pytest.raises(UnsafeLog, match="chmod"):
        EventLog.open(path)
    assert found(path, read_only=True) == [0, 1, 2]
    path.chmod(0o700)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(UnsafeLog):
        EventLog.open(tmp_path / "link")
    with pytest.raises(UnsafeLog):
        EventLog.open(path / "log.json")
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        with pytest.raises(UnsafeLog, match="uid"):
            EventLog.open(path)


def test_p41_a_directory_that_holds_other_things_is_not_closed_to_everybody(tmp_path: Path) -> None:
    """A log may be made in a directory that others use (as `git init` may); its mode and their files stay as they are."""
    place = tmp_path / "project"
    place.mkdir()
    place.chmod(0o755)
    (place / "precious.txt").write_text("x")
    EventLog.open(place).close()
    assert stat.S_IMODE(place.stat().st_mode) == 0o755
    assert (place / "precious.txt").read_text() == "x"
    assert stat.S_IMODE((place / "segments").stat().st_mode) == 0o700


def frame_at(data: bytes | bytearray, index: int) -> tuple[int, int]:
    """Where frame number `index` of a segment begins and ends."""
    at = 80
    for _ in range(index):
        at += 64 + struct.unpack_from("<I", data, at + 8)[0]
    return at, at + 64 + struct.unpack_from("<I", data, at + 8)[0]


def reorder(data: bytes) -> bytes:
    (start, middle), (_, end) = frame_at(data, 1), frame_at(data, 2)
    return data[:start] + data[middle:end] + data[start:middle] + data[end:]


HANDS: dict[str, Callable[[bytes], bytes]] = {
    "flip": lambda data: bytes(data[:200]) + bytes([data[200] ^ 1]) + data[201:],
    "delete": lambda data: data[: frame_at(data, 2)[0]] + data[frame_at(data, 2)[1] :],
    "repeat": lambda data: data[: frame_at(data, 2)[1]] + data[frame_at(data, 2)[0] :],
    "reorder": reorder,
    "time": lambda data: data[: frame_at(data, 1)[0] + 32] + bytes(8) + data[frame_at(data, 1)[0] + 40 :],
    "seal's index": lambda data: data[:-30] + b"9" + data[-29:],
    "footer": lambda data: data[:-24] + bytes(24),
}


@pytest.mark.parametrize("segment", [0, 1])
@pytest.mark.parametrize("hand", list(HANDS))
def test_p42_verify_finds_every_hand(tmp_path: Path, hand: str, segment: int) -> None:
    path = copy(fill(tmp_path / "log", 30), tmp_path / "copy")
    assert verify(path).ok
    file = segments_of(path)[segment]
    file.write_bytes(HANDS[hand](file.read_bytes()))
    audit = verify(path)
    assert not audit.ok
    assert any(file.name in str(problem) or problem.segment == int(file.stem) for problem in audit.problems)


def test_p42_a_change_with_checksums_made_right_breaks_the_chain(tmp_path: Path) -> None:
    """Someone who knows the format rewrites a time, all checksums of its frame and that of the segment: the next segment's hash tells."""
    path = copy(fill(tmp_path / "log", 30), tmp_path / "copy")
    file = segments_of(path)[0]
    raw = bytearray(file.read_bytes())
    start, _ = frame_at(raw, 2)
    struct.pack_into("<q", raw, start + 32, 1)
    salt = crc32(bytes(raw[:76]))
    struct.pack_into("<I", raw, start + 4, crc32(bytes(raw[start + 8 : start + 64]), salt))
    file.write_bytes(raw)
    assert "CRC in the footer" in str(verify(path).problems[0])
    footer = parse_footer(bytes(raw[-24:]), salt)
    assert footer is not None
    raw[-24:] = pack_footer(footer.seal_offset, crc32(bytes(raw[:-24])), salt)
    file.write_bytes(raw)
    audit = verify(path)
    assert not audit.ok
    assert "SHA-256" in str(audit.problems[0])


def test_p42_what_only_a_head_kept_elsewhere_tells(tmp_path: Path) -> None:
    """A cut tail, a replaced log, an old copy put back: verify alone calls them whole, verify with the head does not."""
    path = fill(tmp_path / "log", 30)
    old = copy(path, tmp_path / "old")
    with EventLog.open(path) as log:
        middle = (15, verify(path).head_hash)
        log.commit(event(30))
        head = (int(log.head), log.head.hash)
        middle = (15, fold_head(log, 15))
    assert verify(path, expect=head).ok
    assert verify(path, expect=middle).ok
    cases = {"old copy": old, "another log": fill(tmp_path / "other", 31)}
    cut = copy(path, tmp_path / "cut")
    last = segments_of(cut)[-1]
    data = last.read_bytes()
    index = 0
    while frame_at(data, index)[1] < len(data) and data[frame_at(data, index)[1]]:
        index += 1
    events = [n for n in range(index + 1) if struct.unpack_from("<I", data, frame_at(data, n)[0] + 44)[0] == frames.EVENTS]
    last.write_bytes(data[: frame_at(data, events[-1])[0]])
    cases["cut tail"] = cut
    for name, log_path in cases.items():
        assert verify(log_path).ok, name
        assert not verify(log_path, expect=head).ok, name
    assert verify(old, expect=middle).ok
    assert not verify(cases["another log"], expect=middle).ok


def fold_head(log: EventLog, seq: int) -> str:
    from eventlog.reader import Reader
    from eventlog.watermark import Watermark

    mark = Watermark(log._directory).durable()
    return Reader(log._directory).digest(seq, mark)


def test_p43_nothing_moves_a_cursor(tmp_path: Path) -> None:
    """Controls, ANSI escapes, bidi and line ends in data, streams and keys never reach the output; nor those of a file name."""
    nasty = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x202A, 0x202E, 0x2028, 0x2029, 0x2066, 0xFEFF]))
    path = tmp_path / "log\x1b[31m\u202e"
    with EventLog.open(path) as log:
        log.commit(Event("t", {nasty: nasty}, nasty))
    allowed = {"\n"}
    looks = [["dump"], ["dump", "--format", "json"], ["tail", "--after", "0"], ["fold", "-p", "counts"], ["status"], ["head"], ["verify"]]
    for command in looks:
        ran = CliRunner().invoke(cli, [command[0], str(path), *command[1:]])
        assert ran.exit_code == 0, (command, ran.output)
        assert not {c for c in ran.stdout + ran.stderr if c in nasty} - allowed, command
    segments_of(path)[0].write_bytes(b"rubbish")
    ran = CliRunner().invoke(cli, ["dump", str(path)])
    assert ran.exit_code == 3
    assert not {c for c in ran.stderr if c in nasty} - allowed


def test_p44_exit_codes_and_how_much_is_readable(tmp_path: Path) -> None:
    path = copy(fill(tmp_path / "log", 30), tmp_path / "copy")

    def run(*command: str | Path) -> Any:
        return CliRunner().invoke(cli, list(map(str, command)))

    assert run("verify", path).exit_code == run("dump", path).exit_code == 0
    file = segments_of(path)[1]
    raw = bytearray(file.read_bytes())
    raw[300] ^= 4
    file.write_bytes(raw)
    cold(path)
    verified = run("verify", path)
    assert verified.exit_code == 1
    assert file.name in verified.output
    dumped = run("dump", path)
    assert dumped.exit_code == 3
    assert file.name in dumped.stderr
    readable = [json.loads(line)["seq"] for line in dumped.stdout.splitlines()]
    assert readable == list(range(1, int(file.stem))), "all that is sound comes first"
    assert run("verify", tmp_path / "nothing").exit_code == 2
    with pytest.raises(LogNotFound):
        verify(tmp_path / "nothing")
    with tempfile.TemporaryDirectory() as empty, pytest.raises(LogNotFound):
        EventLog.open(empty, read_only=True)
    with EventLog.open(path, read_only=True) as log, pytest.raises(Corrupt):
        ns(log)
    assert isinstance(COUNTS, Projection)
