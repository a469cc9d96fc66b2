"""What may come while a commit is on its way, on the ground floor: Ctrl-C, a close, no thread to be had, a disk that is full for a moment.

Nobody waits for ever, and nobody is told what is not so.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from interrupting import Interrupted, interrupt, within

from eventlog import Durability, Event, EventLog, EventLogError, LogPoisoned, NotWritten, OutcomeUnknown
from eventlog.background import Background
from eventlog.coroutines import LoopWakes
from eventlog.fs import FileSystem

ONE = Event("t", {})
WAIT_S = 10


@pytest.fixture
def memory() -> Iterator[Path]:
    """Hundreds of handles are opened here, and none of it is about the disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as path:
        yield Path(path)


@pytest.fixture
def no_threads() -> Iterator[Callable[[], None]]:
    """Called: from then on the system refuses every new thread, since no stack can be that large."""
    before = threading.stack_size()
    yield lambda: threading.stack_size(1 << 47) and None
    threading.stack_size(before)


class Gated(FileSystem):
    """The next fdatasync behind `shut` waits until it is opened."""

    def __init__(self) -> None:
        self.shut = False
        self.reached, self.open_again = threading.Event(), threading.Event()
        self.fdatasync = self._gated  # type: ignore[misc]

    def _gated(self, fd: int) -> None:
        if self.shut:
            self.shut = False
            self.reached.set()
            self.open_again.wait()
        FileSystem.fdatasync(fd)


def warm(path: Path, fs: FileSystem) -> EventLog:
    log = EventLog.open(path, fs=fs)
    for _ in range(3):
        log.commit(ONE)  # from here on a lone commit takes the short road
    return log


def test_a_thread_that_leads_for_coroutines_and_is_interrupted_wakes_them(memory: Path, no_threads: Callable[[], None]) -> None:
    """Where no thread can be had, whoever ends a turn leads the coroutines' next one, and he may be the main thread."""

    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()  # this thread there is

    async def three(log: EventLog, fs: Gated, nth: int) -> str | None:
        fs.shut = True
        leader = asyncio.get_running_loop().run_in_executor(pool, lambda: interrupt(nth, lambda: log.commit(ONE)))
        while not fs.reached.is_set():
            await asyncio.sleep(0)
            if leader.done():
                fs.shut = False
                return await leader  # interrupted before its sync
        waiting = [asyncio.ensure_future(log.acommit(ONE)) for _ in range(3)]
        await asyncio.sleep(0)  # they are in the queue
        fs.open_again.set()
        where = await leader
        done, _ = await asyncio.wait(waiting, timeout=WAIT_S)
        assert len(done) == 3, f"point {nth} ({where}): {3 - len(done)} wait for ever"
        for one in done:
            assert one.exception() is None or isinstance(one.exception(), OutcomeUnknown)
        return where

    async def main() -> set[str]:
        no_threads()
        places: set[str] = set()
        nth, where = 1, ""
        while where is not None:
            fs = Gated()
            log = warm(memory / str(nth), fs)
            where = await three(log, fs, nth)
            log.close()
            places.add(str(where).split(",")[0])
            nth += 1
        return places

    places = within(60, lambda: asyncio.run(main()))
    pool.shutdown(wait=False)
    assert isinstance(places, set), places
    assert {place.split(" ")[-1] for place in places} >= {"lead_for_others", "_hand_on", "_wake_all", "add"}, places


def test_a_close_that_is_interrupted_leaves_no_coroutine_waiting(memory: Path) -> None:
    """The thread that writes for coroutines was poked, and saw that the log is being closed before it saw that."""

    async def main(nth: int) -> str | None:
        log = warm(memory / str(nth), FileSystem())
        waiting = [asyncio.ensure_future(log.acommit(ONE)) for _ in range(3)]
        await asyncio.sleep(0)  # poked; and it does not run before this thread waits for something
        where = interrupt(nth, log.close)
        done, _ = await asyncio.wait(waiting, timeout=WAIT_S)
        assert len(done) == 3, f"point {nth} ({where}): {3 - len(done)} wait for ever"
        for one in done:
            assert one.exception() is None or isinstance(one.exception(), EventLogError)
        log.close()
        return where

    before = sys.getswitchinterval()
    sys.setswitchinterval(100)
    try:
        nth, last = 1, ""
        while last is not None:
            last = within(60, lambda: asyncio.run(main(nth)))  # noqa: B023
            assert last is None or isinstance(last, str), last
            nth += 1
    finally:
        sys.setswitchinterval(before)
    assert nth > 20


class Full(Gated):
    """Once `full`, a commit has no room; the next sync behind that is interrupted, and there is room again."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.pwrite = self._refused  # type: ignore[misc]
        self.fdatasync = self._interrupted  # type: ignore[misc]

    def _refused(self, fd: int, data: bytes, offset: int) -> int:
        if self.full and len(data) > 200:
            raise OSError(errno.ENOSPC, "no space left")
        return FileSystem.pwrite(fd, data, offset)

    def _interrupted(self, fd: int) -> None:
        if self.full:
            self.full = False
            raise Interrupted
        self._gated(fd)


def test_what_was_refused_is_not_written_by_the_next_leader(tmp_path: Path) -> None:
    """Ctrl-C in the sync puts back into the queue who follows: among them those to whom it is said already that they are not written."""
    fs = Full()
    with warm(tmp_path / "log", fs) as log:
        answers: dict[int, BaseException | None] = {}

        def commit(number: int) -> None:
            try:
                log.commit(Event("big", {"n": number, "text": "x" * 300}))
                answers[number] = None
            except (EventLogError, Interrupted) as error:
                answers[number] = error

        fs.shut = True
        threads = [threading.Thread(target=commit, args=(number,), daemon=True) for number in range(4)]
        threads[0].start()
        assert fs.reached.wait(WAIT_S)
        for queued, thread in enumerate(threads[1:], 1):
            thread.start()
            while len(log._group._queue) < queued:
                time.sleep(0.001)
        fs.full = True
        fs.open_again.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert len(answers) == 4
        written = {event.data["n"] for event in log.read() if event.type == "big"}
        refused = {number for number, error in answers.items() if isinstance(error, NotWritten)}
        assert refused == {2, 3}
        assert written == {0}


class Failing(FileSystem):
    """Unless it is `healthy`, the next sync fails, once, as the kernel tells it."""

    def __init__(self) -> None:
        self.healthy = True
        self.fdatasync = self._once  # type: ignore[misc]

    def _once(self, fd: int) -> None:
        if not self.healthy:
            self.healthy = True
            raise OSError(errno.EIO, "the disk did not answer")


def test_ctrl_c_does_not_hide_a_sync_that_failed(memory: Path) -> None:
    """It comes while the disk still tries, say, and is seen at the next call. The next sync would succeed over the hole (fsyncgate)."""
    nth, where, told = 1, "", 0
    while where is not None:
        fs = Failing()
        log = warm(memory / str(nth), fs)
        fs.healthy = False
        try:
            where = interrupt(nth, lambda: log.commit(ONE))  # noqa: B023
        except OutcomeUnknown:
            where = None
        if fs.healthy:
            told += 1
            with pytest.raises(LogPoisoned):
                log.commit(ONE)
        with contextlib.suppress(EventLogError):
            log.close()
        nth += 1
    assert told > 10


def test_ctrl_c_at_any_point_of_the_call_back_that_wakes_coroutines_leaves_none_waiting() -> None:
    """Neither those of its batch nor those of a later one, once the loop runs again: the loop of a program that ends does."""
    nth, where = 1, ""
    while where is not None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, context: None)
        wakes = LoopWakes(loop, Background("nobody", lambda: None))
        futures = [loop.create_future() for _ in range(3)]
        wakes.add(futures)
        where = interrupt(nth, lambda: loop.run_until_complete(asyncio.sleep(0)))  # noqa: B023
        futures.append(loop.create_future())
        wakes.add(futures[3:])
        loop.run_until_complete(asyncio.wait_for(asyncio.gather(*futures), WAIT_S))
        loop.close()
        nth += 1
    assert nth > 5


class GatedFailing(Gated):
    """The sync that waited fails."""

    def _gated(self, fd: int) -> None:
        fails = self.shut
        super()._gated(fd)
        if fails:
            raise OSError(errno.EIO, "the disk did not answer")


def test_a_sync_that_fails_while_its_log_is_closed_raises_nothing_foreign(tmp_path: Path) -> None:
    """A second sync of what is durable, as the end of a window may be: the close does not wait for its turn."""
    fs = GatedFailing()
    log = warm(tmp_path / "log", fs)
    assert log._writer is not None
    fs.shut = True
    raised: list[object] = []
    syncing = threading.Thread(target=lambda: raised.append(within(WAIT_S, log._writer.sync)))
    syncing.start()
    assert fs.reached.wait(WAIT_S)
    closing = threading.Thread(target=log._writer.close)
    closing.start()
    time.sleep(0.05)  # it waits for that sync
    fs.open_again.set()
    syncing.join(WAIT_S)
    closing.join(WAIT_S)
    log.close()
    assert raised[0] is None or isinstance(raised[0], OutcomeUnknown), raised


def test_a_sync_says_nothing_of_a_tail_that_was_found_meanwhile(memory: Path) -> None:
    """What others wrote before that tail was found is confirmed by who syncs it, not by a sync of the descriptor before."""
    fs = Gated()
    endless = float("inf")
    with EventLog.open(memory / "log", batch_window_ms=endless) as other:
        other.commit(ONE, Durability.BATCHED)
        with EventLog.open(memory / "log", batch_window_ms=endless, fs=fs) as log:
            writer = log._writer
            assert writer is not None
            assert writer.view.tail.unconfirmed is not None, "what the other wrote waits for our first sync"
            log.commit(ONE, Durability.BATCHED)
            fs.shut = True
            syncing = threading.Thread(target=log.flush)
            syncing.start()
            assert fs.reached.wait(WAIT_S)
            with writer.mutex:
                writer.lock.acquire()
                try:
                    writer.view.find()  # as when what another process did cannot be taken over
                finally:
                    writer.lock.release()
            found = writer.view.tail
            before = found.durable
            assert found.unconfirmed is not None
            fs.open_again.set()
            syncing.join()
            assert found.unconfirmed is None or found.durable == before
            log.flush()
            assert found.unconfirmed is None
            assert not writer.dirty()
