"""fold(snapshot at n, tail) == fold(everything): for every n, for every built-in projection, over histories that the real protocols made.

The histories are those of the two machines that test the protocols: hooks that die between any two commits, and agents that are killed.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, settings

from eventlog import Event, EventLog, Recorded
from eventlog.fs import FileSystem
from eventlog.projections import BUILT_IN, EVERY_TYPE, IntentId, Projection, View, fold
from eventlog.projections.snapshots import keep


def _machine(file: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"histories_{name}", Path(__file__).with_name(file))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return getattr(module, name)


def shape(value: Any) -> Any:
    """Everything that a program could tell two states apart by, order of dicts and exact types included, but not identity."""
    kind = type(value).__name__
    if isinstance(value, Enum) or value is None or isinstance(value, (bool, int, float, str)):
        return kind, value
    if isinstance(value, dict):
        return kind, [(shape(key), shape(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return kind, [shape(item) for item in value]
    if isinstance(value, frozenset):
        return kind, sorted(map(repr, value))
    names = [field.name for field in fields(value)] if is_dataclass(value) else type(value).__slots__
    return kind, [(name, shape(getattr(value, name))) for name in names]


def advance(projection: Projection[Any], state: Any, events: Sequence[Recorded]) -> Any:
    other = projection.handlers.get(EVERY_TYPE)
    for event in events:
        handler = projection.handlers.get(event.type, other)
        if handler is not None:
            state = handler(state, event)
    return state


def through_json(projection: Projection[Any], state: Any) -> Any:
    return projection.load(orjson.loads(orjson.dumps(projection.pack(state))))


def check_every_n(events: Sequence[Recorded]) -> None:
    for projection in BUILT_IN.values():
        whole = shape(advance(projection, projection.initial, events))
        state = projection.initial
        for n in range(len(events) + 1):
            again = through_json(projection, state)
            assert shape(again) == shape(state), f"{projection.name}: the state after {n} does not come back"
            assert shape(advance(projection, again, events[n:])) == whole, f"{projection.name}: snapshot at {n}"
            if n < len(events):
                state = advance(projection, state, events[n : n + 1])


class Clock(FileSystem):
    """The real file system, at the time that a test says."""

    time_ns = 0

    def now(self) -> int:  # type: ignore[override]
        return self.time_ns


def check_on_disk(events: Sequence[Recorded], place: Path) -> None:
    """The same with files: a snapshot at every commit, each used by a handle that knows nothing else."""
    path = place / "snapshots-log"
    clock = Clock()
    with EventLog.open(path, segment_bytes_max=16 << 10, fs=clock) as log:
        views = {name: View(log, projection) for name, projection in BUILT_IN.items()}
        for event in events:
            clock.time_ns = event.time  # the events of some types speak of the times of others
            log.commit(Event(event.type, event.data, event.stream))
            for name, view in views.items():
                state, seq = view.refresh()
                log.snapshots.drop(name)
                assert keep(BUILT_IN[name], log.snapshots, state, seq) > 0
                if event.seq % 7 == 0 or event is events[-1]:
                    with EventLog.open(path, read_only=True) as reader:
                        found = BUILT_IN[name].resume(reader.snapshots)
                        assert found is not None
                        assert found[1] == seq
                        assert shape(fold(BUILT_IN[name], reader)) == shape(fold(BUILT_IN[name], reader, snapshots=False))
        log.commit(Event("x.last", {}))
        for projection in BUILT_IN.values():
            assert shape(View(log, projection).state) == shape(fold(projection, log, snapshots=False))


class Deliveries(_machine("test_deliveries_machine.py", "Harness")):  # type: ignore[misc]
    def teardown(self) -> None:
        check_every_n(self.log)


Deliveries.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to make one of these smaller takes minutes, and the assertion names the seq
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestDeliveries = Deliveries.TestCase


class DeliveriesOnDisk(_machine("test_deliveries_machine.py", "Harness")):  # type: ignore[misc]
    def teardown(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            if self.log:
                check_on_disk(self.log[:40], Path(place))


DeliveriesOnDisk.TestCase.settings = settings(Deliveries.TestCase.settings, max_examples=5)
TestDeliveriesOnDisk = DeliveriesOnDisk.TestCase


class Effects(_machine("test_effects_machine.py", "Effects")):  # type: ignore[misc]
    def teardown(self) -> None:
        with EventLog.open(self.place / "log") as log:
            events = list(log.read())
        check_every_n(events)
        super().teardown()


Effects.TestCase.settings = settings(Deliveries.TestCase.settings, max_examples=8, stateful_step_count=12)
TestEffects = Effects.TestCase


def test_the_shape_tells_what_equality_does_not() -> None:
    assert shape({"a": 1, "b": 2}) != shape({"b": 2, "a": 1})
    assert shape([1]) != shape((1,))
    assert shape(1) != shape(True)
    with pytest.raises(AssertionError, match="does not come back"):
        check_every_n_of(Projection("lossy", 1, {}, {"a": lambda s, e: {**s, e.stream: (1,)}}), [Recorded(1, 1, "a", "s", {})])


def check_every_n_of(projection: Projection[Any], events: Sequence[Recorded]) -> None:
    state = advance(projection, projection.initial, events)
    assert shape(through_json(projection, state)) == shape(state), "does not come back"


@pytest.mark.parametrize("text", ["a@1:1", "b@1:1@2:x:y", "a:b@3:step", "é@9:٣", "x@9007199254740991:9007199254740991"])
def test_an_id_comes_back_from_its_text_as_it_was(text: str) -> None:
    made, again = IntentId.parse(text), IntentId.from_text(text)
    assert shape(made) == shape(again)
    assert (made, hash(made)) == (again, hash(again))
