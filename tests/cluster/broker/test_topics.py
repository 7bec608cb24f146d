"""A node and its topics: settings that change, deletion, namesakes, a tree that forgot them."""

import asyncio
import dataclasses

import pytest
from support.broker import DATA, Client, message

from vq.broker.partition.partition_state import ChannelState
from vq.coordination.topics.topics import (
    change_settings,
    create_topic,
    delete_topic,
    describe_topic,
)
from vq.coordination.tree.values.brokers import GroupState
from vq.coordination.tree.values.partitions import Partition
from vq.coordination.tree.values.topics import TopicNode
from vq.errors import (
    Busy,
    PermissionRefused,
    UnknownTopic,
)
from vq.model import FlushMode, TopicSettings
from vq.remoting.messages import decode_reply
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.records.record import decode_records
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


async def _settings(admin, **changes) -> None:
    await change_settings(admin, "t", TopicSettings(partitions=2, **changes))


async def test_settings_change_live(served):
    """A topic closed for writing refuses at once, without a restart."""
    await served.client.put("t", 0, [message(b"x")])
    async with served.cluster.admin() as admin:
        await _settings(admin, writable=False, max_message_bytes=10)
    channel = served.node.parts.partitions.channels["t", 0]
    await until(lambda: not channel.takes_puts)
    assert channel.settings.max_message_bytes == 10
    with pytest.raises(PermissionRefused):
        await served.client.put("t", 0, [message(b"x")])


async def test_a_change_to_async_and_back_never_takes_bytes_back(served):
    """What a reader has seen stays visible when the topic becomes sync again."""
    await served.client.put("t", 0, [message(b"x")])
    async with served.cluster.admin() as admin:
        await _settings(admin, flush=FlushMode.ASYNC)
        channel = served.node.parts.partitions.channels["t", 0]
        await until(lambda: not channel.sync)
        served.flusher.held = True
        await served.client.put("t", 0, [message(b"y")])
        seen = (await served.client.offsets("t", 0)).latest
        await _settings(admin, flush=FlushMode.SYNC)
        await until(lambda: channel.sync)
    assert (await served.client.offsets("t", 0)).latest == seen


async def test_data_of_a_deleted_topic_never_meet_its_namesake(served):
    """A topic made anew under the same name starts empty; the old data are put aside first."""
    await served.client.put("t", 0, [message(b"old")])
    async with served.cluster.admin() as admin:
        await delete_topic(admin, "t")
    await until(lambda: not served.node.parts.partitions.channels)
    with pytest.raises(UnknownTopic):
        await served.client.put("t", 0, [message(b"x")])
    await served.cluster.create_topic("t")
    assert (await served.client.put("t", 0, [message(b"new")])).offset == 88
    _, body = await served.client.get("t", 0, 0)
    assert [r.payload for r in decode_records(body, 0)] == [b"new"]


async def test_a_topic_made_again_begins_with_partitions_that_were_elsewhere(cluster):
    """Its first partition had no channel here, its second one is the namesake's: both are served.

    The broker sees the old topic and the new one, never that there was none between them.
    """
    node = await cluster.start("b1")
    await cluster.start("b2")
    await cluster.create_topic("other", partitions=1)
    await cluster.create_topic("t", partitions=2)
    channels = node.parts.partitions.channels
    await until(lambda: ("t", 1) in channels)
    assert ("t", 0) not in channels
    old = channels["t", 1].topic_id
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 1, [message(b"old")])
    view, disk = node.parts.partitions.view, cluster.disks["b1"]
    async with cluster.admin() as admin, view.refreshing:  # the broker looks when both are done
        await delete_topic(admin, "other")
        await delete_topic(admin, "t")
        await create_topic(admin, "t", TopicSettings(partitions=2))
        new = await describe_topic(admin, "t")
    assert new.partitions[0].writer_group == "b1"
    await until(lambda: ("t", 0) in channels)
    await client.put("t", 0, [message(b"new")], topic_id=new.id)
    await until(lambda: view.topics["t"].id == new.id)
    assert not view.problems
    assert {key: each.topic_id for key, each in channels.items()} == {("t", 0): new.id}
    _, body = await client.get("t", 0, 0)
    assert [r.payload for r in decode_records(body, 0)] == [b"new"]
    assert disk.read_bytes(DATA / "t" / "topic.json").count(new.id.encode()) == 1
    assert {name.rsplit(".", 1)[0] for name in disk.listdir(DATA / "@trash")} >= {f"t.{old}"}
    assert not [name for name in disk.listdir(DATA / "@trash") if new.id in name]


async def test_a_move_never_puts_open_logs_aside(cluster):
    """A mover that still sees the deleted topic is refused; the new one's data stay."""
    node = await cluster.start("b1")
    await cluster.create_topic("t", partitions=2)
    partitions = node.parts.partitions
    await until(lambda: len(partitions.channels) == 2)
    channel = partitions.channels.pop(("t", 0))
    before = partitions.view.topics["t"]
    partitions.view.topics["t"] = dataclasses.replace(before, id="older")
    with pytest.raises(Busy, match="its logs are open"):
        await partitions.add_for_move(channel.partition, "older", before.partition_versions[0])
    assert channel.topic_id.encode() in cluster.disks["b1"].read_bytes(DATA / "t" / "topic.json")


async def test_a_request_for_a_topic_never_reaches_its_namesake(served):
    """Whoever names the topic's id is refused by another one: broker or client is behind."""
    channel = served.node.parts.partitions.channels["t", 0]
    known = {"topic_id": channel.topic_id}
    await served.client.put("t", 0, [message(b"x")], **known)
    assert (await served.client.get("t", 0, 0, **known))[1]
    assert (await served.client.offsets("t", 0, **known)).latest > 0
    other = {"topic_id": "another"}
    for call in (
        served.client.put("t", 0, [message(b"y")], **other),
        served.client.get("t", 0, 0, **other),
        served.client.offsets("t", 0, **other),
    ):
        with pytest.raises(UnknownTopic, match="made anew"):
            await call
    assert channel.log.messages == 1


@pytest.mark.parametrize("stored", [False, True])
async def test_who_waits_on_a_deleted_topic_is_told(served, stored):
    """A parked GET ends with UnknownTopic, also while the log is still open."""
    if stored:
        await served.client.put("t", 0, [message(b"x")])
    end = (await served.client.offsets("t", 0)).latest
    waiting = served.client.send_get("t", 0, end, max_wait_ms=20_000)
    channels = served.node.parts.partitions.channels
    await until(lambda: channels["t", 0].parked)
    async with served.cluster.admin() as admin:
        await delete_topic(admin, "t")
    with pytest.raises(UnknownTopic):
        decode_reply(await asyncio.wait_for(waiting, WAIT_S))


async def test_a_log_that_is_opened_while_its_topic_goes_is_closed(served):
    """Nothing is left open in a directory that is moved out of the way."""
    partitions, runner = served.node.parts.partitions, served.cluster.runners["b1"]
    await until(lambda: ("t", 0) in partitions.channels)
    channel = partitions.channels["t", 0]
    with runner.held():
        putting = served.client.send_put("t", 0, [message(b"x")])
        await until(lambda: runner.waiting)
        async with served.cluster.admin() as admin:
            await delete_topic(admin, "t")
        await until(lambda: channel.state is ChannelState.CLOSED)
    with pytest.raises(UnknownTopic):
        decode_reply(await asyncio.wait_for(putting, 5))
    await until(lambda: "t" not in partitions.view.topics)
    assert channel.log is None


async def test_an_emptied_zookeeper_does_not_delete_data(served):
    """Topics that vanish together with the group's record were not deleted by anybody."""
    await served.client.put("t", 0, [message(b"kept")])
    async with served.cluster.admin() as admin:
        await admin.delete(GroupState.path("b1"))
        await delete_topic(admin, "t")
    served.node.parts.partitions.view.hint()
    view = served.node.parts.partitions.view
    await until(lambda: "t" in view.problems)
    assert "emptied" in str(view.problems["t"])
    _, body = await served.client.get("t", 0, 0)
    assert [r.payload for r in decode_records(body, 0)] == [b"kept"]


async def _restored_without(served, topic: str) -> None:
    """Put the tree into the state it had before the topic was made; nobody deleted it."""
    async with served.cluster.admin() as admin:
        for number in (0, 1):
            await admin.delete(Partition.path(topic, number))
        await admin.delete(Partition.parent(topic))
        await admin.delete(TopicNode.path(topic))


def _names(disk: MemoryDisk, folder: str) -> list[str]:
    path = DATA / folder
    return [name.split(".")[0] for name in disk.listdir(path)] if disk.exists(path) else []


async def test_a_tree_older_than_a_topic_does_not_delete_its_data(served):
    """ZooKeeper came back from a backup that has the group but not the topic: its data stay."""
    await served.client.put("t", 0, [message(b"kept")])
    await _restored_without(served, "t")
    view = served.node.parts.partitions.view
    view.hint()
    await until(lambda: "t" in view.problems)
    assert "backup that is older" in str(view.problems["t"])
    assert _names(served.disk, "@trash") == []
    _, body = await served.client.get("t", 0, 0)
    assert [r.payload for r in decode_records(body, 0)] == [b"kept"]


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
async def test_a_tree_older_than_a_topic_does_not_give_its_data_to_a_namesake(
    served, caplog, running
):
    """The topic was made again after the restore: the old data are kept aside, and told."""
    await served.client.put("t", 0, [message(b"kept")])
    if not running:
        await served.node.stop()
    await _restored_without(served, "t")
    if not running:
        await served.cluster.start(trash_keep_s=0.01)
        assert "topic is gone from ZooKeeper and was not deleted" in caplog.text
    await served.cluster.create_topic("t", partitions=2)
    await until(lambda: _names(served.disk, "@kept") == ["t"])
    assert _names(served.disk, "@trash") == []
    assert "restored from a backup" in caplog.text
    client = await Client.connect(served.cluster.network, served.cluster.nodes["b1"].address)
    assert (await client.put("t", 0, [message(b"new")])).offset == 88
    await served.cluster.nodes["b1"].stop()
    caplog.clear()
    await served.cluster.start(trash_keep_s=0.01)
    assert "kept data found" in caplog.text


async def test_a_topic_deleted_while_the_broker_was_away_goes_to_the_trash(served):
    """At the start it is found among the deleted ones; it does not lie there for ever."""
    await served.client.put("t", 0, [message(b"x")])
    await served.node.stop()
    async with served.cluster.admin() as admin:
        await delete_topic(admin, "t")
    await served.cluster.start()
    assert _names(served.disk, "@trash") == ["t"]
    assert not served.disk.exists(DATA / "t")


async def test_one_damaged_byte_beside_a_topics_data_deletes_nothing(served, caplog):
    """The broker starts, says which file and what to do, and leaves the data where they are."""
    await served.client.put("t", 0, [message(b"kept")])
    await served.node.stop()
    file = DATA / "t" / "topic.json"
    text = served.disk.read_bytes(file)
    damaged = bytearray(text)
    damaged[text.index(b"id") + 7] ^= 1
    served.disk.write_atomic(file, bytes(damaged))
    node = await served.cluster.start(trash_keep_s=0.01)
    assert str(file) in caplog.text
    assert "Nothing was changed" in str(node.parts.partitions.view.problems["t"])
    client = await Client.connect(served.cluster.network, node.address)
    (told,) = (await client.status()).problems
    assert told.startswith("topic t cannot be followed")
    assert str(file) in told
    (logged,) = [each for each in caplog.records if "cannot be followed" in each.getMessage()]
    assert logged.levelname == "ERROR"
    assert logged.exc_info is None, "one line: this is a refusal, not a bug"
    assert _names(served.disk, "@trash") == []
    served.disk.write_atomic(file, text)
    node.parts.partitions.view.hint()
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    client = await Client.connect(served.cluster.network, node.address)
    assert [r.payload for r in decode_records((await client.get("t", 0, 0))[1], 0)] == [b"kept"]
