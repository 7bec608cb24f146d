"""Runs of the archive: made, waited for, and told with what each node has done.

Loop-bound functions on a ``ClusterClient``. Nodes go on with a run if the caller goes away.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.leases import runs
from vq.coordination.tree.coordinator import Unreadable
from vq.coordination.tree.reading import gather_all
from vq.coordination.tree.values import runs as run_values
from vq.coordination.tree.values.runs import ArchiveTopicRun, RunResult, RunState
from vq.errors import InvalidArgument, UnknownTopic
from vq.model import check_timeout
from vq.operations.base.acts import audited
from vq.operations.base.changes import ChangeUnknown, unknown_when_cut
from vq.operations.base.who import who
from vq.operations.partitions.offsets import check_time
from vq.operations.topics.topics import readable_topics

POLL_S: Final = 0.5
#: Nodes look at the runs when one is made, and each minute. One that has not begun a run after so
#: long, and does no other one, is not waited for: it is of an earlier version, say.
BEGIN_S: Final = 180.0


class ArchiveRunUnknown(ChangeUnknown):
    """ZooKeeper went away while a run of the archive was made."""

    hint = "`vq archive history` shows whether it was made; to make it again does no harm"


@dataclass(frozen=True, slots=True)
class ArchiveNodeRun:
    """What one node has done of a run.

    Attributes:
        group, node: Which.
        state: ``running``, ``done``, ``failed``; ``covered``: a later run does its work;
            ``refused``: the run was made under a lease that had ended; None: it has not begun.
        begun_ms, ended_ms: When, in milliseconds since 1970; None: it has not.
        total: Of all topics.
        topics: By name; those with failures and the largest ones, if they are many.
        omitted: How many are left out.
        error: Why the result cannot be read; "": it can.
    """

    group: str
    node: str
    state: str | None = None
    begun_ms: int | None = None
    ended_ms: int | None = None
    total: ArchiveTopicRun = field(default_factory=ArchiveTopicRun)
    topics: Mapping[str, ArchiveTopicRun] | None = None
    omitted: int = 0
    error: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the node does no more of the run."""
        return self.state not in {None, RunState.RUNNING}


@dataclass(frozen=True, slots=True)
class ArchiveRun:
    """A run of the archive.

    Attributes:
        number: Rises with each run.
        as_of_ms: Blocks are as old as at this time, in milliseconds since 1970.
        started_ms: When it was made.
        by: Who made it: a node, or an operator.
        topic: Only this one; None: all topics.
        dry_run: Nodes only say what they would do.
        due_ms: Of a daily run: when it was due; None: an operator wanted it.
        nodes: What nodes have done, and the registered nodes that have not begun.
        error: Why it cannot be read; "": it can. No node does it otherwise.
    """

    number: int
    as_of_ms: int = 0
    started_ms: int = 0
    by: str = ""
    topic: str | None = None
    dry_run: bool = False
    due_ms: int | None = None
    nodes: tuple[ArchiveNodeRun, ...] = ()
    error: str = ""

    @property
    def total(self) -> ArchiveTopicRun:
        """What all nodes have done."""
        total = ArchiveTopicRun()
        for each in self.nodes:
            total = total.plus(each.total)
        return total

    @property
    def state(self) -> str:
        """``unreadable``, ``running`` while a node has not ended, else the worst of the nodes."""
        if self.error:
            return "unreadable"
        if not all(each.has_ended for each in self.nodes):
            return str(RunState.RUNNING)
        states = {each.state for each in self.nodes}
        for worst in (RunState.FAILED, RunState.REFUSED, RunState.DONE, RunState.COVERED):
            if worst in states:
                return str(worst)
        return str(RunState.RUNNING)  # no node is there


#: Called with the run as it is.
RunListener = Callable[[ArchiveRun], object]


@audited()
async def start_archive_run(
    cluster: ClusterClient,
    topic: str | None = None,
    *,
    as_of_ms: int | None = None,
    dry_run: bool = False,
) -> int:
    """Have every node archive now what the daily run would; return the number of the run.

    Args:
        topic: Only this one; None: all topics.
        as_of_ms: What the daily run would do at that time, in ms since 1970; None: now.
        dry_run: Nodes only say what they would do.

    Raises:
        UnknownTopic: There is no such topic.
        InvalidArgument: The blocks of the topic, or of all topics, do not become archives.
        ArchiveRunUnknown: ZooKeeper went away; the run was made or not. To make it again does
            no harm.
    """
    now_ms = cluster.clock.wall_ms()
    if as_of_ms is not None:
        check_time("as_of_ms", as_of_ms)
    await _check_topics(cluster, topic)
    run = run_values.RunOrder(
        as_of_ms=now_ms if as_of_ms is None else as_of_ms,
        started_ms=now_ms,
        by=who(),
        nonce=secrets.token_hex(8),
        topic=topic,
        dry_run=dry_run,
    )
    with unknown_when_cut("making a run of the archive", ArchiveRunUnknown):
        number = await runs.make_run(cluster.coordinator, run)
    await runs.forget_runs(cluster.coordinator)
    return number


async def _check_topics(cluster: ClusterClient, topic: str | None) -> None:
    found, unreadable = await readable_topics(cluster, reserved=True)
    known = {each.name: each.settings for each in found}
    if topic is None:
        if unreadable or any(each.archived_after_hours is not None for each in known.values()):
            return
        raise InvalidArgument(
            "no topic has its blocks archived; `vq topic alter NAME --retention-policy archive`"
        )
    if topic not in known:
        raise UnknownTopic(f"there is no topic {topic!r}")
    if known[topic].archived_after_hours is None:
        raise InvalidArgument(
            f"the blocks of topic {topic!r} do not become archives; `vq topic alter {topic} "
            "--retention-policy archive`"
        )


async def archive_history(
    cluster: ClusterClient, nodes: Sequence[tuple[str, str]] | None = None
) -> list[ArchiveRun]:
    """Return the last 30 runs, and those not done yet, the newest first, with their results.

    Args:
        cluster: Where.
        nodes: Group and name of each registered node, if the caller knows them; None: they are
            read, which costs two reads for each.
    """
    found = await runs.read_runs(cluster.coordinator)
    if nodes is None:
        nodes = [(each.group, each.node) for each in await registry.all_nodes(cluster.coordinator)]
    registered = list(nodes)
    read = await gather_all(
        _run(cluster, number, run, registered) for number, run in found.known.items()
    )
    read += [ArchiveRun(number, error=str(error)) for number, error in found.unreadable.items()]
    return sorted(read, key=lambda each: -each.number)


async def wait_for_archive_run(
    cluster: ClusterClient,
    number: int,
    *,
    timeout: float | None = None,
    on_progress: RunListener | None = None,
) -> ArchiveRun:
    """Return a run of the archive once every registered node has ended it.

    That may take hours: nodes archive slowly, beside their other work, and go on if this call
    is interrupted. After ``timeout`` seconds it returns in any case, and after three minutes
    if none of the nodes that have not ended works on a run; then its ``state`` is
    ``"running"``. ``on_progress`` is called with the run when something has changed, on the
    factory's thread or loop; it must be short.

    Raises:
        InvalidArgument: There is no such run, or it cannot be read.
    """
    clock = cluster.clock
    bound_s = None if timeout is None else check_timeout(timeout)
    begun_s = worked_s = clock.monotonic()
    told: ArchiveRun | None = None
    while True:
        found = await runs.read_runs(cluster.coordinator)
        if number not in found.known:
            why = found.unreadable.get(number, "there is none, or it is forgotten")
            raise InvalidArgument(f"run {number} of the archive: {why}")
        nodes = await registry.all_nodes(cluster.coordinator)
        registered = [(each.group, each.node) for each in nodes]
        now = await _run(cluster, number, found.known[number], registered)
        waits = [each for each in now.nodes if (each.group, each.node) in registered]
        waits = [each for each in waits if not each.has_ended]
        now_s = clock.monotonic()
        is_late = bound_s is not None and now_s - begun_s >= bound_s
        if is_late or (registered and not waits):
            return now
        if now_s - worked_s >= BEGIN_S:  # a node may be between two runs at one look
            if not await _works(cluster, found.known, waits):
                return now
            worked_s = now_s
        if on_progress is not None and now != told:
            on_progress(now)
        told = now
        await asyncio.sleep(POLL_S)


async def _works(
    cluster: ClusterClient, known: Mapping[int, run_values.RunOrder], nodes: list[ArchiveNodeRun]
) -> bool:
    """Whether one of the nodes works on a run, and so may come to another one."""
    if any(each.state == RunState.RUNNING for each in nodes):
        return True
    names = {(each.group, each.node) for each in nodes}
    found = await gather_all(runs.read_results(cluster.coordinator, number) for number in known)
    return any(
        isinstance(result, RunResult) and result.state is RunState.RUNNING
        for results in found
        for name, result in results.items()
        if name in names
    )


async def _run(
    cluster: ClusterClient,
    number: int,
    run: run_values.RunOrder,
    registered: list[tuple[str, str]],
) -> ArchiveRun:
    results = await runs.read_results(cluster.coordinator, number)
    nodes = sorted({*results, *registered})
    return ArchiveRun(
        number,
        as_of_ms=run.as_of_ms,
        started_ms=run.started_ms,
        by=run.by,
        topic=run.topic,
        dry_run=run.dry_run,
        due_ms=run.due_ms,
        nodes=tuple(_node_run(*each, results.get(each)) for each in nodes),
    )


def _node_run(group: str, node: str, result: RunResult | Unreadable | None) -> ArchiveNodeRun:
    if result is None:
        return ArchiveNodeRun(group, node)
    if isinstance(result, Unreadable):
        return ArchiveNodeRun(group, node, error=str(result))
    return ArchiveNodeRun(
        group,
        node,
        state=str(result.state),
        begun_ms=result.begun_ms,
        ended_ms=result.ended_ms or None,
        total=result.total,
        topics=dict(sorted(result.topics.items())),
        omitted=result.omitted,
    )
