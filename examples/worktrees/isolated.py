"""Run the real Claude Code against a FakeModel, away from all else: its own home, a scrubbed environment, a dummy key, only loopback.

sandbox = Sandbox(place, model, claude)
run = sandbox.start("-p", "do it", settings=settings)         # or sandbox.start(…, before=["eventlog", "agent", "run", …, "--"])
run.kill()                                                   # SIGKILL, as a crash; its hooks live on, as they would
sandbox.close()                                              # ends whatever is left of all runs, by process id
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from fake_model import FakeModel

__all__ = ["Run", "Sandbox"]

_HERE = Path(__file__).parent
_PORT = 8765
_MARK = "EVENTLOG_LAB_RUN"  # children inherit it, so that everything that a run started can be found, and nothing else
_QUIET = ("DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER")


class Run:
    """One start of the program."""

    def __init__(self, child: subprocess.Popen[bytes], program: Path, mark: str, out: Path, err: Path, how: str) -> None:
        self.child, self.program, self.mark, self.out, self.err, self.how = child, program, mark, out, err, how

    def wait(self, timeout_s: float = 120.0) -> int:
        """Its exit code. Raises TimeoutError with the end of what it said."""
        try:
            return self.child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"not ended in {timeout_s} s; {self.said()[-2000:]}") from None

    def said(self) -> str:
        """Standard output and standard error so far."""
        return self.out.read_text(errors="replace") + self.err.read_text(errors="replace")

    def messages(self) -> list[dict[str, Any]]:
        """Its standard output as stream-json."""
        return [json.loads(line) for line in self.out.read_text().splitlines() if line.startswith("{")]

    def send(self, message: Mapping[str, Any]) -> None:
        """One line on standard input, which must be open."""
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(message).encode() + b"\n")
        self.child.stdin.flush()

    def close_input(self) -> int:
        """Nothing more will be sent; its exit code."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        return self.wait()

    def pids(self) -> list[int]:
        """The processes of the program itself: one, or more when something before it has started it again."""
        return [pid for pid in _marked(self.mark) if _runs(pid, self.program)]

    def kill(self) -> None:
        """SIGKILL to the program, and to nothing that it started. Waits until it is gone."""
        found = self.pids()
        assert found, f"the program is not there to be killed: {self.said()[-2000:]}"
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.child.pid in found:
            self.child.wait()
        while self.pids():
            time.sleep(0.01)


class Sandbox:
    """A home, a working folder and an environment for any number of runs, one after another or at once."""

    def __init__(self, place: Path, model: FakeModel, program: Path, *, work: Path | None = None, path: Sequence[Path] = ()) -> None:
        self.place, self.model, self.program = place, model, program
        self.work = work or place / "work"
        self.home = place / "home"
        self.mark = uuid.uuid4().hex
        self.runs: list[Run] = []
        self.path = path
        for folder in (self.place, self.work, self.home):
            folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def environment(self) -> dict[str, str]:
        """All that the program gets to see."""
        path = os.pathsep.join([str(Path(sys.executable).parent), *map(str, self.path), "/usr/local/bin", "/usr/bin", "/bin"])
        quiet = dict.fromkeys(_QUIET, "1")
        own = {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8", "TERM": "xterm", "ANTHROPIC_API_KEY": "dummy", _MARK: self.mark}
        return {**quiet, **own, "ANTHROPIC_BASE_URL": "@API@"}

    def start(
        self,
        *arguments: str,
        settings: Mapping[str, Any] | Path | None = None,
        before: Sequence[str] = (),
        talk: bool = False,
        terminal: int | None = None,
        more: Mapping[str, str] | None = None,
    ) -> Run:
        """Start `before… program arguments…`. `talk`: standard input stays open for `send`. `terminal`: a descriptor of one, for all three
        streams. `more`: variables."""
        number = len(self.runs)
        out, err = self.place / f"out-{number}", self.place / f"err-{number}"
        if isinstance(settings, Mapping):
            written = self.place / f"settings-{number}.json"
            written.write_text(json.dumps(settings, indent=1))
            settings = written
        words = [*before, str(self.program), *arguments, *(("--settings", str(settings)) if settings is not None else ())]
        ours, theirs = socket.socketpair()
        with ours, theirs, out.open("wb") as standard, err.open("wb") as error:
            jail = [sys.executable, "-I", str(_HERE / "jail.py"), str(theirs.fileno()), str(_PORT), *words]
            stdin: int | IO[bytes] = subprocess.PIPE if talk else subprocess.DEVNULL
            child = subprocess.Popen(  # a list, no shell
                jail,
                stdin=stdin if terminal is None else terminal,
                stdout=standard if terminal is None else terminal,
                stderr=error if terminal is None else terminal,
                cwd=self.work,
                env={**self.environment(), **(more or {})},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            theirs.close()
            ours.settimeout(30)
            said, listeners, _, _ = socket.recv_fds(ours, 4096, 1)
        if not listeners:
            child.wait()
            raise OSError(f"the program could not be started: {err.read_text()[-2000:]}")
        self.model.listen(socket.socket(fileno=listeners[0]))
        run = Run(child, self.program, self.mark, out, err, str(json.loads(said)["how"]))
        self.runs.append(run)
        return run

    def close(self) -> None:
        """End everything that was started in here, hooks that outlived their program too."""
        while found := _marked(self.mark):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for run in self.runs:
                run.child.poll()
            time.sleep(0.01)
        for run in self.runs:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(run.child.pid, signal.SIGKILL)
            run.child.wait()
            if run.child.stdin is not None:
                with contextlib.suppress(OSError):
                    run.child.stdin.close()


def _marked(mark: str) -> list[int]:
    if not Path("/proc").exists():  # not Linux: what ends with its group has to do
        return []
    needle = f"{_MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # gone, or not ours
                if needle in (entry / "environ").read_bytes().split(b"\0") and b"\nState:\tZ" not in (entry / "status").read_bytes():
                    found.append(int(entry.name))
    return found


def _runs(pid: int, program: Path) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/exe", program)
    except OSError:
        return False
