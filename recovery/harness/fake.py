"""An agent and its harness in this process, for tests and examples: prompts, turns with calls, results, and what the model has read."""

from __future__ import annotations

from collections.abc import Sequence

from eventlog.recovery.delivery_words import Block, Caller, FailClosed, PassThrough
from eventlog.recovery.desk import Deliveries
from eventlog.recovery.harness.adapter import Adapter, Capabilities
from eventlog.recovery.harness.framing import find_payload, frame_startup

__all__ = ["FakeHarness"]


class _Text:
    """The result of a call, as its hook leaves it."""

    def __init__(self) -> None:
        self.text = "it ran"

    def allow(self) -> None:
        self.text = "it ran"

    def deny(self, text: str) -> None:
        self.text = f"PreToolUse hook error: {text}"


class FakeHarness:
    """One process of an agent. `read`: intent -> digest of every payload that stood in a request of its model.

    `turn(calls)` is one model response: its request holds all results so far, then the hooks run, then the batch boundary is reported.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        thread: str,
        process: str,
        capabilities: Capabilities = Capabilities(True, True, True),  # noqa: B008  frozen
        *,
        session: str = "conversation-1",
    ) -> None:
        self.adapter = Adapter(deliveries, capabilities)
        self.thread, self.process, self.session = thread, process, session
        self.prompt_id: str | None = None
        self.read: dict[str, str] = {}
        self.answers: list[PassThrough | Block | FailClosed] = []
        self._request: list[str] = []
        self._prompts = 0

    @property
    def caller(self) -> Caller:
        """Who its hooks say they are."""
        names = self.adapter.capabilities.names
        return Caller(self.thread, self.process, prompt=self.prompt_id, session=self.session, capabilities=names)

    def start(self, startup_id: str | None = None) -> None:
        """The process is there; with a tag it says so. Evidence of nothing."""
        self.adapter.deliveries.start_incarnation(self.caller, startup_id)

    def prompt(self, text: str) -> None:
        """The user says something, or the launcher hands over the startup delivery."""
        self._prompts += 1
        self.prompt_id = f"{self.process}-p{self._prompts}"
        self._request.append(text)
        self.adapter.user_prompt_submit(self.caller, text)

    def startup(self) -> None:
        """Take the replacement's startup delivery of the thread as the first input. Raises LookupError if none waits."""
        waiting = self.adapter.deliveries.startup_of(self.thread)
        if waiting is None or waiting[0].payload is None:
            raise LookupError(f"no replacement of {self.thread!r} waits to be launched")
        self.prompt(frame_startup(waiting[0].id, waiting[0].payload, waiting[1].startup_id))

    def turn(self, *calls: str, boundary: bool = True) -> Sequence[PassThrough | Block | FailClosed]:
        """One model response with these tool calls; `boundary=False` loses the report of the batch."""
        self._reads()
        texts: dict[str, str] = {}
        answers = []
        for call in calls:
            output = _Text()
            answers.append(self.adapter.pre_tool_use(self.caller, call, output))
            texts[call] = output.text
        if boundary and self.adapter.capabilities.batch_boundary:
            self.adapter.post_tool_batch(self.caller, texts)
        self._request += texts.values()
        self.answers += answers
        return answers

    def stop(self) -> None:
        """One model response without a call."""
        self._reads()
        self.adapter.deliveries.turn_observed(self.caller, "stop")

    def _reads(self) -> None:
        for text in self._request:
            self.read.update(find_payload(text))
        self._request.clear()
