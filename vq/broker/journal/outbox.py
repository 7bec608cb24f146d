"""Sends batches of messages to the masters of their partitions, this node included.

A batch is sent until it has an outcome, under one stamp: the broker that takes it recognises it
when it comes again. What keeps one partition waiting holds up no other one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

import google_crc32c

from vq.backoff import Backoff, Draws
from vq.coordination.topics.routes import RouteWatcher
from vq.coordination.tree.coordinator import Coordinator
from vq.errors import (
    STAMP_REFUSED,
    CoordinationError,
    NotMaster,
    OffsetOutOfRange,
    PartitionReadOnly,
    SequenceStale,
    UnknownPartition,
    UnknownTopic,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import Address, ProducerStamp, TopicPartition
from vq.remoting import wire_pb2 as wire
from vq.remoting.broker_connection import BrokerConnection, connect
from vq.remoting.format import Command
from vq.remoting.login import MEMBER_LOGIN
from vq.remoting.transport import Network

logger = get_logger(__name__)

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 10.0
#: What topics take is looked up no longer before their messages are accepted.
LOOK_UP_S: Final = 1.0
BACKOFF: Final = Backoff(first_s=0.05, most_s=5.0, jitter=0.2)
#: A group that had a partition before is asked so often what it knows of a batch, for a minute.
ASKED_BEFORE: Final = 18
#: A batch that is refused so often is told once.
TOLD_AFTER: Final = 5


class Gone(Exception):
    """There is no such topic or partition any more: nobody can have the messages."""


class NotRemembered(Exception):
    """The broker does not remember what was sent before with the stamps of the batch.

    It may be stored, or may not. Every later batch with these stamps would be refused, too.
    """


class Parcel(NamedTuple):
    """A batch to be sent.

    Attributes:
        to: Where.
        stamp: By whom it is; the same whenever it is sent.
        records: Its records.
        messages: How many they are.
        resend: It may have been sent before.
        transaction: The transaction that it is a part of; 0: none.
        topic_id: Of the topic: another one of its name does not get it; "": it does.
    """

    to: TopicPartition
    stamp: ProducerStamp
    records: bytes
    messages: int
    resend: bool
    transaction: int = 0
    topic_id: str = ""


class Outbox:
    """The connections of a node to the masters of partitions. Loop-bound.

    Args:
        coordinator: A started coordinator, by the time of the first batch.
        network: To reach brokers.
        rng: For pauses.
        cluster: Its name.
        client_id: How this node calls itself.
        prove: Shows a broker that this node belongs to the cluster: it delivers for all users.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        network: Network,
        rng: Draws,
        *,
        cluster: str,
        client_id: str,
        prove: Callable[[BrokerConnection], Awaitable[None]],
    ) -> None:
        self._routes = RouteWatcher(coordinator)
        self._network = network
        self._rng = rng
        self._prove = prove
        self._cluster = cluster
        self._client_id = client_id
        self._connections: dict[Address, asyncio.Future[BrokerConnection]] = {}

    async def send(self, parcel: Parcel, tell: Callable[[str], None]) -> int:
        """Store a batch; return the offset of its first record.

        Args:
            parcel: The batch.
            tell: Told why it is not stored yet; "": it is.

        Raises:
            Gone, NotRemembered: See there.
        """
        crc: int = google_crc32c.value(parcel.records)
        id, epoch, sequence = parcel.stamp
        request = wire.PutRequest(
            topic=parcel.to.topic,
            partition=parcel.to.partition,
            record_count=parcel.messages,
            crc=crc,
            producer_id=id,
            producer_epoch=epoch,
            sequence=sequence,
            resend=parcel.resend,
            transaction_id=parcel.transaction,
            topic_id=parcel.topic_id,
            accepted=True,
        )
        failures = 0
        while True:
            try:
                address = await self._master(parcel.to, again=failures > 0)
                connection = await self._connection(address)
                answer, _ = await connection.request(
                    Command.PUT, request, parcel.records, timeout=ANSWER_TIMEOUT_S
                )
            except (UnknownTopic, UnknownPartition) as error:
                if await self._is_gone(parcel.to, parcel.topic_id):
                    raise Gone(str(error)) from error
                why: VqError = error
            except (*STAMP_REFUSED, SequenceStale) as error:
                offset = await self._stored_before(parcel.to, request, tell)
                if offset is None:
                    raise NotRemembered(str(error)) from error
                return offset
            except VqError as error:
                why = error
            else:
                if failures >= TOLD_AFTER:
                    tell("")
                assert isinstance(answer, wire.PutResponse)
                return answer.offset
            failures += 1
            request.resend = True
            if failures == TOLD_AFTER:
                tell(f"{parcel.to} takes no messages: {why}")
            await asyncio.sleep(BACKOFF.pause_s(failures, self._rng))

    async def _stored_before(
        self, to: TopicPartition, request: wire.PutRequest, tell: Callable[[str], None]
    ) -> int | None:
        """Return where a group has a batch that had the partition before; None: none tells it.

        The stamps move along with a partition. If the group that has it now loses them, as it does
        when another node leads, what was stored before the move is known only there.
        """
        view = self._routes.snapshot.topics.get(to.topic)
        spans = () if view is None else self._routes.snapshot.placement(to).spans
        groups = dict.fromkeys(span.group for span in reversed(spans[:-1]))
        groups.pop(spans[-1].group if spans else "", None)
        asked = wire.PutRequest()
        asked.CopyFrom(request)
        asked.epoch, asked.resend = 0, True
        for group in groups:
            for tries in range(1, ASKED_BEFORE + 1):
                try:
                    return await self._known_by(group, to, asked)
                except PartitionReadOnly:
                    break  # it does not know it
                except VqError as error:
                    tell(f"{group} had {to} before, and cannot tell what it has: {error}")
                    await asyncio.sleep(BACKOFF.pause_s(tries, self._rng))
        return None

    async def _known_by(self, group: str, to: TopicPartition, request: wire.PutRequest) -> int:
        """Return where a batch lies in a range of an earlier group.

        Raises:
            PartitionReadOnly: It does not know the batch.
            VqError: It cannot be asked now.
        """
        master = self._routes.snapshot.master(group)
        if master is None:
            await self._routes.refresh(to.topic)
            raise NotMaster(f"group {group}, which had {to}, has no master now")
        first = next(e for e in self._routes.snapshot.placement(to).spans if e.group == group)
        with suppress(OffsetOutOfRange):  # the log is opened for a reader
            await self.read(to, group, first.start, 1)
        connection = await self._connection(master[0])
        answer, _ = await connection.request(Command.PUT, request, timeout=ANSWER_TIMEOUT_S)
        assert isinstance(answer, wire.PutResponse)
        return answer.offset

    async def read(self, partition: TopicPartition, group: str, offset: int, size: int) -> bytes:
        """Return bytes of a range that another group has.

        Raises:
            OffsetOutOfRange: They are deleted; the details have the earliest offset that is kept.
            VqError: They cannot be read now.
        """
        await self._routes.track(partition.topic)
        master = self._routes.snapshot.master(group)
        if master is None:
            await self._routes.refresh(partition.topic)
            raise NotMaster(f"group {group}, which has a part of {partition}, has no master now")
        request = wire.GetRequest(
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
            max_bytes=size,
        )
        connection = await self._connection(master[0])
        try:
            _, body = await connection.request(Command.GET, request, timeout=ANSWER_TIMEOUT_S)
        except VqError as error:
            if error.refresh_routes:
                await self._routes.refresh(partition.topic)
            raise
        return body

    async def largest(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how many bytes a message of topics may have, as far as that can be told soon."""
        found: dict[str, int] = {}
        with suppress(VqError, TimeoutError):
            async with asyncio.timeout(LOOK_UP_S):
                for topic in topics:
                    if topic not in self._routes.snapshot.topics:
                        with suppress(UnknownTopic):
                            await self._routes.track(topic)
                    view = self._routes.snapshot.topics.get(topic)
                    if view is not None:
                        found[topic] = view.settings.max_message_bytes
        return found

    async def _master(self, to: TopicPartition, *, again: bool) -> Address:
        """Return who takes the appends of a partition.

        Raises:
            VqError: That cannot be told now.
        """
        if again:
            await self._routes.refresh(to.topic)
        else:
            await self._routes.track(to.topic)
        routes = self._routes.snapshot
        group = routes.placement(to).writer_group
        master = None if group is None else routes.master(group)
        if master is None:
            raise NotMaster(f"partition {to} has no master now")
        return master[0]

    async def _is_gone(self, to: TopicPartition, topic_id: str) -> bool:
        """Whether a topic or a partition is not there, also as ZooKeeper's leader knows it."""
        try:
            await self._routes.refresh(to.topic)
            self._routes.snapshot.placement(to)
            found = self._routes.snapshot.topic(to.topic).id
        except (UnknownTopic, UnknownPartition):
            return True
        except CoordinationError:
            return False
        return topic_id not in {found, ""}

    async def _connection(self, address: Address) -> BrokerConnection:
        """Return a connection to a broker; those who need one at the same time share it.

        Raises:
            VqError: There is none.
        """
        making = self._connections.get(address)
        if making is None:
            making = asyncio.ensure_future(
                self._connect(address, lambda _: self._forget(address, making))
            )
            self._connections[address] = making
        try:
            return await asyncio.shield(making)
        except VqError:
            self._forget(address, making)
            raise

    async def _connect(
        self, address: Address, on_close: Callable[[BrokerConnection], None]
    ) -> BrokerConnection:
        connection = await connect(
            self._network,
            address,
            client_id=self._client_id,
            cluster=self._cluster,
            timeout=CONNECT_TIMEOUT_S,
            on_close=on_close,
            login=MEMBER_LOGIN,
        )
        try:
            await self._prove(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _forget(self, address: Address, making: "asyncio.Future[BrokerConnection] | None") -> None:
        if self._connections.get(address) is making:
            self._connections.pop(address, None)

    async def close(self) -> None:
        """End all connections."""
        connections, self._connections = self._connections, {}
        for making in connections.values():
            making.cancel()
            with suppress(asyncio.CancelledError, VqError):
                (await making).close()
        await self._routes.close()
