"""`eventlog agent run`: an agent, and its replacement when a delivery needs one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from eventlog import EventLog
from eventlog.cli.options import log_option, thread_option
from eventlog.cli.output import note

if TYPE_CHECKING:
    from eventlog.recovery.harness.commandline import Harness


@click.group(
    epilog="""\b
Example:
  eventlog agent run --log ./log --thread web -- claude"""
)
def agent() -> None:
    """Agents: start one so that a delivery reaches it, come what may."""


@agent.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  eventlog agent run --log ./log --thread web -- claude
  eventlog agent run --log ./log --thread web -- claude -p --model sonnet -- "fix the test"
  eventlog agent run --log ./log --thread web -- codex exec "fix the test\"""",
)
@log_option
@thread_option
@click.option("--harness", type=click.Choice(["claude-code", "codex"]), help="What COMMAND is.  [default: by its name]")
@click.option("--max-restarts", type=click.IntRange(0, 1000), default=5, show_default=True, help="Replacements for one delivery.")
@click.option("--grace", type=click.FloatRange(0, 3600), default=10.0, show_default=True, help="Seconds between SIGTERM and SIGKILL.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run_agent(log: Path, thread: str, harness: str | None, max_restarts: int, grace: float, command: tuple[str, ...]) -> int:
    """Run COMMAND (claude or codex, with its hooks installed) and stay with it.

    When a delivery has to reach a new process, the agent is ended and started again in the same conversation, with the delivery as its
    first input. The exit code is that of the agent (128 + n after signal n); 1: only a person can go on; 4: THREAD has an agent already.
    """
    from eventlog.recovery.launcher import Launcher

    kind = cast("Harness | None", harness)
    with EventLog.open(log) as handle:
        launcher = Launcher(
            handle, thread, command, harness=kind, restarts_max=max_restarts, grace_s=grace, say=lambda line: note(f"eventlog: {line}")
        )
        return launcher.run()
