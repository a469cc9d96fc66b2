"""What the documents show is run: each Python block, in a fresh process, in an empty directory; and each link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN_ELSEWHERE = {"testing.md", "effects.md"}  # test_docs_testing.py, test_docs_effects.py
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    pages = [path for path in DOCUMENTS if path.name not in RUN_ELSEWHERE]
    return [(f"{path.name}:{number}", code) for path in pages for number, code in enumerate(BLOCK.findall(path.read_text()), 1)]


@pytest.mark.parametrize(("name", "code"), blocks(), ids=[name for name, _ in blocks()])
def test_python_examples_run(name: str, code: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    for _ in range(2):  # the second run finds the log that the first one left
        done = subprocess.run([sys.executable, "-W", "error", script.name], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{name}: {done.stderr}"


def test_the_readme_example_prints_the_recorded_receipt_again(tmp_path: Path) -> None:
    code = BLOCK.findall((ROOT / "README.md").read_text())[0]
    (tmp_path / "example.py").write_text(code)
    outputs = [
        subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        for _ in range(2)
    ]
    assert outputs == ["{'receipt': 'paid 10'}"] * 2


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_decision_table_of_the_document_is_that_of_the_code() -> None:
    from eventlog.tail import TABLE

    text = (ROOT / "docs" / "durability.md").read_text()
    section = text[text.index("| row | when |") : text.index("7. `fdatasync` the segment")]
    rows = [line.split("|")[1].strip() for line in section.splitlines()[2:] if line.startswith("|")]
    assert rows == [row.name for row in TABLE]


def test_nothing_that_is_committed_names_a_registry_or_a_lock_file() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("no git checkout here: what is tracked cannot be told")
    names = tracked.stdout.split()
    assert not [name for name in names if name.endswith((".lock", "-lock.json"))]
    registries = ["pypi" + ".org", "registry.npmjs" + ".org", "pythonhosted" + ".org"]
    for name in names:
        path = ROOT / name
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".txt", "", ".json", ".yml"}:
            text = path.read_text(errors="replace")
            assert not [registry for registry in registries if registry in text], name
