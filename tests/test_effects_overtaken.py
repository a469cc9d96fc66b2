"""A writer that waits its turn while its intent ends and somebody else writes about it: it looks again, and gets through."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eventlog import Event, EventLog
from eventlog.projections import effect_events as ev
from eventlog.recovery import Toolbox, ToolContext


def test_an_overtaken_writer_looks_again_and_gets_through(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        tools = Toolbox(log)

        @tools.tool()
        def act(ctx: ToolContext) -> int:
            return 1

        with tools.attempt("branch", 1) as attempt:
            attempt.call(act)
            core, text = attempt._guard.core, "branch@1:1"
            late = ev.late(text, kind="ok", try_number=1, result={"value": 2})
            asked = 0

            def decide(intent: object, cancelled: bool) -> Sequence[Event]:
                nonlocal asked
                asked += 1
                if asked == 1:
                    core._open.pop(text, None)  # as when another thread ended the intent meanwhile
                    log.commit(late)  # and another process wrote about it
                return (late,)

            assert core.write(text, decide) == (late,)
            assert asked == 2, "once overtaken, once through"
        assert len(list(log.read(types={late.type}))) == 2
