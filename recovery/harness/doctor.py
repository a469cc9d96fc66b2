"""Checks of a setup of hooks: what stands in the settings, whether it can work, and whether it does (a dry run on a log of its own)."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from eventlog import EventLog
from eventlog.errors import EventLogError
from eventlog.recovery.harness.dry_run import dry_run
from eventlog.recovery.harness.settings import CALL, EVENTS, BadSettings, Entry, Harness, entries, foreign, is_ours, loads, words_of
from eventlog.recovery.harness.settings_file import read

__all__ = ["DEADLINE_S", "Check", "examine", "option_of", "version_check"]

DEADLINE_S = 20.0
"""What a hook takes for its deadline when its command line names none."""
_TIMEOUT_S = 600.0  # of a command hook without one, in both harnesses
_MARGIN_S = 1.0  # between the hook's own deadline and the moment at which the harness ends it, and lets the call run
_RUN = {"claude-code": "claude", "codex": "codex"}
# What was measured, and from which version on there is what the protocol needs.
_KNOWN: dict[Harness, dict[tuple[int, ...], str]] = {
    "claude-code": {
        (2, 1, 197): "measured: the reason of a denial reaches the model as it is",
        (2, 1, 332): "measured: the reason of a denial reaches the model behind a few words",
    },
    "codex": {(0, 171, 0): "measured: one call at a time is proved by the rollout file, otherwise a restart delivers"},
}
_LEAST: dict[Harness, tuple[int, ...]] = {"claude-code": (2, 1, 196), "codex": (0, 124, 0)}


class Check(NamedTuple):
    """One line. `help`: what to do about it."""

    name: str
    level: Literal["ok", "warn", "FAIL"]
    text: str
    help: str = ""


def examine(harness: Harness, settings: str | os.PathLike[str], program: str | os.PathLike[str] | None = None) -> list[Check]:
    """All checks, in the order in which to mend what they find. Changes nothing but a directory of its own, which it removes."""
    return list(_examine(harness, Path(settings), program))


def _examine(harness: Harness, settings: Path, program: str | os.PathLike[str] | None) -> Iterator[Check]:
    yield from _version(harness, program)
    try:
        file = read(settings)
        found = loads(file.text or "", str(file.path))
    except (BadSettings, OSError) as error:
        yield Check("settings", "FAIL", str(error))
        return
    if file.text is None:
        yield Check("settings", "FAIL", f"{file.path} is not there", f"eventlog hook install {harness} --settings {file.path} …")
        return
    yield _permissions("settings", file.path)
    sources = {str(file.path): found, **_others(harness, file.path)}
    yield from _switched_off(sources)
    ours = [entry for entry in entries(found) if is_ours(entry.command, harness)]
    yield from _entries(harness, ours)
    yield from _foreign(harness, sources, str(file.path))
    calls = [entry for entry in ours if entry.event == CALL]
    if not calls:
        return
    words = words_of(calls[0].command)
    yield from _command(words)
    yield from _log(option_of(words, "--log"))
    yield from _reconciler(option_of(words, "--reconciler"))
    yield from (Check(f"dry run, {name}", level, text, help_) for name, level, text, help_ in dry_run(harness, calls[0].command))


# -- the harness --------------------------------------------------------------------------------------------------------------------


def _version(harness: Harness, program: str | os.PathLike[str] | None) -> Iterator[Check]:
    path = os.fspath(program) if program is not None else shutil.which(_RUN[harness])
    if path is None:
        yield Check(
            "version", "warn", f"no {_RUN[harness]} on the PATH; its version was not looked at", f"name it with --{_RUN[harness]} PATH"
        )
        return
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603  the user's program
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check("version", "FAIL", f"{path} --version: {getattr(error, 'strerror', None) or 'no answer in 30 s'}")
        return
    yield version_check(harness, done.stdout)


def version_check(harness: Harness, said: str) -> Check:
    """What is known of the version that the harness says it is."""
    match = re.search(r"\b(\d+)\.(\d+)\.(\d+)\b", said)
    if match is None:
        return Check("version", "warn", f"{said.strip()[:80]!r} names no version")
    version = tuple(int(part) for part in match.groups())
    if version in _KNOWN[harness]:
        return Check("version", "ok", f"{match[0]}, {_KNOWN[harness][version]}")
    if version < _LEAST[harness]:
        return Check("version", "FAIL", f"{match[0]} lacks what a proof of delivery needs", f"update to {_text(max(_KNOWN[harness]))}")
    return Check(
        "version", "warn", f"{match[0]} was not measured; known: {', '.join(map(_text, _KNOWN[harness]))}", "look at what the dry run says"
    )


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


# -- the settings -------------------------------------------------------------------------------------------------------------------


def _permissions(name: str, path: Path) -> Check:
    """Whoever can write a settings file, or a log, runs commands as us, or says what was delivered."""
    for place in (path, path.parent):
        status = os.stat(place)
        if status.st_uid not in (os.geteuid(), 0):
            return Check(name, "FAIL", f"{place} belongs to uid {status.st_uid}", "make it yours")
        if status.st_mode & stat.S_IWOTH and not (place != path and status.st_mode & stat.S_ISVTX):
            return Check(name, "FAIL", f"everybody may write {place} (mode {stat.S_IMODE(status.st_mode):o})", f"chmod o-w {place}")
    return Check(name, "ok", str(path))


def _others(harness: Harness, path: Path) -> dict[str, dict[str, Any]]:
    """Other settings that count as well: what can be read of them."""
    home = Path.home()
    if harness == "codex":
        places = [Path(os.environ.get("CODEX_HOME", home / ".codex")) / "hooks.json", path.parent / "hooks.json"]
    else:
        mine = Path(os.environ.get("CLAUDE_CONFIG_DIR", home / ".claude"))
        managed = Path("/etc/claude-code/managed-settings.json")
        places = [mine / "settings.json", path.parent / "settings.json", path.parent / "settings.local.json", managed]
    found: dict[str, dict[str, Any]] = {}
    for place in places:
        try:
            file = read(place)
            if file.text is not None and file.path != path:
                found[str(file.path)] = loads(file.text, str(file.path))
        except (BadSettings, OSError):  # not the file in question
            continue
    return found


def _switched_off(sources: dict[str, dict[str, Any]]) -> Iterator[Check]:
    found = False
    for name, settings in sources.items():
        for key in ("disableAllHooks", "allowManagedHooksOnly"):
            if settings.get(key):
                found = True
                yield Check("hooks run", "FAIL", f"{name} says {key}", "take that out, or ask who manages it")
    if not found:
        yield Check("hooks run", "ok", f"not switched off in {', '.join(sources)}")


def _entries(harness: Harness, ours: Sequence[Entry]) -> Iterator[Check]:
    again = f"eventlog hook install {harness} … puts it right"
    bad = False
    for wanted in EVENTS[harness]:
        there = [entry for entry in ours if entry.event == wanted.event]
        if len(there) != 1:
            bad = True
            yield Check("entries", "FAIL", f"{wanted.event}: {len(there)} hooks of ours instead of one", again)
    places = {(option_of(words_of(entry.command), "--log"), option_of(words_of(entry.command), "--thread")) for entry in ours}
    if len(places) > 1:
        bad = True
        yield Check("entries", "FAIL", f"the hooks name {len(places)} different logs or threads", again)
    for entry in ours:
        for why in _faults(entry):
            bad = True
            yield Check("entries", "FAIL", f"{entry.event}: {why}", again)
    if not bad:
        yield Check("entries", "ok", f"{len(ours)} events, one log, one thread; only {CALL} may deny, and it does when it fails")


def _faults(entry: Entry) -> Iterator[str]:
    words = words_of(entry.command)
    closed = words[-3:] == ["||", "exit", "2"]
    if entry.event == CALL and not closed:
        yield "without `|| exit 2` a hook that cannot be started lets the call run"
    if entry.event != CALL and closed:
        yield "`|| exit 2` would stop the agent here when the hook fails"
    if entry.matcher not in (None, "", "*", ".*"):
        yield f"its matcher {entry.matcher!r} leaves tools out"
    timeout = _TIMEOUT_S if entry.timeout_s is None else entry.timeout_s
    try:
        deadline = float(option_of(words, "--deadline") or DEADLINE_S)
    except ValueError:
        yield "its --deadline is no number"
        return
    if deadline + _MARGIN_S > timeout:
        yield f"its deadline of {deadline:g} s leaves no time before the harness ends it after {timeout:g} s, and lets the call run"


def _foreign(harness: Harness, sources: dict[str, dict[str, Any]], own: str) -> Iterator[Check]:
    found = False
    for name, settings in sources.items():
        for entry in foreign(entries(settings), harness):
            found = True
            why = "all run at once, and of several that deny the model is given the reason of one"
            yield Check("other hooks", "warn", f"{name}: {CALL} runs {entry.command}", f"{why}; ours is then sent with the next batch")
        if name != own and any(is_ours(entry.command, harness) for entry in entries(settings)):
            found = True
            yield Check("other hooks", "warn", f"{name} has hooks of ours as well", "keep one of the two")
    if not found:
        yield Check("other hooks", "ok", f"no other {CALL} hook")


# -- what the command names ---------------------------------------------------------------------------------------------------------


def option_of(words: Sequence[str], name: str) -> str | None:
    """The value of an option in a command line."""
    for at, word in enumerate(words):
        if word == name and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _command(words: Sequence[str]) -> Iterator[Check]:
    program = words[0]
    if not os.path.isabs(program):
        yield Check(
            "command", "warn", f"{program!r} is looked for on the PATH of whatever starts the agent", "install again: that writes its path"
        )
    path = shutil.which(program)
    if path is None:
        yield Check("command", "FAIL", f"{program} is not there, or cannot be run", "install again with the eventlog that is to be used")
    else:
        yield Check("command", "ok", path)


def _log(log: str | None) -> Iterator[Check]:
    if log is None:
        yield Check("log", "FAIL", "the command names no log", "install again")
        return
    path = Path(log)
    if not path.is_absolute():
        yield Check("log", "FAIL", f"{log} is not absolute, and an agent changes its directory", "install again")
        return
    try:
        with EventLog.open(path, create=False, read_only=True) as handle:
            head = int(handle.head)
    except (EventLogError, OSError) as error:
        yield Check(
            "log", "FAIL", str(error), f"see: eventlog verify {shlex.quote(log)}; a log is made by its first `append` or `agent run`"
        )
        return
    checked = _permissions("log", path)
    if checked.level == "ok" and not os.access(path, os.W_OK | os.X_OK):
        checked = Check("log", "FAIL", f"{path} cannot be written by us", "write as its owner")
    yield checked if checked.level != "ok" else Check("log", "ok", f"{path}, {head} events")


def _reconciler(command: str | None) -> Iterator[Check]:
    if command is None:
        yield Check(
            "reconciler", "warn", "none: when something is detected, every call is denied until somebody prepares it", "give --reconciler"
        )
        return
    words = words_of(command)
    path = shutil.which(words[0]) if words else None
    if path is None:
        yield Check("reconciler", "FAIL", f"{command!r} names no program that can be run", "mend it, or install again")
    elif not os.path.isabs(words[0]):
        yield Check("reconciler", "warn", f"{words[0]!r} depends on where the agent is", "install again: that writes its path")
    else:
        yield _permissions("reconciler", Path(path))
