"""Named points at which a test may end the process, as a power cut or `kill -9` would.

Unarmed, a point costs one global look-up. Nothing in this module can arm one: that takes `eventlog.testing`, in a child process.
"""

from __future__ import annotations

from collections.abc import Callable

armed: Callable[[str], None] | None = None


def reach(name: str) -> None:
    """Pass the point `name` (seed 000, step 4: a test hook that ends the process at a named point)."""
    if armed is not None:
        armed(name)
