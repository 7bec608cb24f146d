"""Write the dashboards for Grafana in deploy/grafana/dashboards from the table in this file.

    python tools/dashboards.py        write the files

Every panel has a title, a unit and a description. A test compares the committed files with
`render()` and every query with the metrics that there are.
"""

import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

from grafana import Dashboard, Panel, Query, Variable, lines, stat, text_of

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "deploy" / "grafana" / "dashboards"

_NODES: Final = 'vq_node_info{cluster=~"$cluster", group=~"$group"}'
_EXPORTERS: Final = 'vq_lag_exporter_info{cluster=~"$cluster"}'


def node(expression: str) -> str:
    """Return an expression over metrics of brokers with the names of each node as labels."""
    return f"({expression}) * on (job, instance) group_left (cluster, group, node) {_NODES}"


def group(expression: str) -> str:
    """Return the same for metrics whose label `node` names another node."""
    return f"({expression}) * on (job, instance) group_left (cluster, group) {_NODES}"


def exported(expression: str) -> str:
    """Return an expression over metrics of `vq lag-exporter` with the cluster as a label."""
    return f"({expression}) * on (job, instance) group_left (cluster) {_EXPORTERS}"


def rate(metric: str) -> str:
    """Return how fast a counter grows."""
    return f"rate({metric}[$__rate_interval])"


def quantile(share: float, metric: str) -> str:
    """Return a quantile of a histogram of each node."""
    buckets = f"sum by (job, instance, le) ({rate(f'{metric}_bucket')})"
    return node(f"histogram_quantile({share}, {buckets})")


_CLUSTER = Variable("cluster", "Cluster", "label_values(vq_node_info, cluster)")
_GROUP = Variable("group", "Broker group", 'label_values(vq_node_info{cluster=~"$cluster"}, group)')
_NODE = "{{group}}/{{node}}"

OVERVIEW = Dashboard(
    uid="vq-overview",
    title="vq / Overview",
    description=(
        "Is the cluster well, and what does it do. Every number above the line should be 0."
    ),
    variables=(_CLUSTER, _GROUP),
    rows=(
        (
            "What is unsafe",
            (
                stat(
                    "Nodes that do not answer",
                    "Brokers that Prometheus could not scrape. Of all clusters: a node that is "
                    "down tells no cluster.",
                    "short",
                    'count(up{job="vq"} == 0) or vector(0)',
                    red=1,
                ),
                stat(
                    "Nodes not ready",
                    "Nodes whose /readyz says no: they start, stop, have no ZooKeeper or refuse "
                    "messages.",
                    "short",
                    f"count(({node('vq_ready')}) == 0) or vector(0)",
                    red=1,
                ),
                stat(
                    "Groups without a leader",
                    "Broker groups of which no node leads: their partitions wait.",
                    "short",
                    f"count(sum by (cluster, group) ({node('vq_leader')}) == 0) or vector(0)",
                    red=1,
                ),
                stat(
                    "Partitions not served",
                    "Partitions on some node that are failed or quarantined.",
                    "short",
                    "sum(" + node('vq_partitions{state=~"failed|quarantined"}') + ") or vector(0)",
                    red=1,
                ),
                stat(
                    "Damaged ranges",
                    "Ranges of offsets that are known to be damaged on some node.",
                    "short",
                    f"sum({node('vq_damaged_ranges')}) or vector(0)",
                    red=1,
                ),
                stat(
                    "Alerts that fire",
                    "Alerts of the rules in deploy/prometheus that fire now, of all clusters.",
                    "short",
                    'count(ALERTS{alertname=~"Vq.*", alertstate="firing"}) or vector(0)',
                    red=1,
                ),
            ),
        ),
        (
            "What it does",
            (
                lines(
                    "Messages stored",
                    "Messages that masters append, by broker group. Copies are not counted.",
                    "cps",
                    (
                        "sum by (cluster, group) ("
                        + node(f"{rate('vq_appended_messages_total')}")
                        + ")",
                        "{{group}}",
                    ),
                ),
                lines(
                    "Bytes stored and read",
                    "Bytes of batches that are appended, and bytes that readers and copies get.",
                    "Bps",
                    (f"sum({node(rate('vq_appended_bytes_total'))})", "stored"),
                    (f"sum({node(rate('vq_read_bytes_total'))})", "read"),
                ),
                lines(
                    "Time to acknowledge, p99",
                    "From the append of a batch to its acknowledgement: flush and copies included.",
                    "s",
                    (quantile(0.99, "vq_acknowledgement_seconds"), _NODE),
                ),
                lines(
                    "From send to read, p99",
                    "The probe: from the begin of a send until the message is read back, by broker "
                    "group. No line: no exporter runs with --probe.",
                    "s",
                    (
                        "histogram_quantile(0.99, sum by (cluster, broker_group, le) ("
                        + exported(rate("vq_probe_latency_seconds_bucket"))
                        + "))",
                        "{{broker_group}}",
                    ),
                ),
                lines(
                    "Messages of the probe that are late, lost or failed",
                    "Late: read back after more than 5 s. Lost: acknowledged and not there. "
                    "Failed: refused, or without an answer.",
                    "short",
                    (
                        "sum by (cluster, broker_group) ("
                        + exported("increase(vq_probe_late_total[5m])")
                        + ") > 0",
                        "{{broker_group}} late",
                    ),
                    (
                        "sum by (cluster, broker_group) ("
                        + exported("increase(vq_probe_lost_total[5m])")
                        + ") > 0",
                        "{{broker_group}} lost",
                    ),
                    (
                        "sum by (cluster, broker_group) ("
                        + exported("increase(vq_probe_failed_total[5m])")
                        + ") > 0",
                        "{{broker_group}} failed",
                    ),
                ),
                lines(
                    "Age of the last message that was read back",
                    "The probe: a broker group is well while this stays below a few seconds.",
                    "s",
                    (
                        exported("time() - vq_probe_success_timestamp_seconds"),
                        "{{broker_group}}",
                    ),
                ),
                lines(
                    "Fullest disk",
                    "How much of the disk with a data directory is used; the fullest of each "
                    "broker group.",
                    "percentunit",
                    (
                        "max by (cluster, group) ("
                        + node("1 - vq_disk_free_bytes / vq_disk_size_bytes")
                        + ")",
                        "{{group}}",
                    ),
                ),
                lines(
                    "Groups furthest behind",
                    "The ten consumer groups whose oldest message that is not handled is the "
                    "oldest.",
                    "s",
                    (
                        f"topk(10, max by (cluster, group) ({exported('vq_group_lag_seconds')}))",
                        "{{group}}",
                    ),
                ),
                lines(
                    "Refused requests",
                    "Requests that were answered with an error, by its name. NotMaster after a "
                    "switch is usual.",
                    "cps",
                    (
                        f"sum by (error) ({node(rate('vq_refused_requests_total'))})",
                        "{{error}}",
                    ),
                ),
            ),
        ),
    ),
)

BROKERS = Dashboard(
    uid="vq-brokers",
    title="vq / Brokers",
    description="The nodes of broker groups: load, times, copies, ZooKeeper, processes.",
    variables=(_CLUSTER, _GROUP),
    rows=(
        (
            "Load",
            (
                lines(
                    "Messages appended",
                    "By node; only a master appends what producers send.",
                    "cps",
                    (node(rate("vq_appended_messages_total")), _NODE),
                ),
                lines(
                    "Bytes appended",
                    "Bytes of the batches that producers sent.",
                    "Bps",
                    (node(rate("vq_appended_bytes_total")), _NODE),
                ),
                lines(
                    "Bytes read",
                    "Bytes that consumers and copies got.",
                    "Bps",
                    (node(rate("vq_read_bytes_total")), _NODE),
                ),
                lines(
                    "Messages in a batch",
                    "Mean number of messages in a batch: larger batches cost less for each "
                    "message.",
                    "short",
                    (
                        node(
                            f"{rate('vq_appended_messages_total')} / "
                            f"({rate('vq_appended_batches_total')} > 0)"
                        ),
                        _NODE,
                    ),
                ),
                lines(
                    "Connections",
                    "Open connections of clients and other nodes.",
                    "short",
                    (node("vq_connections"), _NODE),
                ),
                lines(
                    "Connections ended by the node",
                    "Because of a bound, or of what the peer did; the log has the reason.",
                    "cps",
                    (node(rate("vq_ended_connections_total")), _NODE),
                ),
            ),
        ),
        (
            "Times and queues",
            (
                lines(
                    "Time to acknowledge",
                    "From the append of a batch to its acknowledgement: flush and copies included.",
                    "s",
                    (quantile(0.5, "vq_acknowledgement_seconds"), f"{_NODE} p50"),
                    (quantile(0.99, "vq_acknowledgement_seconds"), f"{_NODE} p99"),
                ),
                lines(
                    "Time of a flush, p99",
                    "The disk. Above 0.1 s it is slow or shared.",
                    "s",
                    (quantile(0.99, "vq_flush_seconds"), _NODE),
                ),
                lines(
                    "Lateness of the event loop, p99",
                    "How much later than planned the loop came to a timer. Above 0.25 s "
                    "something holds it.",
                    "s",
                    (quantile(0.99, "vq_event_loop_lag_seconds"), _NODE),
                ),
                lines(
                    "Requests that wait",
                    "Requests without an answer, reads not counted: they wait for the disk or "
                    "for copies.",
                    "short",
                    (node("vq_waiting_requests"), _NODE),
                ),
                lines(
                    "Bytes of sends that wait",
                    "Bytes of sends that wait for an answer.",
                    "bytes",
                    (node("vq_waiting_put_bytes"), _NODE),
                ),
                lines(
                    "Refused requests",
                    "Requests that were answered with an error, by its name.",
                    "cps",
                    (
                        "sum by (cluster, group, error) ("
                        + node(rate("vq_refused_requests_total"))
                        + ")",
                        "{{group}} {{error}}",
                    ),
                ),
            ),
        ),
        (
            "Copies and ZooKeeper",
            (
                lines(
                    "Nodes in sync",
                    "Nodes of the group that have everything acknowledged, the leader included.",
                    "short",
                    (node("vq_in_sync_nodes"), "{{group}}"),
                ),
                lines(
                    "Age of what a copy lacks",
                    "Age of the oldest batch that the node has not stored. The line names the "
                    "node that copies.",
                    "s",
                    (group("vq_copy_lag_seconds"), "{{group}}/{{node}}"),
                ),
                lines(
                    "Bytes that a copy lacks",
                    "Bytes that the node has not stored. The line names the node that copies.",
                    "bytes",
                    (group("vq_copy_lag_bytes"), "{{group}}/{{node}}"),
                ),
                lines(
                    "Leader",
                    "1 where the node leads its group; a change is a switch or a failover.",
                    "short",
                    (node("vq_leader"), _NODE),
                ),
                lines(
                    "ZooKeeper answers",
                    "1 while ZooKeeper answers the node. A broker goes on for a while without it.",
                    "short",
                    (node("vq_zookeeper_connected"), _NODE),
                ),
                lines(
                    "Sessions that ended",
                    "Sessions with ZooKeeper that ended while the node ran, within an hour.",
                    "short",
                    (node("increase(vq_zookeeper_sessions_ended_total[1h])"), _NODE),
                ),
            ),
        ),
        (
            "Shared groups",
            (
                lines(
                    "Open messages",
                    "Messages that were delivered to members of shared groups and are not done, by "
                    "the node that leads their journal.",
                    "short",
                    (node("vq_shared_open"), _NODE),
                ),
                lines(
                    "Deliveries",
                    "Messages given to members of shared groups a second; of these, messages that "
                    "were delivered before.",
                    "cps",
                    (node(rate("vq_shared_delivered_total")), f"{_NODE} all"),
                    (node(rate("vq_shared_redelivered_total")), f"{_NODE} again"),
                ),
                lines(
                    "Settled messages",
                    "What members have said of messages. Lost: their lease had ended before. Many "
                    "lost ones say that leases are too short.",
                    "cps",
                    (node(rate("vq_shared_acked_total")), f"{_NODE} acknowledged"),
                    (node(rate("vq_shared_released_total")), f"{_NODE} given back"),
                    (node(rate("vq_shared_rejected_total")), f"{_NODE} given up"),
                    (node(rate("vq_shared_extended_total")), f"{_NODE} extended"),
                    (node(rate("vq_shared_lost_total")), f"{_NODE} lost"),
                ),
                lines(
                    "Members that wait",
                    "Members of shared groups that wait for messages.",
                    "short",
                    (node("vq_shared_receiving"), _NODE),
                ),
            ),
        ),
        (
            "State and process",
            (
                lines(
                    "Partitions by state",
                    "Partitions on the nodes, by state; see docs/reference/partition-states.md.",
                    "short",
                    (
                        f"sum by (cluster, group, state) ({node('vq_partitions')})",
                        "{{group}} {{state}}",
                    ),
                ),
                lines(
                    "Jobs that fail",
                    "Timed duties of a node whose last run failed.",
                    "short",
                    (node("vq_job_failing > 0"), f"{_NODE} {{{{name}}}}"),
                ),
                lines(
                    "Repairs",
                    "Repairs of damaged ranges with bytes of another node, within an hour.",
                    "short",
                    (node("increase(vq_repairs_total[1h])"), _NODE),
                ),
                lines(
                    "Processor",
                    "Processor time of the broker process; 1 is one core, and one loop has no "
                    "more.",
                    "percentunit",
                    (node(rate("process_cpu_seconds_total")), _NODE),
                ),
                lines(
                    "Memory",
                    "Resident memory of the broker process. Mapped blocks count in it while "
                    "they are read.",
                    "bytes",
                    (node("process_resident_memory_bytes"), _NODE),
                ),
                lines(
                    "Open files",
                    "Share of the files that the process may open.",
                    "percentunit",
                    (node("process_open_fds / process_max_fds"), _NODE),
                ),
            ),
        ),
    ),
)

TOPICS = Dashboard(
    uid="vq-topics",
    title="vq / Topics",
    description=(
        "What topics store. A broker tells the first 500 topics by name; others are `(other)`."
    ),
    variables=(_CLUSTER, _GROUP),
    rows=(
        (
            "Growth, on the nodes that lead",
            (
                lines(
                    "Bytes appended, the ten fastest topics",
                    "How fast the ends of the logs of a topic rise. A partition that moves away "
                    "shows as a gap.",
                    "Bps",
                    (
                        "topk(10, sum by (cluster, topic) ("
                        + node(
                            "clamp_min(deriv(vq_topic_end_offset_bytes[$__rate_interval]), 0)"
                            " and on (job, instance) vq_leader == 1"
                        )
                        + "))",
                        "{{topic}}",
                    ),
                ),
                lines(
                    "Bytes deleted, the ten fastest topics",
                    "How fast the starts of the logs of a topic rise: what retention deletes.",
                    "Bps",
                    (
                        "topk(10, sum by (cluster, topic) ("
                        + node(
                            "clamp_min(deriv(vq_topic_start_offset_bytes[$__rate_interval]), 0)"
                            " and on (job, instance) vq_leader == 1"
                        )
                        + "))",
                        "{{topic}}",
                    ),
                ),
                lines(
                    "Partitions, the ten largest topics",
                    "Partitions on nodes that lead.",
                    "short",
                    (
                        "topk(10, sum by (cluster, topic) ("
                        + node("vq_topic_partitions and on (job, instance) vq_leader == 1")
                        + "))",
                        "{{topic}}",
                    ),
                ),
            ),
        ),
        (
            "Stored",
            (
                lines(
                    "Bytes stored, the ten largest topics",
                    "Bytes of the logs of a topic on all nodes: copies count.",
                    "bytes",
                    (
                        f"topk(10, sum by (cluster, topic) ({node('vq_topic_stored_bytes')}))",
                        "{{topic}}",
                    ),
                ),
                lines(
                    "Bytes stored by node",
                    "Bytes of all logs on a node.",
                    "bytes",
                    (node("vq_stored_bytes"), _NODE),
                ),
                lines(
                    "Bytes of deleted topics",
                    "Bytes of deleted topics that can still be brought back.",
                    "bytes",
                    (node("vq_deleted_topics_bytes"), _NODE),
                ),
                lines(
                    "Topics by node",
                    "Topics with a partition on the node.",
                    "short",
                    (node("vq_topics"), _NODE),
                ),
                lines(
                    "Bytes kept for groups",
                    "Bytes that are kept only because a consumer group has not read them "
                    "(retention policy keep).",
                    "bytes",
                    (node("vq_held_bytes"), _NODE),
                ),
                lines(
                    "Delayed messages",
                    "Messages that wait for their time, or are due and not delivered yet.",
                    "short",
                    (node("vq_delayed_messages"), _NODE),
                ),
            ),
        ),
    ),
)

_OF_GROUP = '{group=~"$group"}'


def _by_group(function: str, metric: str) -> str:
    return f"{function} by (cluster, group) ({exported(f'{metric}{_OF_GROUP}')})"


GROUPS = Dashboard(
    uid="vq-groups",
    title="vq / Consumer groups",
    description=(
        "How far consumer groups are behind, from `vq lag-exporter`. Unknown numbers are absent."
    ),
    variables=(
        Variable("cluster", "Cluster", "label_values(vq_lag_exporter_info, cluster)"),
        Variable("group", "Consumer group", "label_values(vq_group_members, group)"),
    ),
    rows=(
        (
            "How far behind",
            (
                lines(
                    "Age of the oldest message",
                    "Age of the oldest message that the group has not handled, in its worst "
                    "partition.",
                    "s",
                    (_by_group("max", "vq_group_lag_seconds"), "{{group}}"),
                ),
                lines(
                    "Messages behind",
                    "Sum over its partitions. With a filter, messages that the group leaves out "
                    "count, too.",
                    "short",
                    (_by_group("sum", "vq_group_lag_messages"), "{{group}}"),
                ),
                lines(
                    "Bytes behind",
                    "Sum over its partitions.",
                    "bytes",
                    (_by_group("sum", "vq_group_lag_bytes"), "{{group}}"),
                ),
                Panel(
                    "The twenty worst partitions",
                    "By the age of the oldest message that is not handled.",
                    "s",
                    (
                        Query(
                            f"topk(20, {exported(f'vq_group_lag_seconds{_OF_GROUP}')} > 0)",
                            "{{group}} {{topic}}-{{partition}}",
                        ),
                    ),
                    kind="table",
                    width=16,
                ),
                lines(
                    "Messages handled",
                    "How fast the place of the group moves, in messages.",
                    "cps",
                    (
                        "sum by (cluster, group) ("
                        + exported(
                            f"clamp_min(deriv(vq_group_number{_OF_GROUP}[$__rate_interval]), 0)"
                        )
                        + ")",
                        "{{group}}",
                    ),
                ),
            ),
        ),
        (
            "Members and what stops them",
            (
                lines(
                    "Members",
                    "Live consumers of the group.",
                    "short",
                    (exported(f"vq_group_members{_OF_GROUP}"), "{{group}}"),
                ),
                lines(
                    "Partitions that stand",
                    "Partitions in which the group does not go on; `vq group describe` says why.",
                    "short",
                    (_by_group("sum", "vq_group_stopped"), "{{group}}"),
                ),
                lines(
                    "Partitions without a member",
                    "Partitions that no member consumes. For a moment that is usual: a rebalance.",
                    "short",
                    (
                        "sum by (cluster, group) ("
                        + exported(f"1 - vq_group_owned{_OF_GROUP}")
                        + ")",
                        "{{group}}",
                    ),
                ),
                lines(
                    "Messages held",
                    "Messages that listeners failed for as often as the group allows: what "
                    "follows waits.",
                    "short",
                    (_by_group("sum", "vq_group_held_messages"), "{{group}}"),
                ),
                lines(
                    "Age of these numbers",
                    "How long ago the exporter read the groups. Alert above 300 s.",
                    "s",
                    (exported("time() - vq_lag_exporter_look_timestamp_seconds"), "{{cluster}}"),
                ),
                lines(
                    "Duration of a look",
                    "How long the exporter took to read all groups.",
                    "s",
                    (exported("vq_lag_exporter_look_seconds"), "{{cluster}}"),
                ),
            ),
        ),
    ),
)

TRANSACTIONS = Dashboard(
    uid="vq-transactions",
    title="vq / Transactions and delayed messages",
    description=(
        "Transactions that are open, wait for a decision or are not stored; messages "
        "that come later."
    ),
    variables=(_CLUSTER, _GROUP),
    rows=(
        (
            "Transactions",
            (
                lines(
                    "Open",
                    "Transactions that are not decided, and end in time.",
                    "short",
                    (node("vq_transactions_open"), _NODE),
                ),
                lines(
                    "Wait for a decision",
                    "Transactions that only a decision ends: prepared, and half messages that "
                    "are parked.",
                    "short",
                    (node("vq_transactions_prepared"), f"{_NODE} prepared"),
                    (node("vq_transactions_parked"), f"{_NODE} parked"),
                ),
                lines(
                    "Age of the oldest",
                    "How long ago the oldest transaction that has not ended began. What is open "
                    "ends within 900 s.",
                    "s",
                    (node("vq_transactions_oldest_seconds"), _NODE),
                ),
                lines(
                    "Committed and rolled back",
                    "Transactions that ended.",
                    "cps",
                    (node(rate("vq_transactions_committed_total")), f"{_NODE} committed"),
                    (node(rate("vq_transactions_rolled_back_total")), f"{_NODE} rolled back"),
                ),
                lines(
                    "Committed and not stored",
                    "Transactions that are committed, and not all of them is stored yet.",
                    "short",
                    (node("vq_transactions_unstored"), _NODE),
                ),
                lines(
                    "Decisions that are kept",
                    "Transactions whose decision is kept until somebody says to forget it.",
                    "short",
                    (node("vq_transactions_kept"), _NODE),
                ),
                lines(
                    "Questions to producers",
                    "Times that producers were asked what is to become of half messages.",
                    "cps",
                    (node(rate("vq_transaction_checks_total")), _NODE),
                ),
                lines(
                    "Undeliverable",
                    "Parts of transactions, and delayed messages, whose topic was gone; within "
                    "an hour.",
                    "short",
                    (
                        node("increase(vq_transactions_undeliverable_total[1h])"),
                        f"{_NODE} transactions",
                    ),
                    (node("increase(vq_delayed_undeliverable_total[1h])"), f"{_NODE} delayed"),
                ),
                lines(
                    "Delayed messages delivered",
                    "Delayed messages that came to their topic, and those that were cancelled.",
                    "cps",
                    (node(rate("vq_delayed_delivered_total")), f"{_NODE} delivered"),
                    (node(rate("vq_delayed_cancelled_total")), f"{_NODE} cancelled"),
                ),
            ),
        ),
    ),
)

_DIRECTORY = f"{_NODE} {{{{directory}}}}"

DISKS = Dashboard(
    uid="vq-disks",
    title="vq / Disks and archive",
    description="How full disks are and when they will be, the scrub, retention and archives.",
    variables=(_CLUSTER, _GROUP),
    rows=(
        (
            "Disks",
            (
                lines(
                    "Used",
                    "How much of the disk with a data directory is used.",
                    "percentunit",
                    (node("1 - vq_disk_free_bytes / vq_disk_size_bytes"), _DIRECTORY),
                ),
                lines(
                    "Time until it is full",
                    "Until messages are refused, at the present growth. No line: it does not "
                    "fill up, or it is not known.",
                    "s",
                    (node("vq_disk_full_in_seconds"), _DIRECTORY),
                ),
                lines(
                    "Growth",
                    "How fast the bytes in use grow, measured over hours.",
                    "Bps",
                    (node("vq_disk_growth_bytes_per_second"), _DIRECTORY),
                ),
                lines(
                    "Level",
                    "0 enough space, 1 warning, 2 deletes early, 3 refuses messages, 4 copies "
                    "nothing.",
                    "short",
                    (node("vq_disk_level"), _DIRECTORY),
                ),
                lines(
                    "Directories that are gone",
                    "1 where a data directory is removed or unmounted, or does not answer.",
                    "short",
                    (node("vq_data_directory_gone"), _DIRECTORY),
                ),
                lines(
                    "Free files",
                    "Share of the files (inodes) that can still be made.",
                    "percentunit",
                    (node("vq_disk_free_files / vq_disk_files"), _DIRECTORY),
                ),
            ),
        ),
        (
            "Retention, archive, scrub",
            (
                lines(
                    "Bytes deleted",
                    "Bytes of logs that retention deletes, and those of them that went before "
                    "their time.",
                    "Bps",
                    (node(rate("vq_deleted_bytes_total")), f"{_NODE} deleted"),
                    (node(rate("vq_deleted_early_bytes_total")), f"{_NODE} early"),
                ),
                lines(
                    "Bytes archived",
                    "Bytes of blocks that become archives.",
                    "Bps",
                    (node(rate("vq_archived_bytes_total")), _NODE),
                ),
                lines(
                    "Age of the last run of the archive",
                    "Since the last run ended. It runs once a day; alert above 25 hours.",
                    "s",
                    (node("time() - vq_archive_run_end_timestamp_seconds"), _NODE),
                ),
                lines(
                    "Blocks that could not be archived",
                    "In the last run, under way or ended.",
                    "short",
                    (node("vq_archive_run_failed_blocks"), _NODE),
                ),
                lines(
                    "Age of the last scrub",
                    "Since the last pass over all that is stored began.",
                    "s",
                    (node("time() - vq_scrub_begin_timestamp_seconds"), _NODE),
                ),
                lines(
                    "Damage and what was cut",
                    "Damaged ranges; bytes that were cut from logs and are kept aside are on "
                    "the brokers' disks.",
                    "short",
                    (node("vq_damaged_ranges"), f"{_NODE} damaged ranges"),
                    (node("vq_lost_messages"), f"{_NODE} lost messages"),
                ),
            ),
        ),
    ),
)

DASHBOARDS: Final = (OVERVIEW, BROKERS, TOPICS, GROUPS, TRANSACTIONS, DISKS)


def render() -> dict[str, str]:
    """Return the text of every file, by its name."""
    return {f"{each.uid}.json": text_of(each) for each in DASHBOARDS}


def main() -> None:
    """Write the files."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, text in render().items():
        (TARGET / name).write_text(text)
        print(f"wrote {(TARGET / name).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
