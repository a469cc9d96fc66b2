"""`eventlog stats`: the numbers are those of the log, the metrics are metrics, and looking changes nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from eventlog import Corrupt, Durability, Event, EventLog, LogNotFound
from eventlog.cli import main
from eventlog.projections import IntentState
from eventlog.projections.delivery_words import SyncState
from eventlog.projections.exposition import exposition, family
from eventlog.recovery import EffectClass, Indeterminate, Toolbox, ToolContext
from eventlog.survey import survey


def call(*args: str | os.PathLike[str]) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [os.fspath(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def made(path: Path) -> Path:
    """Several segments, commits of one to four events, one effect that waits for a person and one that is done."""
    with EventLog.open(path, segment_bytes_max=4096) as log:
        for n in range(60):
            log.commit([Event("note.added", {"n": n, "text": "x" * 50}, f"s{n % 3}")] * (n % 4 + 1), Durability.BATCHED)
        log.commit(Event("note.closed", {"text": "y" * 3000}, "s0"))
        tools = Toolbox(log)

        @tools.tool(EffectClass.NON_IDEMPOTENT)
        def pay(ctx: ToolContext, to: str) -> str:
            if to == "nobody":
                raise TimeoutError("no answer")
            return "receipt"

        with tools.attempt("order") as attempt:
            attempt.call(pay, to="bob")
            with pytest.raises(Indeterminate):
                attempt.call(pay, to="nobody")
    return path


def contents(path: Path) -> dict[str, Any]:
    """Every name with its bytes, mode and times."""
    names = [path, *sorted(path.rglob("*"))]
    stats = {name: name.lstat() for name in names}
    return {
        str(name): (one.st_mode, one.st_mtime_ns, one.st_ctime_ns, one.st_ino, name.read_bytes() if name.is_file() else b"")
        for name, one in stats.items()
    }


# -- the survey -----------------------------------------------------------------------------------------------------------------


def test_a_survey_counts_what_reading_finds(tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    with EventLog.open(path, read_only=True) as log:
        commits = list(log.commits())
        files = log.segments()
        head = int(log.head)
    found = survey(path)
    assert (found.head, found.durable, found.events, found.commits) == (head, head, sum(len(rows) for *_, rows in commits), len(commits))
    assert (found.segments, found.sealed, found.seals) == (len(files), len(files) - 1, len(files) - 1)
    assert found.sealed > 2
    assert found.bytes == sum(one.bytes for one in files)
    assert found.commit_bytes < found.bytes
    assert (found.first_ns, found.last_ns) == (commits[0][1], commits[-1][1])
    assert found.marks == 1
    assert found.largest is not None
    (closed,) = [first for first, _, rows in commits if rows[0][0] == "note.closed"]
    assert (found.largest.first, found.largest.events) == (closed, 1)
    assert 3000 < found.largest.bytes < 3300
    assert found.largest.bytes % 8 == 0


def test_a_survey_up_to_a_commit(tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    with EventLog.open(path, read_only=True) as log:
        commits = list(log.commits())
    for number in (1, 2, 30, len(commits)):
        first, time_ns, rows = commits[number - 1]
        found = survey(path, upto=first)
        assert (found.commits, found.head, found.last_ns) == (number, first + len(rows) - 1, time_ns)
    assert survey(path, upto=0).commits == 0


def test_what_is_not_on_disk_yet_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog.open(path, batch_window_ms=600_000) as log:
        assert survey(path).durable == 0
        log.commit([Event("a", {}), Event("a", {})])
        log.commit(Event("a", {}), Durability.BATCHED)
        found = survey(path)
        assert (found.head, found.durable) == (3, 2)
        text = call("stats", path)[1]
        assert "head       3, on disk up to 2, 1 behind" in text
        log.flush()
        assert survey(path).durable == 3
    (path / "lock").unlink()
    found = survey(path)
    assert (found.head, found.durable) == (3, None)
    assert "none says what is on disk" in call("stats", path)[1]
    assert not [line for line in call("stats", path, "--prometheus")[1].splitlines() if line.startswith("eventlog_durable_seq")]


def test_a_survey_stops_at_damage_and_says_where(tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    segment = min((path / "segments").iterdir())
    raw = bytearray(segment.read_bytes())
    raw[raw.index(b"\xf5evf", 2000) + 20] ^= 1
    segment.write_bytes(raw)
    with pytest.raises(Corrupt, match=segment.name):
        survey(path)
    code, out, err = call("stats", path)
    assert (code, out) == (3, "")
    assert len(err.splitlines()) == 1
    assert segment.name in err
    with pytest.raises(LogNotFound):
        survey(tmp_path / "nothing")
    assert call("stats", tmp_path / "nothing")[0] == 2


# -- the command ----------------------------------------------------------------------------------------------------------------


def test_json_has_every_number(tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    with EventLog.open(path, read_only=True) as log:
        events = list(log.read())
        identity = log.id
    answer = json.loads(call("stats", path, "--json", "--top", "2")[1])
    types, streams = Counter(one.type for one in events), Counter(one.stream for one in events)
    assert (answer["log"], answer["path"], answer["head"], answer["events"]) == (identity, str(path), len(events), len(events))
    assert answer["types"] == {"count": len(types), "top": dict(sorted(types.items(), key=lambda one: (-one[1], one[0]))[:2])}
    assert answer["streams"]["count"] == len(streams)
    assert list(answer["streams"]["top"].values()) == sorted(streams.values(), reverse=True)[:2]
    assert answer["events_per_commit"] == answer["events"] / answer["commits"]
    assert answer["bytes_per_event"] == answer["commit_bytes"] / answer["events"]
    assert answer["intents"] == {**dict.fromkeys((one.value for one in IntentState), 0), "committed": 1, "indeterminate": 1}
    assert answer["open_intents"]["count"] == 1
    lost = next(one for one in events if one.type == "effect.pending" and one.stream == "order@1:2")
    assert answer["open_intents"]["oldest_ns"] == lost.time
    assert answer["open_intents"]["oldest_s"] == pytest.approx((answer["now_ns"] - lost.time) / 1e9)
    assert set(answer["deliveries"]) == {one.value for one in SyncState}
    assert answer["waiting"] == {"count": 0, "oldest_ns": None, "oldest_s": None}


def test_text_says_the_same(tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    code, text, _ = call("stats", path, "--top", "1")
    assert code == 0
    assert "all of it on disk" in text
    assert "1 committed, 1 indeterminate; 1 open, the oldest for " in text
    assert "note.added" in text
    assert "and 7 more (--top)" in text
    assert call("stats", path, "--json", "--prometheus")[0] == 2


def test_an_empty_log(tmp_path: Path) -> None:
    EventLog.open(tmp_path / "log").close()
    assert "events     0 in 0 commits\n" in call("stats", tmp_path / "log")[1]
    answer = json.loads(call("stats", tmp_path / "log", "--json")[1])
    assert [answer[name] for name in ("events", "bytes_per_event", "largest_commit", "first_ns")] == [0, None, None, None]
    assert metrics(call("stats", tmp_path / "log", "--prometheus")[1])["eventlog_events_total"] != {}


def test_looking_changes_nothing(tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    before = contents(path)
    for option in ([], ["--json"], ["--prometheus"]):
        assert call("stats", path, *option)[0] == 0
    assert contents(path) == before


WRITER = """
import sys
from eventlog import Durability, Event, EventLog
with EventLog.open(sys.argv[1], segment_bytes_max=16384) as log:
    print("ready", flush=True)
    n = 0
    while True:
        log.commit([Event(f"type.t{n % 5}", {"n": n})] * (n % 3 + 1), Durability.BATCHED if n % 7 else Durability.IMMEDIATE)
        n += 1
"""


def test_one_head_for_all_numbers_beside_a_writer(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path / "log"], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        heads = []
        for _ in range(10):
            answer = json.loads(call("stats", tmp_path / "log", "--json")[1])
            assert sum(answer["types"]["top"].values()) == answer["events"] == answer["head"]
            assert 0 <= answer["durable"] <= answer["head"]
            heads.append(answer["head"])
        assert heads == sorted(heads)
        assert heads[0] < heads[-1]
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()  # type: ignore[union-attr]


# -- the Prometheus text format -------------------------------------------------------------------------------------------------

LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL}(?:,{LABEL})*)?)\}})? (-?[0-9.e+-]+|NaN|[+-]Inf)\Z")
UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
META = re.compile(rf"# (HELP|TYPE) ({NAME}) ((?:[^\\\n]|\\[\\n])*)\Z")


def metrics(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """A parser by the grammar of the format; asserts what else it demands: one group for a metric, HELP and TYPE first, no sample twice."""
    assert text.endswith("\n")
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    kinds: dict[str, str] = {}
    current = ""
    for line in text.split("\n")[:-1]:
        meta = META.match(line)
        if meta:
            what, name, rest = meta.groups()
            if what == "HELP":
                assert name not in found, f"{name}: two groups"
                found[name] = {}
                current = name
            else:
                assert name == current
                assert not found[name]
                assert rest in ("counter", "gauge")
                kinds[name] = rest
            continue
        sample = SAMPLE.match(line)
        assert sample is not None, line
        name, inner, value = sample.groups()
        assert name == current
        assert name in kinds
        labels = tuple(
            (one.partition("=")[0], re.sub(r'\\[\\"n]', lambda m: UNESCAPED[m.group()], one.partition("=")[2][1:-1]))
            for one in re.findall(LABEL, inner or "")
        )
        assert labels not in found[name], line
        found[name][labels] = float(value)
    assert set(kinds) == set(found)
    return found


def test_the_page_says_what_the_json_says(tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    page = metrics(call("stats", path, "--prometheus")[1])
    answer = json.loads(call("stats", path, "--json", "--top", "99")[1])
    log = ("log", answer["log"])
    one = {name: next(iter(samples.values())) for name, samples in page.items() if len(samples) == 1}
    assert page["eventlog_info"] == {(log, ("path", str(path))): 1}
    for name in ("events", "commits", "commit_bytes", "marks"):
        assert one[f"eventlog_{name}_total"] == answer[name]
    assert one["eventlog_head_seq"] == one["eventlog_durable_seq"] == answer["head"]
    assert one["eventlog_size_bytes"] == answer["bytes"]
    assert page["eventlog_type_events_total"] == {(log, ("type", name)): count for name, count in answer["types"]["top"].items()}
    assert page["eventlog_intents"] == {(log, ("state", name)): count for name, count in answer["intents"].items()}
    assert page["eventlog_deliveries"] == {(log, ("state", name)): count for name, count in answer["deliveries"].items()}
    assert one["eventlog_oldest_open_intent_timestamp_seconds"] == pytest.approx(answer["open_intents"]["oldest_ns"] / 1e9)
    assert one["eventlog_oldest_open_intent_age_seconds"] > 0
    assert one["eventlog_oldest_waiting_delivery_age_seconds"] == 0
    assert page["eventlog_oldest_waiting_delivery_timestamp_seconds"] == {}
    assert all(log in labels for samples in page.values() for labels in samples)


def test_a_hostile_path_is_a_label_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / 'a"} 1\nevil_metric 7\\x1b\x1b[2J\u202e'
    EventLog.open(path).close()
    raw = call("stats", path, "--prometheus")[1]
    page = metrics(raw)
    assert "evil_metric" not in page
    ((labels, _),) = page["eventlog_info"].items()
    assert '"} 1' in dict(labels)["path"]
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", raw)


def test_the_clients_own_parser_takes_it(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="the extra 'extras' is not installed: prometheus-client")
    path = made(tmp_path / 'lo"g\\')
    text = call("stats", path, "--prometheus")[1]
    ours = metrics(text)
    theirs = {
        sample.name: dict(sample.labels)
        for one in parser.text_string_to_metric_families(text)
        for sample in one.samples
        if sample.name in ours
    }
    assert set(theirs) == {name for name, samples in ours.items() if samples}
    for name, labels in theirs.items():
        assert tuple(labels.items()) in ours[name]


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 2**53), max_size=5))
def test_any_label_comes_back(values: dict[str, float]) -> None:
    page = exposition([family("m", "gauge", "A \\ and a\nline.", [({"name": name}, value) for name, value in values.items()])])
    assert metrics(page) == {"m": {(("name", name),): value for name, value in values.items()}}


@pytest.mark.parametrize(
    ("name", "kind", "labels"),
    [
        ("events", "counter", {}),
        ("events_total", "gauge", {}),
        ("1st", "gauge", {}),
        ("a-b", "gauge", {}),
        ("a", "summary", {}),
        ("a", "gauge", {"b-c": "x"}),
        ("a", "gauge", {"__name__": "x"}),
    ],
)
def test_what_is_no_metric_is_refused(name: str, kind: str, labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=re.escape(name)):
        family(name, kind, "", [(labels, 1)])


def test_a_sample_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="same labels"):
        family("a", "gauge", "", [({"b": "1", "c": "2"}, 1), ({"c": "2", "b": "1"}, 2)])


def test_a_metric_that_would_grow_without_end_is_left_out(tmp_path: Path) -> None:
    from eventlog.projections.stats import TYPES_MAX

    with EventLog.open(tmp_path / "log") as log:
        log.commit([Event(f"t.n{number}", {}) for number in range(TYPES_MAX)])
    assert len(metrics(call("stats", tmp_path / "log", "--prometheus")[1])["eventlog_type_events_total"]) == TYPES_MAX
    with EventLog.open(tmp_path / "log") as log:
        log.commit(Event("one.more", {}))
    page = metrics(call("stats", tmp_path / "log", "--prometheus")[1])
    assert "eventlog_type_events_total" not in page
    assert list(page["eventlog_types"].values()) == [TYPES_MAX + 1]
