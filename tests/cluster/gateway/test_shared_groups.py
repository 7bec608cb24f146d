"""Shared groups over HTTP: handles, leases, repeated requests, bounds."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.broker import MemoryCluster
from support.cases import case
from support.client import factory_of
from support.consumers import send
from support.consumers import texts as messages_of
from support.gateway import gateway_of, http_client, texts, token_file

from vq import ConsumerConfig, aio
from vq.gateway.app import Gateway
from vq.model import Message, TopicPartition
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time
GROUP = "/v1/groups/g"


async def receive(client: httpx.AsyncClient, **wanted: Any) -> httpx.Response:
    """Ask for messages of topic ``t``; parameters of the address are known by their names."""
    params = {"wait": 20} | {name: wanted.pop(name) for name in ("max", "wait") if name in wanted}
    form = {"subscriptions": [{"topic": "t"}], **wanted}
    return await client.post(f"{GROUP}/receive", params=params, json=form)


async def received(client: httpx.AsyncClient, count: int = 1, **wanted: Any) -> list[Any]:
    """Ask until so many messages have come."""
    found: list[Any] = []
    while len(found) < count:
        answer = await receive(client, **wanted)
        assert answer.status_code == 200, answer.text
        found += answer.json()["messages"]
    return found


async def settle(
    client: httpx.AsyncClient, verb: str, *messages: Any, **more: Any
) -> httpx.Response:
    """Settle messages as they were received."""
    form = {"handles": [each["handle"] for each in messages], **more}
    return await client.post(f"{GROUP}/{verb}", json=form)


@pytest.fixture
async def other(cluster: MemoryCluster) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a second gateway."""
    async with (
        factory_of(cluster, host="other", seed=5) as factory,
        gateway_of(factory) as gateway,
        http_client(gateway) as client,
    ):
        yield client


async def test_each_message_is_settled_by_itself_at_any_gateway(
    client: httpx.AsyncClient, other: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await send(factory, *messages_of(0, 1, 2, 3))
    done, again, given_up, kept = await received(client, 4, lease_s=10, max=4)
    assert {each["attempts"] for each in (done, again, given_up, kept)} == {1}
    for verb, message, more in (
        ("ack", done, {}),
        ("nack", again, {"delay_s": 2.0}),
        ("reject", given_up, {}),
        ("extend", kept, {"lease_s": 100.0}),
    ):
        with case(verb):
            answer = await settle(other, verb, message, **more)
            assert (answer.status_code, answer.json()) == (200, {"settled": 1})
    (second,) = await received(other)
    assert (second["id"], second["attempts"]) == (again["id"], 2)
    assert (await settle(client, "ack", second)).is_success
    assert texts(await receive(client, wait=30)) == []  # its lease is longer now
    assert (await settle(client, "ack", kept)).is_success
    told = await factory.admin.describe_shared_group("g")
    assert [(each.low, each.open) for each in told.partitions] == [(2, 0), (2, 0)]


async def test_a_message_waits_for_nobody_and_comes_when_it_is_sent(
    gateway: Gateway, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """Several requests wait at a time, each for other messages."""
    waiting = [asyncio.ensure_future(receive(client, max=1)) for _ in range(3)]
    await until(lambda: gateway.members.waiting == 3)
    assert len(gateway.members) == 1
    await send(factory, *messages_of(0, 1, 2))
    answers = [texts(await each) for each in waiting]
    assert sorted(answers) == [["0"], ["1"], ["2"]]


async def test_a_late_settlement_is_409_and_names_what_is_lost(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await send(factory, *messages_of(0))
    (late,) = await received(client, lease_s=1.0)
    (now,) = await received(client, lease_s=60.0)
    assert (now["id"], now["attempts"], now["handle"] == late["handle"]) == (late["id"], 2, False)
    await send(factory, *messages_of(1))
    (fresh,) = await received(client)
    answer = await settle(client, "ack", now, late)
    assert answer.status_code == 400  # nothing is done: it is the same message
    for verb, more in (("ack", {}), ("nack", {}), ("reject", {}), ("extend", {"lease_s": 5})):
        with case(verb):
            answer = await settle(client, verb, late, **more)
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (409, "LeaseLost")
            assert (problem["settled"], problem["lost"]) == (0, [late["handle"]])
            assert problem["outcome"] == "refused"
    assert (await settle(client, "ack", now)).is_success
    answer = await settle(client, "ack", fresh, now)
    assert (answer.status_code, answer.json()["settled"]) == (409, 1)
    assert answer.json()["lost"] == [now["handle"]]


async def test_a_handle_stays_valid_when_another_broker_leads_and_the_gateway_was_restarted(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await send(factory, *messages_of(0, 1))
    async with gateway_of(factory) as gateway, http_client(gateway) as client:
        first, second = await received(client, 2, lease_s=600.0, max=2)
    await cluster.nodes.pop("b1").stop()
    await cluster.start()
    async with gateway_of(factory) as gateway, http_client(gateway) as client:
        assert texts(await receive(client, wait=10)) == []
        assert (await settle(client, "ack", first)).is_success
        assert (await settle(client, "nack", second)).is_success
        (again,) = await received(client)
        assert (again["id"], again["attempts"]) == (second["id"], 2)


async def test_a_repeated_attempt_has_the_same_messages_at_any_gateway(
    client: httpx.AsyncClient, other: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """So an answer that gets lost costs no lease, and no delivery."""
    await send(factory, *messages_of(0, 1, 2))
    first = await receive(client, attempt="a", max=2)
    again = await receive(other, attempt="a", max=2)
    assert texts(first) == texts(again)
    assert again.json() == first.json()
    done, left = first.json()["messages"]
    assert (await settle(client, "ack", done)).is_success
    assert (await receive(client, attempt="a", max=2)).json()["messages"] == [left]
    assert len(texts(await receive(client, attempt="b"))) == 1


async def test_a_repeated_attempt_ends_the_earlier_request(
    gateway: Gateway, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """Its connection may be dead, and nobody has noticed."""
    first = asyncio.ensure_future(receive(client, attempt="a", wait=60))
    await until(lambda: gateway.members.waiting == 1)
    await asyncio.sleep(0.3)
    second = asyncio.ensure_future(receive(client, attempt="a", wait=60))
    assert texts(await first) == []
    await send(factory, *messages_of(0))
    assert texts(await second) == ["0"]


async def read_slowly(
    cluster: MemoryCluster, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """Send a message that takes 3.2 s to be read when its group asks for it the next time."""
    await send(factory, *messages_of(0))
    assert texts(await receive(client, lease_s=0.1)) == ["0"]
    await asyncio.sleep(1)
    cluster.network.latency_s = 0.4


async def test_a_lease_that_is_half_over_when_messages_were_read_begins_anew(
    cluster: MemoryCluster, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await read_slowly(cluster, client, factory)
    answer = await receive(client, lease_s=5.0, wait=5)
    await asyncio.sleep(3)
    assert (await settle(client, "ack", *answer.json()["messages"])).json() == {"settled": 1}


async def test_a_message_whose_lease_ended_while_it_was_read_is_in_no_answer(
    cluster: MemoryCluster, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """Whoever had it could not settle it."""
    await read_slowly(cluster, client, factory)
    assert texts(await receive(client, lease_s=2.0, wait=1)) == []
    cluster.network.latency_s = 0.0
    answer = await receive(client, lease_s=60.0)
    assert (await settle(client, "ack", *answer.json()["messages"])).json() == {"settled": 1}


async def test_what_an_answer_has_no_room_for_is_not_delivered(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    large = [Message("t", b"x" * 900_000, key="k") for _ in range(4)]
    await send(factory, *large)
    first = await received(client, max=10)
    assert len(first) == 2
    second = await received(client, max=10)
    assert len(second) == 2
    assert {each["attempts"] for each in (*first, *second)} == {1}


async def test_a_message_that_was_delivered_too_often_becomes_a_dead_letter(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await send(factory, *messages_of(0, 1))
    for attempts in (1, 2, 3):
        messages = await received(client, 2, max=2)
        assert {each["attempts"] for each in messages} == {attempts}
        await settle(client, "nack", *messages)
    assert texts(await receive(client, wait=1)) == []
    told = await factory.admin.describe_shared_group("g")
    assert [each.open for each in told.partitions] == [0, 0]
    (letters,) = await factory.admin.list_dead_letters()
    assert (letters.group, sum(letters.letters.values())) == ("g", 2)


async def test_who_has_gone_away_takes_no_messages_along(
    gateway: Gateway, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """Its request still waits at the journal; what that gets goes to the next one at once."""
    async with gateway_of(factory) as unseen:
        gone = Departing(unseen)
        await until(lambda: unseen.members.waiting == 1)
        before = asyncio.get_running_loop().time()
        gone.leaves.set()
        await gone.task
        assert asyncio.get_running_loop().time() - before < 0.5, "it keeps no place"
        await send(factory, *messages_of(0))
        (message,) = await received(client, lease_s=600.0)
        assert message["attempts"] == 1


class Departing:
    """A request to receive whose client goes away."""

    def __init__(self, gateway: Gateway) -> None:
        self.leaves = asyncio.Event()
        self._body: bytes | None = b'{"subscriptions": [{"topic": "t"}], "lease_s": 600.0}'
        scope = {
            "type": "http",
            "method": "POST",
            "scheme": "http",
            "path": f"{GROUP}/receive",
            "raw_path": f"{GROUP}/receive".encode(),
            "root_path": "",
            "query_string": b"wait=20",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8120),
        }
        self.task = asyncio.ensure_future(gateway(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        pass


async def test_a_group_that_nobody_asks_for_is_left_and_its_place_is_known(
    gateway: Gateway, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """The gateway keeps nothing of it; the next request joins again."""
    await send(factory, *messages_of(0, 1))
    messages = await received(client, 2, lease_s=600.0, max=2)
    await settle(client, "ack", *messages)
    await until(lambda: len(gateway.members) == 0, timeout_s=100.0)

    async def is_done() -> bool:
        found = await factory.admin.describe_group("g")
        return [each.lag_bytes for each in found.partitions] == [0, 0] and not found.members

    await until_true(is_done)
    await send(factory, *messages_of(2))
    assert texts(await receive(client)) == ["2"]


async def test_what_is_settled_behind_the_last_member_moves_the_group(
    gateway: Gateway,
    client: httpx.AsyncClient,
    other: httpx.AsyncClient,
    factory: aio.MessageFactory,
) -> None:
    """Also through a gateway that has never heard of the topic."""
    await send(factory, *messages_of(0))
    (message,) = await received(client, lease_s=6_000.0)
    await until(lambda: len(gateway.members) == 0, timeout_s=100.0)

    async def lag() -> int:
        found = await factory.admin.describe_group("g")
        return sum(each.lag_bytes or 0 for each in found.partitions)  # it goes by the offset

    assert await lag() > 0
    assert (await settle(other, "ack", message)).is_success
    assert await lag() == 0


async def test_requests_are_bounded_and_rights_are_checked(
    factory: aio.MessageFactory, tmp_path: Path
) -> None:
    rights = {"read": ["t"], "groups": ["g"]}
    tokens = token_file(tmp_path / "tokens", one=rights, no_topic={"groups": ["g"]})
    settings = {"consumers_per_token_max": 1, "waiting_per_token_max": 1}
    async with gateway_of(factory, tokens=tmp_path / "tokens", **settings) as gateway:
        one, no_topic = (http_client(gateway, tokens[name]) for name in ("one", "no_topic"))
        await send(factory, *messages_of(0))
        messages = await received(one)
        waits = asyncio.ensure_future(receive(one))
        await until(lambda: gateway.members.waiting == 1)
        for answer, status, code in (
            (await receive(one), 429, "AtLimit"),
            (await receive(one, wait=0, start="latest"), 429, "AtLimit"),
            (await receive(no_topic), 403, "RightRequired"),
            (await settle(no_topic, "ack", *messages), 403, "RightRequired"),
            (await receive(one, wait=61), 400, "BodyRefused"),
            (await receive(one, max=1_001), 400, "BodyRefused"),
            (await receive(one, lease_s=0.05), 400, "BodyRefused"),
            (await receive(one, attempt="x" * 129), 400, "BodyRefused"),
            (await settle(one, "nack", *messages, delay_s=-1), 400, "BodyRefused"),
            (await settle(one, "extend", *messages), 400, "BodyRefused"),
            (await settle(one, "ack", *messages, *messages), 400, "BodyRefused"),
            (await settle(one, "ack", {"handle": "none"}), 400, "BodyRefused"),
            (await settle(one, "ack"), 400, "BodyRefused"),
        ):
            with case(status, answer.text):
                assert (answer.status_code, answer.json()["code"]) == (status, code)
        before = asyncio.get_running_loop().time()
        await gateway.stop()
        assert (await waits).status_code == 503
        assert asyncio.get_running_loop().time() - before < 2.0


async def test_a_handle_counts_in_its_own_group_only(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await send(factory, *messages_of(0))
    (message,) = await received(client)
    form = {"handles": [message["handle"]]}
    assert (await client.post("/v1/groups/other/ack", json=form)).status_code == 400
    assert (await settle(client, "ack", message)).is_success


async def test_members_of_vq_and_clients_of_the_gateway_share_a_group(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """And a group of another model is refused."""
    seen: list[bytes] = []
    held = asyncio.Event()

    async def listener(message: Message) -> None:
        seen.append(message.content)
        await held.wait()

    await send(factory, *messages_of(*range(6)))
    config = ConsumerConfig(group="g", model="shared", workers=1, lease_s=100.0)
    native = await factory.create_consumer(config)
    await native.subscribe("t", listener=listener).start()
    await until(lambda: len(seen) == 1)
    messages = await received(client, 3, max=10)
    assert (await settle(client, "ack", *messages)).is_success
    held.set()
    await until(lambda: len(seen) + len(messages) == 6)
    await native.close()
    form = {"group": "c", "subscriptions": [{"topic": "t"}]}
    assert (await client.post("/v1/consumers", json=form)).status_code == 201
    answer = await client.post("/v1/groups/c/receive", json={"subscriptions": [{"topic": "t"}]})
    assert (answer.status_code, answer.json()["code"]) == (409, "MemberDiffers")


async def test_a_keyed_group_gives_one_message_of_a_key_at_a_time(
    client: httpx.AsyncClient, other: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """In their order, at any gateway; one that waits for its next try holds its key."""
    sent = [(0, "a"), (1, "a"), (2, "b"), (3, None)]
    await send(factory, *(Message("t", b"%d" % number, key=key) for number, key in sent))
    messages = await received(client, 3, max=10, mode="keyed", lease_s=600.0)
    assert sorted(each["text"] for each in messages) == ["0", "2", "3"]
    assert texts(await receive(other, mode="keyed", wait=1)) == []
    (first,) = (each for each in messages if each["text"] == "0")
    assert (await settle(other, "nack", first)).is_success
    (again,) = await received(other, mode="keyed")
    assert (again["text"], again["attempts"]) == ("0", 2)
    assert (await settle(client, "ack", again)).is_success
    (second,) = await received(other, mode="keyed")
    assert (second["text"], second["attempts"]) == ("1", 1)
    assert (await receive(client)).json()["code"] == "MemberDiffers"


async def test_lag_goes_by_what_was_settled(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await send(factory, Message("t", b"0", key=0), Message("t", b"1", key=0))
    _, last = await received(client, 2, lease_s=600.0, max=2)
    await settle(client, "ack", last)
    partition = TopicPartition("t", last["partition"])

    async def lag() -> int | None:
        found = await factory.admin.describe_group("g")
        lags = {TopicPartition(e.topic, e.partition): e.lag_messages for e in found.partitions}
        return lags.get(partition)

    async def is_one() -> bool:
        return await lag() == 1  # the other one is done, though it lies behind

    await until_true(is_one)
