"""The workloads, in the order in which they run. Adding one is a line: its name, and "module:function" that takes a Bench."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from benchmarks.race import Bench, Result

WORKLOADS = {
    "commit": "commits:immediate",
    "batched": "commits:batched",
    "threads": "crowds:crowd",
    "processes": "crowds:processes",
    "effects": "effects:effects",
    "fold": "folds:full_fold",
    "selective": "folds:selective_fold",
    "follow": "followers:followers",
    "opening": "sizes:opening",
    "status": "sizes:status",
    "snapshots": "snapshots:snapshots",
    "hooks": "hooks:hooks",
    "memory": "sizes:memory",
    "verify": "verifying:verifying",
}
SYNCED = ("commit", "threads", "processes", "effects")
"""Those whose operations wait for a sync: what a run with stretched syncs (slowdisk.py) is about."""


def load(name: str) -> Callable[[Bench], list[Result]]:
    """The function of a workload. Imported when it runs: one that does not import does not stop the others from being listed."""
    module, _, function = WORKLOADS[name].partition(":")
    found: Callable[[Bench], list[Result]] = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    return found
