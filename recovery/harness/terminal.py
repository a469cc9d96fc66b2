"""The terminal of a launcher: handed to the agent's process group, taken back, and put in order after an agent that could not do so."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
from typing import Any

__all__ = ["Terminal"]


class Terminal:
    """Standard input and output, when both are our terminal and we are in its foreground; otherwise `fd` is -1 and nothing happens.

    In a pipeline (`agent … | less`) the foreground belongs to all of it, and stays with it.
    """

    def __init__(self) -> None:
        self.fd = -1
        self._saved: list[Any] | None = None
        try:
            if os.isatty(0) and os.isatty(1) and os.tcgetpgrp(0) == os.getpgrp():
                self.fd, self._saved = 0, termios.tcgetattr(0)
        except (OSError, termios.error):  # a terminal that is not the controlling one
            self.fd = -1

    def __bool__(self) -> bool:
        return self.fd >= 0

    def give(self, group: int) -> None:
        """Make `group` the foreground, if we are it."""
        with contextlib.suppress(OSError):
            if self.fd >= 0 and os.tcgetpgrp(self.fd) == os.getpgrp():
                self._set(group)

    def take(self, *, mend: bool = True) -> None:
        """Be the foreground again. `mend`: an agent that was killed leaves the terminal raw, without echo."""
        if self.fd < 0:
            return
        with contextlib.suppress(OSError, termios.error):  # it hung up
            self._set(os.getpgrp())
            if mend and self._saved is not None:
                termios.tcsetattr(self.fd, termios.TCSADRAIN, self._saved)

    def _set(self, group: int) -> None:
        # Whoever is in the background gets SIGTTOU for this, and would be stopped.
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            os.tcsetpgrp(self.fd, group)
        finally:
            signal.signal(signal.SIGTTOU, before)


def standard_output_is_terminal() -> bool:
    """Without one, an agent prints and ends."""
    return sys.stdout is not None and os.isatty(1)
