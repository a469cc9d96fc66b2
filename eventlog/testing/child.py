"""Entry point of a child process that may be killed at a crash point: `python -m eventlog.testing.child OPTIONS --
TARGET…`.

This is the only place that arms `eventlog.crashpoints`, and it does so only while it is itself the program that the
interpreter was started with. Importing it arms nothing, and no environment variable does: production code cannot be
told from outside to die. Users call `eventlog.testing.run_child`, which writes the command line.

Options: `--report FD` a file descriptor that gets the name of each point as it is passed, one a line;
`--crash-at NAME --nth N` SIGKILL to this process when the point is reached for the N-th time.
Target: `module:function JSON-list`, `file.py:function JSON-list`, `-m module args…`, `-c code args…` or `script.py
args…`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import runpy
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType

from eventlog import crashpoints

_ENTRY = "eventlog.testing.child"


def arm(*, report_fd: int | None, crash_at: str | None, nth: int) -> None:
    """Arm the crash points of this process. Raises RuntimeError unless the interpreter was started as such a child."""
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    if started_as is None or started_as.name != _ENTRY:
        raise RuntimeError(f"crash points can be armed only in a child started as `python -m {_ENTRY}`")
    passed = 0
    one_at_a_time = threading.Lock()

    def at_point(name: str) -> None:
        nonlocal passed
        with one_at_a_time:
            if report_fd is not None:
                os.write(report_fd, name.encode() + b"\n")
            if name != crash_at:
                return
            passed += 1
            if passed == nth:
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()  # SIGKILL may need a moment to reach this thread: nothing after the point may run

    crashpoints.armed = at_point


def _load(module: str) -> ModuleType:
    """Import by name, or from a file (a test module is seldom importable by name)."""
    if not module.endswith(".py"):
        return importlib.import_module(module)
    path = Path(module).resolve()
    sys.path.insert(0, str(path.parent))
    name = f"_crash_target_{path.stem}"
    loaded = ModuleType(name)
    loaded.__file__ = str(path)
    sys.modules[name] = loaded
    exec(compile(path.read_bytes(), str(path), "exec"), loaded.__dict__)  # noqa: S102  the caller's own file
    return loaded


def _run(target: list[str]) -> None:
    first, rest = target[0], target[1:]
    if first == "-m":
        sys.argv = rest
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)  # noqa: S102  the caller's own code
    elif ":" in first:
        module, _, function = first.rpartition(":")
        sys.argv = [first]
        getattr(_load(module), function)(*json.loads(rest[0]))
    else:
        sys.argv = target
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {_ENTRY}")
    parser.add_argument("--report", type=int)
    parser.add_argument("--crash-at")
    parser.add_argument("--nth", type=int, default=1)
    split = sys.argv.index("--")
    options = parser.parse_args(sys.argv[1:split])
    if options.report is not None:
        os.set_inheritable(options.report, False)  # a grandchild reaches points of its own, not ours
    arm(report_fd=options.report, crash_at=options.crash_at, nth=options.nth)
    _run(sys.argv[split + 1 :])


if __name__ == "__main__":
    main()
