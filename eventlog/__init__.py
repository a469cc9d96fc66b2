"""eventlog: an append-only event log that is the sole authority. `from eventlog import EventLog`."""

from eventlog.light import TYPE_CHECKING, of

if TYPE_CHECKING:
    from eventlog.errors import (
        CommitError,
        Conflict,
        Corrupt,
        EventLogError,
        LockTimeout,
        LogClosed,
        LogNotFound,
        LogPoisoned,
        NotWritten,
        OutcomeUnknown,
        PayloadError,
        ReadOnly,
        Unreadable,
        UnsafeLog,
        UnsupportedFormat,
    )
    from eventlog.events import Commit, Durability, Event, Expect, Head, Recorded, SegmentInfo
    from eventlog.lock import Owner
    from eventlog.log import EventLog

__all__ = [
    "Commit",
    "CommitError",
    "Conflict",
    "Corrupt",
    "Durability",
    "Event",
    "EventLog",
    "EventLogError",
    "Expect",
    "Head",
    "LockTimeout",
    "LogClosed",
    "LogNotFound",
    "LogPoisoned",
    "NotWritten",
    "OutcomeUnknown",
    "Owner",
    "PayloadError",
    "ReadOnly",
    "Recorded",
    "SegmentInfo",
    "Unreadable",
    "UnsafeLog",
    "UnsupportedFormat",
]

__version__ = "0.1.0"

# Loaded when first asked for: a process that lives for a moment decides before that how it is to be done (see jsonroad).
_HOMES = {
    "Commit": "eventlog.events",
    "CommitError": "eventlog.errors",
    "Conflict": "eventlog.errors",
    "Corrupt": "eventlog.errors",
    "Durability": "eventlog.events",
    "Event": "eventlog.events",
    "EventLog": "eventlog.log",
    "EventLogError": "eventlog.errors",
    "Expect": "eventlog.events",
    "Head": "eventlog.events",
    "LockTimeout": "eventlog.errors",
    "LogClosed": "eventlog.errors",
    "LogNotFound": "eventlog.errors",
    "LogPoisoned": "eventlog.errors",
    "NotWritten": "eventlog.errors",
    "OutcomeUnknown": "eventlog.errors",
    "Owner": "eventlog.lock",
    "PayloadError": "eventlog.errors",
    "ReadOnly": "eventlog.errors",
    "Recorded": "eventlog.events",
    "SegmentInfo": "eventlog.events",
    "Unreadable": "eventlog.errors",
    "UnsafeLog": "eventlog.errors",
    "UnsupportedFormat": "eventlog.errors",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = of(home, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
