"""The scenario of groups whose members change: a hand-over beside deliveries, and a large group.

*Hand-over*: three partitions get messages at a steady rate, and one member has them all. A second
member comes, one partition is handed over to it; it leaves, and the partition goes back. A message
is late by the time from its send to its listener.

*Large group*: 200 members, each with a session of its own, share 1,000 partitions. ZooKeeper's
transactions are counted at the server: what sessions cost at their begin and their end is among
them, and writes that are refused.
"""

import asyncio
import contextlib
import re
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import uvloop

import vq
from bench.context import Context, Rounds
from bench.figures import Figure, Target
from vq import aio
from vq.cli.bench.workload import Ready, WorkFailed
from vq.coordination.zookeeper.four_letter import four_letter_word

#: Messages a second for each partition beside a hand-over, and how long before and after it.
_RATE: Final = 100
_STEADY_S: Final = 2.0
_HANDED_OVER: Final = 3
_LATE_MS: Final = 100.0
_WAIT_S: Final = 300.0
MEMBERS: Final = 200
PARTITIONS: Final = 1_000
#: All members share one process, which is busy for longer than a session of 10 s allows.
_SESSION_S: Final = 60.0
#: So long the shares stay as they are until a group counts as stable.
_STABLE_S: Final = 2.0
_READ_BYTES: Final = 1 << 16
_SENT_AT: Final = struct.Struct("d")

_OTHERS: Final = "hand-over of a partition: messages of the others late by, at most"
_LARGE: Final = f"{MEMBERS} members, {PARTITIONS} partitions"


#: The bounds of the time until a group is stable. When all join, each member reads the topic and
#: the group once: 440,000 values of ZooKeeper in 5,000 requests, which one interpreter has to take
#: apart here. The last of that is done when one more joins.
STABLE_WITHIN_S: Final = {"all join": 60.0, "one more joins": 15.0, "one leaves": 15.0}


def writes_allowed(partitions: int, members: int) -> dict[str, int]:
    """Return the bounds of ZooKeeper's transactions, by change.

    A partition that changes hands costs a commit, a release and a claim at most. A member costs the
    begin of its session, its node, and at its end the same again. Members that begin together all
    make the nodes that they share, and all but one are refused.
    """
    moved = -(-partitions // members)
    return {
        "all join": 3 * partitions + 10 * members,
        "one more joins": 3 * moved + 10,
        "one leaves": 3 * moved + 10,
    }


TARGETS: Final = {
    _OTHERS: Target(value_max=_LATE_MS),
    **{
        f"{_LARGE}: {change}, stable": Target(value_max=bound_s)
        for change, bound_s in STABLE_WITHIN_S.items()
    },
    **{
        f"{_LARGE}: {change}, transactions": Target(value_max=float(bound))
        for change, bound in writes_allowed(PARTITIONS, MEMBERS).items()
    },
}


def groups(context: Context) -> Rounds:
    """Hand a partition over beside deliveries; then have a large group change."""
    members, partitions = context.pick(MEMBERS, 10), context.pick(PARTITIONS, 50)
    with context.cluster() as cluster:
        for round_ in range(context.rounds):
            late = cluster.run(
                "hand_over", topic=cluster.topic(_HANDED_OVER, flush="async"), group=f"h{round_}"
            )
            yield [
                Figure(_OTHERS, late["others_ms"], "ms", late["before_ms"]),
                Figure("the same partition, late by, at most", late["moved_ms"], "ms"),
            ]
        for round_ in range(context.rounds):
            topic = cluster.topic(partitions)
            changes = cluster.run("change_members", topic=topic, group=f"l{round_}", count=members)
            what = f"{members} members, {partitions} partitions"
            yield [
                figure
                for change, found in changes.items()
                for figure in (
                    Figure(f"{what}: {change}, stable", found["seconds"], "s"),
                    Figure(f"{what}: {change}, transactions", found["transactions"], ""),
                )
            ]
            cluster.drop(topic)


# A hand-over ------------------------------------------------------------------------------------
def hand_over(ready: Ready, *, client: dict[str, Any], topic: str, group: str) -> dict[str, Any]:
    """Have a second member come and leave; return by how much messages were late at most."""
    arrived: list[tuple[float, float, int, int]] = []  # when, late by, partition, member
    ended = threading.Event()

    def member(factory: vq.MessageFactory, number: int) -> vq.MessageConsumer:
        def listener(message: vq.Message) -> None:
            now = time.monotonic()
            (sent,) = _SENT_AT.unpack(message.content)
            arrived.append((now, now - sent, message.partition, number))

        consumer = factory.create_consumer(vq.ConsumerConfig(group=group))
        consumer.subscribe(topic, _READ_BYTES, listener)
        return consumer

    def send(producer: vq.MessageProducer) -> None:
        due = time.monotonic()
        while not ended.wait(max(0.0, due - time.monotonic())):
            for partition in range(_HANDED_OVER):
                content = _SENT_AT.pack(time.monotonic())
                producer.send_async(vq.Message(topic, content, key=partition))
            due = max(due + 1 / _RATE, time.monotonic())  # after a stall, no burst

    config = vq.MessageFactoryConfig(**client)
    with contextlib.ExitStack() as stack:
        factories = [stack.enter_context(vq.MessageFactory(config)) for _ in range(3)]
        producer = stack.enter_context(factories[0].create_producer())
        first, second = (member(factory, number) for number, factory in enumerate(factories[1:]))
        stack.callback(first.close)
        sender = threading.Thread(target=send, args=(producer,), name="sender")
        ready()
        first.start()
        _wait(lambda: len(first.assignment()) == _HANDED_OVER, "the first member's partitions")
        sender.start()
        try:
            _wait(lambda: len(arrived) > _HANDED_OVER * _RATE, "messages")
            steady = time.monotonic()
            time.sleep(_STEADY_S)
            joined = time.monotonic()
            second.start()
            _wait(lambda: any(each[3] for each in arrived), "messages of the second member")
            time.sleep(_STEADY_S)
            second.close()
            closed = time.monotonic()
            moved = {each[2] for each in arrived if each[3]}
            _wait(
                lambda: any(
                    not each[3] and each[2] in moved and each[0] > closed for each in arrived
                ),
                "the partition that went back",
            )
            time.sleep(_STEADY_S)
        finally:
            ended.set()
            sender.join()

    def latest(found: Sequence[float]) -> float:
        return max(found, default=0.0) * 1e3

    return {
        "before_ms": latest([late for when, late, _, _ in arrived if steady < when < joined]),
        "others_ms": latest(
            [late for when, late, where, _ in arrived if when > joined and where not in moved]
        ),
        "moved_ms": latest(
            [late for when, late, where, _ in arrived if when > joined and where in moved]
        ),
    }


def _wait(holds: Any, what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise WorkFailed(f"{what} did not come in {_WAIT_S:.0f} s")
        time.sleep(0.01)


# A large group ----------------------------------------------------------------------------------
def change_members(
    ready: Ready, *, client: dict[str, Any], topic: str, group: str, count: int
) -> dict[str, Any]:
    """Let so many members join at once, one more, and one leave; return what each change took."""
    return uvloop.run(_change_members(ready, client, topic, group, count))


async def _change_members(
    ready: Ready, client: dict[str, Any], topic: str, group: str, count: int
) -> dict[str, Any]:
    config = vq.MessageFactoryConfig(
        **client, session_timeout_s=_SESSION_S, start_timeout_s=_SESSION_S
    )
    members: list[tuple[aio.MessageFactory, aio.MessageConsumer]] = []

    async def handle(_: vq.Message) -> None:
        pass

    async def join() -> None:
        factory = aio.MessageFactory(config)
        await factory.__aenter__()
        consumer = await factory.create_consumer(vq.ConsumerConfig(group=group))
        members.append((factory, consumer))
        consumer.subscribe(topic, _READ_BYTES, handle)
        await consumer.start()

    async def leave() -> None:
        factory, consumer = members.pop()
        await consumer.close()
        await factory.__aexit__(None, None, None)

    async def all_join() -> None:
        await asyncio.gather(*(join() for _ in range(count)))

    ready()
    found = {}
    async with aio.MessageFactory(config) as factory:
        partitions = len(await factory.get_partitions_for_topic(topic))
        for change, make in (
            ("all join", all_join),
            ("one more joins", join),
            ("one leaves", leave),
        ):
            before, began = _transactions(client["zookeeper"]), time.monotonic()
            await make()
            since = await _stable(members, partitions)
            transactions = _transactions(client["zookeeper"]) - before
            found[change] = {"seconds": since - began, "transactions": transactions}
    await asyncio.gather(*(leave() for _ in list(members)))
    return found


async def _stable(members: Sequence[tuple[Any, aio.MessageConsumer]], partitions: int) -> float:
    """Wait until the partitions are shared evenly for a while; return since when."""
    deadline = time.monotonic() + _WAIT_S
    even = {partitions // len(members), -(-partitions // len(members))}
    held: list[int] = []
    since = time.monotonic()
    while time.monotonic() < since + _STABLE_S or not (
        sum(held) == partitions and even.issuperset(held)
    ):
        if time.monotonic() > deadline:
            raise WorkFailed(f"the partitions are not shared evenly after {_WAIT_S:.0f} s: {held}")
        now = [len(consumer.assignment()) for _, consumer in members]
        if now != held:
            held, since = now, time.monotonic()
        await asyncio.sleep(0.02)
    return since


def _transactions(zookeeper: str) -> int:
    """Return the number of the server's last transaction."""
    host, _, port = zookeeper.rpartition(":")
    found = re.search(r"Zxid: 0x([0-9a-f]+)", four_letter_word(host, int(port), "srvr"))
    if found is None:
        raise WorkFailed(f"ZooKeeper at {zookeeper} does not tell its last transaction")
    return int(found[1], 16) & 0xFFFFFFFF


WORKS: Final = {each.__name__: each for each in (hand_over, change_members)}
