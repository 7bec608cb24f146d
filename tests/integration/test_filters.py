"""Filters by headers and by code, in both APIs and in commands, against real brokers.

orders      price 0 to 59, every third of region hz, every fifth vip
wanted      price > 40, hz, not vip: 42, 48, 51, 54, 57
"""

import asyncio
import json
import threading

import pytest
from support.blocking import NAMES, config_of
from support.cluster import ProcessCluster
from support.topics import create_topic

import vq
from vq import aio
from vq.errors import InvalidArgument
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

WHERE = "price > 40 AND region IN ('hz', 'sh') AND NOT (vip = TRUE)"
WANTED = [b"42", b"48", b"51", b"54", b"57"]


class Dear(vq.MessageFilter):
    """The same in code, and where it ran."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def matches(self, message: vq.Message) -> bool:
        self.threads.add(threading.current_thread().name)
        headers = message.headers or {}
        dear = int(headers["price"]) > 40 and headers["region"] == "hz"
        return dear and headers["vip"] == "false"


def order(topic: str, number: int) -> vq.Message:
    headers = {
        "price": str(number),
        "region": "bj" if number % 3 else "hz",
        "vip": "false" if number % 5 else "true",
    }
    return vq.Message(topic, b"%d" % number, key=number, headers=headers)


@pytest.fixture
def topic(cluster: ProcessCluster) -> str:
    """A topic of four partitions with sixty orders."""
    name = f"orders-{next(NAMES)}"
    create_topic(cluster, name, partitions=4)
    with vq.MessageFactory(config_of(cluster)) as factory, factory.create_producer() as producer:
        producer.send_batch([order(name, number) for number in range(60)])
    return name


@pytest.mark.parametrize("wanted", [vq.Where(WHERE), Dear()])
def test_a_listener_gets_what_passes(
    cluster: ProcessCluster, topic: str, wanted: vq.Where | vq.MessageFilter
) -> None:
    """Each message once, the group is behind everything, and describes its filter."""
    got: list[bytes] = []
    group = f"group-{topic}"
    with vq.MessageFactory(config_of(cluster)) as factory:
        with factory.create_consumer(vq.ConsumerConfig(group=group, max_wait_s=1.0)) as consumer:
            listener = lambda each: got.append(each.content)  # noqa: E731
            consumer.subscribe(topic, listener=listener, message_filter=wanted).start()
            block_until(lambda: len(got) >= len(WANTED))
            consumer.commit()
            ends = {each: consumer.get_bounds(topic, each).latest for each in range(4)}
            block_until(
                lambda: {p.partition: at for p, at in consumer.get_offset(topic).items()} == ends
            )
            described = cluster.vq_json("group", "describe", group)
        assert sorted(got) == WANTED
        other = factory.create_consumer(vq.ConsumerConfig(group=group))
        other.subscribe(topic, listener=print)
        with pytest.raises(InvalidArgument, match="this member all messages"):
            other.start()
    (shown,) = described["topics"]
    if isinstance(wanted, Dear):
        assert shown["filter"] == f"MessageFilter {__name__}.Dear"
        assert "MainThread" not in wanted.threads
    else:
        assert shown["filter"] == f"WHERE {WHERE}"
    assert described["lag_is_upper_bound"]


def test_reads_by_position_take_filters(cluster: ProcessCluster, topic: str) -> None:
    with vq.MessageFactory(config_of(cluster)) as factory, factory.create_consumer() as consumer:
        for wanted in (vq.Where(WHERE), Dear()):
            found = []
            for number in range(4):
                offset, end = 0, consumer.get_bounds(topic, number).latest
                while offset < end:
                    some = consumer.get(topic, number, offset, 1 << 20, message_filter=wanted)
                    found += [each.content for each in some]
                    offset = some.next_offset
            assert sorted(found) == WANTED
            last = consumer.get_last(topic, 100, message_filter=wanted)
            assert sorted(each.content for each in last) == WANTED


async def test_coroutines_take_filters(cluster: ProcessCluster, topic: str) -> None:
    async with (
        aio.MessageFactory(config_of(cluster)) as factory,
        await factory.create_consumer(vq.ConsumerConfig(group=f"aio-{topic}")) as consumer,
    ):
        consumer.subscribe(topic, message_filter=vq.Where(WHERE))
        found: list[bytes] = []
        async with asyncio.timeout(PROCESSES_WAIT_S):
            async for message in consumer:
                found.append(message.content)
                if len(found) == len(WANTED):
                    break
        assert sorted(found) == WANTED


def test_commands_take_expressions(cluster: ProcessCluster, topic: str) -> None:
    def contents(*arguments: str) -> list[bytes]:
        ended = cluster.vq(*arguments)
        assert ended.returncode == 0, ended.stderr.decode()
        return sorted(ended.stdout.split())

    assert contents("consume", topic, "--where", WHERE) == WANTED
    assert len(contents("consume", topic, "--where", WHERE, "--last", "2")) == 2
    group = ("--group", f"cli-{topic}", "--max", str(len(WANTED)))
    assert contents("consume", topic, "--where", WHERE, *group) == WANTED
    found = cluster.vq_json("message", "find", topic, "--where", WHERE)
    assert sorted(each["content"].encode() for each in found["messages"]) == WANTED
    both = cluster.vq("consume", topic, "--where", "a = 1", "--tag", "a")
    assert (both.returncode, b"--tag and --where exclude one another" in both.stderr) == (2, True)
    wrong = cluster.vq("consume", topic, "--where", "price > ", "--json")
    assert wrong.returncode == 2
    said = json.loads(wrong.stdout or wrong.stderr)
    assert "is wrong at character 9: expected a value, found the end" in json.dumps(said)
