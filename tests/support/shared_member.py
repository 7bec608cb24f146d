"""A member of a shared group that speaks the protocol, and notes what it was told."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from support.broker import Client, MemoryCluster

from vq.broker.shared.notes import SettlementKind
from vq.coordination.topics.reserved_topics import INTERNAL_SETTINGS
from vq.coordination.topics.topics import create_topic
from vq.errors import Busy, NotMaster, OutcomeUnknown, ShuttingDown, UnknownTopic, VqError
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import (
    ReceiveRequest,
    ReceiveResponse,
    SettleItem,
    SettleRequest,
    SettleResponse,
    SharedKeys,
    SharedRequest,
    SharedResponse,
    SharedRun,
    SharedSource,
)
from vq.reserved import SHARED_TOPIC

ACK, RELEASE, REJECT, EXTEND, UNUSED = SettlementKind


class Got(NamedTuple):
    """A run that a member got."""

    source: int
    first: int
    messages: int
    grant: int
    deliveries: int


class SharedMember:
    """See the module.

    Args:
        cluster: Its brokers.
        number: Of the member.
        ends: Of the topic's partitions, the numbers of the first messages that are not there.
        fields: Of its RECEIVEs.
    """

    def __init__(
        self, cluster: MemoryCluster, number: int, ends: Sequence[int], **fields: Any
    ) -> None:
        self.cluster = cluster
        self.number = number
        self.ends = list(ends)
        self.fields = fields
        self.attempt = self.sequence = 0
        self.client: Client | None = None

    def about(self) -> dict[str, Any]:
        """Return the first fields of each request."""
        return {"topic": SHARED_TOPIC, "partition": 0, "group": "g"}

    def sources(self) -> list[SharedSource]:
        """Return the partitions that it reads."""
        return [
            SharedSource(topic="t", partition=number, topic_id="i", end=end)
            for number, end in enumerate(self.ends)
        ]

    async def call(self, command: Command, request: Any) -> Any:
        """Send a request to the node that leads; repeat it until it is answered."""
        async with asyncio.timeout(120):
            while True:
                try:
                    return await self.once(command, request)
                except (VqError, ConnectionError, TimeoutError) as error:
                    again = (Busy, NotMaster, OutcomeUnknown, UnknownTopic, ShuttingDown)
                    if isinstance(error, VqError) and not isinstance(error, again):
                        raise
                    await asyncio.sleep(0.1)

    async def once(self, command: Command, request: Any) -> Any:
        """Send a request to any node that is there."""
        last: BaseException = ConnectionError("no node")
        for node in list(self.cluster.nodes.values()):
            try:
                if self.client is None or self.client.closed.is_set():
                    self.client = None
                    self.client = await Client.connect(self.cluster.network, node.address)
                header, _ = await self.client.call(command, request)
                return header
            except (VqError, ConnectionError, TimeoutError, OSError) as error:
                last = error
                if self.client is not None:
                    self.client.close()
                self.client = None
        raise last

    def ask(self, most: int = 10, wait_ms: int = 0, **fields: Any) -> ReceiveRequest:
        """Return the next RECEIVE."""
        self.attempt += 1
        wanted = {"lease_ms": 1_000, "open_max": 1_000, "group_open_max": 2_000, **self.fields}
        return ReceiveRequest(
            **self.about(),
            member=self.number,
            attempt=self.attempt,
            max_messages=most,
            max_wait_ms=wait_ms,
            sources=self.sources(),
            **{**wanted, **fields},
        )

    async def receive(self, most: int = 10, wait_ms: int = 0, **fields: Any) -> list[Got]:
        """Receive messages."""
        return await self.got(self.ask(most, wait_ms, **fields))

    async def got(self, request: ReceiveRequest) -> list[Got]:
        """Return what a RECEIVE gets."""
        response: ReceiveResponse = await self.call(Command.RECEIVE, request)
        return [
            Got(each.source, each.first, each.messages, each.grant, each.deliveries)
            for each in response.runs
        ]

    async def waiting(self, run: Got, keys: Sequence[int]) -> set[int]:
        """Tell the keys of a run; return which of its messages must wait."""
        request = self.ask(0, keyed=True)
        request.attempt = 0
        told = SharedKeys(source=run.source, first=run.first, grant=run.grant, keys=keys)
        request.keys.append(told)
        response: ReceiveResponse = await self.call(Command.RECEIVE, request)
        assert response.keyed
        return {
            number
            for each in response.waits
            for number in range(each.first, each.first + each.messages)
        }

    def say(self, *items: tuple[Got, SettlementKind, int]) -> SettleRequest:
        """Return the next SETTLE."""
        self.sequence += 1
        return SettleRequest(
            **self.about(),
            member=self.number,
            sequence=self.sequence,
            sources=self.sources(),
            items=[
                SettleItem(
                    run=SharedRun(
                        source=run.source,
                        first=run.first,
                        messages=run.messages,
                        grant=run.grant,
                    ),
                    kind=kind,
                    time_ms=time_ms,
                )
                for run, kind, time_ms in items
            ],
        )

    async def settle(
        self, run: Got, kind: SettlementKind, time_ms: int = 0
    ) -> list[tuple[int, int, int]]:
        """Settle a run; return what of it is lost: partition, first message, messages."""
        return self.lost(await self.call(Command.SETTLE, self.say((run, kind, time_ms))))

    def lost(self, response: SettleResponse) -> list[tuple[int, int, int]]:
        """Return what a SETTLE has not found."""
        return [(each.source, each.first, each.messages) for each in response.lost]

    async def status(self, **fields: Any) -> SharedResponse:
        """Return what is told of the group."""
        told: SharedResponse = await self.call(
            Command.SHARED, SharedRequest(**self.about(), **fields)
        )
        return told


async def with_shared_topic(cluster: MemoryCluster) -> None:
    """Have the cluster have the topic of shared groups; a node of it must run."""
    async with cluster.admin() as coordinator:
        await create_topic(coordinator, SHARED_TOPIC, INTERNAL_SETTINGS)
