"""What the gateway counts, as families of Prometheus's metrics."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

#: What becomes of a message of a shared group.
SETTLED: Final = ("ack", "nack", "reject", "extend", "lost")


@dataclass
class GatewayCounts:
    """Counted since the start.

    Attributes:
        requests: By route and status.
        seconds: Time spent on answers, by route; that of requests that wait counts, too.
        sent: Messages that are stored.
        refused: Messages that are certainly not stored.
        unknown: Messages that may or may not be stored.
        received: Messages that consumers were given, again included.
        read: Messages that were read without a group.
        committed: Commits of positions.
        settled: Messages of shared groups, by what became of them; ``lost``: nothing.
        lapsed: Consumers whose lease ended.
    """

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    sent: int = 0
    refused: int = 0
    unknown: int = 0
    received: int = 0
    read: int = 0
    committed: int = 0
    settled: Counter[str] = field(default_factory=Counter)
    lapsed: int = 0

    def took(self, route: str, seconds: float) -> None:
        """Count the time of an answer."""
        self.seconds[route] = self.seconds.get(route, 0.0) + seconds

    def families(self, now: dict[str, tuple[str, float]]) -> Iterator[Metric]:
        """Return the families; ``now`` has the text and the value of each gauge, by name."""
        requests = CounterMetricFamily(
            "vq_gateway_requests", "Answered requests.", labels=["route", "status"]
        )
        for (route, status), count in sorted(self.requests.items()):
            requests.add_metric([route, str(status)], count)
        yield requests
        seconds = CounterMetricFamily(
            "vq_gateway_request_seconds",
            "Time from a request to the end of its answer, waits included.",
            labels=["route"],
        )
        for route, spent in sorted(self.seconds.items()):
            seconds.add_metric([route], spent)
        yield seconds
        outcomes = CounterMetricFamily(
            "vq_gateway_sent_messages", "Messages sent, by outcome.", labels=["outcome"]
        )
        for outcome, count in (
            ("stored", self.sent),
            ("refused", self.refused),
            ("unknown", self.unknown),
        ):
            outcomes.add_metric([outcome], count)
        yield outcomes
        settled = CounterMetricFamily(
            "vq_gateway_settled_messages",
            "Messages of shared groups that were settled, by outcome.",
            labels=["outcome"],
        )
        for outcome in SETTLED:
            settled.add_metric([outcome], self.settled[outcome])
        yield settled
        for name, text, count in (
            ("received_messages", "Messages given to consumers.", self.received),
            ("read_messages", "Messages read without a group.", self.read),
            ("commits", "Commits of positions.", self.committed),
            ("lapsed_consumers", "Consumers whose lease ended.", self.lapsed),
        ):
            yield CounterMetricFamily(f"vq_gateway_{name}", text, value=count)
        for name, (text, value) in now.items():
            yield GaugeMetricFamily(f"vq_gateway_{name}", text, value=value)
