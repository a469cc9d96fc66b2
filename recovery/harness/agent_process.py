"""The agent's process as its launcher sees it: in a group of its own, looked at, stopped and continued with us, ended as a whole."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from eventlog import crashpoints
from eventlog.recovery.harness.process import NoProcess, process_key
from eventlog.recovery.harness.terminal import Terminal

__all__ = ["AgentProcess", "alive"]

_TETHER = str(Path(__file__).resolve().with_name("tether.py"))
_LOOK_S = 0.02
_ASKED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


def alive(process: str | None) -> bool:
    """Does the process of this key (process_key) run? False when the key is of another kind."""
    pid = (process or "").partition(":")[0]
    if not (pid.isascii() and pid.isdigit()):
        return False
    try:
        if process_key(int(pid)) != process:
            return False
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")  # dead, and nobody has asked for its code yet
    except (NoProcess, OSError):
        return False


class AgentProcess:
    """One process of an agent. The terminal goes to its group, so that Ctrl-C and Ctrl-Z are for the agent, as without a launcher."""

    def __init__(self, argv: Sequence[str], terminal: Terminal) -> None:
        self._terminal = terminal
        tether = [sys.executable, "-I", "-S", _TETHER, str(os.getpid()), str(terminal.fd)]
        self._popen = subprocess.Popen([*tether, *argv], process_group=0)  # noqa: S603  the user's own program, no shell
        self.pid = self._popen.pid
        self.code: int | None = None
        self._told_to_stop = False

    def look(self) -> int | None:
        """Its code once it has ended (-9: by SIGKILL), None before. If it was stopped, we stop with it, and continue it when we are."""
        if self.code is None:
            if self._has_crashed():
                self.send(signal.SIGKILL)  # its tools would go on to change files beside a replacement
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                if self._terminal or self._told_to_stop:  # else somebody stopped it, who can also continue it
                    self._stop_too()
            elif pid:
                self._gone(os.waitstatus_to_exitcode(status))
        return self.code

    def send(self, number: int) -> None:
        """A signal to its whole group."""
        self._told_to_stop = self._told_to_stop or number == signal.SIGTSTP
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def end(self, grace_s: float) -> int:
        """SIGTERM to the group; after `grace_s` seconds SIGKILL, also to what it left behind: no tool of it may go on to change files."""
        if self.code is None:
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)  # a stopped one would not hear it
            crashpoints.reach("launcher-after-term")
            deadline = time.monotonic() + grace_s
            while not self._is_zombie() and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            # While it is not reaped its pid, and so the name of its group, cannot be given to anybody else.
            self.send(signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self._gone(os.waitstatus_to_exitcode(status))
        assert self.code is not None
        return self.code

    def _has_crashed(self) -> bool:
        """Ended by a signal that no user sends, and not reaped."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found is not None and found.si_code in (os.CLD_KILLED, os.CLD_DUMPED) and found.si_status not in _ASKED

    def _is_zombie(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _gone(self, code: int) -> None:
        self.code = self._popen.returncode = code
        self._terminal.take()

    def _stop_too(self) -> None:
        """Ctrl-Z: the shell that started us waits for us, not for the agent."""
        self._terminal.take()
        self._told_to_stop = False
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            os.kill(0, signal.SIGTSTP)  # as the terminal would; returns when we are continued, or at once where nobody could do that
        finally:
            signal.signal(signal.SIGTSTP, before)
        self._terminal.give(self.pid)
        self.send(signal.SIGCONT)
