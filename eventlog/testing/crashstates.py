"""Every directory that a power cut may leave behind, at every moment of a recorded run (reliability 3.1; after ALICE,
OSDI '14).

    fs = TrackedFileSystem(tmp / "disk")            # or FaultFileSystem
    log = EventLog.open(fs.root / "log", fs=fs)     # the workload, in this process
    fs.ack(log.commit(Event("a", {})).last)         # what was promised, in the same record
    check(crash_states(fs, seed=1), checker, tmp / "work")

`checker(path, acks)` gets each distinct directory and must raise (assert) when a promise is broken. Real processes are
recorded by strace instead: see `eventlog.testing.strace`.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from eventlog.testing import cuts
from eventlog.testing.cuts import materialize
from eventlog.testing.disk import Ack, Create, Directory, Disk, File, Nothing, Op, Sync, Tree, Write
from eventlog.testing.tracked import TrackedFileSystem

Checker = Callable[[Path, Sequence[object]], object]
Recovery = Callable[[TrackedFileSystem], object]


class CrashState(NamedTuple):
    """One legal directory after a power cut. `acks`: what had been promised by then; `origin`: where it comes from, to
    repeat it."""

    tree: Tree
    acks: tuple[object, ...]
    origin: str

    def materialize(self, path: Path) -> Path:
        """Write it to the new directory `path`."""
        materialize(self.tree, path)
        return path


class Report(NamedTuple):
    """`states` were checked; none broke a promise, or `check` would have raised."""

    states: int
    acks: int


class Recording(NamedTuple):
    """Operations in order, from a durable initial state on."""

    initial: Disk
    ops: Sequence[Op]

    def without_syncs(self, *, files: bool = False, directories: bool = False) -> Recording:
        """The same run on a disk that ignores syncs: a test of the test, which must now see promises break."""
        nodes = {node: isinstance(found, Directory) for node, found in self.initial.nodes.items()}
        nodes |= {op.node: op.directory for op in self.ops if isinstance(op, Create)}
        return Recording(
            self.initial,
            [Nothing() if isinstance(op, Sync) and (directories if nodes[op.node] else files) else op for op in self.ops],
        )


def recording(fs: TrackedFileSystem) -> Recording:
    """What `fs` has recorded so far."""
    return Recording(fs.initial, tuple(fs.ops))


def crash_states(
    recorded: TrackedFileSystem | Recording, *, seed: int, scattered: int = 3, acks: Sequence[object] = ()
) -> Iterator[CrashState]:
    """Every distinct state, at each operation: names {all, none, random} x data {all, none, zeros, torn, scattered by
    sectors}.

    `scattered`: how many random states of each random kind at each operation. `acks`: promises from before the
    recording.
    """
    run = recording(recorded) if isinstance(recorded, TrackedFileSystem) else recorded
    disk = run.initial.copy()
    rng = random.Random(seed)  # noqa: S311  not for secrets
    seen: set[tuple[bytes, int]] = set()
    promised = list(acks)
    for number in range(len(run.ops) + 1):
        op = run.ops[number - 1] if number else None
        if op is not None:
            disk.apply(op)
            if isinstance(op, Ack):
                promised.append(op.what)
        for kind, tree in _cuts(disk, rng, scattered):
            key = (_digest(tree), len(promised))
            if key not in seen:
                seen.add(key)
                yield CrashState(tree, tuple(promised), f"seed {seed}, after operation {number} {_short(op)}: {kind}")


def crash_again(state: CrashState, recover: Recovery, workdir: Path, *, seed: int, scattered: int = 1) -> Iterator[CrashState]:
    """Crash the recovery: run `recover(fs)` on a state and yield every state that a second power cut may leave on the
    way.

    `recover` may promise more with `fs.ack`; what was promised before the first crash still holds.
    """
    path = workdir / "again"
    shutil.rmtree(path, ignore_errors=True)
    fs = TrackedFileSystem(state.materialize(path))
    recover(fs)
    for second in crash_states(fs, seed=seed, scattered=scattered, acks=state.acks):
        yield second._replace(origin=f"{state.origin}; then in recovery: {second.origin}")
    shutil.rmtree(path)


def check(
    crashes: Iterable[CrashState],
    checker: Checker,
    workdir: Path,
    *,
    recover: Recovery | None = None,
    recover_every: int = 1,
    seed: int = 0,
    failures_max: int = 5,
) -> Report:
    """Materialize each state below `workdir` and run `checker(path, acks)` on it.

    With `recover`, the recovery of every `recover_every`-th state is crashed as well and each of those states checked
    too (double crash). Raises AssertionError that tells the first `failures_max` failures, with the seed and the
    operation of each.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    failures: list[str] = []
    count = promised = 0

    def one(state: CrashState) -> None:
        nonlocal count, promised
        count += 1
        promised = max(promised, len(state.acks))
        path = workdir / "state"
        shutil.rmtree(path, ignore_errors=True)
        try:
            checker(state.materialize(path), state.acks)
        except Exception as error:  # noqa: BLE001  told below, all of them
            failures.append(f"{state.origin}\n      {type(error).__name__}: {error}")
        finally:
            shutil.rmtree(path)

    for number, state in enumerate(crashes):
        one(state)
        if recover is not None and number % recover_every == 0:
            try:
                for second in crash_again(state, recover, workdir, seed=seed + number):
                    one(second)
            except Exception as error:  # noqa: BLE001  told below
                failures.append(f"{state.origin}; the recovery itself\n      {type(error).__name__}: {error}")
    if failures:
        told = "\n  - ".join(failures[:failures_max])
        raise AssertionError(f"{len(failures)} of {count} crash states break a promise:\n  - {told}")
    return Report(count, promised)


def _cuts(disk: Disk, rng: random.Random, scattered: int) -> Iterator[tuple[str, Tree]]:
    names: list[tuple[str, cuts.Names]] = [("all names", cuts.names_all), ("durable names", cuts.names_none)]
    if any(len(node.pending) > 1 for node in disk.nodes.values() if isinstance(node, Directory)):
        names += [("some names", cuts.names_some(rng))]
    data: list[tuple[str, cuts.Data]] = [("all data", cuts.data_all), ("durable data", cuts.data_none)]
    if any(node.pending for node in disk.nodes.values() if isinstance(node, File)):
        data += [("sizes without data", cuts.data_zeros)]
        data += [("torn data", cuts.data_torn(rng))] * scattered
        data += [("scattered data", cuts.data_scattered(rng))] * scattered
    for name_kind, name_choice in names:
        for data_kind, data_choice in data:
            yield f"{name_kind}, {data_kind}", disk.tree(name_choice, data_choice)


def _digest(tree: Tree) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, content in tree.items():
        digest.update(f"{name}\0{-1 if content is None else len(content)}\0".encode())
        digest.update(content or b"")
    return digest.digest()


def _short(op: Op | None) -> str:
    if isinstance(op, Write):
        return f"(write of {len(op.data)} bytes at {op.offset})"
    return "(nothing yet)" if op is None else f"({op})"
