"""Find the real Claude Code and Codex at the versions that were measured, in a folder outside the checkout; or install them there.

    python tests/claude/programs.py            install them all (a gigabyte); prints where each is, or why it is not there

A test installs nothing: it finds them, or is skipped. `EVENTLOG_TEST_CACHE` names the folder (default: eventlog-tests in the user's cache
folder). They are other people's programs: test dependencies, installed by name and version with npm, never committed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

CLAUDE, OLD_CLAUDE, CODEX = "claude-code-2.1.332", "claude-code-2.1.197", "codex-0.171.0"
_PACKAGES = {
    CLAUDE: ("@anthropic-ai/claude-code@2.1.332", "node_modules/@anthropic-ai/claude-code-*/claude"),
    OLD_CLAUDE: ("@anthropic-ai/claude-code@2.1.197", "node_modules/@anthropic-ai/claude-code-*/claude"),
    CODEX: ("@openai/codex@0.171.0", "node_modules/@openai/codex-*/vendor/*/**/codex"),
}
_INSTALL_S = 240


class Program(NamedTuple):
    """Where it is; or None, and why it is not there."""

    path: Path | None
    why: str = ""


def find(name: str, *, install: bool = False) -> Program:
    """The program `name`, installed if it has to be and may be. Several processes may ask at once."""
    if not sys.platform.startswith("linux"):
        return Program(None, "the native binaries and namespaces of these tests are those of Linux")
    folder = _cache() / name
    if not install:
        found = _there(folder, name)
        return Program(found) if found else Program(None, f"{name} is not in {folder}; `python tests/claude/programs.py` installs it")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _there(folder, name)
        why = "" if found else _install(folder, _PACKAGES[name][0])
        if not found and not why:
            (folder / "installed").touch()  # npm may have been interrupted before, and left half a binary
            found = _there(folder, name)
        return Program(found, why or "npm installed no native binary for this machine")


def _cache() -> Path:
    return Path(os.environ.get("EVENTLOG_TEST_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "eventlog-tests"))


def _there(folder: Path, name: str) -> Path | None:
    if not (folder / "installed").exists():
        return None
    return next((path for path in folder.glob(_PACKAGES[name][1]) if path.is_file() and os.access(path, os.X_OK)), None)


def _install(folder: Path, package: str) -> str:
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not there"
    command = [npm, "install", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=30000", "--prefix", str(folder), package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"npm was not ready in {_INSTALL_S} s"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["npm failed"])[-1][:300]


if __name__ == "__main__":
    missing = False
    for program in _PACKAGES:
        path, reason = find(program, install=True)
        missing = missing or path is None
        print(f"{program}: {path or reason}")
    sys.exit(missing)
