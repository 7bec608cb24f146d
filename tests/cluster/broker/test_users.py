"""A broker that knows users: who gets in, and whose connection ends."""

import asyncio
import gc
from typing import Any

import pytest
from support.access import limit
from support.broker import Client, MemoryCluster
from support.client import factory_of, started
from support.users import SALT, add, user_of

from vq import Message
from vq.broker.connections.broker_session import BrokerSession
from vq.broker.connections.server import CUT_LOGIN_S, ENDED_COST, REFUSED_BURST_S, REFUSED_PAUSE_S
from vq.broker.connections.server_facts import server_facts
from vq.broker.node import BrokerNode
from vq.broker.security.attempts import BURST
from vq.broker.security.users import STALE_S
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.coordination.security.users import change_user, remove_user
from vq.errors import Busy, ConnectionCut, MemberRequired, NotAuthenticated, VqError
from vq.remoting import wire_pb2 as wire
from vq.remoting.broker_connection import BrokerConnection, connect
from vq.remoting.connection import ClientConnection, ConnectionState
from vq.remoting.format import Command
from vq.remoting.hello import KnownPeer
from vq.remoting.login import ANONYMOUS_LOGIN, Login
from vq.remoting.membership import ANYONE
from vq.security.scram import ITERATIONS_MIN, derive
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

ANNA = Login("anna", "secret")


@pytest.fixture
async def node(cluster: MemoryCluster) -> BrokerNode:
    """A node that takes users only; ``anna`` is one."""
    await add(cluster, "anna", "secret", roles=("shop",))
    node = await cluster.start(authentication="required")
    await cluster.create_topic("t", partitions=2)
    await until(lambda: len(node.parts.partitions.channels) == 2)
    return node


async def connected(
    cluster: MemoryCluster, node: BrokerNode, login: Login = ANNA, host: str = "client"
) -> BrokerConnection:
    return await connect(
        cluster.network.at(host),
        node.address,
        client_id="test",
        cluster="test",
        timeout=WAIT_S,
        on_close=lambda _: None,
        login=login,
    )


async def change(cluster: MemoryCluster, name: str, decide: Any) -> None:
    async with cluster.admin() as coordinator:
        await change_user(coordinator, name, decide)


async def ping(connection: BrokerConnection) -> None:
    await connection.request(Command.PING, wire.PingRequest(), timeout=WAIT_S)


# Who gets in --------------------------------------------------------------------------------------
async def test_a_user_is_who_it_proved_to_be(cluster: MemoryCluster, node: BrokerNode) -> None:
    await ping(await connected(cluster, node))
    (session,) = [each for each in node.parts.server.sessions if each.principal.user]
    assert session.principal.user == "anna"
    assert session.principal.roles == {"shop"}
    assert not session.principal.proved


@pytest.mark.parametrize(
    "login", [ANONYMOUS_LOGIN, Login("anna", "wrong"), Login("bert", "secret"), Login("anna")]
)
async def test_others_do_not_get_in(cluster: MemoryCluster, node: BrokerNode, login: Login) -> None:
    with pytest.raises(VqError) as refusal:
        await connected(cluster, node, login)
    assert not refusal.value.retriable
    assert "secret" not in str(refusal.value)
    assert not any(each.open for each in node.parts.server.sessions)


async def test_a_user_does_nothing_that_is_for_members(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    connection = await connected(cluster, node)
    with pytest.raises(MemberRequired):
        await connection.request(Command.SEAL, wire.SealRequest(topic="t"), timeout=WAIT_S)


async def test_optional_takes_both(cluster: MemoryCluster) -> None:
    """So that clients can get their users one after the other."""
    await add(cluster, "anna", "secret")
    node = await cluster.start(authentication="optional")
    for login in (ANNA, ANONYMOUS_LOGIN):
        await ping(await connected(cluster, node, login))
    with pytest.raises(NotAuthenticated):
        await connected(cluster, node, Login("anna", "wrong"))


async def test_off_takes_nobody_for_a_user(cluster: MemoryCluster) -> None:
    """And asks ZooKeeper nothing."""
    await add(cluster, "anna", "secret")
    node = await cluster.start()
    assert node.parts.users is None
    with pytest.raises(VqError, match=r"asks nobody who he is .*SCRAM-SHA-256"):
        await connected(cluster, node)


async def test_a_silent_exchange_ends(cluster: MemoryCluster, node: BrokerNode) -> None:
    """HELLO and what follows it have one deadline, whatever a client sends meanwhile."""
    client = Client()
    _, client = await cluster.network.at("slow").connect(node.address, lambda: client)
    begun = asyncio.get_running_loop().time()
    client.transport.writelines(client.connection.hello())
    async with asyncio.timeout(60):
        await client.closed.wait()
    timeout_s = node.config.connections.hello_timeout_s
    assert asyncio.get_running_loop().time() - begun <= timeout_s + 4


async def test_failures_of_an_address_are_bounded(cluster: MemoryCluster, node: BrokerNode) -> None:
    """Then even the right password is not looked at from there, for a moment; elsewhere it is."""
    attempts = node.parts.server.authentication.attempts
    for _ in range(BURST):
        with pytest.raises(NotAuthenticated):
            await connected(cluster, node, Login("anna", "wrong"), host="guesser")
    assert attempts.failed == BURST
    with pytest.raises(Busy, match="too many failed attempts"):
        await connected(cluster, node, host="guesser")
    assert attempts.refused == 1
    await ping(await connected(cluster, node, host="elsewhere"))
    await asyncio.sleep(1)
    await ping(await connected(cluster, node, host="guesser"))


async def test_failures_of_a_network_of_ipv6_are_bounded_together(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """Whoever has one address there has 2 to the power of 64."""
    for number in range(BURST):
        with pytest.raises(NotAuthenticated):
            await connected(cluster, node, Login("anna", "wrong"), host=f"2001:db8::{number:x}")
    with pytest.raises(Busy, match="from 2001:db8::/64"):
        await connected(cluster, node, host="2001:db8::ffff")
    await ping(await connected(cluster, node, host="2001:db8:0:1::ffff"))


@pytest.mark.parametrize("name", ["anna", "nobody"])
async def test_failures_are_owed_and_so_are_attempts_beyond_their_bound(
    cluster: MemoryCluster, node: BrokerNode, name: str
) -> None:
    """So connections of a guesser begin more rarely; it costs the same whoever is guessed."""
    server = node.parts.server
    for count in range(1, BURST + 10):
        owed = server.debts.of("guesser", server.now())
        with pytest.raises(NotAuthenticated if count <= BURST else Busy):
            await connected(cluster, node, Login(name, "wrong"), host="guesser")
        most = (REFUSED_BURST_S + REFUSED_PAUSE_S) * node.config.connections.refused_per_s
        assert server.debts.of("guesser", server.now()) == min(owed + ENDED_COST, most)
    assert server.owes_much("guesser")
    await ping(await connected(cluster, node))
    assert not server.debts.of("client", server.now())


async def test_connections_that_end_with_a_password_are_no_failures(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """Their clients come again at once, many of them from one address."""
    mine = [await connected(cluster, node) for _ in range(5)]
    await change(cluster, "anna", lambda _: user_of("other"))
    await until(lambda: all(each.closed for each in mine))
    server = node.parts.server
    assert not server.authentication.attempts.failed
    assert not server.debts.of("client", server.now())
    await ping(await connected(cluster, node, Login("anna", "other")))


async def test_who_leaves_instead_of_a_proof_owes_for_it(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """But not after a while: it may be the broker that is slow."""
    server = node.parts.server
    owed = []
    for waits_s in (0.0, CUT_LOGIN_S):
        client = Client()
        client.connection = ClientConnection(ANNA)
        await cluster.network.at("cutter").connect(node.address, lambda client=client: client)
        client.transport.writelines(client.connection.hello())
        states = [ConnectionState.AUTHENTICATING]
        await until(lambda states=states: [e.connection.state for e in server.sessions] == states)
        await asyncio.sleep(waits_s)
        client.close()
        await until(lambda: not server.sessions)
        owed.append(server.debts.of("cutter", server.now()))
    assert owed == [pytest.approx(ENDED_COST, abs=5), 0]


async def test_sessions_do_not_wait_for_the_garbage_collector(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """A flood of connections would leave tens of MiB of them, with users and with quotas, too."""

    def sessions() -> int:
        return sum(type(each) is BrokerSession for each in gc.get_objects())

    await limit(cluster, "anonymous requests=500")
    gc.collect()
    before = sessions()
    gc.disable()
    try:
        (await connected(cluster, node)).close()
        with pytest.raises(NotAuthenticated):
            await connected(cluster, node, Login("anna", "wrong"))
        await until(lambda: not node.parts.server.sessions)
        await until(lambda: sessions() == before)
    finally:
        gc.enable()


# Whose connection ends ----------------------------------------------------------------------------
async def test_connections_of_a_removed_user_end(cluster: MemoryCluster, node: BrokerNode) -> None:
    """Within a second of virtual time, with all that they wait for."""
    await add(cluster, "bert", "other")
    mine, others = [await connected(cluster, node) for _ in range(5)], Login("bert", "other")
    bert = await connected(cluster, node, others)
    parked = asyncio.ensure_future(
        mine[0].request(
            Command.GET,
            wire.GetRequest(topic="t", max_bytes=100, max_wait_ms=30_000, min_bytes=1),
            timeout=60,
        )
    )
    await asyncio.sleep(0.1)
    async with cluster.admin() as coordinator:
        await remove_user(coordinator, "anna")
        async with asyncio.timeout(1):
            await until(lambda: all(each.closed for each in mine))
    with pytest.raises(ConnectionCut):
        await parked
    await ping(bert)
    with pytest.raises(NotAuthenticated):
        await connected(cluster, node)


async def test_connections_of_a_withdrawn_password_end(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """While both are valid nobody notices anything."""
    old = await connected(cluster, node)
    keys = derive("next", SALT, ITERATIONS_MIN).secret
    await change(cluster, "anna", lambda user: user.rotated(keys, 2))
    new = await connected(cluster, node, Login("anna", "next"))
    await ping(old)
    await connected(cluster, node)
    assert _old_passwords(node) == {("anna",): 2}
    await change(cluster, "anna", lambda user: user.settled())
    await until(lambda: old.closed)
    await ping(new)
    assert _old_passwords(node) == {}
    with pytest.raises(NotAuthenticated):
        await connected(cluster, node)


def _old_passwords(node: BrokerNode) -> dict[tuple[str, ...], object]:
    """What the metric says of connections with the older of two passwords, by user."""
    return {
        labels: fact.read(thing)
        for facts in server_facts(node.parts.server)
        for labels, thing in facts.things().items()
        for fact in facts.facts
        if fact.metric == "vq_old_password_connections"
    }


async def test_connections_end_when_roles_change(cluster: MemoryCluster, node: BrokerNode) -> None:
    """They come back with the new ones: what a connection may do does not change under it."""
    connection = await connected(cluster, node)
    await change(cluster, "anna", lambda _: user_of("secret", roles=("audit",)))
    await until(lambda: connection.closed)
    await ping(await connected(cluster, node))
    (session,) = [each for each in node.parts.server.sessions if each.principal.user]
    assert session.principal.roles == {"audit"}


async def test_a_value_that_cannot_be_read_lets_nobody_in(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    connection = await connected(cluster, node)
    async with cluster.admin() as coordinator:
        await coordinator.set("security/users/anna", b'{"v": 1, "salt": "', version=-1)
    await until(lambda: connection.closed)
    with pytest.raises(NotAuthenticated):
        await connected(cluster, node)


async def test_without_zookeeper_users_are_known_for_a_while_only(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """Open connections go on; new ones are refused once a removal could be old."""
    connection = await connected(cluster, node)
    users = node.parts.users
    cluster.ensemble.disconnect(cluster.coordinators["b1"])
    await connected(cluster, node)
    while users.age_s <= STALE_S:
        await ping(connection)
        await asyncio.sleep(30)
    await ping(connection)
    with pytest.raises(Busy, match="has not read the users") as refusal:
        await connected(cluster, node)
    assert refusal.value.retriable
    cluster.ensemble.reconnect(cluster.coordinators["b1"])
    await until(lambda: users.age_s < STALE_S)
    await ping(await connected(cluster, node))


# Clients ------------------------------------------------------------------------------------------
async def test_a_wrong_password_is_told_to_the_sender_at_once(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    begun = asyncio.get_running_loop().time()
    async with factory_of(cluster, user="anna", password="wrong") as factory:
        producer = await factory.create_producer()
        await producer.publish("t")
        for _ in range(3):
            with pytest.raises(NotAuthenticated):
                await producer.send(Message("t", b"x"))
        failed = node.parts.server.authentication.attempts.failed
        assert failed <= 4
        assert asyncio.get_running_loop().time() - begun < 5
        await asyncio.sleep(300)  # more and more rarely, at last about once a minute
        assert node.parts.server.authentication.attempts.failed < failed + 12


async def test_a_forgotten_password_is_told_to_the_sender_at_once(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """Without a password the client asks for its certificate, which names nobody here."""
    async with factory_of(cluster, user="anna") as factory:
        producer = await factory.create_producer()
        await producer.publish("t")
        with pytest.raises(NotAuthenticated, match="there is no password") as refused:
            await producer.send(Message("t", b"x"))
        assert "VQ_PASSWORD" in (refused.value.hint or "")


async def test_a_sender_goes_on_when_its_user_is_added(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    async with factory_of(cluster, user="bert", password="late") as factory:
        producer = await factory.create_producer()
        await producer.publish("t")
        with pytest.raises(NotAuthenticated):
            await producer.send(Message("t", b"x"))
        await add(cluster, "bert", "late")
        async with asyncio.timeout(120):
            while True:
                try:
                    await producer.send(Message("t", b"x"))
                    break
                except NotAuthenticated:
                    await asyncio.sleep(1)


async def test_a_consumer_that_is_not_taken_cannot_start(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """And once its user is there it can."""
    async with factory_of(cluster, user="anna", password="secret") as factory:
        producer = await factory.create_producer()
        await producer.publish("t")
        await producer.send(Message("t", b"x"))
    got: list[int | None] = []

    async def listener(message: Message) -> None:
        got.append(message.offset)

    async with factory_of(cluster, user="bert", password="late") as factory:
        consumer = await factory.create_consumer(ConsumerConfig(group="g"))
        consumer.subscribe("t", listener=listener)
        with pytest.raises(NotAuthenticated):
            await consumer.start()
        await add(cluster, "bert", "late")
        await asyncio.sleep(60)
        await consumer.start()
        await until(lambda: got)


async def test_a_consumer_without_a_user_cannot_start_where_one_is_required(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """It does not wait for messages that never come."""
    async with factory_of(cluster) as factory:
        consumer = await factory.create_consumer(ConsumerConfig(group="g"))
        consumer.subscribe("t")
        with pytest.raises(NotAuthenticated, match="no anonymous clients"):
            await consumer.start()
        with pytest.raises(NotAuthenticated, match="no anonymous clients"):
            await consumer.get_many(1, timeout=5)


async def test_a_consumer_starts_while_brokers_do_not_answer(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """The question whether they take it is one connection's time-out at most."""
    async with factory_of(cluster, user="anna", password="secret") as factory:
        consumer = await factory.create_consumer(ConsumerConfig(group="g"))
        consumer.subscribe("t")
        cluster.network.cut("client", "b1")
        begun = asyncio.get_running_loop().time()
        await consumer.start()
        assert asyncio.get_running_loop().time() - begun < 3


async def test_a_consumer_whose_user_is_removed_tells_why_and_goes_on_later(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    got: list[int | None] = []

    async def listener(message: Message) -> None:
        got.append(message.offset)

    await add(cluster, "bert", "other")
    async with (
        factory_of(cluster, user="anna", password="secret") as factory,
        factory_of(cluster, user="bert", password="other", host="elsewhere") as other,
    ):
        producer = await factory.create_producer()
        await producer.publish("t")
        consumer = await other.create_consumer(ConsumerConfig(group="g"))
        await consumer.subscribe("t", listener=listener).start()
        await producer.send(Message("t", b"x"))
        await until(lambda: got)
        async with cluster.admin() as coordinator:
            await remove_user(coordinator, "bert")
        async with asyncio.timeout(20):
            while not any(
                isinstance(each.error, NotAuthenticated) for each in consumer.troubles().values()
            ):
                await asyncio.sleep(0.1)
        await producer.send(Message("t", b"y"))
        await add(cluster, "bert", "other")
        async with asyncio.timeout(150):
            while len(got) < 2:
                await asyncio.sleep(1)


async def test_a_rotation_under_load_fails_no_send(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """New password beside the old one, clients change over, the old one is withdrawn."""
    outcomes: list[BaseException | None] = []

    async def send_on(password: str, until_set: asyncio.Event) -> None:
        async with factory_of(
            cluster, user="anna", password=password, seed=len(password)
        ) as factory:
            producer = await factory.create_producer()
            await producer.publish("t")
            while not until_set.is_set():
                futures = [await producer.send_async(Message("t", b"x")) for _ in range(20)]
                outcomes.extend(await asyncio.gather(*futures, return_exceptions=True))
                await asyncio.sleep(0.05)

    old_stops, new_stops = asyncio.Event(), asyncio.Event()
    old = asyncio.ensure_future(send_on("secret", old_stops))
    await until(lambda: len(outcomes) > 100)
    keys = derive("new secret", SALT, ITERATIONS_MIN).secret
    await change(cluster, "anna", lambda user: user.rotated(keys, 2))
    new = asyncio.ensure_future(send_on("new secret", new_stops))
    count = len(outcomes)
    await until(lambda: len(outcomes) > count + 200)
    old_stops.set()
    await old
    await change(cluster, "anna", lambda user: user.settled())
    count = len(outcomes)
    await until(lambda: len(outcomes) > count + 200)
    new_stops.set()
    await new
    assert not [each for each in outcomes if isinstance(each, BaseException)]


async def test_a_command_of_an_operator_needs_no_user(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """It reads the cluster's secret in ZooKeeper, as brokers do."""
    async with started(cluster) as client:
        with pytest.raises(NotAuthenticated):
            await client.request(node.address, Command.STATUS, wire.StatusRequest())
    operator = ClusterClient(
        client.config,
        coordinator=cluster.ensemble.coordinator("test", session_timeout_s=4.0),
        network=cluster.network.at("operator"),
        clock=client.clock,
        rng=client.rng,
        operator=True,
    )
    await operator.start()
    try:
        await operator.request(node.address, Command.STATUS, wire.StatusRequest())
        with pytest.raises(VqError) as refusal:
            await operator.request(node.address, Command.SEAL, wire.SealRequest(topic="no"))
        assert not isinstance(refusal.value, MemberRequired | NotAuthenticated)
    finally:
        await operator.close()


async def test_a_program_with_a_user_may_still_do_what_is_for_members(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """If it can read the cluster's secret; on a connection of its own, which is closed then."""
    async with started(cluster, user="anna", password="secret") as client:
        await client.request(node.address, Command.STATUS, wire.StatusRequest())
        with pytest.raises(VqError) as refusal:
            await client.request(node.address, Command.SEAL, wire.SealRequest(topic="no"))
        assert not isinstance(refusal.value, MemberRequired | NotAuthenticated)
        await until(lambda: len(node.parts.server.sessions) == 1)


async def test_copies_and_deliveries_go_on_where_every_client_has_a_user(
    cluster: MemoryCluster, node: BrokerNode
) -> None:
    """Nodes prove the cluster's secret: one copies, and one delivers a delayed message."""
    await cluster.start("b1", "n2", authentication="required")
    await cluster.until_in_sync("n1", "n2")
    async with factory_of(cluster, user="anna", password="secret") as factory:
        producer = await factory.create_producer()
        await producer.publish("t")
        await producer.send(Message("t", b"x"))
        got: list[int | None] = []
        consumer = await factory.create_consumer(ConsumerConfig(group="g"))

        async def listener(message: Message) -> None:
            got.append(message.offset)

        await consumer.subscribe("t", listener=listener).start()
        await producer.send(Message("t", b"later", delay_s=2))
        await until(lambda: len(got) == 2)


# Certificates -------------------------------------------------------------------------------------
class Shows:
    """A connection under TLS, with what TLS has verified."""

    address = "client"

    def __init__(self, *names: str) -> None:
        self.certificate = {"subjectAltName": tuple(("DNS", each) for each in names)}
        self.known = KnownPeer(ANYONE)
        self.ended: list[VqError] = []

    def end(self, error: VqError) -> None:
        self.ended.append(error)


def said(user: str) -> wire.HelloRequest:
    return wire.HelloRequest(mechanism="CERTIFICATE", credentials=user.encode())


async def test_a_certificate_names_a_user_that_there_is(cluster: MemoryCluster) -> None:
    """The broker takes the name from the certificate; the client only says which one it means."""
    await add(cluster, "anna", roles=("shop",))
    await add(cluster, "bert")
    node = await cluster.start(
        authentication="required", certificate_users=("DNS:*.clients.example=*",)
    )
    authentication = node.parts.server.authentication
    assert authentication.mechanisms == ("SCRAM-SHA-256", "CERTIFICATE")
    for peer, named in (
        (Shows("anna.clients.example"), "anna"),
        (Shows("anna.clients.example"), ""),
        (Shows("anna.clients.example", "bert.clients.example"), "anna"),
    ):
        peer.known = authentication.begin(peer, said(named))
        assert peer.known.principal.user == "anna"
        assert peer.known.principal.roles == {"shop"}
    for peer, named in (
        (Shows(), "anna"),
        (Shows("anna.clients.example"), "bert"),
        (Shows("anna.clients.example", "bert.clients.example"), ""),
        (Shows("carl.clients.example"), "carl"),  # no such user
        (Shows("anna.clients.example.evil"), "anna"),
    ):
        with pytest.raises(NotAuthenticated):
            authentication.begin(peer, said(named))
    last = Shows("anna.clients.example")
    last.known = authentication.begin(last, said("anna"))
    async with cluster.admin() as coordinator:
        await remove_user(coordinator, "anna")
    await until(lambda: "anna" not in node.parts.users.known)
    assert authentication.revoke("anna", [last]) == 1
    assert isinstance(last.ended[0], NotAuthenticated)


async def test_a_client_without_a_certificate_or_a_password_is_nobody(
    cluster: MemoryCluster,
) -> None:
    await add(cluster, "anna")
    node = await cluster.start(
        authentication="required", certificate_users=("DNS:*.clients.example=*",)
    )
    with pytest.raises(NotAuthenticated, match="no certificate"):
        await connected(cluster, node, Login("anna"))
    with pytest.raises(NotAuthenticated, match="unknown, or the password is wrong"):
        await connected(cluster, node, Login("anna", "guess"))
