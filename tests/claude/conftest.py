"""Fixtures: a real Claude Code of each version, and a laboratory around it. What they use is imported by name."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "examples" / "worktrees")]

from lab import Lab  # noqa: E402  the path comes first
from programs import CLAUDE, OLD_CLAUDE, find  # noqa: E402


@pytest.fixture(params=[CLAUDE, OLD_CLAUDE])
def claude(request: pytest.FixtureRequest) -> Path:
    """The native binary. Skips, with the reason, where it cannot be had."""
    program = find(request.param)
    if program.path is None:
        pytest.skip(program.why)
    return program.path


@pytest.fixture
def lab(claude: Path, tmp_path: Path) -> Iterator[Lab]:
    """A laboratory whose test has to end with `audit`."""
    with Lab(tmp_path, claude) as laboratory:
        yield laboratory
        assert laboratory.audited, "this test never held the log against what the model was given"
