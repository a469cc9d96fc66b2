"""The Prometheus text format, version 0.0.4: metric families in, text out.

The format has its own escapes, in labels (backslash, quote, line end) and in help texts; whatever else a terminal should not see is
replaced by the caller's `clean`, before that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Family", "exposition", "family"]

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_KINDS = ("counter", "gauge")
Sample = tuple[Mapping[str, str], float]


class Family(NamedTuple):
    """One metric: its samples differ in their labels. A counter ends in `_total`."""

    name: str
    kind: str
    help: str
    samples: Sequence[Sample]


def family(name: str, kind: str, help_: str, samples: Sequence[Sample]) -> Family:
    """Raises ValueError for a name, kind or label that the format does not know, or a sample that is there twice."""
    if not _NAME.match(name) or kind not in _KINDS:
        raise ValueError(f"{name!r} of kind {kind!r}: not a metric")
    if (kind == "counter") != name.endswith("_total"):
        raise ValueError(f"{name}: counters end in _total, and nothing else does")
    for labels, _ in samples:
        for label in labels:
            if not _NAME.match(label) or label.startswith("__"):
                raise ValueError(f"{name}: {label!r} is not a label")
    if len({tuple(sorted(labels.items())) for labels, _ in samples}) != len(samples):
        raise ValueError(f"{name}: two samples with the same labels")
    return Family(name, kind, help_, samples)


def exposition(families: Iterable[Family], clean: Callable[[str], str] = str) -> str:
    """The text, a line end behind each line. `clean` is applied to label values, and has to keep different ones different."""
    lines: list[str] = []
    for one in families:
        lines.append(f"# HELP {one.name} {_help(one.help)}")
        lines.append(f"# TYPE {one.name} {one.kind}")
        lines += [f"{one.name}{_labels(labels, clean)} {_value(value)}" for labels, value in one.samples]
    return "".join(f"{line}\n" for line in lines)


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _labels(labels: Mapping[str, str], clean: Callable[[str], str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_quoted(clean(value))}"' for name, value in labels.items()) + "}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _value(value: float) -> str:
    return repr(float(value)) if isinstance(value, float) and not value.is_integer() else str(int(value))
