"""What a hook says to people."""

from __future__ import annotations

__all__ = ["one_line"]


def one_line(text: str) -> str:
    """Without anything that could move a cursor or begin another line."""
    return "".join(one if one.isprintable() else " " for one in text)
