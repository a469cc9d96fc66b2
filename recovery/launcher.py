"""Runs an agent and, when a delivery needs a new process, its replacement (design section 6).

code = Launcher(log, "web", ["claude", "-p", "fix the test"]).run()

The launcher owns `launcher:THREAD` while it lives, so that no process but the one that it starts is the replacement. What it does next is
decided by `harness.launch.next_step`; here it is done. It may be killed at any point: the agent that it started gets a SIGTERM from the
kernel, and the next launcher begins with the log alone.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FrameType

from eventlog import EventLog, crashpoints
from eventlog.recovery.delivery_words import DeliveryLimits, Refused, launcher_name
from eventlog.recovery.desk import Deliveries
from eventlog.recovery.harness import launch as do
from eventlog.recovery.harness.agent_process import AgentProcess, alive
from eventlog.recovery.harness.carrier import Carrier
from eventlog.recovery.harness.commandline import ARGUMENT_BYTES_MAX, AgentCommand, BadCommand, Harness, parse
from eventlog.recovery.harness.terminal import Terminal, standard_output_is_terminal

__all__ = ["GO_ON", "Launcher"]

GO_ON = "Take this into account, and go on with what you were doing."
"""Behind the payload, for a replacement that runs one prompt and ends: nobody is there to tell it."""

_LOOK_S = 0.1  # a process that ends writes nothing into the log: look for that this often
_FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)


class Launcher:
    """One run of `eventlog agent run`. `say` takes one line for people.

    `grace_s`: between SIGTERM and SIGKILL. `handshake_s`: for an agent that prints, to take its first input; one that talks to a person may
    have questions first. Raises BadCommand for a command line that cannot be carried to a replacement.
    """

    def __init__(
        self,
        log: EventLog,
        thread: str,
        words: Sequence[str],
        *,
        harness: Harness | None = None,
        restarts_max: int = 5,
        grace_s: float = 10.0,
        handshake_s: float = 120.0,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.log, self.thread, self.say = log, thread, say
        self.desk = Deliveries(log, limits=DeliveryLimits(restarts_max=restarts_max))
        self._words, self._harness = list(words), harness
        self._command = self._parse()
        self._grace_s, self._handshake_s = grace_s, handshake_s
        self._terminal = Terminal()
        self._process: AgentProcess | None = None
        self._started = 0.0
        self._told = 0  # by which signal; not in _seen, which a handler would change under a step's hands
        self._known: frozenset[str] = frozenset()
        self._seen = do.Seen(restarts_max=restarts_max, printing=self._command.printing)

    def _parse(self) -> AgentCommand:
        # A new id each time: the one of an attempt that was killed on its way may be taken already.
        return parse(self._words, str(uuid.uuid4()), harness=self._harness, terminal=standard_output_is_terminal())

    def run(self) -> int:
        """Start the agent and stay until it has ended for good; its exit code (128 + n after signal n), 1: only a person can go on,
        4: the thread has a launcher, or an agent, already."""
        owner = self.log.own(launcher_name(self.thread))
        if owner is None:
            self.say(f"thread {self.thread} has a launcher already")
            return do.BUSY
        with owner, self._forwarding():
            crashpoints.reach("launcher-owned")
            try:
                return self._until_left()
            finally:
                if self._process is not None and self._process.code is None:  # an error of ours: no agent without its launcher
                    self._process.end(self._grace_s)

    def _until_left(self) -> int:
        state = self.desk.state
        self._known = frozenset(state.incarnations)
        waiting = do.startup_in(state, self.thread)
        self._seen = replace(self._seen, stale=waiting[1].startup_id if waiting is not None else None, alive=self._somebody_lives())
        while True:
            head = int(self.log.head)
            self._look()
            step = do.next_step(self.desk.state, self.thread, replace(self._seen, told=self._told))
            if isinstance(step, do.Leave):
                if step.note:
                    path = shlex.quote(os.fsdecode(self.log.path))
                    self.say(f" {path}".join(step.note.rsplit(" LOG", 1)))  # the last: a reason comes before, in whatever words
                crashpoints.reach("launcher-before-leave")
                return step.code
            if isinstance(step, do.Stay):
                self.log.wait(head, _LOOK_S)
            else:
                self._do(step)

    def _look(self) -> None:
        """What became of the process that runs."""
        process, attempt = self._process, self._seen.attempt
        if process is None or attempt is None or self._seen.ended is not None:
            return
        code = process.look()
        if code is not None:
            self._seen = replace(self._seen, ended=do.Ended(code))
        elif self._command.printing and time.monotonic() - self._started > self._handshake_s and not attempt.late:
            self._seen = replace(self._seen, attempt=replace(attempt, late=True))

    def _somebody_lives(self) -> bool:
        """Is the live incarnation's process there? One whose launcher was killed is on its way out: it gets the time for that."""
        known = self.desk.state.threads.get(self.thread)
        if known is None or known.live is None:
            return False
        process = self.desk.state.incarnations[known.live].process
        deadline = time.monotonic() + self._grace_s
        while alive(process) and time.monotonic() < deadline and not self._told:
            time.sleep(_LOOK_S)
        return alive(process)

    # -- steps ------------------------------------------------------------------------------------------------------------------

    def _do(self, step: do.Launch | do.End | do.Bind | do.Retire) -> None:
        if isinstance(step, do.Launch):
            self._launch(step)
        elif isinstance(step, do.End):
            assert self._process is not None
            self.say(f"ending the agent: {step.reason}")
            crashpoints.reach("launcher-before-end")
            code = self._process.end(self._grace_s)
            crashpoints.reach("launcher-after-end")
            self._seen = replace(self._seen, ended=do.Ended(code, by_us=True))
        elif isinstance(step, do.Bind):
            self._done(self.desk.bind_restart(self.thread, step.reason))
            self._seen = replace(self._seen, way=step.way)
        else:
            self._done(self.desk.retire_incarnation(self.thread, step.incarnation, step.reason))

    def _done(self, answer: object) -> None:
        # Refused: a hook was faster, and what the log says now leads to another step.
        if isinstance(answer, Refused):
            self.say(answer.reason)
            time.sleep(_LOOK_S)

    def _launch(self, step: do.Launch) -> None:
        argv = self._argv(step)
        if step.intent is not None and self._seen.attempt is not None:
            self.say(f"starting its replacement with {step.intent.id}")
        crashpoints.reach("launcher-before-start")
        self._process = AgentProcess(argv, self._terminal)
        self._started = time.monotonic()
        crashpoints.reach("launcher-after-start")
        if self._told:  # while it was started
            self._process.send(self._told)
        self._seen = replace(self._seen, attempt=do.Attempt(step.way, step.startup_id), ended=None, way=None)

    def _argv(self, step: do.Launch) -> list[str]:
        """The command line of this start. Raises BadCommand where none can carry the first input, OSError (no room for a copy of it)."""
        if step.way == "own" and self._seen.attempt is not None:
            self._command = self._parse()
        command, text = self._command, ""
        if step.intent is not None and step.intent.payload is not None and step.startup_id is not None:
            text = Carrier(self.log.path).startup(step.intent.id, step.intent.payload, step.startup_id)
        session = self._session()
        way = "anew" if step.way == "resume" and (session is None or not command.lasting) else step.way
        follows = command.prompt
        if way == "resume":
            follows = GO_ON if command.printing else None
        first = "\n\n".join(part for part in (text, follows) if part) or None
        if first is not None and len(first.encode(errors="surrogateescape")) > ARGUMENT_BYTES_MAX:
            raise BadCommand(f"the prompt and the delivery together are over {ARGUMENT_BYTES_MAX} bytes: put the prompt into a file")
        if way == "own":
            return command.start(first)
        assert first is not None
        if way == "anew":
            new = str(uuid.uuid4())
            self._command = replace(command, session=new if command.harness == "claude-code" else None)
            return command.anew(new, first)
        assert session is not None
        return command.resume(session, first)

    def _session(self) -> str | None:
        """The conversation that the agent is in: what its hooks said last, or what it was started with."""
        for incarnation in reversed(self.desk.state.incarnations.values()):
            if incarnation.id not in self._known and incarnation.thread == self.thread and incarnation.session is not None:
                return incarnation.session
        return self._command.session

    # -- signals ----------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _forwarding(self) -> Iterator[None]:
        """What is sent to the launcher is meant for its agent, and being told to leave means that there is to be no replacement.

        Signals of the terminal do not come here while the agent's group has it.
        """
        before = {number: signal.signal(number, self._forward) for number in _FORWARDED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        runs = self._process is not None and self._process.code is None
        if number in (signal.SIGTERM, signal.SIGHUP) or (number != signal.SIGTSTP and not runs):
            self._told = number
        if self._process is not None and runs:
            self._process.send(number)
