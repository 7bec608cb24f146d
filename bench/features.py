"""What each feature of a message costs, beside a plain message of the same size in the same run.

The contents are orders in JSON. Compression has the threshold 0, so that it sees every message.
"""

from typing import Any, Final

from bench.cluster import Cluster
from bench.context import Context, Rounds
from bench.figures import Figure

#: Per size in bytes: how many messages, and how many with ``--quick``.
SIZES: Final = {128: (200_000, 5_000), 1024: (60_000, 3_000), 64 * 1024: (3_000, 200)}
PLAIN: Final = "plain"
#: Per feature: fields of the message, settings of the producer.
FEATURES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    PLAIN: ({}, {}),
    "tag": ({"tag": "paid"}, {}),
    "key": ({"key": "customer-4711"}, {}),
    "headers": ({"headers": {"trace": "4bf92f3577b34da6", "source": "shop"}}, {}),
    **{
        kind: ({}, {"compression": kind, "compression_threshold": 0})
        for kind in ("zlib", "zstd", "lz4")
    },
}
#: Per figure: its unit and what it is.
FIGURES: Final = {
    "producer": "µs",  # processor time of the process per message
    "stored": "bytes",  # per message, with its share of the batch's header
    "consumer": "µs",  # processor time of the process per message
    "consumer's rate": "msg/s",
}


def features(context: Context) -> Rounds:
    """Send and receive messages with one feature after the other, each beside the plain ones."""
    with context.cluster() as cluster:
        _measured(cluster, 128, context.pick(50_000, 1_000), PLAIN)  # imports, allocations
        for _ in range(context.rounds):
            figures: list[Figure] = []
            for size, counts in SIZES.items():
                count = context.pick(*counts)
                plain: dict[str, float] = {}
                for feature in FEATURES:
                    values = _measured(cluster, size, count, feature)
                    plain = plain or values
                    figures += [
                        Figure(name_of(size, feature, each), value, FIGURES[each], plain[each])
                        for each, value in values.items()
                    ]
            yield figures


def _measured(cluster: Cluster, size: int, count: int, feature: str) -> dict[str, float]:
    """Send and receive messages with one feature; return the figures."""
    fields, settings = FEATURES[feature]
    topic = cluster.topic()
    load: dict[str, Any] = {"topic": topic, "count": count, "size": size}
    sent = cluster.run("send_orders", fields=fields, settings=settings, **load)
    got = cluster.run("consume_orders", group=topic, **load)
    cluster.drop(topic)
    return {
        "producer": sent["processor_s"] / count * 1e6,
        "stored": sent["bytes"] / count,
        "consumer": got["processor_s"] / got["messages"] * 1e6,
        "consumer's rate": got["messages"] / got["seconds"],
    }


def name_of(size: int, feature: str, figure: str) -> str:
    """Return the name of a figure."""
    return f"{size} bytes, {feature}: {figure}"
