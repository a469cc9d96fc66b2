"""What is said to an agent: the framed payload, or, where that is too large for a harness, a framed pointer to a copy beside the log."""

from __future__ import annotations

import os

from eventlog.recovery.harness.framing import fits, frame, frame_startup

__all__ = ["Carrier"]


class Carrier:
    """The texts of one log's deliveries. The intent keeps the whole payload, always: a pointer and its file can be made again from it.

    The file lies in `blobs/` of the log, named by its SHA-256, mode 0600, and is on disk before its name is told to anybody.
    """

    def __init__(self, log_path: str | os.PathLike[str]) -> None:
        self._blobs = os.path.join(os.path.realpath(log_path), "blobs")

    def text(self, intent: str, payload: str) -> str:
        """The text that a blocked call is answered with: for one payload and one log always the same. Raises OSError."""
        whole = frame(intent, payload)
        return whole if fits(whole) else frame(intent, payload, self._copy(payload))

    def startup(self, intent: str, payload: str, startup_id: str) -> str:
        """The first input of a replacement. Raises OSError."""
        whole = frame_startup(intent, payload, startup_id)
        return whole if fits(whole) else frame_startup(intent, payload, startup_id, self._copy(payload))

    def _copy(self, payload: str) -> str:
        from pathlib import Path

        from eventlog.recovery.blobs import Blobs

        blobs = Blobs(Path(self._blobs).parent)
        return str(blobs.path / str(blobs.put(payload.encode())["sha256"]))
