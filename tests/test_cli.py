"""The door: exit codes, one-line errors, pipes, signals, escaping, and that looking at a log never changes it.

Whatever a shell can see is tested through a real child process; the rest in this process, through the same entry.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from eventlog import Durability, Event, EventLog
from eventlog.cli import main
from eventlog.cli.app import COMMANDS
from eventlog.cli.output import as_json, escape, shown, when
from eventlog.projections import effect_events
from eventlog.recovery import EffectClass, Indeterminate, IntentId, IntentState, Toolbox, ToolContext

DOOR = [sys.executable, "-m", "eventlog.cli"]
NASTY = "\x00\x07\x1b[31m\x7f\x85\x9b\u061c\u200e\u202e\u2028\u2029\u2066\ufeff\U000e0041é漢\U0001f600"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def readable(fd: int) -> bool:
    """Within 30 seconds. poll, not select: another test of this process may have more than 1,024 descriptors open."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(30_000))


class Ran(NamedTuple):
    code: int
    out: bytes
    err: str


def run(*args: str | os.PathLike[str], stdin: bytes = b"", **options: Any) -> Ran:
    """One command in a real child process."""
    child = subprocess.run([*DOOR, *args], input=stdin, capture_output=True, timeout=60, check=False, **options)
    return Ran(child.returncode, child.stdout, child.stderr.decode())


def call(*args: str | os.PathLike[str], stdin: bytes = b"") -> Ran:
    """One command in this process: the same entry, without the price of an interpreter."""
    result = CliRunner().invoke(main, [os.fspath(arg) for arg in args], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout_bytes, result.stderr)


def one_line(ran: Ran, code: int, *words: str) -> None:
    """An error is one line on standard error that holds these words; never a traceback."""
    assert ran.code == code, ran
    assert "Traceback" not in ran.err
    assert len(ran.err.splitlines()) == 1, ran.err
    assert not CONTROLS.search(ran.err)
    for word in words:
        assert word in ran.err, ran.err


def lines(raw: bytes) -> list[Any]:
    return [json.loads(line) for line in raw.split(b"\n")[:-1]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Ten events in seven commits, two streams, two types."""
    path = tmp_path / "log"
    with EventLog.open(path) as handle:
        for number in range(6):
            handle.commit(Event("note.added", {"n": number}, stream="a"), Durability.BATCHED)
        handle.commit([Event("note.closed", {"n": n}, stream="b") for n in range(4)])
    return path


def rotated(path: Path) -> list[int]:
    """A log of several segments; their numbers."""
    with EventLog.open(path, segment_bytes_max=4096) as handle:
        for number in range(60):
            handle.commit(Event("note.added", {"n": number, "text": "x" * 200}, stream="a"), Durability.BATCHED)
        handle.flush()
        numbers = [info.number for info in handle.segments()]
    assert len(numbers) > 2
    return numbers


def damage(path: Path) -> str:
    """Flip one byte in the body of the third commit of the first segment; its file name."""
    segment = min((path / "segments").iterdir())
    raw = bytearray(segment.read_bytes())
    third = list(re.finditer(b"note.added", raw))[2]
    raw[third.start() + 3] ^= 0x20
    segment.write_bytes(raw)
    return segment.name


# ---------------------------------------------------------------- help, usage, start-up


@pytest.mark.parametrize("command", [*COMMANDS, "effects list", "effects show", "effects resolve"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    ran = call(*command.split(), "--help")
    assert ran.code == 0
    assert "Example" in ran.out.decode()
    assert f"eventlog {command.split()[0]}" in ran.out.decode().split("Example", 1)[1] or command == "effects"


def test_help_lists_every_command_and_completion_knows_them() -> None:
    text = call("--help").out.decode()
    completed = run(env={**os.environ, "_EVENTLOG_COMPLETE": "bash_complete", "COMP_WORDS": "eventlog ", "COMP_CWORD": "1"})
    assert completed.code == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", text, re.MULTILINE)
        assert f"plain,{command}" in completed.out.decode().splitlines()
    script = run(env={**os.environ, "_EVENTLOG_COMPLETE": "bash_source"})
    assert b"complete -o nosort -F" in script.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["append"], ["LOG"]),
        (["nosuch"], ["nosuch"]),
        (["tail", "x", "-n", "1", "--after", "2"], ["-n", "--after"]),
        (["verify", "x", "--expect", "12"], ["SEQ:HASH"]),
        (["dump", "x", "--format", "xml"], ["xml"]),
        (["dump", "x", "--redact", "("], ["--redact"]),
        (["fold", "x", "-p", "nosuch"], ["nosuch"]),
        (["fold", "x", "-p", "no_such_module:thing"], ["no_such_module"]),
        (["fold", "x", "-p", "json:dumps"], ["json:dumps", "Projection"]),
    ],
)
def test_usage_is_one_line_and_2(args: list[str], words: list[str], log: Path) -> None:
    one_line(call(*(str(log) if arg == "x" else arg for arg in args)), 2, *words)


READERS = ["dump", "tail", "fold", "status", "head", "verify", "effects list"]


@pytest.mark.parametrize("command", [*READERS, "recover", "repair --yes"])
def test_no_log_there_is_2_and_creates_nothing(command: str, tmp_path: Path) -> None:
    for missing in (tmp_path / "missing", tmp_path):
        name, *options = command.split()
        if name == "effects":
            name, options = "effects", ["list"]
            one_line(call("effects", "list", missing), 2, str(missing))
        else:
            one_line(call(name, missing, *options), 2, str(missing))
    assert list(tmp_path.iterdir()) == []


def test_start_up_is_light(log: Path) -> None:
    """What a hook or a prompt runs must not pay for the terminal display or the folds."""
    code = (
        "import sys\nfrom eventlog.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'rich', 'sortedcontainers', 'asyncio', 'eventlog.projections', 'eventlog.recovery'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    for args in (["--version"], ["append", str(log)], ["tail", str(log)], ["head", str(log)]):
        child = subprocess.run([sys.executable, "-c", code, *args], input=b"", capture_output=True, check=True)
        assert child.stderr == b"[]\n", args


# ---------------------------------------------------------------- append


def test_append_commits_a_line_at_a_time_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "log"
    text = (
        b'{"type": "a.b", "data": {"n": 1}}\n'
        b"\n"
        b'[{"type": "a.b", "stream": "s", "data": {}}, {"type": "c", "data": {"x": [1, null]}}]\r\n'
        b'{"seq": 9, "time": "2026-01-01T00:00:00Z", "commit": 3, "type": "d", "stream": "", "data": {"last": "no line end"}}'
    )
    ran = run("append", path, stdin=text)
    assert ran == Ran(0, b'{"first":1,"last":1}\n{"first":2,"last":3}\n{"first":4,"last":4}\n', "")
    with EventLog.open(path, create=False, read_only=True) as handle:
        assert [event[2:] for event in handle.read()] == [
            ("a.b", "", {"n": 1}),
            ("a.b", "s", {}),
            ("c", "", {"x": [1, None]}),
            ("d", "", {"last": "no line end"}),
        ]
    assert run("append", path, "--durability", "batched", stdin=text[:34]).out == b'{"first":5,"last":5}\n'
    assert call("head", path).out.startswith(b"5:")


BAD_LINES = [
    (b'{"type": "a", "data": {"x": 1, "x": 2}}', ["x", "twice"]),
    (b'{"type": "a", "type": "b", "data": {}}', ["type", "twice"]),
    (b'{"type": "a", "data": {"x": [0, 18446744073709551616]}}', ["data.x[1]", "64 bit"]),
    (b'{"type": "a", "data": {"x": -9223372036854775809}}', ["data.x", "64 bit"]),
    (b'{"type": "a", "data": {"x": ' + b"9" * 5000 + b"}}", ["data.x", "64 bit"]),
    (b'{"type": "a", "data": {"x": NaN}}', ["data.x", "nan"]),
    (b'{"type": "a", "data": {"x": -Infinity}}', ["data.x", "inf"]),
    (b'{"type": "a", "data": {"x": 1e999}}', ["data.x", "inf"]),
    (b'{"type": "a", "data": {"x": "\\ud800"}}', ["data.x", "surrogate"]),
    (b'{"type": "a", "data": {"\\udfff": 1}}', ["data", "surrogate"]),
    (b'{"type": "a", "data": {"x": "\xff"}}', ["byte 30", "UTF-8"]),
    (b'{"type": "a", "data": {"x": "\x1b"}}', ["column 30"]),
    (b'{"type": "a", "data": {"x": ' + b"[" * 200 + b"]" * 200 + b"}}", ["data.x", "deep"]),
    (b'{"type": "a", "data": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}", ["deep"]),
    (b'{"type": "a", "data": {}, "extra": 1}', ["extra", "unknown"]),
    (b'{"type": "a", "data": {}, "\x7f\xe2\x80\xae": 1}', ["unknown"]),
    (b'{"type": "a"}', ["data", "missing"]),
    (b'{"data": {}}', ["type", "missing"]),
    (b'{"type": "Not Lower", "data": {}}', ["type"]),
    (b'{"type": 7, "data": {}}', ["type"]),
    (b'{"type": "a", "stream": null, "data": {}}', ["stream"]),
    (b'{"type": "a", "data": []}', ["data"]),
    (b'[{"type": "a", "data": {}}, {"type": "a", "data": {"x": NaN}}]', ["[1].data.x"]),
    (b'[{"type": "a", "data": {}}, 3]', ["[1]", "object"]),
    (b"[]", ["at least one"]),
    (b'"text"', ["string"]),
    (b"null", ["null"]),
    (b"{", ["column", "JSON"]),
    (b'{"type": "a", "data": {}} {"type": "a", "data": {}}', ["column 27"]),
    (b'{"type": "a", "data": {}}\xe2\x80\xa8{"type": "a", "data": {}}', ["column 26"]),
    (b'\xef\xbb\xbf{"type": "a", "data": {}}', ["column 1", "JSON"]),
]


@pytest.mark.parametrize(("bad", "words"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_line_is_refused_whole_and_what_came_before_stays(bad: bytes, words: list[str], tmp_path: Path) -> None:
    good = b'{"type": "fine", "data": {}}\n'
    for durability in ("immediate", "batched"):
        path = tmp_path / durability
        ran = call("append", path, "--durability", durability, stdin=good + b"\n" + good + bad + b"\n" + good)
        one_line(ran, 2, "line 4", *words, "the 2 commits before it are in the log")
        assert ran.out == b'{"first":1,"last":1}\n{"first":2,"last":2}\n'
        assert [event.type for event in EventLog.open(path, create=False, read_only=True).read()] == ["fine", "fine"]


def test_append_answers_a_live_pipe_line_by_line(tmp_path: Path) -> None:
    for durability in ("immediate", "batched"):
        child = subprocess.Popen(
            [*DOOR, "append", tmp_path / durability, "--durability", durability], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdin is not None
        assert child.stdout is not None
        with child:
            for number in range(1, 4):
                child.stdin.write(b'{"type": "a", "data": {}}\n')
                child.stdin.flush()
                assert json.loads(child.stdout.readline()) == {"first": number, "last": number}  # while the pipe is open
            child.stdin.close()
        assert child.returncode == 0


def test_append_does_not_pass_over_a_reader_that_left(tmp_path: Path) -> None:
    """Quiet would be wrong here: the rest of the input is not in the log."""
    end, start = os.pipe()
    os.close(end)
    child = subprocess.run(
        [*DOOR, "append", tmp_path / "log"], input=b'{"type": "a", "data": {}}\n' * 3, stdout=start, stderr=subprocess.PIPE, check=False
    )
    os.close(start)
    one_line(Ran(child.returncode, b"", child.stderr.decode()), 5, "stopped after line 1", "in the log")
    assert call("head", tmp_path / "log").out.startswith(b"1:")


def test_a_disk_that_refuses_is_5_and_says_how_far_it_came(tmp_path: Path) -> None:
    """A real refusal: no file of the child may grow beyond the limit."""
    line = json.dumps({"type": "a", "data": {"text": "x" * 30_000}}).encode() + b"\n"
    limited = ["bash", "-c", 'ulimit -f 200; exec "$0" -m eventlog.cli append log', sys.executable]
    child = subprocess.run(limited, input=line * 20, cwd=tmp_path, capture_output=True, check=False)
    printed = lines(child.stdout)
    assert 0 < len(printed) < 20
    ran = Ran(child.returncode, child.stdout, child.stderr.decode())
    one_line(ran, 5, f"line {len(printed) + 1}", f"{len(printed)} commits were printed before it")
    assert call("head", tmp_path / "log").out.startswith(b"%d:" % len(printed))
    assert run("append", tmp_path / "log", stdin=line).code == 0


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventlog.cli.append.LINE_BYTES_MAX", 100)
    one_line(
        call("append", tmp_path / "log", stdin=b'{"type": "a", "data": {}}\n' + b" " * 50 + b"x" * 60 + b"\n"), 2, "line 2", "100 bytes"
    )


def test_busy_is_4(log: Path) -> None:
    with (log / "lock").open("rb+") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        ran = run("append", log, stdin=b'{"type": "a", "data": {}}\n')
        one_line(ran, 4, "lock")
        assert run("tail", log, "-n", "1").code == 0  # readers do not care


# ---------------------------------------------------------------- dump

_text = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("\u2028\u2029\x85\x00\x1b\x7f\x9b\u202e\ufeff\U0001f600"))
)
_scalar = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    _text,
)
_json = st.recursive(_scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3), max_leaves=8)
_event = st.builds(Event, st.sampled_from(["a", "a.b", "x-y_z.1"]), st.dictionaries(_text, _json, max_size=3), _text)


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.lists(_event, min_size=1, max_size=3), min_size=1, max_size=4))
def test_append_of_a_dump_gives_equal_events(batches: list[list[Event]], tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("round")
    with EventLog.open(home / "one") as handle:
        for batch in batches:
            handle.commit(batch, Durability.BATCHED)
    first = call("dump", home / "one")
    assert first.code == 0
    assert first.out.count(b"\n") == sum(map(len, batches))
    assert not CONTROLS.search(first.out.decode())
    assert call("dump", home / "one").out == first.out
    assert call("append", home / "two", "--durability", "batched", stdin=first.out).code == 0
    with EventLog.open(home / "two", create=False, read_only=True) as copy:
        back = [Event(event.type, event.data, event.stream) for event in copy.read()]
    given_events = [event for batch in batches for event in batch]
    assert back == given_events
    assert repr(back) == repr(given_events)  # 1 and 1.0 and True are equal and not the same


def test_dump_fields_and_formats(log: Path) -> None:
    rows = lines(call("dump", log).out)
    assert [list(row) for row in rows] == [["seq", "time", "type", "stream", "data"]] * 10
    assert [row["seq"] for row in rows] == list(range(1, 11))
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", row["time"]) for row in rows)
    assert json.loads(call("dump", log, "--format", "json").out) == rows
    clouds = lines(call("dump", log, "--format", "cloudevents").out)
    with EventLog.open(log, create=False, read_only=True) as handle:
        assert clouds[9] == {
            "specversion": "1.0",
            "id": "10",
            "source": f"urn:eventlog:{handle.id}",
            "type": "note.closed",
            "subject": "b",
            "time": rows[9]["time"],
            "sequence": "00000000000000000010",
            "datacontenttype": "application/json",
            "data": {"n": 3},
        }


def test_dump_of_an_empty_log(tmp_path: Path) -> None:
    EventLog.open(tmp_path / "log").close()
    assert call("dump", tmp_path / "log") == Ran(0, b"", "")
    assert json.loads(call("dump", tmp_path / "log", "--format", "json").out) == []
    assert call("tail", tmp_path / "log") == Ran(0, b"", "")
    assert call("fold", tmp_path / "log").code == 0
    assert call("status", tmp_path / "log").code == 0
    assert call("verify", tmp_path / "log").code == 0


def test_segments_of_a_dump_make_the_whole(tmp_path: Path) -> None:
    numbers = rotated(tmp_path / "log")
    parts = [call("dump", tmp_path / "log", "--segment", str(number)).out for number in numbers]
    assert [lines(part)[0]["seq"] for part in parts] == numbers
    assert b"".join(parts) == call("dump", tmp_path / "log").out
    one_line(call("dump", tmp_path / "log", "--segment", "2"), 2, "segment 2", str(numbers[1]))


def test_redact_takes_what_a_pattern_finds_in_key_or_text_and_counts(tmp_path: Path) -> None:
    data = {
        "token": "abc",
        "pin_token": 1234,
        "deep": {"tokens": ["x", {"y": "z"}, None, True]},
        "text": "mail bob@example.org now",
        "card": 4111111111111111,
        "fine": "left alone",
        "n": 7,
    }
    with EventLog.open(tmp_path / "log") as handle:
        handle.commit(Event("a", data, stream="user:bob@example.org"))
    ran = call("dump", tmp_path / "log", "--redact", "token", "--redact", r"@example\.org", "--redact", r"^\d{16}$")
    [row] = lines(ran.out)
    gone = "[redacted]"
    assert row["stream"] == gone
    assert row["data"] == {
        "token": gone,
        "pin_token": gone,
        "deep": {"tokens": [gone, {"y": gone}, None, True]},
        "text": gone,
        "card": gone,
        "fine": "left alone",
        "n": 7,
    }
    assert ran.err == "eventlog dump: 7 values redacted\n"
    assert call("dump", tmp_path / "log", "--redact", "nothing like it").err == "eventlog dump: 0 values redacted\n"


# ---------------------------------------------------------------- what a terminal gets to see


def test_text_escapes_what_moves_a_cursor_or_turns_a_line() -> None:
    escaped = escape(NASTY + "\ud800\n")
    assert not CONTROLS.search(escaped)
    assert escaped.startswith("\\x00\\x07\\x1b[31m\\x7f\\x85\\x9b\\u061c\\u200e\\u202e\\u2028\\u2029\\u2066\\ufeff\\U000e0041")
    assert escaped.endswith("é漢\U0001f600\\ud800\\n")
    assert shown(b"a\xff\x1b.seg".decode(errors="surrogateescape")) == "a\\xff\\x1b.seg"
    assert not CONTROLS.search(as_json({NASTY: [NASTY]}).decode())
    assert json.loads(as_json({NASTY: [NASTY]})) == {NASTY: [NASTY]}


@given(_text)
def test_json_escapes_and_comes_back(text: str) -> None:
    raw = as_json({"x": text, text: 1})
    assert json.loads(raw) == {"x": text, text: 1}
    assert not CONTROLS.search(raw.decode())
    assert not CONTROLS.search(escape(text).replace("\n", "?"))


def test_times() -> None:
    assert when(0) == "1970-01-01T00:00:00.000000000Z"
    assert when(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456789Z"
    assert when(-1) == "1969-12-31T23:59:59.999999999Z"
    for odd in (2**63 - 1, -(2**63), 253402300800 * 10**9):
        assert when(odd).endswith("Z")


@pytest.mark.parametrize("command", [["tail"], ["tail", "--json"], ["dump"], ["dump", "--format", "cloudevents"], ["fold"], ["status"]])
def test_hostile_payload_is_shown_escaped(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31mb\u202e\udcff"
    with EventLog.open(path) as handle:
        handle.commit(Event("a", {NASTY: NASTY}, stream=NASTY))
    ran = run(command[0], path, *command[1:])
    assert ran.code == 0, ran.err
    assert b"\xe6\xbc\xa2" in ran.out or command == ["status"]  # printable characters of any script stay readable
    assert not CONTROLS.search(ran.out.decode())
    one_line(run(command[0], path / "no\x1bsuch\udcff", *command[1:]), 2, "no\\x1bsuch")


# ---------------------------------------------------------------- tail


def test_tail_selects(log: Path) -> None:
    def seqs(*args: str) -> list[int]:
        return [row["seq"] for row in lines(call("tail", log, "--json", *args).out)]

    assert seqs() == list(range(1, 11))
    assert seqs("-n", "3") == [8, 9, 10]
    assert seqs("-n", "0") == []
    assert seqs("--after", "8") == [9, 10]
    assert seqs("--after", "99") == []
    assert seqs("-n", "2", "--type", "note.added") == [5, 6]
    assert seqs("--stream", "a", "--after", "4") == [5, 6]
    assert seqs("--type", "note.added", "--type", "note.closed", "-n", "5") == [6, 7, 8, 9, 10]
    assert seqs("--type", "no.such") == []
    text = call("tail", log, "-n", "1").out.decode()
    assert re.fullmatch(r" +10  \d{4}-\S+Z  note\.closed  b  \{\"n\":3\}\n", text)


def test_tail_finds_the_last_of_a_rare_type_far_back(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as handle:
        handle.commit([Event("rare", {"n": n}) for n in range(3)], Durability.BATCHED)
        handle.commit([Event("common", {}) for _ in range(5000)], Durability.BATCHED)
    assert [row["seq"] for row in lines(call("tail", tmp_path / "log", "-n", "2", "--type", "rare", "--json").out)] == [2, 3]


def test_tail_follows_over_rotation_and_ends_quietly(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog.open(path, segment_bytes_max=4096) as handle:
        handle.commit(Event("start", {}))
        child = subprocess.Popen([*DOOR, "tail", path, "-f", "--json", "-n", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdout is not None
        with child:
            assert json.loads(child.stdout.readline())["seq"] == 1
            for number in range(40):
                handle.commit(Event("more", {"text": "x" * 300}), Durability.BATCHED)
                if number % 10 == 0:
                    handle.flush()
            handle.flush()
            assert len(handle.segments()) > 2
            assert [json.loads(child.stdout.readline())["seq"] for _ in range(40)] == list(range(2, 42))
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=30)
        assert (child.returncode, out, err) == (130, b"", b"")


# ---------------------------------------------------------------- pipes, full disks, signals


def test_a_reader_that_left_is_no_error(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as handle:
        handle.commit([Event("a", {"n": n, "text": "x" * 100}) for n in range(5000)], Durability.BATCHED)
    for command in (f"dump {tmp_path}/log", f"tail {tmp_path}/log -n 5000", f"dump {tmp_path}/log --format json"):
        child = subprocess.run(
            ["bash", "-c", f'"$0" -m eventlog.cli {command} | head -n 2; exit ${{PIPESTATUS[0]}}', sys.executable],
            capture_output=True,
            check=False,
        )
        assert child.returncode == 0, child.stderr
        assert child.stderr == b""
        assert child.stdout.count(b"\n") == 2


@pytest.mark.parametrize("command", ["dump", "tail", "fold", "status", "head", "verify", "dump --format json"])
def test_a_full_disk_behind_standard_output_is_an_error(command: str, log: Path) -> None:
    name, *options = command.split()
    args = [name, str(log), *options]
    with open("/dev/full", "wb") as full:
        child = subprocess.run([*DOOR, *args], stdout=full, stderr=subprocess.PIPE, check=False)
    one_line(Ran(child.returncode, b"", child.stderr.decode()), 5, "standard output", "No space left")


def test_a_closed_standard_output_or_error_is_no_traceback(log: Path) -> None:
    child = subprocess.run(["bash", "-c", f'"$0" -m eventlog.cli dump {log} >&-', sys.executable], capture_output=True, check=False)
    one_line(Ran(child.returncode, b"", child.stderr.decode()), 5, "standard output")
    child = subprocess.run(["bash", "-c", f'"$0" -m eventlog.cli dump {log}x 2>&-', sys.executable], capture_output=True, check=False)
    assert (child.returncode, child.stdout) == (2, b"")
    child = subprocess.run(["bash", "-c", f'"$0" -m eventlog.cli append {log} <&-', sys.executable], capture_output=True, check=False)
    one_line(Ran(child.returncode, b"", child.stderr.decode()), 2, "standard input")


def test_ctrl_c_in_append_is_130_and_keeps_what_was_printed(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [*DOOR, "append", tmp_path / "log", "--durability", "batched"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        child.stdin.write(b'{"type": "a", "data": {}}\n')
        child.stdin.flush()
        assert child.stdout.readline() == b'{"first":1,"last":1}\n'
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (130, b"")
    assert call("head", tmp_path / "log").out.startswith(b"1:")


def test_a_bar_on_a_terminal_and_nothing_in_a_pipe(log: Path) -> None:
    for args in (["verify", str(log)], ["fold", str(log)], ["dump", str(log)]):
        leader, follower = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        child = subprocess.Popen([*DOOR, *args], stdout=subprocess.DEVNULL, stderr=follower, env=env)
        os.close(follower)
        seen = b""
        while readable(leader):
            try:
                piece = os.read(leader, 4096)
            except OSError:  # how a pseudo-terminal says that the other side is gone
                break
            seen += piece
        os.close(leader)
        assert child.wait(timeout=30) == 0
        assert args[0].encode() in seen, args
        assert run(*args).err == ""


def test_colours_only_on_a_terminal(log: Path) -> None:
    leader, follower = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm"}
    for extra, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        child = subprocess.Popen([*DOOR, "tail", log, "-n", "1"], stdout=follower, env=env | extra)
        assert child.wait(timeout=30) == 0
        assert (b"\x1b[" in os.read(leader, 4096)) is coloured
    os.close(leader)
    os.close(follower)
    assert b"\x1b[" not in run("tail", log).out


# ---------------------------------------------------------------- fold and status


def test_fold_built_in_and_your_own(log: Path, tmp_path: Path) -> None:
    from eventlog.cli.fold import BUILT_IN
    from eventlog.projections import BUILT_IN as KNOWN

    assert set(BUILT_IN) == set(KNOWN)
    text = call("fold", log).out.decode()
    assert "events: 10" in text
    assert 'streams: {"a":6,"b":4}' in text
    answer = json.loads(call("fold", log, "--json", "--upto", "7").out)
    assert answer == {
        "projection": "counts",
        "version": 1,
        "seq": 7,
        "state": {"events": 7, "types": {"note.added": 6, "note.closed": 1}, "streams": {"a": 6, "b": 1}},
    }
    assert json.loads(call("fold", log, "--json", "--upto", "999").out)["seq"] == 10
    (tmp_path / "mine.py").write_text(
        "import dataclasses, enum\n"
        "from eventlog.projections import Projection\n"
        "class Colour(enum.Enum):\n    RED = 'red'\n"
        "@dataclasses.dataclass\nclass State:\n    total: int = 0\n    seen: set = dataclasses.field(default_factory=set)\n"
        "    by: dict = dataclasses.field(default_factory=dict)\n    colour: Colour = Colour.RED\n"
        "def add(state, event):\n"
        "    state.total += event.data['n']; state.seen.add(event.stream); state.by[event.seq] = '\\x1b'; return state\n"
        "class box:\n    notes = Projection('mine', 3, State(), {'note.added': add})\n"
        "faulty = Projection('faulty', 1, 0, {'note.closed': lambda state, event: 1 / 0})\n"
    )
    ran = run("fold", log, "-p", "mine:box.notes", "--json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    by = {str(seq): "\x1b" for seq in range(1, 7)}
    assert json.loads(ran.out) == {
        "projection": "mine",
        "version": 3,
        "seq": 10,
        "state": {"total": 15, "seen": ["a"], "by": by, "colour": "red"},
    }
    assert "total: 15" in run("fold", log, "-p", "mine:box.notes", cwd=tmp_path).out.decode()
    one_line(run("fold", log, "-p", "mine:faulty", cwd=tmp_path), 5, "faulty", "event 7", "ZeroDivisionError")
    one_line(run("fold", log, "-p", "mine:nothing", cwd=tmp_path), 2, "mine:nothing")
    one_line(run("fold", log, "-p", "mine:State", cwd=tmp_path), 2, "mine:State", "not a Projection")


def doubtful(path: Path) -> None:
    """Three effects: one done, one that went out before its process died, one that waits for a person."""
    with EventLog.open(path) as handle:
        tools = Toolbox(handle)

        @tools.tool(EffectClass.NON_IDEMPOTENT)
        def pay(ctx: ToolContext, to: str) -> str:
            if to == "nobody":
                raise TimeoutError("no answer")
            return "receipt"

        with tools.attempt("order-1") as attempt:
            attempt.call(pay, to="bob")
            with pytest.raises(Indeterminate):
                attempt.call(pay, to="nobody")
        pending = effect_events.pending(
            IntentId("order-2", 1, 1),
            tool="pay",
            version="1",
            class_=EffectClass.NON_IDEMPOTENT,
            digest="0" * 64,
            key="k",
            key_scope="attempt",
            args={"to": NASTY},
        )
        handle.commit(pending)
        handle.commit(effect_events.dispatched("order-2@1:1", try_number=1, pid=1, by="guard"))


def test_status_shows_decisions_first_and_answers_with_its_code(tmp_path: Path) -> None:
    doubtful(tmp_path / "log")
    ran = call("status", tmp_path / "log")
    text = ran.out.decode().splitlines()
    assert ran.code == 1
    assert text[0] == "1 waiting for a decision"
    assert text[1].startswith("  order-1@1:2  pay  non_idempotent  indeterminate: may have been sent")
    assert "1 unfinished" in text
    answer = json.loads(call("status", tmp_path / "log", "--json").out)
    assert [intent["id"] for intent in answer["undecided"]] == ["order-1@1:2"]
    assert [intent["id"] for intent in answer["unfinished"]] == ["order-2@1:1"]
    assert answer["intents"]["committed"] == 1
    assert answer["head"] == sum(answer["types"].values())
    one_line(call("status", tmp_path / "log", "--watch"), 2, "terminal")


def test_status_watch_shows_each_change(log: Path) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    child = subprocess.Popen(
        [*DOOR, "status", log, "--watch"],
        stdin=follower,
        stdout=follower,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(follower)
    seen = b""

    def until(word: bytes) -> None:
        nonlocal seen
        while word not in seen:
            assert readable(leader), seen
            seen += os.read(leader, 65536)

    until(b"head 10")
    with EventLog.open(log) as handle:
        handle.commit(Event("something.new", {}))
    until(b"head 11")
    until(b"something.new")
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=30)[1] == b""
    assert child.returncode == 130
    os.close(leader)


# ---------------------------------------------------------------- effects and recover


def test_effects_list_and_show(tmp_path: Path) -> None:
    from eventlog.cli.effects import STATES

    assert set(STATES) == {state.value for state in IntentState}
    doubtful(tmp_path / "log")

    def ids(*args: str) -> list[str]:
        return [row["id"] for row in lines(call("effects", "list", tmp_path / "log", "--json", *args).out)]

    assert ids() == ["order-1@1:1", "order-1@1:2", "order-2@1:1"]
    assert ids("--open") == ["order-1@1:2", "order-2@1:1"]
    assert ids("--state", "committed", "--state", "dispatched") == ["order-1@1:1", "order-2@1:1"]
    table = call("effects", "list", tmp_path / "log").out.decode().splitlines()
    assert table[0].split() == ["INTENT", "TOOL", "CLASS", "STATE", "TRIES", "SINCE"]
    assert len(table) == 4
    shown_text = call("effects", "show", tmp_path / "log", "order-2@1:1")
    assert not CONTROLS.search(shown_text.out.decode())
    assert "state:            dispatched" in shown_text.out.decode()
    answer = json.loads(call("effects", "show", tmp_path / "log", "order-2@1:1", "--json").out)
    assert answer["intent"]["state"] == "dispatched"
    assert [event["type"] for event in answer["events"]] == ["effect.pending", "effect.dispatched"]
    one_line(call("effects", "show", tmp_path / "log", "order-9@1:1"), 2, "order-9@1:1", "effects list")


def test_effects_resolve_records_a_decision_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    doubtful(path)
    resolve = ["effects", "resolve", str(path), "order-1@1:2"]
    one_line(call(*resolve, "--reason", "x"), 2, "--happened", "--abandon")
    one_line(call(*resolve, "--happened"), 2, "--reason")
    one_line(call(*resolve, "--happened", "--reason", "x", "--outcome", "{"), 2, "--outcome")
    one_line(call(*resolve, "--happened", "--reason", "x", "--version", "1"), 1, "version")
    before = int(call("head", path, "--json").out.split(b'"seq":')[1].split(b",")[0])
    ran = call(*resolve, "--happened", "--reason", "the bank shows it", "--actor", "ann", "--outcome", '{"receipt": 7}', "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["state"] == "committed"
    new = lines(call("tail", path, "--json", "--after", str(before)).out)
    assert [event["type"] for event in new] == ["effect.resolved", "effect.outcome", "effect.committed"]
    assert (new[0]["data"]["actor"], new[0]["data"]["reason"], new[1]["data"]["value"]) == ("ann", "the bank shows it", {"receipt": 7})
    one_line(call(*resolve, "--abandon", "--reason", "x"), 1, "committed")
    one_line(call("effects", "resolve", path, "nonsense", "--abandon", "--reason", "x"), 2, "nonsense")


def test_recover_classifies_once_and_leaves_the_living_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    doubtful(path)
    before = snapshot(path)
    dry = call("recover", path, "--dry-run", "--json")
    assert dry.code == 1
    assert [(found["id"], found["recorded"]) for found in json.loads(dry.out)["intents"]] == [("order-1@1:2", False), ("order-2@1:1", True)]
    assert snapshot(path) == before
    with EventLog.open(path) as handle, Toolbox(handle).attempt("order-2", 1):
        ran = run("recover", path)
        assert "order-2@1  left alone: its process is alive" in ran.out.decode()
        one_line(run("effects", "resolve", path, "order-2@1:1", "--abandon", "--reason", "x"), 4, "alive")
    first = call("recover", path, "--json")
    assert (first.code, json.loads(first.out)["recorded"]) == (1, 1)
    again = call("recover", path, "--json")
    assert (again.code, json.loads(again.out)["recorded"]) == (1, 0)
    for intent in ("order-1@1:2", "order-2@1:1"):
        assert call("effects", "resolve", path, intent, "--abandon", "--reason", "x").code == 0
    ran = call("recover", path)
    assert ran == Ran(0, b"nothing is unfinished\n", "")
    one_line(call("recover", path, "--tools", "json:dumps"), 2, "json:dumps", "TypeError")
    one_line(call("recover", path, "--tools", "builtins:str"), 2, "builtins:str", "not a Toolbox")
    one_line(call("recover", path, "--tools", "eventlog.recovery:Toolbox.names"), 2, "Toolbox.names")


# ---------------------------------------------------------------- damage, verify, head, repair


def test_damage_is_3_after_everything_sound(tmp_path: Path) -> None:
    rotated(tmp_path / "log")
    name = damage(tmp_path / "log")
    for command in (["dump"], ["fold"], ["tail", "--after", "0"], ["status"]):
        ran = call(command[0], tmp_path / "log", *command[1:])
        one_line(ran, 3, name)
    ran = call("verify", tmp_path / "log")
    assert ran.code == 1
    assert name in ran.out.decode()
    assert "NOT OK" in ran.out.decode()
    answer = json.loads(call("verify", tmp_path / "log", "--json").out)
    assert answer["ok"] is False
    assert answer["problems"]


def test_verify_and_head(log: Path) -> None:
    text = call("head", log).out.decode().strip()
    assert re.fullmatch(r"10:[0-9a-f]{64}", text)
    assert json.loads(call("head", log, "--json").out)["hash"] == text[3:]
    ran = call("verify", log, "--expect", text)
    assert ran.code == 0
    assert text in ran.out.decode()
    answer = json.loads(call("verify", log, "--json").out)
    assert (answer["ok"], answer["events"], answer["commits"], answer["segments"]) == (True, 10, 7, 1)
    assert answer["head"] == {"seq": 10, "hash": text[3:]}
    with EventLog.open(log) as handle:
        handle.commit(Event("later", {}))
    assert call("verify", log, "--expect", text).code == 0  # it grew: the old head is still in it
    wrong = f"10:{'0' * 64}"
    assert call("verify", log, "--expect", wrong).code == 1
    assert call("verify", log, "--expect", f"12:{text[3:]}").code == 1  # shorter than it was


def test_the_answer_counts_even_if_nobody_reads_it(tmp_path: Path) -> None:
    rotated(tmp_path / "log")
    damage(tmp_path / "log")
    doubtful(tmp_path / "doubtful")
    for command in (["verify", "log"], ["status", "doubtful"], ["recover", "doubtful", "--json"]):
        end, start = os.pipe()
        os.close(end)
        child = subprocess.run([*DOOR, *command], cwd=tmp_path, stdout=start, stderr=subprocess.PIPE, check=False)
        os.close(start)
        assert (child.returncode, child.stderr) == (1, b""), command


def test_damage_in_the_last_segment_is_found_by_every_reader(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog.open(path) as handle:
        for number in range(20):
            handle.commit(Event("note.added", {"n": number}))
    name = damage(path)
    for command in (["dump"], ["fold"], ["status"], ["tail", "--after", "0"], ["tail", "-f", "--after", "0"]):
        one_line(run(command[0], path, *command[1:]), 3, name)
    assert call("verify", path).code == 1


def test_hostile_bytes_end_in_one_line_never_in_a_traceback(tmp_path: Path) -> None:
    """Any byte of any file changed (reliability P40); `call` raises what is not an exit."""
    path = tmp_path / "log"
    rotated(path)
    good = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    chance = random.Random(20261130)
    codes = set()
    for _ in range(60):
        for file, content in good.items():
            file.write_bytes(content)
        file = chance.choice(sorted(good))
        raw = bytearray(good[file])
        if not raw:
            continue
        for _ in range(chance.choice((1, 1, 8))):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        if chance.random() < 0.2:
            del raw[chance.randrange(len(raw)) :]
        file.write_bytes(raw)
        for command in (["dump"], ["tail", "--type", "note.added"], ["status"], ["head"], ["verify"], ["fold", "-p", "effects"]):
            ran = call(command[0], path, *command[1:])
            codes.add(ran.code)
            assert ran.code in (0, 1, 2, 3, 5), (file, command, ran)
            assert len(ran.err.splitlines()) == (ran.code > 1), (file, command, ran)
    assert {0, 1, 3} <= codes


def test_repair_asks_keeps_copies_and_says_what_is_lost(tmp_path: Path, log: Path) -> None:
    path = tmp_path / "log2"
    rotated(path)
    whole = call("dump", path).out
    name = damage(path)
    before = snapshot(path)
    one_line(call("repair", path), 2, "--yes")

    def on_a_terminal(answer: bytes) -> tuple[int, bytes]:
        leader, follower = pty.openpty()
        child = subprocess.Popen([*DOOR, "repair", path], stdin=follower, stdout=subprocess.PIPE, stderr=follower)
        os.close(follower)
        os.write(leader, answer)
        out, _ = child.communicate(timeout=60)
        os.close(leader)
        return child.returncode, out

    assert on_a_terminal(b"n\n") == (1, b"")
    assert snapshot(path) == before
    code, out = on_a_terminal(b"y\n")
    text = out.decode()
    assert code == 0
    assert "lost: every event from seq " in text
    kept = [Path(line.removeprefix("kept: ")) for line in text.splitlines() if line.startswith("kept: ")]
    assert len(kept) > 1
    assert all(file.is_file() for file in kept)
    assert any(file.name.startswith(f"{name}.") for file in kept)
    assert call("verify", path).code == 0
    left = call("dump", path).out
    assert whole.startswith(left)
    assert len(left) < len(whole)
    assert call("append", path, stdin=b'{"type": "a", "data": {}}\n').code == 0
    again = call("repair", log, "--yes", "--json")
    assert json.loads(again.out) == {"path": str(log), "actions": [], "lost_from": None, "kept": []}
    assert call("repair", log, "--yes").out == b"nothing to repair\n"


def test_a_newer_format_is_3_and_untouched(log: Path) -> None:
    path = log / "log.json"
    text = json.loads(path.read_text())
    version = next(key for key in text if "version" in key or key == "format")
    text[version] = 99
    path.write_text(json.dumps(text))
    before = snapshot(log)
    for command in ("dump", "append", "repair"):
        options = ["--yes"] if command == "repair" else []
        one_line(call(command, log, *options, stdin=b'{"type": "a", "data": {}}\n'), 3, "log.json")
    assert snapshot(log) == before


# ---------------------------------------------------------------- reading is only reading


def snapshot(path: Path) -> dict[str, tuple[Any, ...]]:
    """Every name under a directory with its bytes, mode and times."""
    found: dict[str, tuple[Any, ...]] = {}
    for item in [path, *sorted(path.rglob("*"))]:
        status = item.lstat()
        content = item.read_bytes() if item.is_file() else b""
        found[str(item)] = (status.st_mode, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, content)
    return found


def as_another_user(work: Callable[[], int]) -> int:
    """Run in a forked child without root's rights; its return value as the exit code."""
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os._exit(work())
        except BaseException as error:  # noqa: BLE001  the child must never run on into the tests of its parent
            os.write(2, f"{error!r}\n".encode())
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


READING = [
    ["dump"],
    ["dump", "--format", "cloudevents", "--redact", "x"],
    ["tail"],
    ["tail", "--type", "note.added"],
    ["fold"],
    ["fold", "-p", "effects", "--json"],
    ["status"],
    ["status", "--json"],
    ["head"],
    ["verify"],
]


def test_reading_changes_nothing(log: Path) -> None:
    before = snapshot(log)
    for command in [*READING, ["effects", "list"]]:
        args = ["effects", "list", str(log)] if command[0] == "effects" else [command[0], str(log), *command[1:]]
        assert call(*args).code == 0, command
        assert snapshot(log) == before, command


def test_reading_works_for_another_user_without_write_permission() -> None:
    import shutil
    import tempfile

    home = Path(tempfile.mkdtemp())  # pytest's own tmp_path is closed to other users
    try:
        home.chmod(0o755)
        log = home / "log"
        with EventLog.open(log) as handle:
            handle.commit([Event("note.added", {"n": n}) for n in range(5)])
        for item in [log, *log.rglob("*")]:
            item.chmod(0o555 if item.is_dir() else 0o444)
        before = snapshot(log)

        def read_all() -> int:
            failed = 0
            for command in READING:
                ran = call(command[0], log, *command[1:])
                if ran.code != 0:
                    os.write(2, f"{command}: {ran}\n".encode())
                    failed += 1
            # and a writer is told so, in one line
            ran = call("append", log, stdin=b'{"type": "a", "data": {}}\n')
            return failed + (ran.code != 5 or len(ran.err.splitlines()) != 1)

        assert as_another_user(read_all) == 0
        assert snapshot(log) == before
    finally:
        shutil.rmtree(home)
