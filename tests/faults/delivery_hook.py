"""The hooks that the process tests run as children on one log, as a harness would: `pre`, `batch`, `prompt`, `stop`.

`python delivery_hook.py LOG WHAT PROCESS CALL [MORE]`: `pre` prints {"deny": text} or {"allow": true}, and the mark follows the output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from eventlog import EventLog, crashpoints
from eventlog.recovery import Caller, Deliveries, Reconciled, SyncTask
from eventlog.recovery.harness import Adapter, Capabilities


class Stdout:
    def allow(self) -> None:
        self._say({"allow": True})

    def deny(self, text: str) -> None:
        self._say({"deny": text})

    def _say(self, answer: dict[str, object]) -> None:
        crashpoints.reach("before-stdout")
        sys.stdout.write(json.dumps(answer))
        sys.stdout.flush()
        crashpoints.reach("after-stdout")


def reconcile(log_path: str) -> object:
    """Change a file outside the log, as a reconciler does: repeatable, and counted."""

    def run(task: SyncTask) -> Reconciled:
        with Path(log_path).with_name("reconciled").open("a") as runs:
            runs.write(f"{task.intent}\n")
        return Reconciled("op", "commit", f"{task.intent}: {', '.join(task.triggers)} \u2028 é", "anchor")

    return run


def hook(log_path: str, what: str, process: str, call: str = "", more: str = "") -> None:
    with EventLog.open(log_path) as log:
        desk = Deliveries(log, reconcile(log_path), wait_s=20)  # type: ignore[arg-type]
        adapter = Adapter(desk, Capabilities(True, True, True))
        caller = Caller("web", process, prompt=f"{process}-prompt", session="one conversation")
        if what == "pre":
            adapter.pre_tool_use(caller, call, Stdout())
        elif what == "batch":
            adapter.post_tool_batch(caller, json.loads(more))
        elif what == "prompt":
            adapter.user_prompt_submit(caller, more)
        elif what == "stop":
            desk.turn_observed(caller, "stop")
        elif what == "detect":
            desk.detect("web", base=call, triggers=[call])


if __name__ == "__main__":
    hook(*sys.argv[1:])
