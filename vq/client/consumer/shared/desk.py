"""What a member of a shared group asks the node that leads the group's journal. Loop-bound.

A request whose answer is lost is asked again as it was, by the same number: RECEIVE gets the same
messages then, and SETTLE the same answer.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from zlib import crc32

from vq.client.asking import ask_master
from vq.client.cluster import ClusterClient
from vq.client.consumer.shared.handles import SettledRun
from vq.errors import InvalidState
from vq.model import TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import (
    ReceiveRequest,
    ReceiveResponse,
    SettleItem,
    SettleRequest,
    SettleResponse,
    SharedKeys,
    SharedRun,
    SharedSource,
)
from vq.reserved import SHARED_TOPIC

#: How long an answer is waited for until it counts as lost for good.
ANSWER_S: Final = 30.0


class SeenCut(NamedTuple):
    """A partition was cut.

    Attributes:
        number: From this message on, all that was there is gone.
        cuts: Of so many cuts the journal knew, as it had told before this one was seen.
    """

    number: int
    cuts: int


class ToldSource(NamedTuple):
    """A partition that a member reads.

    Attributes:
        partition, topic_id: Which.
        begin: The number with which the group begins, if it has not begun there.
        end: The number of the first message that is not there yet.
        cut: The partition has lost its end, which is not told yet; None: it has not.
    """

    partition: TopicPartition
    topic_id: str
    begin: int
    end: int
    cut: SeenCut | None = None


class SharedTerms(NamedTuple):
    """What a member asks with.

    Attributes:
        lease_ms: It has messages so long.
        open_max: Nothing new of a partition of which so many messages are open,
        group_open_max: and nothing new at all if so many of the group are.
        is_keyed: Of one key, one message at a time, in their order.
    """

    lease_ms: int
    open_max: int
    group_open_max: int
    is_keyed: bool = False


@dataclass(slots=True)
class SharedSeat:
    """Who asks: to the journal, one member. It has one RECEIVE and one SETTLE at a time.

    Attributes:
        member: Its number; not 0.
        attempt, sequence: Of its last RECEIVE, and of its last SETTLE.
    """

    member: int
    attempt: int = 0
    sequence: int = 0

    @classmethod
    def drawn(cls, rng: random.Random) -> "SharedSeat":
        """Return one that nobody else has."""
        return cls(rng.getrandbits(63) | 1)


async def shared_journal_of(cluster: ClusterClient, group: str) -> TopicPartition:
    """Return the partition in which it stands what a shared group has; it is made if missing.

    Raises:
        VqError: It cannot be.
    """
    routes = await cluster.track_internal(SHARED_TOPIC)
    count = len(routes.topic(SHARED_TOPIC).partitions)
    return TopicPartition(SHARED_TOPIC, crc32(group.encode()) % count)


class SharedDesk:
    """See the module.

    Args:
        cluster: Where the group is.
        group: Its name.
        terms: With what the member asks; None: it only settles.
        seat: The member.
    """

    def __init__(
        self, cluster: ClusterClient, group: str, terms: SharedTerms | None, seat: SharedSeat
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._terms = terms
        self._seat = seat

    async def receive(
        self, sources: Sequence[ToldSource], most: int, wait_s: float
    ) -> ReceiveResponse:
        """Return messages; one call at a time.

        Raises:
            VqError: There is no answer, or the broker refuses.
        """
        self._seat.attempt += 1
        return await self.repeat(sources, most, wait_s)

    async def repeat(
        self, sources: Sequence[ToldSource], most: int, wait_s: float
    ) -> ReceiveResponse:
        """Ask again as last time: what was got then, and is still had, comes again.

        Raises:
            VqError: There is no answer, or the broker refuses.
        """
        return await self._receive(sources, self._seat.attempt, most, wait_s)

    async def tell(self, sources: Sequence[ToldSource]) -> ReceiveResponse:
        """Tell what partitions have; any number of calls at a time, also while one receives.

        Raises:
            VqError: There is no answer, or the broker refuses.
        """
        return await self._receive(sources, 0, 0, 0.0)

    async def end(self, sources: Sequence[ToldSource]) -> None:
        """Have the call of ``receive`` answered that waits; the member asks no more.

        A node of an earlier version only learns what the partitions have.

        Raises:
            VqError: There is no answer, or the broker refuses.
        """
        await self._receive(sources, self._seat.attempt, 0, 0.0)

    async def tell_keys(
        self, source: ToldSource, first: int, grant: int, keys: Sequence[int]
    ) -> set[int]:
        """Tell the keys of messages that were read, see ``key_number``; any number of calls.

        Returns:
            Those that must wait, for others of their keys: the member has them no more.

        Raises:
            VqError: There is no answer, or the broker refuses.
        """
        told = SharedKeys(source=0, first=first, grant=grant, keys=keys)
        answer = await self._receive([source], 0, 0, 0.0, [told])
        return {
            number for run in answer.waits for number in range(run.first, run.first + run.messages)
        }

    async def _receive(
        self,
        sources: Sequence[ToldSource],
        attempt: int,
        most: int,
        wait_s: float,
        keys: Sequence[SharedKeys] = (),
    ) -> ReceiveResponse:
        assert self._terms is not None
        journal = await shared_journal_of(self._cluster, self._group)
        request = ReceiveRequest(
            topic=journal.topic,
            partition=journal.partition,
            group=self._group,
            member=self._seat.member,
            attempt=attempt,
            max_messages=most,
            lease_ms=self._terms.lease_ms,
            max_wait_ms=int(wait_s * 1_000),
            open_max=self._terms.open_max,
            group_open_max=self._terms.group_open_max,
            sources=[
                SharedSource(
                    topic=each.partition.topic,
                    partition=each.partition.partition,
                    topic_id=each.topic_id,
                    begin=each.begin,
                    end=each.end,
                    was_cut=each.cut is not None,
                    cut_at=0 if each.cut is None else each.cut.number,
                    cuts=0 if each.cut is None else each.cut.cuts,
                )
                for each in sources
            ],
            keyed=self._terms.is_keyed,
            keys=keys,
        )
        answer: ReceiveResponse = await ask_master(
            self._cluster,
            journal,
            Command.RECEIVE,
            request,
            deadline=self._cluster.clock.monotonic() + ANSWER_S + wait_s,
            what="whether messages were given to this member",
        )
        if self._terms.is_keyed and not answer.keyed:
            raise InvalidState(
                f"the broker that leads {journal} is of an earlier version, which does not keep "
                "the order of keys in shared groups",
                hint="upgrade the brokers before members with mode = 'keyed'",
            )
        return answer

    async def settle(
        self, sources: Sequence[tuple[TopicPartition, str]], runs: Sequence[SettledRun]
    ) -> SettleResponse:
        """Say what becomes of messages; one call at a time.

        Raises:
            OutcomeUnknown: There is no answer.
            VqError: The broker refuses.
        """
        self._seat.sequence += 1
        journal = await shared_journal_of(self._cluster, self._group)
        request = SettleRequest(
            topic=journal.topic,
            partition=journal.partition,
            group=self._group,
            member=self._seat.member,
            sequence=self._seat.sequence,
            sources=[
                SharedSource(topic=each.topic, partition=each.partition, topic_id=topic_id)
                for each, topic_id in sources
            ],
            items=[
                SettleItem(
                    run=SharedRun(
                        source=each.source,
                        first=each.first,
                        messages=each.messages,
                        grant=each.grant,
                    ),
                    kind=each.kind,
                    time_ms=each.time_ms,
                )
                for each in runs
            ],
        )
        answer: SettleResponse = await ask_master(
            self._cluster,
            journal,
            Command.SETTLE,
            request,
            deadline=self._cluster.clock.monotonic() + ANSWER_S,
            what="what became of messages that this member has settled",
        )
        return answer
