"""What a log is made of, in numbers: the values of `eventlog stats`, as JSON and as metrics. Pure: a survey and two states in."""

from __future__ import annotations

from typing import Any, NamedTuple

from eventlog.projections.counts import Counts
from eventlog.projections.delivery_display import ThreadStatus, thread_status
from eventlog.projections.delivery_words import SyncState
from eventlog.projections.exposition import Family, family
from eventlog.projections.intent import IntentState
from eventlog.projections.status import Status
from eventlog.survey import Survey

__all__ = ["TYPES_MAX", "Stats", "families", "stats_object", "stats_of", "top"]

TYPES_MAX = 1000
"""Metrics name each type of event, unless there are more than so many: a label that grows without end is a fault of its own."""


class Stats(NamedTuple):
    """All numbers at one head. Ages are seconds at `now_ns`; those of what is not there are None."""

    log: str
    path: str
    now_ns: int
    survey: Survey
    types: dict[str, int]
    streams: dict[str, int]
    intents: dict[str, int]
    deliveries: dict[str, int]
    threads: dict[str, int]
    open_intents: int
    oldest_open_ns: int | None
    waiting: int
    oldest_waiting_ns: int | None

    def age_s(self, since_ns: int | None) -> float | None:
        """Seconds since then; a clock that was put back makes none negative."""
        return None if since_ns is None else max(0, self.now_ns - since_ns) / 1e9

    @property
    def bytes_per_event(self) -> float | None:
        """Bytes of commits, headers and padding included, for each event."""
        return self.survey.commit_bytes / self.survey.events if self.survey.events else None

    @property
    def events_per_commit(self) -> float | None:
        return self.survey.events / self.survey.commits if self.survey.commits else None


def stats_of(log: str, path: str, now_ns: int, survey: Survey, status: Status, counts: Counts) -> Stats:
    """`survey` and both states have to be of the same head."""
    deliveries = dict.fromkeys((state.value for state in SyncState), 0)
    for intent in status.deliveries.intents.values():
        deliveries[intent.state.value] += 1
    threads = dict.fromkeys((one.value for one in ThreadStatus), 0)
    for name in status.deliveries.threads:
        threads[thread_status(status.deliveries, name).value] += 1
    open_ = status.effects.open
    oldest = status.effects.intents[next(iter(open_.values()))].pending_ns if open_ else None
    waiting = status.deliveries.unresolved()
    return Stats(
        log,
        path,
        now_ns,
        survey,
        dict(counts.types),
        dict(counts.streams),
        {state.value: status.effects.by_state[state] for state in IntentState},
        deliveries,
        threads,
        len(open_),
        oldest,
        len(waiting),
        min((one.detected_ns for one in waiting), default=None),
    )


def top(counts: dict[str, int], most: int) -> list[tuple[str, int]]:
    """The names with the largest counts, by name among equals."""
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:most]


def stats_object(stats: Stats, most: int) -> dict[str, Any]:
    """The JSON object of `eventlog stats --json`; `most` types and streams are named, and counted all."""
    survey = stats.survey
    largest = survey.largest
    return {
        "path": stats.path,
        "log": stats.log,
        "now_ns": stats.now_ns,
        "head": survey.head,
        "durable": survey.durable,
        "events": survey.events,
        "commits": survey.commits,
        "events_per_commit": stats.events_per_commit,
        "bytes_per_event": stats.bytes_per_event,
        "bytes": survey.bytes,
        "commit_bytes": survey.commit_bytes,
        "largest_commit": largest._asdict() if largest is not None else None,
        "segments": {"sealed": survey.sealed, "open": survey.segments - survey.sealed},
        "marks": survey.marks,
        "seals": survey.seals,
        "first_ns": survey.first_ns,
        "last_ns": survey.last_ns,
        "types": {"count": len(stats.types), "top": dict(top(stats.types, most))},
        "streams": {"count": len(stats.streams), "top": dict(top(stats.streams, most))},
        "intents": stats.intents,
        "open_intents": {"count": stats.open_intents, "oldest_ns": stats.oldest_open_ns, "oldest_s": stats.age_s(stats.oldest_open_ns)},
        "deliveries": stats.deliveries,
        "waiting": {"count": stats.waiting, "oldest_ns": stats.oldest_waiting_ns, "oldest_s": stats.age_s(stats.oldest_waiting_ns)},
        "threads": stats.threads,
    }


def families(stats: Stats) -> list[Family]:
    """The metrics of `eventlog stats --prometheus`. Each sample has the label `log`: the files of several logs can lie side by side."""
    survey = stats.survey
    log = {"log": stats.log}
    largest = survey.largest

    def one(name: str, kind: str, help_: str, value: float | None, **labels: str) -> Family:
        return family(name, kind, help_, [] if value is None else [({**log, **labels}, value)])

    def each(name: str, help_: str, label: str, values: dict[str, int], kind: str = "gauge") -> Family:
        return family(name, kind, help_, [({**log, label: key}, value) for key, value in values.items()])

    found = [
        one("eventlog_info", "gauge", "The log; its value is always 1.", 1, path=stats.path),
        one("eventlog_head_seq", "gauge", "Number of the last event.", survey.head),
        one("eventlog_durable_seq", "gauge", "Number of the last event that the writers say is on disk.", survey.durable),
        one("eventlog_events_total", "counter", "Events in the log.", survey.events),
        one("eventlog_commits_total", "counter", "Commits in the log.", survey.commits),
        one("eventlog_commit_bytes_total", "counter", "Bytes of all commits, frame headers included.", survey.commit_bytes),
        one("eventlog_marks_total", "counter", "Frames that only say how far the log is on disk.", survey.marks),
        one("eventlog_size_bytes", "gauge", "Size of all segment files, reserved space included.", survey.bytes),
        each(
            "eventlog_segments",
            "Segment files.",
            "state",
            {"sealed": survey.sealed, "open": survey.segments - survey.sealed},
        ),
        one("eventlog_largest_commit_bytes", "gauge", "Bytes of the largest commit.", largest.bytes if largest is not None else None),
        one("eventlog_first_commit_timestamp_seconds", "gauge", "Time of the first commit.", _seconds(survey.first_ns)),
        one("eventlog_last_commit_timestamp_seconds", "gauge", "Time of the last commit.", _seconds(survey.last_ns)),
        one("eventlog_types", "gauge", "Different types of events.", len(stats.types)),
        one("eventlog_streams", "gauge", "Different streams.", len(stats.streams)),
    ]
    if len(stats.types) <= TYPES_MAX:
        found.append(each("eventlog_type_events_total", "Events of a type.", "type", dict(sorted(stats.types.items())), "counter"))
    found += [
        each("eventlog_intents", "Effect intents by state.", "state", stats.intents),
        one("eventlog_open_intents", "gauge", "Effect intents without an end.", stats.open_intents),
        one(
            "eventlog_oldest_open_intent_timestamp_seconds",
            "gauge",
            "When the oldest effect intent without an end was recorded; no sample when there is none.",
            _seconds(stats.oldest_open_ns),
        ),
        one(
            "eventlog_oldest_open_intent_age_seconds",
            "gauge",
            "Age of the oldest effect intent without an end, at the time of this output; 0 when there is none.",
            stats.age_s(stats.oldest_open_ns) or 0,
        ),
        each("eventlog_deliveries", "Sync intents by state.", "state", stats.deliveries),
        one("eventlog_deliveries_waiting", "gauge", "Sync intents that are not acknowledged or superseded.", stats.waiting),
        one(
            "eventlog_oldest_waiting_delivery_timestamp_seconds",
            "gauge",
            "When the oldest waiting sync intent was detected; no sample when there is none.",
            _seconds(stats.oldest_waiting_ns),
        ),
        one(
            "eventlog_oldest_waiting_delivery_age_seconds",
            "gauge",
            "Age of the oldest waiting sync intent, at the time of this output; 0 when there is none.",
            stats.age_s(stats.oldest_waiting_ns) or 0,
        ),
        each("eventlog_threads", "Threads of agents by state.", "state", stats.threads),
    ]
    return found


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9
