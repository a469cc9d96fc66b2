"""P10-P16: what a crash or a hand left behind is mended, or refused aloud; never both, never in silence.

Byte for byte sweeps are in test_tail (P10-P13), every crash state and the double crash in test_crash_states (P14), SIGKILL at each
call of an open in test_strace (P14), reading through the command line in test_cli (P15)."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from propkit import LAZY, cold, copy, event, fill, forge, found, in_child, in_mounts, needs_root, ns, python, segments_of, snapshot

from eventlog import Corrupt, EventLog, EventLogError, UnsafeLog, UnsupportedFormat
from eventlog.audit import verify
from eventlog.payload import ALL_NAMES
from eventlog.testing import strace


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments, left by a killed writer: each commit says how far the disk had confirmed what is before it."""
    base = tmp_path_factory.mktemp("killed")
    log = EventLog.open(base / "live", segment_bytes_max=4096)
    for n in range(24):
        log.commit(event(n, 300))
    left = copy(base / "live", base / "log")
    log.close()
    assert len(segments_of(left)) == 3
    return left


def test_p10_a_torn_tail_is_cut_kept_and_forgotten(killed: Path, tmp_path: Path) -> None:
    """Garbage of every length behind the end; the next append survives a second and a third open; the cut bytes are kept and said."""
    chance = random.Random(10)
    for length in (1, 7, 63, 64, 65, 500, 5000):
        path = copy(killed, tmp_path / str(length))
        last = segments_of(path)[-1]
        end = len(last.read_bytes().rstrip(b"\0"))
        end += -end % 8
        garbage = bytes(chance.randrange(1, 256) for _ in range(length))
        data = last.read_bytes()
        last.write_bytes(data[:end] + garbage + data[end + length :])
        with EventLog.open(path) as log:
            assert ns(log) == list(range(24))
            (said,) = log.mended
            assert f"{length} unacknowledged bytes at offset {end}" in said
            log.commit(event(24))
        (kept,) = path.glob("segments/*.torn")
        assert kept.read_bytes() == garbage
        for _ in range(2):
            with EventLog.open(path) as log:
                assert log.mended == []
                assert ns(log) == list(range(25))


@pytest.mark.parametrize("tail", ["zeros", "random", "sectors", "megabytes"])
def test_p11_zero_and_garbage_tails(killed: Path, tmp_path: Path, tail: str) -> None:
    """The last commit replaced, in whole or by 512-byte sectors, or followed by megabytes of zeros: it is there or it is not."""
    chance = random.Random(tail)
    path = copy(killed, tmp_path / "log")
    last = segments_of(path)[-1]
    data = bytearray(last.read_bytes().rstrip(b"\0"))
    start = data.rindex(b"\xf5evf")
    if tail == "zeros":
        data[start:] = bytes(len(data) - start)
    elif tail == "random":
        data[start + 40 :] = chance.randbytes(len(data) - start - 40)
    elif tail == "sectors":
        cut = start + 512 - start % 512
        data[start:cut] = bytes(cut - start)
    else:
        data += bytes(-len(data) % 8) + bytes(4 << 20)
    last.write_bytes(data)
    kept = 24 if tail == "megabytes" else 23
    with EventLog.open(path) as log:
        assert ns(log) == list(range(kept))
        log.commit(event(kept))
    assert found(path) == list(range(kept + 1))
    assert verify(path).ok


def test_p12_damage_in_the_middle_is_loud(killed: Path, tmp_path: Path) -> None:
    """One flipped bit at 150 places of three segments: a reader never ends early in silence, and nothing is cut by itself."""
    chance = random.Random(12)
    path = copy(killed, tmp_path / "log")
    files = segments_of(path)
    good = {file: file.read_bytes() for file in files}
    last_commit = good[files[-1]].rindex(b"\xf5evf")
    loud = mended = 0
    for _ in range(150):
        file = chance.choice(files)
        length = len(good[file].rstrip(b"\0"))
        at = chance.randrange(length)
        raw = bytearray(good[file])
        raw[at] ^= 1 << chance.randrange(8)
        file.write_bytes(raw)
        cold(path)
        in_last = file == files[-1] and at >= last_commit
        try:
            left = found(path, read_only=True)
        except EventLogError as error:
            loud += 1
            assert file.name in str(error), error
            assert not in_last
        else:
            mended += 1
            assert left == list(range(23 if in_last else 24)), f"bit at {at} of {file.name}"
            # bytes that no reader needs (a footer, masks of a commit that is read whole) are found by verify
            assert in_last or not verify(path).ok, f"bit at {at} of {file.name}"
        assert file.read_bytes() == raw
        file.write_bytes(good[file])
    assert loud > 50
    assert mended > 0


def test_p12_a_follower_is_told_of_damage_too(killed: Path, tmp_path: Path) -> None:
    path = copy(killed, tmp_path / "log")
    last = segments_of(path)[-1]
    raw = bytearray(last.read_bytes())
    raw[300] ^= 1
    last.write_bytes(raw)
    with EventLog.open(path, read_only=True) as log:
        seen: list[int] = []
        with pytest.raises(Corrupt, match=last.name):
            seen.extend(e.seq for e in log.follow(timeout=1))  # what came before the error counts
        assert seen == list(range(1, int(last.stem)))


def _remove(index: int):  # type: ignore[no-untyped-def]
    return lambda path, other: segments_of(path)[index].unlink()


HANDS = {
    "first missing": _remove(0),
    "middle missing": _remove(1),
    "renamed": lambda path, other: segments_of(path)[1].rename(path / "segments" / f"{5:020d}.seg"),
    "misspelled": lambda path, other: segments_of(path)[1].rename(path / "segments" / "9.seg"),
    "of another log": lambda path, other: shutil.copy(segments_of(other)[1], segments_of(path)[1]),
    "doubled": lambda path, other: shutil.copy(segments_of(path)[1], path / "segments" / f"{4:020d}.seg"),
    "swapped": lambda path, other: _swap(*segments_of(path)[:2]),
    "sealed one cut at a commit": lambda path, other: _cut_at_last_frame(segments_of(path)[1]),
    "sealed one empty": lambda path, other: segments_of(path)[1].write_bytes(b""),
    "a symbolic link": lambda path, other: _link(segments_of(path)[1], os.symlink),
    "a hard link": lambda path, other: _link(segments_of(path)[1], os.link),
    "a fifo": lambda path, other: _fifo(segments_of(path)[1]),
}


def _swap(one: Path, two: Path) -> None:
    a, b = one.read_bytes(), two.read_bytes()
    one.write_bytes(b)
    two.write_bytes(a)


def _cut_at_last_frame(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: data.rindex(b"\xf5evf")])


def _fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _link(file: Path, how) -> None:  # type: ignore[no-untyped-def]
    away = file.parent.parent / "elsewhere"
    file.rename(away)
    how(away, file)


@pytest.mark.parametrize("hand", list(HANDS))
def test_p13_a_segment_set_that_is_not_whole_is_refused(killed: Path, tmp_path: Path, hand: str) -> None:
    path, other = copy(killed, tmp_path / "log"), fill(tmp_path / "other", 24)
    HANDS[hand](path, other)
    cold(path)
    before = snapshot(path / "segments")
    if hand == "doubled":  # all that belongs to the log is there and in order; what lies beside it is for verify to say
        assert found(path, read_only=True) == list(range(24))
    else:
        with pytest.raises((Corrupt, UnsafeLog)):
            found(path, read_only=True)
    assert not verify(path).ok
    try:
        EventLog.open(path).close()
    except Corrupt:
        assert snapshot(path / "segments") == before, "refused, and changed all the same"


LEFTOVERS = ["log.json.tmp", "segments/00000000000000000001.seg.80.1.torn", "segments/x.tmp", "snapshots", "owners"]


@pytest.mark.parametrize("leftover", LEFTOVERS)
def test_p13_leftovers_do_no_harm(killed: Path, tmp_path: Path, leftover: str) -> None:
    path = copy(killed, tmp_path / "log")
    (path / leftover).write_bytes(b"half a thing")
    assert found(path) == list(range(24))
    assert verify(path).ok


@pytest.mark.parametrize("content", [b"", b"\0" * 80, b"\0" * 4096, None])
def test_p13_an_unfinished_last_segment_is_begun_again(killed: Path, tmp_path: Path, content: bytes | None) -> None:
    """A crash during rotation: the successor is empty, zeros, or a header and nothing else."""
    path = copy(killed, tmp_path / "log")
    last = segments_of(path)[-1]
    last.write_bytes(last.read_bytes()[:80] if content is None else content)
    left = int(last.stem) - 1
    assert found(path, read_only=True) == list(range(left))
    with EventLog.open(path) as log:
        assert ns(log) == list(range(left))
        log.commit(event(left))
    assert found(path) == list(range(left + 1))
    assert verify(path).ok


def test_p14_recovery_killed_at_every_write_and_cut_twice(killed: Path, tmp_path: Path) -> None:
    if (why := strace.why_not()) is not None:
        pytest.skip(why)
    code = "import sys\nfrom eventlog import *\nwith EventLog.open(sys.argv[1]) as log: print(len(list(log.read())))"
    torn = copy(killed, tmp_path / "torn")
    last = segments_of(torn)[-1]
    data = last.read_bytes()
    end = len(data.rstrip(b"\0"))
    last.write_bytes(data[: end - 40] + b"rubbish" * 9)
    struck_at = 0
    for call in ("pwrite64", "ftruncate"):
        for nth in range(1, 12):
            path = copy(torn, tmp_path / "log")
            files = [path / "lock", segments_of(path)[-1], path / "segments" / f"{last.name}.{data.rindex(bytes([0xF5]) + b'evf')}.1.torn"]
            struck = False
            for _ in range(2):  # and the recovery of the recovery
                _, hit = strace.inject([sys.executable, "-c", code, str(path)], call, "signal=KILL", nth, on=files)
                struck = struck or hit
            assert found(path) == list(range(23)), f"killed at {call} {nth}"
            assert found(path) == list(range(23))
            struck_at += struck
            if not struck:
                break
    assert struck_at > 2


READ = """
import sys
from eventlog import *
from eventlog.audit import verify
from eventlog.projections import COUNTS, View, fold
with EventLog.open(sys.argv[1], read_only=True) as log:
    seqs = [e.seq for e in log.read()]
    assert seqs == list(range(1, len(seqs) + 1)) and len(seqs) >= 24, seqs
    assert len(list(log.follow(timeout=0))) >= 24 and log.wait(0, 0) >= 24
    fold(COUNTS, log), View(log, COUNTS).state
    log.head.text, log.segments(), log.owned("x")
    try: log.commit(Event("t", {}))
    except ReadOnly: pass
    else: raise SystemExit("written")
assert verify(sys.argv[1]).ok
print("read")
"""


@pytest.mark.parametrize("state", ["closed", "killed", "torn", "no lock"])
def test_p15_reading_changes_not_a_byte_name_or_time(killed: Path, tmp_path: Path, state: str) -> None:
    path = fill(tmp_path / "log", 24) if state == "closed" else copy(killed, tmp_path / "log")
    if state == "torn":
        last = segments_of(path)[-1]
        last.write_bytes(last.read_bytes().rstrip(b"\0") + b"\0\0\0\0\0\0\0rubbish")
    if state == "no lock":
        (path / "lock").unlink()
    before = snapshot(path)
    assert python(READ, path).stdout == "read\n"
    assert snapshot(path) == before


def test_p15_another_user_reads_a_directory_that_he_may_not_write(killed: Path) -> None:
    needs_root("being somebody else")
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o755)
        path = copy(killed, Path(home) / "log")
        for item in [path, *path.rglob("*")]:
            item.chmod(0o555 if item.is_dir() else 0o444)
        before = snapshot(path)

        def read() -> None:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            with EventLog.open(path, read_only=True) as log:
                assert ns(log) == list(range(24))
                assert len(list(log.follow(timeout=0))) == 24
            assert verify(path).ok
            for create in (True, False):
                with pytest.raises(UnsafeLog):
                    EventLog.open(path, create=create)

        assert in_child(read) == 0
        assert snapshot(path) == before


def test_p15_a_read_only_mount_beside_a_live_writer(tmp_path: Path) -> None:
    fill(tmp_path / "log", 24)
    code = tmp_path / "read.py"
    code.write_text(READ)
    script = 'mkdir "$2"; mount --bind "$1" "$2"; mount -o remount,ro,bind "$2"; for n in 1 2 3; do "$0" "$3" "$2"; done'
    with EventLog.open(tmp_path / "log", segment_bytes_max=4096) as log:
        for n in range(24, 40):
            log.commit(event(n), LAZY)
        before = snapshot(tmp_path / "log")
        done = in_mounts(script, tmp_path / "log", tmp_path / "mnt", code)
        assert done.stdout == "read\n" * 3
        after = snapshot(tmp_path / "log")
        assert {name: state for name, state in after.items() if name != "lock"} == {k: v for k, v in before.items() if k != "lock"}
        log.commit(event(40))
        assert ns(log) == list(range(41))


def test_p15_a_reader_opens_nothing_for_writing(killed: Path, tmp_path: Path) -> None:
    """As the kernel sees it: no open below the log with O_CREAT, O_WRONLY or O_RDWR, no call that changes anything."""
    if (why := strace.why_not()) is not None:
        pytest.skip(why)
    path = copy(killed, tmp_path / "log")
    run, _ = strace.record([sys.executable, "-c", READ, str(path)], tmp_path)
    changes = [op for op in run.ops if type(op).__name__ not in ("Sync", "Ack", "Nothing")]
    assert changes == []


@pytest.mark.parametrize("what", ["log.json", "frame", "header"])
def test_p16_a_newer_format_is_refused_and_not_touched(killed: Path, tmp_path: Path, what: str) -> None:
    path = copy(killed, tmp_path / "log")
    last = segments_of(path)[-1]
    if what == "log.json":
        said = json.loads((path / "log.json").read_text())
        (path / "log.json").write_text(json.dumps(said | {"format": 2}))
    elif what == "frame":
        forge(last, b"{}", events=0, kind=77, masks=ALL_NAMES)
    else:
        from zlib import crc32

        head = bytearray(last.read_bytes()[:76])
        head[8] = 2
        last.write_bytes(bytes(head) + crc32(head).to_bytes(4, "little") + last.read_bytes()[80:])
    before = snapshot(path)
    for create in (True, False):
        with pytest.raises(UnsupportedFormat):
            EventLog.open(path, create=create)
    with pytest.raises(UnsupportedFormat):
        found(path, read_only=True)
    assert snapshot(path)["segments/" + last.name] == before["segments/" + last.name]
