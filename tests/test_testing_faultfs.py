"""The fault file system does what a bad disk does, no more and no less."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from eventlog.testing import FaultFileSystem, sweep
from eventlog.testing.cuts import random_state
from eventlog.testing.disk import SECTOR, Disk


def opened(fs: FaultFileSystem, name: str = "f", flags: int = os.O_RDWR | os.O_CREAT) -> tuple[int, int]:
    directory = fs.open(str(fs.root), os.O_RDONLY | os.O_DIRECTORY)
    return directory, fs.open(name, flags, dir_fd=directory)


def test_what_was_synced_survives_every_cut_and_the_rest_comes_in_every_legal_way(tmp_path: Path) -> None:
    kept, lost = b"k" * 700, b"l" * 1500
    seen: set[bytes | None] = set()
    for seed in range(120):
        fs = FaultFileSystem(tmp_path / f"{seed}", seed=seed)
        directory, fd = opened(fs)
        fs.pwrite(fd, kept, 0)
        fs.fdatasync(fd)
        if seed % 2:
            fs.fsync(directory)
        fs.pwrite(fd, lost, len(kept))
        after = fs.power_cut()
        path = after.root / "f"
        content = path.read_bytes() if path.exists() else None
        if seed % 2:
            assert content is not None, "a synced name survives"
        if content is not None:
            assert content.startswith(kept), "synced bytes survive"
            assert set(content[len(kept) :]) <= {0, ord("l")}, "nothing appears that nobody wrote"
        seen.add(content)
        assert after.boot_id() != fs.boot_id()
    assert None in seen, "the name was not synced in half of the runs"
    assert kept in seen, "the unsynced write was lost whole"
    assert kept + lost in seen, "it survived whole"
    assert kept + bytes(len(lost)) in seen, "its size survived without it"
    holes = [c for c in seen if c and b"\0" in c[700:] and b"l" in c[700:]]
    assert holes, "it survived in part, with holes"
    assert all((c.index(b"l", 700) % SECTOR == 0 or c.index(b"l", 700) == 700) for c in holes), "torn at sectors"


def test_renames_and_removals_need_the_directory_sync(tmp_path: Path) -> None:
    outcomes = set()
    for seed in range(150):
        fs = FaultFileSystem(tmp_path / f"{seed}", seed=seed)
        directory, fd = opened(fs, "old")
        fs.close(opened(fs, "gone")[1])
        fs.fsync(directory)
        fs.rename("old", "new", dir_fd=directory)
        fs.unlink("gone", dir_fd=directory)
        fs.fsync(fd)  # of the file: says nothing about names
        outcomes.add(frozenset(os.listdir(fs.power_cut().root)))
        fs.close(fd)
    assert outcomes == {frozenset(names) for names in (("old", "gone"), ("new", "gone"), ("old",), ("new",))}


def test_a_cut_is_repeated_by_its_seed_and_kills_the_old_disk(tmp_path: Path) -> None:
    contents = []
    for run in range(2):
        fs = FaultFileSystem(tmp_path / f"{run}", seed=7)
        directory, fd = opened(fs)
        fs.fsync(directory)
        for block in range(40):
            fs.pwrite(fd, b"%04d" % block * 128, block * 512)
        contents.append((fs.power_cut(tmp_path / f"{run}.cut").root / "f").read_bytes())
        with pytest.raises(OSError, match=r"power is off \(seed 7\)"):
            fs.pwrite(fd, b"x", 0)
        fs.close(fd)
    assert contents[0] == contents[1]
    assert FaultFileSystem(tmp_path / "0.cut", seed=1).power_cut(same_boot=True).seed == 1


def test_a_failed_sync_forgets_the_pages_and_the_next_one_succeeds_over_the_hole(tmp_path: Path) -> None:
    fs = FaultFileSystem(tmp_path / "disk")
    directory, fd = opened(fs)
    fs.fsync(directory)
    fs.pwrite(fd, b"good", 0)
    fs.fdatasync(fd)
    fs.fail("fdatasync")
    fs.pwrite(fd, b"lost", 4)
    with pytest.raises(OSError, match="injected") as caught:
        fs.fdatasync(fd)
    assert caught.value.errno == errno.EIO
    assert str(fs.seed) in str(caught.value)
    fs.fdatasync(fd)
    assert fs.pread(fd, 8, 0) == b"goodlost", "the page cache still shows it"
    fs.pwrite(fd, b"more", 8)
    reader = fs.open("f", os.O_RDONLY, dir_fd=directory)
    fs.drop_cache(reader)
    assert fs.pread(fd, 12, 0) == b"good\0\0\0\0more", "clean pages come from the disk, dirty ones stay"
    assert fs.calls["fdatasync"] == 3


def test_a_failed_sync_is_told_once_to_every_descriptor_that_was_open(tmp_path: Path) -> None:
    fs = FaultFileSystem(tmp_path / "disk")
    directory, one = opened(fs)
    two = fs.open("f", os.O_RDONLY, dir_fd=directory)
    fs.pwrite(one, b"lost", 0)
    fs.fail("fdatasync")
    with pytest.raises(OSError, match="injected"):
        fs.fdatasync(one)
    three = fs.open("f", os.O_RDWR, dir_fd=directory)
    fs.fdatasync(three)
    fs.fdatasync(one)
    with pytest.raises(OSError, match="told to another"):
        fs.fdatasync(two)
    fs.fdatasync(two)


def test_eviction_shows_what_a_failed_sync_lost_without_being_asked(tmp_path: Path) -> None:
    fs = FaultFileSystem(tmp_path / "disk")
    _, fd = opened(fs)
    fs.pwrite(fd, b"lost", 0)
    fs.fail("fsync", errno=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        fs.fsync(fd)
    fs.evict()
    assert fs.pread(fd, 4, 0) == bytes(4)


def test_planned_failures_strike_the_named_call_for_as_long_as_asked(tmp_path: Path) -> None:
    fs = FaultFileSystem(tmp_path / "disk")
    _, fd = opened(fs)
    fault = fs.fail("pwrite", nth=2, errno=errno.EDQUOT, times=2)
    assert fs.pwrite(fd, b"ab", 0) == 2
    for _ in range(2):
        with pytest.raises(OSError, match=r"EDQUOT on pwrite no\. 2"):
            fs.pwrite(fd, b"cd", 2)
    assert fs.pwrite(fd, b"ef", 2) == 2
    assert fault.injected == 2
    fs.fail("pwrite", times=None)
    for _ in range(5):
        with pytest.raises(OSError, match="for ever"):
            fs.pwrite(fd, b"x", 0)
    fs.heal()
    fs.short_write(1, nth=2)
    assert [fs.pwrite(fd, b"xyz", 4) for _ in range(3)] == [3, 1, 3]
    with pytest.raises(ValueError, match="not a call of the seam"):
        fs.fail("write")
    fs.flip("f", 0, bit=5)
    assert fs.pread(fd, 4, 0) == b"Abef"
    fs.fdatasync(fd)
    assert fs.disk.tree(lambda d: d.cache, lambda f: bytes(f.disk))["f"] == b"Abefxyz"


def test_a_refused_close_still_frees_the_descriptor(tmp_path: Path) -> None:
    fs = FaultFileSystem(tmp_path / "disk")
    before = len(os.listdir("/proc/self/fd"))
    directory, fd = opened(fs)
    fs.fail("close", times=None)
    for each in (directory, fd):
        with pytest.raises(OSError, match="close"):
            fs.close(each)
    assert len(os.listdir("/proc/self/fd")) == before


def test_locks_are_real_between_handles(tmp_path: Path) -> None:
    fs = FaultFileSystem(tmp_path / "disk")
    directory, one = opened(fs)
    two = fs.open("f", os.O_RDWR, dir_fd=directory)
    fs.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(BlockingIOError):
        fs.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert fs.lock_byte(one, 5)
    assert fs.byte_is_locked(two, 5)
    assert not fs.lock_byte(two, 5)
    fs.close(one)
    assert fs.lock_byte(two, 5)


def test_an_inode_number_that_is_used_again_is_another_file(tmp_path: Path) -> None:
    fs = FaultFileSystem(tmp_path / "disk")
    for round_number in range(20):
        directory, fd = opened(fs)
        fs.fsync(directory)
        assert fs.disk.tree(lambda d: d.disk, lambda f: bytes(f.disk)) == {"f": b""}
        fs.pwrite(fd, b"%d" % round_number, 0)
        fs.fdatasync(fd)
        fs.unlink("f", dir_fd=directory)
        fs.fsync(directory)
        fs.close(fd)
        fs.close(directory)
    assert fs.disk.tree(lambda d: d.disk, lambda f: bytes(f.disk)) == {}


def test_files_made_behind_its_back_are_refused(tmp_path: Path) -> None:
    fs = FaultFileSystem(tmp_path / "disk")
    (fs.root / "foreign").write_bytes(b"x")
    with pytest.raises(AssertionError, match="behind the back"):
        opened(fs, "foreign", os.O_RDONLY)


def test_sweep_fails_each_call_once_and_stops_when_none_is_left(tmp_path: Path) -> None:
    numbers = iter(range(1000))
    make: Callable[[], FaultFileSystem] = lambda: FaultFileSystem(tmp_path / f"{next(numbers)}")  # noqa: E731
    struck = []
    for fs in sweep(make, calls=["open", "pwrite", "fsync"], errnos=[errno.EIO, errno.ENOSPC], times=[1]):
        try:
            _, fd = opened(fs)
            fs.pwrite(fd, b"x", 0)
            fs.pwrite(fd, b"y", 1)
        except OSError:
            struck.append((fs.faults[0].call, fs.faults[0].nth, fs.faults[0].errno))
    expected = [(call, nth, number) for call in ("open", "pwrite") for number in (5, 28) for nth in (1, 2)]
    assert struck == expected


def test_truncation_and_growth_are_pending_like_anything_else(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "f").write_bytes(b"a" * 1000)
    sizes = set()
    for seed in range(40):
        disk = Disk.load(tmp_path / "disk")[0]
        fs = FaultFileSystem(tmp_path / "disk", seed=seed)
        assert fs.disk.nodes == disk.nodes
        _, fd = opened(fs)
        fs.ftruncate(fd, 100)
        fs.fallocate(fd, 0, 2000)
        content = random_state(fs.disk, random.Random(seed))["f"]
        assert content is not None
        assert content[:100] == b"a" * 100
        assert set(content[100:]) <= {0, ord("a")}
        sizes.add(len(content))
        fs.fdatasync(fd)
        assert random_state(fs.disk, random.Random(seed))["f"] == b"a" * 100 + bytes(1900)
        fs.ftruncate(fd, 0)
        fs.pwrite(fd, b"a" * 1000, 0)
    assert sizes == {100, 1000, 2000}
