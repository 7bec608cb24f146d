"""Who may do what over HTTP."""

from pathlib import Path

import httpx
import pytest
from support.broker import MemoryCluster
from support.cases import case
from support.consumers import send
from support.gateway import StreamPeer, consumer_of, gateway_of, http_client, token_file

from vq import aio
from vq.client.consumer.shared.handles import PlacedHandle
from vq.gateway.app import Gateway
from vq.gateway.shared_members import handle_text
from vq.model import Message, TopicPartition
from vq.testing.waiting import until

FORM = {"group": "g", "subscriptions": [{"topic": "t"}]}


def requests(consumer: str = "/v1/consumers/none") -> list[tuple[str, str, dict[str, object]]]:
    """A request of every route, each of which is well formed."""
    position = {"topic": "t", "partition": 0, "next_offset": 0}
    shared = {"subscriptions": FORM["subscriptions"]}
    handles = {"handles": [handle_text("g", PlacedHandle(TopicPartition("t", 0), "i", 0, 1))]}
    return [
        ("POST", "/v1/topics/t/messages", {"json": {"text": "x"}}),
        ("POST", "/v1/topics/t/messages/raw", {"content": b"x"}),
        ("POST", "/v1/messages", {"json": {"messages": [{"topic": "t", "text": "x"}]}}),
        ("GET", "/v1/topics", {}),
        ("GET", "/v1/topics/t", {}),
        ("GET", "/v1/topics/t/partitions/0/messages?offset=0", {}),
        ("POST", "/v1/consumers", {"json": FORM}),
        ("GET", consumer, {}),
        ("POST", f"{consumer}/heartbeat", {}),
        ("GET", f"{consumer}/messages", {}),
        ("GET", f"{consumer}/stream", {}),
        ("POST", f"{consumer}/commits", {"json": {"positions": [position]}}),
        ("DELETE", consumer, {}),
        ("POST", "/v1/groups/g/receive", {"json": shared}),
        ("POST", "/v1/groups/g/ack", {"json": handles}),
        ("POST", "/v1/groups/g/nack", {"json": handles}),
        ("POST", "/v1/groups/g/reject", {"json": handles}),
        ("POST", "/v1/groups/g/extend", {"json": {**handles, "lease_s": 9}}),
    ]


async def test_every_route_needs_a_token_and_a_right(
    factory: aio.MessageFactory, tmp_path: Path
) -> None:
    """A route that is added and forgets its right fails here: all rows have a request above."""
    nothing = {"read": ["other"], "write": ["other"], "groups": ["other"]}
    all_of_it = {"read": ["t"], "write": ["t"], "groups": ["g"]}
    tokens = token_file(tmp_path / "tokens", poor=nothing, rich=all_of_it)
    async with gateway_of(factory, tokens=tmp_path / "tokens") as gateway:
        rich = http_client(gateway, tokens["rich"])
        path = await consumer_of(rich)
        asked = {(method, gateway_path(gateway, url)) for method, url, _ in requests(path)}
        assert asked == {(each.method, each.path) for each in gateway.routes.rows()}
        for method, url, body in requests(path):
            with case(method, url):
                for token in ("", "vqt_wrong"):
                    answer = await http_client(gateway, token).request(method, url, **body)
                    assert (answer.status_code, answer.json()["code"]) == (401, "TokenRequired")
                    assert answer.headers["WWW-Authenticate"] == "Bearer"
                poor = await http_client(gateway, tokens["poor"]).request(method, url, **body)
                if url == "/v1/topics":
                    assert poor.json() == {"topics": [], "next": None}
                elif url.startswith(path):  # whose id nobody else knows
                    assert poor.status_code == 410
                else:
                    assert (poor.status_code, poor.json()["code"]) == (403, "RightRequired")
                    assert poor.json()["details"]["name"] in {"t", "g"}
                if not url.endswith("/stream"):
                    answer = await rich.request(method, url, **body)
                    problem = {} if answer.is_success else answer.json()
                    # Group g is no shared one, and the consumer may not have its partition yet:
                    # these get behind the check of rights, too.
                    refused = {"MemberDiffers", "LeaseLost"} if "/groups/" in url else set()
                    refused |= {"GenerationStale"} if url.startswith(path) else set()
                    assert answer.is_success or problem["code"] in refused, answer.text


def gateway_path(gateway: Gateway, url: str) -> str:
    """The path of the row that takes a URL."""
    path = url.partition("?")[0]
    if path.startswith("/v1/consumers/"):
        rest = path.split("/")[4:]
        return "/".join(["/v1/consumers/{consumer}", *rest])
    if path.startswith("/v1/groups/"):
        return path.replace("/g/", "/{group}/")
    return (
        path.replace("/t", "/{topic}", 1)
        .replace("/{topic}opics", "/topics")
        .replace("/topics/t", "/topics/{topic}")
        .replace("partitions/0", "partitions/{partition}")
    )


async def test_a_token_lists_and_uses_what_its_patterns_take(
    cluster: MemoryCluster, factory: aio.MessageFactory, tmp_path: Path
) -> None:
    await cluster.create_topic("orders.eu")
    await cluster.create_topic("orders.us")
    tokens = token_file(
        tmp_path / "tokens",
        shop={"read": ["orders.*"], "write": ["orders.eu"], "groups": ["shop-*"]},
    )
    async with (
        gateway_of(factory, tokens=tmp_path / "tokens") as gateway,
        http_client(gateway, tokens["shop"]) as client,
    ):
        topics = (await client.get("/v1/topics", params={"limit": 1})).json()
        assert topics == {
            "topics": [{"name": "orders.eu", "partitions": [0]}],
            "next": "orders.eu",
        }
        more = (await client.get("/v1/topics", params={"after": topics["next"]})).json()
        assert [each["name"] for each in more["topics"]] == ["orders.us"]
        sent = {"text": "x"}
        assert (await client.post("/v1/topics/orders.eu/messages", json=sent)).is_success
        other = await client.post("/v1/topics/orders.us/messages", json=sent)
        assert "may not write topic 'orders.us'" in other.json()["detail"]
        patterns = (("orders.*", 201), ("orders.e*", 201), ("*", 403), ("o*", 403))
        for number, (pattern, status) in enumerate(patterns):
            form = {"group": f"shop-{number}", "subscriptions": [{"topic": pattern}]}
            with case(pattern):
                assert (await client.post("/v1/consumers", json=form)).status_code == status
        form = {"group": "other", "subscriptions": [{"topic": "orders.*"}]}
        assert "may not join group" in (await client.post("/v1/consumers", json=form)).text


async def test_a_consumer_belongs_to_its_token_and_bounds_count_by_token(
    factory: aio.MessageFactory, tmp_path: Path
) -> None:
    rights = {"read": ["t"], "groups": ["*"]}
    tokens = token_file(tmp_path / "tokens", one=rights, two=rights)
    async with gateway_of(
        factory, tokens=tmp_path / "tokens", consumers_per_token_max=1
    ) as gateway:
        one, two = (http_client(gateway, tokens[name]) for name in ("one", "two"))
        consumer = await consumer_of(one)
        assert (await two.get(f"{consumer}/messages")).status_code == 410
        assert (await two.delete(consumer)).status_code == 410
        assert (await one.post("/v1/consumers", json=FORM)).status_code == 429
        await consumer_of(two)


async def test_topics_of_vq_itself_need_their_name(
    cluster: MemoryCluster, factory: aio.MessageFactory, tmp_path: Path
) -> None:
    """No pattern gives a right on dead letters, or on messages that are delivered later."""
    tokens = token_file(
        tmp_path / "tokens",
        all={"read": ["*"], "write": ["*"], "groups": ["*"]},
    )
    async with (
        gateway_of(factory, tokens=tmp_path / "tokens") as gateway,
        http_client(gateway, tokens["all"]) as client,
    ):
        for topic in ("_vq.delayed", "_vq.dlq.g", "_vq.transactions"):
            read = await client.get(f"/v1/topics/{topic}/partitions/0/messages?offset=0")
            assert read.status_code == 403
            sent = await client.post(f"/v1/topics/{topic}/messages", json={"text": "x"})
            assert sent.status_code == 403


async def test_a_host_that_is_not_the_gateways_is_refused(gateway: Gateway) -> None:
    """A web page whose name was bound to 127.0.0.1 gets nothing."""
    async with http_client(gateway) as client:
        for host, status in (
            ("localhost", 200),
            ("LOCALHOST:8120", 200),
            ("127.0.0.1:8120", 200),
            ("[::1]:8120", 200),
            ("evil.example", 421),
            ("localhost.evil.example:8120", 421),
            ("", 421),
        ):
            with case(host):
                answer = await client.get("/v1/topics", headers={"Host": host})
                assert answer.status_code == status


async def test_web_pages_may_call_it_only_if_that_is_configured(
    gateway: Gateway, factory: aio.MessageFactory, tmp_path: Path
) -> None:
    asks = {"Origin": "https://shop.example", "Access-Control-Request-Method": "POST"}
    async with http_client(gateway) as client:
        answer = await client.get("/v1/topics", headers=asks)
        assert "access-control-allow-origin" not in answer.headers
        assert (await client.options("/v1/messages", headers=asks)).status_code == 405
    token_file(tmp_path / "tokens")
    async with (
        gateway_of(
            factory, origins=("https://shop.example",), tokens=tmp_path / "tokens"
        ) as open_to_it,
        http_client(open_to_it) as client,
    ):
        answer = await client.options("/v1/messages", headers=asks)
        assert answer.headers["access-control-allow-origin"] == "https://shop.example"
        other = {**asks, "Origin": "https://evil.example"}
        answer = await client.options("/v1/messages", headers=other)
        assert "access-control-allow-origin" not in answer.headers


async def test_a_stream_of_a_token_ends_with_its_consumer_only(
    factory: aio.MessageFactory, tmp_path: Path
) -> None:
    tokens = token_file(tmp_path / "tokens", one={"read": ["t"], "groups": ["g"]})
    async with (
        gateway_of(factory, tokens=tmp_path / "tokens") as gateway,
        http_client(gateway, tokens["one"]) as client,
    ):
        consumer = await consumer_of(client)
        refused = StreamPeer(gateway, f"{consumer}/stream")
        await refused.task
        assert refused.status == 401
        stream = StreamPeer(gateway, f"{consumer}/stream", token=tokens["one"])
        await until(lambda: stream.status)
        await client.delete(consumer)
        await stream.task
        assert (stream.status, stream.ended) == (200, True)


async def test_no_path_but_that_of_the_description_goes_without_a_token(
    cluster: MemoryCluster, factory: aio.MessageFactory, tmp_path: Path
) -> None:
    """A topic may have a name that looks like it."""
    await cluster.create_topic("openapi.json")
    token_file(tmp_path / "tokens")
    async with (
        gateway_of(factory, tokens=tmp_path / "tokens") as gateway,
        http_client(gateway) as client,
    ):
        for path, status in (
            ("/openapi.json", 200),
            ("/v1/openapi.json", 200),
            ("/v1/topics/openapi.json", 401),
            ("//openapi.json", 401),
            ("/v1/consumers/x/openapi.json", 401),
            ("/", 401),
        ):
            with case(path):
                assert (await client.get(path)).status_code == status


async def test_a_problem_can_be_read_by_a_web_page(
    factory: aio.MessageFactory, tmp_path: Path
) -> None:
    token_file(tmp_path / "tokens")
    async with (
        gateway_of(factory, origins=("*",), tokens=tmp_path / "tokens") as gateway,
        http_client(gateway) as client,
    ):
        answer = await client.get("/v1/topics", headers={"Origin": "https://shop.example"})
        assert answer.status_code == 401
        assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("change", ["gone", "fewer rights"])
async def test_a_token_that_is_taken_away_gets_no_more_messages(
    factory: aio.MessageFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Neither by a request, nor by a stream that is open."""
    monkeypatch.setattr("vq.gateway.tokens.LOOK_S", 0.0)
    path = tmp_path / "tokens"
    tokens = token_file(path, one={"read": ["t"], "groups": ["g"]})
    async with (
        gateway_of(factory, tokens=path) as gateway,
        http_client(gateway, tokens["one"]) as client,
    ):
        consumer = await consumer_of(client)
        stream = StreamPeer(gateway, f"{consumer}/stream", token=tokens["one"])
        await send(factory, Message("t", b"before"))
        await stream.until_events(1)
        text = path.read_text()
        path.write_text("version = 1\n" if change == "gone" else text.replace('["t"]', '["u"]'))
        await send(factory, Message("t", b"after"))
        await stream.task
        assert [each["text"] for each in stream.events()] == ["before"]
        answer = await client.get(f"{consumer}/messages")
        status, code = (401, "TokenRequired") if change == "gone" else (403, "RightRequired")
        assert stream.events("end")[0]["code"] == answer.json()["code"] == code
        assert answer.status_code == status


async def test_it_can_be_mounted_in_another_application(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    """At its root, or at ``/v1``."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    for place in ("/v1", "", "/gateway"):
        outer = Starlette(routes=[Mount(place, gateway)])
        transport = httpx.ASGITransport(outer)
        prefix = "" if place == "/v1" else place
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            with case(place):
                answer = await client.get(f"{prefix}/v1/topics")
                assert [each["name"] for each in answer.json()["topics"]] == ["t"]
                sent = await client.post(f"{prefix}/v1/topics/t/messages", json={"text": "x"})
                assert sent.status_code == 201
                described = await client.get(f"{prefix}/v1/openapi.json")
                assert described.json()["openapi"].startswith("3.")
