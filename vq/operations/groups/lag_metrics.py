"""The metrics of consumer groups for Prometheus. A number that is not known has no sample."""

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import Metric

from vq.broker.base.facts import Fact, Facts, gauge
from vq.broker.observe.metrics import families
from vq.coordination.tree.values.group_terms import GroupModel
from vq.operations.groups.group_lags import GroupLags
from vq.operations.groups.groups import GroupDescription, GroupProgress
from vq.operations.groups.lag_rules import why_stopped
from vq.operations.groups.shared import SharedProgress
from vq.version import __version__

_FILTERED: Final = " Of a group with a filter, messages that it leaves out count, too."

#: What is told of each partition of a group.
_PARTITION: Final[Sequence[Fact[GroupProgress]]] = (
    gauge(
        "vq_group_lag_bytes",
        f"Bytes between the place of the group and the end of the partition.{_FILTERED}",
        lambda each: each.lag_bytes,
    ),
    gauge(
        "vq_group_lag_messages",
        f"The same in messages; none with --no-count, or where a broker cannot tell.{_FILTERED}",
        lambda each: each.lag_messages,
    ),
    gauge(
        "vq_group_lag_seconds",
        f"Age of the oldest message that the group has not handled; 0 if it has all.{_FILTERED}",
        lambda each: each.lag_s,
    ),
    gauge(
        "vq_group_number",
        "Messages that the partition ever had before the place of the group; none with --no-count.",
        lambda each: each.number,
    ),
    gauge(
        "vq_group_end_number",
        "Messages that the partition ever had.",
        lambda each: each.end_number,
    ),
    gauge(
        "vq_group_committed_offset_bytes",
        "The committed offset; none before the first commit.",
        lambda each: each.committed,
    ),
    gauge(
        "vq_group_stopped",
        "1 if the group does not go on in the partition, else 0; `vq group describe` says why.",
        lambda each: why_stopped(each.facts()) is not None,
    ),
    gauge(
        "vq_group_held_messages",
        "Messages that listeners failed for as often as the group allows: what must follow waits.",
        lambda each: each.held,
    ),
    gauge(
        "vq_group_stopped_since_timestamp_seconds",
        "Since when the member that consumes the partition does not go on; none while it does.",
        lambda each: each.stopped_since_ms,
        ms=True,
    ),
    gauge(
        "vq_group_subscribed",
        "0 if the group has members and none subscribes to the topic, else 1.",
        lambda each: each.subscribed,
    ),
)
#: What is told besides of each partition of a group whose partitions belong to members,
_CLAIMED: Final[Sequence[Fact[GroupProgress]]] = (
    gauge(
        "vq_group_owned",
        "1 if a member consumes the partition, else 0; none of shared and broadcasting groups.",
        lambda each: each.owner is not None,
    ),
)
#: and of one of a shared group.
_SHARED: Final[Sequence[Fact[SharedProgress]]] = (
    gauge(
        "vq_group_shared_open_messages",
        "Messages that a shared group has had delivered and that are not done.",
        lambda each: each.open,
    ),
    gauge(
        "vq_group_shared_held_messages",
        "Of the open messages, those that members have now.",
        lambda each: each.held,
    ),
    gauge(
        "vq_group_shared_waiting_messages",
        "Of the open messages, those that have failed and are delivered again later.",
        lambda each: each.waiting,
    ),
    gauge(
        "vq_group_shared_redelivered_messages",
        "Of the open messages, those that were delivered more than once.",
        lambda each: each.redelivered,
    ),
    gauge(
        "vq_group_shared_deliveries_max",
        "How often that open message was delivered that was delivered most.",
        lambda each: each.deliveries_max,
    ),
)
#: What is told of a look at all groups.
_LOOK: Final[Sequence[Fact[GroupLags]]] = (
    gauge(
        "vq_lag_exporter_look_timestamp_seconds",
        "When the groups were read.",
        lambda found: found.time_ms,
        ms=True,
    ),
    gauge("vq_lag_exporter_look_seconds", "How long that took.", lambda found: found.took_s),
    gauge(
        "vq_lag_exporter_unread_groups",
        "Groups that could not be read that time.",
        lambda found: found.failed,
    ),
    gauge(
        "vq_lag_exporter_left_out_partitions",
        "Partitions of groups beyond the bound.",
        lambda found: sum(found.left_out.values()),
    ),
)


def lag_families(found: GroupLags, *, cluster: str = "", failed_looks: int = 0) -> Iterator[Metric]:
    """Yield every family, each made when it is asked for.

    Args:
        found: The last look.
        cluster: Name of the cluster.
        failed_looks: How many looks in a row have failed.
    """
    groups = found.groups.items()
    return families(
        (
            Facts[int](
                labels=("cluster", "version"),
                things=lambda: {(cluster, __version__): 1},
                facts=(
                    gauge(
                        "vq_lag_exporter_info",
                        "The cluster that this exporter reads, and its version; always 1.",
                        int,
                    ),
                ),
            ),
            Facts[GroupDescription](
                labels=("group",),
                things=lambda: {(name,): group for name, group in groups},
                facts=(
                    gauge(
                        "vq_group_members",
                        "Live consumers of the group.",
                        lambda group: len(group.members),
                    ),
                ),
            ),
            Facts[GroupProgress](
                labels=("group", "topic", "partition"),
                things=lambda: {
                    (name, each.topic, str(each.partition)): each
                    for name, group in groups
                    for each in group.partitions
                },
                facts=_PARTITION,
            ),
            Facts[GroupProgress](
                labels=("group", "topic", "partition"),
                things=lambda: {
                    (name, each.topic, str(each.partition)): each
                    for name, group in groups
                    if GroupModel(group.model).claims
                    for each in group.partitions
                },
                facts=_CLAIMED,
            ),
            Facts[SharedProgress](
                labels=("group", "topic", "partition"),
                things=lambda: {
                    (name, each.topic, str(each.partition)): each.shared
                    for name, group in groups
                    for each in group.partitions
                    if each.shared is not None
                },
                facts=_SHARED,
            ),
            Facts[GroupLags](things=lambda: {(): found} if found.time_ms > 0 else {}, facts=_LOOK),
            Facts[int].of(
                failed_looks,
                gauge(
                    "vq_lag_exporter_failed_looks",
                    "Looks in a row that failed; the numbers of groups are absent meanwhile.",
                    int,
                ),
            ),
        )
    )
