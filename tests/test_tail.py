"""The end of the last segment: every row of the decision table, every byte of the last commits cut, zeroed and flipped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from eventlog import Corrupt, Durability, Event, EventLog, UnsupportedFormat, frames, segments, tailrecord
from eventlog.audit import verify
from eventlog.frames import FRAME_HEADER_BYTES
from eventlog.fs import REAL
from eventlog.payload import Draft
from eventlog.repair import repair
from eventlog.segments import FOOTER_BYTES, HEADER_BYTES, name_of
from eventlog.tail import TABLE, Action, Facts, HeaderIs, decide
from eventlog.tailrecord import TailRecord


def facts(**changes: object) -> Facts:
    plain = Facts(HeaderIs.GOOD, first=False, newer=False, sealed=False, offset=500, zeros=True, durable=300)
    return plain._replace(**changes)  # type: ignore[arg-type]


ROWS: list[tuple[str, Facts, Action]] = [
    ("damaged header", facts(header=HeaderIs.DAMAGED), Action.REFUSE),
    ("confirmed segment without header", facts(header=HeaderIs.UNFINISHED, first=True, durable=0), Action.REFUSE),
    ("confirmed segment without header", facts(header=HeaderIs.UNFINISHED, durable=80), Action.REFUSE),
    ("unfinished segment", facts(header=HeaderIs.UNFINISHED, durable=0), Action.REMAKE),
    ("newer frame", facts(newer=True, zeros=False), Action.UPGRADE),
    ("sealed", facts(sealed=True, zeros=False), Action.SUCCEED),
    ("clean end", facts(), Action.APPEND),
    ("clean end", facts(durable=500), Action.APPEND),
    ("confirmed bytes gone", facts(durable=501), Action.REFUSE),
    ("torn tail", facts(zeros=False), Action.CUT),
    ("torn tail", facts(zeros=False, durable=500), Action.CUT),
    ("damage", facts(zeros=False, durable=501), Action.REFUSE),
]


@pytest.mark.parametrize(("name", "given", "action"), ROWS)
def test_each_row_of_the_table(name: str, given: Facts, action: Action) -> None:
    row = decide(given)
    assert (row.name, row.action) == (name, action)


def test_every_row_is_tested() -> None:
    assert {name for name, _, _ in ROWS} == {row.name for row in TABLE}


COMMITS = 50  # 20 to a segment of 4 KiB: three segments, ten commits in the last


class Layout:
    """A log, and where its frames stand in the last segment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.segment = sorted((path / "segments").glob("*.seg"))[-1]
        self.data = self.segment.read_bytes()
        log_id = bytes.fromhex(EventLog.open(path, read_only=True).id)
        self.number = int(self.segment.stem)
        self.salt = segments.parse_header(self.data, log_id, self.number, path).salt
        pread = lambda n, at: self.data[at : at + n]  # noqa: E731
        self.frames = [f for found, _ in frames.scan(pread, HEADER_BYTES, len(self.data), self.number, self.salt) for f in found]
        self.commits = [f for f in self.frames if f.kind == frames.EVENTS]
        self.end = self.frames[-1].end

    def copy(self, to: Path, data: bytes | None = None) -> Path:
        """A copy has another lock file, so that what its tail record says counts for nothing: as after a reboot."""
        if to.exists():
            shutil.rmtree(to)
        shutil.copytree(self.path, to)
        if data is not None:
            (to / "segments" / self.segment.name).write_bytes(data)
        return to


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Three segments. Never closed: no mark at the end (a killed writer)."""
    path = tmp_path_factory.mktemp("base") / "log"
    log = EventLog.open(path, segment_bytes_max=4096)
    for n in range(COMMITS):
        log.commit([Event("test.n", {"n": n, "x": "y" * 80}, "s"), Event("test.n", {"n": n})])
    shutil.copytree(path, path.parent / "killed")
    log.close()
    return Layout(path.parent / "killed")


def read_ns(log: EventLog) -> list[int]:
    return [event.data["n"] for event in log.read()]


def check_prefix(path: Path, commits_kept: int) -> None:
    """Opens, keeps the exact prefix, appends, survives a second and a third reopen."""
    expected = [n for n in range(commits_kept) for _ in range(2)]
    with EventLog.open(path) as log:
        assert read_ns(log) == expected
        log.commit(Event("test.n", {"n": -1}))
    for _ in range(2):
        with EventLog.open(path) as log:
            assert log.mended == []
            assert read_ns(log) == [*expected, -1]
    assert verify(path).ok


def kept(layout: Layout, cut: int) -> int:
    """How many commits of the whole log end at or before this byte of the last segment."""
    before = COMMITS - len(layout.commits)
    return before + sum(1 for f in layout.commits if f.end <= cut)


def test_truncated_at_every_byte_of_the_last_three_commits(layout: Layout, tmp_path: Path) -> None:
    for cut in range(layout.commits[-3].offset, layout.end + 1):
        check_prefix(layout.copy(tmp_path / "log", layout.data[:cut]), kept(layout, cut))


def test_zeroed_from_every_byte_of_the_last_three_commits_on(layout: Layout, tmp_path: Path) -> None:
    for cut in range(layout.commits[-3].offset, layout.end):
        data = layout.data[:cut] + bytes(len(layout.data) - cut)
        # A zero may stand where a zero stood: then the frame is still whole.
        whole = [f for f in layout.commits if data[f.offset : f.end] == layout.data[f.offset : f.end]]
        check_prefix(layout.copy(tmp_path / "log", data), COMMITS - len(layout.commits) + len(whole))


def test_a_tail_of_garbage_is_cut_and_a_copy_kept(layout: Layout, tmp_path: Path) -> None:
    last = layout.commits[-1]
    for garbage in (b"\xff" * 700, layout.data[last.offset : last.end - 8] + b"\0" * 4096, b"\x00\x01"):
        path = layout.copy(tmp_path / "log", layout.data[: last.offset] + garbage)
        with EventLog.open(path) as log:
            assert len(log.mended) == 1
            assert f"offset {last.offset}" in log.mended[0]
        copies = list((path / "segments").glob("*.torn"))
        assert [c.read_bytes() for c in copies] == [garbage.rstrip(b"\0")]
        assert oct(copies[0].stat().st_mode & 0o777) == "0o600"
        assert verify(path).ok
        with EventLog.open(path) as log:
            assert log.mended == []
            assert len(read_ns(log)) == 2 * (COMMITS - 1)


def test_each_byte_of_an_earlier_commit_flipped_is_a_typed_error(layout: Layout, tmp_path: Path) -> None:
    victim = layout.commits[-4]
    path = layout.copy(tmp_path / "log")
    segment = path / "segments" / layout.segment.name
    for at in range(victim.offset, victim.end):
        data = bytearray(layout.data)
        data[at] ^= 1 << (at % 8)
        segment.write_bytes(data)
        with pytest.raises(Corrupt) as caught:
            EventLog.open(path)
        assert (caught.value.segment, caught.value.offset) == (layout.number, victim.offset)
        assert layout.segment.name in str(caught.value)
        with EventLog.open(path, read_only=True) as log:
            seen: list[int] = []
            with pytest.raises(Corrupt):
                seen.extend(event.data["n"] for event in log.read())
        assert segment.read_bytes() == bytes(data), "nothing was touched"
    assert not list((path / "segments").glob("*.torn"))


def test_each_byte_of_a_sealed_segment_flipped_is_found(layout: Layout, tmp_path: Path) -> None:
    """Every stored byte is covered: verify finds each one; a reader raises, or the byte is outside what it needs."""
    path = layout.copy(tmp_path / "log")
    victim = sorted((path / "segments").glob("*.seg"))[1]
    whole = victim.read_bytes()
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << (at % 8)
        victim.write_bytes(data)
        audit = verify(path)
        assert not audit.ok, at
        with EventLog.open(path, read_only=True) as log:
            try:
                assert read_ns(log) == [n for n in range(COMMITS) for _ in range(2)]
            except Corrupt as error:
                assert error.segment in (int(victim.stem), layout.number)
            else:
                assert at >= len(whole) - FOOTER_BYTES or 40 <= at < 72, "only the footer and the chain are not needed to read"
    victim.write_bytes(whole)
    assert verify(path).ok


def test_in_one_boot_even_the_last_acknowledged_commit_is_guarded(tmp_path: Path) -> None:
    """The durable word of the tail record counts for the very file that it was written beside."""
    path = tmp_path / "log"
    log = EventLog.open(path)
    log.commit(Event("a", {"n": 1}))
    log.commit(Event("a", {"n": 2}))
    segment = path / "segments" / name_of(1)
    data = segment.read_bytes()
    at = data.rindex(b'{"n":2}')
    segment.write_bytes(data[:at] + b"X" + data[at + 1 :])
    (path / "log.json").touch()
    with pytest.raises(Corrupt, match="confirmed"):
        # Another handle: the first one still believes its own view.
        _opened_after_losing_trust(path)
    segment.write_bytes(data)
    log.close()


def _opened_after_losing_trust(path: Path) -> None:
    """Make the next opener scan: the record's CRC is broken, the durable word stays."""

    lock = path / "lock"
    raw = bytearray(lock.read_bytes())
    record = tailrecord.parse(bytes(raw))
    assert record is not None
    raw[: tailrecord.RECORD_BYTES] = tailrecord.pack(record._replace(boot=bytes(16)))
    lock.write_bytes(bytes(raw))
    EventLog.open(path).close()


# -- half a frame in a live log -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 8, 63, 64, 65, 87])
def test_half_a_frame_left_by_a_killed_writer_is_mended_by_the_next_commit(tmp_path: Path, length: int) -> None:
    path = tmp_path / "log"
    with EventLog.open(path) as log:
        log.commit(Event("a", {"n": 0}))
        layout = Layout(path)
        frame = frames.encode(Draft(b'[["a","",{"n":9}]]' + b" " * 6, 1, 1, 1), 2, 0, 0, frames.EVENTS, layout.salt)
        with open(layout.segment, "r+b") as file:
            file.seek(layout.end)
            file.write(frame[:length])
        with EventLog.open(path, read_only=True) as reader:
            assert read_ns(reader) == [0], "a half-written tail is not yet"
        for n in range(1, 5):
            log.commit(Event("a", {"n": n}), list(Durability)[n % 2])
        assert read_ns(log) == [0, 1, 2, 3, 4]
        assert len(log.mended) == 1
        assert len(list((path / "segments").glob("*.torn"))) == 1
    assert verify(path).ok


def test_a_whole_frame_whose_writer_died_before_telling_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog.open(path) as log:
        log.commit(Event("a", {"n": 0}))
        layout = Layout(path)
        body = b'[["a","",{"n":1}]]' + b" " * 6
        frame = frames.encode(Draft(body, 1, 2**64 - 1, 2**64 - 1), 2, 0, 0, frames.EVENTS, layout.salt)
        with open(layout.segment, "r+b") as file:
            file.seek(layout.end)
            file.write(frame)
        assert log.commit(Event("a", {"n": 2})).first == 3
        assert read_ns(log) == [0, 1, 2]
        assert log.mended == []


# -- segments -----------------------------------------------------------------------------------------------------------------------


def names(path: Path) -> list[Path]:
    return sorted((path / "segments").glob("*.seg"))


def test_missing_renamed_foreign_and_swapped_segments_are_refused(layout: Layout, tmp_path: Path) -> None:
    def first_gone(path: Path) -> None:
        names(path)[0].unlink()

    def middle_gone(path: Path) -> None:
        names(path)[1].unlink()

    def before_last_gone(path: Path) -> None:
        names(path)[-2].unlink()

    def renamed(path: Path) -> None:
        names(path)[1].rename(path / "segments" / name_of(int(names(path)[1].stem) + 1))

    def odd_name(path: Path) -> None:
        names(path)[1].rename(path / "segments" / "old.seg")

    def swapped(path: Path) -> None:
        one, two = names(path)[1:3]
        data = one.read_bytes()
        one.write_bytes(two.read_bytes())
        two.write_bytes(data)

    def foreign(path: Path) -> None:
        with EventLog.open(tmp_path / "other", segment_bytes_max=4096) as other:
            for n in range(COMMITS):
                other.commit([Event("test.n", {"n": n, "x": "y" * 80}, "s"), Event("test.n", {"n": n})])
        names(path)[1].write_bytes((tmp_path / "other" / "segments" / names(path)[1].name).read_bytes())

    def symlink(path: Path) -> None:
        target = names(path)[1].rename(tmp_path / "elsewhere")
        (path / "segments" / names(layout.path)[1].name).symlink_to(target)

    def hard_link(path: Path) -> None:
        (tmp_path / "second-name").hardlink_to(names(path)[-1])

    def cut_at_a_frame(path: Path) -> None:
        data = names(path)[-2].read_bytes()
        names(path)[-2].write_bytes(data[: data.rindex(frames.MAGIC)])

    breakers = [
        first_gone, middle_gone, before_last_gone, renamed, odd_name, swapped, foreign, symlink, hard_link, cut_at_a_frame,
    ]  # fmt: skip
    for breaker in breakers:
        path = layout.copy(tmp_path / "log")
        breaker(path)
        before = sorted((p.name, p.stat().st_size) for p in (path / "segments").iterdir())
        assert not verify(path).ok, breaker.__name__
        with pytest.raises(Corrupt), EventLog.open(path) as log:
            list(log.read())
        with pytest.raises(Corrupt), EventLog.open(path, read_only=True) as log:
            list(log.read())
        assert sorted((p.name, p.stat().st_size) for p in (path / "segments").iterdir()) == before, breaker.__name__
        for leftover in (tmp_path / "elsewhere", tmp_path / "second-name"):
            leftover.unlink(missing_ok=True)


def test_a_lost_footer_is_no_obstacle_to_readers_but_verify_says_it(layout: Layout, tmp_path: Path) -> None:
    path = layout.copy(tmp_path / "log")
    names(path)[0].write_bytes(names(path)[0].read_bytes()[:-FOOTER_BYTES])
    with EventLog.open(path) as log:
        assert len(read_ns(log)) == 2 * COMMITS
    assert verify(path).problems[0].segment == 1


@pytest.mark.parametrize("written", [0, 1, 7, 40, 79])
@pytest.mark.parametrize("size", [0, 80, 4096])
def test_a_crash_during_rotation_leaves_half_a_header(layout: Layout, tmp_path: Path, written: int, size: int) -> None:
    """The successor's file exists, its header is empty, half or zero: it is begun again."""
    path = layout.copy(tmp_path / "log")
    last = names(path)[-1]
    half = layout.data[:written] + bytes(max(0, size - written))
    last.write_bytes(half)
    events = [n for n in range(COMMITS - len(layout.commits)) for _ in range(2)]
    with EventLog.open(path, read_only=True) as log:
        assert read_ns(log) == events
    with EventLog.open(path) as log:
        assert "begun again" in log.mended[0]
        assert read_ns(log) == events
        log.commit(Event("a", {"n": -1}))
    with EventLog.open(path) as log:
        assert read_ns(log) == [*events, -1]
    assert verify(path).ok


@pytest.mark.parametrize("stage", ["seal", "half footer", "footer and zeros", "all but the successor"])
def test_a_crash_between_seal_and_successor(layout: Layout, tmp_path: Path, stage: str) -> None:
    path = layout.copy(tmp_path / "log")
    names(path)[-1].unlink()
    sealed = names(path)[-1]
    whole = sealed.read_bytes()
    sealed.write_bytes(
        {
            "seal": whole[:-FOOTER_BYTES],
            "half footer": whole[:-10],
            "footer and zeros": whole + bytes(4096),
            "all but the successor": whole,
        }[stage]
    )
    events = [n for n in range(COMMITS - len(layout.commits)) for _ in range(2)]
    with EventLog.open(path, read_only=True) as log:
        assert read_ns(log) == events
    with EventLog.open(path) as log:
        assert read_ns(log) == events
        log.commit(Event("a", {"n": -1}))
    assert sealed.read_bytes() == whole
    assert verify(path).ok


def test_a_newer_format_is_refused_and_not_touched(layout: Layout, tmp_path: Path) -> None:
    path = layout.copy(tmp_path / "log")
    description = path / "log.json"
    description.write_bytes(description.read_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        EventLog.open(path)
    path = layout.copy(tmp_path / "log")
    last = layout.commits[-1]
    frame = frames.encode(Draft(b"", 0, 0, 0), last.first, 0, 0, 77, layout.salt)
    data = layout.data[: last.offset] + frame + bytes(500)
    (path / "segments" / layout.segment.name).write_bytes(data)
    for read_only in (False, True):
        with pytest.raises(UnsupportedFormat, match="upgrade"), EventLog.open(path, read_only=read_only) as log:
            list(log.read())
    assert (path / "segments" / layout.segment.name).read_bytes() == data


# -- repair -------------------------------------------------------------------------------------------------------------------------


def test_repair_ends_the_log_where_its_damage_begins_and_keeps_everything(layout: Layout, tmp_path: Path) -> None:
    path = layout.copy(tmp_path / "log")
    assert repair(path).actions == []
    victim = names(path)[1]
    data = bytearray(victim.read_bytes())
    data[1500] ^= 4
    victim.write_bytes(data)
    later = {p.name: p.read_bytes() for p in names(path)[2:]}
    result = repair(path)
    assert result.lost_from is not None
    assert len(result.actions) == len(later) + 1
    for name, content in later.items():
        assert (path / "segments" / f"{name}.1.lost").read_bytes() == content
    assert verify(path).ok
    with EventLog.open(path) as log:
        assert log.head == result.lost_from - 1
        log.commit(Event("a", {"n": -1}))
    assert verify(path).ok
    assert repair(path).actions == []


@pytest.mark.parametrize("at", [3, 100], ids=["header", "first frame"])
def test_repair_of_the_very_beginning_leaves_an_empty_log(layout: Layout, tmp_path: Path, at: int) -> None:
    path = layout.copy(tmp_path / "log")
    first = names(path)[0]
    data = bytearray(first.read_bytes())
    data[at] ^= 1
    first.write_bytes(data)
    result = repair(path)
    assert result.lost_from == 1
    assert bytes(data)[-500:] in b"".join((path / "segments" / name).read_bytes() for name in result.kept)
    with EventLog.open(path) as log:
        assert log.head == 0
        log.commit(Event("a", {"n": 1}))
    assert verify(path).ok


def test_repair_of_log_json_and_of_a_missing_segment(layout: Layout, tmp_path: Path) -> None:
    path = layout.copy(tmp_path / "log")
    log_id = EventLog.open(path, read_only=True).id
    (path / "log.json").write_bytes(b"{")
    with pytest.raises(Corrupt, match="repair"):
        EventLog.open(path)
    assert "log.json" in repair(path).actions[0]
    (path / "log.json").unlink()
    with pytest.raises(Corrupt, match="repair"):
        EventLog.open(path)
    assert repair(path).lost_from is None
    with EventLog.open(path) as log:
        assert log.id == log_id
        assert len(read_ns(log)) == 2 * COMMITS
    gone = names(path)[1]
    gone.unlink()
    result = repair(path)
    assert result.lost_from == int(gone.stem)
    with EventLog.open(path) as log:
        assert log.head == int(gone.stem) - 1
    assert verify(path).ok


def test_real_file_system_names() -> None:
    """The seam's production side is what the tests above ran over."""
    assert EventLog.open.__kwdefaults__["fs"] is REAL  # type: ignore[attr-defined]
    assert FRAME_HEADER_BYTES == 64


def test_the_short_words_of_the_tail_record_say_what_the_long_ones_say() -> None:
    record = TailRecord(bytes(range(16)), 7, 3, 2**40, 2**33, 2**41)
    place = tailrecord.where(record)
    packed = tailrecord.pack_end(place, record.end, record.seq)
    assert packed == tailrecord.pack(record)
    assert tailrecord.parse_end(packed + bytes(64), place) == (record.end, record.seq)
    for other in (
        record._replace(boot=bytes(16)),
        record._replace(inode=8),
        record._replace(epoch=4),
        record._replace(segment=5),
        record._replace(suspect_segment=2**40),
    ):
        assert tailrecord.parse_end(tailrecord.pack(other), place) is None
    assert tailrecord.parse_end(packed[:-1], place) is None
    for at in range(len(packed)):
        assert tailrecord.parse_end(packed[:at] + bytes([packed[at] ^ 1]) + packed[at + 1 :], place) is None
