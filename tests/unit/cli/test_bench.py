"""A row of ``vq bench``: what was measured, and nothing that looks like a zero and is none."""

from vq.cli.bench import _row


def test_a_low_rate_is_not_rounded_to_nothing() -> None:
    row = _row("send_sync", {"messages": 147, "seconds": 0.5}, 128)
    assert (row["messages"], row["per_second"], row["mb_per_s"]) == (147, 294, 0.038)
    assert row["p50_ms"] == "-"  # not measured


def test_the_message_that_starts_the_clock_is_counted_as_received() -> None:
    row = _row("consume", {"messages": 9, "seconds": 3.0, "received": 10}, 128)
    assert (row["messages"], row["per_second"]) == (10, 3)


def test_the_rate_of_a_single_message_is_unknown() -> None:
    row = _row("consume", {"messages": 0, "seconds": 1e-9, "received": 1}, 128)
    assert (row["messages"], row["per_second"], row["mb_per_s"]) == (1, None, None)
