"""Rates from counters."""

from vq.broker.context import Counters
from vq.broker.load import LoadMeter
from vq.clock import ManualClock


def test_load_is_the_rate_since_the_last_look():
    """Counters only rise; rates come from their differences."""
    clock, counters = ManualClock(), Counters()
    meter = LoadMeter(counters, clock)
    for messages, expected in ((100, 50.0), (100, 0.0), (400, 150.0)):
        counters.messages_in, counters.bytes_in = messages, messages * 10
        clock.advance(2)
        load = meter.measure(disk_free=1, disk_total=2, queue_depth=3, partitions=4)
        assert (load.messages_per_s, load.bytes_per_s) == (expected, expected * 10)
    assert meter.measure(disk_free=1, disk_total=2, queue_depth=3, partitions=4).bytes_per_s == 0
