"""`eventlog hook install` and `uninstall`: somebody else's file is changed by our entries and by nothing else."""

from __future__ import annotations

import copy
import json
import os
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from eventlog.cli import main
from eventlog.recovery.harness import settings as pure
from eventlog.recovery.harness.settings_file import SettingsFile, read, replace

OTHERS: dict[str, Any] = {
    "model": "opus",
    "permissions": {"allow": ["Bash(git log:*)"], "deny": []},
    "hooks": {
        "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "/opt/guard --strict", "timeout": 5}]}],
        "Notification": [{"hooks": [{"type": "command", "command": "notify-send 'é'"}]}],
    },
    "z": [1, 2.5, None, {"a": "\u2028"}],
}


def run(*args: Any) -> Any:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def install(path: Path, *more: Any, harness: str = "claude-code", log: str = "logs/web", thread: str = "web") -> Any:
    return run("hook", "install", harness, "--settings", path, "--log", log, "--thread", thread, *more)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def planned(harness: pure.Harness = "claude-code", **more: Any) -> pure.Installation:
    return pure.Installation(harness, ("/opt/eventlog",), "/l/web", "web", **more)


# ------------------------------------------------------------------- pure


def test_a_new_file_gets_one_hook_for_each_event_and_only_a_tool_call_fails_closed() -> None:
    found = pure.entries(pure.merged({}, planned(reconciler="/r --fast", record=True, redact=("a b",))))
    assert [entry.event for entry in found] == [wanted.event for wanted in pure.EVENTS["claude-code"]]
    for entry in found:
        words = shlex.split(entry.command)
        assert words[-3:] == ["||", "exit", "2" if entry.event == "PreToolUse" else "1"]
        assert words[:7] == ["/opt/eventlog", "hook", "claude-code", "--log", "/l/web", "--thread", "web"]
        assert ("--reconciler" in words) == (entry.event == "PreToolUse")
        assert words[-6:-3] == ["--record", "--redact", "a b"]
        assert entry.timeout_s is not None
        assert 0 < float(words[words.index("--deadline") + 1]) < entry.timeout_s
    assert {entry.matcher for entry in found} == {None, "*"}


def test_codex_gets_its_own_events_and_never_more_time_than_it_gives() -> None:
    found = {entry.event: entry for entry in pure.entries(pure.merged({}, planned("codex")))}
    assert "PostToolBatch" not in found
    assert found["SessionEnd"].timeout_s == 3
    assert all(pure.is_ours(entry.command, "codex") and not pure.is_ours(entry.command, "claude-code") for entry in found.values())


def test_what_others_have_stays_value_for_value_and_in_its_place() -> None:
    before = copy.deepcopy(OTHERS)
    after = pure.merged(OTHERS, planned())
    assert before == OTHERS
    assert list(after) == list(before)
    assert after["hooks"]["PreToolUse"][0] == before["hooks"]["PreToolUse"][0]
    assert after["hooks"]["Notification"] == before["hooks"]["Notification"]
    assert pure.without(after, "claude-code") == before


def test_again_changes_nothing_and_another_log_changes_ours_only() -> None:
    once = pure.merged(OTHERS, planned())
    assert pure.merged(once, planned()) == once
    assert list(pure.merged(once, planned())["hooks"]) == list(once["hooks"])
    once["hooks"]["PreToolUse"].append({"hooks": [{"type": "command", "command": "/later"}]})
    other = pure.merged(once, pure.Installation("claude-code", ("/new/eventlog",), "/l/other", "web"))
    commands = [entry.command for entry in pure.entries(other) if entry.event == "PreToolUse"]
    assert [command.split()[0] for command in commands] == ["/opt/guard", "/new/eventlog", "/later"]


def test_a_hook_of_ours_in_a_group_with_others_leaves_them_there() -> None:
    mixed = {
        "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "a"}, {"type": "command", "command": "eventlog hook claude-code"}]}]}
    }
    assert pure.without(mixed, "claude-code") == {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "a"}]}]}}
    once = pure.merged(mixed, planned())
    assert [group["hooks"][0]["command"].split()[0] for group in once["hooks"]["Stop"]] == ["a", "/opt/eventlog"]
    assert pure.merged(once, planned()) == once


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        ("eventlog hook claude-code --log x --thread y || exit 2", True),
        ("'/a b/bin/eventlog' hook claude-code --log x", True),
        ("/usr/bin/python3 -P -m eventlog.cli hook claude-code", True),
        ("env A=1 eventlog hook claude-code", True),
        ("eventlog hook codex", False),
        ("eventlog append x", False),
        ("echo eventlog-hook claude-code", False),
        ("/opt/my-eventlog hook claude-code", False),
        ("unbalanced 'eventlog hook claude-code", False),
        (None, False),
    ],
)
def test_ours_are_known_by_their_command(command: Any, ours: bool) -> None:
    assert pure.is_ours(command, "claude-code") is ours


HOOK = st.one_of(
    st.fixed_dictionaries({"type": st.just("command"), "command": st.sampled_from(["a", "b 'c'", "/x/eventlog hook claude-code --log l"])}),
    st.just({"type": "prompt", "prompt": "?"}),
)
GROUP = st.fixed_dictionaries({"hooks": st.lists(HOOK, max_size=3)}, optional={"matcher": st.sampled_from(["", "Bash"])})
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.text(max_size=3),
        "hooks": st.dictionaries(st.sampled_from(["PreToolUse", "Stop", "SessionEnd", "Other"]), st.lists(GROUP, max_size=3), max_size=4),
    },
)


@settings(max_examples=300, deadline=None)
@given(SETTINGS)
def test_for_any_settings(found: dict[str, Any]) -> None:
    foreign = [entry for entry in pure.entries(found) if not pure.is_ours(entry.command, "claude-code")]
    once = pure.merged(found, planned())
    assert [entry for entry in pure.entries(once) if not pure.is_ours(entry.command, "claude-code")] == foreign
    assert sum(pure.is_ours(entry.command, "claude-code") for entry in pure.entries(once)) == len(pure.EVENTS["claude-code"])
    assert pure.merged(once, planned()) == once
    assert json.dumps(pure.merged(once, planned())) == json.dumps(once)
    out = pure.without(once, "claude-code")
    assert pure.without(out, "claude-code") == out
    assert pure.entries(out) == foreign
    assert pure.loads(pure.dumps(once, ""), "x") == once


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{\n  "hooks": {,}\n}', "line 2, column 13"),
        ("{} {}", "line 1, column 4"),
        ('{"a": 1, "a": 2}', "'a' is there twice"),
        ("[]", "not a JSON object"),
        ("// a comment\n{}", "line 1, column 1"),
        ('{"hooks": []}', "hooks is no object"),
        ('{"a": 1e400}', "number 1e400 is too large"),
        ('{"a": NaN}', "NaN is no JSON"),
        ('{"a": -Infinity}', "-Infinity is no JSON"),
        (f'{{"a": {"9" * 5000}}}', "thousands of digits"),
        (f'{{"a": {"[" * 50_000}', "nested too deeply"),
        ('{"hooks": {"Stop": {}}}', "hooks.Stop is no list"),
        ('{"hooks": {"Stop": [{"command": "a"}]}}', r"hooks.Stop\[0\] is no object with a list"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, told: str) -> None:
    with pytest.raises(pure.BadSettings, match=told):
        pure.loads(text, "settings.json")


# ------------------------------------------------------------------- the file


@pytest.mark.parametrize("indent", [2, 4, "\t"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_in_and_out_again_leaves_the_file_byte_for_byte(tmp_path: Path, indent: Any, line_end: str, mark: str, end: str) -> None:
    path = tmp_path / "settings.json"
    body = (mark + (json.dumps(OTHERS, indent=indent, ensure_ascii=False) + end).replace("\n", line_end)).encode()
    path.write_bytes(body)
    assert install(path, "--yes").exit_code == 0
    written = path.read_bytes()
    assert written.startswith(mark.encode())
    assert written.count(b"\r\n") == (written.count(b"\n") if line_end == "\r\n" else 0)
    assert run("hook", "uninstall", "claude-code", "--settings", path, "--yes").exit_code == 0
    assert path.read_bytes() == body


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for somebody else")
def test_a_file_that_root_changes_stays_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(OTHERS))
    os.chown(path, 1234, 1235)
    assert install(path, "--yes").exit_code == 0
    for one in (path, *tmp_path.glob("settings.json.before-eventlog-*")):
        assert (one.stat().st_uid, one.stat().st_gid) == (1234, 1235)


def test_install_shows_the_change_keeps_a_copy_and_again_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    text = json.dumps(OTHERS, indent=4, ensure_ascii=False)
    path.write_text(text)
    path.chmod(0o640)
    done = install(path, "--yes")
    assert done.exit_code == 0, done.output
    assert '+        "SessionStart": [' in done.stdout, "a diff, in the indent of the file"
    assert "another PreToolUse hook may deny" in done.stderr
    [kept] = list(tmp_path.glob("settings.json.before-eventlog-*"))
    assert kept.read_text() == text
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    written = path.read_bytes()
    assert install(path, "--yes").stdout.endswith("nothing to change\n")
    assert path.read_bytes() == written
    assert install(path, "--yes", log="logs/other").exit_code == 0
    assert len(list(tmp_path.glob("settings.json.before-eventlog-*"))) == 2
    assert run("hook", "uninstall", "claude-code", "--settings", path, "--yes").exit_code == 0
    assert json.loads(path.read_text()) == OTHERS
    assert kept.read_text() == text


def test_a_dry_run_and_a_missing_yes_write_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "settings.json"
    assert install(path, "--dry-run").exit_code == 0
    assert install(path).exit_code == 2
    assert not path.parent.exists()
    assert not Path("logs").exists()
    assert install(path, "--yes").exit_code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(os.listdir(path.parent)) == ["settings.json"]
    assert Path("logs/web/log.json").exists(), "a hook makes no log, and lets no call run without one"


def test_the_command_is_absolute_and_survives_a_shell(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    reconciler = tmp_path / "re concile"
    reconciler.write_text("#!/bin/sh\n")
    reconciler.chmod(0o700)
    done = install(path, "--yes", "--reconciler", shlex.join([str(reconciler), "--fast"]), log=str(tmp_path / "l o'g"), thread="a 'b' $c")
    assert done.exit_code == 0, done.output
    [call] = [entry for entry in pure.entries(json.loads(path.read_text())) if entry.event == "PreToolUse"]
    words = shlex.split(call.command)
    assert os.path.isabs(words[0])
    assert os.access(words[0], os.X_OK)
    assert words[words.index("--log") + 1] == str(tmp_path / "l o'g")
    assert words[words.index("--thread") + 1] == "a 'b' $c"
    assert shlex.split(words[words.index("--reconciler") + 1]) == [str(reconciler), "--fast"]


@pytest.mark.parametrize(
    "more",
    [["--reconciler", "/nonexistent/program"], ["--reconciler", "'"], ["--redact", "x"], ["--record", "--redact", "("], ["--timeout", "4"]],
)
def test_wrong_usage(tmp_path: Path, more: list[str]) -> None:
    assert install(tmp_path / "settings.json", "--yes", *more).exit_code == 2


def test_a_link_stays_a_link_and_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    target = tmp_path / "dotfiles" / "claude.json"
    target.write_text("{}")
    link = tmp_path / "settings.json"
    link.symlink_to(target)
    assert install(link, "--yes").exit_code == 0
    assert link.is_symlink()
    assert "PreToolUse" in target.read_text()
    assert install(tmp_path, "--yes").exit_code != 0
    os.mkfifo(tmp_path / "pipe")
    assert install(tmp_path / "pipe", "--yes").exit_code != 0
    (tmp_path / "latin").write_bytes(b'{\n"a": "\xe9"}')
    refused = install(tmp_path / "latin", "--yes")
    assert refused.exit_code != 0
    assert "line 2: not UTF-8" in refused.stderr


def test_a_file_that_is_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")
    seen = read(path)
    path.write_text('{"model": "x"}')
    with pytest.raises(pure.BadSettings, match="changed while"):
        replace(seen, "{}\n")
    with pytest.raises(pure.BadSettings, match="changed while"):
        replace(SettingsFile(path.resolve(), None), "{}\n")
    assert sorted(os.listdir(tmp_path)) == ["here", "settings.json"]
    assert path.read_text() == '{"model": "x"}'


def test_broken_json_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{\n  "hooks": {,}\n}')
    done = install(path, "--yes")
    assert done.exit_code == 2
    assert "line 2, column 13" in done.stderr
    assert path.read_text() == '{\n  "hooks": {,}\n}'


def test_codex_is_told_to_trust_the_hooks(tmp_path: Path) -> None:
    assert "/hooks" in install(tmp_path / "hooks.json", "--yes", harness="codex").stderr


def test_switched_off_hooks_are_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"disableAllHooks": true}')
    assert "disableAllHooks" in install(path, "--yes").stderr
    assert list(json.loads(path.read_text())) == ["disableAllHooks", "hooks"]
