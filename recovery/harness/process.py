"""Which process an agent is, by a key that no other process has: its pid and its start time."""

from __future__ import annotations

import os

__all__ = ["NoProcess", "ancestor", "process_key"]

_GENERATIONS_MAX = 12
# A hook is often run by a shell that lives no longer than the hook. These and their like are never the agent.
_BETWEEN = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish", "ash", "busybox", "env", "timeout", "nice", "setsid"})


class NoProcess(Exception):
    """The process is gone, or the system does not tell when it started."""


def _stat(pid: int) -> tuple[str, int, str]:
    """The name of a process, its parent, and when it started (clock ticks since the boot)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError as error:
        raise NoProcess(f"process {pid}: it is gone, or /proc does not show it ({error.strerror})") from None
    # The name stands in parentheses and may hold anything, parentheses as well.
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    return head.partition(b"(")[2].decode(errors="replace"), int(fields[1]), fields[19].decode()


def process_key(pid: int) -> str:
    """`pid:start`, the start in clock ticks since the boot. Raises NoProcess."""
    return f"{pid}:{_stat(pid)[2]}"


def ancestor(name: str) -> int:
    """The nearest process above this one that is called `name`, else the nearest one that is no shell. Raises NoProcess."""
    pid, nearest = os.getppid(), 0
    for _ in range(_GENERATIONS_MAX):
        if pid <= 0:
            break
        called, parent, _start = _stat(pid)
        if called == name or called.startswith(f"{name}-"):
            return pid
        if not nearest and called not in _BETWEEN:
            nearest = pid
        pid = parent
    if not nearest:
        raise NoProcess(f"no process above this hook looks like {name!r}")
    return nearest
