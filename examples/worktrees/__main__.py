"""Two git worktrees, an agent in one of them, and a change that it must hear of: `python examples/worktrees`. No account, no network.

The agent is the real Claude Code where there is one (`--claude PATH`, or `claude` on the PATH), and a small scripted one otherwise. Its
model is a script, so that all that the model is given can be shown. The rest is real: the repository, the hooks, the log.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from fake_model import Call, FakeModel, Turn
from isolated import Run, Sandbox

HERE = Path(__file__).parent
EVENTLOG = [sys.executable, "-m", "eventlog.cli"]


def say(text: str = "") -> None:
    print(text, flush=True)


def indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def show(place: Path, *words: str, only: str = "") -> None:
    """A command of `eventlog`, run in `place`, and what it says: all of it, or the lines that have `only` in them."""
    say(f"  $ eventlog {shlex.join(words)}")
    done = subprocess.run([*EVENTLOG, *words], cwd=place, capture_output=True, text=True, check=False)
    say(indent("\n".join(line for line in (done.stdout + done.stderr).splitlines() if only in line)))
    if done.returncode not in (0, 1):
        raise SystemExit(f"that failed with {done.returncode}: {done.stderr}")


def git(tree: Path, *words: str) -> str:
    identity = ["-c", "user.name=example", "-c", "user.email=example@localhost", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(tree), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(place: Path) -> Path:
    """`main` in one folder, and a worktree for each of two branches beside it."""
    main = place / "main"
    subprocess.run(["git", "init", "-q", "-b", "main", str(main)], check=True)
    (main / "app.py").write_text('GREETING = "hello"\n')
    git(main, "add", "app.py")
    git(main, "commit", "-q", "-m", "greet")
    for name in ("web", "api"):
        git(main, "worktree", "add", "-q", "-b", name, str(place / name))
    return main


class Story:
    """One run of the example in `place`."""

    def __init__(self, place: Path, claude: Path | None) -> None:
        self.place, self.log, self.claude = place, place / "log", claude
        self.moved, self.shown = threading.Event(), threading.Event()
        self.model = FakeModel(
            [
                Turn("I read the file first.", bash("cat app.py")),
                Turn("Now I change it.", bash("sed -i s/hello/hi/ app.py"), bash("cat app.py"), gate=self.moved),
                Turn("The file is another one now; I read it again.", bash("sed -i s/hello/hi/ app.py && cat app.py"), gate=self.shown),
                Turn("Done."),
            ]
        )

    def tell(self) -> None:
        """From the empty folder to the acknowledged delivery."""
        say("1. A repository with two worktrees: an agent works in `web`, somebody else in `api`.")
        main = repository(self.place)
        say(indent(git(main, "worktree", "list")))
        say("\n2. The hooks of the agent in `web`. They pass every call through, until there is something to hear.")
        settings = self.place / "settings.json"
        follow = shlex.join([sys.executable, str(HERE / "reconciler.py"), str(self.place / "web")])
        where = ["--settings", "settings.json", "--log", "log", "--thread", "web", "--reconciler", follow]
        show(self.place, "hook", "install", "claude-code", *where, "--yes", only="written")
        allow(settings)
        with self.model, self.sandbox() as sandbox:
            self.agent(sandbox, settings, main)
        say("\n7. What is left:")
        show(self.place, "status", "log")
        show(self.place, "deliveries", "show", "log", "web#1")
        say("  $ cat web/app.py")
        say(indent((self.place / "web" / "app.py").read_text()))

    def sandbox(self) -> Sandbox:
        program = self.claude or HERE / "scripted_agent.py"
        return Sandbox(self.place / "agent", self.model, program, work=self.place / "web")

    def agent(self, sandbox: Sandbox, settings: Path, main: Path) -> None:
        """The part that needs the agent."""
        say(f"\n3. The agent starts: {self.claude or 'a scripted one, since there is no claude here'}.")
        run = sandbox.start("-p", "greet more shortly", settings=settings, before=[] if self.claude else [sys.executable])
        say(f"  ({run.how})")
        wait(self.model, run, 2)
        self.heard(1)
        say("\n4. Meanwhile the work of `api` lands on the parent branch. One command says so; the worktree `web` is not touched yet.")
        (self.place / "api" / "app.py").write_text('GREETING = "hello"\nVERSION = 2\n')
        git(self.place / "api", "commit", "-q", "-a", "-m", "give it a version")
        git(main, "merge", "-q", "--ff-only", "api")
        show(self.place, "deliveries", "detect", "log", "web", "--base", git(main, "rev-parse", "main"), "--trigger", "merge of api")
        say("\n5. The model, which knows nothing of it, wants two calls at once. Neither runs: the first makes the worktree follow, and")
        say("   both are answered with the same bytes. This is what the model is given:")
        self.moved.set()
        wait(self.model, run, 3)
        self.heard(2)
        say("\n   Delivered, but that is no proof: the agent may die before the model has answered.")
        show(self.place, "deliveries", "list", "log")
        say("\n6. The model answers, and calls again. Only a turn that had read the message could call that: now it is acknowledged.")
        self.shown.set()
        code = run.wait()
        if code != 0:
            raise SystemExit(f"the agent ended with {code}: {run.said()[-2000:]}")
        self.heard(3)

    def heard(self, turn: int) -> None:
        """The calls of a turn, and what the model was told of them."""
        asked, told = self.model.requests()[turn - 1 : turn + 1]
        for block, call in zip((one for one in self.model.turns[turn - 1].blocks if isinstance(one, Call)), asked.calls, strict=True):
            say(f"  call: {block.input['command']}")
            say("\n".join(f"    | {line}" for line in (told.result(call) or "").splitlines()))


def bash(command: str) -> Call:
    return Call("Bash", {"command": command, "description": command})


def allow(settings: Path) -> None:
    """Nobody is there to be asked for permission."""
    import json

    content = json.loads(settings.read_text())
    content["permissions"] = {"allow": ["Bash"]}
    settings.write_text(json.dumps(content, indent=2))


def wait(model: FakeModel, run: Run, count: int) -> None:
    try:
        model.wait(count)
    except TimeoutError as error:
        raise SystemExit(f"{error}; the agent says: {run.said()[-2000:]}") from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python examples/worktrees", description=__doc__)
    parser.add_argument("--claude", type=Path, help="the claude to run  [default: the one on the PATH]")
    parser.add_argument("--scripted", action="store_true", help="a scripted agent, even where there is a claude")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave everything in this new folder")
    arguments = parser.parse_args()
    found = arguments.claude or (Path(which) if (which := shutil.which("claude")) else None)
    claude = None if arguments.scripted or found is None else found.resolve()
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True)
        Story(arguments.keep.resolve(), claude).tell()
        say(f"\nEverything is in {arguments.keep}.")
        return
    with tempfile.TemporaryDirectory(prefix="worktrees-") as place:
        Story(Path(os.path.realpath(place)), claude).tell()


if __name__ == "__main__":
    main()
