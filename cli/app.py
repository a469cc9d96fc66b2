"""The group of commands and the one place where errors become a line and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from eventlog import Corrupt, EventLogError, LockTimeout, LogNotFound, PayloadError, UnsupportedFormat, __version__
from eventlog.cli.output import EXIT, OutputFailed, discard_stdout, flush, note

# name -> module:attribute. Imported when asked for: `eventlog append` in a hook must not pay for what `fold` needs.
COMMANDS = {
    "demo": "demo:demo",
    "append": "append:append",
    "dump": "dump:dump",
    "tail": "tail:tail",
    "fold": "fold:fold",
    "status": "status:status",
    "snapshots": "snapshots:snapshots",
    "stats": "stats:stats",
    "top": "top:top",
    "effects": "effects:effects",
    "deliveries": "deliveries:deliveries",
    "hook": "hook_install:hook",
    "agent": "agent:agent",
    "recover": "recover:recover",
    "crashtest": "crashtest:crashtest",
    "head": "audit:head",
    "verify": "audit:verify",
    "repair": "audit:repair",
}

_CODES_ABOVE = {
    "BadIntentId": EXIT.usage,
    "BadCommand": EXIT.usage,
    "BadSettings": EXIT.usage,
    "WrongDecision": EXIT.no,
    "StillRunning": EXIT.busy,
    "AttemptBusy": EXIT.busy,
}


class Interrupted(Exception):
    """Ctrl-C inside a command. click turns KeyboardInterrupt into a blank line and exit code 1; we want 130 and quiet."""


class Door(click.Group):
    """A group whose commands are imported when used, and whose errors are one line each."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"eventlog.cli.{module}"), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and exit with the code. click's own standalone mode would print usage errors over several lines."""
        if not standalone_mode:
            return super().main(args, prog_name or "eventlog", complete_var, standalone_mode=False, **extra)
        sys.exit(self.run(args, complete_var, **extra))

    def run(self, args: Sequence[str] | None = None, complete_var: str | None = None, **extra: Any) -> int:
        """Run one command; the exit code. What was printed has reached the system when this returns a success."""
        warnings.showwarning = _show_warning
        try:
            try:
                code = super().main(args, "eventlog", complete_var, standalone_mode=False, **extra)
            except OutputFailed:
                raise
            except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  what is not ours is raised again
                code = _explain(error)
            flush()
        except OutputFailed as failure:
            discard_stdout()
            if failure.reader_left:  # `eventlog dump LOG | head`: the reader has what it wanted
                return failure.code
            note(f"eventlog: standard output: {failure.error.strerror}; {failure.so}")
            return EXIT.failed
        except KeyboardInterrupt:  # while the last of it was printed
            return EXIT.interrupted
        return code if isinstance(code, int) else EXIT.fine


def _explain(error: BaseException) -> int:
    """Turn an error into its line and its code; what is a bug of ours is raised again."""
    if isinstance(error, (Interrupted, KeyboardInterrupt, click.Abort)):
        return EXIT.interrupted
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()  # the help text
        return EXIT.usage
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else "eventlog"
        note(f"{path}: {error.format_message().rstrip('.')} ({path} --help)")
        return EXIT.usage
    if isinstance(error, click.ClickException):
        note(f"eventlog: {error.format_message()}")
        return error.exit_code
    if isinstance(error, EventLogError):
        note(f"eventlog: {error}")
        return code_of(error)
    if isinstance(error, OSError):
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        note(f"eventlog: {where}{error.strerror or error}")
        return EXIT.failed
    raise error


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """A warning is a line for people, too, and not a line of our source."""
    note(f"eventlog: warning: {message}")


def code_of(error: EventLogError) -> int:
    """The exit code for an error that a floor below raised."""
    if isinstance(error, (LogNotFound, PayloadError)):
        return EXIT.usage
    if isinstance(error, (Corrupt, UnsupportedFormat)):
        return EXIT.damaged
    if isinstance(error, LockTimeout):
        return EXIT.busy
    # By name: the upper floors are imported only by the commands that need them.
    return _CODES_ABOVE.get(type(error).__name__, EXIT.failed)


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    click.echo(f"eventlog {__version__}")
    ctx.exit()


@click.group(
    cls=Door,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Start here:   eventlog demo
Exit codes:   0 fine  1 the answer is no  2 usage, or no such log  3 damaged log  4 busy  5 the system refused
Completion:   eval "$(_EVENTLOG_COMPLETE=bash_source eventlog)"      (or zsh_source, fish_source)""",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version.")
def main() -> None:
    """An append-only event log that tells you after a crash what was sent, what may have been sent, and what is done."""
