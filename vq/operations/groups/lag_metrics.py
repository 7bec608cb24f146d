"""The metrics of consumer groups for Prometheus. A number that is not known has no sample."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from vq.operations.groups.group_lags import GroupLags
from vq.operations.groups.groups import GroupProgress
from vq.operations.groups.lag_rules import why_stopped

_FILTERED: Final = " Of a group with a filter, messages that it leaves out count, too."
_Number = Callable[[GroupProgress], float | None]

#: What is told of each partition of a group: name, meaning, number.
_PARTITIONS: Final[tuple[tuple[str, str, _Number], ...]] = (
    (
        "vq_group_lag_bytes",
        f"Bytes between the place of the group and the end of the partition.{_FILTERED}",
        lambda each: each.lag_bytes,
    ),
    (
        "vq_group_lag_messages",
        f"The same in messages; none with --no-count, or where a broker cannot tell.{_FILTERED}",
        lambda each: each.lag_messages,
    ),
    (
        "vq_group_lag_seconds",
        f"Age of the oldest message that the group has not handled; 0 if it has all.{_FILTERED}",
        lambda each: each.lag_s,
    ),
    (
        "vq_group_number",
        "Messages that the partition ever had before the place of the group; none with --no-count.",
        lambda each: each.number,
    ),
    (
        "vq_group_end_number",
        "Messages that the partition ever had.",
        lambda each: each.end_number,
    ),
    (
        "vq_group_committed_offset_bytes",
        "The committed offset; none before the first commit.",
        lambda each: each.committed,
    ),
    (
        "vq_group_stopped",
        "1 if the group does not go on in the partition, else 0; `vq group describe` says why.",
        lambda each: why_stopped(each.facts()) is not None,
    ),
    (
        "vq_group_owned",
        "1 if a member consumes the partition, else 0.",
        lambda each: each.owner is not None,
    ),
    (
        "vq_group_subscribed",
        "0 if the group has members and none subscribes to the topic, else 1.",
        lambda each: each.subscribed,
    ),
)


def lag_families(found: GroupLags, *, failed_looks: int = 0) -> Iterator[Metric]:
    """Yield every family, each made when it is asked for.

    Args:
        found: The last look.
        failed_looks: How many looks in a row have failed.
    """
    members = GaugeMetricFamily(
        "vq_group_members", "Live consumers of the group.", labels=("group",)
    )
    for group, told in found.groups.items():
        members.add_metric((group,), len(told.members))
    yield members
    for name, meaning, number in _PARTITIONS:
        family = GaugeMetricFamily(name, meaning, labels=("group", "topic", "partition"))
        for group, told in found.groups.items():
            for each in told.partitions:
                value = number(each)
                if value is not None:
                    family.add_metric((group, each.topic, str(each.partition)), value)
        yield family
    looked = found.time_ms > 0
    for name, meaning, count in (
        ("look_timestamp_seconds", "When the groups were read.", found.time_ms / 1000),
        ("look_seconds", "How long that took.", found.took_s),
        ("unread_groups", "Groups that could not be read that time.", found.failed),
        (
            "left_out_partitions",
            "Partitions of groups beyond the bound.",
            sum(found.left_out.values()),
        ),
    ):
        own = GaugeMetricFamily(f"vq_lag_exporter_{name}", meaning)
        if looked:
            own.add_metric((), count)
        yield own
    failures = GaugeMetricFamily(
        "vq_lag_exporter_failed_looks",
        "Looks in a row that failed; the numbers of groups are absent meanwhile.",
    )
    failures.add_metric((), failed_looks)
    yield failures
