"""Requests that nobody should send."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.cases import case
from support.gateway import consumer_of, gateway_of, http_client

from vq import aio
from vq.gateway.app import Gateway
from vq.limits import MESSAGE_BYTES_MAX

JSON = {"Content-Type": "application/json"}
DEEP = b"[" * 100_000
TEXTS = (
    "",
    "..",
    "../../etc/passwd",
    "%2e%2e%2f",
    "a/b",
    "a\x00b",
    "a\r\nSet-Cookie: x=y",
    "<script>alert(1)</script>",
    "{{7*7}}",
    "' OR 1=1 --",
    "\u202egnp.exe",
    "\U0001f600" * 300,
    "ü" * 300,
    "=cmd|' /C calc'!A0",
    "_vq.delayed",
    "x" * 10_000,
)


def check_problem(answer: httpx.Response) -> None:
    """An answer is a problem document that a client can act on, and no error of the gateway."""
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["detail"]
    assert len(answer.content) < 10_000


@pytest.mark.slow
async def test_hostile_names_get_a_problem(client: httpx.AsyncClient) -> None:
    for text in TEXTS:
        with case(text[:40]):
            quoted = quote(text, safe="").replace(".", "%2E")
            url = f"/v1/topics/{quoted}/messages"
            check_problem(await client.post(url, json={"text": "x"}))
            for path in (f"/v1/topics/{quoted}", f"/v1/topics/{quoted}/partitions/0/messages"):
                check_problem(await client.get(path, params={"offset": 0}))
            check_problem(await client.get(f"/v1/consumers/{quoted}"))
            form = {"handles": [text]}
            check_problem(await client.post(f"/v1/groups/{quoted}/ack", json=form))
            check_problem(await client.post("/v1/groups/g/ack", json=form))
            batch = {"messages": [{"topic": text, "text": "x"}]}
            check_problem(await client.post("/v1/messages", json=batch))
            if text.startswith("_vq."):
                continue  # names that there may be
            form = {"group": text, "subscriptions": [{"topic": "t"}]}
            check_problem(await client.post("/v1/consumers", json=form))
            form = {"group": "g", "subscriptions": [{"topic": text}]}
            check_problem(await client.post("/v1/consumers", json=form))
            url = "/v1/topics/t/partitions/0/messages"
            for name in ("offset", "time", "start", "max", "wait", "content"):
                check_problem(await client.get(url, params={"offset": "0", name: text or "?"}))


async def test_hostile_texts_in_messages_come_back_as_they_are(client: httpx.AsyncClient) -> None:
    """As data: neither a header of HTTP nor a line of an event stream is made of them."""
    given = [text for text in TEXTS if len(text) < 1_000]
    for text in given:
        form = {"text": text, "key": text, "headers": {"h": text}}
        answer = await client.post("/v1/topics/t/messages", json=form)
        assert answer.status_code == 201, answer.text
    consumer = await consumer_of(client)
    found: list[Any] = []
    async with asyncio.timeout(20):
        while len(found) < len(given):
            answer = await client.get(f"{consumer}/messages", params={"wait": 5})
            found = answer.json()["messages"]
    seen = {(each["text"], each["key"], each["headers"]["h"]) for each in found}
    assert seen == {(text, text or None, text) for text in given}


async def test_bodies_that_are_not_what_they_must_be_get_a_problem(
    client: httpx.AsyncClient,
) -> None:
    url = "/v1/topics/t/messages"
    text = {"text": "x"}
    bodies: list[bytes] = [
        b"",
        b"nothing",
        b"[]",
        b"null",
        DEEP,
        b'{"json":' + DEEP,
        b"\xff\xfe",
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b'{"json": "\\ud800"}',
        b'{"json": NaN}',
        b'{"json": 1e999}',
        b'{"text": "x", "text2": 1}',
        *(
            json.dumps(each).encode()
            for each in (
                {},
                {"text": 1},
                {"text": "x", "base64": "eA=="},
                {"base64": "x"},
                {"base64": "ü"},
                {**text, "key": 2**63},
                {**text, "key": True},
                {**text, "key": 1.5},
                {**text, "key": {"base64": "?"}},
                {**text, "key": {"integer": "9" * 19}},
                {**text, "key": "k" * 40_000},
                {**text, "tag": ""},
                {**text, "tag": "a || b"},
                {**text, "tag": "t" * 256},
                {**text, "headers": {"": "x"}},
                {**text, "headers": {"_vq.origin": "x"}},
                {**text, "headers": {"a": 1}},
                {**text, "headers": {"a": "x" * 40_000}},
                {**text, "headers": {f"h{n}": "" for n in range(1_000)}},
                {**text, "delay_s": -1},
                {**text, "delay_s": 1e9},
                {**text, "deliver_at": "soon"},
                {**text, "deliver_at": "2020-01-01T00:00:00"},
                {**text, "delay_s": 1, "deliver_at": "2030-01-01T00:00:00Z"},
            )
        ),
    ]
    for body in bodies:
        with case(body[:60]):
            check_problem(await client.post(url, content=body, headers=JSON))
    answer = await client.post(url, json={"txt": "x"})
    assert answer.json()["detail"] == "txt: there is no such field"
    answer = await client.post("/v1/consumers", json={"group": "g"})
    assert answer.json()["detail"] == "subscriptions: it is missing"
    for kind in ("text/plain", "application/xml", "multipart/form-data", ""):
        answer = await client.post(url, content=b'{"text":"x"}', headers={"Content-Type": kind})
        assert answer.status_code == 415
    for path, body in ((url, b'{"text":"x"}'), (f"{url}/raw", b"x")):
        headers = {**JSON, "Content-Encoding": "gzip"}
        answer = await client.post(path, content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "WrongContentType")
    many = {"messages": [{"topic": "t", "text": ""}] * 1_001}
    check_problem(await client.post("/v1/messages", json=many))


async def test_raw_messages_with_bad_headers_get_a_problem(client: httpx.AsyncClient) -> None:
    for name, value in (
        (b"VQ-Key", b"\xff"),
        (b"VQ-Tag", b" a || b"),
        (b"VQ-Delay", b"soon"),
        (b"VQ-Delay", b"nan"),
        (b"VQ-Delay", b"-1"),
        (b"VQ-Header-", b"x"),
        (b"VQ-Header-_vq.origin", b"x"),
        (b"VQ-Partition", b"1"),
    ):
        with case(name, value):
            request = client.build_request("POST", "/v1/topics/t/messages/raw", content=b"x")
            request.headers = httpx.Headers([*request.headers.raw, (name, value)])
            check_problem(await client.send(request))


async def test_the_largest_message_passes_and_one_byte_more_does_not(
    client: httpx.AsyncClient,
) -> None:
    url = "/v1/topics/t/messages"
    for size, status in ((MESSAGE_BYTES_MAX, 201), (MESSAGE_BYTES_MAX + 1, 413)):
        with case(size):
            raw = await client.post(f"{url}/raw", content=b"x" * size)
            assert raw.status_code == status
            form = await client.post(url, json={"text": "x" * size})
            assert form.status_code in {status, 400}
            assert form.is_success == raw.is_success


async def test_a_body_without_an_end_is_cut_at_its_bound(gateway: Gateway) -> None:
    """A body that does not say how long it is."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 1 << 30:
            sent += 1 << 16
            yield b"x" * (1 << 16)

    async with http_client(gateway) as client:
        answer = await client.post("/v1/messages", content=endless(), headers=JSON)
        assert (answer.status_code, answer.headers["Connection"]) == (413, "close")
        assert sent < 10 << 20
        for length in ("-1", "1e3", "9" * 30):
            headers = {**JSON, "Content-Length": length}
            answer = await client.post("/v1/messages", content=b"x", headers=headers)
            assert answer.status_code in {400, 413}
    assert gateway.gauges()["body_bytes"][1] == 0


async def test_a_body_that_comes_slowly_times_out(factory: aio.MessageFactory) -> None:
    never = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"text":'
        await never.wait()

    async with gateway_of(factory, body_timeout_s=0.05) as gateway, http_client(gateway) as client:
        answer = await client.post("/v1/topics/t/messages", content=slow(), headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (408, "BodyTooSlow")


async def test_numbers_outside_their_bounds_get_a_problem(client: httpx.AsyncClient) -> None:
    consumer = await consumer_of(client)
    for path in (
        f"{consumer}/messages?max=0",
        f"{consumer}/messages?max=1001",
        f"{consumer}/messages?wait=61",
        f"{consumer}/messages?wait=nan",
        f"{consumer}/messages?wait=inf",
        f"{consumer}/messages?wait=-1",
        "/v1/topics/t/partitions/-1/messages?offset=0",
        "/v1/topics/t/partitions/4096/messages?offset=0",
        "/v1/topics/t/partitions/7/messages?offset=0",
        "/v1/topics/t/partitions/0/messages",
        "/v1/topics/t/partitions/0/messages?offset=0&start=latest",
        "/v1/topics/t/partitions/0/messages?offset=1",
        "/v1/topics/t/partitions/0/messages?offset=99999999999999999999",
        "/v1/topics/t/partitions/0/messages?offset=0&where=(((",
        "/v1/topics/t/partitions/0/messages?offset=0&tags=a&where=b",
        "/v1/topics?limit=0",
        "/v1/topics?limit=1001",
        "/v1/consumers/../topics/%00",
        "/v1/consumers/" + "x" * 200,
        "/v2/topics",
        "/docs",
    ):
        with case(path):
            check_problem(await client.get(path))
    for more in (
        {"lease_s": 1},
        {"lease_s": 1e9},
        {"window": 0},
        {"window": 10**9},
        {"start": "middle"},
        {"subscriptions": []},
        {"subscriptions": [{"topic": "t"}, {"topic": "t*"}]},
        {"subscriptions": [{"topic": "t", "tags": "a", "where": "b"}]},
        {"subscriptions": [{"topic": f"t{n}"} for n in range(33)]},
        {"subscriptions": [{"topic": "none"}]},
    ):
        form = {"group": "g2", "subscriptions": [{"topic": "t"}], **more}
        with case(more):
            check_problem(await client.post("/v1/consumers", json=form))
    position = {"topic": "t", "partition": 0, "next_offset": 0}
    for positions in ([], [position, position], [{**position, "next_offset": 2**60}], "all"):
        with case(positions):
            answer = await client.post(f"{consumer}/commits", json={"positions": positions})
            check_problem(answer)
