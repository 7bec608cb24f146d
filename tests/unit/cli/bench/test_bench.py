"""A row of ``vq bench``: what was measured, and nothing that looks like a zero and is none."""

import click
import pytest

from vq.cli.bench.bench import Bench, _row, bench


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


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--only async --rate 5000", "--rate 5000 has no effect with --only async: leave it out"),
        ("--only sync --messages 5", "--messages 5 has no effect with --only sync"),
        ("--only consume --seconds 2", "--seconds 2.0 has no effect with --only consume"),
        ("--only latency --threads 1", "--threads 1 has no effect with --only latency"),
    ],
)
def test_an_option_that_no_part_uses_is_refused(arguments: str, error: str) -> None:
    """Also with its default: whoever gives it expects something of it."""
    with pytest.raises(click.UsageError, match=error):
        bench.main(arguments.split(), standalone_mode=False)


@pytest.mark.parametrize(
    "arguments", ["--rate 7", "--only async --only latency --rate 7", "--only consume --threads 2"]
)
def test_an_option_that_a_part_uses_is_taken(
    arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[str, ...]] = []

    def run(self: Bench) -> list[object]:
        measured.append(self._load.parts)
        return []

    monkeypatch.setattr(Bench, "run", run)
    bench.main([*arguments.split(), "--json"], standalone_mode=False)
    assert len(measured) == 1
