"""What the end-to-end probe has seen of each broker group, as rows of a table. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vq.console.clusters.measured import latency_of
from vq.console.clusters.site import SiteFacts
from vq.console.web.languages import N_
from vq.console.web.tables import Column, Kind, StateWord
from vq.operations.cluster.probed import LATE_S, ProbeResult

_WORST_FIRST: Final = ("bad", "warn", "quiet", "ok")


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """A broker group; ``result`` is None if no message was sent to it yet."""

    group: str
    draining: bool
    result: ProbeResult | None

    @property
    def state(self) -> StateWord:
        """What is to be thought of it."""
        found = self.result
        if found is None:
            return StateWord(N_("draining") if self.draining else N_("not looked at yet"))
        if found.lost:
            return StateWord(N_("lost messages"), "bad", found.error)
        if found.error:
            return StateWord(N_("fails"), "bad", found.error)
        if found.last_s is None:
            return StateWord(N_("not looked at yet"))
        if (latency_of(found) or 0.0) > LATE_S:
            return StateWord(N_("late"), "warn")
        return StateWord(N_("good"), "ok")


def probe_rows(facts: SiteFacts) -> list[ProbeRow]:
    """Return all broker groups, those first that somebody should look at."""
    groups = {each.group.group: each.group.draining for each in facts.status.brokers}
    probes = facts.probes or {}
    rows = [ProbeRow(name, groups[name], probes.get(name)) for name in sorted(groups)]
    return sorted(rows, key=lambda each: _WORST_FIRST.index(each.state.tone))


def slowest(rows: Sequence[ProbeRow]) -> float | None:
    """Return the largest latency of now; None: that of a group that is probed is not known."""
    found = [latency_of(each.result) for each in rows if each.result is not None]
    known = [each for each in found if each is not None]
    return max(known) if known and len(known) == len(found) else None


def _within(result: ProbeResult | None) -> float | None:
    """Return a bound in seconds that 99 % of all messages kept; None: there is none."""
    if result is None or not result.received:
        return None
    counts, passed = result.latency.counts, 0
    for bound, count in zip(result.latency.bounds, counts, strict=False):
        passed += count
        if passed >= 0.99 * result.received:
            return bound
    return None


PROBE_COLUMNS: Final[list[Column[ProbeRow]]] = [
    Column("group", N_("Broker group"), lambda each: each.group),
    Column("state", N_("State"), lambda each: each.state, Kind.STATE),
    Column(
        "latency_s",
        N_("Latency now"),
        lambda each: None if each.result is None else latency_of(each.result),
        Kind.DURATION,
    ),
    Column("within_s", N_("99 of 100 within"), lambda each: _within(each.result), Kind.DURATION),
    *(
        Column(
            name,
            title,
            lambda each, name=name: None if each.result is None else getattr(each.result, name),  # type: ignore[misc]
            Kind.COUNT,
        )
        for name, title in (
            ("sent", N_("Sent")),
            ("lost", N_("Lost")),
            ("failed", N_("Failed")),
            ("late", N_("Late")),
        )
    ),
    Column(
        "success",
        N_("Last one back"),
        lambda each: (each.result and each.result.success_ms) or None,
        Kind.MOMENT,
    ),
]
