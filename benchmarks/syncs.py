"""How often an operation waits for the disk: counted by strace in a short run of its own, apart from any timing, for us and for the peers.

Counted is every call after which the kernel has asked the device to make something durable: fsync, fdatasync, msync(MS_SYNC),
sync_file_range, and each write through a descriptor that was opened with O_DSYNC or O_SYNC (lmdb writes its meta page so). Ours is counted
by the seam to the file system as well (stores.syncs_of); a test holds the two equal.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.effect_peers import EFFECTS
from benchmarks.peers import STORES, Store
from benchmarks.race import Bench
from benchmarks.stores import events

_NO_FILE = 999_999_999
MARK = f"fdatasync({_NO_FILE}"  # refused by the kernel, seen by strace: where the counted part begins and ends
_TRACED = "fsync,fdatasync,msync,sync_file_range,openat,close,write,writev,pwrite64,pwritev,pwritev2"
# Each is matched at the begin of a line, behind the thread's number: what a program writes may read like a call.
_MARKED = re.compile(rf"^\d+ +{re.escape(MARK)}.*$", re.MULTILINE)
_OPENED = re.compile(r"\d+ +openat\(.*\bO_D?SYNC\b.*\) = (\d+)")
_CLOSED = re.compile(r"\d+ +close\((\d+)\)")
_WRITTEN = re.compile(r"\d+ +(?:write|writev|pwrite64|pwritev2?)\((\d+),")
_SYNCED = re.compile(r"\d+ +(?:(?:fsync|fdatasync|sync_file_range)\(|msync\(.*\bMS_SYNC\b)")


def durable_calls(trace: str) -> int:
    """The calls between the two marks of a trace that made something durable. Raises ValueError without two marks."""
    parts = _MARKED.split(trace)
    if len(parts) != 3:
        raise ValueError(f"{len(parts) - 1} marks in the trace, not 2")
    direct: set[str] = set()
    count = 0
    for part, counts in ((parts[0], False), (parts[1], True)):
        for line in part.splitlines():
            if (opened := _OPENED.match(line)) is not None:
                direct.add(opened[1])
            elif (closed := _CLOSED.match(line)) is not None:
                direct.discard(closed[1])
            elif counts and (_SYNCED.match(line) or ((written := _WRITTEN.match(line)) is not None and written[1] in direct)):
                count += 1
    return count


def counted(bench: Bench, store: Store, operations: int, *, threads: int = 1, processes: int = 1) -> float | None:
    """Syncs for each operation of this store, growth and checkpoints included, opening and closing not.

    In many threads or processes it depends on how they meet, and strace slows them: a figure of that size, not an exact one.
    None without strace, with the reason printed. Taken once a run: a store that is raced twice is not counted twice.
    """
    key = f"{store.kind} {threads} {processes}"
    if key in bench.counted:
        return bench.counted[key]
    bench.say(f"counting the syncs of {store.title}")
    found = None
    if shutil.which("strace") is None:
        bench.skip("syncs of peers", "strace is not installed")
    else:
        trace = bench.place("trace")
        root = str(Path(__file__).resolve().parent.parent)
        # --seccomp-bpf: only the calls that are traced stop the program; the imports of some peers make a hundred thousand others.
        command = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", str(trace), "-e", f"trace={_TRACED}", "-e", "signal=none"]
        command += [
            sys.executable,
            "-m",
            "benchmarks.syncs",
            store.kind,
            str(bench.place(store.kind)),
            str(operations),
            str(threads),
            str(processes),
        ]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}, check=False)
        try:
            if done.returncode:
                raise ValueError(done.stderr.strip().rpartition("\n")[2])
            found = durable_calls(trace.read_text(encoding="utf-8", errors="replace")) / operations
        except (OSError, ValueError) as error:
            bench.skip(f"syncs of {store.title}", str(error))
    bench.counted[key] = found
    return found


def of_each(bench: Bench, stores: list[Store], operations: int, *, threads: int = 1, processes: int = 1) -> dict[str, float]:
    """Title -> syncs per operation, for those where they could be counted; with many threads or processes the title says so."""
    said = f", {threads} threads" if threads > 1 else f", {processes} processes" if processes > 1 else ""
    found = {f"{store.title}{said}": counted(bench, store, operations, threads=threads, processes=processes) for store in stores}
    return {title: count for title, count in found.items() if count is not None}


def _mark() -> None:
    try:
        os.fdatasync(_NO_FILE)
    except OSError:
        return
    raise AssertionError("the kernel synced a descriptor that there cannot be")


def main(kind: str, path: Path, operations: int, threads: int, processes: int) -> None:
    """The child under strace, which follows what this starts."""
    from benchmarks.crowds import shared_out
    from benchmarks.workers import Crew

    if processes > 1:
        with Crew(kind, path, processes) as crew:
            crew.work(1)
            _mark()
            crew.work(operations // processes)
            _mark()
        return
    store = {**STORES, **EFFECTS}[kind]
    items = store.prepare(events(operations))
    opened = store.open(path)
    opened.run(items[:1])  # what is done once, at the first
    _mark()
    if threads == 1:
        opened.run(items)
    else:
        shared_out(items, opened, threads)
    _mark()
    opened.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
