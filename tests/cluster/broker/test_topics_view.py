"""Following topics in ZooKeeper: hints, re-reads, and topics that cannot be read or made."""

import asyncio
import errno
import sys
from dataclasses import replace

import pytest
from support.broker import DATA, Client, message

from vq.broker.base.lookups import Lookups
from vq.broker.logs import topics_view
from vq.broker.logs.logs import Logs
from vq.broker.logs.topics_view import TopicsView
from vq.coordination.topics.topics import change_settings, delete_topic, describe_topic
from vq.coordination.tree.coordinator import ConnectionLost
from vq.coordination.tree.paths import TOPICS
from vq.coordination.tree.values.topics import TopicNode
from vq.errors import Busy, CoordinationError, DiskFull, UnknownTopic
from vq.remoting.messages import decode_reply
from vq.store.disk.memory_disk import MemoryDisk
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


async def test_one_damaged_topic_does_not_hide_the_others(served):
    """It is named and left alone; topics made later are found, and it is found when repaired."""
    view = served.node.parts.partitions.view
    async with served.cluster.admin() as admin:
        good = (await admin.get(TopicNode.path("t"))).data
        await admin.set(TopicNode.path("t"), b"{damaged")
        await until(lambda: "t" in view.problems)
        await served.cluster.create_topic("z")
        await served.client.put("z", 0, [message(b"x")])
        await served.client.put("t", 0, [message(b"x")])  # as it was known before
        await admin.set(TopicNode.path("t"), good)
        await until(lambda: not view.problems)


async def test_a_broker_starts_beside_a_damaged_topic(cluster):
    """What is wrong with one topic does not keep the whole broker down."""
    node = await cluster.start()
    await cluster.create_topic("t")
    await cluster.create_topic("u")
    async with cluster.admin() as admin:
        await node.stop()
        await admin.set(TopicNode.path("t"), b"")
    node = await cluster.start()
    assert [topic for topic, _ in node.parts.partitions.channels] == ["u"]


def fill(disk: MemoryDisk, name: str, kind: str = "mkdir") -> None:
    """Have everything of one kind below ``name`` fail as on a full disk, until it is forgotten."""
    for _ in range(1_000):
        disk.fail(kind, error=errno.ENOSPC, name=name)


async def test_a_topic_that_cannot_be_made_does_not_hold_up_the_others(cluster, monkeypatch):
    """Its requests are refused with the reason, later changes are followed, and it is tried again.

    Topics that come before and after it in the alphabet, and deletions, are no exception.
    """
    monkeypatch.setattr(topics_view, "PROBLEM_RETRY_S", 0.01)
    node = await cluster.start(refresh_interval_s=60.0)
    client = await Client.connect(cluster.network, node.address)
    channels = node.parts.partitions.channels
    await cluster.create_topic("t")
    await until(lambda: ("t", 0) in channels)
    fill(cluster.disks["b1"], "/m")
    await cluster.create_topic("m")
    await until(lambda: "m" in node.parts.partitions.view.problems)
    await cluster.create_topic("z")
    await until(lambda: ("z", 0) in channels)
    async with cluster.admin() as admin:
        await delete_topic(admin, "t")
    await until(lambda: ("t", 0) not in channels)
    with pytest.raises(DiskFull, match="'m' cannot be prepared"):
        await client.put("m", 0, [message(b"x")])
    assert ("m", 0) not in channels
    cluster.disks["b1"].forget_faults()
    await until(lambda: ("m", 0) in channels)
    await client.put("m", 0, [message(b"x")])


async def test_one_partition_that_cannot_be_followed_does_not_hold_up_the_others(served):
    """A topic's partitions are taken one by one."""
    partitions = served.node.parts.partitions
    add = partitions._add

    async def add_not_the_first(prepared):
        if prepared.channel.partition == ("u", 0):
            raise OSError(errno.EIO, "no")
        return await add(prepared)

    partitions._add = add_not_the_first
    await served.cluster.create_topic("u", partitions=3)
    await until(lambda: "u" in partitions.view.problems)
    assert [number for topic, number in partitions.channels if topic == "u"] == [1, 2]
    with pytest.raises(Busy, match="'u' cannot be followed"):
        await served.client.put("u", 0, [message(b"x")])
    await served.client.put("u", 1, [message(b"x")])


async def test_a_start_on_a_full_disk_serves_what_it_can(cluster):
    """A topic that cannot be made is no reason not to start."""
    node = await cluster.start()
    await cluster.create_topic("t")
    await until(lambda: node.parts.partitions.channels)
    fill(cluster.disks["b1"], "/a")
    await cluster.create_topic("a")
    await node.stop()
    node = await cluster.start()
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    with pytest.raises(DiskFull):
        await client.put("a", 0, [message(b"x")])


async def test_a_log_that_a_full_disk_keeps_from_opening_is_opened_later(served, monkeypatch):
    """Recovery after a kill has to write; the other partitions are served meanwhile."""
    monkeypatch.setattr(topics_view, "PROBLEM_RETRY_S", 0.01)
    await served.client.put("t", 0, [message(b"kept")])
    await served.client.put("t", 1, [message(b"x")])
    served.cluster.ensemble.crash(served.cluster.coordinators["b1"])
    served.cluster.network.kill("b1")
    served.disk.release_locks()
    fill(served.disk, "/t/0", "sync_directory")
    served.node = await served.cluster.start(refresh_interval_s=60.0)
    client = await served.connect()
    with pytest.raises(DiskFull, match="no space to open"):
        await client.put("t", 0, [message(b"x")])
    await client.put("t", 1, [message(b"x")])
    assert ("t", 0) not in served.node.parts.partitions.channels
    served.disk.forget_faults()
    await until(lambda: ("t", 0) in served.node.parts.partitions.channels)
    assert (await client.get("t", 0, 0))[1]
    await client.put("t", 0, [message(b"x")])


async def test_a_topic_is_deleted_on_a_full_disk(served, monkeypatch):
    """Deleting is how an operator gets space; the reserve pays for what that takes."""
    reserve = served.node.parts.disks.main.reserve
    await until(lambda: reserve.held)
    monkeypatch.setattr(reserve, "hold", lambda: None)  # it is not made again meanwhile
    served.disk.fail("mkdir", error=errno.ENOSPC, name="@trash")
    async with served.cluster.admin() as admin:
        await delete_topic(admin, "t")
    await until(lambda: ("t", 0) not in served.node.parts.partitions.channels)
    await until(lambda: not served.disk.exists(DATA / "t"))
    assert not served.node.parts.partitions.view.problems
    assert not reserve.held


async def test_an_error_nobody_expected_stays_with_its_topic(served, monkeypatch):
    """A bug in the handling of one topic does not keep the broker from the others."""
    partitions = served.node.parts.partitions
    apply_topic = partitions.apply_topic

    async def stumble(topic):
        if topic.name == "bad":
            raise ZeroDivisionError
        await apply_topic(topic)

    monkeypatch.setattr(partitions, "apply_topic", stumble)
    await served.cluster.create_topic("bad")
    await served.cluster.create_topic("later")
    await until(lambda: ("later", 0) in served.node.parts.partitions.channels)
    assert "ZeroDivisionError" in str(partitions.view.problems["bad"])


async def test_what_status_tells_of_topics_is_bounded(served):
    """However many there are, and however long their reasons."""
    view = served.node.parts.partitions.view
    view.problems.update({f"t{n:03}": Busy("x" * 5_000) for n in range(100)})
    told = list((await served.client.status()).problems)
    assert len(told) == topics_view.PROBLEMS_TOLD_MAX + 1
    assert told[-1] == "80 more topics cannot be followed"
    assert max(map(len, told)) == topics_view.PROBLEM_CHARACTERS_MAX


async def test_a_lost_watch_is_made_up_for_by_the_timer(served):
    """Events that never arrive delay a change, they do not hide it."""
    coordinator = served.cluster.coordinators["b1"]
    served.cluster.ensemble.hold_events(coordinator)
    await served.cluster.create_topic("later")
    await until(lambda: ("later", 0) in served.node.parts.partitions.channels)
    served.cluster.ensemble.release_events(coordinator, drop=True)


async def test_a_request_for_a_topic_just_made_waits_for_it(cluster):
    """A client may be quicker than the watch; it is not told that its topic does not exist.

    Nor does it wait for the timer: its request has the topic read.
    """
    node = await cluster.start(refresh_interval_s=60.0)
    client = await Client.connect(cluster.network, node.address)
    cluster.ensemble.hold_events(cluster.coordinators["b1"])
    await cluster.create_topic("quick")
    assert not node.parts.partitions.channels
    await client.put("quick", 0, [message(b"x")])
    cluster.ensemble.release_events(cluster.coordinators["b1"])


def as_if_followed(served):
    """Have each name read by itself that is looked up, like that of a topic."""
    served.node.parts.partitions.view.is_followed = lambda name: True


def noted(monkeypatch, coordinator, call, then=None):
    """Return the paths of a coordinator's calls for topics; ``then`` may fail any call."""
    paths, real = [], getattr(coordinator, call)

    async def note(path, **fields):
        if path.split("/")[0] == TOPICS:
            paths.append(path)
        if then is not None:
            then(path)
        return await real(path, **fields)

    monkeypatch.setattr(coordinator, call, note)
    return paths


def no_answer(path):
    if path != TopicNode.path("t"):
        raise ConnectionLost("no answer")


async def test_lookups_that_wait_are_bounded(served):
    """While ZooKeeper does not answer, one look-up too many is refused at once."""
    view, answers = served.node.parts.partitions.view, []
    view.lookups = Lookups(waiting_max=2, kept=0)
    served.cluster.ensemble.disconnect(served.cluster.coordinators["b1"])
    for number in range(3):
        view.ask("nowhere", answers.append, f"connection {number}")
    assert answers == []  # who asks again when told no must not be called within its own call
    await until(lambda: answers)
    assert [type(answer) for answer in answers] == [Busy]


async def test_the_lookups_of_one_connection_leave_room_for_the_others(served):
    """They are counted until they are answered, also while they are read."""
    view, answers, other = served.node.parts.partitions.view, [], []
    view.lookups = Lookups(per_asker_max=2)
    async with view.refreshing:  # no read begins
        for number in range(2):
            view.ask(f"u{number}", answers.append, "peer")
        await until(lambda: not view.lookups)  # they are to be read now
        view.ask("u2", answers.append, "peer")
        view.ask("u2", other.append, "another")
        await until(lambda: answers)
        assert [type(answer) for answer in answers] == [Busy]
    await until(lambda: other)
    assert (answers[1:], other, view.lookups.counts) == ([None, None], [None], {})


async def test_lookups_of_greedy_connections_delay_one_of_another_by_few_reads(
    cluster, monkeypatch
):
    """Sixteen connections name thousands of topics; who asks behind them waits for few reads."""
    node = await cluster.start(refresh_interval_s=60.0)  # an audit would answer for some
    monkeypatch.setattr(topics_view, "ASKED_AT_ONCE_MAX", 32)
    monkeypatch.setattr(topics_view, "ASKED_INTERVAL_S", 0)
    view, answered = node.parts.partitions.view, []
    view.is_followed = lambda name: True
    reads = noted(monkeypatch, cluster.coordinators["b1"], "exists")
    for number in range(3_200):
        view.ask(f"invented{number}", answered.append, number % 16)
    then = []  # how many there were when the answer came
    view.ask("ordinary", lambda _error: then.append(len(reads)), "another")
    await until(lambda: then)
    assert then[0] <= 2 * 32
    await until(lambda: len(answered) == 3_200, timeout_s=20)
    assert len(reads) == 3_201


async def test_one_read_of_the_list_answers_for_all_invented_topics(cluster, monkeypatch):
    """None of them is read; the first answer to another connection is not behind all of them."""
    node = await cluster.start(refresh_interval_s=60.0)
    view, answered = node.parts.partitions.view, []
    coordinator = cluster.coordinators["b1"]
    lists = noted(monkeypatch, coordinator, "listing")
    reads = noted(monkeypatch, coordinator, "exists")
    for number in range(3_000):
        view.ask(f"invented{number}", answered.append, number % 16)
    then = []
    view.ask("ordinary", lambda _error: then.append(len(answered)), "another")
    await until(lambda: len(answered) == 3_000)
    assert then[0] <= 16
    assert lists == [TOPICS]
    assert set(reads) <= {TOPICS}  # no name
    assert set(answered) == {None}


async def test_all_that_wait_are_told_when_zookeeper_cannot_be_read(served, monkeypatch):
    """Not one step of them after the other, each a pause later."""
    as_if_followed(served)
    monkeypatch.setattr(topics_view, "ASKED_AT_ONCE_MAX", 2)
    view, answers = served.node.parts.partitions.view, []
    noted(monkeypatch, served.cluster.coordinators["b1"], "exists", no_answer)
    for number in range(7):
        view.ask(f"u{number}", answers.append, "peer")
    await until(lambda: answers)
    assert len(answers) == 7
    assert all(isinstance(answer, CoordinationError) for answer in answers)


async def test_an_invented_topic_never_ends_the_following_of_topics(served):
    """PUTs in line behind its look-up, and no room for another one: each is refused."""
    view = served.node.parts.partitions.view
    ids = [f"id-{number}" for number in range(sys.getrecursionlimit() // 2)]
    async with view.refreshing:
        puts = [served.client.send_put("invented", 0, [message(b"x")], topic_id=i) for i in ids]
        await until(lambda: view.lookups.counts and not view.lookups)
        view.lookups.per_asker_max = 0
    with pytest.raises(UnknownTopic):
        decode_reply(await asyncio.wait_for(puts[0], WAIT_S))
    for put in puts[1:]:
        with pytest.raises(Busy, match="try again"):
            decode_reply(await asyncio.wait_for(put, WAIT_S))
    await served.cluster.create_topic("later")
    await until(lambda: ("later", 0) in served.node.parts.partitions.channels)


async def test_one_who_asked_and_fails_does_not_end_the_following_of_topics(served):
    """The others that waited for the same read are answered."""
    view, answers = served.node.parts.partitions.view, []

    def stumble(_error):
        raise ZeroDivisionError

    view.ask("nowhere", stumble, "peer")
    view.ask("nowhere", answers.append, "peer")
    await until(lambda: answers)
    view.ask("nowhere", answers.append, "peer")
    await until(lambda: len(answers) == 2)
    assert answers == [None, None]


async def test_a_refresh_of_somebody_else_leaves_no_question_unanswered(cluster):
    """A mover reads the topics between a question and the answer to it."""
    node = await cluster.start(refresh_interval_s=30.0)
    view, answers = node.parts.partitions.view, []
    view.ask("nowhere", answers.append, "peer")
    await until(lambda: answers)  # the next read is a pause away
    view.ask("nowhere", answers.append, "peer")
    view.hint("t")
    await view.refresh()
    assert len(answers) == 1
    await until(lambda: len(answers) == 2)


async def test_a_read_that_failed_is_done_again_soon(cluster, monkeypatch):
    """Not at the next audit: nobody else may have a reason to look."""
    monkeypatch.setattr(topics_view, "RETRY_S", 0.01)
    node = await cluster.start(refresh_interval_s=30.0)
    coordinator = cluster.coordinators["b1"]
    noted(monkeypatch, coordinator, "listing", no_answer)
    answers = []
    node.parts.partitions.view.ask("nowhere", answers.append, "peer")
    await until(lambda: answers)
    monkeypatch.undo()
    monkeypatch.setattr(topics_view, "RETRY_S", 0.01)
    lists = noted(monkeypatch, coordinator, "listing")
    await until(lambda: TOPICS in lists)


async def test_a_topic_that_was_followed_in_part_can_be_deleted(served, monkeypatch):
    """That is how an operator gets space: what is served of it ends, its data go."""
    monkeypatch.setattr(topics_view, "PROBLEM_RETRY_S", 0.01)
    for number in (0, 1):
        await served.client.put("t", number, [message(b"x")])
    await served.node.stop()
    open_log = Logs.open

    def open_but_the_first(self, partition, *args, **kwargs):
        if partition.partition == 0:
            raise DiskFull("no space to open the log")
        return open_log(self, partition, *args, **kwargs)

    monkeypatch.setattr(Logs, "open", open_but_the_first)
    node = await served.cluster.start()
    assert list(node.parts.partitions.channels) == [("t", 1)]
    assert "t" in node.parts.partitions.view.problems
    async with served.cluster.admin() as admin:
        await delete_topic(admin, "t")
    await until(
        lambda: not node.parts.partitions.channels and not node.parts.partitions.view.problems
    )
    assert not served.disk.exists(DATA / "t")


async def test_a_topic_that_could_never_be_read_can_be_deleted(served):
    """Its data were written by an earlier start; they go to the trash, too."""
    await served.client.put("t", 0, [message(b"x")])
    await served.node.stop()
    async with served.cluster.admin() as admin:
        good = (await admin.get(TopicNode.path("t"))).data
        await admin.set(TopicNode.path("t"), b"{damaged")
        node = await served.cluster.start()
        view = node.parts.partitions.view
        assert "t" in view.problems
        assert not node.parts.partitions.channels
        async with view.refreshing:
            await admin.set(TopicNode.path("t"), good)
            await delete_topic(admin, "t")
    await until(lambda: not view.problems)
    assert not served.disk.exists(DATA / "t")


async def test_a_topic_that_could_not_be_read_is_read_the_next_time(served, monkeypatch):
    """A hint is kept when its read fails with the connection."""
    read, seen = topics_view.read_topic, []

    class Notes:
        async def apply_topic(self, view):
            seen.append(view.settings.max_message_bytes)

    async def lost(*_arguments, **_fields):
        raise ConnectionLost("the connection ended before the answer")

    async with served.cluster.admin() as admin:
        view = TopicsView(admin, follower=Notes(), interval_s=1_000)
        await view.refresh()
        settings = (await describe_topic(admin, "t")).settings
        await change_settings(admin, "t", replace(settings, max_message_bytes=1_000))
        await admin.sync()
        monkeypatch.setattr(topics_view, "read_topic", lost)
        with pytest.raises(ConnectionLost):
            await view.refresh()
        monkeypatch.setattr(topics_view, "read_topic", read)
        await view.refresh()
    assert seen == [settings.max_message_bytes, 1_000]
