"""Start a program where nothing but loopback can be reached: `python -I jail.py FD PORT PROGRAM ARGUMENT…`.

In a user and a network namespace of its own (where the kernel allows that), with loopback up, as uid 1000 in there (the same user outside:
it owns what you own, and is not root), without a way to more rights, and gone when its parent is. Before it starts, the socket that it
will find its model API on is made in there and sent through FD, with one line that says what was done. `@API@` in an argument or a
variable becomes the address.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import termios
from pathlib import Path

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_PDEATHSIG, _NO_NEW_PRIVS = 1, 38
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1
_UID = 1000


def _enter(libc: ctypes.CDLL) -> str:
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(_NEWUSER | _NEWNET) == 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{_UID} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{_UID} {gid} 1")
        return "loopback only"
    why = os.strerror(ctypes.get_errno())
    if libc.unshare(_NEWNET) == 0:
        return "loopback only, as the same user"
    return f"no namespace ({why}): the network is not cut off"


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        flags = struct.unpack("16sH14x", fcntl.ioctl(probe, _GET_FLAGS, struct.pack("16sH14x", b"lo", 0)))[1]
        fcntl.ioctl(probe, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _UP))


def main() -> None:
    """Never returns: becomes the program."""
    sender, port, argv = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    how = _enter(libc) if sys.platform == "linux" else "not Linux: the network is not cut off"
    alone = how.startswith("loopback only")
    if alone:
        _loopback_up()
    listener = socket.create_server(("127.0.0.1", port if alone else 0))
    api = f"http://127.0.0.1:{listener.getsockname()[1]}"
    socket.send_fds(sender, [json.dumps({"how": how, "api": api}).encode()], [listener.fileno()])
    listener.close()
    sender.close()
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # we lead a session: Ctrl-C and the foreground are those of this terminal
    if sys.platform == "linux":
        libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    environment = {name: value.replace("@API@", api) for name, value in os.environ.items()}
    words = [word.replace("@API@", api) for word in argv]
    os.execvpe(words[0], words, environment)  # no shell


if __name__ == "__main__":
    main()
