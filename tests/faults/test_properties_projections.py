"""P33-P39: folds. Snapshots have tests of their own (test_snapshots.py): for P33-P37 here is what holds without them, that a state which
is kept, stopped and begun again is the fold of everything, each event in it once."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from propkit import LAZY, event, fill, python

from eventlog import EventLog, Recorded
from eventlog.projections import COUNTS, FoldError, Projection, View, fold


def _sum(state: tuple[int, int], e: Recorded) -> tuple[int, int]:
    return state[0] + e.data["n"], state[1] + 1


SUM: Projection[tuple[int, int]] = Projection("sum", 1, (0, 0), {"test.n": _sum})


def expected(count: int) -> tuple[int, int]:
    """Computed without the log (protean 1042: a check by the stream itself is fooled by the stream)."""
    return count * (count - 1) // 2, count


def test_p33_a_fold_in_two_steps_is_the_fold_of_everything_for_every_n(tmp_path: Path) -> None:
    """What a snapshot at n and the tail will have to give."""
    with EventLog.open(tmp_path / "log", segment_bytes_max=4096) as log:
        for n in range(0, 60, 3):
            log.commit([event(n), event(n + 1), event(n + 2)], LAZY)
        whole = fold(SUM, log)
        assert whole == expected(60)
        for n in range(61):
            view = View(log, SUM)
            state, seq = view.refresh(n)
            assert (state, seq) == (expected(n), n)
            assert fold(SUM, log, upto=n) == state
            assert view.state == whole


def test_p34_the_state_of_one_log_is_not_that_of_another(tmp_path: Path) -> None:
    """Logs have an identity of their own, and a head a hash: what a snapshot will be known by."""
    heads = set()
    for name in ("a", "b"):
        fill(tmp_path / name, 10)
        with EventLog.open(tmp_path / name, read_only=True) as log:
            assert View(log, SUM).state == expected(10)
            heads.add((log.id, log.head.hash))
    assert len({log_id for log_id, _ in heads}) == 2
    assert len({digest for _, digest in heads}) == 2, "same events, another log: another hash"


def test_p35_a_view_is_never_ahead_of_what_is_durable(tmp_path: Path) -> None:
    """A state may be written down: so nothing that a power cut takes back may be in it."""
    from propkit import disk, found, open_on

    fs = disk(tmp_path / "disk", 35)
    log = open_on(fs, batch_window_ms=600_000)
    view = View(log, SUM)
    for n in range(8):
        log.commit(event(n), LAZY)
        assert view.state == expected(n + 1)
        left = fs.power_cut(tmp_path / f"cut{n}", stop=False)
        assert len(found(left.root / "log", fs=left)) >= view.seq
    log.close()


def test_p36_each_event_once_over_restarts_and_beside_writers(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog.open(path, segment_bytes_max=4096) as log:
        view = View(log, SUM)

        def write(start: int) -> None:
            with EventLog.open(path, segment_bytes_max=4096) as own:
                for n in range(start, 200, 2):
                    own.commit(event(n), LAZY)

        threads = [threading.Thread(target=write, args=(start,)) for start in (0, 1)]
        readers = [threading.Thread(target=lambda: [view.state for _ in range(60)]) for _ in range(2)]
        for thread in threads + readers:
            thread.start()
        for thread in threads + readers:
            thread.join()
        assert view.state == expected(200)
    code = (
        "import sys\nfrom eventlog import *\nfrom eventlog.projections import Projection, View\n"
        "p = Projection('sum', 1, (0, 0), {'test.n': lambda s, e: (s[0] + e.data['n'], s[1] + 1)})\n"
        "with EventLog.open(sys.argv[1], read_only=True) as log: print(View(log, p).state)"
    )
    for _ in range(2):
        assert python(code, path).stdout == f"{expected(200)}\n"


ONCE = """
import sys
from eventlog import *
from eventlog.projections import Projection
seen = Projection("seen", 1, frozenset(), {"did": lambda s, e: s | {e.stream}})
with EventLog.open(sys.argv[1]) as log:
    for n in range(20):
        log.transact(seen, lambda state: None if f"k-{n}" in state else Event("did", {}, f"k-{n}"), Durability.BATCHED)
"""


def test_p37_a_decision_by_key_is_made_once_over_processes_and_restarts(tmp_path: Path) -> None:
    """Deduplication is a fold, so it survives a restart and covers what is not synced yet."""
    path = str(tmp_path / "log")
    EventLog.open(path).close()
    for _ in range(2):  # the second round is the restart
        children = [subprocess.Popen([sys.executable, "-c", ONCE, path]) for _ in range(3)]
        assert [child.wait(60) for child in children] == [0, 0, 0]
    with EventLog.open(path, read_only=True) as log:
        assert sorted(e.stream for e in log.read()) == sorted(f"k-{n}" for n in range(20))


def test_p38_memory_is_that_of_the_state(tmp_path: Path) -> None:
    """Two hundred thousand events (40 MB) folded with 24 MB to spare."""
    code = """
import resource, sys
from eventlog import *
from eventlog.projections import COUNTS, Projection, fold
with EventLog.open(sys.argv[1]) as log:
    for n in range(0, 200_000, 1000):
        log.commit([Event("test.n", {"n": n + i, "text": "x" * 150}) for i in range(1000)], Durability.BATCHED)
    log.flush()
p = Projection("sum", 1, 0, {"test.n": lambda s, e: s + e.data["n"]})
log = EventLog.open(sys.argv[1], read_only=True)
fold(p, log, upto=5000)
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20),) * 2)
assert fold(p, log) == 200_000 * 199_999 // 2
assert sum(1 for _ in log.read()) == 200_000
log.close()
print("fine")
"""
    assert python(code, tmp_path / "log").stdout == "fine\n"


def test_p39_a_raising_fold_names_the_seq_and_leaves_the_rest_usable(tmp_path: Path) -> None:
    def touchy(state: list[int], e: Recorded) -> list[int]:
        return [*state, 100 // (e.data["n"] - 17)]

    bad: Projection[list[int]] = Projection("touchy", 1, [], {"test.n": touchy})
    path = fill(tmp_path / "log", 40)
    with EventLog.open(path) as log:
        view, good = View(log, bad), View(log, SUM)
        for _ in range(2):
            with pytest.raises(FoldError, match="touchy") as caught:
                view.state  # noqa: B018
            assert (caught.value.seq, caught.value.type) == (18, "test.n")
            assert (view.seq, len(view.peek())) == (17, 17)
        assert good.state == expected(40)
        log.commit(event(40))
        assert good.state == expected(41)
        assert fold(COUNTS, log)
        assert fold(bad, log, upto=17) == view.peek()
