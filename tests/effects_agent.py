"""The program that the effect tests run in a child process and kill: one guarded effect, with a witness outside the log."""

from __future__ import annotations

import sys
from pathlib import Path

from eventlog import EventLog
from eventlog.recovery import EffectClass, Toolbox, ToolContext
from eventlog.testing import Ledger


def one_effect(log_path: str, witness: str) -> None:
    """Record, send and record one message; the witness is a file that the log knows nothing of."""
    with EventLog.open(log_path) as log:
        tools = Toolbox(log)

        @tools.tool(EffectClass.NON_IDEMPOTENT)
        def send(ctx: ToolContext, text: str) -> dict[str, str]:
            Ledger(witness).happen("send", text)
            return {"sent": text}

        with tools.attempt("order-17", 1) as attempt:
            attempt.call(send, text="hello")


def counted(log_path: str) -> None:
    """For strace: a first effect to have the segment grown, a marker on disk, one effect, a marker."""
    with EventLog.open(log_path) as log:
        tools = Toolbox(log)

        @tools.tool()
        def nothing(ctx: ToolContext) -> None:
            return None

        with tools.attempt("order-17", 1) as attempt:
            attempt.call(nothing)
            Path(log_path, "..", "begin").touch()
            attempt.call(nothing)
            Path(log_path, "..", "end").touch()


if __name__ == "__main__":
    counted(sys.argv[1])
