"""Routes every request to the channel of its partition, or refuses it.

The dispatcher knows commands, channels, and the few reasons a whole node refuses PUTs. It holds no
queue: a request is answered, parked (in its channel, or until its topic was looked up or its log
opened), or handed to the flush it waits for before the next request is handled. PUTs that follow a
parked one wait behind it. Waiting requests and bytes are counted per connection; at a bound the
server stops reading the connection (``server``).
"""

from collections import deque
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeGuard

from vq.broker.base.session import Handler, Session
from vq.broker.partition.channel import Channel
from vq.broker.partition.context import Context
from vq.broker.partition.gate import Gate
from vq.broker.partition.role import Role
from vq.broker.replication.mastership import Mastership
from vq.broker.serving import reading
from vq.broker.serving.directory import Directory, known, look_up
from vq.broker.serving.fetching import Fetches
from vq.broker.serving.getting import GetSession
from vq.errors import (
    Busy,
    DiskFull,
    InternalError,
    InvalidRequest,
    MemberRequired,
    NotMaster,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import TopicPartition
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.remoting.format import ACCESS, Access, Command
from vq.shown import shown

logger = get_logger(__name__)

#: A PUT that knows a newer epoch than this node waits so long: its claim may be under way.
HOLD_S: Final = 1.0
_new: Final = tuple.__new__  # of a named tuple: the same without its Python-level wrapper


class Moves(Protocol):
    """Carries out moves; in practice ``moving.Mover``."""

    def seal(self, session: Session, request_id: RequestId, channel: Channel, version: int) -> None:
        """Carry out a SEAL."""
        ...

    def adopt(self, session: Session, request_id: RequestId, header: wire.AdoptRequest) -> None:
        """Carry out an ADOPT."""
        ...


class Verifies(Protocol):
    """Looks for damage; in practice ``verifying.Verifier``."""

    def verify(
        self, session: Session, request_id: RequestId, channel: Channel, header: wire.VerifyRequest
    ) -> None:
        """Carry out a VERIFY."""
        ...


class Finds(Protocol):
    """Searches for messages; in practice ``finding.Finder``."""

    def find(
        self, session: Session, request_id: RequestId, channel: Channel, header: wire.FindRequest
    ) -> None:
        """Carry out a FIND."""
        ...


class Repairs(Protocol):
    """Has intact bytes for other nodes; in practice ``repairing.Repairer``."""

    def give(
        self, session: Session, request_id: RequestId, channel: Channel, header: wire.RepairRequest
    ) -> None:
        """Carry out a REPAIR."""
        ...


class Dispatcher:
    """See the module's text.

    Args:
        handlers: The table that ``server.Server`` routes by; it is filled here.
        directory: Has the channels.
        context: Of these.
        gate: Knows why the whole node takes no requests.
        mastership: Is told of an epoch that is newer than that in which this node leads.
        fetches, moves, verifies, repairs, finds: Carry out requests.
    """

    def __init__(
        self,
        handlers: dict[int, Handler],
        directory: Directory,
        context: Context,
        *,
        gate: Gate,
        mastership: Mastership,
        fetches: Fetches,
        moves: Moves,
        verifies: Verifies,
        repairs: Repairs,
        finds: Finds,
    ) -> None:
        self._handlers = handlers
        self._directory = directory
        self._gate = gate
        self._mastership = mastership
        self._moves = moves
        self._verifies = verifies
        self._repairs = repairs
        self._finds = finds
        self._channels = directory.channels
        self._context = context
        self._role = context.role
        self._lines: dict[tuple[Session, TopicPartition], deque[_WaitingPut]] = {}
        self._held: deque[_HeldPut] = deque()
        self._looks_again = False
        self._fetches = fetches
        own: dict[int, Handler] = {
            Command.PUT: self.put,
            Command.GET: self._reading(self.get),
            Command.FETCH: self._reading(fetches.fetch),
            Command.OFFSETS: self._serving(self.offsets),
            Command.FIND: self._serving(self.find),
            Command.VERIFY: self.verify,
            Command.PING: self.ping,
            Command.SEAL: self._serving(self.seal),
            Command.ADOPT: self._serving(self.adopt),
            Command.REPLICATE: self.replicate,
            Command.EPOCH_END: self.epoch_end,
            Command.REPAIR: self.repair,
        }
        for command, handler in own.items():
            self.add(command, handler)
        gate.moved.listen(self._release_puts)

    def add(self, command: int, handler: Handler) -> None:
        """Have a command handled for those whom ``ACCESS`` names; others are refused.

        What anyone may send goes to the handler itself: it costs no check.
        """
        access, group = ACCESS[Command(command)], self._context.group

        def guarded(session: Session, request_id: RequestId, header: Any, body: bytes) -> None:
            member = session.member
            if member is not None and (access is Access.CLUSTER or member.group == group):
                handler(session, request_id, header, body)
                return
            who = "not proved" if member is None else f"of {member.group or 'a command'}"
            session.refuse(
                request_id,
                MemberRequired(
                    f"{Command(command).name} is for members of {access.value} only, this "
                    f"connection is {who}"
                ),
            )

        self._handlers[command] = handler if access is Access.ANYONE else guarded

    def _serving(self, handler: Handler) -> Handler:
        """Return a handler that refuses while another node leads the group."""

        def handle(session: Session, request_id: RequestId, header: Any, body: bytes) -> None:
            if self._gate.refusal is not None:
                session.refuse(request_id, self._gate.refusal)
            else:
                handler(session, request_id, header, body)

        return handle

    def _reading(self, handler: Handler) -> Handler:
        """Like ``_serving``, for reads: a reader may ask for the answer of a copy."""
        serve = self._serving(handler)

        def handle(session: Session, request_id: RequestId, header: Any, body: bytes) -> None:
            (handler if header.from_copy else serve)(session, request_id, header, body)

        return handle

    def put(
        self, session: Session, request_id: RequestId, header: wire.PutRequest, body: bytes
    ) -> None:
        """PUT: append a batch."""
        key = _new(TopicPartition, (header.topic, header.partition))
        line = self._lines.get((session, key)) if self._lines else None
        if line is not None:
            line.append(_WaitingPut(_Parked(session, body), request_id, header))
            return
        channel = self._channels.get(key)
        if self._gate.put_refusal is not None or not (self._role.holds() or _goes_on(channel)):
            self._refuse_put(session, request_id, header, body)
        elif _is_ready(channel, header):
            channel.put(session, request_id, header, body)
        else:
            waiting = _WaitingPut(_Parked(session, body), request_id, header)
            self._lines[session, key] = deque([waiting])
            self._advance(session, key)

    def _append(
        self,
        channel: Channel | None,
        session: Session,
        request_id: RequestId,
        header: wire.PutRequest,
        body: bytes,
    ) -> None:
        """Hand a PUT to its channel, unless the node takes none."""
        if self._gate.put_refusal is not None or not (self._role.holds() or _goes_on(channel)):
            self._refuse_put(session, request_id, header, body)
        elif channel is None:
            self._refuse(session, request_id, Busy(f"{header.topic} is being looked up"))
        else:
            channel.put(session, request_id, header, body)

    def _refuse_put(
        self, session: Session, request_id: RequestId, header: wire.PutRequest, body: bytes
    ) -> None:
        """Refuse a PUT, or hold it: this node hands over, or it may be about to lead."""
        if self._acknowledge_known(session, request_id, header):
            return
        if not self._gate.holds and not self._may_lead_soon(header):
            self._refuse(session, request_id, self._refusal())
            return
        until = self._context.clock.monotonic() + HOLD_S
        waiting = _WaitingPut(_Parked(session, body), request_id, header)
        self._held.append(_HeldPut(until, waiting))
        self._look_again()

    def _acknowledge_known(
        self, session: Session, request_id: RequestId, header: wire.PutRequest
    ) -> bool:
        """See ``Channel.acknowledge_known``."""
        if not isinstance(self._gate.put_refusal, DiskFull):
            return False
        channel = self._channels.get((header.topic, header.partition))
        if not (self._role.holds() or _goes_on(channel)):
            return False
        if channel is None or header.topic_id not in (channel.topic_id, ""):
            return False
        return channel.acknowledge_known(session, request_id, header)

    def _may_lead_soon(self, header: wire.PutRequest) -> bool:
        """Whether a client knows that this node leads, before this node does."""
        return header.epoch > self._gate.epoch and isinstance(self._gate.put_refusal, NotMaster)

    def _look_again(self) -> None:
        if self._held and not self._looks_again:
            self._looks_again = True
            self._context.call_later(HOLD_S, self._look_at_held)

    def _look_at_held(self) -> None:
        self._looks_again = False
        self._release_puts()
        self._look_again()

    def _release_puts(self) -> None:
        """Carry out the PUTs that were held, in order, or refuse them; some go on waiting."""
        now = self._context.clock.monotonic()
        held, self._held = self._held, deque()
        for each in held:
            waits = self._may_lead_soon(each.put.header)
            if self._gate.holds or (waits and now < each.until):
                self._held.append(each)
            elif waits:
                self._context.counters.refused += 1
                each.put.parked.refuse(each.put.request_id, self._refusal())
            else:
                each.put.go_on(self.put)

    def _refuse(self, session: Session, request_id: RequestId, error: VqError) -> None:
        self._context.counters.refused += 1
        session.refuse(request_id, error)

    def _refusal(self) -> VqError:
        """Return the error with which this node refuses PUTs when it takes none."""
        return self._gate.put_refusal or _lease_ended(self._role)

    # PUTs of one connection to one partition are carried out in the order they were sent, so a PUT
    # waits behind one that waits. Each connection has a queue of its own: a topic that must be
    # looked up delays only the connection that named it.
    def _advance(self, session: Session, key: TopicPartition) -> None:
        """Handle the PUTs that wait, in order, until one must go on waiting."""
        line = self._lines[session, key]
        while line:
            first = line[0]
            channel = self._channels.get(key)
            if first.parked.ended or _is_ready(channel, first.header):
                line.popleft()
                first.go_on(partial(self._append, channel))
            elif channel is None or first.header.topic_id not in (channel.topic_id, ""):
                asked = first.header.topic_id
                found = partial(self._found, session, key, asked, len(line))
                look_up(self._directory, key, asked, found, session)
                return
            else:
                self._directory.open(
                    channel, partial(self._opened, session, key, channel, len(line))
                )
                return
        del self._lines[session, key]

    def _found(
        self,
        session: Session,
        key: TopicPartition,
        asked: str,
        count: int,
        found: Channel | VqError,
    ) -> None:
        """Go on after a look-up for the first PUT that waits.

        An error holds for all PUTs of that topic id that waited when the look-up began, and for no
        later one: the topic may have been made before that was sent.
        """
        if isinstance(found, VqError):
            line = self._lines[session, key]
            for each in _take(line, count, (asked,)):
                each.parked.refuse(each.request_id, found)
        self._advance(session, key)

    def _opened(self, session: Session, key: TopicPartition, channel: Channel, count: int) -> None:
        """Go on once the log is open; if it is not, refuse the PUTs that wait."""
        if channel.log is None:
            for each in _take(self._lines[session, key], count, (channel.topic_id, "")):
                each.go_on(partial(self._append, channel))
        self._advance(session, key)

    def _known(self, header: Any) -> Channel | None:
        """Return the channel that a request names, if it is one of the topic that it means."""
        partition = TopicPartition(header.topic, header.partition)
        return known(self._directory, partition, header.topic_id)

    def get(
        self, session: Session, request_id: RequestId, header: wire.GetRequest, body: bytes
    ) -> None:
        """GET: read bytes, now or when there are some."""
        GetSession(self._fetches, session, header).begin(request_id, header)

    def offsets(
        self, session: Session, request_id: RequestId, header: wire.OffsetsRequest, body: bytes
    ) -> None:
        """OFFSETS: return the range of a partition."""
        channel = self._known(header)
        if channel is None:
            self._resolve(self.offsets, session, request_id, header, b"")
        else:
            reading.offsets(channel, session, request_id, header)

    def verify(
        self, session: Session, request_id: RequestId, header: wire.VerifyRequest, body: bytes
    ) -> None:
        """VERIFY: look for damage."""
        channel = self._known(header)
        if channel is None:
            self._resolve(self.verify, session, request_id, header, b"")
        else:
            self._verifies.verify(session, request_id, channel, header)

    def find(
        self, session: Session, request_id: RequestId, header: wire.FindRequest, body: bytes
    ) -> None:
        """FIND: search for messages."""
        channel = self._known(header)
        if channel is None:
            self._resolve(self.find, session, request_id, header, b"")
        else:
            self._finds.find(session, request_id, channel, header)

    def ping(self, session: Session, request_id: RequestId, _header: object, _body: bytes) -> None:
        """PING: answer with the time of the wall clock."""
        session.reply(request_id, wire.PingResponse(wall_ms=self._context.clock.wall_ms()))

    def seal(
        self, session: Session, request_id: RequestId, header: wire.SealRequest, body: bytes
    ) -> None:
        """SEAL: end the span that this group holds."""
        channel = self._known(header)
        if channel is None:
            self._resolve(self.seal, session, request_id, header, b"")
        else:
            self._moves.seal(session, request_id, channel, header.placement_version)

    def adopt(
        self, session: Session, request_id: RequestId, header: wire.AdoptRequest, _body: bytes
    ) -> None:
        """ADOPT: prepare the log of a span that this group shall hold."""
        if self._gate.put_refusal is not None:
            session.refuse(request_id, self._gate.put_refusal)
        else:
            self._moves.adopt(session, request_id, header)

    def replicate(
        self, session: Session, request_id: RequestId, header: wire.ReplicateRequest, body: bytes
    ) -> None:
        """REPLICATE: have another node of the group copy logs of this one."""
        error = self._why_not_copied(session, header)
        if error is not None:
            session.refuse(request_id, error)
        else:
            self._fetches.replicate(session, request_id, header, body)

    def epoch_end(
        self, session: Session, request_id: RequestId, header: wire.EpochEndRequest, body: bytes
    ) -> None:
        """EPOCH_END: tell where the log of this node parts from a copy."""
        error = self._why_not_copied(session, header)
        channel = self._known(header)
        if error is not None:
            session.refuse(request_id, error)
        elif channel is None:
            self._resolve(self.epoch_end, session, request_id, header, b"")
        elif self._directory.is_changing(channel.partition):
            session.refuse(request_id, Busy(f"the logs of {channel} are being changed"))
        elif channel.log is None and channel.rules.read:
            self._when_open(channel, session, request_id, header)
        else:
            reading.epoch_end(channel, session, request_id, header)

    def repair(
        self, session: Session, request_id: RequestId, header: wire.RepairRequest, body: bytes
    ) -> None:
        """REPAIR: give intact bytes to another node of the group, whoever leads."""
        channel = self._known(header)
        if channel is None:
            self._resolve(self.repair, session, request_id, header, b"")
        else:
            self._repairs.give(session, request_id, channel, header)

    def _when_open(
        self,
        channel: Channel,
        session: Session,
        request_id: RequestId,
        header: wire.EpochEndRequest,
    ) -> None:
        """Answer an EPOCH_END once the log is open: what is on disk of it must be known."""
        parked = _Parked(session, b"")

        def answer(
            session: Session, request_id: RequestId, header: wire.EpochEndRequest, _: bytes
        ) -> None:
            reading.epoch_end(channel, session, request_id, header)

        self._directory.open(channel, lambda: parked.go_on(answer, request_id, header))

    def _why_not_copied(
        self, session: Session, header: wire.ReplicateRequest | wire.EpochEndRequest
    ) -> VqError | None:
        """Return why a copy must not follow this node, None if it may."""
        role, epoch = self._role, header.epoch
        if session.member is None or header.node != session.member.node:
            return InvalidRequest(
                f"{shown(header.node)} is not the node that this connection has proved to be"
            )
        if epoch == role.epoch and epoch:
            return None
        if epoch > role.epoch > 0:
            self._hear_of_epoch(epoch, header.node)
        return reading.not_followed(role, header.node, epoch)

    def _hear_of_epoch(self, epoch: int, node: str) -> None:
        """Take that a node which copied from this one is in a newer epoch: nobody confirms here."""
        if self._mastership.hear(epoch, node):
            for channel in self._channels.values():
                channel.acks.drop(channel.acks.mastership_lost())

    def _resolve(
        self, handler: Handler, session: Session, request_id: RequestId, header: Any, body: bytes
    ) -> None:
        """Have the partition looked up; the request waits meanwhile."""
        parked = _Parked(session, body)

        def then(found: Channel | VqError) -> None:
            if isinstance(found, VqError):
                parked.refuse(request_id, found)
            else:
                parked.go_on(handler, request_id, header)

        partition = TopicPartition(header.topic, header.partition)
        look_up(self._directory, partition, header.topic_id, then, session)


def _goes_on(channel: Channel | None) -> bool:
    """Whether a partition takes PUTs although the lease of this node is over."""
    return channel is not None and channel.goes_on


def _is_ready(channel: Channel | None, header: wire.PutRequest) -> TypeGuard[Channel]:
    """Whether the channel can handle a PUT at once."""
    return (
        channel is not None
        and header.topic_id in (channel.topic_id, "")
        and (channel.log is not None or not channel.takes_puts)
    )


class _WaitingPut(NamedTuple):
    """A PUT that waits for its channel, or for its log to be opened."""

    parked: "_Parked"
    request_id: RequestId
    header: wire.PutRequest

    def go_on(self, handler: Handler) -> None:
        """See ``_Parked.go_on``."""
        self.parked.go_on(handler, self.request_id, self.header)


class _HeldPut(NamedTuple):
    """A PUT that is held, and until when."""

    until: float
    put: _WaitingPut


def _take(line: deque[_WaitingPut], count: int, topic_ids: tuple[str, ...]) -> list[_WaitingPut]:
    """Remove those of the first ``count`` that name one of the topic ids; the others stay."""
    first = [line.popleft() for _ in range(count)]
    line.extendleft(each for each in reversed(first) if each.header.topic_id not in topic_ids)
    return [each for each in first if each.header.topic_id in topic_ids]


class _Parked:
    """The body of a request that waits for its channel: counted, and dropped with its connection.

    When its connection ends, the body is dropped, not only its count: a client that sends,
    disconnects and connects again must not fill the memory during a slow look-up. Such a PUT was
    not answered, and the client sends it again over its next connection.
    """

    __slots__ = ("_body", "_session")

    def __init__(self, session: Session, body: bytes) -> None:
        self._session = session
        self._body: bytes | None = body
        session.waiting[self] = None
        session.count_put_bytes(len(body))

    @property
    def ended(self) -> bool:
        """Whether its connection has ended, or it was handled."""
        return self._body is None

    def cancel(self) -> None:
        """See ``session.Cancellable``."""
        self._take()

    def go_on(self, handler: Handler, request_id: RequestId, header: Any) -> None:
        """Have the request handled, unless its connection has ended.

        Raises nothing: the caller has other requests to call.
        """
        body = self._take()
        if body is None:
            return
        try:
            handler(self._session, request_id, header, body)
        except Exception as error:
            logger.exception("request that waited failed", request=request_id)
            self._session.refuse(request_id, InternalError(f"{type(error).__name__}: {error}"))

    def refuse(self, request_id: RequestId, error: VqError) -> None:
        """Answer with an error, unless the connection has ended."""
        if self._take() is not None:
            self._session.refuse(request_id, error)

    def _take(self) -> bytes | None:
        body, self._body = self._body, None
        if body is not None:
            self._session.waiting.pop(self, None)
            self._session.count_put_bytes(-len(body))
        return body


def _lease_ended(role: Role) -> NotMaster:
    return NotMaster(
        f"ZooKeeper has not answered group {role.group} for so long that another node may lead it "
        "now. Topics with replication = sync take messages meanwhile, as long as all nodes in sync "
        f"({', '.join(sorted(role.insync))}) keep up"
    )
