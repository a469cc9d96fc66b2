"""The real Claude Code as people use it: on a terminal, with the Esc key, and with the launcher around it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import termios
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from fake_model import Turn
from isolated import Run
from lab import Lab, touch

PAYLOAD = "the parent branch moved: a line\nand e\u0301 \U0001f469\u200d\U0001f52c"
_CONTROL = re.compile(rb"\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b\][^\x07]*\x07|\x1b.")


class Terminal:
    """A terminal with the program on it, and somebody who types. `screen`: all that was ever shown, without its colours and blanks."""

    def __init__(self, lab: Lab, settings: Mapping[str, Any]) -> None:
        self.lab = lab
        self.shown = b""
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        known = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        answered = {"hasCompletedOnboarding": True, "theme": "dark", "numStartups": 5, "projects": {str(lab.work): known}}
        key = {"customApiKeyResponses": {"approved": ["dummy"], "rejected": []}}
        (lab.sandbox.home / ".claude.json").write_text(json.dumps({**answered, **key}))
        self.run: Run = lab.sandbox.start("--session-id", lab.session, settings=settings, before=lab.before, terminal=slave)
        os.close(slave)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.lab.sandbox.close()  # the other side of the terminal has to be gone before the reader ends
        self.reader.join()
        os.close(self.master)

    def _read(self) -> None:
        while True:
            try:
                self.shown += os.read(self.master, 65536)
            except OSError:  # nobody is on it any more
                return

    @property
    def screen(self) -> str:
        return "".join(_CONTROL.sub(b"", self.shown).decode(errors="replace").split())

    def see(self, text: str) -> None:
        """Wait until this was shown since the last key."""
        wanted = "".join(text.split())
        try:
            self.lab.until(lambda: wanted in self.screen, f"{text!r} on the screen", 60)
        except TimeoutError:
            raise TimeoutError(f"{text!r} was not shown: {self.screen[-2000:]}") from None

    def type(self, text: str) -> None:
        """A prompt, when there is a place for one."""
        self.see("\u276f")  # the place for a prompt
        self.shown = b""
        os.write(self.master, text.encode())
        self.see(text)
        self.press("\r")

    def press(self, key: str) -> None:
        self.shown = b""
        os.write(self.master, key.encode())


def test_escape_on_a_terminal_and_the_launcher_starts_the_replacement_there(lab: Lab) -> None:
    """The payload had left our hook when the user pressed Esc. The next prompt shows that, and the replacement takes over the terminal."""
    there = lab.program("sleep-in-call", f"[ -e {lab.place}/in-call ] && exit; touch {lab.place}/in-call; sleep 60")
    lab.launched()
    # How many answers the old process still takes before it is ended depends on the machine: there are enough of the last one.
    enough = [Turn("all is well") for _ in range(4)]
    lab.script(Turn(touch("one"), touch("two")), *(Turn(touch(f"call{number}")) for number in range(3)), *enough)
    lab.detect(PAYLOAD)
    with Terminal(lab, lab.settings(foreign={"PreToolUse": [there]})) as terminal:
        terminal.type("do it")
        lab.until(lambda: (lab.place / "in-call").exists() and bool(lab.events("delivery.marked")), "mark")
        terminal.press("\x1b")
        terminal.see("Interrupted")
        assert lab.events("delivery.acknowledged") == []
        terminal.type("go on")
        lab.until(lambda: bool(lab.events("delivery.acknowledged")), "acknowledgement", 90)
        terminal.see("all is well")
        terminal.type("/exit")
        assert terminal.run.wait() == 0, terminal.screen[-2000:]
    assert [event.data["evidence"] for event in lab.events("delivery.acknowledged")] == ["startup_echo"]
    assert not lab.ran() & {"one", "two"}
    lab.audit("web#1")


def test_a_delivery_on_a_terminal_without_a_launcher(lab: Lab) -> None:
    lab.script(Turn(touch("one"), touch("two")), Turn(touch("three")), Turn("all is well"))
    lab.detect(PAYLOAD)
    with Terminal(lab, lab.settings()) as terminal:
        terminal.type("do it")
        terminal.see("all is well")
        terminal.type("/exit")
        assert terminal.run.wait() == 0
    lab.audit("web#1", ran={"three"})
