"""What stands between a program that runs an agent and the delivery decisions: what it can prove, and how its texts are read.

`Capabilities` says what a harness proves, `Adapter` turns its hooks into calls of `Deliveries`, `frame` makes a payload recognizable in a
text that the harness put other words around, and `FakeHarness` is an agent in this process, for tests and examples.
"""

from __future__ import annotations

from eventlog.recovery.harness.adapter import Adapter, Capabilities
from eventlog.recovery.harness.fake import FakeHarness
from eventlog.recovery.harness.framing import find_payload, find_startup, frame, frame_startup

__all__ = ["Adapter", "Capabilities", "FakeHarness", "find_payload", "find_startup", "frame", "frame_startup"]
