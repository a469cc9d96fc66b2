"""Crash your own runtime: run a program that guards its effects, kill it by SIGKILL at every crash point of every effect, and run it again.

What the log says is held against an effects file, in which the outside world notes one line for each effect. Nothing is simulated: the
children are real, and so is the kill. What a kill cannot show, a guard that does not sync, is counted with strace where there is one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eventlog import EventLog
from eventlog.errors import EventLogError
from eventlog.projections.effects import EFFECTS, Intent
from eventlog.projections.folding import fold
from eventlog.projections.intent import EffectClass, IntentState
from eventlog.recovery.errors import EffectError

__all__ = ["CrashReport", "CrashRow", "crashtest"]

_MAY_REPEAT = (EffectClass.READ_ONLY, EffectClass.TRANSACTIONAL, EffectClass.IDEMPOTENT, EffectClass.KEYED)
SYNCS_EACH = 3


@dataclass(slots=True)
class CrashRow:
    """One crash: where, what the log and the world said then, and after the program had run again. `problems` is empty when all is well."""

    point: str
    nth: int
    states: dict[str, str] = field(default_factory=dict)  # intent -> classification at the crash, or its state
    effects_at_crash: int = 0
    effects_after: int = 0
    duplicates: int = 0
    lost: int = 0
    indeterminate: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class CrashReport:
    """`effects`: lines of the undisturbed run; `syncs_each`: fdatasyncs for each committed intent there (None: see `why_no_syncs`)."""

    rows: list[CrashRow] = field(default_factory=list)
    effects: int = 0
    syncs_each: float | None = None
    why_no_syncs: str | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems and not any(row.problems for row in self.rows)

    @property
    def all_problems(self) -> list[str]:
        return [*self.problems, *(f"{row.point} #{row.nth}: {problem}" for row in self.rows for problem in row.problems)]


def crashtest(
    command: Sequence[str],
    *,
    effects_file: str | None = None,
    directory: Path | None = None,
    points: Collection[str] | None = None,
    count_syncs: bool = True,
    timeout_s: float = 60.0,
    each: Callable[[CrashRow], None] | None = None,
) -> CrashReport:
    """Run `command` once undisturbed, then once for each crash point that it passed, each time in a new directory.

    Every "{dir}" in `command` and `effects_file` becomes that directory; the program has to keep its log and its world there. `command` is
    a Python program: ["python", "agent.py", "{dir}"], ["agent.py", ...] or a script on the PATH. Without `effects_file` only the log is
    judged. `each` sees the rows as they come; `points` chooses some of the crash points.
    Every run may take `timeout_s` seconds. Raises EffectError when the undisturbed run fails, takes longer, passes no crash point, or
    leaves no effect in `effects_file`.
    """
    from eventlog.testing import record_points, strace

    program = _program(command)
    if not any("{dir}" in part for part in program):
        raise EffectError('crashtest: no part of the command holds "{dir}": every run needs a directory of its own for its log')
    root = Path(tempfile.mkdtemp(prefix="eventlog-crashtest-")) if directory is None else directory
    try:
        clean = _new(root / "clean")
        try:
            places = record_points(_in(program, clean), timeout=timeout_s)
        except RuntimeError as error:
            raise EffectError(f"crashtest: {' '.join(str(error).split())[-500:]}") from None
        except subprocess.TimeoutExpired:
            raise EffectError(f"crashtest: the run to be recorded did not end within {timeout_s:g} s; allow it more") from None
        if not places:
            raise EffectError("crashtest: the program passed no crash point: it used no Toolbox in this run")
        lines = _lines(effects_file, clean)
        if effects_file is not None and not lines:
            raise EffectError(f"crashtest: {effects_file} had no line after an undisturbed run: nothing can be held against the log")
        report = CrashReport(effects=sum(lines.values()))
        report.problems += _judge(clean, lines, effects_file is not None)[1]
        if count_syncs:
            report.why_no_syncs = strace.why_not()
            if report.why_no_syncs is None:
                _count_syncs(program, _new(root / "syncs"), report, timeout_s)
        for number, (point, nth) in enumerate(places):
            if points is not None and point not in points:
                continue
            row = _crash(program, _new(root / f"{number}-{point}"), point, nth, effects_file, lines, timeout_s)
            report.rows.append(row)
            if each is not None:
                each(row)
        return report
    finally:
        if directory is None:
            shutil.rmtree(root)


def _crash(
    program: list[str], place: Path, point: str, nth: int, effects_file: str | None, clean: Counter[str], timeout_s: float
) -> CrashRow:
    from eventlog.testing import run_child

    row = CrashRow(point, nth)
    too_long = f"did not end within {timeout_s:g} s"
    try:
        child = run_child(_in(program, place), crash_at=point, nth=nth, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        row.problems.append(f"the program {too_long}, and was to be killed here")
        return row
    if not child.killed:
        row.problems.append("the program did not come here again: its course is not the same at each run")
        return row
    lines = _lines(effects_file, place)
    row.effects_at_crash = sum(lines.values())
    intents, problems = _judge(place, lines, effects_file is not None)
    row.problems += problems
    row.states = {str(one.id): str(one.verdict or one.state.value) for one in intents}
    try:
        run_child(_in(program, place), timeout=timeout_s)  # its exit code is its own affair: it may well refuse to go on
    except subprocess.TimeoutExpired:
        row.problems.append(f"run again after the kill, the program {too_long}")
    after = _lines(effects_file, place)
    intents, problems = _judge(place, after, effects_file is not None)
    row.problems += [problem for problem in problems if problem not in row.problems]
    row.effects_after = sum(after.values())
    row.duplicates = sum((after - clean).values())
    row.lost = sum((clean - after).values())
    open_states = (IntentState.DISPATCHED, IntentState.INDETERMINATE)
    row.indeterminate = sum(one.state in open_states for one in intents)
    repeats = sum(max(one.tries - 1, 0) for one in intents if one.effect_class in _MAY_REPEAT)
    if row.duplicates > repeats:
        row.problems.append(f"{row.duplicates} effects happened twice, and the classes allow {repeats}")
    if row.lost and not row.indeterminate:
        row.problems.append(f"{row.lost} effects were lost, and nothing waits for a decision")
    return row


def _judge(place: Path, lines: Counter[str], witnessed: bool) -> tuple[list[Intent], list[str]]:
    """The intents of all logs below `place`, and what is wrong with what they say."""
    intents: list[Intent] = []
    problems: list[str] = []
    for identity in sorted(place.rglob("log.json")):
        try:
            with EventLog.open(identity.parent, create=False) as log:
                intents += fold(EFFECTS, log).intents.values()
        except EventLogError as error:
            problems.append(str(error))
    for one in intents:
        if one.outcome_seq is not None and one.state is not IntentState.COMMITTED:
            problems.append(f"{one.id}: an outcome without effect.committed: they are not one commit")
        if one.tries > 1 and one.effect_class is EffectClass.NON_IDEMPOTENT and one.resent:
            problems.append(f"{one.id}: a non-idempotent effect was sent {one.tries} times")
    sent = sum(max(one.tries, one.state is IntentState.COMMITTED) for one in intents)
    happened = sum(lines.values())
    if witnessed and happened > sent:
        problems.append(f"{happened} effects happened, and the log knows of {sent} that may have been sent")
    return intents, problems


def _count_syncs(program: list[str], place: Path, report: CrashReport, timeout_s: float) -> None:
    make_one = "import sys; from eventlog import EventLog; EventLog.open(sys.argv[1]).close()"
    try:
        empty = _traced(["-c", make_one, str(place / "empty")], timeout_s)
        syncs = _traced(_in(program, place), timeout_s) - empty  # without those that make a log
    except subprocess.TimeoutExpired:
        report.why_no_syncs = f"under strace the program did not end within {timeout_s:g} s"
        return
    committed = sum(one.state is IntentState.COMMITTED for one in _judge(place, Counter(), False)[0])
    if committed:
        report.syncs_each = syncs / committed
        if syncs < SYNCS_EACH * committed:
            wanted = f"{SYNCS_EACH} each are what tells the windows apart after a power cut"
            report.problems.append(f"{syncs} syncs for {committed} effects: {wanted}")


def _traced(program: list[str], timeout_s: float) -> int:
    """Run a Python program under strace; how often it and its children called fdatasync."""
    with tempfile.NamedTemporaryFile(prefix="crashtest-strace-") as trace:
        command = ["strace", "-f", "-qq", "-o", trace.name, "-e", "trace=fdatasync", sys.executable, *program]
        subprocess.run(command, check=False, capture_output=True, timeout=timeout_s)  # noqa: S603 - the caller's own program
        return len(re.findall(rb"\bfdatasync\(", trace.read()))


def _program(command: Sequence[str]) -> list[str]:
    """The command as it is to follow `python`: this interpreter runs it, because only a Python program can be killed at a crash point."""
    if re.fullmatch(r"python[\d.]*", os.path.basename(command[0])):
        return list(command[1:])
    on_path = None if os.path.exists(command[0]) else shutil.which(command[0])
    return [on_path or command[0], *command[1:]]


def _in(program: list[str], place: Path) -> list[str]:
    return [part.replace("{dir}", str(place)) for part in program]


def _new(place: Path) -> Path:
    place.mkdir(parents=True)
    return place


def _lines(effects_file: str | None, place: Path) -> Counter[str]:
    if effects_file is None:
        return Counter()
    path = Path(effects_file.replace("{dir}", str(place)))
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()
