"""The short road to JSON takes what the other takes, refuses what it refuses, and each reads what the other wrote."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog import Event, EventLog, PayloadError, payload, shortjson

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20)
ODD = st.sampled_from([math.nan, math.inf, 2**64, -(2**63) - 1, "\ud800", b"x", {1: 2}, {1, 2}, object(), 1j, {"\udfff": 1}, True, 1e300])


@given(st.dictionaries(st.text(), VALUES, max_size=5))
def test_each_road_reads_what_the_other_wrote(data: dict[str, Any]) -> None:
    assert orjson.loads(shortjson.dumps(data)) == data
    assert shortjson.loads(orjson.dumps(data)) == data


def encoded(event: Event, quick: bool, monkeypatch: pytest.MonkeyPatch) -> list[Any] | str:
    with monkeypatch.context() as patch:
        patch.setattr(payload, "quick", quick)
        if not quick:
            patch.setattr(payload, "_dumps", shortjson.dumps)
        try:
            body: list[Any] = orjson.loads(payload.encode(event, 1 << 20).body)
        except PayloadError as error:
            return str(error)
        return body


@pytest.mark.parametrize("wrap", [lambda one: {"x": one}, lambda one: {"x": [one]}, lambda one: {"x": {"y": (one,)}}])
@given(odd=ODD | VALUES)
def test_the_same_rule_on_both_roads(wrap: Any, odd: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        event = Event("note.added", wrap(odd), "s")
        assert encoded(event, True, patch) == encoded(event, False, patch)


def test_a_type_or_stream_that_is_refused_is_refused_on_both() -> None:
    with pytest.MonkeyPatch.context() as patch:
        kinds = ["", "A", "a..b", ".a", "a.", "a.-b", "_a", "a b", "a\n", "\u00e9", "a" * 201, "a.b-c_d.0"]
        for kind, stream in [*((kind, "s") for kind in kinds), ("a", "\ud800"), ("a", "x" * 4097)]:
            event = Event(kind, {}, stream)
            assert encoded(event, True, patch) == encoded(event, False, patch)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"[1,]",
        b"NaN",
        b"[-Infinity]",
        b'{"a":1} x',
        b"\xff",
        b'"\x01"',
        b"[" * 100_000,
        b"[1]\n[2]",
        b"tru",
        b"1e400",
        b'{"a":-1e999}',
    ],
)
def test_what_is_no_json_is_a_value_error_on_both_roads(text: bytes) -> None:
    for loads in (shortjson.loads, lambda data: shortjson._whole()[0](data.decode()), orjson.loads):
        with pytest.raises((ValueError, RecursionError)):  # JSONDecodeError is one of them
            loads(text)
    with pytest.raises(ValueError):  # noqa: PT011
        shortjson.loads(text)


def test_a_process_on_the_short_road_and_one_on_the_other_share_a_log(tmp_path: Path) -> None:
    code = """
import sys
from eventlog import jsonroad
jsonroad.take_the_short_one()
from eventlog import Event, EventLog
with EventLog.open(sys.argv[1]) as log:
    log.commit([Event("note.added", {"text": "\\u00e9\\U0001f600\\u2028", "n": [1, -2.5, None, True, 1e22]}, "s")])
    print([event.data for event in log.read()])
assert "orjson" not in sys.modules
"""
    with EventLog.open(tmp_path / "log") as log:
        log.commit(Event("note.added", {"text": "\u00e9\U0001f600\u2028"}))
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "log")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert [event.data for event in log.read()][1] == {"text": "\u00e9\U0001f600\u2028", "n": [1, -2.5, None, True, 1e22]}


def test_the_public_package_is_the_way_when_c_is_not_what_we_take_it_for(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, write = shortjson._whole()
    assert parse(write({"a": "\u00e9\n", "b": [1, 2.5]})) == {"a": "\u00e9\n", "b": [1, 2.5]}
    assert write({"a": "\u00e9"}) == '{"a":"\u00e9"}'
    with pytest.raises(ValueError, match="NaN"):
        parse("NaN")
    with pytest.raises(ValueError):  # noqa: PT011
        write(math.nan)
