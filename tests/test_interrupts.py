"""Ctrl-C, a raising signal handler, a cancelled task, at any moment: the lock is free, no commit is half there, nobody hangs (P25)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from interrupting import Interrupted, interrupt, within

from eventlog import Durability, Event, EventLog, EventLogError, Expect, LogClosed, LogPoisoned
from eventlog.audit import verify
from eventlog.background import Background
from eventlog.coroutines import LoopWakes

BIG = Event("big", {"text": "x" * 900})
PAIR = [Event("pair", {"half": 1}), Event("pair", {"half": 2})]


def prepare(log: EventLog, count: int) -> None:
    for _ in range(count):
        log.commit(BIG)


WORK: dict[str, tuple[int, Callable[[EventLog], object]]] = {
    "immediate": (0, lambda log: log.commit(PAIR)),
    "batched": (0, lambda log: log.commit(PAIR, Durability.BATCHED)),
    "rotating": (3, lambda log: log.commit([BIG, BIG])),
    "expect": (0, lambda log: log.commit(PAIR, expect=Expect({"s"}, 0))),
    "flush": (0, lambda log: log.commit(PAIR, Durability.BATCHED) and log.flush()),  # type: ignore[func-returns-value]
    "close": (0, lambda log: log.commit(PAIR, Durability.BATCHED) and log.close()),  # type: ignore[func-returns-value]
    "read": (4, lambda log: list(log.read())),
}


def whole(log: EventLog) -> None:
    """Dense seqs, and of each pair both or none."""
    events = list(log.read())
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    halves = [e.data["half"] for e in events if e.type == "pair"]
    assert halves == [1, 2] * (len(halves) // 2)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where that can be had: a thousand handles are opened here, and none of it is about the disk."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


@pytest.mark.parametrize("name", list(WORK))
def test_p25_interrupted_at_every_point(tmp_path: Path, name: str) -> None:
    count, work = WORK[name]
    path = tmp_path / "log"
    nth, ended = 1, 0
    while ended < 2:  # Python 3.13 shows the operations of a function from its second run on
        assert nth < 2000
        if nth % 20 == 0:  # a fresh one: what is read again and again should stay short
            assert verify(path).ok
            path = tmp_path / f"log{nth}"
        options = {"segment_bytes_max": 4096, "batch_window_ms": 600_000, "lock_timeout": 0.5}
        log = EventLog.open(path, **options)  # type: ignore[arg-type]
        prepare(log, count)
        where = interrupt(nth, lambda: work(log))  # noqa: B023
        with EventLog.open(path, **options) as other:  # type: ignore[arg-type]
            other.commit(Event("other", {}))  # raises LockTimeout if the interrupted handle still held the lock
        again = within(5, lambda: log.commit(Event("again", {})))  # noqa: B023
        if isinstance(again, LogPoisoned | LogClosed):
            pass
        elif isinstance(again, BaseException):
            raise AssertionError(f"{where}: the same handle afterwards: {again!r}")
        else:
            whole(log)
        log.close()
        with EventLog.open(path, **options) as reopened:  # type: ignore[arg-type]
            whole(reopened)
            assert reopened.mended == [], where  # this work makes one pwrite of a commit: nothing can be torn
        ended = ended + 1 if where is None else 0
        nth += where is not None
    print(f"{name}: interrupted at {nth - 1} points")
    assert verify(path).ok
    assert nth > 20, "hardly a point was found: this test proves nothing"


def test_p25_a_leader_interrupted_at_any_point_strands_no_thread(tmp_path: Path) -> None:
    """The main thread (the only one that runs handlers) leads, is led, hands over, while three others commit."""
    points = 0
    for nth in range(1, 400, 9):
        path = tmp_path / str(nth)
        log = EventLog.open(path, segment_bytes_max=4096, lock_timeout=5)
        wrong: list[EventLogError] = []
        told: list[int] = []

        def others(log: EventLog = log, wrong: list[EventLogError] = wrong, told: list[int] = told) -> None:
            for _ in range(12):
                try:
                    told.append(log.commit(Event("t", {"text": "x" * 200})).last)
                except EventLogError as error:
                    wrong.append(error)  # noqa: B023

        threads = [threading.Thread(target=others, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        where = interrupt(nth, lambda: [log.commit(Event("main", {})) for _ in range(10)])  # noqa: B023
        points += where is not None
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads), f"{where}: threads hang"
        last = within(5, lambda: log.commit(Event("last", {})))  # noqa: B023
        assert not isinstance(last, TimeoutError), f"{where}: the next commit hangs"
        assert all("interrupted" in str(error) for error in wrong), (where, wrong)
        assert len(wrong) <= 4, (where, wrong)  # at most the group of that moment
        seqs = [e.seq for e in log.read()]
        assert seqs == list(range(1, len(seqs) + 1))
        assert set(told) <= set(seqs), f"{where}: acknowledged and not there"
        log.close()
        assert verify(path).ok
    assert points > 20


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # raised in a destructor, it is only printed
def test_p25_real_signals_whose_handler_raises(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    def handler(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    struck = acknowledged = 0
    try:
        path = tmp_path / "log"
        with EventLog.open(path, segment_bytes_max=4096, lock_timeout=2) as log, EventLog.open(path, lock_timeout=2) as other:
            for n in range(1500):
                try:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, chance.uniform(5e-6, 150e-6))
                        log.commit(PAIR, list(Durability)[n % 2])
                        acknowledged += 1
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupted:
                    struck += 1
                if n % 10 == 0:
                    other.commit(Event("other", {}))
            whole(log)
            found = sum(1 for _ in log.read(types={"pair"})) // 2
            assert acknowledged <= found <= acknowledged + struck
    finally:
        signal.signal(signal.SIGALRM, before)
    print(f"{struck} interrupts")
    assert struck > 50
    assert verify(tmp_path / "log").ok


def test_p25_ctrl_c_in_a_program(tmp_path: Path) -> None:
    """SIGINT at a random moment of a real program that prints what was acknowledged, and lets the exception end it."""
    code = (
        "import sys\nfrom eventlog import *\n"
        "with EventLog.open(sys.argv[1], segment_bytes_max=4096) as log:\n"
        "    while True:\n"
        "        print(log.commit([Event('pair', {'half': 1}), Event('pair', {'half': 2})]).last, flush=True)\n"
    )
    path, told = tmp_path / "log", 0
    for _ in range(4):
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(random.randrange(1, 60)):
            told = int(child.stdout.readline())
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
        told = max([told, *map(int, out.split())])
        assert child.returncode == -signal.SIGINT, err
        assert "KeyboardInterrupt" in err
        with EventLog.open(path, lock_timeout=1) as log:
            whole(log)
            assert int(log.head) >= told


def test_p25_a_cancelled_task_leaves_a_whole_log_and_a_usable_handle(tmp_path: Path) -> None:
    chance = random.Random(25)
    acknowledged: list[int] = []

    async def main(log: EventLog) -> None:
        async def one(n: int) -> None:
            receipt = await log.acommit([Event("pair", {"half": 1, "n": n}), Event("pair", {"half": 2, "n": n})])
            acknowledged.append(receipt.last)

        for n in range(60):
            tasks = [asyncio.create_task(one(n)) for _ in range(4)]
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            chance.choice(tasks).cancel()
            if n % 7 == 0:
                for task in tasks:
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        acknowledged.append((await asyncio.wait_for(log.acommit(Event("last", {})), 10)).last)

    with EventLog.open(tmp_path / "log") as log:
        asyncio.run(main(log))
        whole(log)
        assert set(acknowledged) <= {e.seq for e in log.read()}
        within(5, lambda: log.commit(Event("sync", {})))
        assert [e.type for e in log.read()][-1] == "sync"


def test_p25_a_handler_that_uses_the_log_does_not_hang(tmp_path: Path) -> None:
    """It cannot write in the middle of a write; it must be told so."""
    code = (
        "import random, signal, sys\nfrom eventlog import *\n"
        "log = EventLog.open(sys.argv[1])\nwrote = refused = 0\n"
        "def handler(*_):\n"
        "    global wrote, refused\n"
        "    try:\n        log.commit(Event('signal', {})); wrote += 1\n"
        "    except EventLogError:\n        refused += 1\n"
        "signal.signal(signal.SIGALRM, handler)\n"
        "for n in range(1500):\n"
        "    signal.setitimer(signal.ITIMER_REAL, random.uniform(5e-6, 120e-6))\n"
        "    log.commit(Event('main', {'n': n}))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "log.close()\nprint(wrote, refused)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "log")], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    wrote, refused = map(int, done.stdout.split())
    print(f"{wrote} written, {refused} refused")
    with EventLog.open(tmp_path / "log") as log:
        assert [e.data["n"] for e in log.read(types={"main"})] == list(range(1500))
        assert len(list(log.read(types={"signal"}))) == wrote


def test_this_test_would_notice_a_kept_lock(tmp_path: Path) -> None:
    """The interrupter finds the classic mistake: cleaning up by a Python function in a finally clause."""
    import eventlog.lock as module

    places = set()
    with EventLog.open(tmp_path / "log") as log:
        for nth in range(1, 200):
            where = interrupt(nth, lambda: log.commit(Event("t", {})))
            if where is not None:
                places.add(where.split(":")[0])
    assert {"log.py", "group.py", "writer.py", os.path.basename(module.__file__)} <= places


def test_p25_a_leader_that_is_interrupted_while_it_wakes_coroutines_and_does_it_again_wakes_them(tmp_path: Path) -> None:
    """As the leader does who hands his turn on a second time; also those that come later."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def woken(future: asyncio.Future[None]) -> None:
        await asyncio.wait_for(asyncio.shield(future), 5)

    nth, where = 1, None
    while nth == 1 or where is not None:
        wakes = LoopWakes(loop, Background("nobody", lambda: None))
        for _ in range(2):
            future = loop.create_future()
            where = interrupt(nth, lambda: wakes.add([future])) or where  # noqa: B023
            wakes.add([future])
            asyncio.run_coroutine_threadsafe(woken(future), loop).result(10)
        where = interrupt(nth, lambda: wakes.add([loop.create_future()]))  # noqa: B023
        nth += 1
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
    assert nth > 3
