"""What stands between a program that runs an agent and the delivery decisions: what it can prove, and how its texts are read.

`Capabilities` says what a harness proves, `Adapter` turns its hooks into calls of `Deliveries`, `frame` makes a payload recognizable in a
text that the harness put other words around, `Carrier` does so for whatever size, and `FakeHarness` is an agent in this process, for tests
and examples. `claude_code` and `codex` read what the real programs say, and `running` is one process of `eventlog hook`.
"""

from __future__ import annotations

from eventlog.light import TYPE_CHECKING, of

if TYPE_CHECKING:
    from eventlog.recovery.harness.adapter import Adapter, Capabilities
    from eventlog.recovery.harness.carrier import Carrier
    from eventlog.recovery.harness.fake import FakeHarness
    from eventlog.recovery.harness.framing import find_payload, find_startup, frame, frame_startup

__all__ = ["Adapter", "Capabilities", "Carrier", "FakeHarness", "find_payload", "find_startup", "frame", "frame_startup"]

_HOMES = {
    "Adapter": "adapter",
    "Capabilities": "adapter",
    "Carrier": "carrier",
    "FakeHarness": "fake",
    "find_payload": "framing",
    "find_startup": "framing",
    "frame": "framing",
    "frame_startup": "framing",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = of(f"{__name__}.{home}", name)
        return value
