"""Test your own runtime against crashes and failing disks. Not imported by `import eventlog`.

Crash points (a real SIGKILL in a real child process, at a named place):

    from eventlog.testing import run_child, record_points

    result = run_child("my_agent:main", ["order-17"], crash_at="after-dispatched")  # or ["-m", "my_agent"], or a script
    assert result.killed                                                # .returncode .stdout .stderr .points
    for point, nth in record_points("my_agent:main", ["order-17"]):     # sweep: crash at every place that the run
    passes
        run_child("my_agent:main", ["order-17"], crash_at=point, nth=nth)

Points are passed by `eventlog.crashpoints.reach("name")`, free when unarmed; your own code may have some.

`Ledger`: an independent witness of what happened outside. `FaultFileSystem`: a disk that refuses, tears and loses
power, `sweep`: fail each call of it in turn. `crash_states` and `check`: every directory that a power cut may leave
behind a recorded run; `strace`: the same for real processes. docs/testing.md shows each at work.
"""

from eventlog.testing import strace
from eventlog.testing.crash import ChildResult, record_points, run_child
from eventlog.testing.crashstates import (
    CrashState,
    Recording,
    Report,
    check,
    crash_again,
    crash_states,
    recording,
)
from eventlog.testing.faultfs import CALLS, ERRNOS, Fault, FaultFileSystem, sweep
from eventlog.testing.ledger import Entry, Ledger
from eventlog.testing.tracked import TrackedFileSystem

__all__ = [
    "CALLS",
    "ERRNOS",
    "ChildResult",
    "CrashState",
    "Entry",
    "Fault",
    "FaultFileSystem",
    "Ledger",
    "Recording",
    "Report",
    "TrackedFileSystem",
    "check",
    "crash_again",
    "crash_states",
    "record_points",
    "recording",
    "run_child",
    "strace",
    "sweep",
]
