"""What an adapter has to do for a harness, and the part that is the same for all: hooks in, decisions out."""

from __future__ import annotations

from collections.abc import Mapping

from eventlog.light import Protocol
from eventlog.recovery.delivery_words import (
    BATCH_BOUNDARY,
    RECEIPTS,
    STARTUP_DELIVERY,
    Block,
    Caller,
    Done,
    FailClosed,
    PassThrough,
    Refused,
)
from eventlog.recovery.desk import Deliveries
from eventlog.recovery.harness.carrier import Carrier
from eventlog.recovery.harness.framing import find_payload, find_startup
from eventlog.values import dataclass

__all__ = ["Adapter", "Capabilities", "Output"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a harness can prove. Say no when in doubt: each no has a safe way instead, none is guessed.

    `batch_boundary`: it reports a finished batch of calls, by their ids, before the next model turn. Without: no SoftBatch, a restart.
    `receipts`: with that it shows the text that the model is given for each call. Without: the exact batch counts, as seed 003 says.
    `startup_delivery`: a first input arrives unchanged, and turns can be tied to it. Without, and without boundaries: a person.
    """

    batch_boundary: bool = False
    receipts: bool = False
    startup_delivery: bool = False

    @property
    def names(self) -> frozenset[str]:
        """As incarnation.started records them."""
        wanted = {BATCH_BOUNDARY: self.batch_boundary, RECEIPTS: self.receipts, STARTUP_DELIVERY: self.startup_delivery}
        return frozenset(name for name, has in wanted.items() if has)


class Output(Protocol):
    """How a hook answers: `deny` returns only when the text has left this process, and raises OSError if it cannot."""

    def allow(self) -> None: ...
    def deny(self, text: str) -> None: ...


class Adapter:
    """The hooks of one harness process as calls of `Deliveries`. A real adapter reads its harness's JSON and builds the Caller."""

    def __init__(self, deliveries: Deliveries, capabilities: Capabilities) -> None:
        self.deliveries = deliveries
        self.capabilities = capabilities
        self.carrier = Carrier(deliveries.log.path)

    def pre_tool_use(self, caller: Caller, call: str, output: Output) -> PassThrough | Block | FailClosed:
        """Answer the hook; MarkDelivered follows the output, never the other way round."""
        answer = self.deliveries.admit(caller, call)
        if isinstance(answer, PassThrough):
            output.allow()
        elif isinstance(answer, Block):
            output.deny(self.carrier.text(answer.intent, answer.payload))
            if answer.bound:
                self.deliveries.mark_delivered(answer)
        else:
            output.deny(f"{answer.reason}. {answer.what_to_do}")
        return answer

    def post_tool_batch(self, caller: Caller, results: Mapping[str, str]) -> Done:
        """`results`: call -> the text that the model will be given. Texts count only where the harness has receipts."""
        receipts = {call: set(find_payload(text).values()) for call, text in results.items()} if self.capabilities.receipts else None
        return self.deliveries.batch_completed(caller, list(results), receipts)

    def user_prompt_submit(self, caller: Caller, prompt: str) -> Done | FailClosed | Refused:
        """A prompt with a whole tagged payload is the handshake of a replacement; any other is a new prompt."""
        startup = find_startup(prompt) if self.capabilities.startup_delivery else None
        if startup is not None:
            accepted = self.deliveries.accept_startup(caller, startup[1])
            if isinstance(accepted, Done):
                return accepted  # a void tag leaves a prompt like any other
        return self.deliveries.turn_observed(caller, "prompt")
