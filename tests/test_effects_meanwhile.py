"""What may come while a record is on its way to the disk: a close, a cancel, a person, Ctrl-C, a second thread, the end of a loop.

Whatever comes, the program sees what the log says, nothing is told before it is durable, and nobody hangs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from interrupting import within

from eventlog import Event, EventLog, LogClosed
from eventlog.projections import EFFECTS, IntentState, fold
from eventlog.recovery import Toolbox, ToolContext


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log") as opened:
        for _ in range(3):
            opened.commit(Event("warm", {}))  # from here on a lone commit takes the short road
        yield opened


def state(log: EventLog, text: str) -> IntentState | None:
    intent = fold(EFFECTS, log).intents.get(text)
    return None if intent is None else intent.state


def types(log: EventLog) -> list[str]:
    return [event.type for event in log.read() if event.type != "warm"]


# -- the end of a log --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1])
def test_a_log_that_is_closed_under_its_coroutines_leaves_none_of_them_waiting(tmp_path: Path, before: int) -> None:
    """A wait for a record refuses to be cancelled, so it must get its answer even when the thread that writes for coroutines is gone."""

    async def main() -> list[Any]:
        with EventLog.open(tmp_path / "log") as log:
            tools = Toolbox(log)

            @tools.tool()
            async def act(ctx: ToolContext) -> None: ...

            async with tools.attempt("b") as attempt:
                for number in range(before):
                    await attempt.acall(act, step=f"before-{number}")  # now that thread runs
                calls = [asyncio.ensure_future(attempt.acall(act, step=f"s{number}")) for number in range(3)]
                await asyncio.sleep(0)  # their Pending events are in the queue
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = within(10, lambda: asyncio.run(main()))
    assert [type(answer) for answer in answers] == [LogClosed] * 3, answers
    with EventLog.open(tmp_path / "log") as log:
        assert fold(EFFECTS, log).by_state[IntentState.PENDING] == 3, "what was begun is written, as a commit of a thread is"
