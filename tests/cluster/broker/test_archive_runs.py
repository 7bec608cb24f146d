"""Every node does the runs of the archive on its own blocks."""

import asyncio
import logging

import pytest
from support.archives import NotedArchives, archiver_of, done, noted, result_of, run_of
from support.broker import DATA, Client, message
from support.late_clock import give_clock
from support.node_pair import settled, whole

from vq.broker.history import archive_runs
from vq.broker.logs.archiving import PlaceAway
from vq.broker.node import Stage
from vq.broker.partition.channel import Channel
from vq.clock import ManualClock
from vq.coordination.leases.runs import make_run, read_result, read_results, write_result
from vq.coordination.topics.topics import change_settings
from vq.coordination.tree.values.runs import ArchiveTopicRun, RunOrder, RunResult, RunState
from vq.errors import Busy, InvalidState, PartitionFailed
from vq.model import TopicSettings
from vq.store.log.log import Log
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

ARCHIVE = {"retention_policy": "archive"}


@pytest.fixture
async def archives(served, monkeypatch: pytest.MonkeyPatch) -> NotedArchives:
    """Topic ``t`` with two partitions; the node notes what it archives."""
    monkeypatch.setattr(archive_runs, "PAUSE_S", 0.0)
    await alter(served, **ARCHIVE)
    return noted(served.node, monkeypatch)


async def alter(served, **settings: object) -> None:
    wanted = TopicSettings(**{"partitions": 2, **settings})
    async with served.cluster.admin() as coordinator:
        await change_settings(coordinator, "t", wanted)
    await until(
        lambda: all(
            each.settings == wanted for each in served.node.parts.partitions.channels.values()
        )
    )


def log_of(node, partition: int = 0) -> Log:
    log = node.parts.partitions.channels["t", partition].log
    assert log is not None
    return log


async def blocks(served, count: int, partition: int = 0) -> list[int]:
    """Write so many closed blocks, and one message behind them; return where each begins."""
    starts = []
    for number in range(count + 1):
        await served.client.put("t", partition, [message(b"%d" % number * 100)])
        log = log_of(served.node, partition)
        starts.append(log.open_block.start_offset)
        if number < count:
            log.roll()
            await settled(served.node.parts.partitions.channels["t", partition])
    return starts


async def test_a_run_archives_the_blocks_that_are_old_enough_as_of_its_time(
    served, archives
) -> None:
    starts = await blocks(served, 2)
    more = await blocks(served, 1, partition=1)
    async with served.cluster.admin() as coordinator:
        young = await done(coordinator, served.node, 21.9)
        assert (young.state, young.total, archives.done) == (RunState.DONE, ArchiveTopicRun(), [])
        assert archiver_of(served.node).last.number == 0
        old = await done(coordinator, served.node, 22.1)
    assert archives.done == [(0, each) for each in starts] + [(1, each) for each in more]
    assert old.state is RunState.DONE
    assert (old.total.blocks, old.total.failed) == (5, 0)
    assert (
        old.total.size_bytes == log_of(served.node).size_bytes + log_of(served.node, 1).size_bytes
    )
    assert old.topics == {"t": old.total}
    assert old.begun_ms <= old.ended_ms
    counters = served.node.parts.context.counters
    assert (counters.archived_blocks, counters.archived_bytes) == (5, old.total.size_bytes)


async def test_a_run_ends_the_block_that_takes_appends_and_a_later_one_takes_it(
    served, archives
) -> None:
    [start] = await blocks(served, 0)
    async with served.cluster.admin() as coordinator:
        await done(coordinator, served.node, 0.9)
        assert log_of(served.node).open_block is not None
        await done(coordinator, served.node, 1.1)
        assert log_of(served.node).open_block is None
        assert archives.done == []
        await served.client.put("t", 0, [message(b"x")])
        await done(coordinator, served.node, 24)
    assert archives.done[0] == (0, start)


async def test_what_is_an_archive_is_not_archived_again(served, archives) -> None:
    await blocks(served, 2)
    async with served.cluster.admin() as coordinator:
        await done(coordinator, served.node, 25)
        again = await done(coordinator, served.node, 26)
    assert (again.state, again.total) == (RunState.DONE, ArchiveTopicRun())
    assert len(archives.done) == len(set(archives.done))


async def test_a_dry_run_tells_what_would_be_done(served, archives) -> None:
    await blocks(served, 2)
    async with served.cluster.admin() as coordinator:
        told = await done(coordinator, served.node, 25, dry_run=True)
        assert log_of(served.node).open_block is not None
        assert archives.done == []
        real = await done(coordinator, served.node, 25)
    assert (told.total.blocks, told.total.size_bytes) == (real.total.blocks, real.total.size_bytes)
    assert real.total.blocks == 3


async def test_a_run_of_one_topic_leaves_the_others(served, archives) -> None:
    await blocks(served, 1)
    async with served.cluster.admin() as coordinator:
        other = await done(coordinator, served.node, 25, topic="u")
        assert (other.state, other.total) == (RunState.DONE, ArchiveTopicRun())
        assert (await done(coordinator, served.node, 25, topic="t")).total.blocks == 2


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"retention_policy": "delete"}, 0),
        ({"retention_policy": "keep"}, 0),
        ({"retention_policy": "keep", "archive_after_hours": 24}, 2),
        ({"retention_policy": "archive", "archive_after_hours": 30}, 0),
        ({"retention_policy": "archive", "archive_to": "file:///a"}, 2),
    ],
)
async def test_the_settings_of_the_topic_say_what_is_archived(
    served, archives, settings: dict[str, object], count: int
) -> None:
    await alter(served, **settings)
    await blocks(served, 1)
    async with served.cluster.admin() as coordinator:
        assert (await done(coordinator, served.node, 25)).total.blocks == count
    assert archives.to == ({settings.get("archive_to")} if count else set())


@pytest.mark.parametrize("error", [PartitionFailed("no"), OSError(28, "full"), KeyError("bug")])
async def test_a_block_that_cannot_be_archived_stops_no_other(
    served, archives, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    starts = await blocks(served, 2)
    archives.bad[starts[1]] = error
    async with served.cluster.admin() as coordinator:
        first = await done(coordinator, served.node, 25)
        assert archives.done == [(0, starts[0]), (0, starts[2])]
        assert (first.state, first.total.blocks, first.total.failed) == (RunState.FAILED, 2, 1)
        assert first.total.error.startswith("t-0: ")
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            await done(coordinator, served.node, 26)
        told = [each for each in caplog.records if "block cannot be archived" in each.message]
        assert told == [], "each cause once"
        archives.bad.clear()
        last = await done(coordinator, served.node, 27)
    assert (last.state, last.total.blocks) == (RunState.DONE, 1)


async def test_a_place_that_does_not_answer_holds_up_no_other_topic(served, archives) -> None:
    """Each try there may take a minute. What is due counts as failed, and the next run tries it."""
    there = await blocks(served, 8)
    await alter(served, **ARCHIVE, archive_to="s3://there")
    await served.cluster.create_topic("u", partitions=1, **ARCHIVE)
    await until(lambda: ("u", 0) in served.node.parts.partitions.channels)
    await served.client.put("u", 0, [message(b"x")])
    served.node.parts.partitions.channels["u", 0].log.roll()
    await settled(served.node.parts.partitions.channels["u", 0])
    tries: list[int] = []
    archives.before = lambda: tries.append(1)
    archives.bad = {start: PlaceAway("it hangs") for start in [there[1], *there[3:]]}
    async with served.cluster.admin() as coordinator:
        found = await done(coordinator, served.node, 25)
        assert len(tries) == 3 + 3 + 1, "of the third block on, three in turn, and that of u"
        assert (found.topics["t"].blocks, found.topics["t"].failed) == (2, 7)
        assert found.topics["u"].blocks == 1
        archives.bad = {}
        found = await done(coordinator, served.node, 26)
    assert (found.state, found.topics["t"].blocks) == (RunState.DONE, 7)


async def test_settings_that_change_meanwhile_end_the_run_of_a_partition(served, archives) -> None:
    await blocks(served, 3)

    def change() -> None:
        for channel in served.node.parts.partitions.channels.values():
            channel.settings = TopicSettings(partitions=2)

    async with served.cluster.admin() as coordinator:
        archives.before = lambda: asyncio.get_running_loop().call_soon(change)
        assert (await done(coordinator, served.node, 25)).total.blocks == 1


async def test_a_run_that_a_stop_interrupts_is_done_by_the_next_start(
    cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result tells of both."""
    node = await cluster.start()
    await cluster.create_topic("t", partitions=1, **ARCHIVE)
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    client = await Client.connect(cluster.network, node.address)
    for _ in range(3):
        await client.put("t", 0, [message(b"x" * 100)])
        log_of(node).roll()
        await settled(node.parts.partitions.channels["t", 0])
    archives = noted(node, monkeypatch)
    archives.gate.clear()  # behind the first block
    monkeypatch.setattr(archive_runs, "PROGRESS_S", 0.001)
    async with cluster.admin() as coordinator:
        number = await make_run(coordinator, run_of(node, 25))
        found: list[RunResult | None] = [None]

        async def told() -> bool:
            found[0] = await read_result(coordinator, number, "b1", "n1")
            return found[0] is not None and found[0].total.blocks == 1

        await until(lambda: len(archives.done) == 1)
        await until_true(told)
        assert found[0] is not None
        assert found[0].state is RunState.RUNNING
        assert archiver_of(node).last.result.total.blocks == 1
        await node.stop()
        node = await cluster.start()
        # The blocks are other objects now; the first one counts as an archive again.
        monkeypatch.setattr(
            archive_runs, "is_archived", lambda block: block.start_offset == archives.done[0][1]
        )
        again = NotedArchives()
        monkeypatch.setattr(node.parts.partitions.logs.archiving, "archive", again.archive)
        result = await result_of(coordinator, number, node)
    assert (result.state, result.total.blocks, len(again.done)) == (RunState.DONE, 3, 2)
    assert result.begun_ms == found[0].begun_ms


async def test_a_node_that_was_away_does_the_newest_run(served, archives, monkeypatch) -> None:
    """The older ones are covered, unless they are of a later time or dry."""
    await blocks(served, 1)
    await served.node.stop()
    async with served.cluster.admin() as coordinator:
        runs = [
            run_of(served.node, 23),
            run_of(served.node, 24, dry_run=True),
            run_of(served.node, 25, topic="t"),
            run_of(served.node, 30, topic="u"),
            run_of(served.node, 26),
        ]
        for each in runs:
            await make_run(coordinator, each)
        node = await served.cluster.start()
        monkeypatch.setattr(
            node.parts.partitions.logs.archiving, "archive", NotedArchives().archive
        )
        results = [await result_of(coordinator, n, node) for n in range(len(runs))]
    covered, ended = RunState.COVERED, RunState.DONE
    assert [each.state for each in results] == [covered, ended, covered, ended, ended]
    assert results[-1].total.blocks == 2


async def test_a_run_of_a_lease_that_had_ended_is_refused(served, archives) -> None:
    await blocks(served, 1)
    async with served.cluster.admin() as coordinator:
        assert (await done(coordinator, served.node, 1, fence=5, due_ms=1)).state is RunState.DONE
        late = await done(coordinator, served.node, 25, fence=4, due_ms=2)
        assert (late.state, archives.done) == (RunState.REFUSED, [])
        assert (await done(coordinator, served.node, 25)).total.blocks == 2


async def test_a_run_that_cannot_be_read_is_set_aside(
    served, archives, caplog: pytest.LogCaptureFixture
) -> None:
    await blocks(served, 1)
    async with served.cluster.admin() as coordinator:
        await done(coordinator, served.node, 1)
        await coordinator.create("archive/runs/1", b"odd")
        assert (await done(coordinator, served.node, 25)).total.blocks == 2
        assert list(await read_results(coordinator, 1)) == []
    told = [each for each in caplog.records if "run cannot be read" in each.message]
    assert len(told) == 1


async def test_what_a_node_has_done_before_it_was_restarted_is_not_done_again(
    served, archives
) -> None:
    await blocks(served, 1)
    async with served.cluster.admin() as coordinator:
        first = await done(coordinator, served.node, 25)
        await served.node.stop()
        node = await served.cluster.start()
        await until(lambda: archiver_of(node).last is not None)
        assert archiver_of(node).last.result == first
        assert await read_result(coordinator, 0, "b1", "n1") == first


async def test_a_copy_archives_its_own_blocks(node_pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_runs, "PAUSE_S", 0.0)
    wanted = TopicSettings(partitions=1, retention_policy="archive")
    async with node_pair.cluster.admin() as coordinator:
        await change_settings(coordinator, "t", wanted)
        for name in node_pair.nodes:
            await until(lambda name=name: node_pair.channel(name).settings == wanted)
        for name in node_pair.nodes:
            node_pair.log(name).roll()
            await settled(node_pair.channel(name))
        await node_pair.put(1)
        await until(node_pair.same)
        nodes = list(node_pair.nodes.values())
        number = await make_run(coordinator, run_of(nodes[0], 25))
        kept = [noted(each, monkeypatch) for each in nodes]
        results = [await result_of(coordinator, number, each) for each in nodes]
    assert [each.state for each in results] == [RunState.DONE] * 2
    assert kept[0].done == kept[1].done, "the end of a quiet partition, too"
    assert len(kept[0].done) == 2


async def test_what_was_written_a_moment_ago_is_archived_by_the_first_run(served) -> None:
    """With flush async it is not durable yet when the run ends its block."""
    await alter(served, **ARCHIVE, flush="async")
    await served.client.put("t", 0, [message(b"x" * 100)])
    async with served.cluster.admin() as coordinator:
        found = await done(coordinator, served.node, 48)
    assert (found.state, found.total.blocks, found.total.error) == (RunState.DONE, 1, "")


async def test_blocks_that_are_merely_too_early_are_taken_later(
    served, archives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new master does not know yet what is committed: no failure."""
    monkeypatch.setattr(archive_runs, "READY_S", 0.1)
    starts = await blocks(served, 2)
    channel = served.node.parts.partitions.channels["t", 0]
    end, channel.high_watermark = channel.high_watermark, starts[1]
    committed = Channel.committed
    monkeypatch.setattr(Channel, "committed", lambda *_: starts[1])
    async with served.cluster.admin() as coordinator:
        found = await done(coordinator, served.node, 25)
        assert (found.state, found.total.failed, found.total.error) == (RunState.DONE, 0, "")
        assert (found.total.blocks, found.total.later) == (1, 2)
        monkeypatch.setattr(archive_runs, "READY_S", 30.0)
        number = await make_run(coordinator, run_of(served.node, 26))
        await until(lambda: channel.parked)
        monkeypatch.setattr(Channel, "committed", committed)
        channel.commit()
        found = await result_of(coordinator, number, served.node)
    assert (found.total.blocks, found.total.later) == (2, 0)
    assert channel.high_watermark == end


async def test_a_block_that_is_in_use_is_taken_later(served, archives) -> None:
    """It becomes an archive early at this moment, say."""
    starts = await blocks(served, 1)
    archives.bad[starts[0]] = Busy("it is being archived")
    async with served.cluster.admin() as coordinator:
        found = await done(coordinator, served.node, 25)
    assert (found.state, found.total.blocks, found.total.later) == (RunState.DONE, 1, 1)


async def test_a_result_that_cannot_be_written_is_written_later_and_the_run_not_done_again(
    served, archives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper goes away while the node archives."""
    starts = await blocks(served, 1)
    coordinator = served.cluster.coordinators["b1"]

    def expire() -> None:
        archives.before = lambda: None
        served.cluster.ensemble.expire(coordinator)

    archives.before = expire
    async with served.cluster.admin() as admin:
        result = await done(admin, served.node, 25)
    assert (result.state, result.total.blocks) == (RunState.DONE, 2)
    assert archives.done == [(0, each) for each in starts]


async def test_runs_that_are_forgotten_are_forgotten_by_nodes(served, archives) -> None:
    async with served.cluster.admin() as coordinator:
        await done(coordinator, served.node, 1)
        await coordinator.delete("archive/runs/0/b1:n1")
        await coordinator.delete("archive/runs/0")
        await done(coordinator, served.node, 2)
    assert set(archiver_of(served.node).written) == {1}
    assert set(archiver_of(served.node).ended) <= {1}
    async with served.cluster.admin() as coordinator:
        await write_result(coordinator, 0, "b1", "n1", RunResult(state=RunState.DONE))
        assert await coordinator.exists(RunOrder.path(0)) is None


async def test_a_run_that_ends_because_the_node_stops_is_not_done(served, archives) -> None:
    """Its partitions are closed one after the other, so nothing seems to be due any more."""
    await blocks(served, 2)
    async with served.cluster.admin() as coordinator:

        def stop() -> None:
            served.node.parts.gate.stage = Stage.LEAVING
            archives.before = lambda: None

        archives.before = stop
        number = await make_run(coordinator, run_of(served.node, 25))
        await until(lambda: len(archives.done) == 3)
        served.node.parts.gate.stage = Stage.SERVING
        await served.node.stop()
        found = await read_result(coordinator, number, "b1", "n1")
        assert found is not None
        assert found.state is RunState.RUNNING
        node = await served.cluster.start()
        assert (await result_of(coordinator, number, node)).state is RunState.DONE


async def test_a_run_makes_archives_that_are_read_and_kept_over_a_restart(served) -> None:
    """With real archives, on the disk in memory."""
    await alter(served, **ARCHIVE)
    await blocks(served, 3)
    before = whole(log_of(served.node), 0)
    async with served.cluster.admin() as coordinator:
        result = await done(coordinator, served.node, 25)
        assert (result.state, result.total.blocks) == (RunState.DONE, 4)
        assert result.total.archive_bytes > 0
        names = served.disk.listdir(DATA / "t" / "0")
        assert len([name for name in names if name.endswith(".archive")]) == 4
        assert not [name for name in names if name.endswith(".block")]
        assert (await done(coordinator, served.node, 26)).total == ArchiveTopicRun()
        await served.client.put("t", 0, [message(b"more")])
        await served.node.stop()
        node = await served.cluster.start()
        assert (await done(coordinator, node, 26.5)).total.blocks == 1
    client = await Client.connect(served.cluster.network, node.address)
    _, body = await client.get("t", 0, 0)
    assert bytes(body)
    assert before.startswith(bytes(body))
    assert whole(log_of(node), 0).startswith(before)


async def test_blocks_that_retention_deletes_meanwhile_are_no_failure(served, archives) -> None:
    starts = await blocks(served, 2)
    real = archives.archive

    async def archive(*arguments):
        block = arguments[1]
        if block.start_offset == starts[0]:
            log_of(served.node).drop_before(starts[1])
            raise InvalidState("it is not here any more")
        return await real(*arguments)

    archives.archive = archive
    async with served.cluster.admin() as coordinator:
        result = await done(coordinator, served.node, 25)
    assert (result.state, result.total.blocks, result.total.failed) == (RunState.DONE, 2, 0)


async def test_retention_deletes_archives_as_it_deletes_blocks(served) -> None:
    """With the policy ``archive``: by age, the zip with its stub."""
    await alter(served, **ARCHIVE)
    await blocks(served, 2)
    async with served.cluster.admin() as coordinator:
        assert (await done(coordinator, served.node, 25)).total.blocks == 3
    end = log_of(served.node).end_offset
    retainer = served.node.parts.upkeep.retainer
    clock = ManualClock(wall_ms=served.node.parts.context.clock.wall_ms() + 71 * 3_600_000)
    give_clock(retainer, clock)
    await retainer.look()
    assert log_of(served.node).start_offset == 0
    clock.advance(3_700 + 3_600)
    await retainer.look()
    assert log_of(served.node).start_offset == end
    await settled(served.node.parts.partitions.channels["t", 0])
    names = served.disk.listdir(DATA / "t" / "0")
    assert [name for name in names if name.endswith((".zip", ".archive", ".block"))] == []
