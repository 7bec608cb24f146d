"""The metrics of the end-to-end probe for Prometheus."""

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import Metric

from vq.broker.base.facts import Fact, Facts, counters, gauge, histogram
from vq.broker.observe.metrics import families
from vq.operations.cluster.probed import LATE_S, ProbeResult

_FACTS: Final[Sequence[Fact[ProbeResult]]] = (
    histogram(
        "vq_probe_latency_seconds",
        "Time from the begin of a send until the message was read back.",
        lambda result: result.latency,
    ),
    *counters(
        "vq_probe_",
        sent="Messages of the probe that were acknowledged.",
        failed="Messages of the probe that were refused, or had no answer.",
        received="Messages of the probe that were read back.",
        late=f"Of these, those that took more than {LATE_S:g} s.",
        lost="Acknowledged messages of the probe that are not where they should be.",
    ),
    gauge(
        "vq_probe_waiting_seconds",
        "For how long the oldest acknowledged message has not been read back; 0: there is none.",
        lambda result: result.waiting_s,
    ),
    gauge(
        "vq_probe_success_timestamp_seconds",
        "When a message was last read back; none before the first.",
        lambda result: result.success_ms or None,
        ms=True,
    ),
)


def probe_families(results: Sequence[ProbeResult]) -> Iterator[Metric]:
    """Yield every family of the probe, each made when it is asked for."""
    return families(
        (
            Facts[ProbeResult](
                labels=("broker_group",),
                things=lambda: {(each.group,): each for each in results},
                facts=_FACTS,
            ),
        )
    )
