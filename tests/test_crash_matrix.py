"""Every effect class x every crash point x {crash, cancel}: real children, real SIGKILL, an independent ledger; the table is the law."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventlog.projections import EffectClass, IntentState
from eventlog.recovery.matrix import ENDINGS, EXPECTED, POINTS, Ending, cells, run_cell


@pytest.mark.parametrize(("effect_class", "point", "ending"), [cell for cell in cells() if cell[0] is EffectClass.RECONCILABLE])
def test_cell(tmp_path: Path, effect_class: EffectClass, point: str, ending: Ending) -> None:
    """The class with the most ways to end; all 72 cells are run, and held against the table, by the test of `demo --matrix`."""
    result = run_cell(tmp_path / "cell", effect_class, point, ending)
    assert result.cell == result.expected
    before = {"before-pending": None, "after-pending": IntentState.PENDING, "after-committed": IntentState.COMMITTED}
    assert result.found is before.get(point, IntentState.DISPATCHED), "the kill was not where it should be"


def test_the_table_is_whole_and_keeps_what_it_is_for() -> None:
    assert set(EXPECTED) == {(class_, ending) for class_ in EffectClass for ending in ENDINGS}
    assert all(len(row) == len(POINTS) for row in EXPECTED.values())
    for (class_, ending), row in EXPECTED.items():
        assert all(cell.effects <= 1 for cell in row), "nothing is ever done twice"
        if class_ is EffectClass.NON_IDEMPOTENT:
            assert all(cell.calls <= 1 for cell in row), "at most once"
        if ending == "cancel":
            assert all(cell.calls <= 1 for cell in row), "a cancel sends nothing again"
