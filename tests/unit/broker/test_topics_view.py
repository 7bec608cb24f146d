"""Following topics in ZooKeeper: hints, re-reads, and topics that cannot be read."""

from support.broker import message, until

from vq.broker import topics_view
from vq.coordination.paths import Topic
from vq.errors import Busy


async def test_one_damaged_topic_does_not_hide_the_others(served):
    """It is named and left alone; topics made later are found, and it is found when repaired."""
    view = served.node._partitions.view
    async with served.cluster.admin() as admin:
        good = (await admin.get(Topic.path("t"))).data
        await admin.set(Topic.path("t"), b"{damaged")
        await until(lambda: "t" in view.problems)
        await served.cluster.create_topic("z")
        await served.client.put("z", 0, [message(b"x")])
        await served.client.put("t", 0, [message(b"x")])  # as it was known before
        await admin.set(Topic.path("t"), good)
        await until(lambda: not view.problems)


async def test_a_broker_starts_beside_a_damaged_topic(cluster):
    """What is wrong with one topic does not keep the whole broker down."""
    node = await cluster.start()
    await cluster.create_topic("t")
    await cluster.create_topic("u")
    async with cluster.admin() as admin:
        await node.stop()
        await admin.set(Topic.path("t"), b"")
    node = await cluster.start()
    assert [topic for topic, _ in node._partitions.channels] == ["u"]


async def test_a_lost_watch_is_made_up_for_by_the_timer(served):
    """Events that never arrive delay a change, they do not hide it."""
    coordinator = served.cluster.coordinators["b1"]
    served.cluster.ensemble.hold_events(coordinator)
    await served.cluster.create_topic("later")
    await until(lambda: ("later", 0) in served.node._partitions.channels)
    served.cluster.ensemble.release_events(coordinator, drop=True)


async def test_a_request_for_a_topic_just_made_waits_for_it(served):
    """A client may be quicker than the watch; it is not told that its topic does not exist."""
    coordinator = served.cluster.coordinators["b1"]
    served.cluster.ensemble.hold_events(coordinator)
    await served.cluster.create_topic("quick")
    await served.client.put("quick", 0, [message(b"x")])
    served.cluster.ensemble.release_events(coordinator)


async def test_questions_that_wait_are_bounded(served, monkeypatch):
    """While ZooKeeper does not answer, one question too many is refused at once."""
    monkeypatch.setattr(topics_view, "ASKED_MAX", 2)
    served.cluster.ensemble.disconnect(served.cluster.coordinators["b1"])
    view, answers = served.node._partitions.view, []
    for _ in range(3):
        view.ask("nowhere", answers.append)
    assert [type(answer) for answer in answers] == [Busy]
