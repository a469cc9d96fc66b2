"""`eventlog hook install|uninstall|doctor`: our hooks in the settings of a harness. (`hook claude-code|codex` never comes here: main.)"""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from eventlog import EventLog
from eventlog.cli.options import json_option, log_option, thread_option
from eventlog.cli.output import EXIT, answering, escape, note, say, say_json, shown

if TYPE_CHECKING:
    from eventlog.recovery.harness.settings import Harness
    from eventlog.recovery.harness.settings_file import SettingsFile

harness_argument = click.argument("harness", type=click.Choice(["claude-code", "codex"]))
settings_option = click.option(
    "--settings", required=True, type=click.Path(path_type=Path), metavar="FILE", help="settings.json of Claude Code, hooks.json of Codex."
)
dry_option = click.option("--dry-run", is_flag=True, help="Show the change, and make none.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal to ask on.")


@click.group(
    epilog="""\b
Examples:
  eventlog hook install claude-code --settings .claude/settings.json --log ~/logs/web --thread web
  eventlog hook doctor claude-code --settings .claude/settings.json"""
)
def hook() -> None:
    """Hooks of Claude Code and Codex: put them in, look whether they work.

    The hooks themselves are `eventlog hook claude-code` and `eventlog hook codex`; a harness runs them, with its JSON on standard input:

    \b
      eventlog hook claude-code|codex --log DIR --thread NAME [--reconciler PROGRAM] [--deadline SECONDS] [--record [--redact PATTERN]...]
    """


@hook.command(
    "install",
    epilog="""\b
Examples:
  eventlog hook install claude-code --settings .claude/settings.json --log ~/logs/web --thread web --reconciler ./reconcile
  eventlog hook install codex --settings ~/.codex/hooks.json --log ~/logs/web --thread web --dry-run""",
)
@harness_argument
@settings_option
@log_option
@thread_option
@click.option("--reconciler", metavar="PROGRAM", help="The program that brings the workspace up to date, with its arguments.")
@click.option("--record", is_flag=True, help="Record every hook event in the log, tool calls with arguments and results.")
@click.option(
    "--redact", multiple=True, metavar="PATTERN", help="With --record: what matches is not recorded. May be given more than once."
)
@click.option("--timeout", type=click.IntRange(5, 3600), default=60, show_default=True, help="Seconds that a tool call may be held up.")
@dry_option
@yes_option
def install(
    harness: str,
    settings: Path,
    log: Path,
    thread: str,
    reconciler: str | None,
    record: bool,
    redact: tuple[str, ...],
    timeout: int,
    dry_run: bool,
    yes: bool,
) -> int:
    """Put our hooks into the settings of HARNESS, beside those of others. Again is fine: then it changes what differs, or nothing."""
    import re

    from eventlog.recovery.harness import settings as pure
    from eventlog.recovery.harness.settings_file import read

    if redact and not record:
        raise click.UsageError("--redact goes with --record")
    for pattern in redact:
        try:
            re.compile(pattern)
        except re.error as error:
            raise click.UsageError(f"--redact {pattern!r}: {error}") from None
    kind = cast("Harness", harness)
    wanted = pure.Installation(
        kind, _this_program(), str(log.expanduser().absolute()), thread, _absolute(reconciler), record, redact, timeout
    )
    file = read(settings)
    before = pure.loads(file.text or "", shown(file.path))
    for entry in pure.foreign(pure.entries(before), kind):
        note(f"warning: another PreToolUse hook may deny, too, and of two reasons the model is given one: {entry.command}")
    if before.get("disableAllHooks"):
        note(f"warning: {shown(file.path)} says disableAllHooks: no hook runs until that is taken out")
    after = pure.merged(before, wanted)
    code = _change(file, pure.dumps(after, file.text or ""), before == after, dry_run, yes, wanted.log)
    if code == EXIT.fine and harness == "codex" and not dry_run:
        note("codex runs a hook that is new or changed only when you have trusted it: start codex, and say so in /hooks")
    return code


@hook.command(
    "uninstall",
    epilog="""\b
Example:
  eventlog hook uninstall claude-code --settings .claude/settings.json""",
)
@harness_argument
@settings_option
@dry_option
@yes_option
def uninstall(harness: str, settings: Path, dry_run: bool, yes: bool) -> int:
    """Take our hooks out of the settings of HARNESS, and nothing else."""
    from eventlog.recovery.harness import settings as pure
    from eventlog.recovery.harness.settings_file import read

    file = read(settings)
    before = pure.loads(file.text or "", shown(file.path))
    after = pure.without(before, cast("Harness", harness))
    return _change(file, pure.dumps(after, file.text or ""), before == after, dry_run, yes)


def _change(file: SettingsFile, text: str, same: bool, dry_run: bool, yes: bool, log: str | None = None) -> int:
    """Show the change, ask, make it. `log`: must be there before a hook is, which makes none and lets no call run without it."""
    from eventlog.recovery.harness.settings_file import replace

    name = shown(file.path)
    if same:
        say(f"{name}: nothing to change")
        return EXIT.fine
    old = (file.text or "").splitlines()
    for line in difflib.unified_diff(old, text.splitlines(), name, f"{name} (new)", lineterm=""):
        say(escape(line))
    if dry_run:
        return EXIT.fine
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError("this changes a file of yours, and there is no terminal to ask on; say --yes")
        if not click.confirm(f"Write {name}?", err=True):
            note("nothing was changed")
            return EXIT.no
    if log is not None:
        with EventLog.open(log):
            pass
    kept = replace(file, text)
    say(f"{name}: written" + (f"; what was there is in {shown(kept)}" if kept is not None else ""))
    return EXIT.fine


def _this_program() -> tuple[str, ...]:
    """How to call this very `eventlog` from anywhere."""
    script = Path(sys.executable).with_name("eventlog")
    if script.is_file() and os.access(script, os.X_OK):
        return (str(script),)
    return (sys.executable, "-P", "-m", "eventlog.cli")  # -P: never the `eventlog` of whatever directory an agent is in


def _absolute(command: str | None) -> str | None:
    """A reconciler's command line with its program's own path: an agent runs its hooks wherever it is."""
    import shlex
    import shutil

    if command is None:
        return None
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.UsageError(f"--reconciler: {error}") from None
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise click.UsageError(f"--reconciler: {command!r} names no program that can be run")
    return shlex.join([os.path.abspath(program), *words[1:]])


@hook.command(
    "doctor",
    epilog="""\b
Examples:
  eventlog hook doctor claude-code --settings .claude/settings.json
  eventlog hook doctor claude-code --settings .claude/settings.json --claude ~/.local/bin/claude --json""",
)
@harness_argument
@settings_option
@click.option(
    "--claude", "--codex", "program", type=click.Path(path_type=Path), metavar="PATH", help="The harness.  [default: by its name]"
)
@json_option
def doctor(harness: str, settings: Path, program: Path | None, in_json: bool) -> int:
    """Check a setup: settings, versions, permissions, timeouts, and the installed command itself, with a log of its own.

    Exit code 0: nothing failed. 1: something did. Your log and your workspace are not touched.
    """
    from eventlog.recovery.harness.doctor import examine

    checks = examine(cast("Harness", harness), settings, program)
    failed = any(check.level == "FAIL" for check in checks)
    with answering(EXIT.no if failed else EXIT.fine) as code:
        if in_json:
            say_json({"ok": not failed, "checks": [check._asdict() for check in checks]})
        else:
            for check in checks:
                say(escape(f"{check.level:<4}  {check.name}: {check.text}" + (f"; {check.help}" if check.help else "")))
    return code
