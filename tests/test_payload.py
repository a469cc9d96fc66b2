"""The payload rule: accepted comes back equal and of the same type; all else is refused, with the path, before a byte is written."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import math
import uuid
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog import Event, EventLog, PayloadError
from eventlog.payload import DEPTH_MAX, encode, encode_proved

LIMIT = 1 << 24


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    A = "a"


class Text(str):
    __slots__ = ()


class Mapping(dict):  # type: ignore[type-arg]
    pass


Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


REFUSED: list[tuple[Any, str]] = [
    (math.nan, "v: nan"),
    (math.inf, "v: inf"),
    ([1, {"x": -math.inf}], r"v\[1\]\.x"),
    (2**64, "64 bits"),
    (-(2**63) - 1, "64 bits"),
    ("\ud800", "lone surrogate"),
    ({"\udfff": 1}, "lone surrogate"),
    (b"bytes", "bytes is not"),
    ({1: "x"}, "key 1 is int"),
    ({Word.A: 1}, "not str"),
    ({Text("k"): 1}, "not str"),
    (datetime.datetime(2026, 1, 1), "datetime"),
    (datetime.date(2026, 1, 1), "date"),
    (uuid.UUID(int=1), "UUID"),
    (Number.ONE, "Number"),
    ([Number.ONE], r"v\[0\]"),
    (Word.A, "Word"),
    (Text("x"), "Text"),
    (Mapping(a=1), "Mapping"),
    (Pair(1, 2), "Pair"),
    ({1, 2}, "set"),
    (frozenset(), "frozenset"),
    (decimal.Decimal("1.5"), "Decimal"),
    (object(), "object"),
    (nested(DEPTH_MAX), f"deeper than {DEPTH_MAX}"),
    (nested(5000), f"deeper than {DEPTH_MAX}"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_what_would_not_come_back_equal_is_refused_with_the_path(value: Any, message: str) -> None:
    with pytest.raises(PayloadError, match=message) as caught:
        encode([Event("ok", {}), Event("a", {"v": value})], LIMIT)
    assert caught.value.path.startswith("events[1].data")


@pytest.mark.parametrize(
    "event",
    [
        Event("Upper", {}),
        Event("", {}),
        Event("a..b", {}),
        Event("a b", {}),
        Event("a\n", {}),
        Event(Word.A, {}),
        Event(Text("a"), {}),
        Event("a" * 201, {}),
        Event("a", [1]),  # type: ignore[arg-type]
        Event("a", Mapping()),
        Event("a", None),  # type: ignore[arg-type]
        Event("a", {}, "\ud800"),
        Event("a", {}, Text("s")),
        Event("a", {}, 5),  # type: ignore[arg-type]
        Event("a", {}, "é" * 4096),
        ("a", {}, ""),
        "a",
        None,
    ],
    ids=repr,
)
def test_types_streams_and_shapes(event: Any) -> None:
    encode(Event("a", {}, "s"), LIMIT)  # the caches know the plain names
    with pytest.raises(PayloadError, match=r"events\[0\]"):
        encode([event], LIMIT)


@pytest.mark.parametrize(
    "inner", [{1: 1}, {Text("k"): 1}, {"k": Number.ONE}, {"k": Text("x")}, Mapping(k=1), {"k": float("nan")}], ids=repr
)
def test_objects_of_scalars_are_looked_into(inner: Any) -> None:
    for count in (1, 2, 8, 9):
        fine = [Event("a", {"n": 1, "v": {"k": 1.5}}, "s")] * count
        assert encode(fine, LIMIT).events == count
        with pytest.raises(PayloadError, match=rf"events\[{count - 1}\]\.data\.v") as caught:
            encode([*fine[1:], Event("a", {"n": 1, "v": inner}, "s")], LIMIT)
        assert caught.value.path.startswith(f"events[{count - 1}]")


def test_the_error_names_the_event_among_a_few() -> None:
    with pytest.raises(PayloadError, match=r"events\[2\]\.type"):
        encode([Event("a", {}), Event("a", {}), Event("No Name", {})], LIMIT)


def test_an_empty_commit_is_refused() -> None:
    with pytest.raises(PayloadError, match="at least one"):
        encode([], LIMIT)


def test_a_refused_commit_writes_nothing_and_harms_nothing(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.commit(Event("a", {}))
        before = {p: p.read_bytes() for p in sorted((tmp_path / "log").rglob("*")) if p.is_file() and p.name != "lock"}
        for value, _ in REFUSED:
            with pytest.raises(PayloadError):
                log.commit([Event("a", {}), Event("a", {"v": value})])
        assert {p: p.read_bytes() for p in before} == before
        assert log.commit(Event("a", {})).first == 2


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=30,
)


def same(a: Any, b: Any) -> bool:
    """Equal, of equal types, all the way down; -0.0 is not 0.0, and keys keep their order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return a.hex() == b.hex()
    return bool(a == b)


@given(st.lists(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values), min_size=1, max_size=4))
def test_what_is_accepted_comes_back_equal(batch: list[dict[str, Any]]) -> None:
    draft = encode([Event("a.b", data, "s") for data in batch], LIMIT)
    assert len(draft.body) % 8 == 0
    rows = orjson.loads(draft.body)
    assert same([row[2] for row in rows], batch)
    assert draft.events == len(batch)


@given(st.lists(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values), min_size=1, max_size=4), st.data())
def test_what_was_looked_at_before_is_encoded_alike(batch: list[dict[str, Any]], data: st.DataObject) -> None:
    names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    events = [Event(data.draw(st.sampled_from(["a", "b.c"])), one, data.draw(names)) for one in batch]
    assert encode_proved(events, LIMIT) == encode(events, LIMIT)


@pytest.mark.parametrize(
    "event",
    [
        Event("a", {"v": object()}),
        Event("a", {"v": "\ud800"}),
        Event("a", {"v": 2**64}),
        Event("a", {1: 2}),  # type: ignore[dict-item]
        Event("A b", {}),
        Event("a", {}, "\ud800"),
        Event("a", {}, "s" * 4097),
        Event("a", nested(DEPTH_MAX + 1)),
        Event("a", {"v": "x" * 2000}),
    ],
    ids=["object", "surrogate", "65 bits", "key", "type", "stream", "long stream", "deep", "long"],
)
def test_what_c_code_sees_is_refused_of_what_was_looked_at_before(event: Event) -> None:
    with pytest.raises(PayloadError) as usual:
        encode([event], 1500)
    with pytest.raises(PayloadError) as proved:
        encode_proved([event], 1500)
    assert str(proved.value) == str(usual.value)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.decimals()
    | st.datetimes()
    | st.uuids()
    | st.sampled_from([Number.ONE, Word.A, Text("t"), Pair(1, 2)]),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.sets(st.integers()),
    max_leaves=12,
)


def listed(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [listed(v) for v in value]
    if isinstance(value, dict):
        return {k: listed(v) for k, v in value.items()}
    return value


@given(anything)
def test_round_trip_or_refusal_and_nothing_between(value: Any) -> None:
    try:
        draft = encode(Event("a", {"v": value}), LIMIT)
    except PayloadError:
        return
    assert same(orjson.loads(draft.body)[0][2], {"v": listed(value)})


def test_depth_at_the_limit_is_accepted() -> None:
    assert encode(Event("a", nested(DEPTH_MAX)), LIMIT).events == 1
    assert encode(Event("a", {"v": "[{" * 500}), LIMIT).events == 1
    with pytest.raises(PayloadError):
        encode(Event("a", nested(DEPTH_MAX + 1)), LIMIT)
