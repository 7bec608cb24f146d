"""Having brokers read what they store, and look for damage.

Loop-bound functions on a ``ClusterClient``. Brokers go on verifying if the caller goes away.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from vq.admin.brokers import Damage, damage_fields, master_of
from vq.client.cluster import ClusterClient
from vq.coordination import topics
from vq.coordination.reading import TopicView, gather_all
from vq.errors import InvalidArgument, VqError
from vq.model import Address
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import VerifyRequest, VerifyResponse

_POLL_S: Final = 0.5
_PROGRESS_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Verified:
    """What one broker group found in what it holds of a partition.

    Attributes:
        topic: The partition's topic.
        partition: Its number.
        group: The broker group whose master was asked.
        read_bytes: How much it read; None: it did not say.
        skipped_bytes: How much it found intact so lately that it did not read it again.
        damage: The damaged ranges; None: it did not say.
        error: Why not everything was verified; "" when everything was.
    """

    topic: str
    partition: int
    group: str
    read_bytes: int | None
    skipped_bytes: int | None
    damage: tuple[Damage, ...] | None
    error: str

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


async def verify(
    cluster: ClusterClient,
    names: Sequence[str] | None,
    *,
    partitions: Sequence[int] = (),
    again: bool = False,
    on_progress: ProgressListener | None = None,
) -> list[Verified]:
    """Have brokers verify topics whole; return what each found when all have ended.

    If something cannot be verified, ``error`` of its partition says why.

    Args:
        cluster: Where.
        names: Of the topics; None: all there are.
        partitions: Of each of these topics; all of them when empty.
        again: Read also what was found intact within a day.
        on_progress: Called every two seconds while brokers read.

    Raises:
        UnknownTopic: There is no topic of one of these names.
        InvalidArgument: A topic has no such partition.
    """
    wanted = await topics.list_topics(cluster.coordinator) if names is None else names
    views = await gather_all(topics.describe_topic(cluster.coordinator, name) for name in wanted)
    held = await held_parts(cluster, views, partitions)
    await _follow(cluster, held, again=again, on_progress=on_progress)
    return [part.result() for part in held]


@dataclass(slots=True)
class HeldPart:
    """What one broker group holds of a partition, and what its master said last."""

    topic: str
    topic_id: str
    partition: int
    group: str
    address: Address | None
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
            self.error = f"group {self.group} has no running master"
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
            damage=None if answer is None else tuple(self._damage(answer)),
            error=self.error,
        )

    def _damage(self, answer: VerifyResponse) -> Iterable[Damage]:
        for each in damage_fields(answer.damage):
            yield Damage(self.topic, self.partition, self.group, **each)


async def held_parts(
    cluster: ClusterClient, views: Iterable[TopicView], partitions: Sequence[int]
) -> list[HeldPart]:
    """Return what broker groups hold of topics, each with the address of the group's master.

    Raises:
        InvalidArgument: A topic has no such partition.
    """
    found = []
    for view in views:
        beyond = [number for number in partitions if not 0 <= number < len(view.partitions)]
        if beyond:
            raise InvalidArgument(
                f"topic {view.name} has partitions 0 to {len(view.partitions) - 1}, not {beyond[0]}"
            )
        for placement in view.partitions:
            if not partitions or placement.partition in partitions:
                found += [
                    HeldPart(view.name, view.id, placement.partition, group, None)
                    for group in dict.fromkeys(span.group for span in placement.spans)
                ]
    groups = sorted({part.group for part in found})
    masters = dict(
        zip(groups, await gather_all(master_of(cluster, group) for group in groups), strict=True)
    )
    for part in found:
        master = masters[part.group]
        part.address = None if master is None else master.address
    return found


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
        await asyncio.sleep(_POLL_S)
        await gather_all(part.ask(cluster, begin=False) for part in running)


def _progress(parts: Sequence[HeldPart], running: int) -> VerifyProgress:
    answers = [part.answer for part in parts if part.answer is not None]
    return VerifyProgress(
        sum(answer.verified_bytes for answer in answers),
        sum(answer.total_bytes for answer in answers),
        running,
    )
