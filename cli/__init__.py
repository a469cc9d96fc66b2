"""The door: `eventlog` on the command line. Commands only; what they do lives on the floors below.

`eventlog.cli:main` is the entry point of the console script. It is resolved on first use, so that importing this package (the demo's
agent is a module of it) does not pay for click.
"""

from __future__ import annotations

from eventlog.light import TYPE_CHECKING

if __name__ != "eventlog.cli":  # a second copy of every class would break isinstance
    raise ImportError("import eventlog.cli, not cli")

if TYPE_CHECKING:
    from eventlog.cli.app import main

__all__ = ["main"]

_HARNESSES = ("claude-code", "codex")


def _hook() -> None:
    """Be a hook, and leave without taking the interpreter down: there is nothing that it would have to do."""
    import gc
    import os
    import sys

    gc.disable()  # nothing that is made here is thrown away before the process ends

    from eventlog.cli.hook import run

    os._exit(run(sys.argv[2:]))


def __getattr__(name: str) -> object:
    if name == "main":
        import sys

        # A hook is run at every step of an agent: it must not wait for click.
        if sys.argv[1:2] == ["hook"] and sys.argv[2:3] and sys.argv[2] in _HARNESSES:
            return _hook
        from eventlog.cli.app import main

        return main
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
