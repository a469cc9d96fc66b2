"""The values that stand in the place of dataclasses, and the names that stand in the place of typing's, do what those do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from eventlog import Commit, Event, values
from eventlog.light import Lazy, NamedTuple
from eventlog.projections.delivery_words import Chain, SoftBatch
from eventlog.recovery import Caller, PassThrough
from eventlog.recovery.delivery_words import Wait

CALLER = Caller("web", "1:2")


def test_it_is_a_dataclass_for_whoever_uses_them() -> None:
    assert dataclasses.is_dataclass(CALLER)
    assert [field.name for field in dataclasses.fields(Caller)][:3] == ["thread", "process", "chain"]
    assert dataclasses.replace(CALLER, prompt="p") == values.replace(CALLER, prompt="p") == Caller("web", "1:2", prompt="p")
    assert dataclasses.asdict(CALLER) == values.asdict(CALLER)
    assert dataclasses.fields(Chain)[3].default is None
    assert dataclasses.replace(Chain(), turn=3).turn == 3


def test_it_is_equal_by_type_and_fields_and_cannot_be_changed() -> None:
    assert Caller("web", process="1:2", chain="main") == CALLER
    assert hash(Caller("web", "1:2")) == hash(CALLER)
    assert PassThrough("web#1") != Wait("web#1")
    assert PassThrough("web#1") != ("web#1",)
    for change in (lambda one: setattr(one, "prompt", "p"), lambda one: delattr(one, "prompt"), lambda one: setattr(one, "new", 1)):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
            change(CALLER)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Chain())
    chain = Chain()
    chain.turn = 2
    assert chain != Chain()
    assert Chain().closed is not Chain().closed


@pytest.mark.parametrize(
    ("args", "named"),
    [((), {}), (("a",), {}), (("a", "b"), {"thread": "c"}), (("a", "b"), {"what": 1}), (("a",) * 9, {}), ((), {"thread": "a"})],
)
def test_wrong_arguments_are_type_errors(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Caller(*args, **named)
    with pytest.raises(TypeError):
        values.replace(CALLER, what=1)  # type: ignore[call-arg]


def test_it_can_be_shown_matched_copied_and_pickled() -> None:
    assert repr(PassThrough("web#1")) == "PassThrough(acknowledged='web#1')"
    match Wait("web#1"):
        case Wait(intent):
            assert intent == "web#1"
    proof = SoftBatch("inc", "main", 1, 2, 3, calls=("a",))
    for again in (copy.copy(proof), copy.deepcopy(proof), pickle.loads(pickle.dumps(proof))):
        assert again == proof


def test_a_named_tuple_has_its_defaults_docs_and_methods() -> None:
    class Point(NamedTuple):
        """A place."""

        x: int
        y: int = 7

        @property
        def sum(self) -> int:
            return self.x + self.y

    assert Point(1) == (1, 7)
    assert Point(x=1, y=2).sum == 3
    assert (Point.__name__, Point.__doc__, Point._fields) == ("Point", "A place.", ("x", "y"))
    assert Event("a", {}) == Event(type="a", data={}, stream="")
    assert pickle.loads(pickle.dumps(Commit(1, 2, 3, None))) == (1, 2, 3, None)  # type: ignore[arg-type]


def test_a_lazy_module_has_what_the_module_has() -> None:
    assert Lazy("dataclasses").replace is dataclasses.replace
    with pytest.raises(AttributeError):
        _ = Lazy("dataclasses").nothing
