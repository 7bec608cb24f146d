"""How busy is this node? Rates from counters, as published to ZooKeeper."""

from vq.broker.context import Counters
from vq.clock import Clock
from vq.coordination.paths import BrokerLoad


class LoadMeter:
    """Turns counters that only rise into rates between two calls of ``measure``."""

    def __init__(self, counters: Counters, clock: Clock) -> None:
        self._counters = counters
        self._clock = clock
        self._time = clock.monotonic()
        self._messages = counters.messages_in
        self._bytes = counters.bytes_in

    def measure(
        self, *, disk_free: int, disk_total: int, queue_depth: int, partitions: int
    ) -> BrokerLoad:
        """Return the load since the last call."""
        now, counters = self._clock.monotonic(), self._counters
        elapsed_s = now - self._time
        messages = counters.messages_in - self._messages
        size = counters.bytes_in - self._bytes
        self._time, self._messages, self._bytes = now, counters.messages_in, counters.bytes_in
        return BrokerLoad(
            disk_bytes_free=disk_free,
            disk_bytes_total=disk_total,
            messages_per_s=round(messages / elapsed_s, 1) if elapsed_s > 0 else 0.0,
            bytes_per_s=round(size / elapsed_s, 1) if elapsed_s > 0 else 0.0,
            queue_depth=queue_depth,
            partitions=partitions,
        )
