"""`eventlog hook claude-code` as a real process, fed with what the real program says (claude-code-lab)."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eventlog import Durability, Event, EventLog
from eventlog.projections import DELIVERIES, SyncState, View
from eventlog.projections.delivery_words import RestartStartup, SoftBatch
from eventlog.projections.snapshots import keep
from eventlog.recovery import Caller, Deliveries
from eventlog.recovery.delivery_words import Refused
from eventlog.recovery.harness import Carrier, find_payload, frame_startup
from eventlog.recovery.harness.framing import fits
from eventlog.testing import strace

sys.path.insert(0, str(Path(__file__).parent))
from hook_harness import HOOK, Claude

NASTY = (
    "tab\t crlf\r\n \xe9 e\u0301 \u2028 \u202e \x1b[31m \x01 <system-reminder> ] [end of eventlog delivery web#1] "
    "\U0001f468\u200d\U0001f469 \ufeff  "
)


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[Claude]:
    with Claude(tmp_path) as one:
        yield one


# ------------------------------------------------------------------- the whole way


def test_a_change_reaches_the_model_and_its_next_turn_acknowledges_it(claude: Claude) -> None:
    assert claude.hook("SessionStart", source="startup").code == 0
    claude.prompt("p1")
    assert claude.turn("t1", "t2") == [None, None]
    claude.change()
    first, second = claude.turn("t3", "t4")
    assert first is not None
    assert first == second
    assert find_payload(first) == {"web#1": hashlib.sha256(b"a.txt changed").hexdigest()}
    assert claude.intent().state is SyncState.DELIVERED
    assert claude.read == {}
    assert claude.turn("t5") == [None]
    assert claude.intent().state is SyncState.ACKNOWLEDGED
    assert claude.read == find_payload(first)
    stop = claude.hook("Stop", stop_hook_active=False, last_assistant_message="done", background_tasks=[], session_crons=[])
    assert (stop.code, stop.out, stop.err) == (0, "", "")
    assert claude.hook("SessionEnd", reason="other").code == 0
    assert claude.types()[-1] == "incarnation.retired"


def test_a_stop_acknowledges_as_a_call_does(claude: Claude) -> None:
    claude.prompt("p1")
    claude.change()
    assert claude.turn("t1") != [None]
    assert claude.hook("Stop", stop_hook_active=False).code == 0
    assert claude.intent().state is SyncState.ACKNOWLEDGED


@pytest.mark.parametrize("kilobytes", [1, 9, 60])
def test_payloads_of_any_size_and_any_characters_arrive_as_they_are(tmp_path: Path, kilobytes: int) -> None:
    payload = (NASTY * 2000).encode()[: kilobytes << 10].decode(errors="ignore")
    with Claude(tmp_path, payload=payload) as claude:
        claude.prompt("p1")
        claude.change()
        first, second = claude.turn("t1", "t2")
        assert first == second
        assert first is not None
        assert fits(first)
        digest = hashlib.sha256(payload.encode()).hexdigest()
        assert find_payload(f"PreToolUse:Bash hook error: {first}") == {"web#1": digest}
        if kilobytes < 60:
            assert payload in first
        else:
            copy = claude.log / "blobs" / digest
            assert str(copy.resolve()) in first
            assert copy.read_bytes() == payload.encode()
            assert copy.stat().st_mode & 0o777 == 0o600
        assert claude.turn("t3") == [None]
        assert claude.intent().state is SyncState.ACKNOWLEDGED
        assert claude.intent().sha256 == digest


def test_a_pointer_can_be_made_again_when_its_file_is_gone_and_is_no_receipt_when_it_was_cut(tmp_path: Path) -> None:
    with Claude(tmp_path, payload="x" * 50_000) as claude:
        claude.prompt("p1")
        claude.change()
        claude.model_reads()
        first = claude.pre("t1")
        assert first is not None
        next((claude.log / "blobs").iterdir()).unlink()
        assert claude.pre("t2") == first
        assert len(list((claude.log / "blobs").iterdir())) == 1
        claude.batch({"t1": first[:-40], "t2": first.replace("sha256", "sha257")})
        assert claude.intent().proof is not None
        assert isinstance(claude.intent().proof, SoftBatch)
        assert claude.intent().proof.seen == ()  # type: ignore[union-attr]
        assert claude.pre("t3") == first


# ------------------------------------------------------------------- siblings, subagents, prompts, processes


def test_siblings_at_once_get_the_same_bytes_and_the_reconciler_runs_once(claude: Claude, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    text = (tmp_path / "reconcile.py").read_text()
    (tmp_path / "reconcile.py").write_text(f"import time; open({str(ran)!r}, 'a').write('x'); time.sleep(1)\n{text}")
    claude.prompt("p1")
    claude.change()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(claude.pre, ["t1", "t2", "t3", "t4"]))
    assert answers[0] is not None
    assert len(set(answers)) == 1
    assert ran.read_text() == "x"


def test_a_subagent_is_told_the_same_bytes_and_proves_nothing_for_the_agent(claude: Claude) -> None:
    claude.prompt("p1")
    claude.change()
    agent = {"agent_id": "a8d056e3d65ee2e50", "agent_type": "general-purpose"}
    main = claude.pre("t1")
    sub = claude.pre("toolu_sub0", **agent)
    assert main is not None
    assert sub == main
    claude.report({"toolu_sub0": f"PreToolUse:Bash hook error: {sub}"}, **agent)
    claude.pre("toolu_sub1", **agent)
    assert claude.hook("SubagentStop", **agent).code == 0
    assert claude.hook("SubagentStop").code == 0, "one without an id is not taken for the agent's own Stop"
    assert claude.intent().state is SyncState.DELIVERED
    claude.batch({"t1": main})
    claude.turn("t2")
    assert claude.intent().state is SyncState.ACKNOWLEDGED


@pytest.mark.parametrize("how", ["a new prompt", "a new process"])
def test_an_interrupted_or_killed_batch_is_retired_without_acknowledgement(claude: Claude, tmp_path: Path, how: str) -> None:
    claude.prompt("p1")
    claude.change()
    first = claude.pre("t1")
    assert first is not None
    if how == "a new prompt":
        claude.prompt("p2")
        answer = claude.pre("t2")
        assert answer is not None
        assert "eventlog agent run --log" in answer
        assert "--thread web -- claude --resume 19736c74-0000" in answer
    with Claude(tmp_path) as resumed:
        assert resumed.hook("SessionStart", source="resume").code == 0
        intent = resumed.intent()
        assert isinstance(intent.proof, RestartStartup)
        assert intent.acknowledged_ns is None
        # The launcher's way: the tagged payload is its first prompt.
        resumed.prompt("p3", Carrier(resumed.log).startup(intent.id, intent.payload or "", intent.proof.startup_id))
        assert resumed.intent().state is SyncState.DELIVERED
        assert resumed.turn("t3") == [None]
        assert resumed.intent().state is SyncState.ACKNOWLEDGED
        assert resumed.read == find_payload(first)


def test_without_a_launcher_a_new_process_is_told_at_its_first_call(claude: Claude, tmp_path: Path) -> None:
    claude.prompt("p1")
    claude.change()
    first = claude.pre("t1")
    with Claude(tmp_path, session="other") as other:
        other.prompt("p9")
        assert other.turn("t2") == [first]
        assert other.turn("t3") == [None]
        assert other.intent().state is SyncState.ACKNOWLEDGED


def test_a_void_tag_is_a_prompt_like_any_other(claude: Claude) -> None:
    claude.prompt("p1")
    assert claude.prompt("p2", frame_startup("web#1", "a.txt changed", "startup-never-minted")).code == 0
    assert claude.turn("t1") == [None]
    assert "turn.prompted" in claude.types()


# ------------------------------------------------------------------- what replaces or loses the text


def test_a_reason_that_another_hook_replaced_is_given_again_and_then_to_a_new_process(claude: Claude) -> None:
    claude.prompt("p1")
    claude.change()
    seen = set()
    for n in range(4):
        seen.add(claude.pre(f"t{n}"))
        claude.batch({f"t{n}": "PreToolUse:Bash hook error: another hook denied this"})
        assert claude.intent().state is not SyncState.ACKNOWLEDGED
    assert len(seen) == 1, "the same bytes each time"
    last = claude.pre("t9")
    assert last is not None
    assert "4 batches in a row did not show the payload" in last
    assert "eventlog agent run" in last
    assert isinstance(claude.intent().proof, RestartStartup)
    assert claude.read == {}


def test_a_foreign_exit_2_drops_the_text_and_is_no_receipt(claude: Claude) -> None:
    claude.prompt("p1")
    claude.change()
    first = claude.pre("t1")
    claude.batch({"t1": "[other-hook]: not allowed here"})
    assert claude.pre("t2") == first
    claude.batch({"t2": first})
    assert claude.turn("t3") == [None]
    assert claude.intent().redeliveries == 1


@pytest.mark.parametrize("event", ["PreCompact", "SessionStart"])
def test_a_context_that_was_rewritten_has_lost_it(claude: Claude, event: str) -> None:
    claude.prompt("p1")
    claude.change()
    first = claude.turn("t1")[0]
    more = {"trigger": "auto", "custom_instructions": ""} if event == "PreCompact" else {"source": "compact", "model": "m"}
    assert claude.hook(event, **more).code == 0
    assert claude.turn("t2") == [first]
    assert claude.turn("t3") == [None]
    assert claude.intent().state is SyncState.ACKNOWLEDGED


@pytest.mark.parametrize("reason", ["clear", "resume"])
def test_the_log_knows_which_conversation_the_process_is_in(claude: Claude, reason: str) -> None:
    claude.prompt("p1")
    live = claude.state.threads["web"].live
    claude.hook("SessionEnd", reason=reason)
    claude.session = "another-0000"
    claude.hook("SessionStart", source=reason)
    assert claude.state.threads["web"].live == live
    assert claude.state.incarnations[live or ""].session == "another-0000"
    claude.session = "third-0000"  # the hook of its start was lost
    claude.hook("SessionStart", source="startup", agent_id="sub")
    assert claude.state.incarnations[live or ""].session == "another-0000"
    claude.prompt("p2")
    assert claude.state.incarnations[live or ""].session == "third-0000"
    assert claude.turn("t1") == [None]
    assert claude.types().count("incarnation.session") == 2


def test_killed_at_every_point_of_a_delivery_nothing_is_lost_and_nothing_is_claimed(tmp_path: Path) -> None:
    (tmp_path / "look").mkdir()
    with Claude(tmp_path / "look") as look:
        look.prompt("p1")
        look.change()
        points = look.points("PreToolUse", **look.call_of("t1"))
    wanted = [(name, points[: at + 1].count(name)) for at, name in enumerate(points)]
    assert {"after-pre-tool-use", "before-reconciler", "after-materialize", "before-output", "after-output", "after-mark"} <= set(points)
    for number, (point, nth) in enumerate(wanted):
        place = tmp_path / str(number)
        place.mkdir()
        with Claude(place) as claude:
            claude.prompt("p1")
            claude.change()
            assert claude.killed("PreToolUse", point, nth, **claude.call_of("t1")), point
            claude.batch({"t1": ""})  # `hook || exit 2`: denied, and nothing was said
            assert claude.intent().state is not SyncState.ACKNOWLEDGED
            while (denial := claude.turn(f"n{len(claude.types())}")[0]) is not None:
                assert find_payload(denial), f"{point} {nth}: {denial}"
            intent = claude.intent()
            assert intent.state is SyncState.ACKNOWLEDGED, point
            assert claude.read == {"web#1": intent.sha256}, f"killed at {point} ({nth}): acknowledged, and not read"


def test_a_reader_that_has_gone_gets_nothing_and_nothing_is_marked(claude: Claude) -> None:
    claude.prompt("p1")
    claude.change()
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        claude.command, input=claude.input("PreToolUse", **claude.call_of("t1")), stdout=write_end, stderr=subprocess.PIPE, text=True,
        env=claude.environ, check=False,
    )  # fmt: skip
    os.close(write_end)
    assert done.returncode == 2
    assert "Broken pipe" in done.stderr
    assert claude.intent().state is SyncState.MATERIALIZED


def test_a_lost_batch_report_does_not_disable_the_barrier(claude: Claude) -> None:
    claude.prompt("p1")
    assert claude.pre("t1") is None
    assert claude.hook("PostToolUse", **claude.call_of("t1"), tool_response={"stdout": "one"}, duration_ms=11).code == 0
    assert claude.pre("t2") is None
    assert claude.hook("PostToolUseFailure", **claude.call_of("t2"), error="it failed", is_interrupt=False, duration_ms=2).code == 0
    claude.change()
    assert claude.pre("t3") is not None


# ------------------------------------------------------------------- fails closed


def refuses(claude: Claude, text: str, **environ: str) -> str:
    done = subprocess.run(
        claude.command, input=text, capture_output=True, text=True, env={**claude.environ, **environ}, timeout=60, check=False
    )
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.startswith("eventlog hook")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_what_cannot_be_understood_is_denied_in_one_line(claude: Claude) -> None:
    call = claude.call_of("t1")
    good = json.loads(claude.input("PreToolUse", **call))
    for text in ("", "nonsense", "[]", "{}", json.dumps(good)[:-9], json.dumps({**good, "hook_event_name": "PreToolUse2"})):
        refuses(claude, text)
    for name in ("session_id", "tool_use_id", "hook_event_name"):
        assert name in refuses(claude, json.dumps({key: value for key, value in good.items() if key != name}))
        refuses(claude, json.dumps({**good, name: ["x"]}))
        refuses(claude, json.dumps({**good, name: "x\ny\ud800"}))
    assert "is gone" in refuses(claude, json.dumps(good), CLAUDE_PID="999999999")
    assert claude.types() == []


def test_a_log_that_is_missing_damaged_or_locked_denies(claude: Claude, tmp_path: Path) -> None:
    text = claude.input("PreToolUse", **claude.call_of("t1"))
    claude.options = ["--deadline", "1"]
    with EventLog.open(claude.log) as log:
        for n in range(3):
            log.commit(Event("note.added", {"n": n}))
        with open(claude.log / "lock", "rb") as lock:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
            assert "holds it for over" in refuses(claude, text)
    segment = next((claude.log / "segments").iterdir())
    data = bytearray(segment.read_bytes())
    data[100] ^= 255
    segment.write_bytes(data)
    (claude.log / "lock").unlink()
    refuses(claude, text)
    for event in ("PostToolBatch", "Stop", "UserPromptSubmit"):
        ran = claude.hook(event, tool_calls=[])
        assert (ran.code, ran.out) == (0, ""), "no other hook may end the loop"
        assert ran.err.count("\n") == 1
    (claude.log / "log.json").unlink()
    claude.log.rename(tmp_path / "elsewhere")
    assert "no log here" in refuses(claude, text)
    assert not claude.log.exists(), "a hook makes no log"


def test_wrong_usage_denies_too(claude: Claude) -> None:
    for words in (
        [],
        ["--log", "x"],
        ["--log", "x", "--thread"],
        ["--log", "x", "--thread", "t", "--what"],
        ["--log=x", "--thread=t", "--deadline=soon"],
        ["--log=x", "--thread=t", "--record", "--redact=("],
    ):
        done = subprocess.run([*HOOK, "claude-code", *words], input="", capture_output=True, text=True, check=False)
        assert done.returncode == 2, words
        assert done.stderr.count("\n") == 1
        assert "usage: eventlog hook claude-code" in done.stderr


def test_a_reconciler_that_hangs_or_fails_denies_within_the_deadline_and_the_next_hook_tries_again(claude: Claude, tmp_path: Path) -> None:
    claude.prompt("p1")
    claude.change()
    good = (tmp_path / "reconcile.py").read_text()
    claude.options = ["--deadline", "3"]
    claude.reconciler, kept = "'", claude.reconciler
    assert "No closing quotation" in (claude.pre("t0") or "")
    claude.reconciler = kept
    for bad in ("import time; time.sleep(600)", "raise SystemExit(1)", "print('nonsense')"):
        (tmp_path / "reconcile.py").write_text(bad)
        answer = claude.pre("t1")
        assert answer is not None
        assert "eventlog deliveries show" in answer
        assert find_payload(answer) == {}
    (tmp_path / "reconcile.py").write_text(good)
    claude.options = []
    answer = claude.pre("t2")
    assert answer is not None
    assert find_payload(answer)


def test_input_that_never_ends_is_answered_at_the_deadline(claude: Claude) -> None:
    claude.options = ["--deadline", "1"]
    read_end, write_end = os.pipe()
    done = subprocess.run(claude.command, stdin=read_end, capture_output=True, text=True, env=claude.environ, timeout=60, check=False)
    os.close(read_end)
    os.close(write_end)
    assert done.returncode == 2
    assert "no answer in 1 s" in done.stderr


def test_a_hook_that_outlived_its_process_says_nothing_that_counts(claude: Claude, tmp_path: Path) -> None:
    """Lab run r9: the CLI is killed while a hook works; the orphan goes on to its end."""
    text = (tmp_path / "reconcile.py").read_text()
    (tmp_path / "reconcile.py").write_text(f"import time; time.sleep(2)\n{text}")
    claude.prompt("p1")
    claude.change()
    with subprocess.Popen(claude.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=claude.environ) as orphan:
        assert orphan.stdin is not None
        orphan.stdin.write(claude.input("PreToolUse", **claude.call_of("t1")))
        orphan.stdin.close()
        while "delivery.blocked" not in claude.types():
            time.sleep(0.02)
        claude.process.send_signal(signal.SIGKILL)
        claude.process.wait()
        assert orphan.stdout is not None
        orphan.stdout.read()
    with Claude(tmp_path) as resumed:
        (tmp_path / "reconcile.py").write_text(text)
        resumed.hook("SessionStart", source="resume")
        assert resumed.intent().acknowledged_ns is None
        resumed.prompt("p2")
        denial = resumed.turn("t2")[0]
        assert denial is not None
        resumed.turn("t3")
        assert resumed.read == {"web#1": resumed.intent().sha256}


def test_a_reconciler_whose_hook_was_killed_is_not_joined_by_another(claude: Claude, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    text = (tmp_path / "reconcile.py").read_text()
    note = f"def note(what):\n    open({str(ran)!r}, 'a').write(what)\n"
    (tmp_path / "reconcile.py").write_text(f"import time\n{note}\nnote('begin '); time.sleep(2); note('end ')\n{text}")
    claude.prompt("p1")
    claude.change()
    with subprocess.Popen(claude.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=claude.environ) as hook:
        assert hook.stdin is not None
        hook.stdin.write(claude.input("PreToolUse", **claude.call_of("t1")))
        hook.stdin.close()
        while not ran.exists():
            time.sleep(0.02)
        hook.send_signal(signal.SIGKILL)
    denial = claude.pre("t2")
    assert denial is not None
    assert find_payload(denial)
    assert ran.read_text() == "begin end begin end "


# ------------------------------------------------------------------- what it costs


# fmt: off
PASS_THROUGH = {
    "eventlog", "eventlog.background", "eventlog.batch", "eventlog.cli", "eventlog.cli.hook",
    "eventlog.crashpoints", "eventlog.digests", "eventlog.directory", "eventlog.entry", "eventlog.errors", "eventlog.events",
    "eventlog.examine",
    "eventlog.forks", "eventlog.frames", "eventlog.fs", "eventlog.group", "eventlog.jsonroad", "eventlog.light",
    "eventlog.lock", "eventlog.log", "eventlog.opening", "eventlog.payload", "eventlog.projections", "eventlog.projections.deliveries",
    "eventlog.projections.delivery_events", "eventlog.projections.delivery_presence", "eventlog.projections.delivery_words",
    "eventlog.projections.projection", "eventlog.reader", "eventlog.reading", "eventlog.recovery", "eventlog.recovery.delivery_quick",
    "eventlog.recovery.delivery_words", "eventlog.recovery.desk", "eventlog.recovery.harness", "eventlog.recovery.harness.claude_code",
    "eventlog.recovery.harness.heard", "eventlog.recovery.harness.process", "eventlog.recovery.harness.running", "eventlog.runs",
    "eventlog.segments", "eventlog.shortjson", "eventlog.snapshotfiles", "eventlog.tailrecord", "eventlog.tailview",
    "eventlog.transactions", "eventlog.values", "eventlog.watermark", "eventlog.writer",
}
# fmt: on
HEAVY = {
    "orjson",
    "typing",
    "dataclasses",
    "pathlib",
    "click",
    "json",
    "hashlib",
    "_hashlib",
    "subprocess",
    "signal",
    "shlex",
    "asyncio",
    "logging",
}


def test_a_call_that_passes_imports_these_modules_and_no_others(claude: Claude) -> None:
    claude.prompt("p1")
    text = claude.input("PreToolUse", **claude.call_of("t1"))
    command = [sys.executable, "-X", "importtime", *claude.command[1:]]
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=claude.environ, check=False)
    assert done.returncode == 0
    assert done.stdout == ""
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    bare = subprocess.run([sys.executable, "-X", "importtime", "-c", "pass"], capture_output=True, text=True, check=True)
    imported -= {line.rpartition("|")[2].strip() for line in bare.stderr.splitlines()}  # the finder of an editable install
    ours = {name for name in imported if name.partition(".")[0] == "eventlog"}
    assert ours - {"eventlog.cli.__main__"} == PASS_THROUGH
    assert not HEAVY & imported, sorted(HEAVY & imported)


def test_a_call_that_passes_waits_for_no_disk_and_a_batch_for_one_sync(claude: Claude, tmp_path: Path) -> None:
    if (why := strace.why_not()) is not None:
        pytest.skip(why)
    claude.prompt("p1")
    claude.turn("t0")

    def syncs(event: str, **more: object) -> int:
        trace = tmp_path / "trace"
        command = ["strace", "-f", "-o", str(trace), "-e", "trace=fdatasync,fsync,sync,syncfs,msync", *claude.command]
        done = subprocess.run(command, input=claude.input(event, **more), capture_output=True, text=True, env=claude.environ, check=False)
        assert (done.returncode, done.stdout) == (0, ""), done
        return trace.read_text().count("sync(")

    assert syncs("PreToolUse", **claude.call_of("t1")) == 0, "the first of a batch"
    assert syncs("PreToolUse", **claude.call_of("t2")) == 0, "a sibling, over what the first has left in the page cache"
    calls = [{**claude.call_of(call), "tool_response": "it ran"} for call in ("t1", "t2")]
    assert syncs("PostToolBatch", tool_calls=calls) <= 1


def test_what_a_hook_reads_does_not_grow_with_the_log(claude: Claude, tmp_path: Path) -> None:
    if (why := strace.why_not()) is not None:
        pytest.skip(why)
    claude.prompt("p1")
    claude.turn("t0")
    with EventLog.open(claude.log, segment_bytes_max=1 << 20) as log:
        bulk = [Event("tool.output", {"text": "x" * 200}, "agent") for _ in range(100)]
        for _ in range(100):
            log.commit(bulk, Durability.BATCHED)
        assert keep(DELIVERIES, log.snapshots, *View(log, DELIVERIES).refresh())
        size = sum(segment.bytes for segment in log.segments())
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=pread64", *claude.command]
    text = claude.input("PreToolUse", **claude.call_of("t1"))
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=claude.environ, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    read = sum(int(line.rpartition("= ")[2]) for line in trace.read_text().splitlines() if "pread64" in line)
    assert size > 2_000_000
    assert read < 200_000, f"{read} of {size} bytes"


def test_the_events_of_a_call_that_passes_survive_the_process(claude: Claude) -> None:
    claude.prompt("p1")
    claude.turn("t1")
    points = claude.points("PreToolUse", **claude.call_of("t2"))
    assert points[-1] == "after-pre-tool-use"
    assert claude.killed("PreToolUse", "after-pre-tool-use", **claude.call_of("t3"))
    with EventLog.open(claude.log, read_only=True) as log:
        assert [event.data["call"] for event in log.read(types={"batch.admitted"})] == ["t1", "t2", "t3"]


# ------------------------------------------------------------------- record


def test_a_session_is_recorded_redacted_and_cut(claude: Claude) -> None:
    claude.options = ["--record", "--redact", "PROJECT-[0-9]+"]
    claude.hook("SessionStart", source="startup")
    claude.prompt("p1", "use AKIAABCDEFGHIJKLMNOP for PROJECT-17")
    more = {"tool_input": {"command": "curl -H 'Authorization: Bearer abcdefghijklmnop' https://u:pw@example.org", "api_key": "k"}}
    assert claude.pre("t1", **more) is None
    response = {"stdout": "x" * 100_000, "stderr": "DB_PASSWORD=hunter2", "interrupted": False}
    claude.hook("PostToolUse", **{**claude.call_of("t1"), "tool_response": response, "duration_ms": 3})
    claude.hook("PostToolUseFailure", **claude.call_of("t2"), error="no such file", is_interrupt=False)
    claude.batch({"t1": None})
    claude.hook("Stop", last_assistant_message="done with PROJECT-17")
    claude.hook("SessionEnd", reason="other")
    with EventLog.open(claude.log, read_only=True) as log:
        events = {event.type: event for event in log.read() if "harness" in event.data}
        text = json.dumps([event.data for event in events.values()])
    wanted = "session.started prompt.submitted tool.called tool.returned tool.failed tool.shown agent.stopped session.ended"
    assert " ".join(events) == wanted
    for secret in ("AKIA", "PROJECT-1", "abcdefghijklmnop", "pw@", "hunter2", '"k"'):
        assert secret not in text, secret
    assert events["tool.called"].data["arguments"]["command"].startswith("curl -H")
    assert len(events["tool.returned"].data["result"]["stdout"]) < 20_000
    assert {event.data["session"] for event in events.values()} == {claude.session}
    assert {event.stream for event in events.values()} == {"web"}


def test_what_cannot_be_recorded_changes_no_answer(claude: Claude) -> None:
    claude.options = ["--record"]
    claude.prompt("p1")
    deep: object = "x"
    for _ in range(200):
        deep = [deep]
    assert claude.pre("t1", tool_input={"n": 2**80, "deep": deep, "s": "\ud800"}) is None
    claude.change()
    assert claude.turn("t2") is not None
    with EventLog.open(claude.log, read_only=True) as log:
        called = [event.data for event in log.read(types={"tool.called"})]
    assert called[0]["arguments"]["n"] == hex(2**80)


def test_a_startup_by_hand_is_refused_twice(claude: Claude) -> None:
    """The decider's rule, seen through the adapter: the tag of one replacement is good for one process."""
    claude.prompt("p1")
    claude.change()
    claude.pre("t1")
    claude.prompt("p2")
    proof = claude.intent().proof
    assert isinstance(proof, RestartStartup)
    with EventLog.open(claude.log) as log:
        deliveries = Deliveries(log)
        deliveries.accept_startup(Caller("web", "new:1", prompt="x"), proof.startup_id)
        assert isinstance(deliveries.accept_startup(Caller("web", "other:2", prompt="y"), proof.startup_id), Refused)
