"""Every state that a power cut may leave behind a real log, checked: nothing acknowledged is lost (P1, P3, P9, P10,
P11, P14)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from eventlog import Durability, Event, EventLog
from eventlog.audit import verify
from eventlog.testing import TrackedFileSystem, check, crash_states, recording, strace
from eventlog.testing.drill import Rebooted, go_on, look, one_life, open_log, recover


@pytest.mark.parametrize("seed", [1, 2])
def test_one_life(tmp_path: Path, seed: int) -> None:
    fs = TrackedFileSystem(tmp_path / "disk")
    one_life(fs)
    report = check(crash_states(fs, seed=seed), look, tmp_path / "work")
    print(f"{report.states} crash states, {report.acks} promises, seed {seed}")
    assert report.states > 200


def test_double_crash(tmp_path: Path) -> None:
    fs = TrackedFileSystem(tmp_path / "disk")
    one_life(fs, 5)
    report = check(crash_states(fs, seed=3), look, tmp_path / "work", recover=recover, recover_every=7, seed=3)
    print(f"{report.states} crash states, recovery crashed as well")
    assert report.states > 1000


def test_a_rotation_that_writes_an_index(tmp_path: Path) -> None:
    """Segments of many small commits, whose seal comes with an index; behind each cut, too, a read that seeks misses nothing (P14)."""
    fs = TrackedFileSystem(tmp_path / "disk")
    log = EventLog.open(fs.root / "log", fs=fs, segment_bytes_max=4096, batch_window_ms=600_000)
    for number in range(46):
        durability = Durability.BATCHED if number % 4 else Durability.IMMEDIATE
        commit = log.commit(Event("rare" if number % 9 == 0 else "common", {"n": number}, f"s{number % 12}"), durability)
        if durability is Durability.IMMEDIATE:
            fs.ack(commit.last)
    run = recording(fs)
    assert len(log.segments()) == 2
    log.close()
    wants: list[dict[str, list[str]]] = [
        {"types": ["rare"]},
        {"streams": ["s3"]},
        {"types": ["common"], "streams": ["s1"]},
        {"types": ["x"]},
    ]

    def all_is_found(path: Path, acks: Sequence[object]) -> None:
        for grow in (45, 0):  # so that the segment that was cut is sealed in its turn
            with EventLog.open(path / "log", fs=Rebooted(), segment_bytes_max=4096) as log:
                events = list(log.read())
                assert [event.seq for event in events] == list(range(1, len(events) + 1))
                assert len(events) >= max((int(str(ack)) for ack in acks), default=0)
                for want in wants:
                    types, streams = want.get("types"), want.get("streams")
                    right = [e for e in events if (types is None or e.type in types) and (streams is None or e.stream in streams)]
                    assert list(log.read(types=types, streams=streams)) == right
                for _ in range(grow):
                    log.commit(Event("x", {}), Durability.BATCHED)
        assert verify(path / "log").ok

    report = check(crash_states(run, seed=6, scattered=1), all_is_found, tmp_path / "work")
    print(f"{report.states} crash states")
    assert report.states > 200


def test_a_second_process_after_a_kill_in_the_same_boot(tmp_path: Path) -> None:
    """What a killed process left in the page cache is handed out by the next one: then it must be durable (P8)."""
    fs = TrackedFileSystem(tmp_path / "disk")
    one_life(fs, 2)
    killed = open_log(fs.root / "log", fs)
    for _ in go_on(killed, 2, Durability.BATCHED):
        pass
    recover(fs)  # by another handle: the first one never syncs and never closes
    run = recording(fs)
    killed.close()
    report = check(crash_states(run, seed=4), look, tmp_path / "work")
    print(f"{report.states} crash states")
    assert report.states > 100


@pytest.mark.parametrize("kinds", [{"files": True}, {"directories": True}], ids=["files", "directories"])
def test_this_test_would_notice_a_missing_sync(tmp_path: Path, kinds: dict[str, bool]) -> None:
    fs = TrackedFileSystem(tmp_path / "disk")
    one_life(fs, 5)
    with pytest.raises(AssertionError, match="break a promise"):
        check(crash_states(recording(fs).without_syncs(**kinds), seed=5), look, tmp_path / "work")


def several(path: str, names: list[str], commits: int) -> None:
    """The program that is recorded: a process for each name, all writing at once."""
    command = [sys.executable, __file__, path]
    children = [subprocess.Popen([*command, name, str(commits)]) for name in names]
    assert [child.wait() for child in children] == [0] * len(names)


def one(path: str, name: str, commits: int) -> None:
    with EventLog.open(path, segment_bytes_max=4096, batch_window_ms=600_000) as log:
        for number in range(commits):
            lazy = number % 3 == 2
            log.commit(
                [Event("t", {"n": number, "i": i, "text": "x" * 400}, name) for i in range(2)],
                Durability.BATCHED if lazy else Durability.IMMEDIATE,
            )
            if not lazy:
                print(f"ACK {name} {number}", flush=True)


def streams_are_whole(path: Path, acks: Sequence[object]) -> None:
    for _ in range(2):  # the second opener must find what the first one left
        with EventLog.open(path / "log", fs=Rebooted(), segment_bytes_max=4096) as log:
            events = list(log.read())
            assert [event.seq for event in events] == list(range(1, len(events) + 1)), "seqs are not dense"
            seen: dict[str, list[tuple[int, int]]] = {}
            for event in events:
                seen.setdefault(event.stream, []).append((event.data["n"], event.data["i"]))
            for name, found in seen.items():
                assert found == [(number, i) for number in range(len(found) // 2) for i in range(2)], f"{name}: not a prefix"
            for ack in acks:
                name, number = str(ack).split()
                assert len(seen.get(name, ())) >= 2 * (int(number) + 1), f"acknowledged and lost: {ack}"


def test_three_real_processes_recorded_by_strace(tmp_path: Path) -> None:
    if (why := strace.why_not()) is not None:
        pytest.skip(why)
    root = tmp_path / "disk"
    root.mkdir()
    command = [sys.executable, __file__, str(root / "log"), "a,b,c", "6"]
    run, _ = strace.record(command, root, parse_ack=str)
    report = check(crash_states(run, seed=6, scattered=2), streams_are_whole, tmp_path / "work")
    print(f"{report.states} crash states of three processes, {report.acks} promises")
    assert report.states > 200
    assert report.acks == 12
    with pytest.raises(AssertionError, match="break a promise"):
        check(crash_states(run.without_syncs(files=True), seed=6, scattered=2), streams_are_whole, tmp_path / "work")


if __name__ == "__main__":
    if "," in sys.argv[2]:
        several(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]))
    else:
        one(sys.argv[1], sys.argv[2], int(sys.argv[3]))
