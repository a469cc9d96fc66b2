"""A thread that does one thing when it is poked: made when it is first needed, gone with its handle."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs `work` in a daemon thread each time it is poked, `delay` seconds after the poke. It ends at `close`.

    `to_the_end`: somebody waits for what a poke asks for, so what comes too late for the thread is done by whoever pokes, or closes.
    """

    def __init__(self, name: str, work: Callable[[], None], delay: float = 0.0, *, to_the_end: bool = False) -> None:
        self._name, self._work, self._delay, self._to_the_end = name, work, delay, to_the_end
        self._starting = threading.Lock()
        self._instead = self._again = False  # somebody works in its place; and was poked meanwhile
        self._thread: threading.Thread | None = None
        self._poked: threading.Lock  # released: poked. An Event takes six times as long, on both sides
        self._closing: threading.Event

    def poke(self) -> None:
        """Wake it; start it first if need be. Raises RuntimeError when no thread can be had, unless it works `to_the_end`."""
        if self._thread is None:
            try:
                self._start()
            except RuntimeError:  # no more threads, or the interpreter ends
                if not self._to_the_end:
                    raise
                return self._work_here()
        self._wake()
        if self._to_the_end and self._closing.is_set():
            self._work()
        return None

    def _work_here(self) -> None:
        """Work in the place of the thread, as often as that is poked meanwhile: by us, too, since the end of one turn begins the next."""
        self._again = True
        if self._instead:
            return  # whoever is at it sees that
        self._instead = True  # no call since the look at it: neither a signal nor another thread comes between
        try:
            while self._again:
                self._again = False
                self._work()
        except BaseException:
            self._instead = False
            self._work_here()  # somebody may wait for what a signal cut short
            raise
        self._instead = False  # nor here

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:  # a handle that is opened, used and closed at once never pays for one
                self._poked, self._closing = threading.Lock(), threading.Event()
                self._poked.acquire()
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def _wake(self) -> None:
        try:  # noqa: SIM105 - contextlib.suppress takes longer than waking
            self._poked.release()
        except RuntimeError:
            pass  # poked before

    def close(self) -> None:
        """End it, and wait until it has."""
        thread = self._thread
        if thread is not None:
            self._closing.set()
            self._wake()
            if thread is not threading.current_thread():
                thread.join()
            if self._to_the_end:
                self._work()

    def _run(self) -> None:
        while True:
            self._poked.acquire()
            if self._closing.is_set() or (self._delay and self._closing.wait(self._delay)):
                if self._to_the_end:  # `close` does it, too; but Ctrl-C may end that at any point, and no signal comes here
                    self._work()
                return
            self._work()
