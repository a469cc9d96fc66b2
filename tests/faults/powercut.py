"""Real power cuts and a really full disk on loop devices; run as root in its own mount namespace by test_power_cut.py.

`unshare -m python powercut.py cut FSTYPE CUTS SEED | fsyncgate | full`: prints one JSON object.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eventlog import CommitError, Durability, Event, EventLog, EventLogError, LogPoisoned, NotWritten
from eventlog.audit import verify

FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("I", 2)
MKFS = {"ext4": ["mkfs.ext4", "-q", "-F", "-b", "4096"], "xfs": ["mkfs.xfs", "-q", "-f"]}
IMAGE_BYTES = {"ext4": 320 << 20, "xfs": 320 << 20}


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)


@contextmanager
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


@contextmanager
def unmounted(mount: Path) -> Iterator[Path]:
    """A place to mount on; whatever happens, nothing is mounted there in the end."""
    mount.mkdir()
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False, capture_output=True)


def writer(path: str, name: str, seed: str) -> None:
    """Commit until the disk is gone; a line for each acknowledgement. Some commits are BATCHED: those promise nothing
    yet."""
    rng = random.Random(seed)
    log = EventLog.open(path, segment_bytes_max=64 << 10)
    number = 1 + max((e.data["n"] for e in log.read(types={"w"}, streams={name})), default=-1)
    while True:
        lazy = rng.random() < 0.3
        size = rng.choice((1, 1, 2, 5))
        text = "x" * rng.choice((1, 100, 700, 5000))
        events = [Event("w", {"n": number, "i": i, "of": size, "text": text}, name) for i in range(size)]
        log.commit(events, Durability.BATCHED if lazy else Durability.IMMEDIATE)
        if not lazy:
            os.write(1, f"{number} {time.monotonic_ns()}\n".encode())
        number += 1


def promised(log: EventLog, acked: dict[str, int], last: dict[str, int]) -> int:
    """Check the log against what was acknowledged; `last` is the highest number of each writer seen in it before."""
    seen: dict[str, int] = {}
    rest = (0, "")
    seq = 0
    for event in log.read():
        seq += 1
        assert event.seq == seq, f"seq {event.seq} where {seq} was due"
        data = event.data
        if rest[0]:
            assert data["i"] == data["of"] - rest[0], f"seq {seq}: a commit is not whole"
            assert event.stream == rest[1], f"seq {seq}: a commit is not whole"
        else:
            assert data["i"] == 0, f"seq {seq}: a commit is not whole"
            assert data["n"] == seen.get(event.stream, -1) + 1, f"{event.stream}: {data['n']} out of order"
            seen[event.stream] = data["n"]
        rest = (data["of"] - data["i"] - 1, event.stream)
    assert not rest[0], "the log ends inside a commit"
    for name, number in acked.items():
        assert seen.get(name, -1) >= number, f"{name}: acknowledged {number}, found {seen.get(name)}"
    last.update(seen)
    return seq


def cut(kind: str, cuts: int, seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    acked: dict[str, int] = {}
    last: dict[str, int] = {}
    total = events = mended = 0
    with directory() as base, unmounted(base / "mnt") as mount:
        image = base / "disk.img"
        for number in range(cuts):
            if number % 10 == 0:  # a fresh disk now and then: creation is cut as well
                image.unlink(missing_ok=True)
                run("truncate", "-s", str(IMAGE_BYTES[kind]), image)
                run(*MKFS[kind], image)
                acked.clear()
                last.clear()
            run("mount", "-o", "loop", image, mount)
            writers = {}
            for name in ("a", "b", "c", "d"):
                command = [sys.executable, __file__, "writer", str(mount / "log"), name, f"{seed}/{number}/{name}"]
                with (base / name).open("wb") as out, (base / f"{name}.err").open("wb") as err:
                    writers[name] = subprocess.Popen(command, stdout=out, stderr=err)
            while number % 10 and not all((base / name).stat().st_size for name in writers):
                time.sleep(0.005)  # until all are at work, but on a new disk the cut may come while the log is made
                for name, process in writers.items():
                    assert process.poll() is None, f"writer {name}, cut {number}: {(base / f'{name}.err').read_text()}"
            time.sleep(rng.random() * 0.12 + (0.1 if number % 10 == 0 else 0))
            root = os.open(mount, os.O_RDONLY)
            last_moment = time.monotonic_ns()
            fcntl.ioctl(root, FS_IOC_SHUTDOWN, NO_LOG_FLUSH)
            os.close(root)
            for name, process in writers.items():
                process.wait(timeout=60)
                assert "Traceback" in (base / f"{name}.err").read_text(), f"writer {name} went on without a disk"
                # An fdatasync that is under way during the shutdown returns 0 on ext4 and XFS and its data are gone (a
                # bare pwrite + fdatasync loop shows it): only what was acknowledged before the cut began is a promise.
                lines = [line.split() for line in (base / name).read_text().splitlines()]
                numbers = [int(number_) for number_, moment in lines if int(moment) < last_moment]
                total += len(numbers)
                if numbers:
                    acked[name] = numbers[-1]
            run("umount", mount)
            run("mount", "-o", "loop", image, mount)
            with EventLog.open(mount / "log") as log:
                events = promised(log, acked, last)
            mended += any(name.endswith(".torn") for name in os.listdir(mount / "log" / "segments"))
            audit = verify(mount / "log")
            assert audit.ok, audit.problems
            run("umount", mount)
    return {
        "cuts": cuts,
        "acknowledged": total,
        "lost": 0,
        "events at the end": events,
        "cuts with a torn tail": mended,
    }


@contextmanager
def thin_disk() -> Iterator[tuple[Path, Path]]:
    """ext4 on a sparse image in a small tmpfs: writes go well until write-back finds no room (reliability 3.2)."""
    with directory() as base:
        pool, mount = base / "pool", base / "mnt"
        pool.mkdir()
        mount.mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=12M", "pool", pool)
        try:
            run("truncate", "-s", "64M", pool / "disk.img")
            image = pool / "disk.img"
            run(*MKFS["ext4"], "-E", "lazy_itable_init=1,nodiscard", "-O", "^has_journal", image)
            run("mount", "-o", "loop", image, mount)
            # The loop driver calls a short write a success: with requests of one page there are none, and fdatasync is
            # honest about every failure.
            device = subprocess.run(["losetup", "-n", "-O", "NAME", "-j", image], capture_output=True, text=True, check=True)
            limit = Path("/sys/block", Path(device.stdout.strip()).name, "queue/max_sectors_kb")
            usual = limit.read_text()
            limit.write_text("4")
            try:
                yield pool, mount
            finally:
                limit.write_text(usual)
                with suppress(subprocess.CalledProcessError):
                    run("umount", mount)
        finally:
            run("umount", pool)


def fsyncgate() -> dict[str, object]:
    """A's sync fails; B had the log open all the time, C opens it afterwards; both commit, and it must last through a
    remount."""
    with thin_disk() as (pool, mount):
        path = mount / "log"
        a, b = EventLog.open(path), Child("neighbour", path)
        kept: list[str] = []
        failed = None
        for number in range(60):
            name = f"a{number}"
            try:
                a.commit(Event("big", {"name": name, "text": os.urandom(500_000).hex()}))
                kept.append(name)
            except CommitError as error:
                failed = error
                break
        assert failed is not None, "60 MB fitted into 12 MB"
        try:
            a.commit(Event("big", {"name": "never"}))
            raise AssertionError("the handle went on after a failed sync")
        except LogPoisoned:
            poisoned = True
        run("mount", "-o", "remount,size=48M", pool)  # space is back: from here on the disk works
        kept += b.commit("b0")
        c = Child("neighbour", path)
        kept += c.commit("c0", "c1")
        kept += b.commit("b1")
        c.stop()
        b.stop()
        with suppress(CommitError, LogPoisoned):  # it says once more that its last commit is in doubt
            a.close()
        run("umount", mount)  # what only the page cache held is gone
        run("mount", "-o", "loop", pool / "disk.img", mount)
        with EventLog.open(path) as log:
            found = {event.data["name"] for event in log.read()}
        lost = [name for name in kept if name not in found]
        assert verify(path).ok
        return {
            "error": type(failed).__name__,
            "errno": failed.cause_errno,
            "poisoned": poisoned,
            "acknowledged": len(kept),
            "lost": lost,
            "never": "never" in found,
        }


class Child:
    """Another process with the log open, told what to commit through a pipe."""

    def __init__(self, role: str, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, role, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def commit(self, *names: str) -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        done = []
        for name in names:
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
            if self.process.stdout.readline() == "yes\n":
                done.append(name)
        return done

    def stop(self) -> None:
        self.process.communicate(timeout=60)


def neighbour(path: str) -> None:
    log = EventLog.open(path)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            log.commit(Event("small", {"name": line.strip(), "text": os.urandom(3000).hex()}))
            print("yes", flush=True)
        except EventLogError as error:
            print(f"no: {error}", flush=True)
    log.close()


def full() -> dict[str, object]:
    """A tmpfs without room: nothing is harmed, nothing is left behind, and the same handle goes on when there is room
    again."""
    with directory() as base:
        mount = base / "mnt"
        mount.mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=512k", "small", mount)
        try:
            log = EventLog.open(mount / "log", segment_bytes_max=64 << 10)
            refused = done = 0
            for round_number in range(50):
                ballast = mount / "ballast"
                with ballast.open("wb", buffering=0) as file, suppress(OSError):
                    while file.write(b"x" * (1 + round_number * 97)):
                        pass
                for _ in range(200):
                    try:
                        log.commit(Event("t", {"n": done, "text": "x" * 50 * (1 + round_number % 7)}))
                        done += 1
                    except NotWritten:
                        refused += 1
                        break
                names = sorted(os.listdir(mount / "log" / "segments"))
                assert [e.data["n"] for e in log.read()] == list(range(done)), "reading needs no room"
                ballast.unlink()
                log.commit(Event("t", {"n": done, "text": ""}))  # the same handle goes on
                done += 1
                if done > 1500:
                    break
            log.close()
            with (mount / "ballast").open("wb", buffering=0) as file, suppress(OSError):
                while file.write(b"x"):
                    pass
            names = sorted(os.listdir(mount / "log")) + sorted(os.listdir(mount / "log" / "segments"))
            opened = 0
            for _ in range(20):
                with suppress(EventLogError, OSError), EventLog.open(mount / "log") as again:
                    assert int(again.head) == done
                    opened += 1
            left = sorted(os.listdir(mount / "log")) + sorted(os.listdir(mount / "log" / "segments"))
            assert left == names, f"opens on a full disk left {set(left) ^ set(names)}"
            (mount / "ballast").unlink()
            with EventLog.open(mount / "log") as again:
                assert [e.data["n"] for e in again.read()] == list(range(done))
            return {"refused": refused, "acknowledged": done, "lost": 0, "opened on the full disk": opened}
        finally:
            run("umount", mount)


def main() -> None:
    role, arguments = sys.argv[1], sys.argv[2:]
    if role == "writer":
        writer(*arguments)
    elif role == "neighbour":
        neighbour(*arguments)
    elif role == "cut":
        print(json.dumps(cut(arguments[0], int(arguments[1]), int(arguments[2]))))
    else:
        print(json.dumps({"fsyncgate": fsyncgate, "full": full}[role]()))


if __name__ == "__main__":
    main()
