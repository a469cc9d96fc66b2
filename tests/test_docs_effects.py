"""docs/effects.md: its examples run as they are printed, and its tables say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eventlog.projections import EffectClass, IntentState
from eventlog.recovery import decide

DOC = (Path(__file__).parent.parent / "docs" / "effects.md").read_text()


def test_the_examples_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, "docs/effects.md", "exec"), {})
    approved = ["clean-up@1:drop", "dropped old"]
    undone = ["released hotel-17", "released train-17"]
    watched = [f"sum@1:1 double committed 1 {replayed}" for replayed in (False, True)]
    assert capsys.readouterr().out.split("\n") == ["10", "letter-1@1:1", "delivered", *approved, *undone, "True", *watched, ""]


def table(heading: str) -> dict[str, list[str]]:
    section = DOC.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("|")]
    found: dict[str, list[str]] = {}
    for row in rows[2:]:
        for name in re.findall(r"`([A-Z_]+)`", row[0]):
            found[name] = [cell.strip() for cell in row[1:]]
    return found


def facts(class_: EffectClass, state: IntentState = IntentState.DISPATCHED, **more: object) -> decide.Facts:
    return decide.Facts(**{"state": state, "effect_class": class_, "tries": 1, "now_ns": 10**9, "key_ttl_ms": 10_000, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("class_", list(EffectClass))
def test_the_table_for_a_crash(class_: EffectClass) -> None:
    pending, dispatched = table("After a crash")[class_.name]
    assert pending == "sent"
    assert decide.next_action(facts(class_, IntentState.PENDING)) == decide.Send()
    action = decide.next_action(facts(class_, can_ask=class_ in (EffectClass.RECONCILABLE, EffectClass.TRANSACTIONAL)))
    said = {"sent again": decide.Send, "the recorded": decide.Send, "asked:": decide.Ask, "run again": decide.Ask, "**left**": decide.Leave}
    (kind,) = [kind for words, kind in said.items() if dispatched.startswith(words)]
    assert isinstance(action, kind)


@pytest.mark.parametrize("class_", list(EffectClass))
def test_the_table_for_a_cancel(class_: EffectClass) -> None:
    pending, dispatched = table("Cancelling")[class_.name]
    assert pending == "cancelled"
    asks = class_ in (EffectClass.RECONCILABLE, EffectClass.TRANSACTIONAL)
    action = decide.next_action(facts(class_, cancelled=True, can_ask=asks))
    said = {"cancelled": decide.Close, "`emits`": decide.Ask, "asked if": decide.Leave, "asked:": decide.Ask, "indeterminate": decide.Leave}
    (kind,) = [kind for words, kind in said.items() if dispatched.startswith(words)]
    assert isinstance(action, kind)
    for hook in (False, True):
        for emits in (False, True):
            assert not isinstance(decide.next_action(facts(class_, cancelled=True, can_ask=hook, emits=emits)), decide.Send)


def test_every_class_is_in_every_table() -> None:
    for heading in ("The classes", "After a crash", "Cancelling"):
        assert set(table(heading)) == {class_.name for class_ in EffectClass}
