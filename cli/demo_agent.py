"""The agent of `eventlog demo`: three tools, one attempt, and nothing but the public API. Start here to write your own.

It publishes a release in three steps. Kill it wherever you like and run it again: what is recorded as done is not done again, and
what may have been done is found out, not guessed at.

    python -m eventlog.cli.demo_agent DIR RELEASE
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from eventlog import EventLog
from eventlog.recovery import DidNotHappen, EffectClass, Happened, IntentView, Toolbox, ToolContext


class Agent:
    """Its tools, bound to a log. What they change lies beside it: workspace/, the bare repository remote.git/, and outbox.txt."""

    def __init__(self, log: EventLog) -> None:
        home = log.path.parent
        self.tools = tools = Toolbox(log)

        # The same bytes again change nothing: after a crash, recovery just sends it again.
        @tools.tool(EffectClass.IDEMPOTENT)
        def write_file(ctx: ToolContext, name: str, text: str) -> None:
            (home / "workspace" / name).write_text(text)

        # A push must not be repeated blindly, but the remote can be asked whether it arrived.
        def ask_the_remote(intent: IntentView) -> Happened | DidNotHappen:
            branch = intent.args["branch"]
            commit = branch_on_remote(home, branch)
            return Happened(commit) if commit else DidNotHappen(f"the remote has no branch {branch}")

        @tools.tool(EffectClass.RECONCILABLE, reconcile=ask_the_remote)
        def push(ctx: ToolContext, branch: str) -> str:
            git(home, "add", "--all", cwd="workspace")
            git(home, "commit", "--quiet", "--allow-empty", "--message", f"Release {branch}", cwd="workspace")
            git(home, "push", "--quiet", "../remote.git", f"HEAD:refs/heads/{branch}", cwd="workspace")
            return git(home, "rev-parse", "HEAD", cwd="workspace")

        # A message that has left cannot be taken back, and nobody can be asked: this class is the default.
        @tools.tool(EffectClass.NON_IDEMPOTENT)
        def announce(ctx: ToolContext, text: str) -> None:
            with (home / "outbox.txt").open("a") as outbox:
                outbox.write(f"{text}\n")

        self.write_file, self.push, self.announce = write_file, push, announce

    def publish(self, release: str) -> None:
        """One attempt of three steps. Each call is recorded before it is made; a step that is committed is replayed, not made."""
        with self.tools.attempt(release, 1) as attempt:
            attempt.call(self.write_file, name="VERSION", text=f"{release}\n")
            attempt.call(self.push, branch=release)
            attempt.call(self.announce, text=f"{release} is out")


def toolbox(log: EventLog) -> Toolbox:
    """For `eventlog recover LOG --tools eventlog.cli.demo_agent:toolbox`."""
    return Agent(log).tools


def branch_on_remote(home: Path, branch: str) -> str | None:
    """The commit that a branch of the bare repository points to."""
    answer = git(home, "ls-remote", "remote.git", f"refs/heads/{branch}")
    return answer.split()[0] if answer else None


def git(home: Path, *command: str, cwd: str = ".") -> str:
    """Run git, untouched by the configuration, hooks and repositories of whoever runs the demo."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    clean |= {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    clean |= {"GIT_CEILING_DIRECTORIES": str(home.parent), "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    clean |= {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _AGENT.items()}
    done = subprocess.run(["git", *command], cwd=home / cwd, env=clean, capture_output=True, text=True, check=True)  # noqa: S603, S607
    return done.stdout.strip()


_AGENT = {"NAME": "demo agent", "EMAIL": "agent@example.invalid"}


def main() -> None:
    home, release = Path(sys.argv[1]), sys.argv[2]
    with EventLog.open(home / "log") as log:
        Agent(log).publish(release)


if __name__ == "__main__":
    main()
