"""Deciding about effects from a shell, crash-testing somebody's program, and the crash matrix: what is printed, recorded and answered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from eventlog import EventLog
from eventlog.cli import demo_matrix, main
from eventlog.cli.effects_choose import CLASSES, STATES
from eventlog.projections import EFFECTS, EffectClass, Intent, IntentId, IntentState, effect_events, fold
from eventlog.recovery import Abandoned, Indeterminate, Tool, Toolbox, ToolContext, Unknown, matrix, recover

DOOR = [sys.executable, "-m", "eventlog.cli"]
BROKEN = Path(__file__).parent.parent / "examples" / "broken_guards.py"
DECISIONS = ("happened", "not-happened", "retry", "abandon")


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def call(*args: str | os.PathLike[str]) -> Ran:
    """One command in this process: the same entry, without the price of an interpreter."""
    result = CliRunner().invoke(main, [os.fspath(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


def run(*args: str | os.PathLike[str], **options: Any) -> Ran:
    """One command in a real child process."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 300, "check": False} | options
    child = subprocess.run([*DOOR, *args], **options)
    return Ran(child.returncode, child.stdout or "", child.stderr)


def refused(ran: Ran, code: int, *words: str) -> None:
    """One line on standard error that holds these words."""
    assert ran.code == code, ran
    assert len(ran.err.splitlines()) == 1, ran.err
    for word in words:
        assert word in ran.err, ran.err


class Shop:
    """Two tools whose receiver does not answer, and what reached it."""

    def __init__(self, log: EventLog) -> None:
        self.reached: list[str] = []
        self.answers = False
        self.tools = Toolbox(log)

        def pay(ctx: ToolContext, to: str) -> str:
            self.reached.append(to)
            if not self.answers:
                raise TimeoutError("no answer")
            return f"paid {to}"

        self.pay: Tool = self.tools.tool(EffectClass.NON_IDEMPOTENT, name="pay")(pay)
        lost = Unknown("the receiver has lost its books")
        self.ask: Tool = self.tools.tool(EffectClass.RECONCILABLE, name="ask", reconcile=lambda view: lost)(pay)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """a@1:1, b@1:1 (non-idempotent) and c@1:1 (reconcilable) are indeterminate; d@1:1 is dispatched, e@1:1 pending, f@1:1 committed."""
    path = tmp_path / "log"
    with EventLog.open(path) as log:
        shop = Shop(log)
        for branch, tool in (("a", shop.pay), ("b", shop.pay), ("c", shop.ask)):
            with shop.tools.attempt(branch, 1) as attempt, pytest.raises(Indeterminate):
                attempt.call(tool, to=branch)
        for branch in ("d", "e"):
            id_ = IntentId(branch, 1, 1)
            one = {
                "tool": "pay",
                "version": "1",
                "class_": EffectClass.NON_IDEMPOTENT,
                "digest": "0" * 64,
                "key": "k",
                "key_scope": "attempt",
            }
            log.commit(effect_events.pending(id_, args={"to": branch}, **one))  # type: ignore[arg-type]
        log.commit(effect_events.dispatched("d@1:1", try_number=1, pid=1, by="guard"))
        shop.answers = True
        with shop.tools.attempt("f", 1) as attempt:
            attempt.call(shop.pay, to="f")
    assert {name: one.state.value for name, one in intents(path).items()} == {
        "a@1:1": "indeterminate",
        "b@1:1": "indeterminate",
        "c@1:1": "indeterminate",
        "d@1:1": "dispatched",
        "e@1:1": "pending",
        "f@1:1": "committed",
    }
    return path


def intents(path: Path) -> dict[str, Intent]:
    with EventLog.open(path, create=False, read_only=True) as log:
        return fold(EFFECTS, log).intents


def head(path: Path) -> int:
    with EventLog.open(path, create=False, read_only=True) as log:
        return int(log.head)


def resolve(path: Path, *args: str, reason: str = "looked") -> Ran:
    return call("effects", "resolve", path, *args, "--reason", reason, "--actor", "ann")


# ---------------------------------------------------------------- list


def test_the_words_of_the_options_are_those_of_the_enums() -> None:
    assert set(STATES) == {state.value for state in IntentState}
    assert set(CLASSES) == {class_.value for class_ in EffectClass}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], "abcdef"),
        (["--class", "reconcilable"], "c"),
        (["--class", "RECONCILABLE", "--class", "NON_IDEMPOTENT", "--state", "indeterminate"], "abc"),
        (["--branch", "b"], "b"),
        (["--older-than", "0s"], "abcdef"),
        (["--older-than", "2h"], ""),
        (["--open", "--class", "non_idempotent"], "abde"),
        (["--state", "pending", "--state", "committed"], "ef"),
        (["--state", "cancelled"], ""),
    ],
)
def test_list_filters_and_fails_if_any(path: Path, options: list[str], found: str) -> None:
    ran = call("effects", "list", path, "--json", *options)
    assert ran.code == 0
    assert [one["id"] for one in ran.objects] == [f"{branch}@1:1" for branch in found]
    strict = call("effects", "list", path, "--fail-if-any", *options)
    assert strict.code == (1 if found else 0)
    assert len(strict.lines) == (len(found) + 1 if found else 0)


@pytest.mark.parametrize("age", ["", "2", "h", "-1h", "2w", "1.5h", "1h30m", "\u0662h", "9999999999d"])
def test_an_age_has_one_spelling(path: Path, age: str) -> None:
    refused(call("effects", "list", path, "--older-than", age), 2, "--older-than", "10m")


# ---------------------------------------------------------------- resolve


def test_a_decision_holds_for_the_version_that_was_shown(path: Path) -> None:
    shown = json.loads(call("effects", "show", path, "a@1:1", "--json").out)["intent"]
    listed = call("effects", "list", path, "--branch", "a", "--json").objects[0]
    assert shown["version"] == listed["version"] == intents(path)["a@1:1"].version
    before = head(path)
    refused(resolve(path, "a@1:1", "--abandon", "--expect-version", str(shown["version"] - 1)), 1, "version", "look again")
    assert head(path) == before
    with EventLog.open(path) as log:  # evidence comes between the look and the decision
        log.commit(effect_events.evidence("a@1:1", "receipt-7"))
    refused(resolve(path, "a@1:1", "--abandon", "--expect-version", str(shown["version"])), 1, "look again")
    ran = resolve(path, "a@1:1", "--abandon", "--expect-version", str(intents(path)["a@1:1"].version))
    assert ran == Ran(0, "a@1:1 is abandoned\n", "")


@pytest.mark.parametrize("decision", DECISIONS)
def test_the_same_decision_again_records_nothing(path: Path, decision: str) -> None:
    version = str(intents(path)["a@1:1"].version)
    assert resolve(path, "a@1:1", f"--{decision}", "--expect-version", version).code == 0
    after, state = head(path), intents(path)["a@1:1"].state.value
    for options in ([], ["--expect-version", version]):
        assert resolve(path, "a@1:1", f"--{decision}", *options) == Ran(0, f"a@1:1 is {state} (recorded before)\n", "")
        [again] = resolve(path, "a@1:1", f"--{decision}", *options, "--json").objects
        assert (again["recorded"], again["repeated"], again["state"]) == (False, True, state)
    assert resolve(path, "a@1:1", f"--{decision}", "--expect-version", version, reason="another").code == 1
    other = "abandon" if decision != "abandon" else "happened"
    assert resolve(path, "a@1:1", f"--{other}", "--expect-version", version).code == 1
    assert head(path) == after


def test_another_outcome_is_another_decision(path: Path) -> None:
    assert resolve(path, "a@1:1", "--happened", "--outcome", '{"receipt": 7}').code == 0
    assert resolve(path, "a@1:1", "--happened", "--outcome", '{"receipt":7}').lines == ["a@1:1 is committed (recorded before)"]
    refused(resolve(path, "a@1:1", "--happened", "--outcome", '{"receipt": 8}'), 1, "committed")
    refused(resolve(path, "a@1:1", "--happened"), 1, "committed")


def test_a_decision_whose_answer_was_lost_is_known_after_the_effect_went_on(path: Path) -> None:
    version = str(intents(path)["a@1:1"].version)
    assert resolve(path, "a@1:1", "--retry", "--expect-version", version).code == 0
    with EventLog.open(path) as log:
        shop = Shop(log)
        recover(log, shop.tools)  # sends it; again there is no answer
        assert shop.reached.count("a") == 1
    before = head(path)
    assert intents(path)["a@1:1"].state is IntentState.INDETERMINATE
    assert resolve(path, "a@1:1", "--retry", "--expect-version", version).lines == ["a@1:1 is indeterminate (recorded before)"]
    assert head(path) == before
    assert resolve(path, "a@1:1", "--retry").lines == ["a@1:1 is pending"]  # somebody looked again, and decides anew
    assert head(path) == before + 1


@pytest.mark.parametrize("decision", DECISIONS)
def test_the_program_goes_on_as_decided(path: Path, decision: str) -> None:
    options = ["--outcome", '"she has it"'] if decision == "happened" else []
    assert resolve(path, "a@1:1", f"--{decision}", *options).code == 0
    with EventLog.open(path) as log:
        shop = Shop(log)
        shop.answers = True
        with shop.tools.attempt("a", 1) as attempt:
            if decision == "abandon":
                with pytest.raises(Abandoned):
                    attempt.call(shop.pay, to="a")
            else:
                result = attempt.call(shop.pay, to="a")
                assert result == ("she has it" if decision == "happened" else "paid a")
        assert shop.reached == (["a"] if decision in ("not-happened", "retry") else [])


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_dry_run_says_what_would_be_and_changes_nothing(path: Path, decision: str, cancelled: bool) -> None:
    if cancelled:
        with EventLog.open(path) as log, Toolbox(log).attempt("a", 1) as attempt:
            attempt.cancel()
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.rglob("*") if file.is_file()}
    dry = resolve(path, "a@1:1", f"--{decision}", "--dry-run")
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.rglob("*") if file.is_file()} == before
    real = resolve(path, "a@1:1", f"--{decision}")
    assert (dry.code, real.code) == (0, 0)
    assert dry.out.replace(" would be ", " is ") == real.out
    if decision in ("not-happened", "retry"):
        assert real.lines == [f"a@1:1 is {'cancelled' if cancelled else 'pending'}"]


def test_bulk_by_filter_prints_a_line_each_and_leaves_what_is_not_indeterminate(path: Path) -> None:
    dry = resolve(path, "--class", "non_idempotent", "--abandon", "--dry-run")
    assert (dry.code, dry.lines) == (0, ["a@1:1 would be abandoned", "b@1:1 would be abandoned"])
    ran = resolve(path, "--class", "non_idempotent", "--abandon")
    assert (ran.code, ran.lines) == (0, ["a@1:1 is abandoned", "b@1:1 is abandoned"])
    assert resolve(path, "--class", "non_idempotent", "--abandon") == Ran(0, "", "")
    states = {name: one.state.value for name, one in intents(path).items()}
    assert (states["c@1:1"], states["d@1:1"], states["e@1:1"]) == ("indeterminate", "dispatched", "pending")
    assert resolve(path, "--older-than", "1d", "--abandon") == Ran(0, "", "")
    assert call("status", path).lines[0] == "1 waiting for a decision"
    ran = resolve(path, "--state", "indeterminate", "--state", "dispatched", "--happened", "--outcome", "7", "--json")
    assert [(one["id"], one["state"], one["recorded"]) for one in ran.objects] == [
        ("c@1:1", "committed", True),
        ("d@1:1", "committed", True),
    ]
    assert call("status", path).lines[0] == "nothing waits for a decision"
    with EventLog.open(path, create=False, read_only=True) as log:
        events = [event.data for event in log.read(types={effect_events.RESOLVED}, streams={f"{branch}@1:1" for branch in "abcd"})]
    human = [data for data in events if data["source"] == "human"]
    assert [(data["actor"], data["reason"]) for data in human] == [("ann", "looked")] * 4


def test_one_that_is_refused_does_not_stop_the_others(path: Path) -> None:
    ran = resolve(path, "f@1:1", "e@1:1", "a@1:1", "a@1:1", "--retry")
    assert ran.code == 1
    assert [line.split(":")[0] for line in ran.lines[:2]] == ["not decided", "not decided"]
    assert ran.lines[2:] == ["a@1:1 is pending"]
    assert ran.err == "eventlog effects resolve: 2 were not decided\n"
    again = resolve(path, "f@1:1", "a@1:1", "--retry", "--json")
    assert again.code == 1
    assert [(one["id"], one["recorded"], one["repeated"], one["refused"] is None) for one in again.objects] == [
        ("f@1:1", False, False, False),
        ("a@1:1", False, True, True),
    ]


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_the_effects_of_a_living_process_are_busy(path: Path, dry: list[str]) -> None:
    with EventLog.open(path) as log, Toolbox(log).attempt("d", 1):
        ran = run("effects", "resolve", path, "d@1:1", "b@1:1", "--abandon", "--reason", "x", *dry)
        assert ran.code == 4
        assert "d@1:1: the process that makes this call is alive" in ran.lines[0]
        assert ran.lines[1].startswith("b@1:1 ")
        refused(run("effects", "resolve", path, "d@1:1", "--abandon", "--reason", "x", *dry), 4, "alive")
        both = run("effects", "resolve", path, "d@1:1", "f@1:1", "--abandon", "--reason", "x", *dry)
        assert (both.code, len(both.lines)) == (1, 2), "a refusal stays one, however long one waits for the process"
    assert intents(path)["d@1:1"].state is IntentState.DISPATCHED
    assert intents(path)["b@1:1"].state is (IntentState.INDETERMINATE if dry else IntentState.ABANDONED)


def test_a_bulk_whose_output_fails_stops_loudly_and_can_be_run_again(path: Path) -> None:
    command = ["effects", "resolve", str(path), "a@1:1", "b@1:1", "--abandon", "--reason", "x"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        refused(run(*command, stdout=writer), 5, "stopped after 1 decisions")
    finally:
        os.close(writer)
    assert [intents(path)[name].state.value for name in ("a@1:1", "b@1:1")] == ["abandoned", "indeterminate"]
    assert run(*command).lines == ["a@1:1 is abandoned (recorded before)", "b@1:1 is abandoned"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["a@1:1"], ["--happened", "--abandon"]),
        (["--abandon"], ["--state"]),
        (["a@1:1", "--branch", "b", "--abandon"], ["one of the two"]),
        (["a@1:1", "z@1:1", "--abandon"], ["z@1:1"]),
        (["a@1:1", "b@1:1", "--expect-version", "3", "--abandon"], ["--expect-version"]),
        (["--branch", "a", "--expect-version", "3", "--abandon"], ["--expect-version"]),
        (["a@1:1", "--abandon", "--outcome", "1"], ["--outcome", "--happened"]),
        (["a@1:1", "--happened", "--outcome", "NaN"], ["--outcome", "NaN"]),
        (["a@1:1", "--happened", "--outcome", "[" * 100_000], ["--outcome"]),
    ],
)
def test_usage_records_nothing(path: Path, args: list[str], words: list[str]) -> None:
    before = head(path)
    refused(resolve(path, *args), 2, *words)
    assert head(path) == before


# ---------------------------------------------------------------- crashtest

AGENT = """
import os, sys, time
from pathlib import Path
from eventlog import EventLog
from eventlog.recovery import Indeterminate, Toolbox, recover

place = Path(sys.argv[1])
with EventLog.open(place / "log") as log:
    tools = Toolbox(log)

    @tools.tool()
    def act(ctx):
        with open(place / "effects", "a") as file:
            file.write("one\\n")

    recover(log, tools)
    with tools.attempt("b", 1) as attempt:
        try:
            attempt.call(act)
        except Indeterminate as error:
            print(error)
if "--slow" in sys.argv:
    time.sleep(600)
"""
WITNESS = ["--effects-file", "{dir}/effects"]


def test_crashtest_of_a_right_program_on_the_path(tmp_path: Path) -> None:
    script = tmp_path / "my-agent"
    script.write_text(f"#!{sys.executable}\n{AGENT}")
    script.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    ran = run("crashtest", *WITNESS, "--", "my-agent", "{dir}", env=env, cwd=tmp_path)
    assert ran.code == 0, ran
    assert ran.lines[0].split() == ["KILLED", "AT", "EFFECTS", "AGAIN", "TWICE", "LOST", "LEFT", "CLASSIFIED"]
    rows = {line.split(" #")[0]: line.split(maxsplit=7)[2:] for line in ran.lines[1:6]}
    assert rows == {
        "before-pending": ["0", "1", "0", "0", "0", "no intent"],
        "after-pending": ["0", "1", "0", "0", "0", "b@1:1 never sent"],
        "after-dispatched": ["0", "0", "0", "1", "1", "b@1:1 may have been sent"],
        "after-effect": ["1", "1", "0", "0", "1", "b@1:1 may have been sent"],
        "after-committed": ["1", "1", "0", "0", "0", "b@1:1 committed"],
    }
    assert "5 crashes; undisturbed: 1 effects" in ran.lines
    assert ran.lines[-1].startswith("no effect happened twice")
    assert [file.name for file in tmp_path.iterdir()] == ["my-agent"], "nothing is left behind"


def test_crashtest_finds_duplicates() -> None:
    ran = run("crashtest", *WITNESS, "--json", "--", "python", BROKEN, "retry-of-unknown", "{dir}")
    assert (ran.code, ran.err) == (1, "")
    [report] = ran.objects
    assert (report["ok"], report["effects"]) == (False, 2)
    twice = {(row["point"], row["nth"]): row["duplicates"] for row in report["rows"] if row["duplicates"]}
    assert twice == {("in-tool", 1): 1, ("after-effect", 1): 1, ("in-tool", 2): 1, ("after-effect", 2): 1}
    first = next(row for row in report["rows"] if (row["point"], row["nth"]) == ("in-tool", 1))
    assert "1 effects happened twice, and the classes allow 0" in first["problems"]
    assert first["states"] == {"b@1:1": "may have been sent"}


@pytest.mark.parametrize(
    ("options", "command", "words"),
    [
        ([], ["{agent}"], ["{dir}"]),
        ([], ["{empty}", "{dir}"], ["no crash point"]),
        ([], ["{broken}", "{dir}"], ["out of order"]),
        ([], ["{agent}.none", "{dir}"], [".none"]),
        (["--effects-file", "{dir}/efects"], ["{agent}", "{dir}"], ["efects", "no line"]),
        (["--timeout", "2"], ["{agent}", "{dir}", "--slow"], ["did not end within 2 s"]),
        (["--efects-file", "x"], ["{agent}", "{dir}"], ["--efects-file"]),
    ],
)
def test_crashtest_refuses_what_would_prove_nothing(tmp_path: Path, options: list[str], command: list[str], words: list[str]) -> None:
    programs = {"agent": AGENT, "empty": "", "broken": "raise SystemExit('out of order')"}
    for name, text in programs.items():
        (tmp_path / f"{name}.py").write_text(text)
        command = [part.replace(f"{{{name}}}", str(tmp_path / f"{name}.py")) for part in command]
    ran = call("crashtest", *options, "--", *command)
    refused(ran, 2, *words)
    assert ran.out == ""


# ---------------------------------------------------------------- demo --matrix


def test_demo_matrix_prints_every_cell(tmp_path: Path) -> None:
    ran = run("demo", "--matrix", env={**os.environ, "TMPDIR": str(tmp_path)})
    assert (ran.code, ran.err) == (0, "")
    rows = [line.split(maxsplit=3) for line in ran.lines if line.split()[:1] and line.split()[0] in CLASSES]
    assert [(class_, point) for class_, point, *_ in rows] == [(class_, point) for class_ in CLASSES for point in matrix.POINTS]
    for class_, point, found, cells in rows:
        expected = [matrix.EXPECTED[EffectClass(class_), ending][matrix.POINTS.index(point)] for ending in matrix.ENDINGS]
        assert cells.split() == [
            word for cell in expected for word in (cell.state.value if cell.state else "nothing", f"{cell.effects}/{cell.calls}")
        ]
        before = {"before-pending": "nothing", "after-pending": "pending", "after-committed": "committed"}
        assert found == before.get(point, "dispatched"), "the kill was not where it should be"
    assert ran.lines[-1].startswith("72 of 72 cells run")
    assert "0 differ" in ran.lines[-1]
    assert not list(tmp_path.iterdir())


def test_demo_matrix_says_when_a_cell_differs_and_when_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_matrix, "SECONDS_MAX", 0.0)
    ran = call("demo", "--matrix", tmp_path / "kept")
    assert ran.code == 5
    assert [line for line in ran.lines if line.startswith("1 of 72 cells run")]
    assert ran.lines[-1] == "  ! stopped: 0 seconds have passed"
    assert (tmp_path / "kept" / "read_only-before-pending-crash" / "log" / "log.json").exists()
    key: tuple[EffectClass, matrix.Ending] = (EffectClass.READ_ONLY, "crash")
    wrong = (matrix.Cell(IntentState.COMMITTED, 1, 1), *matrix.EXPECTED[key][1:])
    monkeypatch.setitem(matrix.EXPECTED, key, wrong)
    ran = call("demo", "--matrix", tmp_path / "again")
    assert ran.code == 1
    assert "  ! read_only, before-pending, crash: committed 0/1; the table says committed 1/1" in ran.lines
    refused(call("demo", "--matrix", tmp_path / "again"), 2, "not empty")
