"""docs/testing.md: every Python example in it is run, in order, in one fresh directory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_PAGE = Path(__file__).parent.parent / "docs" / "testing.md"


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "docs"}
    examples = re.findall(r"^```python\n(.*?)^```", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) == 7
    for example in examples:
        title = re.match(r"# (\w+\.py):", example)
        if title:
            Path(title[1]).write_text(example)
        else:
            exec(compile(example, f"{_PAGE.name}: {example[:40]!r}", "exec"), names)
