"""Many processes on one log, killed and stopped at random: dense, complete, in each writer's order (reliability P20,
P22, P23, P26)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from eventlog import Corrupt, EventLog
from eventlog.audit import verify
from eventlog.repair import repair

WRITERS = Path(__file__).with_name("writers.py")


def start(path: Path, name: str, threads: int, commits: int, seed: int, large: int, segment: int = 8192) -> subprocess.Popen[str]:
    arguments = [str(path), name, str(threads), str(commits), str(seed), str(large), str(segment)]
    return subprocess.Popen([sys.executable, str(WRITERS), *arguments], stdout=subprocess.PIPE, text=True)


def check(path: Path, acknowledged: list[str], seed: int) -> None:
    """Every acknowledged commit is there, seqs are dense, and each writer's commits stand in its order, whole."""
    with EventLog.open(path) as log:
        events = list(log.read())
    assert [e.seq for e in events] == list(range(1, len(events) + 1)), f"seed {seed}"
    per_writer: dict[str, list[tuple[int, int]]] = {}
    for event in events:
        per_writer.setdefault(event.stream, []).append((event.data["n"], event.data["part"]))
    for writer, done in per_writer.items():
        assert done == sorted(done), f"order of {writer}, seed {seed}"
        assert len(done) == len(set(done)), f"a double event of {writer}, seed {seed}"
        assert sorted({n for n, _ in done}) == list(range(max(n for n, _ in done) + 1)), f"a gap in {writer}, seed {seed}"
    at = {e.seq: (e.stream, e.data["n"]) for e in events}
    for line in acknowledged:
        writer, n, first, last = line.split()
        for seq in range(int(first), int(last) + 1):
            assert at.get(seq) == (writer, int(n)), f"acknowledged and lost: {line}, seed {seed}"
    audit = verify(path)
    assert audit.ok, (seed, audit.problems)


def run(path: Path, processes: int, threads: int, commits: int, seed: int, large: int, *, kill: int, stop: bool) -> None:
    chance = random.Random(seed)
    children = [start(path, f"p{n}", threads, commits, seed, large) for n in range(processes)]
    acknowledged: list[str] = []

    def collect(child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line.endswith("\n"):
                acknowledged.append(line)

    collectors = [threading.Thread(target=collect, args=(child,)) for child in children]
    for collector in collectors:
        collector.start()
    victims = chance.sample(children, kill)
    for victim in victims:
        time.sleep(chance.uniform(0.1, 0.5))
        victim.send_signal(signal.SIGKILL)
    while stop and any(child.poll() is None for child in children):
        child = chance.choice(children)
        if child.poll() is None:
            child.send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.0, 0.05))
            child.send_signal(signal.SIGCONT)
        time.sleep(0.02)
    codes = [child.wait() for child in children]
    for collector in collectors:
        collector.join()
    for child in children:
        assert child.stdout is not None
        child.stdout.close()
    assert all(
        code == (-9 if child in victims else 0) or (child in victims and code == 0) for child, code in zip(children, codes, strict=True)
    )
    check(path, acknowledged, seed)


@pytest.mark.parametrize("round_number", range(10))
def test_four_processes_with_two_threads_one_of_them_killed(tmp_path: Path, round_number: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    run(tmp_path / "log", 4, 2, 500 if round_number == 0 else 150, seed, 400, kill=1, stop=False)


def test_eight_processes_large_and_small_killed_and_stopped_with_followers(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    path = tmp_path / "log"
    EventLog.open(path).close()
    seen: list[list[int]] = [[], []]
    done = threading.Event()

    def follow(mine: list[int]) -> None:
        with EventLog.open(path, read_only=True) as log:
            while not done.is_set():
                mine.extend(event.seq for event in log.follow(mine[-1] if mine else 0, timeout=0.2))
            mine.extend(event.seq for event in log.read(mine[-1] if mine else 0))

    followers = [threading.Thread(target=follow, args=(mine,)) for mine in seen]
    for follower in followers:
        follower.start()
    try:
        run(path, 8, 1, 120, seed, 200_000, kill=3, stop=True)
    finally:
        done.set()
        for follower in followers:
            follower.join()
    with EventLog.open(path, read_only=True) as log:
        head = int(log.head)
    for mine in seen:
        assert mine == list(range(1, head + 1)), f"seed {seed}"


def test_a_stopped_holder_of_the_lock_blocks_nobody_for_ever(tmp_path: Path) -> None:
    """P23: waiters time out, readers go on, and killing the stopped one frees the lock at once."""
    from eventlog import Event, LockTimeout

    path = tmp_path / "log"
    with EventLog.open(path, lock_timeout=0.1) as log:
        log.commit(Event("a", {}))
        code = "import fcntl,sys,os,signal; f=open(sys.argv[1]); fcntl.flock(f,2); print(flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
        holder = subprocess.Popen([sys.executable, "-c", code, str(path / "lock")], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(LockTimeout):
            log.commit(Event("a", {}))
        assert [e.seq for e in log.read()] == [1]
        holder.kill()
        holder.wait()
        holder.stdout.close()
        assert log.commit(Event("a", {})).first == 2


def test_a_writer_that_slept_through_rotations_catches_up(tmp_path: Path) -> None:
    """P22: the other process appends, rotates and seals; our handle never writes into a sealed segment."""
    path = tmp_path / "log"
    from eventlog import Durability, Event

    with EventLog.open(path, segment_bytes_max=4096) as log:
        for n in range(5):
            log.commit(Event("mine", {"n": n}), list(Durability)[n % 2])
            child = start(path, f"c{n}", 1, 80, n, 400)
            assert child.stdout is not None
            assert len(child.stdout.readlines()) == 80
            assert child.wait() == 0
            child.stdout.close()
        assert [e.data["n"] for e in log.read(types={"mine"})] == [0, 1, 2, 3, 4]
        assert len(log.segments()) > 10
    assert verify(path).ok


@pytest.mark.parametrize("round_number", range(3))
def test_a_live_copy_opens_as_a_prefix(tmp_path: Path, round_number: int) -> None:
    """P27: `cp -r` of a log that is being written (not over a rotation: then a copy may hold the next segment and half of this one).

    cp reads page after page: it may have a page before a commit reached it, and the next one behind that. Such a copy has a hole in
    front of confirmed bytes, and is refused, never opened short; repair makes it the prefix. Rare: once in some hundred copies.
    """
    path = tmp_path / "log"
    child = start(path, "p", 2, 400, round_number, 400, 1 << 24)
    try:
        while not (path / "log.json").exists():
            time.sleep(0.01)
        for n in range(5):
            time.sleep(0.05)
            copy = tmp_path / f"copy{n}"
            subprocess.run(["cp", "-r", str(path), str(copy)], check=True)
            try:
                try:
                    EventLog.open(copy).close()
                except Corrupt:
                    assert repair(copy).lost_from is not None
                with EventLog.open(copy) as log:
                    seqs = [e.seq for e in log.read()]
            finally:
                assert child.poll() is None or child.returncode == 0
            assert seqs == list(range(1, len(seqs) + 1))
            assert verify(copy).ok
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
