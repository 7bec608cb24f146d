"""The overview: whether the cluster is well, what is unsafe and what to do, rates, disks."""

from dataclasses import replace
from typing import Final

from starlette.responses import Response

from vq.console.clusters.measured import BYTES_IN, DISK_USED, MESSAGES_IN, PROBE_S
from vq.console.clusters.site import SiteFacts
from vq.console.pages.explain import why
from vq.console.pages.page import page
from vq.console.pages.probes import PROBE_COLUMNS, ProbeRow, probe_rows, slowest
from vq.console.pages.remedies import troubles
from vq.console.web.context import PageContext
from vq.console.web.tables import Asked, TablePage, table
from vq.operations.cluster.probed import LATE_S
from vq.operations.groups.lag_rules import VERDICTS
from vq.reserved import is_reserved

#: Broker groups in the table of the probe, the worst first; the rest is on its next pages.
_PROBES_SHOWN: Final = 10


@page("/c/{cluster}")
async def OVERVIEW(context: PageContext) -> Response:
    """Show the cluster at a glance."""
    facts = context.site.facts
    context.site.look_at_probe()
    found = troubles(facts)
    groups = sorted({each.group.group for each in facts.status.brokers})
    verdicts = verdict_counts(facts)
    probes: TablePage[ProbeRow] | None = None
    rows = [] if facts.probes is None else probe_rows(facts)
    if rows:
        asked = Asked.of(context.query, "e.")
        asked = asked if "e.size" in context.query else replace(asked, size=_PROBES_SHOWN)
        probes = table(PROBE_COLUMNS, rows, asked, searched=lambda each: each.group)
        if file := context.exported(probes, "probe"):
            return file
    return context.page(
        "overview.html",
        facts=facts,
        troubles=[each for each in found if each.tone != "quiet"],
        remarks=[each for each in found if each.tone == "quiet"],
        nodes=facts.status.brokers,  # a group of which none has registered is one that is silent
        up=[each for each in facts.status.brokers if each.name and not each.error],
        groups=groups,
        topics=[each for each in facts.topics if not is_reserved(each.topic)],
        verdicts=verdicts,
        rates=rates(facts),
        fullest=fullest(facts),
        probes=probes,
        latency=slowest(rows),
        lost=sum(each.result.lost for each in rows if each.result is not None),
        late_s=LATE_S,
        probe_series=[f"{PROBE_S} {each}" for each in groups[:12]],
        why_disk=lambda node: why(context, "disk", node=node),
        soonest=soonest(facts),
        byte_series=[f"{BYTES_IN} {each}" for each in groups[:12]],
        message_series=[f"{MESSAGES_IN} {each}" for each in groups[:12]],
        disk_series=[
            f"{DISK_USED} {each.group.group}/{each.name}"
            for each in facts.status.brokers[:12]
            if each.name
        ],
        left_out=context.console.left_out(context.site.name),
        live=True,
        command="vq cluster status; vq doctor",
    )


def verdict_counts(facts: SiteFacts) -> dict[str, int]:
    """Return how many groups have which verdict, from the worst on."""
    counts = dict.fromkeys(VERDICTS, 0)
    for each in facts.lags.values():
        counts[each.verdict.verdict] += 1
    return counts


def rates(facts: SiteFacts) -> tuple[float | None, float | None]:
    """Return bytes and messages per second of all masters; None: one does not tell."""
    masters = [each for each in facts.status.brokers if each.role == "master"]
    loads = [facts.loads.get((each.group.group, each.name)) for each in masters]
    known = [each for each in loads if each is not None]
    if not masters or len(known) < len(masters):
        return None, None
    return sum(each.bytes_per_s for each in known), sum(each.messages_per_s for each in known)


def fullest(facts: SiteFacts) -> tuple[float | None, str]:
    """Return the share that is used of the fullest disk, and its node; None: no disk is known."""
    shares = [
        (1 - disk.bytes_free / disk.bytes_total, f"{each.group.group}/{each.name}")
        for each in facts.status.brokers
        for disk in each.disks
        if disk.bytes_total and disk.bytes_free is not None
    ]
    return max(shares, default=(None, ""))


def soonest(facts: SiteFacts) -> float | None:
    """Return in how many seconds the first disk is full, at its growth of now; None: none fills."""
    hours = [
        disk.full_in_hours
        for each in facts.status.brokers
        for disk in each.disks
        if disk.full_in_hours is not None
    ]
    return min(hours) * 3600 if hours else None
