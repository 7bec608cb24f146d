"""Routes every request to the channel that can answer it, or says why nobody here can.

The dispatcher knows commands, channels, and the few reasons a whole node refuses PUTs. It holds no
queue: a request is answered, parked in its channel, or handed to the flush it waits for before the
next one is looked at, and the places for waiting requests are bounded where they come in
(``server``), by not reading from who sent them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from vq.broker import reading
from vq.broker.channel import Channel
from vq.broker.context import Context
from vq.broker.session import Handler, Session
from vq.errors import NotMaster, UnknownTopic, VqError
from vq.model import TopicPartition
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import Ticket
from vq.remoting.format import Command


class Directory(Protocol):
    """Where channels are found and opened; in practice ``partitions.Partitions``."""

    channels: dict[tuple[str, int], Channel]

    def resolve(self, partition: TopicPartition, then: Callable[[Channel | VqError], None]) -> None:
        """Look again for a partition that is not in ``channels``; ``then`` is called later."""
        ...

    def open(self, channel: Channel, then: Callable[[], None]) -> None:
        """Give the channel its log, or a failure; ``then`` is called afterwards."""
        ...


class Moves(Protocol):
    """Who carries out moves; in practice ``moving.Mover``."""

    def seal(self, session: Session, ticket: Ticket, channel: Channel, version: int) -> None:
        """Carry out a SEAL."""
        ...

    def adopt(self, session: Session, ticket: Ticket, header: wire.AdoptRequest) -> None:
        """Carry out an ADOPT."""
        ...


class Dispatcher:
    """See the module's text.

    Attributes:
        put_refusal: Why the whole node takes no PUTs, or None: stopping, or the disk is full.
        handlers: The table that ``server.Server`` routes by.
    """

    def __init__(
        self,
        directory: Directory,
        moves: Moves,
        context: Context,
        status: Callable[[bool], wire.StatusResponse],
    ) -> None:
        self._directory = directory
        self._moves = moves
        self._channels = directory.channels
        self._context = context
        self._status = status
        self.put_refusal: VqError | None = None
        self.handlers: dict[int, Handler] = {
            Command.PUT: self.put,
            Command.GET: self.get,
            Command.OFFSETS: self.offsets,
            Command.PING: self.ping,
            Command.STATUS: self.status,
            Command.SEAL: self.seal,
            Command.ADOPT: self.adopt,
        }

    def put(self, session: Session, ticket: Ticket, header: wire.PutRequest, body: bytes) -> None:
        """PUT: append a batch."""
        context = self._context
        if self.put_refusal is not None or not context.may_acknowledge():
            context.counters.refused += 1
            session.refuse(ticket, self.put_refusal or _lease_ended(context))
            return
        channel = self._channels.get((header.topic, header.partition))
        if channel is None or header.topic_id not in (channel.topic_id, ""):
            self._resolve(self.put, session, ticket, header, body)
        elif channel.log is None and channel.takes_puts:
            self._directory.open(channel, partial(channel.put, session, ticket, header, body))
        else:
            channel.put(session, ticket, header, body)

    def get(self, session: Session, ticket: Ticket, header: wire.GetRequest, body: bytes) -> None:
        """GET: read bytes, now or when there are some."""
        channel = self._channels.get((header.topic, header.partition))
        if channel is None or header.topic_id not in (channel.topic_id, ""):
            self._resolve(self.get, session, ticket, header, body)
        else:
            reading.get(channel, session, ticket, header)

    def offsets(
        self, session: Session, ticket: Ticket, header: wire.OffsetsRequest, body: bytes
    ) -> None:
        """OFFSETS: tell the range of a partition."""
        channel = self._channels.get((header.topic, header.partition))
        if channel is None or header.topic_id not in (channel.topic_id, ""):
            self._resolve(self.offsets, session, ticket, header, body)
        else:
            reading.offsets(channel, session, ticket, header)

    def ping(self, session: Session, ticket: Ticket, _header: object, _body: bytes) -> None:
        """PING: say that this node lives, and what its wall clock shows."""
        session.reply(ticket, wire.PingResponse(wall_ms=self._context.clock.wall_ms()))

    def status(
        self, session: Session, ticket: Ticket, header: wire.StatusRequest, _body: bytes
    ) -> None:
        """STATUS: say what this node is and has done."""
        session.reply(ticket, self._status(header.with_partitions))

    def seal(self, session: Session, ticket: Ticket, header: wire.SealRequest, body: bytes) -> None:
        """SEAL: end the span that this group holds."""
        channel = self._channels.get((header.topic, header.partition))
        if channel is None or header.topic_id not in (channel.topic_id, ""):
            self._resolve(self.seal, session, ticket, header, body)
        else:
            self._moves.seal(session, ticket, channel, header.placement_version)

    def adopt(
        self, session: Session, ticket: Ticket, header: wire.AdoptRequest, _body: bytes
    ) -> None:
        """ADOPT: prepare the log of a span that this group shall hold."""
        if self.put_refusal is not None:
            session.refuse(ticket, self.put_refusal)
        else:
            self._moves.adopt(session, ticket, header)

    def _resolve(
        self, handler: Handler, session: Session, ticket: Ticket, header: Any, body: bytes
    ) -> None:
        """Look for the partition in ZooKeeper: the watch that tells of it may be on its way.

        Or of another topic of that name. What is sent to it must not end in its namesake, which is
        about to be deleted here.
        """

        def then(found: Channel | VqError) -> None:
            if isinstance(found, VqError):
                session.refuse(ticket, found)
            elif header.topic_id not in (found.topic_id, ""):
                session.refuse(ticket, _made_anew(header.topic))
            else:
                handler(session, ticket, header, body)

        self._directory.resolve(TopicPartition(header.topic, header.partition), then)


def _made_anew(topic: str) -> UnknownTopic:
    return UnknownTopic(f"topic {topic!r} was deleted and made anew; publish or subscribe it again")


def _lease_ended(context: Context) -> NotMaster:
    return NotMaster(
        f"ZooKeeper has not answered group {context.group} for so long that another node may lead "
        "it now"
    )
