"""Rules of access at the door of a broker: every command, every kind of user."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import google_crc32c
import pytest
from support.access import allow, believe_names, connect_as
from support.broker import Client, MemoryCluster, fetched, memory_cluster, message
from support.client import factory_of
from support.fetch_requests import add, again
from support.shared_member import with_shared_topic

from vq.broker.base.config import Authorization
from vq.broker.connections import revoking
from vq.broker.node import BrokerNode
from vq.broker.security import known_rules
from vq.broker.security.demands import demand_of
from vq.client.ids import IdGenerator
from vq.coordination.security.access import change_access, read_access
from vq.coordination.tree.values.access import AccessList
from vq.errors import (
    Busy,
    InvalidRequest,
    MemberRequired,
    NotAuthorized,
    VqError,
)
from vq.model import Cancellation, Message
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import COMMANDS, Access, Command
from vq.remoting.messages import decode_error, decode_reply
from vq.reserved import DELAYED_TOPIC, SHARED_TOPIC, TRANSACTIONS_TOPIC
from vq.security.rules import NEEDED, AccessRule
from vq.store.records.record import Properties, encode_properties, encode_record
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

Request = tuple[Command, Any, bytes]


def put(topic: str = "t", record: bytes = b"", **fields: Any) -> Request:
    body = record or message(b"x")
    values = {"record_count": 1, "crc": google_crc32c.value(body), **fields}
    return Command.PUT, wire.PutRequest(topic=topic, **values), body


def fetch(topic: str = "t") -> Request:
    return Command.FETCH, wire.FetchRequest(session=1, partitions=[add(0, topic=topic)]), b""


def delayed(topic: str, **headers: str) -> bytes:
    properties = Properties(delivery_time_ms=1 << 41, destination=f"{topic}-0", headers=headers)
    return encode_record(1, b"later", None, encode_properties(properties))


def copy_of(topic: str) -> dict[str, str]:
    """The header that a copy of a message of this topic has."""
    return {"_vq.origin": f"{topic}-0@88"}


def transact(*parts: str, record: bytes = b"", **fields: Any) -> Request:
    body = record or message(b"x")
    sent = [
        wire.TransactionPart(
            topic=topic, record_count=1, size=len(body), crc=google_crc32c.value(body), index=n
        )
        for n, topic in enumerate(parts)
    ]
    values = {"topic": TRANSACTIONS_TOPIC, "transaction": 7, "state": 1, **fields}
    return Command.TRANSACT, wire.TransactRequest(parts=sent, **values), body * len(parts)


#: Each command, and what one request of it needs. A command may have several.
REQUESTS: Final[Mapping[str, tuple[str, Request]]] = {
    "PUT": ("write topic:t", put()),
    "PUT to a retry topic": ("read group:g", put("_vq.retry.g")),
    "PUT to dead letters": ("read group:g", put("_vq.dlq.g")),
    "PUT of a delayed message": ("write topic:t", put(DELAYED_TOPIC, delayed("t"))),
    "PUT of a delayed retry": ("read group:g", put(DELAYED_TOPIC, delayed("_vq.retry.g"))),
    "PUT to the journal": ("write cluster", put(TRANSACTIONS_TOPIC)),
    "GET": ("read topic:t", (Command.GET, wire.GetRequest(topic="t"), b"")),
    "GET of dead letters": (
        "read group:g",
        (Command.GET, wire.GetRequest(topic="_vq.dlq.g"), b""),
    ),
    "GET of delayed messages": (
        "read cluster",
        (Command.GET, wire.GetRequest(topic=DELAYED_TOPIC), b""),
    ),
    "FETCH": ("read topic:t", fetch()),
    "FETCH of a retry topic": ("read group:g", fetch("_vq.retry.g")),
    "FETCH of the journal": ("read cluster", fetch(TRANSACTIONS_TOPIC)),
    "FIND": ("read topic:t", (Command.FIND, wire.FindRequest(topic="t"), b"")),
    "OFFSETS": ("describe topic:t", (Command.OFFSETS, wire.OffsetsRequest(topic="t"), b"")),
    "VERIFY": ("read topic:t", (Command.VERIFY, wire.VerifyRequest(topic="t"), b"")),
    "VERIFY of the whole": (
        "manage topic:t",
        (Command.VERIFY, wire.VerifyRequest(topic="t", whole=True, begin=True), b""),
    ),
    "BLOCKS": ("describe topic:t", (Command.BLOCKS, wire.BlocksRequest(topic="t"), b"")),
    "BLOCKS of all": ("describe cluster", (Command.BLOCKS, wire.BlocksRequest(), b"")),
    "STATUS": ("describe cluster", (Command.STATUS, wire.StatusRequest(), b"")),
    "TRANSACT": ("write topic:t", transact("t")),
    "TRANSACT of a delayed message": (
        "write topic:t",
        transact(DELAYED_TOPIC, record=delayed("t")),
    ),
    "TRANSACT with an id": ("write transactional-id:shop", transact(client="shop")),
    "TRANSACT of a half message": (
        "write group:g",
        transact(state=2, checks=wire.TransactionChecks(group="g")),
    ),
    "TRANSACT of a check": (
        "write group:g",
        transact(state=3, by="me", checks=wire.TransactionChecks(group="g")),
    ),
    "TRANSACT of an operator": ("manage cluster", transact(state=4, by="me")),
    "FENCE": (
        "write transactional-id:shop",
        (Command.FENCE, wire.FenceRequest(topic=TRANSACTIONS_TOPIC, client="shop"), b""),
    ),
    "TRANSACTIONS": (
        "describe cluster",
        (Command.TRANSACTIONS, wire.TransactionsRequest(topic=TRANSACTIONS_TOPIC), b""),
    ),
    "TRANSACTIONS with messages": (
        "read cluster",
        (
            Command.TRANSACTIONS,
            wire.TransactionsRequest(topic=TRANSACTIONS_TOPIC, messages=True),
            b"",
        ),
    ),
    "CHECK": (
        "write group:g",
        (Command.CHECK, wire.CheckRequest(topic=TRANSACTIONS_TOPIC, group="g"), b""),
    ),
    "CHECK again": (
        "manage cluster",
        (Command.CHECK, wire.CheckRequest(topic=TRANSACTIONS_TOPIC, again=7), b""),
    ),
    "RECEIVE": (
        "read group:g",
        (
            Command.RECEIVE,
            wire.ReceiveRequest(
                topic=SHARED_TOPIC, group="g", sources=[wire.SharedSource(topic="_vq.retry.g")]
            ),
            b"",
        ),
    ),
    "SETTLE": (
        "read group:g",
        (
            Command.SETTLE,
            wire.SettleRequest(
                topic=SHARED_TOPIC, group="g", sources=[wire.SharedSource(topic="_vq.retry.g")]
            ),
            b"",
        ),
    ),
    "SHARED": (
        "describe group:g",
        (Command.SHARED, wire.SharedRequest(topic=SHARED_TOPIC, group="g"), b""),
    ),
    "SHARED that forgets": (
        "manage group:g",
        (Command.SHARED, wire.SharedRequest(topic=SHARED_TOPIC, group="g", forget=True), b""),
    ),
}

#: Who asks, with which rules for the need, and whether it is allowed. RIGHT is the need's, NAME its
#: resource, BEGIN the beginning of that.
USERS: Final[Mapping[str, tuple[str, tuple[str, ...], bool]]] = {
    "nobody, no rule": ("", (), False),
    "nobody, the rule of a user": ("", ("allow user:alice RIGHT NAME",), False),
    "nobody, a rule for it": ("", ("allow anonymous RIGHT NAME",), True),
    "a user, no rule": ("alice", (), False),
    "a user, the rule of another one": ("bob", ("allow user:alice RIGHT NAME",), False),
    "a user, the rule of another name": ("alice", ("allow user:alice RIGHT OTHER",), False),
    "a user, the rule of the name": ("alice", ("allow user:alice RIGHT NAME",), True),
    "a user, the rule of the beginning": ("alice", ("allow user:alice RIGHT BEGIN",), True),
    "a user, the rule of its role": ("alice.clerks", ("allow role:clerks RIGHT NAME",), True),
    "a user, denied and allowed": (
        "alice",
        ("allow user:alice RIGHT NAME", "deny * RIGHT BEGIN"),
        False,
    ),
    "a user, its role denied": (
        "alice.clerks",
        ("allow user:alice RIGHT NAME", "deny role:clerks RIGHT NAME"),
        False,
    ),
    "a super user, denied": ("root", ("deny * RIGHT NAME",), True),
    "a member of the cluster, denied": ("member", ("deny * RIGHT NAME",), True),
}


def rules_for(need: str, rules: tuple[str, ...]) -> list[str]:
    right, about = need.split()
    kind, colon, name = about.partition(":")
    begin = f"{kind}:{name[:1]}*" if colon else kind
    other = f"{kind}:{name}2" if colon else "topic:cluster"
    return [
        each.replace("RIGHT", right)
        .replace("NAME", about)
        .replace("BEGIN", begin)
        .replace("OTHER", other)
        for each in rules
    ]


async def error_of(client: Client, request: Request) -> VqError | None:
    """Return the error of a request; of a FETCH, that of its first partition."""
    command, header, body = request
    frame = await asyncio.wait_for(client.send(command, header, body), WAIT_S)
    if frame.status:
        return decode_error(frame.status, frame.header, 0)
    answer: Any = decode_reply(frame)
    if command is Command.FETCH and answer.results and answer.results[0].status:
        return NotAuthorized() if answer.results[0].status == NotAuthorized.status else VqError()
    return None


async def assert_refused(client: Client, *requests: Request) -> None:
    for each in requests:
        assert isinstance(await error_of(client, each), NotAuthorized), each[0].name


@pytest.fixture
async def guarded(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MemoryCluster]:
    """A node that enforces rules, with topic ``t``; ``root`` is a super user."""
    believe_names(monkeypatch)
    async with memory_cluster() as made:
        await made.start(authorization=Authorization.ENFORCED, super_users=("root",))
        await made.create_topic("t", partitions=2)
        yield made


async def connect(cluster: MemoryCluster, name: str = "") -> Client:
    if name == "member":
        return await cluster.prove(await connect_as(cluster, cluster.nodes["b1"]))
    return await connect_as(cluster, cluster.nodes["b1"], name)


@pytest.mark.parametrize("who", USERS)
async def test_every_command_asks_for_its_right(guarded: MemoryCluster, who: str) -> None:
    user, rules, is_allowed = USERS[who]
    client = await connect(guarded, user)
    for needs in sorted({need for need, _ in REQUESTS.values()}):
        await allow(guarded, *rules_for(needs, rules))
        for name, (need, request) in REQUESTS.items():
            if need != needs:
                continue
            error = await error_of(client, request)
            assert isinstance(error, NotAuthorized) is not is_allowed, (name, error)


async def test_no_command_is_left_out(guarded: MemoryCluster) -> None:
    """A command that is added later fails here until it says what it needs."""
    routes = guarded.nodes["b1"].parts.dispatcher.routes
    of_users = {each for each in routes if COMMANDS[each].access is Access.ANYONE}
    tested = {request[0] for _, request in REQUESTS.values()} | {Command.CANCEL}
    assert of_users - tested == {Command.PING}
    for each in routes:
        assert demand_of(each) is not None
    for row in COMMANDS.values():
        if row.needs:
            assert row.needs[0] in NEEDED[row.needs[1]]
    client = await connect(guarded, "root")
    for each in routes.keys() - of_users:
        error = await error_of(client, (COMMANDS[each], COMMANDS[each].request(), b""))
        assert isinstance(error, MemberRequired), COMMANDS[each].name


async def test_the_error_names_user_right_resource_and_rule(guarded: MemoryCluster) -> None:
    await allow(guarded, "allow user:alice read topic:t", "deny user:alice write topic:t*")
    client = await connect(guarded, "alice")
    error = await error_of(client, put())
    assert error is not None
    assert not error.retriable
    assert error.message == (
        "user alice has no right to write topic:t: rule: deny user:alice write topic:t*"
    )
    assert error.details == {
        "user": "alice",
        "right": "write",
        "resource": "topic:t",
        "rule": "deny user:alice write topic:t*",
    }
    nobody = await error_of(await connect(guarded), put("_vq.dlq.g"))
    assert nobody is not None
    assert nobody.message == "user anonymous has no right to read group:g: no rule allows it"


async def test_a_name_as_long_as_a_header_is_refused_shortly(guarded: MemoryCluster) -> None:
    client = await connect(guarded, "alice")
    error = await error_of(client, put("x" * 500_000))
    assert isinstance(error, NotAuthorized)
    assert len(error.message) < 300


async def test_names_that_nothing_can_have_are_not_kept(guarded: MemoryCluster) -> None:
    """They are as long as the client likes, and no rule can be about one of them."""
    alice, member = await connect(guarded, "alice"), await connect(guarded, "member")
    asked = [
        (Command.GET, wire.GetRequest(topic="x" * 500_000), b""),
        (Command.GET, wire.GetRequest(topic="*"), b""),
        (Command.SHARED, wire.SharedRequest(topic=SHARED_TOPIC, group="*"), b""),
        (Command.FENCE, wire.FenceRequest(topic=TRANSACTIONS_TOPIC, client="y" * 500_000), b""),
        (Command.FENCE, wire.FenceRequest(topic=TRANSACTIONS_TOPIC, client="pay 1"), b""),
        (Command.GET, wire.GetRequest(topic="orders"), b""),
    ]
    await assert_refused(alice, *asked)
    status, _ = await member.call(Command.STATUS, wire.StatusRequest(with_security=True))
    told = {each.resource for each in status.security.missing}
    assert told == {"transactional-id:pay 1", "topic:orders"}
    kept = guarded.nodes["b1"].parts.authority.missing()
    assert sum(len(each.need.name) + len(each.why) for each in kept) < 500


# What the body does -----------------------------------------------------------------------------
async def test_a_delayed_message_needs_the_right_where_it_goes(guarded: MemoryCluster) -> None:
    await allow(guarded, "allow user:alice write topic:t")
    client = await connect(guarded, "alice")
    both = delayed("t") + delayed("secret")
    crc = google_crc32c.value(both)
    await assert_refused(
        client,
        put(DELAYED_TOPIC, delayed("secret")),
        put(DELAYED_TOPIC, both, record_count=2, crc=crc),
        put(DELAYED_TOPIC, delayed(TRANSACTIONS_TOPIC)),
        transact(DELAYED_TOPIC, record=delayed("secret")),
    )
    cut = await error_of(client, put(DELAYED_TOPIC, delayed("t")[:-1]))
    assert isinstance(cut, InvalidRequest)


async def test_a_copy_needs_the_right_to_read_what_it_is_a_copy_of(guarded: MemoryCluster) -> None:
    """Who sends dead letters again would send it to that topic."""
    await allow(guarded, "allow user:alice read topic:t", "allow user:alice read group:g")
    client = await connect(guarded, "alice")

    def copy(topic: str) -> bytes:
        return encode_record(1, b"x", None, encode_properties(Properties(headers=copy_of(topic))))

    for own in ("_vq.dlq.g", "_vq.retry.g"):
        await assert_refused(
            client,
            put(own, copy("secret")),
            put(DELAYED_TOPIC, delayed(own, **copy_of("secret"))),
            transact(own, record=copy("secret")),
        )
        for good in (put(own, copy("t")), put(DELAYED_TOPIC, delayed(own, **copy_of("t")))):
            assert not isinstance(await error_of(client, good), NotAuthorized)


async def test_a_put_cannot_pretend_to_be_a_delivery(guarded: MemoryCluster) -> None:
    """Only brokers deliver messages that were accepted before."""
    await allow(guarded, "allow * write topic:t")
    client = await connect(guarded, "alice")
    await assert_refused(client, put(accepted=True))
    assert await error_of(client, put()) is None


async def test_a_put_cannot_pretend_to_be_a_transaction_of_another_user(
    guarded: MemoryCluster,
) -> None:
    """A transaction of one partition is one PUT."""
    await allow(guarded, "allow * write topic:t")
    alice, bob = await connect(guarded, "alice"), await connect(guarded, "bob")
    assert await error_of(alice, put(transaction_id=7)) is None
    await assert_refused(bob, put(transaction_id=7))


async def test_a_producer_id_belongs_to_one_user(guarded: MemoryCluster) -> None:
    await allow(guarded, "allow * write topic:t")
    alice, bob = await connect(guarded, "alice"), await connect(guarded, "bob")
    assert await error_of(alice, put(producer_id=5, producer_epoch=1)) is None
    error = await error_of(bob, put(producer_id=5, producer_epoch=1, sequence=1))
    assert isinstance(error, NotAuthorized)
    assert "producer id 5" in error.message
    assert await error_of(alice, put(producer_id=5, producer_epoch=1, sequence=1)) is None
    member = await connect(guarded, "member")
    assert await error_of(member, put(producer_id=6, producer_epoch=1)) is None
    await assert_refused(alice, put(producer_id=6, producer_epoch=1, sequence=1))


async def test_nobody_takes_a_number_where_it_may_not_write(guarded: MemoryCluster) -> None:
    """Numbers of others can be seen and foreseen: whoever has one first keeps others out of it."""
    await allow(guarded, "allow user:alice write topic:t", "allow user:mallory write topic:m")
    await guarded.create_topic("m", partitions=1)
    alice, mallory = await connect(guarded, "alice"), await connect(guarded, "mallory")
    assert await error_of(mallory, put("m", producer_id=5, producer_epoch=1)) is None
    assert await error_of(mallory, put("m", transaction_id=7)) is None
    assert await error_of(alice, put(producer_id=5, producer_epoch=1)) is None
    assert await error_of(alice, put(transaction_id=7)) is None


async def test_a_batch_cannot_pretend_to_be_a_transaction_of_the_journal(
    guarded: MemoryCluster,
) -> None:
    await allow(guarded, "allow * write topic:t")
    async with factory_of(guarded, client_id="user.alice") as factory:
        producer = await factory.create_producer()
        async with producer.transaction():  # the topic of transactions is made
            for number in range(2):
                await producer.send(Message("t", b"x", key=number))
    alice, bob = await connect(guarded, "alice"), await connect(guarded, "bob")
    (number,) = IdGenerator(7, guarded.ensemble.clock).take(1)
    assert await error_of(alice, transact("t", transaction=number)) is None
    await assert_refused(bob, put(transaction_id=number))


async def test_who_may_not_write_where_a_message_goes_does_not_recall_it(
    guarded: MemoryCluster,
) -> None:
    await allow(guarded, "allow user:alice write,read topic:t")
    async with factory_of(guarded, client_id="user.alice") as factory:
        producer = await factory.create_producer()
        await producer.publish("t")
        result = await producer.send(Message("t", b"later", delay_s=600))
        asked = wire.CancelRequest(
            topic=DELAYED_TOPIC,
            partition=result.partition,
            offset=result.offset,
            message_id=result.id,
        )
        await assert_refused(await connect(guarded, "bob"), (Command.CANCEL, asked, b""))
        assert await producer.cancel(result) is Cancellation.CANCELLED


# Sessions that last -----------------------------------------------------------------------------
async def test_partitions_of_one_fetch_are_decided_by_themselves(guarded: MemoryCluster) -> None:
    await guarded.create_topic("secret", partitions=1)
    await allow(guarded, "allow user:alice read,write topic:t")
    client = await connect(guarded, "alice")
    await client.put("t", 1, [message(b"x")])
    found = await client.fetch(
        0, add(0, topic="secret", handle=7), add(1), add(0, topic="missing", handle=8)
    )
    assert {handle: each[0].status for handle, each in found.items()} == {7: 52, 1: 0, 8: 52}
    assert found[7][0].texts["resource"] == "topic:secret"
    assert await client.fetch(1, again(7, 0), max_wait_ms=1) != {}


async def test_reads_that_wait_end_when_the_right_is_withdrawn(guarded: MemoryCluster) -> None:
    """S-REVOKE: FETCH and GET; those of other users and topics go on."""
    await guarded.create_topic("u", partitions=1)
    both = ["allow * read topic:t", "allow * read,write topic:u"]
    await allow(guarded, *both)
    alice, bob = await connect(guarded, "alice"), await connect(guarded, "bob")
    waits = alice.send_fetch(0, add(0), add(1), add(0, topic="u", handle=9))
    got = alice.send_get("t", 1, 0, max_wait_ms=20_000)
    other = bob.send_fetch(0, add(0))
    server = guarded.nodes["b1"].parts.server
    await until(lambda: server.reads_waiting == 3)
    await allow(guarded, *both, "deny user:alice read topic:t")
    found = fetched(await asyncio.wait_for(waits, WAIT_S))
    assert {handle: each[0].status for handle, each in found.items()} == {0: 52, 1: 52}
    assert (await asyncio.wait_for(got, WAIT_S)).status == NotAuthorized.status
    assert not other.done()
    on = alice.send_fetch(1)
    await bob.put("u", 0, [message(b"still")])
    assert set(fetched(await asyncio.wait_for(on, WAIT_S))) == {9}


async def test_many_reads_end_in_turns_of_the_loop(
    guarded: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the rules change again meanwhile."""
    monkeypatch.setattr(revoking, "LOOKS_PER_TURN", 2)
    await allow(guarded, "allow * read topic:t")
    clients = [await connect(guarded, f"u{n}") for n in range(12)]
    waits = [each.send_fetch(0, add(0), add(1)) for each in clients]
    server = guarded.nodes["b1"].parts.server
    await until(lambda: server.reads_waiting == len(clients))
    await allow(guarded, "allow * read topic:t", "deny user:u3 read topic:t")
    await allow(guarded, "allow user:u7 read topic:t")
    for each in (*waits[:7], *waits[8:]):
        found = fetched(await asyncio.wait_for(each, WAIT_S))
        assert {handle: result.status for handle, (result, _) in found.items()} == {0: 52, 1: 52}
    assert not waits[7].done()


async def test_a_put_that_waits_for_its_topic_is_decided_when_it_is_carried_out(
    guarded: MemoryCluster,
) -> None:
    await allow(guarded, "allow user:alice write topic:t")
    client = await connect(guarded, "alice")
    with guarded.runners["b1"].held():  # its log is not opened yet
        waits = client.send_put("t", 1, [message(b"x")])
        await until(lambda: guarded.runners["b1"].waiting)
        async with guarded.admin() as coordinator:
            await coordinator.delete(AccessList.path())
        await until(lambda: guarded.nodes["b1"].parts.rules.version == -1)
    assert (await asyncio.wait_for(waits, WAIT_S)).status == NotAuthorized.status


async def test_a_check_that_waits_tells_nothing_when_the_right_is_withdrawn(
    guarded: MemoryCluster,
) -> None:
    rules = ["allow user:alice write topic:t", "allow * write group:g"]
    await allow(guarded, *rules)
    async with factory_of(guarded, client_id="user.alice") as factory:
        producer = await factory.create_producer()
        async with producer.transaction():  # the topic of transactions is made
            for number in range(2):
                await producer.send(Message("t", b"x", key=number))
    alice, bob = await connect(guarded, "alice"), await connect(guarded, "bob")
    checks = wire.TransactionChecks(group="g", after_ms=5_000, interval_ms=60_000, most=3)
    (number,) = IdGenerator(7, guarded.ensemble.clock).take(1)
    half = transact("t", transaction=number, state=2, checks=checks)
    assert await error_of(alice, half) is None
    asked = {"topic": TRANSACTIONS_TOPIC, "group": "g", "instance": 9, "max_count": 1}
    waits = bob.send(Command.CHECK, wire.CheckRequest(**asked, max_wait_ms=20_000))
    await allow(guarded, *rules, "deny user:bob write group:g")
    frame = await asyncio.wait_for(waits, WAIT_S)
    assert (frame.status, frame.body) == (NotAuthorized.status, b"")


@pytest.mark.parametrize("withdrawn", ["group:g", "topic:t"])
async def test_a_receive_that_waits_gets_nothing_when_the_right_is_withdrawn(
    guarded: MemoryCluster, withdrawn: str
) -> None:
    """Else it would have messages for its whole lease, and give them to nobody."""
    rules = ["allow * read group:g", "allow * read topic:t"]
    await allow(guarded, *rules)
    await with_shared_topic(guarded)
    alice, bob = await connect(guarded, "alice"), await connect(guarded, "bob")

    def receive(client: Client, member: int, end: int, wait_ms: int) -> "asyncio.Future[Any]":
        source = wire.SharedSource(topic="t", topic_id="i", end=end)
        asked = {"topic": SHARED_TOPIC, "group": "g", "member": member, "attempt": 1}
        asked |= {"max_messages": 9, "lease_ms": 60_000, "open_max": 99, "group_open_max": 99}
        header = wire.ReceiveRequest(**asked, max_wait_ms=wait_ms, sources=[source])
        return client.send(Command.RECEIVE, header)

    waits = receive(bob, 1, 0, 20_000)
    await allow(guarded, *rules, f"deny user:bob read {withdrawn}")
    frame = await asyncio.wait_for(waits, 5)
    assert frame.status == NotAuthorized.status
    answer = decode_reply(await asyncio.wait_for(receive(alice, 2, 5, 0), WAIT_S))
    assert isinstance(answer, wire.ReceiveResponse)
    assert [each.messages for each in answer.runs] == [5]


async def test_a_partition_at_rest_is_refused_when_it_is_asked_for_again(
    guarded: MemoryCluster,
) -> None:
    await allow(guarded, "allow * read,write topic:t")
    client = await connect(guarded, "alice")
    await client.put("t", 0, [message(b"x")])
    found = await client.fetch(0, add(0))
    await allow(guarded, "allow * write topic:t")
    await client.put("t", 0, [message(b"y")])
    told = await client.fetch(1, again(0, found[0][0].next_offset))
    assert (told[0][0].status, told[0][1]) == (NotAuthorized.status, b"")


async def test_a_right_that_comes_back_is_one_again(guarded: MemoryCluster) -> None:
    rule = "allow * read,write topic:t"
    await allow(guarded, rule)
    client = await connect(guarded, "alice")
    await client.put("t", 0, [message(b"x")])
    await client.fetch(0, add(0))
    await allow(guarded)
    await allow(guarded, rule)
    assert (await client.fetch(1, again(0, 0)))[0][0].status == 0


# What a node knows of the rules -----------------------------------------------------------------
async def test_old_rules_are_no_rules(guarded: MemoryCluster) -> None:
    """Without ZooKeeper they hold for ``rules_age_max_s``, then all is refused, and what waits."""
    node = guarded.nodes["b1"]
    await allow(guarded, "allow user:alice read,write topic:t")
    alice, root = await connect(guarded, "alice"), await connect(guarded, "root")
    waits = alice.send_fetch(0, add(0), max_wait_ms=30_000)
    guarded.ensemble.stop()
    begun = asyncio.get_running_loop().time()
    await until(lambda: node.parts.rules.current is None, timeout_s=400)
    assert asyncio.get_running_loop().time() - begun > 300 - known_rules.AUDIT_S
    error = await error_of(alice, (Command.GET, wire.GetRequest(topic="t"), b""))
    assert isinstance(error, Busy)
    assert "rules_age_max_s = 300" in error.message
    assert waits.done()
    assert isinstance(await error_of(alice, fetch()), Busy)
    assert not isinstance(await error_of(root, put()), NotAuthorized)
    guarded.ensemble.start()
    await until(lambda: node.parts.rules.current is not None, timeout_s=60)
    assert await error_of(alice, (Command.GET, wire.GetRequest(topic="t"), b"")) is None


async def test_rules_that_cannot_be_read_are_no_rules(guarded: MemoryCluster) -> None:
    """A newer vq may deny something in a way that this one does not know."""
    await allow(guarded, "allow user:alice read topic:t")
    alice = await connect(guarded, "alice")
    async with guarded.admin() as coordinator:
        path = AccessList.path()
        good = (await coordinator.get(path)).data
        for bad in (b"nonsense", b'{"v": 2, "rules": []}', b'{"v": 1, "rules": ["allow it"]}'):
            await coordinator.set(path, bad, version=-1)
            await until(lambda: guarded.nodes["b1"].parts.rules.current is None)
            error = await error_of(alice, (Command.GET, wire.GetRequest(topic="t"), b""))
            assert isinstance(error, Busy)
            assert "cannot read the rules" in error.message
            await coordinator.set(path, good, version=-1)
            await until(lambda: guarded.nodes["b1"].parts.rules.current is not None)
        await coordinator.delete(path)
    await until(lambda: guarded.nodes["b1"].parts.rules.version == -1)
    await assert_refused(alice, fetch())


async def test_removing_a_rule_keeps_the_others(guarded: MemoryCluster) -> None:
    """Also when two operators change rules at the same time."""
    texts = [f"deny user:u{n} read topic:t" for n in range(20)]
    await allow(guarded, "allow * read topic:t", *texts)
    gone = [AccessRule.parse(each) for each in texts[:10]]
    async with guarded.admin() as coordinator:

        async def remove(rule: AccessRule) -> None:
            await change_access(coordinator, lambda rules: rules.removing([rule]))

        await asyncio.gather(*map(remove, gone))
        found = (await read_access(coordinator)).rules
    assert set(map(str, found)) == {"allow * read topic:t", *texts[10:]}


# Modes ------------------------------------------------------------------------------------------
async def test_permissive_carries_out_counts_and_tells(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    believe_names(monkeypatch)
    caplog.set_level(logging.WARNING)
    async with memory_cluster() as cluster:
        node = await cluster.start(authorization=Authorization.PERMISSIVE)
        await cluster.create_topic("t", partitions=1)
        alice = await connect_as(cluster, node, "alice")
        await alice.put("t", 0, [message(b"x")])  # it waits for its topic, and is looked at again
        before = await without_right(node)
        for number in range(500):
            await alice.put("t", 0, [message(b"x", number + 2)])
        assert set(await alice.fetch(0, add(0))) == {0}
        await asyncio.sleep(30)
        lines = [e for e in map(str, caplog.messages) if "requests without a right" in e]
        assert 1 <= len(lines) <= 4
        assert "carried_out=true" in lines[0]
        assert "user=alice right=write resource=topic:t" in lines[0]
        counted = {"write": before["write"] + 500, "read": 1}
        assert await without_right(node) == counted
        await allow(cluster, "allow user:alice read,write topic:t")
        await alice.put("t", 0, [message(b"x", 999)])
        assert await without_right(node) == counted


async def without_right(node: BrokerNode) -> dict[str, float]:
    """Return how often which right was missing, as the metrics have it."""
    (metric,) = (e for e in await node.families() if e.name == "vq_requests_without_right")
    return {each.labels["right"]: each.value for each in metric.samples}


async def test_off_asks_nobody(cluster: MemoryCluster) -> None:
    """And reads no rules."""
    node = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    assert not node.parts.authority.enabled
    assert node.parts.rules.current is None
    client = await connect_as(cluster, node)
    assert await error_of(client, put()) is None
