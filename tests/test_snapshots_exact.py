"""A state that JSON would not give back is never kept, on either road to JSON, however many that it gives back were kept before."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from eventlog import Durability, Event, EventLog
from eventlog.projections import Projection, View, fold
from eventlog.projections.parallel import fold_in_parallel

MODULE = """
import math
from eventlog.projections import Projection

ODD = [math.inf, -math.inf, math.nan, 2**64, -(2**63) - 1, 10**400]
EVEN = [0, -0.0, 1.5, 2**64 - 1, -(2**63), None, "null", 5e-324]

class Box:  # says nothing of what is equal
    def __init__(self, value):
        self.value = value

class Compared(Box):
    def __eq__(self, other):
        return self.value == other.value

def handler(state, event):
    return state

def boxed(kind):
    return dict(dump=lambda box: {"deep": [(box.value, None)]}, load=lambda value: kind(value["deep"][0][0]))

SHAPES = {
    "json": (lambda value: {"deep": [value]}, {}),
    "boxed": (Box, boxed(Box)),
    "compared": (Compared, boxed(Compared)),
}
LOWEST = Projection("lowest", 1, math.inf, {"n": lambda state, event: min(state, event.data["n"])}, merge=min)
LOWEST_BOX = Projection(
    "lowest.box", 1, Box(math.inf), {"n": lambda state, event: Box(min(state.value, event.data["n"]))},
    dump=lambda box: box.value, load=Box, merge=lambda a, b: Box(min(a.value, b.value)),
)
PRODUCT = Projection("product", 1, 1, {"n": lambda state, event: state * event.data["n"]}, merge=lambda a, b: a * b)
"""
KEEPING = """
import sys
road, path = sys.argv[1:]
if road == "short":
    from eventlog import jsonroad
    jsonroad.take_the_short_one()
import odd
from eventlog import EventLog
from eventlog.projections import Projection
with EventLog.open(path) as log:
    for shape, (make, options) in odd.SHAPES.items():
        projection = Projection("odd." + shape, 1, make(0), {"n": odd.handler}, **options)
        for seq, value in enumerate(odd.EVEN, 1):
            assert projection.keep(log.snapshots, make(value), seq), (road, shape, value)
            state, _, _ = projection.resume(log.snapshots, seq)
            assert repr(getattr(state, "value", state)) == repr(getattr(make(value), "value", make(value)))
        for seq, value in enumerate(odd.ODD, len(odd.EVEN) + 1):
            assert not projection.keep(log.snapshots, make(value), seq), (road, shape, value)
    print(len(log.snapshots.entries()))
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "odd.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    with EventLog.open(tmp_path / "log", segment_bytes_max=8192) as log:
        for number in range(1, 301):
            log.commit(Event("n" if number <= 100 else "other", {"n": number}), Durability.BATCHED)
    return tmp_path / "log"


@pytest.mark.parametrize("road", ["long", "short"])
def test_no_number_that_would_be_lost_is_kept(path: Path, road: str) -> None:
    done = subprocess.run([sys.executable, "-c", KEEPING, road, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 9  # the last three of each shape


@pytest.mark.parametrize("version", [2**64 - 1, 2**64, 10**30])
def test_a_version_of_any_size_folds(path: Path, version: int) -> None:
    many = Projection("many", version, 0, {"n": lambda state, event: state + 1})
    with EventLog.open(path) as log:
        view = View(log, many)
        view._debt.spent_ns, view._debt.seq = 10**12, -1000
        assert view.state == 100
        assert len(log.snapshots.entries()) == (version < 2**64)
        assert fold(many, log) == 100


@pytest.mark.parametrize("name", ["LOWEST", "LOWEST_BOX", "PRODUCT"])
def test_a_part_that_a_child_could_not_tell_is_folded_all_the_same(path: Path, name: str) -> None:
    import odd  # type: ignore[import-not-found]

    with EventLog.open(path) as log:
        alone = fold(getattr(odd, name), log, snapshots=False)
        shared = fold_in_parallel(f"odd:{name}", log, workers=3, least=1)
        assert getattr(shared, "value", shared) == getattr(alone, "value", alone) != math.inf
