"""docs/coordination.md says what the code does: values, operations, plans, ids and bounds.

Whoever writes a client from that page alone shares groups and slots with this code.
"""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.cases import case
from support.coordination import Used, client_of

from vq import limits
from vq.client.ids import EPOCH_MS, IdGenerator
from vq.clock import ManualClock
from vq.coordination.groups import claims
from vq.coordination.groups.claims import CLAIMS_PER_MULTI, STOPPED_TEXT_MAX, Claim
from vq.coordination.groups.rebalance import STRATEGIES, GroupBalance, sticky
from vq.coordination.groups.zookeeper_offsets import COMMITS_PER_MULTI, ZooKeeperOffsets
from vq.coordination.leases import slots
from vq.coordination.leases.slots import SlotLease
from vq.coordination.leases.writes import WriteTask, WriteTopic
from vq.coordination.topics.reserved_topics import retry_settings, settings_like
from vq.coordination.topics.topics import STEP_PARTITIONS, create_topic
from vq.coordination.tree import paths
from vq.coordination.tree.coordinator import Check, Create, Delete, Operation, Set
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.access import AccessList
from vq.coordination.tree.values.audit import ActOutcome, ActRecord
from vq.coordination.tree.values.brokers import (
    BrokerGroup,
    BrokerLoad,
    GroupState,
    OpenPartitions,
    Registration,
)
from vq.coordination.tree.values.cluster import ClusterSecret, ClusterSettings
from vq.coordination.tree.values.consumers import (
    Assignment,
    CommittedOffset,
    ConsumerGroup,
    Member,
    Owner,
)
from vq.coordination.tree.values.decisions import Decision
from vq.coordination.tree.values.partitions import Partition, PlacementChanges
from vq.coordination.tree.values.quotas import QuotaList
from vq.coordination.tree.values.slots import Slot, SlotCounter, SlotMark
from vq.coordination.tree.values.topics import TopicNode
from vq.coordination.tree.values.users import StoredUser
from vq.coordination.tree.values.value import Value
from vq.model import TopicPartition, TopicSettings, time_ms_of

DOCUMENT = (Path(__file__).parents[3] / "docs" / "coordination.md").read_text("utf-8")
VALUES: dict[str, type[Value]] = {
    "consumers/G": ConsumerGroup,
    "consumers/G/members/M": Member,
    "consumers/G/assignment/T/N": Assignment,
    "consumers/G/owners/T/N": Owner,
    "consumers/G/offsets/T/N": CommittedOffset,
    "topics/_vq.retry.G": TopicNode,
    "topics/_vq.retry.G/partitions": PlacementChanges,
    "topics/_vq.retry.G/partitions/N": Partition,
    "brokers/b1/partitions": OpenPartitions,
    "slots": SlotCounter,
    "slots/N": Slot,
    "slot_marks/N": SlotMark,
    "brokers/b1/load/n1": BrokerLoad,
    "brokers/b1/nodes/n1": Registration,
    "writes/nightly/tasks/N": WriteTask,
    "writes/nightly/topics/T": WriteTopic,
    "decisions/3/9f0c2a6b1d3e4f50": Decision,
    "settings": ClusterSettings,
    "security/secret": ClusterSecret,
    "security/acls": AccessList,
    "security/quotas": QuotaList,
    "security/users/anna": StoredUser,
    "audit/acts/1760001000010-000003-5f0a1c": ActRecord,
    "audit/acts/1760001000010-000003-5f0a1c/end": ActOutcome,
}
EXAMPLE = re.compile(r"^(?:set +|create +)?([a-z_]+(?:/\S+)?) +(\{.*\})", re.MULTILINE)
NOW_MS = 1_763_800_000_000
TOPIC_ID = "5d2f8c0e91a74b36"
WHERE = TopicPartition("orders", 0)


def kind_of(path: str) -> type[Value]:
    """The class of the values at a path of the examples."""
    shape = path
    for example, general in (("billing", "G"), ("m1", "M"), ("orders", "T")):
        shape = re.sub(rf"(?<=[/.]){example}(?=/|$)", general, shape)
    return VALUES[re.sub(r"/\d+$", "/N", shape)]


def block(name: str) -> list[str]:
    """The lines of the fenced block behind a marker, with single spaces."""
    found = re.search(rf"<!-- {name}[: ].*\n```\n((?:.*\n)+?)```\n", DOCUMENT)
    assert found is not None, name
    return [" ".join(line.split()) for line in found[1].splitlines()]


def rows(name: str) -> list[list[str]]:
    """The cells of the table behind a marker, without its head."""
    text = DOCUMENT.split(f"<!-- {name}:", 1)[1].split("-->\n", 1)[1].split("<!--", 1)[0]
    return [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in text.strip().splitlines()[2:]
    ]


EXAMPLES = EXAMPLE.findall(DOCUMENT)


def test_every_kind_of_value_has_an_example() -> None:
    """Those of a group and those of slots."""
    assert {kind_of(path) for path, _ in EXAMPLES} == set(VALUES.values())


def test_examples_are_what_the_code_writes() -> None:
    """Read and written again, each is the same text."""
    for path, text in EXAMPLES:
        with case(path, text):
            assert kind_of(path).decode(path, text.encode()).encode().decode() == text


def test_the_first_values_are_those_of_the_code() -> None:
    """Of an assignment that nobody claimed, and of the counter."""
    for value in (Assignment(), SlotCounter()):
        assert f"`{value.encode().decode()}`" in DOCUMENT


def told(operation: Operation) -> str:
    """An operation as the page shows it."""
    name = type(operation).__name__.lower()
    words = [name, operation.path]
    if isinstance(operation, Create | Set):
        words.append(operation.data.decode())
    if isinstance(operation, Create) and operation.ephemeral:
        words.append("ephemeral")
    if isinstance(operation, Set | Delete | Check) and operation.version >= 0:
        words.append(f"if version {operation.version}")
    return " ".join(words)


class Recorder:
    """Takes down the transactions and deletes of a client."""

    def __init__(self, client: MemoryCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[Operation] = []
        multi, delete = client.multi, client.delete

        async def record_multi(operations):
            self.sent = list(operations)
            return await multi(operations)

        async def record_delete(path, *, version=-1):
            self.sent = [Delete(path, version)]
            return await delete(path, version=version)

        monkeypatch.setattr(client, "multi", record_multi)
        monkeypatch.setattr(client, "delete", record_delete)

    def told(self) -> list[str]:
        """The last of them, as the page shows it."""
        return [told(each) for each in self.sent]


@pytest.fixture
def recorder(client: MemoryCoordinator, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(client, monkeypatch)


async def set_to_version(client: MemoryCoordinator, path: str, value: Value, version: int) -> None:
    """Make a node, and set it until it has a version."""
    await client.create(path, value.encode(), parents=True)
    for _ in range(version):
        await client.set(path, value.encode())


def assignment_path() -> str:
    return Assignment.path("billing", *WHERE)


def progress(offset: int, message_id: int | None, time_ms: int) -> CommittedOffset:
    return CommittedOffset(
        offset=offset, message_id=message_id, time_ms=time_ms, member="m1", topic_id=TOPIC_ID
    )


async def claimed(client: MemoryCoordinator) -> Claim:
    """The claim of the page: the assignment had version 3 before it."""
    await set_to_version(client, assignment_path(), Assignment(), 3)
    for kind in (Owner, CommittedOffset):
        await client.create(kind.parent("billing", "orders"), parents=True)
    return await claims.claim(client, "billing", "m1", WHERE)


async def test_a_claim_sends_what_the_page_says(client, recorder) -> None:
    """The first one, and one after a lost reply."""
    assert (await claimed(client)).generation == 4
    assert recorder.told() == block("multi: claim")
    assert (await claims.claim(client, "billing", "m1", WHERE)).generation == 5
    assert recorder.told() == block("multi: claim again")


async def test_claims_and_releases_of_many_send_what_the_page_says(client, recorder) -> None:
    """Of a partition that nobody has claimed yet; and with the assignment in version 4."""
    claim = await claimed(client)
    partition = TopicPartition("orders", 1)
    await claims.claim_together(client, "billing", "m1", [partition], known={})
    assert recorder.told() == block("multi: claim first")
    assert await claims.release_together(client, [claim]) == [None]
    assert recorder.told() == block("multi: release unread")
    assert f"up to {CLAIMS_PER_MULTI})" in DOCUMENT


async def test_commits_and_the_release_send_what_the_page_says(client, recorder) -> None:
    """From the first commit to the end."""
    claim = await claimed(client)
    result = await ZooKeeperOffsets(client).commit([(claim, progress(0, None, NOW_MS))])
    assert recorder.told() == block("multi: first commit")
    handled = replace(progress(118, 235807126323205120, NOW_MS + 5_000), epoch=3)
    result = await ZooKeeperOffsets(client).commit([(result.done[WHERE], handled)])
    assert recorder.told() == block("multi: commit")
    await claims.release(client, result.done[WHERE])
    assert recorder.told() == block("multi: release")


async def test_a_reset_sends_what_the_page_says(client, recorder) -> None:
    """Fence and offset in one."""
    await set_to_version(client, assignment_path(), Assignment(), 5)
    path = CommittedOffset.path("billing", *WHERE)
    await set_to_version(client, path, progress(118, 1, NOW_MS), 1)
    target = CommittedOffset(offset=88, time_ms=NOW_MS + 120_000)
    await ZooKeeperOffsets(client).reset("billing", WHERE, target)
    assert recorder.told() == block("multi: reset")


async def test_a_topic_is_created_as_the_page_says(client, recorder, monkeypatch) -> None:
    """The retry topic of a group that reads a topic of two partitions."""
    node = Registration(host="10.0.0.5", port=18123).encode()
    stat = await client.create(Registration.path("b1", "n1"), node, parents=True)
    await client.set(BrokerGroup.path("b1"), BrokerGroup().encode())
    state = GroupState(epoch=1, master="n1", insync=("n1",), incarnations={"n1": stat.czxid})
    await client.create(GroupState.path("b1"), state.encode())
    await set_to_version(client, OpenPartitions.path("b1"), OpenPartitions(open=12), 3)
    monkeypatch.setattr(random.SystemRandom, "getrandbits", lambda _, bits: int(TOPIC_ID, 16))
    settings = retry_settings(settings_like([TopicSettings(partitions=2)], TopicSettings()))
    await create_topic(client, "_vq.retry.billing", settings)
    assert recorder.told() == block("multi: create a topic")
    assert f"more than {STEP_PARTITIONS} partitions" in " ".join(DOCUMENT.split())


async def leased(client: MemoryCoordinator, start: int, mark_ms: int | None = None) -> SlotLease:
    """A lease as the page tells of: the counter stands at ``start``."""
    await client.create(paths.SLOTS, SlotCounter(next=start).encode())
    await client.create(paths.SLOT_MARKS)
    if mark_ms is not None:
        await client.create(SlotMark.path(start), SlotMark(until_ms=mark_ms).encode())
    clock = ManualClock(wall_ms=NOW_MS)
    lease = SlotLease(client, clock, holder="app7/4711", maker=Used(NOW_MS))
    await lease.start()
    return lease


async def test_a_lease_sends_what_the_page_says(client, recorder) -> None:
    """Taking a slot nobody has held, and giving it back."""
    lease = await leased(client, 17)
    assert recorder.told() == block("multi: lease")
    await lease.stop()
    assert recorder.told() == block("multi: give back")


async def test_the_last_slot_is_followed_by_the_first(client, recorder) -> None:
    """Its mark is ahead of the clock: the new one is that much later."""
    lease = await leased(client, limits.SLOTS_MAX - 1, NOW_MS + 10_000)
    assert recorder.told() == block("multi: lease wraps")
    assert lease.from_ms == NOW_MS + 10_000
    await lease.stop()


@pytest.mark.parametrize("row", rows("plans"), ids=lambda row: row[0])
def test_plans_are_those_of_the_code(row: list[str]) -> None:
    """Each worked example, run."""
    members, last, plan = (json.loads(cell) for cell in row[1:])
    numbered = [
        (TopicPartition(topic, number), member)
        for topic, holders in last.items()
        for number, member in enumerate(holders)
    ]
    subscribed = {name: frozenset(topics) for name, topics in members.items()}
    current = {partition: member for partition, member in numbered if member}
    partitions = [partition for partition, _ in numbered]
    found = sticky(GroupBalance(members=subscribed, partitions=partitions, current=current))
    assert plan == {
        topic: [found.get(TopicPartition(topic, n), "") for n in range(len(holders))]
        for topic, holders in last.items()
    }


def plan_by_the_steps(
    members: dict[str, frozenset[str]], topics: dict[str, int], last: dict[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """The numbered steps of the page, word by word; as somebody else would write them."""
    plan = {}
    turn = 0
    for topic, n in sorted(topics.items()):
        line = sorted(name for name in members if topic in members[name])  # 1
        m = len(line)
        if m == 0:
            continue
        line = line[turn % m :] + line[: turn % m]  # 2
        turn += n % m
        held = {
            name: [p for p in range(n) if last.get(TopicPartition(topic, p)) == name]
            for name in line
        }  # 3
        richer = [name for name in line if len(held[name]) > n // m]  # 4
        order = richer + [name for name in line if name not in richer]
        share = {name: n // m + (1 if index < n % m else 0) for index, name in enumerate(order)}
        kept = {name: held[name][: share[name]] for name in line}  # 5
        free = [p for p in range(n) if not any(p in each for each in kept.values())]
        for name in line:  # 6
            while len(kept[name]) < share[name]:
                kept[name].append(free.pop(0))
        plan |= {TopicPartition(topic, p): name for name in line for p in kept[name]}
    return plan


def test_the_steps_give_the_plan_of_the_code() -> None:
    """Any members, subscriptions, partitions and last claims."""
    for seed in range(200):
        rng = random.Random(seed)
        topics = {topic: rng.randrange(1, 12) for topic in "rst"}
        names = "abcdefg"[: rng.randrange(1, 8)]
        members = {name: frozenset(t for t in topics if rng.random() < 0.7) for name in names}
        everyone = [TopicPartition(topic, p) for topic, n in topics.items() for p in range(n)]
        last = {partition: rng.choice("abcdefgxy") for partition in everyone if rng.random() < 0.8}
        found = sticky(GroupBalance(members=members, partitions=everyone, current=last))
        assert plan_by_the_steps(members, topics, last) == found, seed


@pytest.mark.parametrize("row", rows("strategies"), ids=lambda row: row[0])
def test_the_other_strategies_are_those_of_the_code(row: list[str]) -> None:
    """Each worked example, run; of a rack the members and partitions that are in it."""
    name, racks, plan = row[0], json.loads(row[1]), json.loads(row[2])
    partitions = [TopicPartition("t", number) for number in range(5)]
    near = {rack: {*each[0]} for rack, each in racks.items()}
    found = STRATEGIES[name](
        GroupBalance(
            members={member: frozenset("t") for member in "ab"},
            partitions=partitions,
            member_racks={member: rack for rack, each in near.items() for member in each},
            partition_racks={
                partitions[number]: rack for rack, each in racks.items() for number in each[1]
            },
        )
    )
    assert [found[each] for each in partitions] == plan


@pytest.mark.parametrize("row", rows("ids"))
def test_ids_are_laid_out_as_the_page_says(row: list[str]) -> None:
    """Made by the generator that producers use."""
    wall_ms, slot, sequence, message_id = map(int, row)
    ids = IdGenerator(slot, ManualClock(wall_ms=wall_ms)).take(sequence + 1)
    assert ids[sequence] == message_id
    assert time_ms_of(message_id) == wall_ms


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    """Where the text repeats a bound."""
    text = " ".join(DOCUMENT.replace("\N{NO-BREAK SPACE}", " ").split())
    for number, words in (
        (EPOCH_MS, "UTC ({} ms since 1970)"),
        (limits.SLOTS_MAX, "If all {} are held"),
        (limits.SLOTS_MAX - 1, "has leased, 0 to {}"),
        ((1 << limits.ID_SEQUENCE_BITS) - 1, "0 to {} within the millisecond"),
        (slots.MARK_AHEAD_MS, "more than {} ms ahead"),
        (slots.MARK_AHEAD_MS, "The new mark is {} ms after"),
        (slots.MARKS_PASSED_MAX, "When {} slots were passed over"),
        (int(slots.MARK_S), "Every {} s"),
        (COMMITS_PER_MULTI, "Up to {} partitions go into one"),
        (STOPPED_TEXT_MAX, "(at most {} characters)"),
    ):
        shown = f"{number:,}".replace(",", " ")
        assert words.format(shown) in text, words


async def test_of_another_session_an_owner_is_waited_for(ensemble: MemoryEnsemble) -> None:
    """Also one's own dead session: the page says not to take its node over."""
    async with client_of(ensemble) as first, client_of(ensemble) as second:
        await claimed(first)
        with pytest.raises(claims.StillOwned):
            await claims.claim(second, "billing", "m1", WHERE)


def test_the_load_of_a_broker_has_every_field() -> None:
    """The table has the fields of the example; its capacity follows from two of them."""
    [line] = block("load")
    path, _, data = line.partition(" ")
    load = BrokerLoad.decode(path, data.encode())
    assert path == BrokerLoad.path("b1", "n1")
    assert load.busy == load.bytes_per_s / load.capacity_bytes_per_s
    table = DOCUMENT.partition("<!-- end of load -->")[2].partition("\n\n- ")[0]
    named = re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert named == [name for name in json.loads(data) if name != "v"]


def test_the_times_of_a_load_are_those_of_the_code() -> None:
    """Every number of the rules below the table has its home in ``limits``."""
    rules = DOCUMENT.partition("<!-- end of load -->")[2].partition("\n## ")[0]
    for text in (
        f"({limits.LOAD_INTERVAL_S_DEFAULT:g} s, with {limits.LOAD_JITTER:.0%} jitter)",
        f"any load after {limits.LOAD_IDLE_INTERVAL_S:g} s",
        f"every {limits.LOAD_READ_INTERVAL_S:g} s with",
        f"for\n  {limits.LOAD_STALE_S:g} s of your own clock",
    ):
        assert text.replace("%", " %") in rules
