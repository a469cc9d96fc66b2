"""The log against a list: any sequence of commits, refusals, rotations, reopens, second handles and crashes gives what a list gives."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, precondition, rule

from eventlog import Conflict, Durability, Event, EventLog, Expect, PayloadError, ReadOnly
from eventlog.audit import verify

TYPES = ["a", "b.c", "d"]
STREAMS = ["", "s", "täg/1", "s2"]
values = st.one_of(st.integers(-5, 5), st.text(max_size=900), st.lists(st.none(), max_size=3))
events = st.builds(
    Event,
    type=st.sampled_from(TYPES),
    data=st.dictionaries(st.text(max_size=4), values, max_size=3),
    stream=st.sampled_from(STREAMS),
)
bad = st.sampled_from(
    [
        Event("Not A Type", {}),
        Event("a", {"x": float("nan")}),
        Event("a", {"x": 2**70}),
        Event("a", {1: 2}),  # type: ignore[dict-item]
        Event("a", {}, "\ud800"),
        "no event",
    ]
)
durability = st.sampled_from(list(Durability))


class _Types:
    """How many events of each type: a projection for transact."""

    def __init__(self) -> None:
        self.handlers = dict.fromkeys(TYPES, self._count)

    @property
    def initial(self) -> dict[str, int]:
        return {}

    @staticmethod
    def _count(state: dict[str, int], event: Any) -> dict[str, int]:
        return state | {event.type: state.get(event.type, 0) + 1}


class LogMachine(RuleBasedStateMachine):
    handles: Bundle[int] = Bundle("handles")

    @initialize(target=handles)
    def begin(self) -> int:
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.base = Path(tempfile.mkdtemp(dir=memory))
        self.path = self.base / "log"
        self.model: list[Event] = []
        self.logs: list[EventLog | None] = []
        self.projection = _Types()
        return self._open()

    def _open(self) -> int:
        self.logs.append(EventLog.open(self.path, segment_bytes_max=4096, batch_window_ms=600_000))
        return len(self.logs) - 1

    def _log(self, handle: int) -> EventLog:
        log = self.logs[handle]
        assert log is not None
        return log

    @rule(target=handles)
    @precondition(lambda self: sum(log is not None for log in self.logs) < 4)
    def open_another(self) -> int:
        return self._open()

    @rule(handle=consumes(handles), target=handles, again=st.booleans())
    def close(self, handle: int, again: bool) -> Any:
        log = self._log(handle)
        log.close()
        if again:
            log.close()
        self.logs[handle] = None
        return self._open() if sum(log is not None for log in self.logs) == 0 else multiple()

    def _told(self, receipt: Any, batch: list[Event], asked: Durability) -> None:
        assert (receipt.first, receipt.last) == (len(self.model) + 1, len(self.model) + len(batch))
        assert receipt.durability is asked
        self.model += batch

    @rule(handle=handles, event=events, how=durability)
    def commit_one(self, handle: int, event: Event, how: Durability) -> None:
        self._told(self._log(handle).commit(event, how), [event], how)

    @rule(handle=handles, batch=st.lists(events, min_size=1, max_size=5), how=durability)
    def commit_many(self, handle: int, batch: list[Event], how: Durability) -> None:
        self._told(self._log(handle).commit(iter(batch), how), batch, how)

    @rule(handle=handles, batch=st.lists(events, max_size=3), wrong=bad, at=st.integers(0, 3))
    def commit_refused(self, handle: int, batch: list[Any], wrong: Any, at: int) -> None:
        batch.insert(at, wrong)
        with pytest.raises(PayloadError):
            self._log(handle).commit(batch)
        with pytest.raises(PayloadError):
            self._log(handle).commit([])

    @rule(handle=handles, event=events, streams=st.sets(st.sampled_from([*STREAMS, "never"])), back=st.integers(0, 6), how=durability)
    def commit_expecting(self, handle: int, event: Event, streams: set[str], back: int, how: Durability) -> None:
        after = max(0, len(self.model) - back)
        conflict = any(e.stream in streams for e in self.model[after:])
        if conflict:
            with pytest.raises(Conflict):
                self._log(handle).commit(event, how, Expect(streams, after))
        else:
            self._told(self._log(handle).commit(event, how, Expect(streams, after)), [event], how)

    @rule(handle=handles, event=events, how=durability, refuse=st.booleans())
    def transact(self, handle: int, event: Event, how: Durability, refuse: bool) -> None:
        seen: list[dict[str, int]] = []

        def decide(state: dict[str, int]) -> Event | None:
            seen.append(state)
            return None if refuse else event

        receipt = self._log(handle).transact(self.projection, decide, how)
        assert seen == [{name: n for name in TYPES if (n := sum(e.type == name for e in self.model))}]
        assert (receipt is None) == refuse
        if receipt is not None:
            self._told(receipt, [event], how)

    @rule(handle=handles)
    def flush(self, handle: int) -> None:
        self._log(handle).flush()

    @rule(
        handle=handles,
        after=st.integers(-1, 40),
        upto=st.none() | st.integers(0, 60),
        types=st.none() | st.sets(st.sampled_from([*TYPES, "never"])),
        streams=st.none() | st.sets(st.sampled_from([*STREAMS, "never"])),
        follow=st.booleans(),
    )
    def read(self, handle: int, after: int, upto: int | None, types: set[str] | None, streams: set[str] | None, follow: bool) -> None:
        log = self._log(handle)
        if follow:
            found, upto = log.follow(after, timeout=0, types=types, streams=streams), None
        else:
            found = log.read(after, upto=upto, types=types, streams=streams)
        assert [(e.seq, e.type, e.stream, e.data) for e in found] == [
            (seq, e.type, e.stream, e.data)
            for seq, e in enumerate(self.model, 1)
            if seq > after
            and (upto is None or seq <= upto)
            and (types is None or e.type in types)
            and (streams is None or e.stream in streams)
        ]

    @rule()
    def read_only(self) -> None:
        with EventLog.open(self.path, read_only=True) as log:
            assert [e.data for e in log.read()] == [e.data for e in self.model]
            with pytest.raises(ReadOnly):
                log.commit(Event("a", {}))

    @rule(garbage=st.binary(min_size=1, max_size=90).filter(lambda raw: any(raw)))
    def a_writer_dies_in_its_write(self, garbage: bytes) -> None:
        """What it leaves stands where the next frame goes; the next commit, of any handle, mends it."""
        with EventLog.open(self.path, segment_bytes_max=4096) as log:
            end = log._writer.view.tail.end  # type: ignore[union-attr]
            last = self.path / "segments" / log.segments()[-1].name
        if len(self.model) and last.stat().st_size > end + 90:
            with EventLog.open(self.path, segment_bytes_max=4096) as log, last.open("r+b", buffering=0) as file:
                file.seek(log._writer.view.tail.end)  # type: ignore[union-attr]
                file.write(b"\xf5evf" + garbage)
                log.commit(Event("a", {"mended": True}))
                assert len(log.mended) == 1
            self.model.append(Event("a", {"mended": True}))

    @rule(damage=st.sampled_from([b"", bytes(200), b"rubbish" * 40]))
    def the_lock_loses_its_contents(self, damage: bytes) -> None:
        (self.path / "lock").write_bytes(damage)

    @invariant()
    def every_handle_knows_the_head(self) -> None:
        for log in self.logs:
            if log is not None:
                assert int(log.head) == len(self.model)

    def teardown(self) -> None:
        if not hasattr(self, "base"):
            return
        for log in self.logs:
            if log is not None:
                log.close()
        audit = verify(self.path)
        assert audit.ok, audit.problems
        assert audit.events == len(self.model)
        with EventLog.open(self.path) as log:
            assert [e.data for e in log.read()] == [e.data for e in self.model]
            assert log.mended == []
        shutil.rmtree(self.base)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
