"""Messages that are sent over HTTP."""

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from support.broker import MemoryCluster
from support.gateway import gateway_of, http_client

from vq import aio
from vq.errors import Busy, DiskFull, MessageTooLarge, TimedOut
from vq.gateway.app import Gateway
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import Message
from vq.testing.waiting import until


async def stored(factory: aio.MessageFactory) -> list[Message]:
    async with await factory.create_consumer() as consumer:
        return [each for n in (0, 1) for each in await consumer.get("t", n, 0, 1 << 20)]


async def test_a_message_is_stored_as_the_client_of_vq_stores_it(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    form = {"text": "grün", "key": "k", "tag": "new", "headers": {"Trace": "ü"}}
    answer = await client.post("/v1/topics/t/messages", json=form)
    assert answer.status_code == 201
    [message] = await stored(factory)
    assert message[:5] == ("t", "grün".encode(), "new", "k", {"Trace": "ü"})
    place = answer.json()
    assert (place["topic"], place["partition"], place["offset"], int(place["id"])) == (
        "t",
        message.partition,
        message.offset,
        message.id,
    )


async def test_each_form_of_content_and_key_is_stored_and_given_back(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    raw = bytes(range(256))
    forms: list[tuple[dict[str, Any], bytes, Any]] = [
        ({"json": {"a": [1, None, "ü"]}}, '{"a":[1,null,"ü"]}'.encode(), None),
        ({"json": None}, b"null", None),
        ({"text": ""}, b"", None),
        ({"base64": base64.b64encode(raw).decode()}, raw, None),
        ({"text": "i", "key": 7}, b"i", 7),
        ({"text": "b", "key": {"base64": "AP8="}}, b"b", b"\x00\xff"),
        ({"text": "n", "key": {"integer": "-9223372036854775808"}}, b"n", -(2**63)),
    ]
    batch = {"messages": [{"topic": "t", **form} for form, _, _ in forms]}
    assert (await client.post("/v1/messages", json=batch)).status_code == 200
    found = {(each.content, each.key) for each in await stored(factory)}
    assert found == {(content, key) for _, content, key in forms}
    shown = {}
    for partition in (0, 1):
        url = f"/v1/topics/t/partitions/{partition}/messages"
        answer = await client.get(url, params={"offset": 0, "content": "json"})
        for each in answer.json()["messages"]:
            [kind] = {"json", "text", "base64"} & each.keys()
            shown[str(each[kind])] = each["key"]
    assert shown["{'a': [1, None, 'ü']}"] is None
    assert shown["n"] == {"integer": "-9223372036854775808"}
    assert shown["b"] == {"base64": "AP8="}
    assert shown["i"] == 7
    assert base64.b64encode(raw).decode() in shown


async def test_a_raw_body_is_the_content(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    headers = {"VQ-Key": "k", "VQ-Tag": "t", "VQ-Header-Trace": "ü".encode(), "Content-Type": "a/b"}
    answer = await client.post(
        "/v1/topics/t/messages/raw",
        content=b"\x00\xff",
        headers=headers,  # type: ignore[arg-type]
    )
    assert answer.status_code == 201
    [message] = await stored(factory)
    assert message[:5] == ("t", b"\x00\xff", "t", "k", {"trace": "ü"})


async def test_a_batch_tells_the_outcome_of_each_message(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """Its status is no success: a client that looks no further does not take it for one."""
    batch = [{"topic": "t", "text": "one"}, {"topic": "none", "text": "two"}]
    answer = await client.post("/v1/messages", json={"messages": batch})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["code"], problem["stored"], problem["refused"], problem["unknown"]) == (
        "BatchFailed",
        1,
        1,
        0,
    )
    first, second = problem["results"]
    [message] = await stored(factory)
    assert (first["offset"], int(first["id"])) == (message.offset, message.id)
    assert (second["problem"]["code"], second["problem"]["outcome"]) == ("UnknownTopic", "refused")


@pytest.mark.parametrize(
    ("error", "status", "outcome", "after"),
    [
        (Busy("busy"), 429, "refused", "1"),
        (DiskFull("full"), 503, "refused", "10"),
        (TimedOut("no answer"), 504, "unknown", None),
        (MessageTooLarge("large"), 413, "refused", None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_what_becomes_of_a_send_is_told_by_status_outcome_and_retry_after(
    client: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
    outcome: str,
    after: str | None,
) -> None:
    """An unknown outcome is no failure: the message may be stored."""

    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(aio.MessageProducer, "send", fail)
    answer = await client.post("/v1/topics/t/messages", json={"text": "x"})
    assert answer.status_code == status
    assert answer.json()["outcome"] == outcome
    assert answer.json()["code"] == type(error).__name__
    assert answer.headers.get("Retry-After") == after


@pytest.mark.slow
async def test_a_broker_that_does_not_answer_makes_the_outcome_unknown(
    cluster: MemoryCluster, client: httpx.AsyncClient
) -> None:
    """The bytes have left, and the flush hangs: nobody knows whether the message is stored."""
    assert (await client.post("/v1/topics/t/messages", json={"text": "1"})).status_code == 201
    cluster.flushers["b1"].held = True
    sent = {"text": "2"}
    answer = await client.post("/v1/topics/t/messages", json=sent, params={"timeout": 0.5})
    cluster.flushers["b1"].release()
    assert (answer.status_code, answer.json()["outcome"]) == (504, "unknown")


async def test_bodies_that_wait_for_brokers_have_a_bound(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Producers that are faster than the brokers are told to wait."""
    size = 2 * MESSAGE_BYTES_MAX
    async with (
        gateway_of(factory, body_bytes_max=size, bodies_bytes_max=size) as gateway,
        http_client(gateway) as client,
    ):
        content = b"x" * MESSAGE_BYTES_MAX
        path = "/v1/topics/t/messages/raw"
        assert (await client.post(path, content=b"x")).status_code == 201
        cluster.flushers["b1"].held = True
        sends = [asyncio.ensure_future(client.post(path, content=content)) for _ in range(2)]
        await until(lambda: gateway.gauges()["body_bytes"][1] == size)
        refused = await client.post(path, content=b"x")
        cluster.flushers["b1"].release()
        assert [each.status_code for each in await asyncio.gather(*sends)] == [201, 201]
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert refused.json()["code"] == "AtLimit"
        assert gateway.gauges()["body_bytes"][1] == 0


async def test_a_delayed_message_is_accepted(client: httpx.AsyncClient) -> None:
    form = {"text": "later", "delay_s": 3600}
    answer = await client.post("/v1/topics/t/messages", json=form)
    assert answer.status_code == 201, answer.text
    moment = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    at = await client.post("/v1/topics/t/messages", json={"text": "then", "deliver_at": moment})
    assert at.status_code == 201, at.text
    raw = await client.post("/v1/topics/t/messages/raw", content=b"x", headers={"VQ-Delay": "60"})
    assert raw.status_code == 201, raw.text


async def test_counts_tell_what_became_of_messages(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    batch = [{"topic": "t", "text": "one"}, {"topic": "none", "text": "two"}]
    await client.post("/v1/messages", json={"messages": batch})
    await client.post("/v1/topics/t/messages", json={"text": "x"})
    counts = gateway.counts
    assert (counts.sent, counts.refused, counts.unknown) == (2, 1, 0)
    assert counts.requests["POST /v1/messages", 404] == 1
    names = {each.name for each in counts.families(gateway.gauges())}
    assert {"vq_gateway_requests", "vq_gateway_sent_messages", "vq_gateway_consumers"} <= names
