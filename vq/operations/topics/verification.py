"""Having brokers read what they store, and look for damage.

Loop-bound functions on a ``ClusterClient``. Brokers go on verifying if the caller goes away.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.topics.topics import describe_topic, list_topics
from vq.coordination.tree.reading import TopicView, gather_all
from vq.errors import InvalidArgument, VqError
from vq.model import Address
from vq.operations.base.acts import audited
from vq.operations.brokers.brokers import Damage, fields_of
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import VerifyRequest, VerifyResponse

POLL_S: Final = 0.5
_PROGRESS_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Verified:
    """What one node found in what it holds of a partition.

    Attributes:
        topic: The partition's topic.
        partition: Its number.
        group: The node's broker group.
        read_bytes: How much it read; None: it did not say.
        skipped_bytes: How much it found intact so lately that it did not read it again.
        repaired: How many damaged ranges it found and has repaired by now, from another node;
            None: it did not say.
        damage: The damaged ranges that are left; None: it did not say.
        error: Why not everything was verified; "" when everything was.
        node: The node; "": its group has none.
    """

    topic: str
    partition: int
    group: str
    read_bytes: int | None
    skipped_bytes: int | None
    damage: tuple[Damage, ...] | None
    error: str
    node: str = ""
    repaired: int | None = None

    @property
    def damaged(self) -> int | None:
        """How many ranges are damaged; None if it is unknown whether any is."""
        if self.damage is None or (self.error and not self.damage):
            return None
        return len(self.damage)


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far brokers are: bytes read, bytes to read in all, and the partitions that go on."""

    read_bytes: int
    total_bytes: int
    running: int


ProgressListener = Callable[[VerifyProgress], object]


@audited()
async def verify(
    cluster: ClusterClient,
    topics: Sequence[str] | None = None,
    *,
    partitions: Sequence[int] = (),
    again: bool = False,
    on_progress: ProgressListener | None = None,
) -> list[Verified]:
    """Have brokers read what they store and look for damage; returns when all have ended.

    That may take hours: brokers read slowly, beside their other work, and go on if this call is
    interrupted.

    Args:
        topics: Their names; None: all there are.
        partitions: Of each of these topics; all of them when empty.
        again: Read also what was found intact within a day.
        on_progress: Called every two seconds meanwhile, on the factory's thread or loop; it must be
            short.

    Raises:
        UnknownTopic: There is no topic of one of these names.
        InvalidArgument: A topic has no such partition.
    """
    wanted = await list_topics(cluster.coordinator) if topics is None else topics
    views = await gather_all(describe_topic(cluster.coordinator, name) for name in wanted)
    held = await held_parts(cluster, views, partitions)
    await _follow(cluster, held, again=again, on_progress=on_progress)
    return [part.result() for part in held]


@dataclass(slots=True)
class HeldPart:
    """What one node holds of a partition, and what it said last."""

    topic: str
    topic_id: str
    partition: int
    group: str
    address: Address | None
    node: str = ""
    answer: VerifyResponse | None = None
    begun_ms: int = 0
    error: str = ""

    @property
    def running(self) -> bool:
        """Whether it is being verified."""
        return not self.error and self.answer is not None and self.answer.running

    async def ask(self, cluster: ClusterClient, *, begin: bool, again: bool = False) -> None:
        """Begin, or look how far it is; ``again``: read also what was found intact lately."""
        if self.address is None:
            named = f"node {self.node} of group {self.group} is not registered"
            self.error = named if self.node else f"group {self.group} has no running node"
            return
        request = VerifyRequest(
            topic=self.topic,
            partition=self.partition,
            topic_id=self.topic_id,
            whole=True,
            begin=begin,
            again=again,
        )
        try:
            answer, _ = await cluster.request(self.address, Command.VERIFY, request)
        except VqError as error:
            self.error = f"{type(error).__name__}: {error}"
        else:
            assert isinstance(answer, VerifyResponse)
            self.answer = answer
            self.error = answer.unverified if not answer.running else ""
            if begin:
                self.begun_ms = answer.begun_ms
            elif answer.begun_ms < self.begun_ms:
                self.error = "the broker was restarted meanwhile; verify again"

    def result(self) -> Verified:
        """Return what is known now."""
        answer = self.answer
        return Verified(
            topic=self.topic,
            partition=self.partition,
            group=self.group,
            read_bytes=None if answer is None else answer.verified_bytes,
            skipped_bytes=None if answer is None else answer.skipped_bytes,
            repaired=None if answer is None else answer.repaired,
            damage=None if answer is None else tuple(self._damage(answer)),
            error=self.error,
            node=self.node,
        )

    def _damage(self, answer: VerifyResponse) -> Iterable[Damage]:
        for each in answer.damage:
            yield Damage(self.topic, self.partition, self.group, **fields_of(each), node=self.node)


async def held_parts(
    cluster: ClusterClient, views: Iterable[TopicView], partitions: Sequence[int]
) -> list[HeldPart]:
    """Return what nodes hold of topics, each with its address.

    Raises:
        InvalidArgument: A topic has no such partition.
    """
    found: list[tuple[TopicView, int, str]] = []
    for view in views:
        beyond = [number for number in partitions if not 0 <= number < len(view.partitions)]
        if beyond:
            raise InvalidArgument(
                f"topic {view.name} has partitions 0 to {len(view.partitions) - 1}, not {beyond[0]}"
            )
        for placement in view.partitions:
            if not partitions or placement.partition in partitions:
                found += [
                    (view, placement.partition, group)
                    for group in dict.fromkeys(span.group for span in placement.spans)
                ]
    groups = sorted({group for _, _, group in found})
    holders = await gather_all(_holders(cluster, group) for group in groups)
    nodes = dict(zip(groups, holders, strict=True))
    return [
        HeldPart(view.name, view.id, partition, group, address, node)
        for view, partition, group in found
        for node, address in nodes[group].items()
    ]


async def _holders(cluster: ClusterClient, group: str) -> dict[str, Address | None]:
    """Return the nodes of a group that are registered or in sync, with their addresses."""
    state = await registry.read_state(cluster.coordinator, group)
    found: dict[str, Address | None] = dict.fromkeys(() if state is None else state.insync)
    for each in await registry.nodes(cluster.coordinator, group):
        found[each.node] = each.address
    return dict(sorted(found.items())) or {"": None}


async def _follow(
    cluster: ClusterClient,
    parts: Sequence[HeldPart],
    *,
    again: bool,
    on_progress: ProgressListener | None,
) -> None:
    """Begin everywhere, and return when all have ended; tell now and then how far they are."""
    await gather_all(part.ask(cluster, begin=True, again=again) for part in parts)
    told = cluster.clock.monotonic()
    while running := [part for part in parts if part.running]:
        if on_progress is not None and cluster.clock.monotonic() - told >= _PROGRESS_S:
            told = cluster.clock.monotonic()
            on_progress(_progress(parts, len(running)))
        await asyncio.sleep(POLL_S)
        await gather_all(part.ask(cluster, begin=False) for part in running)


def _progress(parts: Sequence[HeldPart], running: int) -> VerifyProgress:
    answers = [part.answer for part in parts if part.answer is not None]
    return VerifyProgress(
        sum(answer.verified_bytes for answer in answers),
        sum(answer.total_bytes for answer in answers),
        running,
    )
