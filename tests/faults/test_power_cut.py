"""Real power cuts, a really failing write-back and a really full disk: nothing acknowledged is lost (P1, P2, P6, P7,
P17)."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).parent / "powercut.py"


def in_private_mounts(*arguments: str, needs: str = "mount") -> dict[str, Any]:
    """Run the script as root in its own mount namespace, or skip and say why that is impossible here."""
    if os.geteuid() != 0:
        pytest.skip("mounting a loop device needs root")
    if shutil.which("unshare") is None or shutil.which(needs) is None:
        pytest.skip(f"unshare or {needs} is not installed")
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "t", "/mnt"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"mounting is refused here: {tried.stderr.strip()}")
    if arguments[0] != "full" and subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode:
        pytest.skip("no loop device to be had here")
    command = ["unshare", "-m", sys.executable, str(_SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    result: dict[str, Any] = json.loads(done.stdout)
    print(arguments, result)
    return result


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_power_cuts_under_four_writing_processes(kind: str) -> None:
    cuts = int(os.environ.get("EVENTLOG_TEST_POWER_CUTS", "20"))
    seed = random.randrange(10**6)
    result = in_private_mounts("cut", kind, str(cuts), str(seed), needs=f"mkfs.{kind}")
    assert result["lost"] == 0
    assert result["acknowledged"] > cuts, "hardly anything was acknowledged before the cuts: the test proves nothing"


def test_a_failed_sync_of_one_process_harms_no_commit_of_another() -> None:
    result = in_private_mounts("fsyncgate", needs="mkfs.ext4")
    assert result["error"] == "OutcomeUnknown"
    assert result["poisoned"]
    assert result["lost"] == []
    assert not result["never"]
    assert result["acknowledged"] > 5


def test_a_full_disk_harms_nothing_and_the_handle_goes_on() -> None:
    result = in_private_mounts("full")
    assert result["lost"] == 0
    assert result["refused"] > 0
