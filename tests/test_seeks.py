"""Reads that seek: an index in each sealed segment says where seqs, times, types and streams are; what is skipped is skipped rightly."""

from __future__ import annotations

import os
import random
import shutil
from itertools import islice
from pathlib import Path
from zlib import crc32

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventlog import Corrupt, Durability, Event, EventLog, Recorded, frames, indexes, runs, segments
from eventlog.audit import verify
from eventlog.fs import FileSystem
from eventlog.payload import Draft, mask_of
from eventlog.segments import HEADER_BYTES, pack_footer

SEGMENT = 16 << 10
TYPES = ["often.a", "often.b", "rare.c", "rare.d", "rare.e"]


class Clock(FileSystem):
    """A wall clock that now and then is set back, and a count of the bytes that were read."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._time = 1_000_000_000
        self.read_bytes = 0

    def now(self) -> int:  # type: ignore[override]
        self._time += self._random.randrange(-2_000, 10_000)
        return self._time

    def pread(self, fd: int, length: int, offset: int) -> bytes:  # type: ignore[override]
        data = os.pread(fd, length, offset)
        self.read_bytes += len(data)
        return data


def build(path: Path, *, seed: int = 7, commits: int = 1500, writers: int = 1) -> Clock:
    """A log of several segments: common and rare types, many streams, commits of one event and of some, marks; by one or more handles."""
    chance, clock = random.Random(seed), Clock(seed)
    logs = [EventLog.open(path, segment_bytes_max=SEGMENT, fs=clock) for _ in range(writers)]
    for number in range(commits):
        log = logs[chance.randrange(writers)]
        events = [
            Event(
                chance.choices(TYPES, [600, 400, 3, 2, 1])[0], {"n": number, "pad": "x" * chance.randrange(60)}, f"s{chance.randrange(90)}"
            )
            for _ in range(chance.choice([1, 1, 1, 5]))
        ]
        log.commit(events, Durability.BATCHED)
        if chance.random() < 0.01:
            log.flush()
    for log in logs:
        log.close()
    return clock


@pytest.fixture(scope="module", params=[1, 2], ids=["one writer", "two writers"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Recorded]]:
    path = tmp_path_factory.mktemp("seeks") / "log"
    build(path, writers=request.param)
    with EventLog.open(path, read_only=True) as log:
        assert len(log.segments()) > 5
        return path, list(log.read())


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_a_read_that_seeks_gives_what_a_filter_over_everything_gives(made: tuple[Path, list[Recorded]], data: st.DataObject) -> None:
    path, everything = made
    last = everything[-1].seq
    after = data.draw(st.integers(0, last + 3))
    upto = data.draw(st.none() | st.integers(0, last + 3))
    types = data.draw(st.none() | st.sets(st.sampled_from([*TYPES, "never.seen"])))
    streams = data.draw(st.none() | st.sets(st.sampled_from([f"s{n}" for n in range(92)]), max_size=4))
    times = sorted(event.time for event in everything)
    since, until = (data.draw(st.none() | st.sampled_from(times).map(lambda t: t + data.draw(st.integers(-1, 1)))) for _ in range(2))
    with EventLog.open(path, read_only=True) as log:
        for _ in range(2):  # the second time from bookmarks and kept indexes
            found = list(log.read(after, upto=upto, types=types, streams=streams, since=since, until=until))
            assert found == [
                event
                for event in everything
                if event.seq > after
                and (upto is None or event.seq <= upto)
                and (types is None or event.type in types)
                and (streams is None or event.stream in streams)
                and (since is None or event.time >= since)
                and (until is None or event.time <= until)
            ]


def test_the_head_at_a_time_is_the_one_before_the_first_later_event(made: tuple[Path, list[Recorded]]) -> None:
    path, everything = made
    with EventLog.open(path, read_only=True) as log:
        for event in everything[::97]:
            for time in (event.time - 1, event.time, event.time + 1):
                later = next((other.seq for other in everything if other.time > time), everything[-1].seq + 1)
                assert log.seq_at(time) == later - 1
        assert log.seq_at(0) == 0


def test_times_before_1970_are_times(tmp_path: Path) -> None:
    clock = Clock(3)
    clock._time = -1_000_000
    with EventLog.open(tmp_path / "log", segment_bytes_max=4096, fs=clock) as log:
        for number in range(300):
            log.commit(Event("a", {"n": number}), Durability.BATCHED)
        everything = list(log.read())
        assert everything[0].time < 0 < everything[-1].time
        for until in (-500_000, -1, 0, 10):
            assert list(log.read(until=until)) == [event for event in everything if event.time <= until]
            assert list(log.read(since=until)) == [event for event in everything if event.time >= until]


def test_every_sealed_segment_carries_the_index_that_a_walk_gives(made: tuple[Path, list[Recorded]]) -> None:
    path, _ = made
    with EventLog.open(path, read_only=True) as log:
        sealed = [info for info in log.segments() if info.sealed]
        for info in sealed:
            data = (path / "segments" / info.name).read_bytes()
            salt = int.from_bytes(data[76:80], "little")
            fd = os.open(path / "segments" / info.name, os.O_RDONLY)
            try:
                carried = indexes.load(log._directory, fd, len(data), info.number, salt)
            finally:
                os.close(fd)
            end = data.rindex(frames.MAGIC, 0, data.rindex(frames.MAGIC))  # the mark before the seal
            walked = indexes.build(lambda length, at, data=data: data[at : at + length], end, info.number, salt)
            assert carried is not None
            assert carried == walked


@pytest.mark.parametrize(
    "wanted", [{"types": ["rare.e"]}, {"types": ["rare.c", "rare.d"], "streams": ["s3"]}, {"after": 2000}, {"until": 1}]
)
def test_a_selective_read_touches_a_small_part_of_the_log(tmp_path: Path, wanted: dict[str, list[str]]) -> None:
    clock = build(tmp_path / "log", commits=12_000)
    with EventLog.open(tmp_path / "log", read_only=True, fs=clock) as log:
        size = sum(info.bytes for info in log.segments())
        if "after" in wanted:
            wanted = {"after": int(log.head) - 40}  # type: ignore[dict-item]
        clock.read_bytes = 0
        seen = sum(1 for _ in log.read(**wanted))  # type: ignore[arg-type]
        assert ("until" in wanted) == (seen == 0)
        assert clock.read_bytes < size / 3, f"{clock.read_bytes} of {size} bytes"


def reseal(path: Path, change: bytes, by: bytes) -> None:
    """Change the index of the first segment as somebody would who computes its CRCs again (the hash in the next header then tells)."""
    data = bytearray(path.read_bytes())
    salt = int.from_bytes(data[76:80], "little")
    at = data.rindex(frames.MAGIC, 0, data.rindex(frames.MAGIC))
    length = int.from_bytes(data[at + 8 : at + 12], "little")
    body = bytes(data[at + 64 : at + 64 + length])
    assert change in body
    body = body.replace(change, by, 1)
    data[at + 64 : at + 64 + length] = body
    data[at + 12 : at + 16] = crc32(body).to_bytes(4, "little")
    data[at + 4 : at + 8] = crc32(data[at + 8 : at + 64], salt).to_bytes(4, "little")
    path.write_bytes(data)


def test_verify_finds_an_index_that_leaves_something_out(made: tuple[Path, list[Recorded]], tmp_path: Path) -> None:
    path = tmp_path / "log"
    shutil.copytree(made[0], path)
    first = sorted(path.glob("segments/*.seg"))[0]
    assert verify(path).ok
    reseal(first, b'"types":{"', b'"typez":{"')
    found = verify(path)
    assert not found.ok
    assert any("index" in problem.what for problem in found.problems), found.problems


def test_an_index_that_does_not_check_costs_time_and_no_event(made: tuple[Path, list[Recorded]], tmp_path: Path) -> None:
    path = tmp_path / "log"
    shutil.copytree(made[0], path)
    for file in sorted(path.glob("segments/*.seg"))[:-1]:
        data = bytearray(file.read_bytes())
        at = data.rindex(frames.MAGIC, 0, data.rindex(frames.MAGIC))
        data[at + 70] ^= 1
        file.write_bytes(data)
    with EventLog.open(path, read_only=True) as log, pytest.raises(Corrupt):
        list(log.read(types=["rare.c"]))  # found while walking: what cannot be trusted is not skipped
    assert not verify(path).ok


def put_index(path: Path, change: dict[str, object]) -> None:
    """Another index in the place of that of a segment, of any length, by somebody who computes all CRCs of the segment again."""
    data = path.read_bytes()
    salt, seal_at = int.from_bytes(data[76:80], "little"), data.rindex(frames.MAGIC)
    at = data.rindex(frames.MAGIC, 0, seal_at)
    [mark, seal], _ = next(frames.scan(lambda length, offset: data[offset : offset + length], at, len(data), first_seq(data, at), salt))
    assert mark.body is not None
    assert seal.body is not None
    body = orjson.dumps({**orjson.loads(mark.body), **change})
    body += b" " * (-len(body) % 8)
    made = frames.encode(Draft(body, 0, 0, 0), mark.first, mark.durable, mark.time, frames.MARK, salt)
    seal_at = at + len(made)
    made += frames.encode(Draft(seal.body, 0, 0, 0), seal.first, seal.durable, seal.time, frames.SEAL, salt)
    path.write_bytes(data[:at] + made + pack_footer(seal_at, crc32(data[:at] + made), salt))


def first_seq(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + 16 : at + 24], "little")


HOSTILE: dict[str, dict[str, object]] = {
    "no events": {"events": 0},
    "fewer events": {"events": 20},
    "events below none": {"events": -100},
    "events beyond all": {"events": 2**63},
    "half an event": {"events": 100.5},
    "no commits": {"commits": 0},
    "commits true": {"commits": True},
    "a bit below none": {"types": {"-1": "AAAA"}, "streams": {"-5": "AAAA"}},
    "a bit beyond all": {"types": {"64": "AAAAAA=="}, "streams": {"99999999999": "AAAAAA=="}},
    "no base64": {"types": {str(bit): "!!!!" for bit in range(64)}},
    "half an offset": {"streams": {str(bit): "AAAA" for bit in range(64)}},
    "a list of nothing": {"streams": {str(bit): "" for bit in range(64)}},
    "offsets in the middle of frames": {"types": {str(bit): "DAAAAA0AAAA=" for bit in range(64)}, "everywhere": [0, 0]},
    "offsets behind the end": {"types": {str(bit): "/////w==" for bit in range(64)}, "everywhere": [0, 0]},
    "seeks before the file": {"seeks": [[1, -8]]},
    "seeks behind the file": {"seeks": [[1, 80], [30, 2**63]]},
    "seeks into a frame": {"seeks": [[1, 88]]},
    "seeks of another seq": {"seeks": [[20, 80]]},
    "seeks back": {"seeks": [[1, 80], [30, 80], [20, 4000]]},
    "no seeks": {"seeks": []},
    "seeks of three": {"seeks": [[1, 80, 7]]},
    "seeks of text": {"seeks": ["ab"]},
    "times that are none": {"times": ["a", "b"]},
    "one time": {"times": [1]},
    "everywhere is text": {"everywhere": ["1", "2"]},
    "types are a list": {"types": []},
    "all is null": dict.fromkeys(["commits", "events", "times", "seeks", "everywhere", "types", "streams"]),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_an_index_that_is_not_one_neither_hangs_a_reader_nor_makes_it_miss_or_repeat(
    made: tuple[Path, list[Recorded]], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "log"
    shutil.copytree(made[0], path)
    put_index(sorted(path.glob("segments/*.seg"))[0], HOSTILE[name])
    everything = made[1]
    assert not verify(path).ok
    for wanted in ({"types": ["rare.c"]}, {"types": ["often.a"]}, {"streams": ["s3"]}, {"types": ["rare.d"], "after": 40}, {"after": 40}):
        after, kinds, streams = wanted.get("after", 0), wanted.get("types"), wanted.get("streams")
        right = [
            event
            for event in everything
            if event.seq > after and (kinds is None or event.type in kinds) and (streams is None or event.stream in streams)  # type: ignore[operator]
        ]
        with EventLog.open(path, read_only=True) as log:
            found: list[Recorded] = []
            try:
                found = list(islice(log.read(**wanted), len(right) + 1))  # type: ignore[arg-type]
            except Corrupt:
                assert name.startswith("offsets")  # what is named and does not check is told, as all damage is
            else:
                assert found == right


def test_a_flipped_byte_in_a_frame_that_the_index_names_is_told(made: tuple[Path, list[Recorded]], tmp_path: Path) -> None:
    path = tmp_path / "log"
    shutil.copytree(made[0], path)
    wanted = next(event for event in made[1] if event.type == "rare.c")
    file = max((f for f in path.glob("segments/*.seg") if int(f.stem) <= wanted.seq), key=lambda f: int(f.stem))
    data = bytearray(file.read_bytes())
    at = data.find(b'"rare.c"', HEADER_BYTES)
    data[at + 2] ^= 1
    file.write_bytes(data)
    with EventLog.open(path, read_only=True) as log, pytest.raises(Corrupt, match=r"offset \d+"):
        list(log.read(types=["rare.c"]))


def test_verify_finds_a_footer_whose_crc_is_not_that_of_the_segment(made: tuple[Path, list[Recorded]], tmp_path: Path) -> None:
    path = tmp_path / "log"
    shutil.copytree(made[0], path)
    first = sorted(path.glob("segments/*.seg"))[0]
    data = first.read_bytes()
    footer = segments.parse_footer(data[-24:], salt := int.from_bytes(data[76:80], "little"))
    assert footer is not None
    assert footer.checksum == crc32(data[:-24])
    first.write_bytes(data[:-24] + segments.pack_footer(footer.seal_offset, footer.checksum ^ 1, salt))
    with EventLog.open(path, read_only=True) as log:
        assert list(log.read()) == made[1]  # the frames check one by one
    found = verify(path)
    assert any("CRC in the footer" in problem.what for problem in found.problems), found.problems
    first.write_bytes(data[:-24] + segments.pack_footer(footer.seal_offset, 0, salt))  # as early versions did: no problem of its own
    assert not any("footer" in problem.what for problem in verify(path).problems)
    with EventLog.open(path, read_only=True) as log:
        assert list(log.read()) == made[1]


def test_a_reopened_log_and_one_of_many_small_commits_are_indexed_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(300):  # each handle knows only its own frames
        with EventLog.open(path, segment_bytes_max=8192) as log:
            log.commit(Event("often.a", {"n": number}, "x"))
            log.commit(Event("rare.c" if number % 50 == 0 else "often.b", {"n": number}, "y"), Durability.BATCHED)
    with EventLog.open(path, read_only=True) as log:
        assert len(log.segments()) > 4
        assert [event.data["n"] for event in log.read(types=["rare.c"])] == [0, 50, 100, 150, 200, 250]
    assert verify(path).ok


def test_an_index_says_what_was_packed() -> None:
    index = indexes.collect(((80 + 8 * n, n + 1, 1, 50 + n, 1 << (n % 40), 1) for n in range(200)), 1)
    assert index is not None
    assert indexes.parse(indexes.pack(index)) == index
    assert len(indexes.pack(index)) % 8 == 0
    assert index.offsets(1 << 3, frames.ALL_NAMES) == [80 + 8 * n for n in range(200) if n % 40 == 3]
    assert index.offsets(1 << 63, frames.ALL_NAMES) == []
    assert index.offsets(frames.ALL_NAMES, 1) is None
    for damaged in (b"", b"[]", b"{}", b"null", orjson.dumps({"commits": 1}), b'{"types":5}'):
        assert indexes.parse(damaged) is None


def test_picking_large_commits_out_of_a_large_segment_holds_few_of_them(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog.open(path, segment_bytes_max=8 << 20) as log:
        for number in range(500):
            rare = number % 6 == 0
            log.commit(Event("rare.c" if rare else "often.a", {"pad": "x" * (60_000 if rare else 100)}), Durability.BATCHED)
    data = (path / "segments" / "00000000000000000001.seg").read_bytes()
    salt = int.from_bytes(data[76:80], "little")
    offsets = [
        frame.offset
        for found, _ in frames.scan(lambda length, at: data[at : at + length], HEADER_BYTES, len(data), 1, salt)
        for frame in found
        if frame.types == mask_of("rare.c")
    ]
    found = list(runs.pick(lambda length, at: data[at : at + length], offsets, len(data), salt))
    assert [offset for run, _ in found for offset in run.offsets] == offsets
    assert max(sum(map(len, run.bodies)) for run, _ in found) < 400_000


def test_the_commands_go_back_in_time(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from eventlog.cli.dump import dump
    from eventlog.cli.fold import fold
    from eventlog.cli.output import when
    from eventlog.cli.tail import tail

    path = tmp_path / "log"
    with EventLog.open(path) as log:
        times = [log.commit(Event("a.b", {"n": number})).time for number in range(6)]

    def seqs(output: str) -> list[int]:
        return [orjson.loads(line)["seq"] for line in output.splitlines()]

    runner = CliRunner()
    third = when(times[2])
    assert seqs(runner.invoke(dump, [str(path), "--since", third]).output)[0] in (3, 2)  # to the microsecond
    assert seqs(runner.invoke(dump, [str(path), "--until", when(times[2] + 1000)]).output)[:3] == [1, 2, 3]
    assert seqs(runner.invoke(tail, [str(path), "--since", "1h", "--json"]).output) == [1, 2, 3, 4, 5, 6]
    assert runner.invoke(tail, [str(path), "--until", "1h", "--json"]).output == ""
    assert runner.invoke(tail, [str(path), "--since", "soon"]).exit_code == 2
    assert runner.invoke(tail, [str(path), "--since", "1h", "-n", "3"]).exit_code == 2
    assert runner.invoke(tail, [str(path), "-f", "--until", "1h"]).exit_code == 2
    assert orjson.loads(runner.invoke(fold, [str(path), "--json", "--until", "1h"]).output)["seq"] == 0
    assert orjson.loads(runner.invoke(fold, [str(path), "--json", "--since", "1h"]).output)["state"]["events"] == 6
    assert orjson.loads(runner.invoke(fold, [str(path), "--json", "--since", "2999-01-01"]).output)["state"]["events"] == 0
