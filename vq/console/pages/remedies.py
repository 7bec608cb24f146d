"""What is unsafe in a cluster, and what to do: one list from all that a look has found. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from vq.console.clusters.site import SiteFacts
from vq.console.web.languages import N_
from vq.operations.brokers.safety import UnsafeKind
from vq.operations.cluster.probed import ProbeResult


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that somebody should look at.

    Attributes:
        tone: bad: messages are refused, or may be lost; warn: they may be soon.
        where: The broker group, node, or topic.
        text: What is wrong, as brokers say it.
        remedy: What to do, in English.
        command: The command that does it, or looks; "": none.
        disk_of: The node whose disk it is about; "": it is about none.
    """

    tone: str
    where: str
    text: str
    remedy: str
    command: str = ""
    disk_of: str = ""


_REMEDIES: Final[Mapping[UnsafeKind, tuple[str, str, str]]] = {
    UnsafeKind.NO_MASTER: (
        "bad",
        N_("Start a node of the group that was in sync; it takes over by itself."),
        "vq cluster status",
    ),
    UnsafeKind.NOT_REGISTERED: (
        "bad",
        N_("Start the node again, or look in its log why it lost ZooKeeper."),
        "vq cluster status",
    ),
    UnsafeKind.AWAY: (
        "warn",
        N_("Start the node again. If its machine is gone for good, remove the node."),
        "vq broker remove {group} --node {node}",
    ),
    UnsafeKind.NOT_IN_SYNC: (
        "warn",
        N_("Wait until it has caught up; if its lag grows, look at its disk and network."),
        "vq cluster status",
    ),
    UnsafeKind.ALONE: (
        "warn",
        N_("Have another node of the group run and catch up: a lost disk would lose messages."),
        "vq cluster status",
    ),
    UnsafeKind.MIN_INSYNC: (
        "bad",
        N_("Start nodes of the group, or lower min_insync of the topics."),
        "vq topic alter TOPIC --min-insync 1",
    ),
    UnsafeKind.NOT_COPIED: (
        "warn",
        N_("Look in the log of the node why it cannot copy the partition."),
        "vq doctor",
    ),
    UnsafeKind.DIVERGED: (
        "quiet",
        N_("Look at what was cut from its logs; send again what is needed, then delete it."),
        "vq cluster diverged",
    ),
    UnsafeKind.UNCLEAN: ("quiet", N_("For you to know; nothing has to be done."), ""),
    UnsafeKind.WEAK: (
        "quiet",
        N_("Let the topics be sync if their messages must not be lost."),
        "vq topic alter TOPIC --replication sync --flush sync",
    ),
}


def troubles(facts: SiteFacts) -> list[Trouble]:
    """Return what is wrong in a cluster, the worst first."""
    found: list[Trouble] = []
    for broker in facts.status.brokers:
        where = f"{broker.group.group}/{broker.name}" if broker.name else broker.group.group
        if broker.error:
            found.append(
                Trouble(
                    "bad",
                    where,
                    broker.error,
                    N_("Start the broker, or look in its log why it does not answer."),
                    "vq doctor",
                )
            )
        found += [
            Trouble("warn", where, each, N_("Look at the log of the node."), "vq doctor")
            for each in broker.problems
        ]
        found += [
            Trouble(
                "bad" if disk.level in ("refuse", "stop", "gone", "silent") else "warn",
                where,
                str(disk),
                N_("Free space, keep less, or move partitions to another broker group."),
                "vq broker drain " + broker.group.group,
                where,
            )
            for disk in broker.disks
            if disk.needs_attention
        ]
        found += [
            Trouble(
                "bad" if bad.failed else "warn",
                f"{where} {bad.topic}/{bad.partition}",
                str(bad),
                N_("Look at the damage; a copy or an archive may repair it."),
                f"vq topic verify {bad.topic}",
            )
            for bad in broker.bad_partitions
        ]
    found += [each for result in (facts.probes or {}).values() for each in _of_probe(result)]
    silent = {each.where for each in found}
    for unsafe in facts.status.unsafe:
        where = f"{unsafe.group}/{unsafe.node}" if unsafe.node else unsafe.group
        if unsafe.kind is UnsafeKind.NOT_REGISTERED and where in silent:
            continue  # told above
        tone, remedy, command = _REMEDIES[unsafe.kind]
        found.append(
            Trouble(
                tone,
                where,
                unsafe.text.removeprefix(f"{where}: "),
                remedy,
                command.format(group=unsafe.group, node=unsafe.node or "NODE"),
            )
        )
    order = ("bad", "warn", "quiet")
    return sorted(found, key=lambda each: order.index(each.tone))


def _of_probe(result: ProbeResult) -> Iterator[Trouble]:
    """Yield what the messages of the probe show of a broker group."""
    if result.lost:
        yield Trouble(
            "bad",
            result.group,
            f"{result.lost} acknowledged messages of the probe are not where they should be",
            N_("Messages of applications may be lost, too: see what was cut from logs, and why."),
            "vq cluster diverged",
        )
    if result.error:
        yield Trouble(
            "warn",
            result.group,
            f"no message of the probe gets through: {result.error}",
            N_("Messages of applications may fail, too: look at the nodes of the group."),
            "vq cluster status",
        )
