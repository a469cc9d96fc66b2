"""The command line of an agent, taken apart: its prompt, its conversation, and the rest, so that a replacement can be started with both.

A replacement gets the options of the first start, `--resume SESSION` instead of what chose the conversation then, and its first input
instead of the prompt. So every word has to be known for what it is. Where that cannot be told (an option that nobody here knows, before a
word that may be its value or the prompt) the command is refused, with the way out: `--` before the prompt.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, NamedTuple

from eventlog.errors import EventLogError

__all__ = ["ARGUMENT_BYTES_MAX", "AgentCommand", "BadCommand", "Harness", "parse"]

Harness = Literal["claude-code", "codex"]

ARGUMENT_BYTES_MAX = 120 * 1024
"""Linux takes 128 KiB for one argument, its end included (MAX_ARG_STRLEN)."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Options with a value, with one or more, and with one or none (claude --help, 2.1.332). What is not here takes none.
_ONE = _names(
    "--agent --agents --append-system-prompt --append-system-prompt-file --autocompact --debug-file --effort --environment "
    "--fallback-model --input-format --json-schema --max-budget-usd --max-turns --model -n --name --output-format --permission-mode "
    "--permission-prompt-tool --permission-prompts --plugin-dir --plugin-url --remote-control-session-name-prefix --session-id "
    "--setting-sources --settings --system-prompt --system-prompt-file --system-prompt-snapshot"
)
_MANY = _names("--add-dir --allowedTools --allowed-tools --betas --disallowedTools --disallowed-tools --file --mcp-config --tools")
_PERHAPS = _names("-d --debug --from-pr --prompt-suggestions --remote-control -r --resume --cloud --teleport -w --worktree")
_NONE = _names(
    "--allow-dangerously-skip-permissions --ax-screen-reader --bare --bg --background --brief --chrome -c --continue "
    "--dangerously-skip-permissions --desktop --disable-slash-commands --exclude-dynamic-system-prompt-sections --fork-session "
    "--forward-subagent-text --ide --include-hook-events --include-partial-messages --no-chrome --no-session-persistence -p --print "
    "--replay-user-messages --restricted --safe-mode --strict-mcp-config --tmux --verbose"
)
# The same of codex, exec and resume (codex --help, 0.171.0).
_CODEX_ONE = _names(
    "-c --config --enable --disable --remote --remote-auth-token-env -m --model --local-provider -p --profile -s --sandbox -C --cd "
    "--add-dir -a --ask-for-approval --thread-source --cyber-access-program --output-schema --color -o --output-last-message"
)
_CODEX_MANY = _names("-i --image")
_CODEX_NONE = _names(
    "--strict-config --oss --approve-for-me --dangerously-bypass-approvals-and-sandbox --dangerously-bypass-hook-trust --worktree --search "
    "--no-alt-screen --no-daemon --skip-git-repo-check --trust --ephemeral --ignore-user-config --ignore-rules --json --last --all "
    "--include-non-interactive"
)
# Why a start with this option cannot be looked after.
_REFUSED = {
    "--bare": "runs no hooks",
    "--safe-mode": "runs no hooks",
    "--bg": "leaves the terminal",
    "--background": "leaves the terminal",
    "--cloud": "runs elsewhere",
    "--teleport": "runs elsewhere",
    "--desktop": "runs elsewhere",
    "--tmux": "runs in another terminal",
    "--worktree": "makes a place of its own; make the worktree first, and start there",
    "-w": "makes a place of its own; make the worktree first, and start there",
}
_CHOOSES = frozenset(("-c", "--continue", "-r", "--resume", "--session-id", "--fork-session", "--from-pr"))
_CODEX_CHOOSES = frozenset(("--last", "--all", "--include-non-interactive"))


class BadCommand(EventLogError):
    """This command line cannot be started by a launcher; the text says why and what to write."""


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """An agent's command line. `choice`: the words that chose the conversation; `session`: its id where they tell it; `options`: the rest.

    `mode`: the subcommand (`exec` of codex), with what stood before it. `printing`: it runs one prompt and ends. `lasting`: its
    conversation can be resumed.
    """

    harness: Harness
    program: str
    mode: tuple[str, ...]
    options: tuple[str, ...]
    choice: tuple[str, ...]
    session: str | None
    prompt: str | None
    printing: bool
    lasting: bool

    def start(self, first: str | None) -> list[str]:
        """As the user wrote it, with `first` for the prompt."""
        return [self.program, *self.mode, *self.options, *self.choice, *_prompt(first)]

    def resume(self, session: str, first: str) -> list[str]:
        """The same agent in the same conversation."""
        if self.harness == "codex":
            return [self.program, *self.mode, *self.options, "resume", session, *_prompt(first)]
        return [self.program, *self.options, "--resume", session, *_prompt(first)]

    def anew(self, session: str, first: str) -> list[str]:
        """The same agent in a new conversation; `session` is its id where that can be chosen."""
        choice = () if self.harness == "codex" else ("--session-id", session)
        return [self.program, *self.mode, *self.options, *choice, *_prompt(first)]


def _prompt(text: str | None) -> list[str]:
    # Behind `--`, or an option with any number of values would take it for one of its own.
    return [] if text is None else ["--", text]


def parse(words: Sequence[str], fresh: str, *, harness: Harness | None = None, terminal: bool = True) -> AgentCommand:
    """Take a command line apart. `fresh`: the id of the conversation, if the words choose none. Raises BadCommand.

    `terminal`: is standard output one? Without one the agent prints, whatever its options say.
    """
    if not words:
        raise BadCommand("name the agent to start, behind `--`: eventlog agent run --log DIR --thread NAME -- claude")
    kind: Harness = harness or ("codex" if os.path.basename(words[0]).startswith("codex") else "claude-code")
    return _codex(words) if kind == "codex" else _claude(words, fresh, terminal)


class _Option(NamedTuple):
    name: str
    values: tuple[str, ...]
    words: tuple[str, ...]


def _claude(words: Sequence[str], fresh: str, terminal: bool) -> AgentCommand:
    parts = _split(words, _ONE, _MANY, _PERHAPS, _NONE)
    options, plain = _options(parts), [part for part in parts if isinstance(part, str)]
    told = {option.name: option.values for option in options}
    _refuse(words[0], told)
    if told.get("--input-format", ())[:1] == ("stream-json",):
        raise BadCommand("--input-format stream-json: a replacement's first input goes by the command line; leave it out")
    choice = _words(option for option in options if option.name in _CHOOSES)
    session: str | None = None
    if not choice:
        session, choice = fresh, ("--session-id", fresh)
    elif told.get("--session-id"):
        session = told["--session-id"][0]
    elif "--fork-session" not in told:
        session = next((told[name][0] for name in ("--resume", "-r") if told.get(name)), None)
    return AgentCommand(
        "claude-code",
        words[0],
        (),
        _words(option for option in options if option.name not in _CHOOSES),
        choice,
        session,
        _only(plain),
        bool(told.keys() & {"-p", "--print"}) or not terminal,
        "--no-session-persistence" not in told,
    )


def _codex(words: Sequence[str]) -> AgentCommand:
    parts = _split(words, _CODEX_ONE, _CODEX_MANY, frozenset(), _CODEX_NONE)
    _refuse(words[0], {option.name: option.values for option in _options(parts)})
    first = next((at for at, part in enumerate(parts) if isinstance(part, str)), len(parts))
    mode: tuple[str, ...] = ()
    if parts[first : first + 1] in (["exec"], ["e"]):  # some options stand before it only, others behind it only
        mode, parts = (*_words(_options(parts[:first])), "exec"), parts[first + 1 :]
    options, plain = _options(parts), [part for part in parts if isinstance(part, str)]
    names = {option.name for option in options}
    choice: tuple[str, ...] = ()
    session: str | None = None
    if plain[:1] == ["resume"]:
        choice, plain = ("resume", *sorted(names & _CODEX_CHOOSES)), plain[1:]
        if plain and len(choice) == 1:
            session, plain = plain[0], plain[1:]
            choice = ("resume", session)
    kept = _words(option for option in options if option.name not in _CODEX_CHOOSES)
    return AgentCommand("codex", words[0], mode, kept, choice, session, _only(plain), bool(mode), "--ephemeral" not in names)


def _refuse(program: str, names: Iterable[str]) -> None:
    for name in names:
        if name in _REFUSED:
            raise BadCommand(f"{program} {name} {_REFUSED[name]}")


def _options(parts: Iterable[_Option | str]) -> list[_Option]:
    return [part for part in parts if isinstance(part, _Option)]


def _words(options: Iterable[_Option]) -> tuple[str, ...]:
    return tuple(word for option in options for word in option.words)


def _only(plain: Sequence[str]) -> str | None:
    if len(plain) > 1:
        raise BadCommand(f"two prompts, {plain[0]!r} and {plain[1]!r}: quote the prompt, and write `--` before it")
    return plain[0] if plain else None


def _split(
    words: Sequence[str], one: frozenset[str], many: frozenset[str], perhaps: frozenset[str], none: frozenset[str]
) -> list[_Option | str]:
    """The options and the words that belong to none, in order. Raises BadCommand where that cannot be told."""
    parts: list[_Option | str] = []
    unsure: str | None = None
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "--":
            return parts + rest
        if not word.startswith("-") or word == "-":
            parts.append(word)
            continue
        name, equals, value = word.partition("=")
        if equals and name.startswith("--"):
            parts.append(_Option(name, (value,), (word,)))
            continue
        values: list[str] = []
        if word in one:
            values += rest[:1]
        elif word in many:
            values += takewhile(lambda next_: not next_.startswith("-"), rest)
        elif word not in none and rest and not rest[0].startswith("-"):
            values += rest[:1]
            if word not in perhaps:
                unsure = word
        del rest[: len(values)]
        parts.append(_Option(word, tuple(values), (word, *values)))
    if unsure is not None:
        raise BadCommand(f"{unsure}: not known here, so the word behind it may be its value or the prompt; write `--` before the prompt")
    return parts
