"""Becomes the agent: run by the launcher as a program of its own, between fork and exec, where no Python code of the launcher may run.

    python -I -S tether.py LAUNCHER_PID TERMINAL_FD|-1 PROGRAM ARGUMENT…

It asks the kernel for a SIGTERM when the launcher dies (Linux): an agent whose launcher was killed would go on in a workspace in which the
next launcher starts another. It takes the terminal for its process group before the program can read from it. Then it is that program:
same pid, same start time.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Raises nothing: 127 when there is no such program, 126 when it cannot be run."""
    launcher, terminal, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != launcher:  # it died before we asked
        os._exit(128 + signal.SIGTERM)
    if terminal >= 0:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(terminal, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python has put its own there, and has ignored SIGPIPE
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  the user's own program, no shell
    except OSError as error:
        os.write(2, f"eventlog: {argv[0]!a}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
