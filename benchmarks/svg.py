"""Bar charts as SVG, by hand: a few rectangles and words, the same bytes for the same results.

One file serves a light and a dark page: the ground is transparent, and every colour is chosen to be readable on both. Nothing is loaded,
no script, no font: a page may show it as an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from benchmarks.report import amount

WIDTH, LABELS, BARS, ROW, BAR = 820, 270, 330, 22, 13
OURS, PEER, LIMIT, TEXT, LINE = "#3987e5", "#98a1ab", "#c98500", "#768390", "#8b949e"
"""Ours, a peer, a limit that no store can pass (a bare loop); words; whiskers."""
LEGEND = ((OURS, "ours"), (PEER, "peers"), (LIMIT, "a bare loop"))


class Bar(NamedTuple):
    """`note` stands behind the value. `colour` is OURS, PEER or LIMIT."""

    label: str
    value: float
    low: float
    high: float
    colour: str
    note: str = ""


class Group(NamedTuple):
    """Bars under a heading, on a scale of their own: 64 coroutines must not press the lone writers of another group against the axis."""

    heading: str
    bars: Sequence[Bar]


def chart(title: str, subtitle: str, groups: Sequence[Group]) -> str:
    """The chart as an SVG document. A bar is the median, its whisker goes from the least to the most of the rounds.

    A scale ends at the largest median of the group and a little more: one wild round must not shrink all bars; a whisker that goes on
    beyond the edge has no stop there.
    """
    lines, y = [_words(0, 16, title, 15, bold=True), _words(0, 34, subtitle, 12)], 46
    used = {bar.colour for group in groups for bar in group.bars}
    for place, (colour, word) in enumerate((colour, word) for colour, word in LEGEND if colour in used and len(used) > 1):
        x = LABELS + BARS + 10 + 70 * place
        lines += [f'<rect x="{x}" y="7" width="10" height="10" rx="2" fill="{colour}"/>', _words(x + 15, 16, word, 12)]
    for group in groups:
        if group.heading:
            y += 18
            lines.append(_words(0, y, group.heading, 12, bold=True))
            y += 6
        top = max((bar.value for bar in group.bars), default=0.0) * 1.15 or 1.0
        for bar in group.bars:
            lines += _bar(bar, y, top, amount(bar.value))
            y += ROW
    height = y + 6
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
    )
    return "\n".join([head, f"<title>{escape(title)}</title>", *lines, "</svg>", ""])


def _bar(bar: Bar, y: int, top: float, value: str) -> list[str]:
    def x(at: float) -> float:
        return round(LABELS + BARS * min(at, top) / top, 1)

    middle, width = y + ROW // 2, max(1.0, x(bar.value) - LABELS)
    lines = [
        _words(LABELS - 8, middle + 4, bar.label, 12, anchor="end", bold=bar.colour == OURS),
        f'<rect x="{LABELS}" y="{middle - BAR // 2}" width="{width:.1f}" height="{BAR}" rx="2" fill="{bar.colour}"/>',
    ]
    if bar.high > bar.low:
        lines.append(f'<path d="M{x(bar.low)} {middle}H{x(bar.high)}" stroke="{LINE}" stroke-width="1.5" opacity="0.9"/>')
        ends = [bar.low, bar.high] if bar.high <= top else [bar.low]
        lines += [f'<path d="M{x(end)} {middle - 3}v6" stroke="{LINE}" stroke-width="1.5" opacity="0.9"/>' for end in ends]
    note = f" · {bar.note}" if bar.note else ""
    lines.append(_words(LABELS + BARS + 10, middle + 4, value + note, 12))
    return lines


def _words(x: float, y: float, text: str, size: int, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{TEXT}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
