"""A patient handle (an infinite batch window): what it finds unconfirmed, and what it writes BATCHED, waits for its first sync."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from eventlog import Durability, Event, EventLog, OutcomeUnknown
from eventlog.fs import REAL
from eventlog.testing import TrackedFileSystem, run_child

NOTE = Event("note.added", {"text": "x" * 200})


def left_unsynced(path: Path, count: int = 3) -> None:
    """A process writes BATCHED events and is killed."""
    code = (
        "import os, signal, sys\n"
        "from eventlog import Durability, Event, EventLog\n"
        "log = EventLog.open(sys.argv[1], batch_window_ms=float('inf'))\n"
        f"for n in range({count}): log.commit(Event('note.added', {{'n': n}}), Durability.BATCHED)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert run_child(["-c", code, str(path)]).returncode == -9


def patient(path: Path, fs: TrackedFileSystem) -> EventLog:
    return EventLog.open(path, batch_window_ms=math.inf, fs=fs)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    EventLog.open(tmp_path / "log").close()
    return tmp_path / "log"


def test_it_syncs_nothing_until_it_is_asked_and_then_once(path: Path) -> None:
    left_unsynced(path)
    fs = TrackedFileSystem(path.parent, boot_id=REAL.boot_id())
    with patient(path, fs) as log:
        log.commit(NOTE, Durability.BATCHED)
        assert fs.calls["fdatasync"] == 0
        log.flush()
        assert fs.calls["fdatasync"] == 1
        log.commit(NOTE, Durability.BATCHED)
        assert fs.calls["fdatasync"] == 1
    assert fs.calls["fdatasync"] == 2
    fs = TrackedFileSystem(path.parent, boot_id=REAL.boot_id())
    with EventLog.open(path, fs=fs) as log:
        assert fs.calls["fdatasync"] == 0, "all of it was confirmed"
        assert int(log.head) == 5


def test_an_impatient_one_confirms_at_opening(path: Path) -> None:
    left_unsynced(path)
    fs = TrackedFileSystem(path.parent, boot_id=REAL.boot_id())
    with EventLog.open(path, fs=fs):
        assert fs.calls["fdatasync"] == 1


def test_what_the_disk_has_lost_is_noticed_by_its_first_sync(path: Path) -> None:
    """The kernel forgets pages that it could not write, and a later sync succeeds over the hole."""
    left_unsynced(path)
    log = EventLog.open(path, batch_window_ms=math.inf)
    log.commit(NOTE, Durability.BATCHED)
    segment = path / "segments" / "00000000000000000001.seg"
    data = segment.read_bytes()
    fd = os.open(segment, os.O_WRONLY)
    at = data.index(b'{"n":1}')
    os.pwrite(fd, bytes(7), at)
    os.close(fd)
    with pytest.raises(OutcomeUnknown, match="the disk did not confirm"):
        log.flush()
    with pytest.raises(Exception, match="did not confirm"):
        log.commit(NOTE)
    with pytest.raises(OutcomeUnknown):
        log.close()
    with EventLog.open(path) as again:
        assert [event.data.get("n") for event in again.read()] == [0]
        assert "cut" in again.mended[0]


def test_a_segment_is_sealed_only_when_it_is_confirmed(path: Path) -> None:
    left_unsynced(path)
    with EventLog.open(path, batch_window_ms=math.inf, segment_bytes_max=4 << 10) as log:
        for _ in range(40):
            log.commit(NOTE, Durability.BATCHED)
        assert len(log.segments()) > 2
    with EventLog.open(path, read_only=True) as log:
        assert len(list(log.read())) == 43
