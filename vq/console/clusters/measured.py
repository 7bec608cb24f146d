"""What a look at a cluster has measured, as values of series for the history."""

import math
from typing import Final

from vq.console.clusters.lags import SeenGroup
from vq.console.clusters.site import SiteFacts
from vq.operations.cluster.probed import ProbeResult

#: Series of each broker group and of the cluster: bytes and messages that are appended per second.
BYTES_IN: Final = "bytes_in"
MESSAGES_IN: Final = "messages_in"
#: Series of each node: the share of its disk that is used, and of its time that it is busy.
DISK_USED: Final = "disk_used"
BUSY: Final = "busy"
#: Series of each broker group, if it is probed: seconds until a message is read back.
PROBE_S: Final = "probe_s"
#: Series of each consumer group.
LAG_BYTES: Final = "lag_bytes"
LAG_S: Final = "lag_s"


def measured(facts: SiteFacts) -> dict[str, float]:
    """Return the values of now, the most important series first; what is not known has none.

    Those of brokers come before those of consumer groups, and of these the ones that read most.
    """
    found: dict[str, float] = {}
    masters = {
        (each.group.group, each.name) for each in facts.status.brokers if each.role == "master"
    }
    for (group, node), load in facts.loads.items():
        if (group, node) in masters:
            found[f"{BYTES_IN} {group}"] = load.bytes_per_s
            found[f"{MESSAGES_IN} {group}"] = load.messages_per_s
        found[f"{BUSY} {group}/{node}"] = load.busy
        if load.disk_bytes_total:
            used = 1 - load.disk_bytes_free / load.disk_bytes_total
            found[f"{DISK_USED} {group}/{node}"] = used
    if masters and all(each in facts.loads for each in masters):
        for series in (BYTES_IN, MESSAGES_IN):
            found[series] = sum(found[f"{series} {group}"] for group, _ in masters)
    for group, result in (facts.probes or {}).items():
        latency = latency_of(result)
        if latency is not None:
            found[f"{PROBE_S} {group}"] = latency
    for name, lag in sorted(facts.lags.items(), key=_by_traffic):
        if lag.lag_bytes is not None:
            found[f"{LAG_BYTES} {name}"] = lag.lag_bytes
        if lag.lag_s is not None:
            found[f"{LAG_S} {name}"] = lag.lag_s
    return {series: value for series, value in found.items() if math.isfinite(value)}


def latency_of(result: ProbeResult) -> float | None:
    """Return how long a message through a broker group takes now, in seconds; None: not known.

    That of the last message; or the age of the oldest one that is not back yet, if it is larger.
    """
    if result.error or result.last_s is None:
        return None
    return max(result.last_s, result.waiting_s)


def _by_traffic(named: tuple[str, SeenGroup]) -> tuple[float, str]:
    name, group = named
    return -(group.bytes_per_s or 0.0), name
