"""`eventlog top`: what is going on in a log, live on a terminal, once anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eventlog import EventLog
from eventlog.cli.options import log_argument, read_log
from eventlog.cli.output import on_terminal, say, shown, when
from eventlog.cli.progress import progress
from eventlog.cli.top_screen import Screen, Waits, render

if TYPE_CHECKING:
    from eventlog.probe import DiskProbe
    from eventlog.survey import Gauge

_LOOK_S = 0.002  # between two looks at the end of the log: no lag is known more exactly than that, unless a frame says so
_LISTED = 50


@click.command(
    epilog="""\b
Examples:
  eventlog top ./log                       # q or Ctrl-C ends
  eventlog top ./log --once --interval 10  # one look over ten seconds, for a script
  eventlog top ./log --probe .             # and how long an fdatasync takes on that disk"""
)
@log_argument
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, metavar="S", help="Seconds between two figures."
)
@click.option("--once", is_flag=True, help="Print one snapshot after one interval; the default where there is no terminal.")
@click.option(
    "--probe",
    "where",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Write: sync a page in a nameless file in DIR, on the disk of LOG, five times an interval, and show how long that takes.",
)
def top(log: Path, interval: float, once: bool, where: Path | None) -> None:
    """Show rates, how long commits wait for the disk, events by type, open effects, waiting deliveries and threads.

    Only looks at LOG: no lock, not a byte changed. It reads what is new once an interval, as any reader does.
    """
    from eventlog.survey import Gauge

    live = not once and sys.stdout is not None and sys.stdout.isatty()
    with ExitStack() as stack:
        handle = stack.enter_context(read_log(log))
        probe = None
        if where is not None:
            from eventlog.probe import DiskProbe

            probe = stack.enter_context(DiskProbe(where, handle.path, interval / 5))
        watch = _Watch(handle, probe)
        gauge = stack.enter_context(Gauge(handle.path))  # from here on; folding the log may have taken long
        if not live:
            watch.look_until(gauge, time.monotonic() + interval, _sleep)
            for line in render(watch.screen()):
                say(line)
            return
        _live(stack, watch, gauge, interval)


def _live(stack: ExitStack, watch: _Watch, gauge: Gauge, interval: float) -> None:
    from rich.live import Live
    from rich.text import Text

    pause = stack.enter_context(_keys())
    screen = stack.enter_context(Live(screen=True, auto_refresh=False))
    while True:
        lines = render(watch.screen(), coloured=on_terminal(), rows=screen.console.size.height)
        text = Text.from_ansi("\n".join(lines), no_wrap=True, overflow="ellipsis")
        screen.update(text, refresh=True)
        if watch.look_until(gauge, time.monotonic() + interval, pause):
            return


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A pause that ends with True when somebody presses q. Keys come one by one, and the terminal is as before at the end."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _sleep
        return
    import os
    import select
    import termios
    import tty

    fd = sys.stdin.fileno()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    before = termios.tcgetattr(fd)

    def pause(seconds: float) -> bool:
        if not poll.poll(seconds * 1000):
            return False
        pressed = os.read(fd, 64)
        return not pressed or b"q" in pressed.lower()  # nothing: the terminal is gone

    tty.setcbreak(fd, termios.TCSANOW)  # Ctrl-C stays what it is; a q that was pressed while the log was folded counts
    try:
        yield pause
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


class _Watch:
    """The folds and figures of one log, kept from screen to screen."""

    def __init__(self, handle: EventLog, probe: DiskProbe | None) -> None:
        from eventlog.projections import COUNTS, STATUS, View
        from eventlog.projections.traffic import Histogram, Traffic

        self._handle, self._probe = handle, probe
        self._states, self._counts = View(handle, STATUS), View(handle, COUNTS)
        with progress("top") as bar:
            head = int(handle.head)
            self._states.refresh(head, progress=bar)
            self._before = dict(self._counts.refresh(head, progress=bar)[0].types)
        self._traffic = Traffic(time.monotonic())
        self._probed = Histogram() if probe is not None else None

    def look_until(self, gauge: Gauge, end_s: float, pause: Callable[[float], bool]) -> bool:
        """Look again and again until then; True as soon as `pause` says that it is enough."""
        timed = False
        while True:
            look = gauge.look()
            self._traffic.take(look, time.time_ns(), timed=timed)
            timed = True
            left = end_s - time.monotonic()
            if left <= 0:
                return False
            if pause(min(left, _LOOK_S)):
                return True

    def screen(self) -> Screen:
        """What there is to show now."""
        from eventlog.projections.stats import top as most_of
        from eventlog.projections.traffic import by_age

        handle, now_ns = self._handle, time.time_ns()
        head = int(handle.head)
        state, _ = self._states.refresh(head)
        types = self._counts.refresh(head)[0].types
        interval = self._traffic.interval(time.monotonic())
        shown_types = [(name, count, count - self._before.get(name, 0)) for name, count in most_of(types, _LISTED)]
        self._before = dict(types)
        if self._probe is not None and self._probed is not None:
            for seconds in self._probe.take():
                self._probed.add(seconds)
        failure = self._probe.failure if self._probe is not None else None
        open_ = state.effects.open_intents()
        unproved, unproved_s = self._traffic.unproved(now_ns)
        return Screen(
            shown(handle.path),
            handle.id,
            when(now_ns)[:19] + "Z",
            head,
            interval,
            self._traffic.lags,
            unproved,
            unproved_s,
            self._probed,
            shown_types,
            max(0, len(types) - _LISTED),
            by_age([one.pending_ns for one in open_], now_ns),
            [
                Waits(str(one.id), f"{one.tool}  {one.effect_class.value}  {one.state.value}", max(0, now_ns - one.pending_ns) / 1e9)
                for one in open_[:_LISTED]
            ],
            [Waits(one.id, one.state.value, max(0, now_ns - one.detected_ns) / 1e9) for one in state.waiting],
            [(one["thread"], one["status"], one["agent"]) for one in state.threads],
            f"probe: {failure.strerror}; nothing is measured any more" if failure is not None else "",
        )
