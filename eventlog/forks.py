"""What a forked child must let go of.

A child inherits descriptors that share their locks with the parent's: it must never unlock one, must not keep one alive, and must not write
from a buffer that the parent will write as well (reliability P24). Whatever holds such a thing is watched here and told in the child.
"""

from __future__ import annotations

import os
import weakref

from eventlog.light import Protocol


class Forkable(Protocol):
    def after_fork_in_child(self) -> None:
        """Close descriptors without unlocking, and refuse every later use."""


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(thing: Forkable) -> None:
    _watched.add(thing)


def _in_child() -> None:
    for thing in list(_watched):
        thing.after_fork_in_child()
    _watched.clear()


os.register_at_fork(after_in_child=_in_child)
