"""How much of what was pending survived a power cut: the choices, and a directory made of one of them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from eventlog.testing.disk import Directory, Disk, File, Tree, Write

Names = Callable[[Directory], dict[str, int]]
Data = Callable[[File], bytes]


def names_all(directory: Directory) -> dict[str, int]:
    return directory.cache


def names_none(directory: Directory) -> dict[str, int]:
    return directory.disk


def names_some(rng: random.Random) -> Names:
    return lambda directory: directory.land(lambda: rng.random() < 0.5)


def data_all(file: File) -> bytes:
    return file.torn(len(file.pending), 0)  # not the cache: after a lost sync they differ


def data_none(file: File) -> bytes:
    return bytes(file.disk)


def data_zeros(file: File) -> bytes:
    """The size is there, the bytes are not: what ext4 really leaves behind an append."""
    return file.land(lambda _: 0, len(file.pending))


def data_torn(rng: random.Random) -> Data:
    """Everything up to a byte within one of the pending writes, most often the last."""

    def choose(file: File) -> bytes:
        if not file.pending:
            return bytes(file.disk)
        last = len(file.pending) - 1
        whole = last if rng.random() < 0.5 else rng.randrange(last + 1)
        op = file.pending[whole][1]
        length = len(op.data) if isinstance(op, Write) else 0
        parts = [0, 1, 64, length // 2, max(0, length - 1), rng.randrange(length + 1)]
        return file.torn(whole, min(rng.choice(parts), length))

    return choose


def data_scattered(rng: random.Random) -> Data:
    """Write-back in no order: of every sector some number of the writes to it landed, and the size as it likes."""

    def choose(file: File) -> bytes:
        count = len(file.pending)
        cuts: dict[int, int] = {}
        size_cut = count if rng.random() < 0.5 else rng.randint(0, count)
        likely = rng.choice((0.2, 0.5, 0.8))

        def cut(sector: int) -> int:
            if sector not in cuts:
                cuts[sector] = count if rng.random() < likely else rng.randint(0, count)
            return cuts[sector]

        return file.land(cut, size_cut)

    return choose


def random_state(disk: Disk, rng: random.Random) -> Tree:
    """One legal state after a power cut, all kinds of loss about equally likely."""
    names = rng.choice([names_all, names_none, names_some(rng)])
    data = rng.choice(
        [
            data_all,
            data_none,
            data_zeros,
            data_torn(rng),
            data_scattered(rng),
            data_scattered(rng),
        ]
    )
    return disk.tree(names, data)


def materialize(tree: Mapping[str, bytes | None], path: Path) -> None:
    """Write a tree to the new directory `path`; directories 0700, files 0600."""
    path.mkdir(mode=0o700)
    for name, content in tree.items():
        if content is None:
            (path / name).mkdir(mode=0o700)
        else:
            fd = os.open(path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(content)
