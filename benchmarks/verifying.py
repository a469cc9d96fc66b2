"""verify: every byte of the log read and proved."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from benchmarks.folds import build
from benchmarks.race import Bench, Figure, Result, Sample
from eventlog import audit


def verifying(bench: Bench) -> list[Result]:
    """verify, against SHA-256 and CRC-32 of the same files, read in one-MiB pieces: the least that it could do."""
    results = []
    for size in (1, 100):
        path = bench.place("log")
        build(path, max(size, bench.size(20_000, 200)), size)
        files = sorted(path.glob("segments/*.seg"))
        mb = sum(file.stat().st_size for file in files) / 1e6
        head = {"sum": 0}

        def verified(path: Path = path, mb: float = mb) -> Sample:
            start = time.perf_counter()
            found = audit.verify(path)
            if not found.ok:
                raise AssertionError(json.dumps([str(problem) for problem in found.problems]))
            return {"rate": mb / (time.perf_counter() - start)}

        def summed(files: Sequence[Path] = files, mb: float = mb, head: dict[str, int] = head) -> Sample:
            start = time.perf_counter()
            for file in files:
                hasher, crc = hashlib.sha256(), 0
                with file.open("rb", buffering=0) as stream:
                    while piece := stream.read(1 << 20):
                        hasher.update(piece)
                        crc = zlib.crc32(piece, crc)
                head["sum"] ^= crc
            return {"rate": mb / (time.perf_counter() - start)}

        ours = f"verify, commits of {size}"
        results += bench.race(
            "verify",
            {ours: verified, "sha256+crc32": summed},
            [Figure(f"verify, commits of {size} : sha256+crc32 of the bytes", ours, "sha256+crc32", None, unit="MB/s")],
            title=f"verify, commits of {size}",
        )
        shutil.rmtree(path)
    return results
