"""docs/format.md says what the code writes, to the byte; and logs of released versions stay readable."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from eventlog import Event, EventLog, frames, segments
from eventlog.audit import verify
from eventlog.payload import encode, mask_of

DOCUMENT = Path(__file__).parent.parent / "docs" / "format.md"
GOLDEN = Path(__file__).parent / "golden"


def test_the_worked_example_is_what_the_code_writes() -> None:
    rows = re.findall(r"^ {4}([0-9a-f]{4})  ((?:[0-9a-f]{2} ?){16})$", DOCUMENT.read_text(), re.MULTILINE)
    assert [int(offset, 16) for offset, _ in rows] == list(range(0, 0xC0, 16))
    documented = bytes.fromhex("".join(row for _, row in rows))
    header = segments.pack_header(bytes(range(16)), 1, segments.NO_HASH)
    salt = segments.parse_header(header, bytes(range(16)), 1, Path("example")).salt
    draft = encode(Event("order.placed", {"total": 10}, "order-17"), 1000)
    frame = frames.encode(draft, 1, len(header), 1_764_504_000_000_000_000, frames.EVENTS, salt)
    assert header + frame == documented


def test_the_numbers_in_the_tables_are_those_of_the_code() -> None:
    text = DOCUMENT.read_text()
    assert segments.HEADER_BYTES == 80
    assert frames.FRAME_HEADER_BYTES == 64
    assert segments.FOOTER_BYTES == 24
    assert f"`{frames.MAGIC.hex(' ')}`" in text
    assert (frames.EVENTS, frames.MARK, frames.SEAL) == (1, 2, 3)
    assert mask_of("order.placed") == 1 << 24, "masks are part of the format: readers of other versions rely on the bit"


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))
def test_golden_logs_stay_readable(name: str, tmp_path: Path) -> None:
    """A log as a released version wrote it: read, verified against its head, and continued."""
    path = tmp_path / name
    shutil.copytree(GOLDEN / name, path)
    expected = (GOLDEN / f"{name}.expected.jsonl").read_bytes().rstrip(b"\n").split(b"\n")
    head = (GOLDEN / f"{name}.head").read_text().strip()
    from orjson import loads

    with EventLog.open(path, read_only=True) as log:
        found = [[event.seq, event.type, event.stream, event.data] for event in log.read()]
        assert log.head.text == head
        for kind in {row[1] for row in found}:  # by the index, where there is one
            assert [event.seq for event in log.read(types={kind})] == [row[0] for row in found if row[1] == kind]
    assert found == [loads(line) for line in expected]
    seq, digest = head.split(":")
    assert verify(path, expect=(int(seq), digest)).ok
    path.chmod(0o700)
    with EventLog.open(path) as log:
        assert log.commit(Event("later", {})).first == len(found) + 1
    assert verify(path, expect=(int(seq), digest)).ok
