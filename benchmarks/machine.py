"""Where the figures were taken: what a reader needs to know before comparing with another table."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.slowdisk import stretched_us

PEERS = ("lmdb", "rocksdict", "eventsourcing", "litequeue", "persist-queue", "dbos", "langgraph", "langgraph-checkpoint-sqlite")


def describe(place: Path) -> dict[str, Any]:
    """Machine, kernel, disk, versions and date. `fdatasync_us` is what one costs in that directory: most figures hang on it.

    `sync_us` is None, or what each was made to last at least (slowdisk.py).
    """
    median_us, p99_us = sync_costs(place)
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        **_disk(place),
        "sync_us": stretched_us(),
        "fdatasync_us": round(median_us, 1),
        "fdatasync_p99_us": round(p99_us, 1),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "versions": {name: _version(name) for name in ("eventlog", "orjson", *PEERS) if _version(name)},
    }


def file_system(place: Path) -> str:
    return _disk(place)["file_system"]


def sync_costs(place: Path) -> tuple[float, float]:
    """Microseconds that one fdatasync after a small overwrite takes: the median and the 99th percentile of some."""
    fd = os.open(place / "sync-cost", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, bytes(200 * 200), 0)
        os.fsync(fd)
        times = []
        for number in range(200):
            os.pwrite(fd, b"x" * 200, number * 200)
            start = time.perf_counter()
            os.fdatasync(fd)
            times.append(time.perf_counter() - start)
    finally:
        os.close(fd)
    times.sort()
    return times[100] * 1e6, times[198] * 1e6


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: the platform module has to do
    return platform.processor() or platform.machine()


def _disk(place: Path) -> dict[str, str]:
    """File system, device and write cache of the place where the benchmarks write."""
    found = {"file_system": "unknown", "device": "unknown", "write_cache": "unknown"}
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    best = ""
    for line in mounts:
        device, mounted, kind, *_ = line.split(" ")
        if place.resolve().is_relative_to(mounted) and len(mounted) >= len(best):
            best, found["device"], found["file_system"] = mounted, device, kind
    cache = Path("/sys/class/block", Path(found["device"]).name, "queue", "write_cache")
    if cache.exists():
        found["write_cache"] = cache.read_text(encoding="ascii").strip()
    return found
