"""The comparison of systems of three nodes: its tables, and what is looked for."""

import pytest

from bench import replicated
from bench.figures import Figure, rows_of
from bench.peers import Missing, kafka, nats
from bench.peers.peer import program_of

ABOUT = {"acknowledged_by": "2 of 3", "flushed": "never", "detection": "5 s"}


def rows(values: dict[str, tuple[float, ...]]) -> list[replicated.Row]:
    figures = [
        Figure(f"fsync | it 1.0 | {way}", value, "", details=ABOUT)
        for way, rounds in values.items()
        for value in rounds
    ]
    return rows_of("replicated_peers", figures, {})


def test_gaps_are_medians_and_losses_the_worst_round() -> None:
    """Two rounds of three lost nothing; the table shows the third."""
    found = rows(
        {
            "gap, one by one": (1.0, 2.0, 9.0),
            "gap, pipelined": (1.0, 3.0, 9.0),
            "acknowledged": (100, 110, 120),
            "lost": (0, 0, 7),
            "duplicates": (1, 0, 0),
            "disordered": (0, 0, 0),
            "failed": (0, 0, 0),
        }
    )
    line = ("it 1.0", "5 s", "2.00", "3.00", "110", "7", "1", "0", "0")
    assert replicated.kill_lines(found) == [line]
    assert replicated.rate_lines(found) == []


def test_a_rate_that_could_not_be_measured_is_no_number() -> None:
    found = rows({"one by one": (50.0,)})
    assert replicated.rate_lines(found) == [("fsync", "it 1.0", "2 of 3", "never", "50.0", "–")]
    assert replicated.kill_lines(found) == []


def test_a_directory_without_kafka_is_told(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_JARS", str(tmp_path))
    with pytest.raises(Missing, match=r"has no kafka_2\.13-\*\.jar"):
        kafka.check()


def test_a_server_that_is_named_and_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVER", "/nowhere/nats-server")
    with pytest.raises(Missing, match="NATS_SERVER names /nowhere/nats-server"):
        nats.check()
    with pytest.raises(Missing, match="which is no program"):
        program_of("NATS_SERVER", "nats-server")
