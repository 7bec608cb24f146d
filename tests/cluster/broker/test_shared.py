"""What members of shared groups get of the node that leads their journal, and of the next one."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.cases import case
from support.client import factory_of
from support.late_clock import later
from support.shared_member import (
    ACK,
    EXTEND,
    REJECT,
    RELEASE,
    UNUSED,
    Got,
    SharedMember,
    with_shared_topic,
)

from vq.broker.node import BrokerNode
from vq.broker.shared import ledger, shared_journal, shared_journals
from vq.coordination.topics.topics import describe_topic
from vq.errors import InvalidRequest
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import SharedKeys
from vq.reserved import SHARED_TOPIC
from vq.store.disk.memory_disk import keep_all, keep_none
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def _grants_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a group begin at 1, and not at a time."""
    monkeypatch.setattr(ledger, "GRANTS_PER_MS", 0)


async def begun(cluster: MemoryCluster, nodes: int = 1, **settings: Any) -> BrokerNode:
    """Start nodes with the topic of shared groups; return the master."""
    node = await cluster.start(**settings)
    await with_shared_topic(cluster)
    for number in range(2, nodes + 1):
        await cluster.start(node=f"n{number}", **settings)
        await cluster.until_in_sync(*(f"n{each + 1}" for each in range(number)))
    return node


async def crash(cluster: MemoryCluster, key: str, keep: Any) -> None:
    """End a node as kill -9 does, or as a loss of power does."""
    cluster.network.kill(key)
    disk = cluster.disks[key].crash(keep)
    cluster.ensemble.crash(cluster.coordinators[key])
    cluster.flushers[key].release()
    await cluster.nodes.pop(key).stop()
    cluster.disks[key] = disk


async def test_each_message_is_settled_by_itself(cluster: MemoryCluster) -> None:
    """What is not done comes again, with its count; what others have does not."""
    await begun(cluster)
    one, two = (SharedMember(cluster, number, [6, 2]) for number in (1, 2))
    (first,) = await one.receive(4)
    assert first == Got(0, 0, 4, 1, 1)
    assert await two.receive(9) == [Got(1, 0, 2, 2, 1), Got(0, 4, 2, 2, 1)]
    assert await one.receive(9) == []
    assert await one.settle(first._replace(messages=1), ACK) == []
    assert await one.settle(first._replace(first=1, messages=1), RELEASE, 500) == []
    assert await one.settle(first._replace(first=2, messages=1), UNUSED) == []
    assert await one.settle(first._replace(first=3, messages=1), REJECT) == []
    assert await two.receive(9) == [Got(0, 2, 1, 3, 1)]
    assert await two.receive(9, wait_ms=5_000) == [Got(0, 1, 1, 4, 2)]
    status = await one.status()
    (low, _) = status.sources
    assert (low.low, low.cursor, low.open, low.held) == (1, 6, 4, 4)


async def test_what_a_member_lost_is_not_done(cluster: MemoryCluster) -> None:
    """A settlement that comes too late is told so, and changes nothing for who has it now."""
    await begun(cluster)
    one, two = (SharedMember(cluster, number, [3]) for number in (1, 2))
    (first,) = await one.receive()
    assert await one.settle(first._replace(messages=1), EXTEND, 10_000) == []
    await asyncio.sleep(1.1)
    assert await one.settle(first, ACK) == [(0, 1, 2)], "one is extended"
    (second,) = await two.receive()
    assert second == Got(0, 1, 2, 2, 2)
    for kind in (ACK, REJECT, UNUSED):
        assert await one.settle(first._replace(first=1, messages=2), kind) == [(0, 1, 2)]
    assert await two.settle(second, ACK) == []
    assert await two.settle(second, ACK) == [(0, 1, 2)]
    assert (await one.status()).sources[0].low == 3


async def test_a_settlement_for_a_group_that_is_not_there_makes_none(
    cluster: MemoryCluster,
) -> None:
    """Its messages are lost, and nothing is kept: who guesses names fills no journal with them."""
    await begun(cluster)
    one = SharedMember(cluster, 1, [3])
    assert await one.settle(Got(0, 0, 2, 1, 1), ACK) == [(0, 0, 2)]
    assert not (await one.status()).found


async def test_a_member_waits_until_there_is_something(cluster: MemoryCluster) -> None:
    """It gets what is released, what another member tells of, and what a lease leaves."""
    await begun(cluster)
    one = SharedMember(cluster, 1, [2])
    two = SharedMember(cluster, 2, [2], lease_ms=60_000)
    clock = cluster.ensemble.clock
    (first,) = await one.receive()
    waits = asyncio.create_task(two.receive(1, wait_ms=20_000))
    await asyncio.sleep(0.3)
    await one.settle(first._replace(messages=1), RELEASE)
    assert await waits == [Got(0, 0, 1, 2, 2)]
    begin = clock.monotonic()
    assert await two.receive(1, wait_ms=20_000) == [Got(0, 1, 1, 3, 2)], "the lease is over"
    assert 0.6 < clock.monotonic() - begin < 0.8
    one.ends = [3]
    waits = asyncio.create_task(two.receive(1, wait_ms=20_000))
    await asyncio.sleep(0.1)
    assert await one.receive(1) == [], "the other one has waited longer"
    assert await waits == [Got(0, 2, 1, 4, 1)]
    waits = asyncio.create_task(two.receive(1, wait_ms=20_000))
    await asyncio.sleep(0.1)
    two.ends = [4]
    tells = two.ask(0)
    tells.attempt = 0
    assert await two.got(tells) == [], "it only tells"
    assert await waits == [Got(0, 3, 1, 5, 1)]
    waits = asyncio.create_task(two.receive(1, wait_ms=20_000))
    await asyncio.sleep(0.1)
    assert await two.got(two.ask(0)) == [], "it ends the one that waits"
    assert await waits == []
    one.ends = [5]
    assert await one.receive(1) == [Got(0, 4, 1, 6, 1)]
    assert (await one.status()).receiving == 0
    begin = clock.monotonic()
    assert await two.receive(wait_ms=400) == []
    assert 0.39 < clock.monotonic() - begin < 0.6


async def test_a_member_that_leaves_gets_nothing_more(cluster: MemoryCluster) -> None:
    """Its request ends at once; one of before, which was long on its way, ends no later one."""
    await begun(cluster)
    one, two = (SharedMember(cluster, number, [0]) for number in (1, 2))
    old = one.ask(9)
    waits = asyncio.create_task(one.receive(9, wait_ms=20_000))
    await asyncio.sleep(0.1)
    with pytest.raises(InvalidRequest, match="attempt 2 waits"):
        await SharedMember(cluster, 1, [0]).got(old)
    leaves = one.ask(0)
    assert await SharedMember(cluster, 1, [0]).got(leaves) == []
    assert await waits == []
    two.ends = [3]
    assert await two.receive(9) == [Got(0, 0, 3, 1, 1)]


async def test_what_nobody_has_seen_is_not_counted(cluster: MemoryCluster) -> None:
    """Also after a pause, and by whoever leads next."""
    await begun(cluster)
    one = SharedMember(cluster, 1, [1])
    (got,) = await one.receive()
    await one.settle(got, UNUSED, 800)
    assert await one.receive() == []
    node = cluster.nodes.pop("b1")
    await node.stop()
    await cluster.start()
    assert await one.receive(wait_ms=2_000) == [Got(0, 0, 1, 2, 1)]


async def test_a_repeated_request_has_the_same_answer(cluster: MemoryCluster) -> None:
    """Its first answer was lost: it gets the same messages, and not others."""
    await begun(cluster)
    one, two = (SharedMember(cluster, number, [9]) for number in (1, 2))
    asked = one.ask(4)
    first = await one.got(asked)
    assert await one.got(asked) == first
    said = one.say((first[0]._replace(messages=2), ACK, 0))
    assert one.lost(await one.call(Command.SETTLE, said)) == []
    assert one.lost(await one.call(Command.SETTLE, said)) == [], "it is done, and not lost"
    assert await one.got(asked) == [Got(0, 2, 2, 1, 1)]
    await asyncio.sleep(1.1)
    assert await one.got(asked) == []
    late = one.say((first[0], ACK, 0))
    for _ in range(2):
        assert one.lost(await one.call(Command.SETTLE, late)) == [(0, 0, 4)]
    assert await two.receive(4) == [Got(0, 2, 2, 2, 2), Got(0, 4, 2, 2, 1)]
    (last,) = await one.receive(1)
    await one.settle(last, ACK)
    with pytest.raises(InvalidRequest, match="attempt 1"):
        await one.got(asked)
    with pytest.raises(InvalidRequest, match="SETTLE 1"):
        await one.call(Command.SETTLE, said)


async def test_nothing_new_is_delivered_beyond_the_bounds(cluster: MemoryCluster) -> None:
    """They count what is delivered and not done, of a partition and of the group."""
    await begun(cluster)
    one = SharedMember(cluster, 1, [9, 9, 9], open_max=2, group_open_max=5, lease_ms=60_000)
    got = await one.receive(9)
    assert [(each.source, each.messages) for each in got] == [(0, 2), (1, 2), (2, 1)]
    assert await one.receive(9) == []
    await one.settle(got[0], RELEASE, 100)
    assert await one.receive(9) == []
    (again,) = await one.receive(9, wait_ms=1_000)
    assert again.deliveries == 2
    await one.settle(again, ACK)
    assert sum(each.messages for each in await one.receive(9)) == 2


async def test_what_no_member_sends_is_refused(cluster: MemoryCluster) -> None:
    """Nothing changes; the error shows the value and the bound."""
    await begun(cluster)
    one = SharedMember(cluster, 1, [9])
    (got,) = await one.receive(4)

    async def refused(command: Command, request: Any, **fields: Any) -> str:
        for name, value in fields.items():
            setattr(request, name, value)
        with pytest.raises(InvalidRequest) as error:
            await one.call(command, request)
        return str(error.value)

    for fields in (
        {"member": 0},
        {"attempt": 0},
        {"max_messages": 10_001},
        {"lease_ms": 99},
        {"lease_ms": 2**31},
        {"open_max": 0},
        {"group_open_max": 2**31},
        {"group": "../x"},
    ):
        said = await refused(Command.RECEIVE, one.ask(), **fields)
        (value,) = fields.values()
        assert str(value) in said
    for keys, says in (
        (SharedKeys(source=1, first=0, grant=1, keys=[1]), "source = 1"),
        (SharedKeys(first=0, keys=[1]), "grant = 0"),
        (SharedKeys(first=0, grant=1), "keys = 0"),
        (SharedKeys(first=0, grant=1, keys=[1] * 10_001), "10001"),
        (SharedKeys(first=2**63, grant=1, keys=[1]), "first"),
    ):
        telling = one.ask()
        telling.keys.append(keys)
        assert says in await refused(Command.RECEIVE, telling)
    telling = one.ask()
    telling.keys.extend([SharedKeys(first=each, grant=1, keys=[1, 2]) for each in (0, 1)])
    assert "message 1" in await refused(Command.RECEIVE, telling)
    assert "1000" in await refused(Command.RECEIVE, one.ask(keyed=True), open_max=1_001)
    twice = one.ask()
    twice.sources.append(twice.sources[0])
    assert "twice" in await refused(Command.RECEIVE, twice)
    none = one.ask()
    del none.sources[:]
    assert "sources = 0" in await refused(Command.RECEIVE, none)
    for run, kind, time_ms, says in (
        (got, 9, 0, "9 is no kind"),
        (got, ACK, 5, "time_ms"),
        (got, EXTEND, 0, "time_ms"),
        (got, RELEASE, 2**40, "time_ms"),
        (got._replace(messages=0), ACK, 0, "messages = 0"),
        (got._replace(source=1), ACK, 0, "source = 1"),
        (got._replace(grant=0), ACK, 0, "grant = 0"),
        (got._replace(first=2**63), ACK, 0, "first"),
    ):
        request = one.say((run, kind, time_ms))  # type: ignore[arg-type]
        assert says in await refused(Command.SETTLE, request)
    overlaps = one.say((got, ACK, 0), (got._replace(first=2), RELEASE, 0))
    assert "comes twice" in await refused(Command.SETTLE, overlaps)
    assert (await one.status()).sources[0].held == 4


async def test_a_group_that_is_forgotten_begins_anew(cluster: MemoryCluster) -> None:
    """So does one whose topic was deleted and made again, for that topic."""
    await begun(cluster)
    one = SharedMember(cluster, 1, [5])
    await one.receive()
    waits = asyncio.create_task(SharedMember(cluster, 2, [5]).receive(wait_ms=20_000))
    await asyncio.sleep(0.1)
    assert (await one.status()).receiving == 1
    assert not (await one.status(forget=True)).found
    assert await waits == []
    (again,) = await one.receive()
    assert again == Got(0, 0, 5, 1, 1)


async def test_a_late_settlement_of_a_group_before_counts_for_nothing(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grants of a group begin behind those of a group of its name that was deleted."""
    monkeypatch.undo()
    await begun(cluster)
    one, two = SharedMember(cluster, 1, [3]), SharedMember(cluster, 2, [3])
    (old,) = await one.receive()
    await one.status(forget=True)
    await asyncio.sleep(0.01)
    (new,) = await two.receive()
    assert new == old._replace(grant=new.grant)
    assert new.grant > old.grant
    assert await one.settle(old, ACK)
    assert not await two.settle(new, ACK)


@pytest.mark.parametrize("keep", [keep_all, keep_none])
async def test_a_broker_that_starts_knows_what_it_told(cluster: MemoryCluster, keep: Any) -> None:
    """Whatever is lost with it, no answer had left for it; handles stay valid."""
    node = await begun(cluster)
    one, two = (SharedMember(cluster, number, [20]) for number in (1, 2))
    (first,) = await one.receive(6)
    asked = two.ask(4)
    second = await two.got(asked)
    await one.settle(first._replace(messages=2), ACK)
    await one.settle(first._replace(first=2, messages=1), RELEASE, 60_000)
    said = one.say((first._replace(first=3, messages=1), ACK, 0))
    flusher = cluster.flushers["b1"]
    flusher.held = True
    lost = asyncio.create_task(one.once(Command.SETTLE, said))
    await until(lambda: bool(flusher._submitted))
    await crash(cluster, "b1", keep)
    with pytest.raises((ConnectionError, OSError)):
        await lost
    del node
    await cluster.start()
    assert one.lost(await one.call(Command.SETTLE, said)) == []
    assert await two.got(asked) == second
    assert await one.settle(first._replace(first=4, messages=2), ACK) == []
    assert await two.settle(second[0], ACK) == []
    assert await two.receive(5) == [Got(0, 10, 5, 3, 1)]
    (source,) = (await one.status()).sources
    assert (source.low, source.open, source.waiting) == (2, 6, 1)


async def test_a_journal_that_moves_keeps_counts_and_leases(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To another group of brokers; also once retention has taken what the former one had.

    Handles stay valid, repeated requests have their answers, and leases begin again.
    """
    monkeypatch.setattr(shared_journals, "KEPT_MS", 60_000)
    await cluster.start()
    await cluster.start("b2")
    await with_shared_topic(cluster)
    one, two = (SharedMember(cluster, number, [20], lease_ms=30_000) for number in (1, 2))
    (first,) = await one.receive(6)
    asked = two.ask(4)
    second = await two.got(asked)
    await one.settle(first._replace(messages=2), ACK)
    await one.settle(first._replace(first=2, messages=1), RELEASE, 500_000)
    said = one.say((first._replace(first=3, messages=1), REJECT, 0))
    await one.call(Command.SETTLE, said)
    before = await one.status()
    async with cluster.admin() as coordinator:
        view = await describe_topic(coordinator, SHARED_TOPIC)
    old = view.partitions[0].writer_group
    new = "b2" if old == "b1" else "b1"
    await asyncio.sleep(25)
    async with factory_of(cluster) as factory:
        await factory.admin.move(await factory.admin.plan_moves(SHARED_TOPIC, [0], new))
    assert await one.status() == before
    await asyncio.sleep(25)
    assert one.lost(await one.call(Command.SETTLE, said)) == []
    assert await two.got(asked) == second
    assert await one.receive(20) == [Got(0, 10, 10, 3, 1)], "no lease has ended"
    await asyncio.sleep(10)
    assert await one.settle(first._replace(first=4, messages=1), ACK) == [(0, 4, 1)]
    assert await two.receive(9) == [Got(0, 4, 6, 4, 2)]
    before = await one.status()
    assert old is not None
    channel = cluster.nodes[old].parts.partitions.channels[SHARED_TOPIC, 0]
    await until(lambda: channel.needed is None)
    begin = channel.start_offset
    await later(cluster.nodes[old], 2).look()
    assert channel.start_offset > begin, "retention has taken it"
    await crash(cluster, new, keep_all)
    await cluster.start(new)
    assert await one.status() == before


async def test_whatever_dies_nothing_is_lost_or_with_two(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members receive and settle at random while nodes crash in turn; then all of it is done.

    Each message has one holder at a time, is delivered again only if it is not done, and its count
    rises by one with each delivery. Who leads next reads the end of the journal alone.
    """
    monkeypatch.setattr(shared_journal, "CARRY_BYTES", 4_000)
    monkeypatch.setattr(shared_journal, "FLOOR_BYTES", 1_000)
    monkeypatch.setattr(shared_journal, "LOOKED_THROUGH_BYTES", (2_000, 6_000))
    await begun(cluster, nodes=2)
    for seed in range(3):
        with case(seed):
            await _random_members(cluster, seed, f"g{seed}")


async def test_a_message_waits_for_those_before_it_with_its_key(cluster: MemoryCluster) -> None:
    """Also for those that may have it, and while these wait for their next delivery."""
    await begun(cluster)
    a, b, none = 7, 8, 0
    one, two = (
        SharedMember(cluster, number, [5], keyed=True, lease_ms=60_000) for number in (1, 2)
    )
    (first,) = await one.receive(2)
    (second,) = await two.receive(3)
    assert await two.waiting(second, [a, none, a]) == {2, 4}, "nobody knows the keys of 0 and 1"
    assert await two.waiting(second, [a, none, a]) == {2, 4}, "it is asked again"
    assert await one.waiting(first, [a, b]) == set()
    assert await one.receive(9) == []
    waits = asyncio.create_task(two.receive(9, wait_ms=20_000))
    await asyncio.sleep(0.2)
    await one.settle(first._replace(messages=1), ACK)
    (again,) = await waits
    assert again == Got(0, 2, 1, 3, 1), "it was not delivered before"
    assert await two.waiting(again, [a]) == set()
    await two.settle(again, RELEASE, 5_000)
    assert await one.receive(9, wait_ms=4_000) == []
    assert await one.receive(9, wait_ms=4_000) == [Got(0, 2, 1, 4, 2)]
    await crash(cluster, "b1", keep_all)
    await cluster.start()
    (last,) = await two.receive(9, wait_ms=4_000)
    assert last == Got(0, 4, 1, 5, 1)
    assert await two.waiting(last, [a]) == {4}, "the next node knows no key"
    for number, grant in ((1, 1), (2, 4), (3, 2)):
        await one.settle(Got(0, number, 1, grant, 1), ACK)
    assert await two.receive(9, wait_ms=4_000) == [Got(0, 4, 1, 6, 1)]


async def test_keys_keep_their_order_whatever_dies(cluster: MemoryCluster) -> None:
    """Members that come and go, forget what they have, and settle late; nodes crash in turn."""
    await begun(cluster, nodes=2)
    for seed in range(1):
        with case(seed):
            rng = random.Random(seed)
            stop = asyncio.Event()
            attacks = asyncio.create_task(_crashes(cluster, rng, stop))
            async with asyncio.timeout(3_600):
                await _members_of_keys(cluster, rng, f"k{seed}")
            stop.set()
            await attacks


async def _members_of_keys(cluster: MemoryCluster, rng: random.Random, group: str) -> None:
    ends = [40, 30]
    keys = [[rng.choice((0, 1, 2, 3)) for _ in range(end)] for end in ends]
    done: set[tuple[int, int]] = set()
    acked: set[tuple[int, int]] = set()  # perhaps done: the answer may be on its way

    class Member(SharedMember):
        def about(self) -> dict[str, Any]:
            return {**super().about(), "group": group}

    async def work(number: int) -> None:
        member = Member(cluster, number, ends, keyed=True, lease_ms=3_000)
        while len(done) < sum(ends):
            for run in await member.receive(rng.randint(1, 6), rng.choice((0, 500))):
                of = keys[run.source]
                waits = await member.waiting(run, of[run.first : run.first + run.messages])
                for at in range(run.first, run.first + run.messages):
                    if at in waits or rng.random() < 0.1:
                        continue
                    before = {(run.source, each) for each in range(at) if of[each] == of[at]}
                    assert not of[at] or before <= acked
                    await asyncio.sleep(rng.choice((0, 0.01, 3.5)) * rng.random())
                    kind = rng.choice((ACK, ACK, RELEASE, UNUSED))
                    delay_ms = rng.choice((0, 500)) if kind is RELEASE else 0
                    if kind is ACK:
                        acked.add((run.source, at))
                    lost = await member.settle(run._replace(first=at, messages=1), kind, delay_ms)
                    if kind is ACK:
                        (acked.discard if lost else done.add)((run.source, at))

    await asyncio.gather(*(work(number) for number in range(1, 6)))
    status = await Member(cluster, 9, ends).status()
    assert [(each.low, each.open) for each in status.sources] == [(end, 0) for end in ends]


async def _crashes(cluster: MemoryCluster, rng: random.Random, stop: asyncio.Event) -> None:
    """Crash one of two nodes again and again, and start it."""
    while not stop.is_set():
        await asyncio.sleep(2 + 4 * rng.random())
        key = rng.choice(sorted(cluster.nodes))
        node = "n2" if key.endswith("n2") else "n1"
        await crash(cluster, key, keep_all if rng.random() < 0.5 else keep_none)
        await asyncio.sleep(rng.random())
        await cluster.start(node=node)
        await cluster.until_in_sync("n1", "n2")


async def _random_members(cluster: MemoryCluster, seed: int, group: str) -> None:
    rng = random.Random(seed)
    clock = cluster.ensemble.clock
    ends = [40, 30]
    counts: Counter[tuple[int, int]] = Counter()
    done: set[tuple[int, int]] = set()
    held: dict[tuple[int, int], tuple[int, float]] = {}
    stop = asyncio.Event()

    class Member(SharedMember):
        def about(self) -> dict[str, Any]:
            return {**super().about(), "group": group}

    def keys(run: Got) -> list[tuple[int, int]]:
        return [(run.source, run.first + each) for each in range(run.messages)]

    async def work(number: int) -> None:
        member = Member(cluster, number, ends)
        while len(done) < sum(ends):
            request = member.ask(rng.randint(1, 6), rng.choice((0, 500)), lease_ms=3_000)
            runs = await member.got(request)
            answered = clock.monotonic()
            for run in runs:
                for key in keys(run):
                    assert key not in done
                    assert run.deliveries == counts[key] + 1
                    grant, until_s = held.get(key, (0, 0.0))
                    assert grant != run.grant
                    assert until_s <= answered, f"{key} has two holders"
                    counts[key] += 1
                    held[key] = run.grant, 0.0
            for run in runs:
                kind = rng.choice((ACK, ACK, RELEASE, REJECT, UNUSED, None))
                if kind is None:
                    continue  # it forgets them
                await asyncio.sleep(rng.choice((0, 0.01, 2.9, 3.5)) * rng.random())
                if kind is RELEASE:
                    said = member.say((run, kind, rng.choice((0, 100, 2_000))))
                else:
                    said = member.say((run, kind, 0))
                response = await member.call(Command.SETTLE, said)
                lost = {
                    (source, first + each)
                    for source, first, messages in member.lost(response)
                    for each in range(messages)
                }
                for key in keys(run):
                    if key in lost:
                        continue
                    assert held[key][0] == run.grant, "only who has it settles it"
                    if kind in {ACK, REJECT}:
                        assert key not in done
                        done.add(key)
                    elif kind is UNUSED:
                        counts[key] -= 1

    attacks = asyncio.create_task(_crashes(cluster, rng, stop))
    async with asyncio.timeout(3_600):
        await asyncio.gather(*(work(number) for number in range(1, 6)))
    stop.set()
    await attacks
    status = await Member(cluster, 9, ends).status()
    assert [(each.low, each.open) for each in status.sources] == [(end, 0) for end in ends]


async def test_the_log_is_needed_only_for_what_was_noted_last(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is open is noted again; the next node reads that, and knows the same."""
    monkeypatch.setattr(shared_journal, "CARRY_BYTES", 4_000)
    node = await begun(cluster)
    one, idle = SharedMember(cluster, 1, [10_000]), SharedMember(cluster, 2, [0, 10])
    (kept,) = await idle.receive(4, lease_ms=3_600_000)
    for _ in range(200):
        (got,) = await one.receive(5)
        assert await one.settle(got._replace(messages=4), ACK) == []
        assert await one.settle(got._replace(first=got.first + 4, messages=1), REJECT) == []
    (journal,) = [e for e in node.parts.shared.readers.all.values() if e.ledger.groups]
    channel = journal.channel
    await until(lambda: channel.read_limit - (channel.needed or 0) < 12_000)
    assert channel.read_limit > 40_000
    before = await one.status()
    await crash(cluster, "b1", keep_all)
    await cluster.start()
    assert await one.status() == before
    assert await idle.settle(kept, ACK) == []


async def test_a_busy_journal_is_opened_by_its_end(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note tells from where on the log is needed: the next node reads no more than that."""
    monkeypatch.setattr(shared_journal, "CARRY_BYTES", 8_000)
    monkeypatch.setattr(shared_journal, "FLOOR_BYTES", 1_000)
    monkeypatch.setattr(shared_journal, "LOOKED_THROUGH_BYTES", (3_000, 8_000))
    node = await begun(cluster)
    one, idle = SharedMember(cluster, 1, [10_000]), SharedMember(cluster, 2, [0, 10])
    (kept,) = await idle.receive(4, lease_ms=3_600_000)
    for times in (200, 200):
        for _ in range(times):
            (got,) = await one.receive(5)
            assert await one.settle(got._replace(messages=4), ACK) == []
            assert await one.settle(got._replace(first=got.first + 4, messages=1), REJECT) == []
        (journal,) = [e for e in node.parts.shared.readers.all.values() if e.ledger.groups]
        channel = journal.channel
        await until(lambda: channel.read_limit - (channel.needed or 0) < 20_000)  # noqa: B023
        assert channel.read_limit - channel.start_offset > 60_000, "retention has taken nothing"
        before = await one.status()
        await crash(cluster, "b1", keep_all)
        node = await cluster.start()
        assert await one.status() == before
        (journal,) = [e for e in node.parts.shared.readers.all.values() if e.ledger.groups]
        assert journal.opened_bytes < 20_000
    assert await idle.settle(kept, ACK) == []


async def test_what_is_noted_again_does_not_bring_about_itself(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if all of it is more than what may lie behind a note: an idle journal gets no notes."""
    monkeypatch.setattr(shared_journal, "CARRY_BYTES", 2_000)
    node = await begun(cluster)
    one = SharedMember(cluster, 1, [2] * 200)
    for got in await one.receive(400):
        await one.settle(got, ACK)
    (journal,) = [e for e in node.parts.shared.readers.all.values() if e.ledger.groups]
    end = journal.channel.read_limit
    assert end > 20_000
    await asyncio.sleep(60)
    assert journal.channel.read_limit < 3 * end
    end = journal.channel.read_limit
    await asyncio.sleep(600)
    assert journal.channel.read_limit == end
