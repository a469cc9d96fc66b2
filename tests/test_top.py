"""`eventlog top`: the model given looks, the screen given figures, and the program on a real terminal beside a real writer."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eventlog import Durability, Event, EventLog, LogNotFound
from eventlog.cli import main
from eventlog.cli.stats import age, amount
from eventlog.cli.top_screen import Screen, Waits, render
from eventlog.frames import EVENTS, Frame
from eventlog.probe import DiskProbe, ProbeFailed
from eventlog.projections import effect_events as ev
from eventlog.projections.intent import EffectClass, IntentId
from eventlog.projections.traffic import UNPROVED_MAX, Histogram, Interval, Traffic, by_age
from eventlog.survey import Gauge, Look

DOOR = [sys.executable, "-m", "eventlog.cli"]
HOSTILE = "\x1b]0;owned\x07\u202eevil\n"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
MS = 1_000_000


# -- the model: given looks, when they are taken, then these are the figures ------------------------------------------------------


def frame(offset: int, end: int, at_ms: float, durable: int = 0, events: int = 1) -> Frame:
    return Frame(offset, end, 1, events, EVENTS, durable, round(at_ms * MS), None, 1, 1)


def look(durable: int, *frames: Frame, segment: int = 1, moved: bool = False, frames_of: int | None = None) -> Look:
    of = segment if frames_of is None else frames_of
    return Look(segment, 10**6, 1, durable, [(of, one) for one in frames], moved)


def lags(*looks: tuple[float, Look], untimed: tuple[int, ...] = ()) -> tuple[list[float], int]:
    """The lags in ms that these looks, each at so many ms, show; and how many commits wait for a proof."""

    class Kept(Histogram):
        def add(self, seconds: float) -> None:
            found.append(round(seconds * 1000, 6))
            super().add(seconds)

    found: list[float] = []
    traffic = Traffic(0.0)
    traffic.lags = Kept()
    for number, (at_ms, seen) in enumerate(looks):
        traffic.take(seen, round(at_ms * MS), timed=number not in untimed)
    return found, traffic.unproved(round(looks[-1][0] * MS))[0]


def test_given_a_commit_that_the_word_covers_when_first_seen() -> None:
    assert lags((102, look(200, frame(100, 200, 100)))) == ([2.0], 0)


def test_given_a_commit_that_is_covered_only_at_a_later_look() -> None:
    assert lags((101, look(100, frame(100, 200, 100))), (103, look(199)), (105, look(200))) == ([5.0], 0)


def test_given_a_later_frame_that_says_so_then_its_time_counts_not_that_of_the_look() -> None:
    seen = look(100, frame(100, 200, 100), frame(200, 300, 100.3, durable=200), frame(300, 400, 101, durable=200))
    assert lags((150, seen)) == ([0.3], 2)


def test_given_a_word_that_is_behind_then_nothing_is_proved() -> None:
    assert lags((101, look(0, frame(100, 200, 100), frame(200, 300, 100)))) == ([], 2)


def test_given_a_new_segment_then_all_of_the_one_before_it_is_on_disk() -> None:
    assert lags((101, look(0, frame(100, 200, 100))), (104, look(80, segment=2))) == ([4.0], 0)
    in_the_new_one = look(80, frame(80, 180, 103, durable=80), segment=2)
    assert lags((101, look(0, frame(100, 200, 100))), (109, in_the_new_one)) == ([3.0], 1)


def test_given_a_log_that_was_cut_then_what_waited_is_gone() -> None:
    assert lags((101, look(0, frame(100, 200, 100))), (104, look(500, moved=True))) == ([], 0)


def test_given_a_clock_that_was_put_back_then_no_lag_is_negative() -> None:
    assert lags((90, look(200, frame(100, 200, 100))))[1] == 0
    histogram = Histogram()
    histogram.add(-1.0)
    assert (histogram.total, histogram.max_s, histogram.counts[0]) == (1, 0.0, 1)


def test_given_that_nobody_looked_for_a_while_then_no_lag_is_made_up() -> None:
    drawn = look(200, frame(100, 200, 100), frame(200, 300, 140))
    assert lags((150, drawn), (152, look(300)), untimed=(0,)) == ([12.0], 0)


def test_given_no_proof_for_ever_then_memory_stays() -> None:
    traffic = Traffic(0.0)
    traffic.take(look(0, *(frame(100 * n, 100 * n + 100, n) for n in range(UNPROVED_MAX + 5))), 0)
    assert (traffic.unproved(0)[0], traffic.given_up) == (UNPROVED_MAX, 5)


def test_rates_are_of_one_interval() -> None:
    traffic = Traffic(10.0)
    traffic.take(look(400, frame(100, 200, 1, events=5), frame(200, 400, 2)), 3 * MS)
    found = traffic.interval(12.0)
    assert found == Interval(2.0, 2, 6, 300)
    assert [found.per_second(count) for count in (found.commits, found.events, found.bytes)] == [1.0, 3.0, 150.0]
    assert traffic.interval(12.0) == Interval(0.0, 0, 0, 0)
    assert traffic.interval(12.0).per_second(7) == 0.0


def test_a_histogram_tells_shares_by_its_buckets() -> None:
    histogram = Histogram((0.001, 0.01))
    assert histogram.at_most(0.5) is None
    for seconds in [0.0005] * 98 + [0.005, 3.0]:
        histogram.add(seconds)
    assert histogram.counts == [98, 1, 1]
    assert [histogram.at_most(share) for share in (0.5, 0.98, 0.99, 1.0)] == [0.001, 0.001, 0.01, 3.0]
    only = Histogram((1.0,))
    only.add(0.25)
    assert only.at_most(0.99) == 0.25


def test_ages_are_sorted_into_rows() -> None:
    now = 10**18
    ages = [now - round(seconds * 1e9) for seconds in (-5, 3, 9.9, 10, 61, 3599, 86_399, 86_400)]
    assert by_age(ages, now) == {"10s": 3, "1m": 1, "10m": 1, "1h": 1, "1d": 1, "older": 1}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.0s"), (9.94, "9.9s"), (59, "59s"), (61, "1m 1s"), (7260, "2h 1m"), (266_400, "3d 2h")]
)
def test_ages_in_words(seconds: float, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (1 << 60, "1048576 TiB")]
)
def test_amounts_in_words(count: int, text: str) -> None:
    assert amount(count) == text


# -- the screen -----------------------------------------------------------------------------------------------------------------


def screen(**changes: Any) -> Screen:
    measured = Histogram()
    for seconds in [0.0002] * 30 + [0.004]:
        measured.add(seconds)
    given = Screen(
        "/log",
        "id",
        "2026-11-30T12:00:00Z",
        17,
        Interval(2.0, 20, 40, 4096),
        measured,
        3,
        0.25,
        None,
        [("note.added", 900, 40), ("note.closed", 10, 0)],
        0,
        by_age([0, 0], 10**9),
        [Waits("order@1:2", "pay  non_idempotent  indeterminate", 3661.0)],
        [Waits("main#1", "materialized", 12.0)],
        [("main", "pending", "blocked")],
    )
    return given._replace(**changes)


def test_the_screen_has_every_part() -> None:
    lines = render(screen())
    assert lines[0] == "/log  head 17  2026-11-30T12:00:00Z"
    assert lines[1] == "commits 10.0/s   events 20.0/s   bytes 2.0 KiB/s   (over 2.0 s)"
    text = "\n".join(lines)
    assert "    <= 0.25 ms        30  ##############################\n     <= 0.5 ms         0\n" in text
    assert "       <= 5 ms         1  #\n" in text
    assert "of 31: half within 0.25 ms, 99% within 4 ms, the longest 4 ms" in text
    assert "not proved to be on disk yet: 3, the oldest for 0.250 s" in text
    assert "  note.added                          900     20.0/s" in text
    assert "open intents: 2   younger than 10s: 2, 1m: 0, 10m: 0, 1h: 0, 1d: 0; older: 0" in text
    assert "    1h 1m  order@1:2  pay  non_idempotent  indeterminate\n            and 1 more" in text
    assert "     12s  main#1  materialized" in text
    assert "threads: 1\n  main                         pending, its agent is blocked" in text
    assert "probe" not in text
    assert "probe: our own fdatasync" in "\n".join(render(screen(probe=Histogram())))
    assert render(screen(note="probe: No space left on device"))[-1] == "probe: No space left on device"


def test_nothing_on_the_screen_moves_the_cursor() -> None:
    waits = [Waits(HOSTILE * 9, HOSTILE, 1.0)]
    hostile = screen(types=[(HOSTILE, 1, 1)], intents=waits, deliveries=waits, threads=[(HOSTILE, "pending", "idle")])
    lines = render(hostile)
    assert not [line for line in lines if CONTROLS.search(line)]
    assert sum("\\x1b]0;owned\\x07\\u202eevil\\n" in line for line in lines) >= 3


def test_a_small_terminal_gets_fewer_lines_each() -> None:
    many = [Waits(f"order@1:{n}", "pay", 1.0) for n in range(50)]
    types = [(f"t.n{n}", 1, 0) for n in range(50)]
    threads = [(f"thread {n}", "pending", "idle") for n in range(50)]
    full = screen(intents=many, deliveries=many, types=types, types_more=7, threads=threads, ages=by_age([0] * 50, 0))
    assert len(render(full, rows=24)) < len(render(full, rows=200))
    lines = render(full, rows=24)
    for rest in ("and 55 more types", "and 48 more"):
        assert any(rest in line for line in lines), rest


# -- the gauge ------------------------------------------------------------------------------------------------------------------


def test_a_gauge_sees_each_commit_once_over_rotations(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log", segment_bytes_max=4096) as log, Gauge(tmp_path / "log") as gauge:
        assert gauge.look().frames == []
        made, seen = [], []
        for n in range(90):
            made.append(log.commit([Event("a", {"text": "x" * 300})] * (n % 3 + 1), Durability.BATCHED).first)
            if n % 7 == 0 or n == 89:
                found = gauge.look()
                assert not found.moved
                seen += [(segment, one.first) for segment, one in found.frames]
        assert [first for _, first in seen] == made
        assert len({segment for segment, _ in seen}) > 3
        log.flush()
        found = gauge.look()
        assert (found.seq, found.frames) == (int(log.head) + 1, [])
        assert found.durable >= found.end - 64  # all but the mark


def test_a_gauge_notices_a_log_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog.open(path) as log:
        log.commit(Event("a", {}))
    with Gauge(path) as gauge:
        with EventLog.open(path) as log:
            log.commit([Event("a", {})] * 5)
        assert [one.events for _, one in gauge.look().frames] == [5]
        segment = next((path / "segments").iterdir())
        raw = segment.read_bytes()
        second = raw.index(b"\xf5evf", raw.index(b"\xf5evf") + 1)
        segment.write_bytes(raw[:second].ljust(len(raw), b"\0"))
        (path / "lock").unlink()
        again = gauge.look()
        assert (again.moved, again.frames, again.seq) == (True, [], 2)
        with EventLog.open(path) as log:
            log.commit(Event("b", {}))
        assert len(gauge.look().frames) == 1


def test_a_gauge_needs_a_log(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        Gauge(tmp_path)


# -- the probe ------------------------------------------------------------------------------------------------------------------


def test_a_probe_measures_real_syncs_and_leaves_nothing(tmp_path: Path) -> None:
    EventLog.open(tmp_path / "log").close()
    with DiskProbe(tmp_path, tmp_path / "log", pause_s=0.001) as probe:
        taken: list[float] = []
        while len(taken) < 20:
            taken += probe.take()
            time.sleep(0.001)
        assert os.listdir(tmp_path) == ["log"]
    assert all(seconds > 0 for seconds in taken)
    assert os.listdir(tmp_path) == ["log"]


def test_a_probe_of_another_disk_is_refused(tmp_path: Path) -> None:
    EventLog.open(tmp_path / "log").close()
    other = Path("/proc")
    assert other.stat().st_dev != tmp_path.stat().st_dev
    with pytest.raises(ProbeFailed, match="another file system"):
        DiskProbe(other, tmp_path / "log")
    ran = subprocess.run([*DOOR, "top", tmp_path / "log", "--probe", other], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (5, "", 1)


# -- the program ----------------------------------------------------------------------------------------------------------------

WRITER = """
import sys, time
from eventlog import Durability, Event, EventLog
with EventLog.open(sys.argv[1]) as log:
    print("ready", flush=True)
    while True:
        log.commit(Event("written.now", {"text": "x" * 100}), Durability[sys.argv[2]])
        time.sleep(0.002)
"""


@contextmanager
def writing(path: Path, durability: str = "IMMEDIATE") -> Iterator[None]:
    child = subprocess.Popen([sys.executable, "-c", WRITER, path, durability], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        yield
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def made(path: Path) -> Path:
    """A log with an effect that went out before its process died, named so as to do harm."""
    with EventLog.open(path) as log:
        id_ = IntentId("order\u202e", 1, 1)
        log.commit(
            ev.pending(id_, tool=HOSTILE, version="1", class_=EffectClass.KEYED, digest="0" * 64, key="k", key_scope="attempt", args={})
        )
        log.commit(ev.dispatched(id_.text, try_number=1, pid=1, by="guard"))
    return path


def test_once_in_a_pipe_is_one_plain_snapshot(tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    with writing(path):
        ran = subprocess.run([*DOOR, "top", path, "--interval", "0.5", "--probe", tmp_path], capture_output=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")
    text = ran.stdout.decode()
    assert not CONTROLS.search(text)
    assert float(re.findall(r"commits ([0-9.]+)/s", text)[0]) > 0
    assert int(re.findall(r"of ([0-9]+): half within", text)[0]) > 0
    assert "written.now" in text
    assert "order\\u202e@1:1  \\x1b]0;owned\\x07\\u202eevil\\n  keyed  dispatched" in text
    assert "probe: our own fdatasync" in text
    assert sorted(os.listdir(tmp_path)) == ["log"]


def test_batched_commits_show_their_window(tmp_path: Path) -> None:
    """Not how long it takes, which no test can hold: that the model and the real log agree on which commits wait."""
    with EventLog.open(tmp_path / "log", batch_window_ms=600_000) as log, Gauge(tmp_path / "log") as gauge:
        traffic = Traffic(0.0)
        log.commit(Event("a", {}))
        traffic.take(gauge.look(), time.time_ns())
        assert (traffic.lags.total, traffic.unproved(0)[0]) == (1, 0)
        for _ in range(3):
            log.commit(Event("a", {}), Durability.BATCHED)
        traffic.take(gauge.look(), time.time_ns())
        assert (traffic.lags.total, traffic.unproved(0)[0]) == (1, 3)
        log.commit(Event("a", {}))
        traffic.take(gauge.look(), time.time_ns())
        assert (traffic.lags.total, traffic.unproved(0)[0]) == (5, 0)


def test_a_quiet_log_is_not_touched(tmp_path: Path) -> None:
    path = made(tmp_path / "log")

    def contents() -> dict[str, Any]:
        found = {name: name.lstat() for name in [path, *path.rglob("*")]}
        return {
            str(name): (one.st_mtime_ns, one.st_ctime_ns, one.st_ino, name.read_bytes() if name.is_file() else b"")
            for name, one in found.items()
        }

    before = contents()
    result = CliRunner().invoke(main, ["top", str(path), "--once", "--interval", "0.1"])
    assert result.exit_code == 0, result.output
    assert "nothing measured yet" in result.output
    assert contents() == before


def test_usage(tmp_path: Path) -> None:
    for args, code in ((["top", str(tmp_path)], 2), (["top", str(made(tmp_path / "log")), "--interval", "0"], 2)):
        result = CliRunner().invoke(main, args)
        assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (code, "", 1)


@pytest.mark.parametrize(("end", "code"), [("q", 0), ("ctrl-c", 130)])
def test_live_on_a_terminal_beside_a_writer(tmp_path: Path, end: str, code: int) -> None:
    path = made(tmp_path / "log")
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 140, 0, 0))
    before = termios.tcgetattr(follower)
    poll = select.poll()
    poll.register(leader, select.POLLIN)
    seen = b""

    def until(word: bytes) -> None:
        nonlocal seen
        while word not in seen:
            assert poll.poll(30_000), seen
            seen += os.read(leader, 65536)

    with writing(path):
        child = subprocess.Popen(
            [*DOOR, "top", path, "--interval", "0.2"],
            stdin=follower,
            stdout=follower,
            stderr=subprocess.PIPE,
            env={**os.environ, "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that ^C on it is a signal for the child
        )
        until(b"written.now")
        until(b"half within")
        screens = seen.count(b"durable lag")
        while seen.count(b"durable lag") < screens + 3:  # it goes on by itself
            assert poll.poll(30_000), seen
            seen += os.read(leader, 65536)
        os.write(leader, b"xyz")  # other keys mean nothing
        os.write(leader, b"q" if end == "q" else b"\x03")
        while child.poll() is None:
            if poll.poll(10):
                seen += os.read(leader, 65536)
    assert child.stderr is not None
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.returncode == code
    assert termios.tcgetattr(follower) == before
    assert b"\x1b[?1049l" in seen or poll.poll(0)  # the other screen is left
    while poll.poll(0):
        seen += os.read(leader, 65536)
    os.close(leader)
    os.close(follower)
    assert b"\x1b[?1049l" in seen
    assert b"\\x1b]0;owned" in seen
    assert b"\x1b]0;" not in seen
    assert "\u202e".encode() not in seen


def test_a_q_that_came_before_the_first_screen_counts(tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    leader, follower = pty.openpty()
    os.write(leader, b"q")
    child = subprocess.Popen([*DOOR, "top", path], stdin=follower, stdout=follower, env={**os.environ, "TERM": "xterm"})
    poll = select.poll()
    poll.register(leader, select.POLLIN)
    try:
        deadline = time.monotonic() + 120
        while child.poll() is None and time.monotonic() < deadline:
            if poll.poll(10):
                os.read(leader, 65536)
        assert child.returncode == 0
    finally:
        child.kill()
        child.wait()
        os.close(leader)
        os.close(follower)


def test_a_terminal_that_goes_away_ends_it(tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [*DOOR, "top", path, "--interval", "0.2"],
        stdin=follower,
        stdout=follower,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(follower)
    assert os.read(leader, 65536)
    os.close(leader)
    try:
        child.wait(timeout=60)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert child.returncode not in (None, -signal.SIGKILL)
