"""What a request needs, derived from what it does: from its header, and from its body. Pure.

``Command`` in ``remoting.format`` names the right of each command. Here are those whose request may
need another one, or several.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from vq.errors import CorruptData, InvalidRequest
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import COMMANDS, Access, Command
from vq.reserved import DELAYED_TOPIC, Purpose, group_of, is_reserved, origin_in
from vq.security.rules import Need, Resource, Right
from vq.store.records.record import Record, decode_records, read_delivery, read_properties

#: Takes the header and the body of a request.
Demand = Callable[[Any, bytes], Iterable[Need]]

DESCRIBE, READ, WRITE, MANAGE = Right
TOPIC, GROUP, TRANSACTIONAL_ID, CLUSTER = Resource
_MANAGE_ALL: Final = Need(MANAGE, CLUSTER)


def demand_of(command: int) -> Demand:
    """Return what says what a request of a command needs.

    Raises:
        LookupError: A user may send the command, and its row does not say what that needs.
    """
    row = COMMANDS[command]
    if row.access is not Access.ANYONE:
        return lambda _header, _body: (_MANAGE_ALL,)
    if row.needs is None:
        raise LookupError(f"the row of {row.name} does not say which right it needs")
    if not row.needs:
        return lambda _header, _body: ()
    own = _OWN.get(row)
    if own is not None:
        return own
    right, resource = row.needs
    if resource is CLUSTER:
        return lambda _header, _body: (Need(right, CLUSTER),)
    return lambda header, _body: (Need(right, resource, header.topic),)


def _put(header: wire.PutRequest, body: bytes) -> Iterator[Need]:
    yield from _of_messages(header.topic, body)
    if header.accepted:  # a broker that delivers says so: its messages were checked before
        yield _MANAGE_ALL


def _of_messages(topic: str, body: bytes) -> Iterable[Need]:
    """Return what messages need that are sent to a topic.

    Delayed ones need what they need where they go. Copies of messages that failed need the right to
    read what they are copies of: who sends dead letters again sends them there.

    Raises:
        InvalidRequest: That cannot be read from them.
    """
    if not looks_inside(topic):
        return (Need(WRITE, TOPIC, topic),)
    needs: dict[Need, None] = {}
    if topic != DELAYED_TOPIC:
        needs[Need(WRITE, TOPIC, topic)] = None
    for record in _records(body):
        properties, to = record.properties, topic
        if properties is None:
            continue
        if topic == DELAYED_TOPIC:
            delivery = read_delivery(properties)
            if delivery is None:
                continue  # it goes nowhere
            to = delivery[1].topic
            needs[Need(WRITE, TOPIC, to)] = None
        if _is_of_group(to):
            read = read_properties(properties)
            origin = None if read is None else origin_in(read[1])
            if origin is not None:
                needs[Need(READ, TOPIC, origin.topic)] = None
    return needs


def looks_inside(topic: str) -> bool:
    """Whether what a message needs is in the message: in a topic of vq's own."""
    return is_reserved(topic) and (topic == DELAYED_TOPIC or _is_of_group(topic))


def _is_of_group(topic: str) -> bool:
    return any(group_of(topic, each) is not None for each in Purpose)


def _records(body: bytes) -> list[Record]:
    try:
        records = decode_records(body, 0)
    except CorruptData as error:
        raise InvalidRequest(f"messages that cannot be read: {error}") from error
    if sum(each.next_offset - each.offset for each in records) != len(body):
        raise InvalidRequest(f"{len(body)} bytes of messages are not whole messages")
    return records


def of_transaction(header: wire.TransactRequest, body: bytes) -> Iterator[Need]:
    """Go through what a TRANSACT needs: of what it sends, and of whom it decides for."""
    at = 0
    for part in header.parts:
        data = body[at : at + part.size]
        at += part.size
        yield from _of_messages(part.topic, data)
    if header.client:
        yield Need(WRITE, TRANSACTIONAL_ID, header.client)
    if header.checks.group:
        yield Need(WRITE, GROUP, header.checks.group)
    elif header.by:
        yield _MANAGE_ALL


def _status(header: wire.StatusRequest, _body: bytes) -> Iterator[Need]:
    yield _MANAGE_ALL if header.with_security else Need(DESCRIBE, CLUSTER)


def _check(header: wire.CheckRequest, _body: bytes) -> Iterator[Need]:
    yield _MANAGE_ALL if header.again else Need(WRITE, GROUP, header.group)


def _shared_messages(
    header: wire.ReceiveRequest | wire.SettleRequest, _body: bytes
) -> Iterator[Need]:
    yield Need(READ, GROUP, header.group)
    for topic in {each.topic: None for each in header.sources}:
        yield Need(READ, TOPIC, topic)


def _shared(header: wire.SharedRequest, _body: bytes) -> Iterator[Need]:
    is_changed = header.forget or header.forget_topic
    yield Need(MANAGE if is_changed else DESCRIBE, GROUP, header.group)


def _transactions(header: wire.TransactionsRequest, _body: bytes) -> Iterator[Need]:
    yield Need(READ if header.messages else DESCRIBE, CLUSTER)


def _verify(header: wire.VerifyRequest, _body: bytes) -> Iterator[Need]:
    yield Need(MANAGE if header.begin else READ, TOPIC, header.topic)


def _blocks(header: wire.BlocksRequest, _body: bytes) -> Iterator[Need]:
    yield Need(DESCRIBE, TOPIC, header.topic) if header.topic else Need(DESCRIBE, CLUSTER)


def _fence(header: wire.FenceRequest, _body: bytes) -> Iterator[Need]:
    yield Need(WRITE, TRANSACTIONAL_ID, header.client)


def _cancel(header: wire.CancelRequest, _body: bytes) -> Iterator[Need]:
    """Of delayed messages: what one needs is known once it was read. No other topic has any, and
    the answer is not to tell whether it is there.
    """
    if header.topic != DELAYED_TOPIC:
        yield Need(WRITE, TOPIC, header.topic)


def _each_by_itself(_header: Any, _body: bytes) -> Iterator[Need]:
    """FETCH: each partition is decided when it is added, and has its own answer."""
    yield from ()


_OWN: Final[Mapping[Command, Demand]] = {
    Command.PUT: _put,
    Command.TRANSACT: of_transaction,
    Command.STATUS: _status,
    Command.CHECK: _check,
    Command.TRANSACTIONS: _transactions,
    Command.VERIFY: _verify,
    Command.BLOCKS: _blocks,
    Command.FENCE: _fence,
    Command.RECEIVE: _shared_messages,
    Command.SETTLE: _shared_messages,
    Command.SHARED: _shared,
    Command.FETCH: _each_by_itself,
    Command.CANCEL: _cancel,
}
