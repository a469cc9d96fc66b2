"""The two roads to JSON: orjson, and for a process that lives for a moment the parser and writer in C that Python brings along.

orjson is several times faster at its work, and takes longer to import than a bare interpreter to start. Which road a process takes is
decided once, before the rest of the library is imported: `take_the_short_one`, or orjson. Both read what either wrote, and what may be
written is decided by the same rule (see `payload`); a test compares them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orjson import OPT_PASSTHROUGH_DATACLASS as OPT_PASSTHROUGH_DATACLASS
    from orjson import OPT_PASSTHROUGH_DATETIME as OPT_PASSTHROUGH_DATETIME
    from orjson import OPT_PASSTHROUGH_SUBCLASS as OPT_PASSTHROUGH_SUBCLASS

    dumps: Callable[..., bytes]
    loads: Callable[[bytes], Any]
    quick: bool
    """Does `dumps` refuse what it should by itself? Otherwise each value has to be looked at first."""

_OURS = ("OPT_PASSTHROUGH_DATACLASS", "OPT_PASSTHROUGH_DATETIME", "OPT_PASSTHROUGH_SUBCLASS", "dumps", "loads", "quick")


def take_the_short_one() -> None:
    """Do without orjson in this process. Too late when it has been imported."""
    from eventlog import shortjson

    globals().update(dict.fromkeys(_OURS[:3], 0), dumps=shortjson.dumps, loads=shortjson.loads, quick=False)


def __getattr__(name: str) -> object:
    if name not in _OURS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import orjson

    globals().update({one: getattr(orjson, one) for one in _OURS[:-1]}, quick=True)
    return globals()[name]
