"""`eventlog demo`: a real agent, killed by a real `kill -9` in both windows of a real effect, and what the log says afterwards."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from eventlog import EventLog
from eventlog.cli.output import EXIT, escape, flush, on_terminal, say, shown

if TYPE_CHECKING:
    from eventlog.recovery import Found


class Scene(NamedTuple):
    """One release and the place where its agent dies: at the crash point `point`, in step `step`."""

    release: str
    title: str
    point: str
    step: int


SCENES = (
    Scene("release-1", "killed after Pending: the push was never made", "after-pending", 2),
    Scene("release-2", "killed after Dispatched, before the push left", "after-dispatched", 2),
    Scene("release-3", "killed after Dispatched, and the push had landed", "after-effect", 2),
    Scene("release-4", "killed after Dispatched, and the message was out", "after-effect", 3),
)


class Failed(click.ClickException):
    """Something that the demo stands on does not work here."""

    exit_code = EXIT.failed


@click.command(
    epilog="""\b
Examples:
  eventlog demo
  eventlog demo ./demo        # DIR must be new or empty
  eventlog demo --matrix      # every class of effect, killed at every point"""
)
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--matrix", is_flag=True, help="Instead: the crash matrix. Exit code 1 when a cell differs from the table.")
def demo(directory: Path | None, matrix: bool) -> int:
    """Run an agent, kill it four times with SIGKILL, and see what the log knows.

    The agent publishes releases: it writes a file, pushes to a git repository next door, and puts a message into an outbox. Everything, the
    log included, stays in DIR (default: a new directory under the system's temporary one). Its source is eventlog/cli/demo_agent.py.
    """
    if matrix:
        from eventlog.cli.demo_matrix import show_matrix

        return show_matrix(_home(directory) if directory is not None else None)
    if shutil.which("git") is None:
        raise click.UsageError("the demo's agent pushes with git, and there is no git on the PATH; install it")
    home = _home(directory)
    paint = _painter()
    try:
        _stage(home)
        _introduce(home, paint)
        for number, scene in enumerate(SCENES, 1):
            _play(home, number, scene, paint)
        _end(home, paint)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines() or ["no message"]
        raise Failed(f"demo: {' '.join(map(str, error.cmd[:3]))}: {said[0]}") from error
    return EXIT.fine


def _home(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="eventlog-demo-"))
    if directory.exists() and not directory.is_dir():
        raise click.UsageError(f"{directory} is not a directory")
    if directory.is_dir() and any(directory.iterdir()):
        raise click.UsageError(f"{directory} is not empty; name a new or an empty directory")
    directory.mkdir(parents=True, exist_ok=True)
    return directory.resolve()


def _stage(home: Path) -> None:
    """A workspace, and a bare repository next door. No templates: they may bring hooks."""
    from eventlog.cli.demo_agent import git

    git(home, "init", "--quiet", "--template=", "--bare", "remote.git")
    git(home, "init", "--quiet", "--template=", "workspace")


Paint = Callable[[str, str], str]


def _painter() -> Paint:
    """Colours a text on a terminal, and gives it back as it is elsewhere."""
    if not on_terminal():
        return lambda text, colour: text
    return lambda text, colour: click.style(text, bold=True) if colour == "bold" else click.style(text, fg=colour)


def _introduce(home: Path, paint: Paint) -> None:
    say(f"An agent publishes releases, and is killed. Everything is in {shown(home)}")
    say()
    say("  step 1  write_file  IDEMPOTENT      writes workspace/VERSION")
    say("  step 2  push        RECONCILABLE    pushes a branch to remote.git; the remote can be asked whether it arrived")
    say("  step 3  announce    NON_IDEMPOTENT  adds a line to outbox.txt; it cannot be taken back, and nobody can be asked")
    say()
    say("Around each step the log gets three commits, each on disk before the agent goes on:")
    say(f"  {paint('Pending', 'cyan')}  ...  {paint('Dispatched', 'cyan')}  ... the call ...  outcome + {paint('Committed', 'cyan')}")


def _play(home: Path, number: int, scene: Scene, paint: Paint) -> None:
    """Kill, look, ask, recover, run again."""
    from eventlog.cli.demo_agent import Agent
    from eventlog.recovery import recover

    say()
    say(paint(f"{number}. {scene.release}: {scene.title}", "bold"))
    _kill(home, scene)
    tell = _teller(paint)
    tell("agent", f"SIGKILL in step {scene.step}, at {scene.point}")
    with EventLog.open(home / "log") as log:
        [found] = recover(log).intents  # no tools: it only classifies, and records that
        tell("log says", f"{found.id} {found.tool} is {found.state.value.capitalize()}, no outcome")
        tell("witness", _witness(home, scene))
        tell("recovery", paint(f'"{found.verdict.value}"', "yellow") + _meaning(found))
        [found] = recover(log, Agent(log).tools).intents  # with tools: it resolves, each effect by its class
        tell("decides", paint(_decision(log, found), "green" if found.resolved else "red"))
    if found.resolved:
        done = _run_again(home, scene)
        tell("run again", f"{done}; {_witness(home, scene)}, outbox.txt: {_messages(home, scene.release)}")
    flush()


def _teller(paint: Paint) -> Callable[[str, str], None]:
    return lambda who, what: say(f"   {paint(f'{who:<10}', 'bright_black')} {what}")


def _kill(home: Path, scene: Scene) -> None:
    from eventlog.testing import run_child

    # The n-th time that a child comes to a crash point of the guard is the n-th step that it makes.
    child = run_child(["-m", "eventlog.cli.demo_agent", str(home), scene.release], crash_at=scene.point, nth=scene.step)
    if not child.killed or child.returncode != -signal.SIGKILL:
        last = child.stderr.strip().splitlines() or ["no message"]
        raise Failed(f"demo: the agent was to be killed at {scene.point}, and ended with {child.returncode}: {escape(last[-1])}")


def _run_again(home: Path, scene: Scene) -> str:
    """The agent once more, unharmed: what is committed is replayed."""
    from eventlog.testing import run_child

    child = run_child(["-m", "eventlog.cli.demo_agent", str(home), scene.release])
    if child.returncode != 0:
        last = child.stderr.strip().splitlines() or ["no message"]
        raise Failed(f"demo: the agent ended with {child.returncode}: {escape(last[-1])}")
    made = child.points.count("after-dispatched")
    return f"{len(_STEPS) - made} steps replayed, {made} made"


_STEPS = ("write_file", "push", "announce")


def _witness(home: Path, scene: Scene) -> str:
    """What the world says, without a look at the log."""
    from eventlog.cli.demo_agent import branch_on_remote

    if scene.step == _STEPS.index("announce") + 1:
        return f"outbox.txt: {_messages(home, scene.release)}"
    commit = branch_on_remote(home, scene.release)
    return f"git ls-remote: {scene.release} is at {commit[:7]}" if commit else f"git ls-remote: no branch {scene.release}"


def _messages(home: Path, release: str) -> str:
    outbox = home / "outbox.txt"
    lines = outbox.read_text().splitlines() if outbox.exists() else []
    count = lines.count(f"{release} is out")
    return f'"{release} is out" {count} times' if count != 1 else f'"{release} is out" once'


def _meaning(found: Found) -> str:
    from eventlog.recovery import Verdict

    if found.verdict is Verdict.NEVER_SENT:
        return ": whatever its class, it is safe to send"
    return ": the log alone cannot know more; the class decides"


def _decision(log: EventLog, found: Found) -> str:
    """What recovery did, as the log recorded it."""
    from eventlog.recovery import history

    if not found.resolved:
        return f"{found.effect_class.name}: {found.error}. Nothing is sent; it waits for a person"
    resolved = [event.data for event in history(log, found.id) if event.type == "effect.resolved"]
    if not resolved:
        return f"{found.effect_class.name}, but it never left: sent, and committed"
    if resolved[-1]["decision"] == "happened":
        return f"{found.effect_class.name}: asked the remote, which has it. Recorded, and not pushed again"
    return f"{found.effect_class.name}: asked the remote: {resolved[-1]['reason']}. Sent again, and committed"


def _end(home: Path, paint: Paint) -> None:
    from eventlog.cli.demo_agent import git

    pushed = git(home, "log", "--format=%s", SCENES[-1].release, cwd="remote.git").splitlines()
    once = sorted(pushed) == [f"Release {scene.release}" for scene in SCENES]
    say()
    say(f"Scenes 2 and 3 look the same in the log; only the remote could tell them apart. git log there: {len(pushed)} releases,")
    say(f"{'each pushed once' if once else 'NOT each pushed once'}. Scene 4 waits for you. Try next:")
    say()
    log, undecided = shlex.quote(shown(home / "log")), f"{SCENES[-1].release}@1:{SCENES[-1].step}"
    commands = (
        (f"eventlog status {log}", "what waits for a decision comes first"),
        (f"eventlog effects list {log}", "every effect and its state"),
        (f"eventlog effects show {log} {undecided}", "one of them, with its events"),
        (f"eventlog tail {log}", "the last events; -f goes on"),
        (f"eventlog fold {log} -p effects", "the state, folded from the events alone"),
        (f"eventlog dump {log}", "everything, as JSON lines"),
        (f"eventlog verify {log}", "is every byte as it was written?"),
    )
    width = max(len(command) for command, _ in commands)
    for command, what in commands:
        say(f"  {paint(command.ljust(width), 'cyan')}  # {what}")
    say(f"  {paint(f'eventlog effects resolve {log} {undecided} --happened --reason', 'cyan')} 'it is in outbox.txt'")
