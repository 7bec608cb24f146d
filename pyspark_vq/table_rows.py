"""The rows of the tables ``vq.lag``, ``vq.topics``, ``vq.brokers`` and ``vq.audit``. Pure.

Each table has a schema and a function that makes its rows of what ``vq.admin`` returns. What is not
known is null; where a broker or ZooKeeper did not tell it, ``error`` says why. ``cells.fitting``
makes the numbers and texts fit into Spark.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, Final

from pyspark_vq.cells import moment
from vq.admin import (
    ArchiveRun,
    BrokerReport,
    DeletedTopic,
    GroupDescription,
    GroupProgress,
    LagThresholds,
    PartitionEnds,
    TopicSummary,
    UncleanElection,
)

Row = tuple[Any, ...]

#: Verdicts of ``vq.lag`` go by the lag report's defaults.
THRESHOLDS: Final = LagThresholds()

LAG_SCHEMA: Final = (
    "`group` string, topic string, `partition` int, owner string, `start` bigint, `end` bigint, "
    "committed bigint, lag_bytes bigint, lag_messages bigint, lag_seconds double, "
    "verdict string, cause string, error string, `filter` string, number bigint, "
    "end_number bigint, committed_is_copy boolean"
)
TOPICS_SCHEMA: Final = (
    "topic string, id string, state string, partitions int, open map<string,int>, "
    "settings map<string,string>, bytes bigint, silent_partitions int, created timestamp, "
    "created_by string, deleted timestamp, deleted_by string, error string"
)
BROKERS_SCHEMA: Final = (
    "`group` string, node string, address string, role string, in_sync boolean, epoch bigint, "
    "pool string, draining boolean, version string, uptime_s double, partitions int, "
    "failed_partitions int, damaged_ranges int, lag_bytes bigint, lag_seconds double, "
    "disks array<struct<directory:string,level:string,bytes_free:bigint,bytes_total:bigint,"
    "full_in_hours:double>>, problems array<string>, error string"
)
AUDIT_SCHEMA: Final = (
    "time timestamp, kind string, who string, topic string, `group` string, node string, "
    "detail string, error string"
)


def lag_rows(found: GroupDescription, now_ms: int) -> Iterator[Row]:
    """Return the rows of one consumer group, as the lag report judges them from one look."""
    for each in found.partitions:
        verdict, cause = found.verdict_on(each, THRESHOLDS, now_s=now_ms / 1000)
        lags: Row = (each.lag_bytes, each.lag_messages, each.lag_s)
        number = each.number
        if cause == "broadcasting":  # each member has progress of its own
            lags, number = (None,) * 3, None
        yield (
            found.group,
            each.topic,
            each.partition,
            each.owner,
            each.start,
            each.end,
            each.committed,
            *lags,
            verdict,
            cause,
            each.stopped or _why_no_end(each),
            each.filter,
            number,
            each.end_number,
            each.committed_is_copy,
        )
    for topic in found.deleted_topics:
        error = f"there is no topic {topic!r}"
        yield _without_partition(found.group, topic, "topic_deleted", error)
    if not found.topics and not found.deleted_topics:
        yield _without_partition(found.group, None, "no_topics", "the group reads no topic")


def _why_no_end(found: GroupProgress) -> str | None:
    """Return why the end of a partition is not known; None: it is."""
    if found.end is not None:
        return None
    return "the broker does not answer" if found.readable else "the topic is not readable"


def _without_partition(group: str, topic: str | None, cause: str, error: str) -> Row:
    return (group, topic, *(None,) * 8, "unknown", cause, error, None, None, None, None)


def group_error_row(group: str, error: str) -> Row:
    """Return the row of a group that cannot be read."""
    return _without_partition(group, None, "group_unreadable", error)


def topic_row(
    found: TopicSummary, ends: Mapping[int, PartitionEnds | None] | None, error: str | None
) -> Row:
    """Return the row of a topic; ``ends`` is None where ``error`` says that they are not known."""
    known = [each for each in (ends or {}).values() if each is not None]
    silent = None if ends is None else len(ends) - len(known)
    if silent and error is None:
        error = f"the brokers of {silent} partitions do not answer"
    size = None if ends is None or silent else sum(each.latest - each.earliest for each in known)
    origin = found.origin
    return (
        found.name,
        found.id,
        "ready",
        found.settings.partitions,
        dict(found.open),
        settings_of(found.settings),
        size,
        silent,
        None if origin is None else moment(origin.time_ms),
        None if origin is None else f"{origin.client}@{origin.host}",
        None,
        None,
        error,
    )


def topic_error_row(name: str, error: str) -> Row:
    """Return the row of a topic that cannot be read in ZooKeeper."""
    return (name, None, "unreadable", *(None,) * 9, error)


def deleted_topic_row(found: DeletedTopic) -> Row:
    """Return the row of a topic that is deleted and can be brought back."""
    deletion = found.deletion
    who = f"{deletion.client}@{deletion.host}"
    head = (found.name, found.id, "deleted", found.partitions)
    return (*head, *(None,) * 6, moment(deletion.time_ms), who, None)


def settings_of(settings: Any) -> dict[str, str]:
    """Return the settings that are not null, as text: ``true``, ``72``, ``sync``."""
    found = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, bool):
            found[field.name] = str(value).lower()
        elif value is not None:
            found[field.name] = str(value.value if isinstance(value, Enum) else value)
    return found


def broker_row(found: BrokerReport) -> Row:
    """Return the row of a broker; one that does not answer has what ZooKeeper says."""
    node, status = found.node, found.status
    answers = status is not None
    return (
        found.group.group,
        found.name or None,
        None if node is None else str(node.address),
        found.role,
        found.in_sync,
        found.epoch,
        found.group.pool,
        found.group.draining,
        None if node is None else node.version or None,
        None if status is None else float(status.uptime_s),
        None if status is None else status.partitions,
        sum(each.failed for each in found.bad_partitions) if answers else None,
        found.damaged_ranges if answers else None,
        found.lag_bytes,
        found.lag_s,
        [
            (each.directory, each.level, each.bytes_free, each.bytes_total, each.full_in_hours)
            for each in found.disks
        ]
        if answers
        else None,
        found.problems if answers else None,
        found.error or None,
    )


def audit_rows(
    topics: Iterable[TopicSummary],
    deleted: Iterable[DeletedTopic],
    runs: Iterable[ArchiveRun],
    elections: Mapping[str, Sequence[UncleanElection]],
) -> list[Row]:
    """Return what ZooKeeper remembers of acts that changed something, the oldest first."""
    rows: list[Row] = []
    for topic in topics:
        origin = topic.origin
        if origin is not None:
            who = f"{origin.client}@{origin.host}"
            how = "by a producer's first message" if origin.auto else "by a command or a program"
            rows.append(_act(origin.time_ms, "topic_created", who, topic=topic.name, detail=how))
    for gone in deleted:
        deletion = gone.deletion
        who = f"{deletion.client}@{deletion.host}"
        left = f"can be brought back for {gone.left_s / 3_600:.1f} hours"
        rows.append(_act(deletion.time_ms, "topic_deleted", who, topic=gone.name, detail=left))
    rows += [_of_run(each) for each in runs]
    for group, found in elections.items():
        for each in found:
            lost = ", ".join(each.topics) or "no topic"
            detail = (
                f"after epoch {each.epoch}, without {', '.join(each.insync)}; messages may be "
                f"lost of: {lost}"
            )
            kind = "unclean_election"
            rows.append(
                _act(each.time_ms, kind, each.who, group=group, node=each.node, detail=detail)
            )
    return sorted(rows, key=lambda row: (row[0] is not None, row[0] or 0, row[1], str(row[3])))


def _of_run(run: ArchiveRun) -> Row:
    blocks = sum(each.total.blocks for each in run.nodes)
    failed = sum(each.total.failed for each in run.nodes)
    states = sorted({each.state or "not begun" for each in run.nodes})
    kind = "archive_dry_run" if run.dry_run else "archive_run"
    detail = f"run {run.number}: {blocks} blocks, {failed} failed; nodes: {', '.join(states)}"
    row = _act(run.started_ms, kind, run.by or None, topic=run.topic, detail=detail)
    return (*row[:-1], run.error or None)


def _act(
    time_ms: int,
    kind: str,
    who: str | None,
    *,
    topic: str | None = None,
    group: str | None = None,
    node: str | None = None,
    detail: str,
) -> Row:
    return (moment(time_ms), kind, who, topic, group, node, detail, None)


def audit_error_row(kind: str, error: str) -> Row:
    """Return the row of what cannot be read."""
    return (None, kind, None, None, None, None, None, error)
