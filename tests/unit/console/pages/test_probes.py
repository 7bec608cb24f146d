"""What the overview says of the end-to-end probe: unknown stays unknown, the worst comes first."""

from vq.console.clusters.measured import PROBE_S, measured
from vq.console.clusters.site import SiteFacts
from vq.console.pages.probes import PROBE_COLUMNS, probe_rows, slowest
from vq.console.pages.remedies import troubles
from vq.console.web.tables import Asked, as_json, table
from vq.model import GroupView
from vq.operations.cluster.cluster import BrokerReport, ClusterStatus
from vq.operations.cluster.probed import ProbeResult


def _facts(*results: ProbeResult, groups: str = "") -> SiteFacts:
    names = sorted({each.group for each in results} | set(groups.split()))
    reports = tuple(
        BrokerReport(GroupView(name, draining=name == "drained"), None, None, None)
        for name in names
    )
    return SiteFacts(status=ClusterStatus(reports), probes={each.group: each for each in results})


def _result(group: str, *, seconds: float = 0.01, times: int = 100, **more) -> ProbeResult:
    found = ProbeResult(group, sent=times, received=times, last_s=seconds, success_ms=1, **more)
    for _ in range(times):
        found.latency.observe(seconds)
    return found


def test_the_worst_group_comes_first_and_each_state_is_a_word() -> None:
    rows = probe_rows(
        _facts(
            _result("a"),
            _result("b", waiting_s=9.0),
            _result("c", error="no master"),
            _result("d", lost=2),
            ProbeResult("e"),
            groups="drained new",
        )
    )
    assert [(each.group, each.state.word, each.state.tone) for each in rows] == [
        ("c", "fails", "bad"),
        ("d", "lost messages", "bad"),
        ("b", "late", "warn"),
        ("drained", "draining", "quiet"),
        ("e", "not looked at yet", "quiet"),
        ("new", "not looked at yet", "quiet"),
        ("a", "good", "ok"),
    ]


def test_what_is_not_known_is_no_number() -> None:
    """Nor is the latency of before one of now, when nothing gets through."""
    facts = _facts(_result("a"), _result("b", error="refused"), ProbeResult("c"), groups="new")
    rows = {
        each["group"]: each for each in as_json(table(PROBE_COLUMNS, probe_rows(facts), Asked()))
    }
    assert rows["a"]["latency_s"] == 0.01
    assert rows["a"]["within_s"] == 0.01
    assert rows["a"]["lost"] == 0
    assert rows["b"]["latency_s"] is None
    assert (rows["c"]["latency_s"], rows["c"]["within_s"], rows["c"]["success"]) == (None,) * 3
    assert {rows["new"][name] for name in ("sent", "lost", "failed", "late")} == {None}
    assert slowest(probe_rows(facts)) is None
    assert slowest(probe_rows(_facts(_result("a"), _result("b", waiting_s=3.0)))) == 3.0
    assert slowest([]) is None
    assert {name: each for name, each in measured(facts).items() if PROBE_S in name} == {
        "probe_s a": 0.01
    }


def test_a_bound_that_no_bucket_has_is_not_known() -> None:
    rows = as_json(table(PROBE_COLUMNS, probe_rows(_facts(_result("a", seconds=100.0))), Asked()))
    assert rows[0]["within_s"] is None


def test_what_the_probe_loses_and_what_fails_is_to_be_looked_at() -> None:
    facts = _facts(_result("a"), _result("b", lost=1), _result("c", error="refused"))
    assert [(each.tone, each.where) for each in troubles(facts)] == [("bad", "b"), ("warn", "c")]
    assert troubles(SiteFacts()) == []
