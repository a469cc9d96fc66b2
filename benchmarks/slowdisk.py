"""A slower disk: `--sync-us N` lets each sync of every side, peers written in C included, last at least N microseconds.

The targets were set where a sync takes 100 to 130 µs; what divides by a sync comes out differently on a faster disk. A shim in C
(slowdisk.c) stands in front of the C library's calls; the benchmarks run again, in a process that has it in LD_PRELOAD, and so have all
that this process starts. What such a run says of itself is asked of the shim (`stretched_us`), not of an option: results of a stretched
run cannot pass for those of a disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
VARIABLE = "EVENTLOG_BENCH_SYNC_US"  # read by the shim
US_MAX = 1_000_000


class Refused(Exception):
    """Syncs cannot be stretched here. The text is one line that says why."""


def stretched_us() -> int | None:
    """How long a sync of this process lasts at least, in µs; None where nothing is in front of it."""
    try:
        ask = ctypes.CDLL(None).eventlog_bench_sync_us
    except AttributeError:
        return None
    ask.restype = ctypes.c_long
    return int(ask()) or None


def built(place: Path) -> Path:
    """The shim, compiled into this directory. Raises Refused without Linux or without a compiler that makes it."""
    if sys.platform != "linux":
        raise Refused(f"--sync-us needs Linux (LD_PRELOAD, clock_nanosleep), and this is {sys.platform}")
    if (compiler := shutil.which("cc")) is None:
        raise Refused("--sync-us needs a C compiler, and there is no cc in PATH: install one, such as gcc")
    library = place / "slowdisk.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["nothing"]
        raise Refused(f"--sync-us: {compiler} cannot compile {SOURCE.name}: {said[0]}")
    return library


def preloaded(library: Path, us: int) -> dict[str, str]:
    """The environment of a process whose syncs, and whose children's, last at least so many µs."""
    preload = " ".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
    return {**os.environ, "LD_PRELOAD": preload, VARIABLE: str(us)}


def run_again(us: int, arguments: Sequence[str]) -> int:
    """`python -m benchmarks` with these arguments, behind the shim: its exit code. Raises Refused."""
    if VARIABLE in os.environ:
        raise Refused(f"--sync-us: {VARIABLE} is set, but syncs are not stretched to {us} us: the loader did not heed LD_PRELOAD")
    with tempfile.TemporaryDirectory(prefix="eventlog-bench-shim-") as place:
        library = built(Path(place))
        child = subprocess.Popen([sys.executable, "-m", "benchmarks", *arguments], env=preloaded(library, us))
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        while child.returncode is None:
            with contextlib.suppress(KeyboardInterrupt):  # the child was interrupted, too: it takes its files away first
                child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode
