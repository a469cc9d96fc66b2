"""eventlog: an append-only event log that is the sole authority. `from eventlog import EventLog`."""

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
