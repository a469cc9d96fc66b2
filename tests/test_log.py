"""The handle: what users of the ground floor call, and what they get back."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from eventlog import (
    Commit,
    Conflict,
    Durability,
    Event,
    EventLog,
    EventLogError,
    Expect,
    LockTimeout,
    LogClosed,
    LogNotFound,
    PayloadError,
    ReadOnly,
    UnsafeLog,
)
from eventlog.fs import FileSystem


@pytest.fixture
def log(tmp_path: Path):  # type: ignore[no-untyped-def]
    with EventLog.open(tmp_path / "log") as opened:
        yield opened


def numbers(log: EventLog, **limits: object) -> list[int]:
    return [event.data["n"] for event in log.read(**limits)]  # type: ignore[arg-type]


def fill(log: EventLog, count: int, durability: Durability = Durability.BATCHED) -> None:
    for n in range(count):
        log.commit(Event("test.n", {"n": n}, f"s{n % 3}"), durability)


def test_commit_returns_dense_seqs_and_read_gives_them_back_equal(log: EventLog) -> None:
    first = log.commit(Event("order.placed", {"id": 17, "lines": [1, {"a": None}]}, "order-17"))
    second = log.commit([Event("a", {}), Event("b", {"x": "é\u2028\x00"}, "s")], Durability.BATCHED)
    assert (first.first, first.last, second.first, second.last) == (1, 1, 2, 3)
    assert first.durability is Durability.IMMEDIATE
    assert isinstance(first, Commit)
    events = list(log.read())
    assert [(e.seq, e.type, e.stream, e.data) for e in events] == [
        (1, "order.placed", "order-17", {"id": 17, "lines": [1, {"a": None}]}),
        (2, "a", "", {}),
        (3, "b", "s", {"x": "é\u2028\x00"}),
    ]
    assert events[0].time == first.time
    assert log.head == 3
    assert log.head.seq == 3


def test_limits_types_and_streams(log: EventLog) -> None:
    log.commit([Event("t.a", {"n": n}, f"s{n % 2}") for n in range(10)])
    log.commit([Event("t.b", {"n": n}, f"s{n % 2}") for n in range(10, 20)])
    assert numbers(log, after=18) == [18, 19]
    assert numbers(log, after=3, upto=5) == [3, 4]
    assert numbers(log, types={"t.b"}, streams=["s1"]) == [11, 13, 15, 17, 19]
    assert numbers(log, types={"t.none"}) == []
    assert numbers(log, after=99) == []


def test_rotation_keeps_order_and_names_segments_by_their_first_seq(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log", segment_bytes_max=4096) as log:
        fill(log, 500)
        assert numbers(log) == list(range(500))
        infos = log.segments()
        assert len(infos) > 10
        assert [i.sealed for i in infos] == [True] * (len(infos) - 1) + [False]
        for info in infos[:5]:
            assert next(log.read(info.number - 1)).seq == info.number
    with EventLog.open(tmp_path / "log") as log:
        assert numbers(log) == list(range(500))
        assert log.commit(Event("test.n", {"n": 500})).first == 501


def test_a_commit_larger_than_a_segment_is_taken(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log", segment_bytes_max=4096) as log:
        fill(log, 3)
        log.commit(Event("big", {"n": "x" * 50_000}))
        log.commit(Event("test.n", {"n": 4}))
        assert [len(str(n)) for n in numbers(log)] == [1, 1, 1, 50_000, 1]


def test_reopen_continues(tmp_path: Path) -> None:
    for n in range(5):
        with EventLog.open(tmp_path / "log") as log:
            assert log.head == n
            assert log.mended == []
            log.commit(Event("test.n", {"n": n}))
    with EventLog.open(tmp_path / "log", read_only=True) as log:
        assert numbers(log) == [0, 1, 2, 3, 4]


def test_expect_refuses_when_a_watched_stream_moved_on(log: EventLog) -> None:
    log.commit(Event("a", {}, "cart"))
    log.commit(Event("a", {}, "other"))
    log.commit(Event("b", {}, "cart"), expect=Expect({"cart"}, after=1))
    with pytest.raises(Conflict, match="seq 3"):
        log.commit(Event("b", {}, "cart"), expect=Expect({"cart"}, after=2))
    with pytest.raises(Conflict, match="seq 3"):
        log.commit(Event("b", {}, "cart"), Durability.BATCHED, Expect(["cart"], after=1))
    with pytest.raises(Conflict):
        log.commit(Event("new", {}, "cart"), expect=Expect("cart", after=0))
    log.commit(Event("new", {}, "fresh"), expect=Expect({"fresh"}, after=0))
    assert log.head == 4


def test_expect_among_threads_lets_exactly_one_win(log: EventLog) -> None:
    won: list[int] = []
    start = threading.Barrier(8)

    def race(n: int) -> None:
        start.wait()
        try:
            log.commit(Event("claim", {"n": n}, "prize"), expect=Expect({"prize"}, after=0))
            won.append(n)
        except Conflict:
            pass

    threads = [threading.Thread(target=race, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert [e.data["n"] for e in log.read()] == won


class Counter:
    """The smallest thing that transact can fold."""

    initial = 0
    handlers = {"count.up": lambda state, event: state + event.data["by"]}  # noqa: RUF012


def test_transact_decides_on_the_state_at_the_head(log: EventLog) -> None:
    counter = Counter()
    for expected in range(5):
        commit = log.transact(counter, lambda state, e=expected: [Event("count.up", {"by": 1, "seen": state})] if state == e else None)
        assert commit is not None
        log.commit(Event("noise", {}))
    assert log.transact(counter, lambda state: None) is None
    assert log.transact(counter, lambda state: []) is None
    assert [e.data["seen"] for e in log.read(types={"count.up"})] == [0, 1, 2, 3, 4]


def test_commit_inside_decide_raises_and_leaves_the_log_usable(log: EventLog) -> None:
    with pytest.raises(EventLogError, match="return the events"):
        log.transact(Counter(), lambda state: log.commit(Event("a", {})))  # type: ignore[arg-type, return-value]
    with pytest.raises(ZeroDivisionError):
        log.transact(Counter(), lambda state: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(PayloadError):
        log.transact(Counter(), lambda state: Event("a", {"x": {1}}))
    assert log.commit(Event("a", {})).first == 1


def test_transact_in_many_processes_counts_every_one(tmp_path: Path) -> None:
    code = (
        "import sys; from eventlog import *\n"
        "class C:\n  initial=0\n  handlers={'count.up': lambda s,e: s+1}\n"
        "c=C()\n"
        "with EventLog.open(sys.argv[1], segment_bytes_max=4096) as log:\n"
        "  for _ in range(60): log.transact(c, lambda s: Event('count.up', {'was': s}))\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")]) for _ in range(4)]
    assert [child.wait() for child in children] == [0] * 4
    with EventLog.open(tmp_path / "log", read_only=True) as log:
        assert [e.data["was"] for e in log.read()] == list(range(240))


def test_follow_sees_each_event_once_over_rotations_and_ends_at_the_timeout(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log", segment_bytes_max=4096) as log:
        seen: list[int] = []

        def follower() -> None:
            with EventLog.open(tmp_path / "log", read_only=True) as reader:
                seen.extend(event.seq for event in reader.follow(0, timeout=1.0))

        thread = threading.Thread(target=follower)
        thread.start()
        for n in range(300):
            log.commit(Event("test.n", {"n": n}), Durability.IMMEDIATE if n % 20 == 0 else Durability.BATCHED)
        thread.join()
        assert seen == list(range(1, 301))


def test_wait_returns_the_head_or_gives_up(log: EventLog) -> None:
    assert log.wait(0, timeout=0.01) == 0
    threading.Timer(0.05, lambda: log.commit(Event("a", {}))).start()
    assert log.wait(0, timeout=10) == 1


def test_acommit_shares_syncs_and_keeps_order(log: EventLog) -> None:
    async def main() -> list[Commit]:
        return await asyncio.gather(*(log.acommit(Event("test.n", {"n": n})) for n in range(200)))

    commits = asyncio.run(main())
    assert sorted(c.first for c in commits) == list(range(1, 201))
    assert numbers(log) == list(range(200))
    assert asyncio.run(log.acommit(Event("late", {}), Durability.BATCHED)).first == 201
    with pytest.raises(PayloadError):
        asyncio.run(log.acommit(Event("late", {"x": object()})))
    with pytest.raises(Conflict):
        asyncio.run(log.acommit(Event("late", {}, ""), expect=Expect({""}, after=0)))


class CountingSyncs(FileSystem):
    syncs = 0

    def fdatasync(self, fd: int, /) -> None:
        self.syncs += 1
        time.sleep(0.0005)  # as a disk: meanwhile the loop does what it has to


def test_coroutines_that_share_a_sync_come_back_together_and_share_the_next(tmp_path: Path) -> None:
    """Were their loop told of one of them first, that one would lead a batch of its own: two syncs for each round of the sixteen."""
    fs, rounds = CountingSyncs(), 60

    async def one(log: EventLog) -> None:
        for n in range(rounds):
            await log.acommit(Event("test.n", {"n": n}))

    async def main(log: EventLog) -> None:
        await asyncio.gather(*(one(log) for _ in range(16)))

    with EventLog.open(tmp_path / "log", fs=fs) as log:
        before = fs.syncs
        asyncio.run(main(log))
        syncs = fs.syncs - before
    print(f"{rounds} rounds of 16: {syncs} syncs")
    assert rounds <= syncs < 1.6 * rounds


def test_acommit_cancelled_leaves_the_log_whole(log: EventLog) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(log.acommit(Event("test.n", {"n": n}))) for n in range(50)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    found = numbers(log)
    assert set(range(1, 50, 2)) <= set(found)
    assert log.commit(Event("after", {})).first == len(found) + 1


def test_a_closed_handle_refuses_everything(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path / "log")
    log.commit(Event("a", {}))
    log.close()
    log.close()
    for call in (lambda: log.commit(Event("a", {})), lambda: list(log.read()), log.flush, lambda: log.head, lambda: log.wait(0, 0)):
        with pytest.raises(LogClosed, match="open it again"):
            call()


def test_read_only_refuses_writes_and_needs_a_log(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        EventLog.open(tmp_path / "none", read_only=True)
    with pytest.raises(LogNotFound):
        EventLog.open(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()
    EventLog.open(tmp_path / "log").close()
    with EventLog.open(tmp_path / "log", read_only=True) as log, pytest.raises(ReadOnly):
        log.commit(Event("a", {}))


@pytest.mark.parametrize("umask", [0, 0o777, 0o022])
def test_modes_under_any_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with EventLog.open(tmp_path / "a" / "log", segment_bytes_max=4096) as log:
            fill(log, 100)
            owner = log.own("somebody")
            assert owner is not None
            owner.release()
    finally:
        os.umask(before)
    for path in [tmp_path / "a", *sorted((tmp_path / "a").rglob("*"))]:
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_unsafe_places_are_refused_for_writing(tmp_path: Path) -> None:
    EventLog.open(tmp_path / "log").close()
    (tmp_path / "log").chmod(0o777)
    with pytest.raises(UnsafeLog, match="chmod 700"):
        EventLog.open(tmp_path / "log")
    (tmp_path / "log").chmod(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "log")
    with pytest.raises(UnsafeLog):
        EventLog.open(tmp_path / "link")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnsafeLog):
        EventLog.open(tmp_path / "file")


def test_lock_timeout_names_the_lock_and_writes_nothing(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log", lock_timeout=0.05) as log:
        holder = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import fcntl,sys,time; f=open(sys.argv[1]); fcntl.flock(f,2); print(flush=True); time.sleep(60)",
                str(log.path / "lock"),
            ],
            stdout=subprocess.PIPE,
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            for durability in Durability:
                with pytest.raises(LockTimeout, match="lock"):
                    log.commit(Event("a", {}), durability)
            with pytest.raises(LockTimeout):
                EventLog.open(tmp_path / "log", lock_timeout=0.05)
        finally:
            holder.kill()
            holder.wait()
            holder.stdout.close()
        assert log.commit(Event("a", {})).first == 1


def test_a_removed_lock_file_is_noticed(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as one, EventLog.open(tmp_path / "log") as two:
        one.commit(Event("a", {}))
        (tmp_path / "log" / "lock").unlink()
        time.sleep(0.003)
        for _ in range(20):
            one.commit(Event("a", {}), Durability.BATCHED)
            two.commit(Event("b", {}), Durability.BATCHED)
        assert [e.seq for e in two.read()] == list(range(1, 42))


@pytest.mark.parametrize("damage", [b"", b"\0" * 200, b"\xff" * 200, None])
def test_the_contents_of_the_lock_file_can_be_lost_at_any_time(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "log"
    with EventLog.open(path, segment_bytes_max=4096) as one, EventLog.open(path, segment_bytes_max=4096) as two:
        for n in range(60):
            (one, two)[n % 2].commit(Event("test.n", {"n": n}), (Durability.IMMEDIATE, Durability.BATCHED)[n % 3 == 0])
            if n % 7 == 0:
                if damage is None:
                    (path / "lock").unlink()
                    time.sleep(0.003)
                else:
                    (path / "lock").write_bytes(damage)
            assert numbers(two if n % 2 else one) == list(range(n + 1))
    with EventLog.open(path) as log:
        assert numbers(log) == list(range(60))


def test_owner_locks_die_with_their_process(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        code = (
            "import sys,time; from eventlog import EventLog\n"
            "log=EventLog.open(sys.argv[1]); owner=log.own('attempt-1'); print(owner is not None, flush=True); time.sleep(60)"
        )
        child = subprocess.Popen([sys.executable, "-c", code, str(log.path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        assert log.owned("attempt-1")
        assert log.own("attempt-1") is None
        assert not log.owned("attempt-2")
        child.send_signal(19)  # SIGSTOP: stopped is not dead
        assert log.own("attempt-1") is None
        child.kill()
        child.wait()
        child.stdout.close()
        with log.own("attempt-1") as owner:  # type: ignore[union-attr]
            assert owner is not None
            assert log.own("attempt-1") is None, "also in this process"
        assert not log.owned("attempt-1")


def test_head_hash_is_stable_and_covers_the_past(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log", segment_bytes_max=4096) as log:
        empty = log.head.text
        assert empty.startswith("0:")
        fill(log, 50)
        head = log.head
        text = head.text
        assert text == f"50:{head.hash}"
        fill(log, 50)
        assert head.text == text, "a head keeps its hash, whatever follows"
        assert log.head.text != text


def test_importing_the_log_is_light() -> None:
    code = (
        "import sys, eventlog; heavy = ('click','rich','sortedcontainers','asyncio','eventlog.projections','eventlog.testing')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_bad_limits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="segment_bytes_max"):
        EventLog.open(tmp_path / "log", segment_bytes_max=100)
    with pytest.raises(ValueError, match="commit_bytes_max"):
        EventLog.open(tmp_path / "log", commit_bytes_max=0)
    with EventLog.open(tmp_path / "log", commit_bytes_max=100) as log:
        with pytest.raises(PayloadError, match="commit_bytes_max"):
            log.commit(Event("a", {"x": "y" * 100}))
        assert log.head == 0


def test_interpreter_exit_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import sys; from eventlog import *\n"
        "log = EventLog.open(sys.argv[1], batch_window_ms=1e6); log.commit(Event('a', {}), Durability.BATCHED)"
    )
    trace = tmp_path / "trace"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "log")], check=True)
    with EventLog.open(tmp_path / "log", read_only=True) as log:
        assert log.head == 1
    from eventlog import tailrecord

    data = (tmp_path / "log" / "lock").read_bytes()
    record = tailrecord.parse(data)
    assert record is not None
    assert tailrecord.parse_word(data, record.epoch) >= record.end, f"not synced at exit ({trace})"


def test_batched_reaches_the_disk_after_its_window_though_nobody_calls(tmp_path: Path) -> None:
    from eventlog import tailrecord

    with EventLog.open(tmp_path / "log", batch_window_ms=20) as log:
        log.commit(Event("a", {}), Durability.BATCHED)
        end = log.segments()[-1]
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            data = (tmp_path / "log" / "lock").read_bytes()
            record = tailrecord.parse(data)
            assert record is not None
            if tailrecord.parse_word(data, record.epoch) > 80:
                return
            time.sleep(0.005)
        pytest.fail(f"the window never ended for {end}")
