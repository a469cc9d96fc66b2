"""The door: `eventlog` on the command line. Commands only; what they do lives on the floors below.

`eventlog.cli:main` is the entry point of the console script. It is resolved on first use, so that importing this package (the demo's
agent is a module of it) does not pay for click.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if __name__ != "eventlog.cli":  # a second copy of every class would break isinstance
    raise ImportError("import eventlog.cli, not cli")

if TYPE_CHECKING:
    from eventlog.cli.app import main

__all__ = ["main"]


def __getattr__(name: str) -> object:
    if name == "main":
        from eventlog.cli.app import main

        return main
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
