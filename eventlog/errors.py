"""Every error that the log raises, as a tree.

    EventLogError
    ├── PayloadError (ValueError)            an event that would not come back equal; nothing was written
    ├── Conflict                             expect= did not hold; nothing was written
    ├── CommitError (OSError)                the disk or the kernel refused
    │   ├── NotWritten                       the commit is not in the log and never will be
    │   └── OutcomeUnknown                   it may be in the log: open the log again and look
    ├── LogPoisoned                          an earlier failure made this handle useless: open the log again
    ├── LockTimeout (TimeoutError)           another writer held the lock for longer than lock_timeout
    ├── Unreadable (OSError)                 bytes could not be read, or not be proved durable
    ├── Corrupt                              stored bytes are not what was written
    ├── UnsupportedFormat                    written by a newer version
    ├── LogNotFound (FileNotFoundError)      there is no log at that path
    ├── UnsafeLog (PermissionError)          owner, mode or a link makes it unsafe to write here
    ├── LogClosed (ValueError)               the handle was closed, or belongs to the parent of this process
    └── ReadOnly (PermissionError)           a write through a read-only handle

Each message is one line: the file, the offset or field, and what to do.
"""

from __future__ import annotations

from eventlog.light import TypeVar

__all__ = [
    "CommitError",
    "Conflict",
    "Corrupt",
    "EventLogError",
    "LockTimeout",
    "LogClosed",
    "LogNotFound",
    "LogPoisoned",
    "NotWritten",
    "OutcomeUnknown",
    "PayloadError",
    "ReadOnly",
    "Unreadable",
    "UnsafeLog",
    "UnsupportedFormat",
]


class EventLogError(Exception):
    """Whatever the log raises on purpose."""

    def __str__(self) -> str:
        # OSError would print its errno tuple; ours print the one line that they were given.
        return str(self.args[0]) if self.args else type(self).__name__


E = TypeVar("E", bound=EventLogError)


def again(error: E) -> E:
    """A fresh exception of the same kind and words, caused by `error`: one instance must not be raised in several threads."""
    copy = type(error).__new__(type(error))
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error
    return copy


class PayloadError(EventLogError, ValueError):
    """An event that the log would not give back equal. `path` leads to the value; nothing was written."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why

    def __reduce__(self) -> tuple[type[PayloadError], tuple[str, str]]:
        return type(self), (self.path, self.why)


class Conflict(EventLogError):
    """An event came to a watched stream after the position that the caller had seen. Nothing was written."""


class CommitError(EventLogError, OSError):
    """The commit failed below us. `cause_errno` is the number that the system gave, or None."""

    def __init__(self, message: str, cause: OSError | None = None) -> None:
        super().__init__(message)
        self.cause_errno = cause.errno if cause is not None else None


class NotWritten(CommitError):
    """The commit is not in the log, and never appears later: it is safe to send it again."""


class OutcomeUnknown(CommitError):
    """The commit may be in the log or not: open the log again and look before you send it again."""


class LogPoisoned(EventLogError):
    """This handle saw a failure after which nothing that it writes could be trusted; a fresh open re-reads the disk."""


class LockTimeout(EventLogError, TimeoutError):
    """The writer lock was not to be had in time; nothing was written. A lock is never broken: see who holds it."""


class Unreadable(EventLogError, OSError):
    """The system would not give the bytes, or would not say that they are durable."""


class Corrupt(EventLogError):
    """Stored bytes are not what was written.

    `segment` is the number in the file's name (0: not about one segment), `offset` the byte where it begins, `seq` the first event
    that cannot be trusted.
    """

    def __init__(self, message: str, *, segment: int = 0, offset: int = 0, seq: int = 0) -> None:
        super().__init__(message)
        self.segment = segment
        self.offset = offset
        self.seq = seq


class UnsupportedFormat(EventLogError):
    """The log was written by a newer version of this library; nothing was touched."""


class LogNotFound(EventLogError, FileNotFoundError):
    """No log at that path."""


class UnsafeLog(EventLogError, PermissionError):
    """Somebody else could change this log under us; nothing was touched."""


class LogClosed(EventLogError, ValueError):
    """The handle is closed, or was inherited through fork by a process that must not use it."""


class ReadOnly(EventLogError, PermissionError):
    """The handle was opened with read_only=True."""
