"""Commands between brokers are for members of the cluster only, and its secret shows nowhere."""

import asyncio
import itertools
import logging
from typing import Any

import pytest
from support.broker import Client, MemoryCluster, message
from support.cases import case

from vq.broker.replication import secret
from vq.broker.serving.dispatcher import Route
from vq.coordination.brokers.secret import read_secret, replace_secret
from vq.errors import AuthenticationFailed, InvalidRequest, MemberRequired, VqError
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Access, Command
from vq.remoting.membership import OPERATOR, Exchange, Principal, Side, proof
from vq.remoting.messages import decode_error
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

GUARDED = [each for each in Command if each.access is not Access.ANYONE]
REQUESTS = {
    Command.SEAL: wire.SealRequest(topic="t"),
    Command.ADOPT: wire.AdoptRequest(topic="t", topic_id="x"),
    Command.REPLICATE: wire.ReplicateRequest(session=1, node="n2", epoch=1, max_wait_ms=1),
    Command.EPOCH_END: wire.EpochEndRequest(topic="t", node="n2", epoch=1),
}
WHO = {
    "a stranger": None,
    "a command": OPERATOR,
    "another group": Principal("b2", "n2"),
    "the group": Principal("b1", "n2"),
}
TAKEN = {
    "a stranger": {Access.ANYONE},
    "a command": {Access.ANYONE, Access.CLUSTER},
    "another group": {Access.ANYONE, Access.CLUSTER},
    "the group": {Access.ANYONE, Access.CLUSTER, Access.GROUP},
}


async def secret_of(cluster: MemoryCluster) -> bytes:
    async with cluster.admin() as coordinator:
        return await read_secret(coordinator)


async def error_of(client: Client, command: Command) -> VqError | None:
    request = REQUESTS.get(command) or command.request()
    frame = await asyncio.wait_for(client.send(command, request), WAIT_S)
    return decode_error(frame.status, frame.header, 0) if frame.status else None


@pytest.mark.parametrize("who", WHO)
async def test_each_command_is_for_whom_the_table_says(served, who):
    """S-MATRIX: also for a command that is added later."""
    for command in Command:
        if command in {Command.HELLO, Command.AUTHENTICATE}:
            continue
        client = await served.connect()
        if WHO[who] is not None:
            await client.prove(await secret_of(served.cluster), WHO[who])
        with case(command):
            error = None if command is Command.PROVE else await error_of(client, command)
            if command.access in TAKEN[who]:
                assert not isinstance(error, MemberRequired)
            else:
                assert isinstance(error, MemberRequired)
                assert not error.retriable
            await client.status()  # the connection is open
        client.close()


@pytest.mark.parametrize("command", GUARDED)
async def test_no_handler_of_a_stranger_runs(cluster, command, monkeypatch):
    """And nothing of its partition is looked up: the refusal costs the same for any request."""
    called: list[int] = []

    def handler(session, request_id, header):
        called.append(request_id.command)
        session.reply(request_id, command.response())

    node = await cluster.start()
    monkeypatch.setitem(node.parts.dispatcher.routes, command, Route(handler))
    client = await Client.connect(cluster.network, node.address)
    assert isinstance(await error_of(client, command), MemberRequired)
    assert not called
    assert not node.parts.server.requests_waiting
    await cluster.prove(client, "b1", "n2")
    assert await error_of(client, command) is None
    assert called == [command]


async def test_nobody_asks_whose_a_command_of_clients_is(served, monkeypatch):
    """The check would cost time for each message."""
    monkeypatch.setattr(Principal, "may", lambda *_: pytest.fail("asked"))
    await served.client.put("t", 0, [message(b"x")])
    await served.client.call(Command.PING, wire.PingRequest())


async def test_a_member_speaks_for_its_own_name_only(served):
    client = await served.cluster.prove(await served.connect(), "b1", "n3")
    error = await error_of(client, Command.REPLICATE)  # as n2
    assert isinstance(error, InvalidRequest)
    assert not served.node.parts.partitions.channels["t", 0].copies.positions


async def test_a_wrong_proof_ends_the_connection(served):
    client = await served.connect()
    with pytest.raises(AuthenticationFailed, match="does not know the cluster's secret"):
        await client.prove(b"x" * 32, Principal("b1", "n2"))
    await asyncio.wait_for(client.closed.wait(), WAIT_S)
    assert isinstance(client.closing, AuthenticationFailed) or client.closing is None


async def test_a_proof_that_was_overheard_opens_no_other_connection(served):
    """Played back byte by byte: the broker's nonce is another one."""
    secret, asker = await secret_of(served.cluster), Principal("b1", "n2")
    heard, other = await served.connect(), await served.connect()
    hello, nonce = heard.hello, b"n" * 32
    first = wire.ProveRequest(group="b1", node="n2", nonce=nonce)
    challenge, _ = await heard.call(Command.PROVE, first)
    broker = Principal(hello.group, hello.node)
    exchange = Exchange(hello.cluster, asker, broker, nonce, challenge.nonce)
    second = wire.ProveRequest(proof=proof(secret, Side.ASKER, exchange))
    answer, _ = await heard.call(Command.PROVE, second)
    await other.call(Command.PROVE, first)
    with pytest.raises(AuthenticationFailed):
        await other.call(Command.PROVE, second)
    third = await served.connect()
    await third.call(Command.PROVE, first)
    with pytest.raises(AuthenticationFailed):  # the broker's own proof, sent back to it
        await third.call(Command.PROVE, wire.ProveRequest(proof=answer.proof))


# A pair -----------------------------------------------------------------------------------------
async def in_sync(cluster: MemoryCluster) -> tuple[Any, Any]:
    master = await cluster.start()
    copy = await cluster.start(node="n2")
    await cluster.create_topic("t", partitions=1)
    await until(lambda: master.parts.context.role.named == 2)
    return master, copy


async def test_a_new_secret_is_taken_without_a_restart(cluster, monkeypatch):
    """An operator replaced it: both read it again after a proof that was wrong."""
    monkeypatch.setattr(secret, "READ_AGAIN_S", 0.0)
    master, copy = await in_sync(cluster)
    async with cluster.admin() as coordinator:
        await replace_secret(coordinator, lambda size: (b"new" * 11)[:size])
    client = await Client.connect(cluster.network, master.address)
    new = await secret_of(cluster)
    assert new.startswith(b"newnew")
    with pytest.raises(AuthenticationFailed):
        await client.prove(new, OPERATOR)  # the master has the new one from here on
    await until(lambda: master.parts.secret.proving.secret() == new)
    for session in list(master.parts.server.sessions):
        session.abort()
    await until(lambda: copy.parts.secret.proving.secret() == new)
    client = await Client.connect(cluster.network, master.address)
    await until(lambda: copy.parts.context.role.follows == "n1")
    await client.put("t", 0, [message(b"x")])
    await until(lambda: master.parts.context.role.named == 2)


async def test_the_secret_is_read_again_at_most_once_in_a_while(served, monkeypatch):
    """Anybody can send wrong proofs; they must not load ZooKeeper."""
    reads = itertools.count()
    original = secret.cluster_secret

    async def counted(*arguments):
        next(reads)
        return await original(*arguments)

    monkeypatch.setattr(secret, "cluster_secret", counted)
    for _ in range(5):
        client = await served.connect()
        with pytest.raises(AuthenticationFailed):
            await client.prove(b"x" * 32, OPERATOR)
    assert next(reads) <= 1


async def test_a_node_does_not_copy_from_a_peer_that_proves_nothing(cluster, monkeypatch):
    """It would write what that one sends."""
    monkeypatch.setattr("vq.remoting.membership.is_proof", lambda *_: True)  # takes any proof
    master = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in master.parts.partitions.channels)
    async with cluster.admin() as coordinator:  # the master goes on with the old one
        await replace_secret(coordinator, lambda size: (b"another" * 5)[:size])
    copy = await cluster.start(node="n2")
    client = await Client.connect(cluster.network, copy.address)

    async def problems() -> str:
        return " ".join((await client.status()).problems)

    async with asyncio.timeout(WAIT_S):
        while "does not know the cluster's secret" not in await problems():
            await asyncio.sleep(0.1)
    assert not master.parts.partitions.channels["t", 0].copies.positions


async def test_the_secret_shows_in_no_log_line_and_no_status(cluster, caplog):
    """At the lowest level, through a start, copies, wrong proofs and a stop."""
    caplog.set_level(logging.DEBUG)
    master, copy = await in_sync(cluster)
    secret = await secret_of(cluster)
    client = await Client.connect(cluster.network, master.address)
    with pytest.raises(AuthenticationFailed):
        await client.prove(b"x" * 32, Principal("b1", "n2"))
    client = await Client.connect(cluster.network, master.address)
    await client.prove(secret, OPERATOR)
    shown = [str(await client.status(with_partitions=True)), caplog.text]
    shown += [repr(each) for node in (master, copy) for each in vars(node).values()]
    shown += [repr(vars(each.parts.secret)["_asker"]) for each in (master, copy)]
    shown += [repr(master.parts.secret.proving), repr(client.connection)]
    for text in shown:
        assert secret.hex() not in text.lower()
        assert repr(secret)[2:-1] not in text
