"""What the gateway counts."""

from pathlib import Path

from vq.gateway.counts import GatewayCounts


def test_the_reference_has_every_metric() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "http-gateway.md").read_text()
    names = [each.name for each in GatewayCounts().families({})]
    assert len(names) > 5
    assert [each for each in names if f"`{each}_total`" not in page] == []


def test_time_adds_up_by_route() -> None:
    counts = GatewayCounts()
    counts.took("GET /v1/topics", 0.5)
    counts.took("GET /v1/topics", 0.25)
    assert counts.seconds == {"GET /v1/topics": 0.75}
