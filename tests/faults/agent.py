"""A real process for the strace sweeps: open, commit over a rotation, close; says on stdout what became of each
commit."""

from __future__ import annotations

import sys

from eventlog import Durability, Event, EventLog, EventLogError, NotWritten, OutcomeUnknown


def main(path: str, count: int) -> None:
    log = EventLog.open(path, segment_bytes_max=4096, batch_window_ms=600_000)
    print(f"HEAD {int(log.head)}", flush=True)
    start = 1 + max((e.data["n"] for e in log.read()), default=-1)
    for number in range(start, start + count):
        events = [Event("t", {"n": number, "i": i, "of": 2, "text": "x" * 700}) for i in range(2)]
        lazy = number % 4 == 3
        try:
            log.commit(events, Durability.BATCHED if lazy else Durability.IMMEDIATE)
            print(f"{'LAZY' if lazy else 'ACK'} {number}", flush=True)
        except NotWritten:
            print(f"NEVER {number}", flush=True)
        except OutcomeUnknown:
            print(f"MAYBE {number}", flush=True)
        except EventLogError as error:
            print(f"NEVER {number} {type(error).__name__}", flush=True)
    log.close()
    print("CLOSED", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
