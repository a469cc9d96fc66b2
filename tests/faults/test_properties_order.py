"""P28-P32: order, widths, limits, payloads, dumps. Payloads are swept in test_payload, dumps in test_cli."""

from __future__ import annotations

import json
import math
import os
import struct
import time
from collections import namedtuple
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from propkit import LAZY, cold, event, fill, found, ns, segments_of

from eventlog import Durability, Event, EventLog, PayloadError
from eventlog.audit import verify
from eventlog.cli import main as cli
from eventlog.directory import Directory
from eventlog.fs import REAL, FileSystem


class SteppedClock(FileSystem):
    """A clock that leaps a year ahead, back, stands still, and goes before 1970."""

    def __init__(self) -> None:
        self._turn = 0

    def now(self) -> int:
        self._turn += 1
        year = 365 * 86400 * 10**9
        return (time.time_ns(), time.time_ns() - year, time.time_ns() + year, 10**18, -(10**15))[self._turn // 3 % 5]


def test_p28_order_is_seq_never_the_clock(tmp_path: Path) -> None:
    fs = SteppedClock()
    times = []
    for turn in range(4):
        with EventLog.open(tmp_path / "log", segment_bytes_max=4096, fs=fs) as log:
            for n in range(turn * 20, turn * 20 + 20):
                times.append(log.commit(event(n, 300), list(Durability)[n % 2]).time)
            assert ns(log) == list(range(turn * 20 + 20))
    assert times != sorted(times), "the clock did not step"
    assert len(segments_of(tmp_path / "log")) > 4
    with EventLog.open(tmp_path / "log", read_only=True) as log:
        assert [e.time for e in log.read()] == times
    assert verify(tmp_path / "log").ok


def test_p28_times_are_utc_whatever_the_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    try:
        before = datetime.now(UTC)
        with EventLog.open(tmp_path / "log") as log:
            stamp = datetime.fromtimestamp(log.commit(event(0)).time / 1e9, UTC)
        created = json.loads((tmp_path / "log" / "log.json").read_text())["created"]
        assert created.endswith("Z")
        for moment in (stamp, datetime.fromisoformat(created)):
            assert abs((moment - before).total_seconds()) < 3600
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("first", [2**31 - 2, 2**32 - 2, 2**53 - 2, 2**63 - 40])
def test_p29_wide_seqs(tmp_path: Path, first: int) -> None:
    directory = Directory.open(REAL, tmp_path / "log", create=True, write=True)
    directory.make(first)
    directory.close()
    last = first + 29
    with EventLog.open(tmp_path / "log", segment_bytes_max=4096) as log:
        assert int(log.head) == first - 1
        receipts = [log.commit([event(n, 300), event(n, 300)]) for n in range(15)]
        assert (receipts[0].first, receipts[-1].last) == (first, last)
        assert [e.seq for e in log.read()] == list(range(first, last + 1))
        assert [e.seq for e in log.read(after=first + 3, upto=first + 6)] == [first + 4, first + 5, first + 6]
        assert [e.seq for e in log.follow(last - 2, timeout=0)] == [last - 1, last]
        head = (int(log.head), log.head.hash)
    assert verify(tmp_path / "log", expect=head).ok
    cold(tmp_path / "log")
    with EventLog.open(tmp_path / "log") as log:
        assert (int(log.head), log.head.hash) == head
        assert log.commit(event(0)).first == last + 1


@pytest.mark.parametrize("size", [(2 << 30) + 4096, (4 << 30) + 4096])
def test_p29_a_sparse_giant_is_read_in_bounded_memory(tmp_path: Path, size: int) -> None:
    """A last segment of 2 and 4 GiB, nothing but a hole behind its commits; then with a byte at its end: not the same thing."""
    import resource

    from propkit import in_child

    path = fill(tmp_path / "log", 3)
    segment = segments_of(path)[-1]

    def work() -> None:
        os.truncate(segment, size)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
        assert found(cold(path), read_only=True) == [0, 1, 2]
        with segment.open("r+b") as file:
            file.seek(size - 1)
            file.write(b"x")
        assert found(cold(path), read_only=True) == [0, 1, 2]

    start = time.monotonic()
    assert in_child(work) == 0
    print(f"{time.monotonic() - start:.1f} s for {size >> 30} GiB")


def test_p30_limits_are_checked_before_a_byte_is_written(tmp_path: Path) -> None:
    """Below, at and above commit_bytes_max and the size of a segment: what writers accept, readers accept."""
    limit = 9000
    with EventLog.open(tmp_path / "log", segment_bytes_max=4096, commit_bytes_max=limit) as log:
        bare = len(b'[["t","",{"x":""}]]')
        sizes = [n - bare for n in (1000, 3952, 4016, 4096 - 80, 4096, 4097, limit - 1, limit)]
        for size in sizes:
            log.commit(Event("t", {"x": "y" * size}))
        before = {file: file.read_bytes() for file in segments_of(tmp_path / "log")}
        for size in (limit + 1 - bare, limit * 3):
            with pytest.raises(PayloadError, match="commit_bytes_max"):
                log.commit(Event("t", {"x": "y" * size}))
        assert {file: file.read_bytes() for file in segments_of(tmp_path / "log")} == before
        assert [len(e.data["x"]) for e in log.read()] == sizes
    with EventLog.open(tmp_path / "log", commit_bytes_max=100) as small:  # a reader's own limit is about what it writes
        assert [len(e.data["x"]) for e in small.read()] == sizes
    assert verify(tmp_path / "log").ok


def test_p30_a_record_that_lies_about_its_length_costs_nothing(tmp_path: Path) -> None:
    """A length of 4 GiB with a right checksum: believed no further than the file goes (influxdb 8403)."""
    from zlib import crc32

    path = fill(tmp_path / "log", 3)
    segment = segments_of(path)[0]
    data = bytearray(segment.read_bytes())
    struct.pack_into("<I", data, 80 + 8, 0xFFFFFFF8)
    struct.pack_into("<I", data, 80 + 4, crc32(bytes(data[88:144]), crc32(bytes(data[:76]))))
    segment.write_bytes(data)
    audit = verify(cold(path))
    assert not audit.ok
    assert "longer than the file" in str(audit.problems[0])


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def same(one: Any, two: Any) -> bool:
    """Equal, of the same types all the way down, and -0.0 is not 0.0."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two) and (not isinstance(one, float) or math.copysign(1, one) == math.copysign(1, two))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(datas=st.lists(st.dictionaries(TEXT, JSON, max_size=4), min_size=1, max_size=4))
def test_p31_what_is_accepted_comes_back_equal_and_of_the_same_type(datas: list[dict[str, Any]], p31: EventLog) -> None:
    receipt = p31.commit([Event("t", data) for data in datas], LAZY)
    back = [e.data for e in p31.read(after=receipt.first - 1)]
    assert all(map(same, datas, back)), (datas, back)
    assert len(back) == len(datas)


@pytest.fixture
def p31(tmp_path: Path):  # type: ignore[no-untyped-def]
    with EventLog.open(tmp_path / "log") as log:
        yield log


Point = namedtuple("Point", "x y")  # noqa: PYI024  what people really pass
REFUSED = [math.nan, -math.inf, 2**64, -(2**63) - 1, 10**5000, "\ud800", b"x", {1: 2}, {"\udfff": 1}, {1, 2}, Decimal(1), datetime.now(UTC)]
REFUSED += [UUID(int=1), 1j, Path("x"), object(), range(3)]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_p31_everything_else_is_refused_with_the_path_to_it(p31: EventLog, value: Any) -> None:
    for data, path in (({"a": value}, ".a"), ({"a": [1, {"b": value}]}, ".a[1].b")):
        with pytest.raises(PayloadError) as caught:
            p31.commit([Event("t", {}), Event("t", data)])
        assert path in str(caught.value)
        assert "events[1]" in str(caught.value)
    assert list(p31.read()) == []
    assert p31.commit(Event("t", {"point": (1, 2)})).first == 1
    assert [e.data for e in p31.read()] == [{"point": [1, 2]}]  # the one documented exception


def test_p32_a_dump_is_deterministic_and_comes_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With every character that some splitlines() takes for the end of a line; twice the same bytes; in a new log equal events."""
    from click.testing import CliRunner

    nasty = "\x00\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r\n\x1b[31m\u202e\ufeff"
    with EventLog.open(tmp_path / "log", segment_bytes_max=4096) as log:
        for n in range(30):
            log.commit([Event("t", {"n": n, nasty: [nasty, 2**63 + n, -0.0, "x" * 200]}, nasty), Event("u", {})])
    runner = CliRunner()
    dumps = [runner.invoke(cli, ["dump", str(tmp_path / "log")]).stdout_bytes for _ in range(2)]
    assert dumps[0] == dumps[1]
    assert dumps[0].count(b"\n") == 60
    assert all(byte == 10 or 32 <= byte < 127 for byte in dumps[0]), "controls are escaped"
    assert runner.invoke(cli, ["append", str(tmp_path / "copy")], input=dumps[0]).exit_code == 0
    with EventLog.open(tmp_path / "log", read_only=True) as one, EventLog.open(tmp_path / "copy", read_only=True) as two:
        a, b = list(one.read()), list(two.read())
        assert [(e.seq, e.type, e.stream) for e in a] == [(e.seq, e.type, e.stream) for e in b]
        assert all(same(x.data, y.data) for x, y in zip(a, b, strict=True))
