"""A node with several data directories: what fills or vanishes takes only its partitions."""

import asyncio
import errno
from pathlib import Path

import pytest
from support.broker import Client, message
from support.node_pair import settled, whole

from vq.broker.base.runner import Lane
from vq.broker.disks.disk_looks import FLUSH_SILENT_S, SILENT_S
from vq.broker.logs.old_blocks import is_whole
from vq.broker.serving.reach import CopyReach
from vq.broker.upkeep import TIDY_INTERVAL_S
from vq.coordination.topics.topics import delete_topic
from vq.errors import Busy, DirectoryRefused, DiskFull
from vq.store.directory.identity import IDENTITY_NAME, Identity
from vq.store.records.format import CHECKPOINT_NAME
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

D1, D2 = Path("/d1"), Path("/d2")
BOTH = {"data": (D1, D2), "disk_interval_s": 0.01}


class Disks:
    """The disk of a node, as two disks that are as full as a test says."""

    def __init__(self, node, disk) -> None:
        self._node = node
        self.free = {D1: 900, D2: 900}
        disk.free_space = lambda path: (self.free[path], 1_000)

    def fill(self, path: Path, free: int) -> None:
        self.free[path] = free
        self._node.parts.disks.look_now()


async def start(cluster, node: str = "n1", **settings: object):
    return await cluster.start(node=node, **{**BOTH, **settings})


async def topic(cluster, *nodes, name: str = "t", partitions: int = 4) -> None:
    await cluster.create_topic(name, partitions=partitions)
    await until(
        lambda: all((name, partitions - 1) in node.parts.partitions.channels for node in nodes)
    )


def home(node, partition: int, name: str = "t") -> Path:
    log = node.parts.partitions.channels[name, partition].log
    return (
        node.parts.logs.home(node.parts.partitions.channels[name, partition].partition)
        if log
        else None
    )


def by_home(node, partitions: int = 4) -> dict[Path, list[int]]:
    found: dict[Path, list[int]] = {D1: [], D2: []}
    for number in range(partitions):
        found[home(node, number)].append(number)
    return found


async def fill_all(client: Client, partitions: int = 4) -> None:
    for number in range(partitions):
        await client.put("t", number, [message(b"%d" % number * 20)])


@pytest.fixture
async def two(cluster):
    """A node with two directories, a topic of four partitions with messages, and a client."""
    node = await start(cluster)
    await topic(cluster, node)
    client = await Client.connect(cluster.network, node.address)
    await fill_all(client)
    return node, client


# One node -----------------------------------------------------------------------------------------
async def test_partitions_are_spread_and_are_where_they_were_after_a_restart(cluster, two):
    node, _ = two
    disk = cluster.disks["b1"]
    homes = by_home(node)
    assert [len(each) for each in homes.values()] == [2, 2]
    before = {n: whole(node.parts.partitions.channels["t", n].log, 0) for n in range(4)}
    for path, numbers in homes.items():
        for number in numbers:
            assert disk.exists(path / "t" / str(number))
            assert not disk.exists((D2 if path == D1 else D1) / "t" / str(number))
    await node.stop()
    again = await start(cluster)
    await until(lambda: len(again.parts.partitions.channels) == 4)
    assert by_home(again) == homes
    assert {n: whole(again.parts.partitions.channels["t", n].log, 0) for n in range(4)} == before


@pytest.mark.parametrize("full", [D1, D2])
async def test_a_full_disk_refuses_only_messages_of_its_partitions(cluster, two, full: Path):
    node, client = two
    disks, homes = Disks(node, cluster.disks["b1"]), by_home(node)
    other = D2 if full == D1 else D1
    disks.fill(full, 50)
    with pytest.raises(
        DiskFull, match=rf"the disk {full} of broker b1/n1 is 95\.0% full; messages"
    ):
        await client.put("t", homes[full][0], [message(b"x")])
    await client.put("t", homes[other][0], [message(b"x")])
    told = await client.status()
    assert [each.level for each in told.disks] == [
        "refuse" if path == full else "ok" for path in (D1, D2)
    ]
    assert len([each for each in told.problems if "95.0% full" in each]) == 1
    assert node.parts.vitals.not_ready() == []
    await topic(cluster, node, name="new", partitions=2)
    for number in range(2):
        await client.put("new", number, [message(b"x")])
        assert home(node, number, "new") == other
    disks.fill(full, 500)
    await client.put("t", homes[full][0], [message(b"x")])


async def test_a_partition_without_messages_begins_where_there_is_room(cluster):
    """Its disk was chosen when its topic was created, and has filled up since."""
    node = await start(cluster)
    disks = Disks(node, cluster.disks["b1"])
    await topic(cluster, node)
    disks.fill(D2, 50)
    client = await Client.connect(cluster.network, node.address)
    await fill_all(client)
    assert by_home(node) == {D1: [0, 1, 2, 3], D2: []}


async def test_a_node_whose_disks_are_all_full_refuses_all(cluster, two):
    node, client = two
    disks = Disks(node, cluster.disks["b1"])
    for path in (D1, D2):
        disks.fill(path, 50)
    for number in range(4):
        with pytest.raises(DiskFull):
            await client.put("t", number, [message(b"x")])
    assert len(node.parts.vitals.not_ready()) == 1
    problems = (await client.status()).problems
    assert len(problems) == 2


async def test_a_further_directory_that_vanishes_takes_only_its_partitions(cluster, two):
    node, client = two
    disk, homes = cluster.disks["b1"], by_home(node)
    disk.rename(D2, Path("/away"))
    await until(lambda: node.parts.disks.all[1].gone)
    said = "data directory /d2 of broker b1/n1 is gone.* without it.*use-several-disks"
    with pytest.raises(Busy, match=said):
        await client.put("t", homes[D2][0], [message(b"x")])
    await client.put("t", homes[D1][0], [message(b"x")])
    assert [each.level for each in (await client.status()).disks] == ["ok", "gone"]
    assert node.parts.vitals.not_ready() == ["the data directory /d2 is gone, messages are refused"]
    await client.get("t", homes[D1][0], 0)
    disk.rename(Path("/away"), D2)
    await until(lambda: not node.parts.disks.all[1].gone)
    await client.put("t", homes[D2][0], [message(b"y")])


def hang(node, path: Path, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have looks at a directory get no answer, as on a mount that hangs; the event ends that."""
    answers, run, looks = asyncio.Event(), node.parts.runner.run, []

    async def held(call, lane=Lane.LOGS):
        if lane is Lane.LOOK and call.__self__.path == path:
            looks.append(call)
            assert len(looks) == 1, "a second look began behind one that hangs"
            await answers.wait()
            looks.clear()
        return await run(call, lane)

    monkeypatch.setattr(node.parts.runner, "run", held)
    return answers


async def test_a_further_directory_that_hangs_takes_only_its_partitions(
    cluster, two, monkeypatch, caplog
):
    """It is asked on a thread, once; what it has not answered for some seconds is not touched."""
    node, client = two
    homes, disk = by_home(node), node.parts.disks.all[1]
    answers = hang(node, D2, monkeypatch)
    await until(lambda: disk.silent)
    assert SILENT_S <= disk.silent_s < SILENT_S + 1
    said = "data directory /d2 of broker b1/n1 does not answer .it has not answered since 20"
    with pytest.raises(Busy, match=said):
        await client.put("t", homes[D2][0], [message(b"x")])
    with pytest.raises(Busy, match=said):
        await client.get("t", homes[D2][0], 0)
    await client.put("t", homes[D1][0], [message(b"x")])
    await client.get("t", homes[D1][0], 0)
    told = await client.status()
    assert [each.level for each in told.disks] == ["ok", "silent"]
    assert any("does not answer" in problem for problem in told.problems)
    assert node.parts.vitals.not_ready() == [
        "the data directory /d2 does not answer, messages are refused"
    ]
    assert "data directory does not answer, messages are refused" in caplog.text
    families = {each.name: each for each in await node.families()}
    silent = families["vq_data_directory_silent_seconds"].samples
    assert [each.value >= SILENT_S for each in silent] == [False, True]

    answers.set()
    await until(lambda: not disk.gone)
    assert (disk.silent, disk.silent_s) == (False, 0.0)
    await client.put("t", homes[D2][0], [message(b"y")])
    await client.get("t", homes[D2][0], 0)
    assert [each.level for each in (await client.status()).disks] == ["ok", "ok"]


async def test_a_directory_whose_flush_hangs_is_told_as_one_that_does_not_answer(cluster, two):
    """A disk whose device is away answers looks: what they ask for is in memory."""
    node, client = two
    homes = by_home(node)
    flusher = cluster.flushers["b1"]  # of the main directory
    flusher.held = True
    waiting = asyncio.ensure_future(client.put("t", homes[D1][0], [message(b"x")]))
    await until(lambda: node.parts.disks.main.silent)
    assert node.parts.disks.main.silent_s >= FLUSH_SILENT_S
    with pytest.raises(Busy, match="does not answer"):
        await client.put("t", homes[D1][1], [message(b"x")])
    flusher.held = False
    flusher.release()
    await waiting
    await until(lambda: not node.parts.disks.main.silent)
    await client.put("t", homes[D1][1], [message(b"x")])


async def test_nothing_touches_a_directory_that_hangs(cluster, two, monkeypatch):
    """New partitions may lie there, for all that is known, and wait; upkeep passes it by."""
    node, client = two
    answers = hang(node, D2, monkeypatch)
    await until(lambda: node.parts.disks.all[1].silent)
    disk, touched = cluster.disks["b1"], []
    find = disk.find

    def note(path: Path):
        if node.parts.disks.all[1].silent and D2 in (path, *path.parents):
            touched.append(path)
        return find(path)

    monkeypatch.setattr(disk, "find", note)
    channels = [node.parts.partitions.channels["t", number] for number in range(4)]
    assert {is_whole(each) for each in channels if each.place is node.parts.disks.all[1].place} == {
        False
    }
    with pytest.raises(Busy, match=r"/d2 .* does not answer"):
        CopyReach("n2", 1, node.epoch).check(
            node.parts.partitions.channels["t", by_home(node)[D2][0]], 1
        )
    for disk in node.parts.disks.all:
        await asyncio.wait_for(disk.look(), 1)  # whoever needs space does not wait for it
    await cluster.create_topic("new", partitions=4)
    await until(lambda: "new" in node.parts.partitions.view.problems)
    assert "data directory /d2 does not answer" in str(node.parts.partitions.view.problems["new"])
    await asyncio.sleep(2 * TIDY_INTERVAL_S)
    await client.put("t", by_home(node)[D1][0], [message(b"x")])
    assert touched == []
    answers.set()
    await until(lambda: ("new", 3) in node.parts.partitions.channels)
    for number in range(4):
        await client.put("new", number, [message(b"x")])


async def test_a_start_tells_that_it_waits_for_a_directory(cluster, caplog):
    node = cluster.node(**BOTH)
    with cluster.runners["b1"].held():
        start = asyncio.ensure_future(node.start())
        await until(lambda: "data directories do not answer, the start waits" in caplog.text)
        assert "/d1, /d2" in caplog.text
        assert not start.done()
    await start


async def test_a_node_whose_main_directory_hangs_takes_nothing_until_it_answers(
    cluster, two, monkeypatch
):
    """It cannot store an epoch, or the list of its logs."""
    node, client = two
    answers = hang(node, D1, monkeypatch)
    await until(lambda: node.parts.disks.main.silent)
    for number in range(4):
        with pytest.raises(Busy, match="does not answer"):
            await client.put("t", number, [message(b"x")])
    answers.set()
    await until(lambda: not node.parts.disks.main.gone)
    await fill_all(client)


async def test_without_its_main_directory_a_node_takes_nothing(cluster, two):
    node, client = two
    cluster.disks["b1"].rename(D1, Path("/away"))
    await until(lambda: node.parts.disks.all[0].gone)
    for number in range(4):
        with pytest.raises(Busy, match="is gone"):
            await client.put("t", number, [message(b"x")])
    cluster.disks["b1"].rename(Path("/away"), D1)
    await until(lambda: not node.parts.disks.all[0].gone)
    await fill_all(client)


async def test_a_node_does_not_start_without_a_directory_and_begins_nothing_in_its_place(
    cluster, two
):
    """Given up, its partitions are quarantined in a group of one node, the others served."""
    node, _ = two
    disk, homes = cluster.disks["b1"], by_home(node)
    await node.stop()
    lost = Identity.from_bytes(disk.read_bytes(D2 / IDENTITY_NAME), D2).id
    disk.rename(D2, Path("/away"))
    with pytest.raises(DirectoryRefused, match=lost):
        await start(cluster, data=D1)
    with pytest.raises(DirectoryRefused, match=lost):
        await start(cluster)  # an empty one in its place
    disk.rmtree(D2)
    again = await start(cluster, data=D1, without_data=(lost,))
    await until(lambda: len(again.parts.partitions.channels) == 4)
    states = {n: again.parts.partitions.channels["t", n].told[0] for n in range(4)}
    assert states == {n: "rw" if n in homes[D1] else "quarantined" for n in range(4)}


async def test_partitions_are_moved_by_hand_out_of_a_directory(cluster, two):
    """Stop, move the directories, start without it."""
    node, _ = two
    disk, homes = cluster.disks["b1"], by_home(node)
    await node.stop()
    lost = Identity.from_bytes(disk.read_bytes(D2 / IDENTITY_NAME), D2).id
    for number in homes[D2]:
        disk.rename(D2 / "t" / str(number), D1 / "t" / str(number))
    again = await start(cluster, data=D1, without_data=(lost,))
    await until(lambda: len(again.parts.partitions.channels) == 4)
    client = await Client.connect(cluster.network, again.address)
    await fill_all(client)
    await again.stop()
    await start(cluster, data=D1)  # and it is forgotten


async def test_a_directory_is_added_and_gets_what_is_new(cluster):
    node = await start(cluster, data=D1)
    await topic(cluster, node, partitions=2)
    client = await Client.connect(cluster.network, node.address)
    await fill_all(client, 2)
    await node.stop()
    node = await start(cluster)
    await until(lambda: len(node.parts.partitions.channels) == 2)
    await topic(cluster, node, name="new", partitions=2)
    client = await Client.connect(cluster.network, node.address)
    await fill_all(client, 2)
    for number in range(2):
        await client.put("new", number, [message(b"x")])
    assert [home(node, n) for n in range(2)] == [D1, D1]
    assert [home(node, n, "new") for n in range(2)] == [D2, D2]


async def test_a_deleted_topic_leaves_all_directories(cluster, two):
    node, _ = two
    disk = cluster.disks["b1"]
    async with cluster.admin() as coordinator:
        await delete_topic(coordinator, "t")
    await until(lambda: not node.parts.partitions.channels)
    await until(lambda: not any(disk.exists(path / "t") for path in (D1, D2)))
    assert all(len(disk.listdir(path / "@trash")) == 1 for path in (D1, D2))


async def test_a_disk_that_hangs_holds_up_only_flushes_of_its_partitions(cluster, two):
    """Each directory has a flusher of its own."""
    node, client = two
    homes = by_home(node)
    flusher = cluster.flushers["b1"]  # of the main directory
    flusher.held = True
    waiting = asyncio.ensure_future(client.put("t", homes[D1][0], [message(b"x")]))
    await client.put("t", homes[D2][0], [message(b"x")])
    assert not waiting.done()
    flusher.release()
    await waiting


async def test_a_topic_that_comes_while_the_directory_is_gone_is_served_once_it_is_back(cluster):
    """Nothing of it is made where a file system was mounted: later it would lack there."""
    node = await start(cluster, data=D1)
    disk = cluster.disks["b1"]
    disk.rename(D1, Path("/away"))
    disk.mkdir(D1)
    await until(lambda: node.parts.disks.main.gone)
    await cluster.create_topic("t", partitions=1)
    await until(lambda: "t" in node.parts.partitions.view.problems)
    assert disk.listdir(D1) == []
    disk.rmtree(D1)
    disk.rename(Path("/away"), D1)
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    await node.stop()
    again = await start(cluster, data=D1)
    assert again.parts.partitions.view.problems == {}
    assert again.parts.partitions.channels["t", 0].log.messages == 1


async def test_no_log_begins_where_a_directory_was_that_is_missed_only_later(cluster):
    """Between two looks at the disk: what was acknowledged would be hidden once it is back."""
    node = await start(cluster, data=D1, disk_interval_s=3_600.0)
    disk = cluster.disks["b1"]
    await topic(cluster, node, partitions=1)
    client = await Client.connect(cluster.network, node.address)
    disk.rename(D1, Path("/away"))
    disk.mkdir(D1)
    with pytest.raises(Busy):
        await client.put("t", 0, [message(b"x")])
    assert disk.listdir(D1) == []
    disk.rmtree(D1)
    disk.rename(Path("/away"), D1)
    await client.put("t", 0, [message(b"x")])


async def test_another_directory_in_the_place_of_one_takes_no_messages(cluster, two):
    """Two disks were swapped while the broker runs."""
    node, client = two
    disk, homes = cluster.disks["b1"], by_home(node)
    await start(cluster, "n2", data=Path("/d3"))
    stranger = cluster.disks["b1-n2"].read_bytes(Path("/d3") / IDENTITY_NAME)
    disk.rename(D2, Path("/away"))
    disk.mkdir(D2)
    disk.write_atomic(D2 / IDENTITY_NAME, stranger)
    await until(lambda: node.parts.disks.all[1].gone)
    with pytest.raises(Busy, match=r"is gone \(another one, with the id"):
        await client.put("t", homes[D2][0], [message(b"x")])
    disk.rmtree(D2)
    disk.rename(Path("/away"), D2)
    await until(lambda: not node.parts.disks.all[1].gone)
    await client.put("t", homes[D2][0], [message(b"x")])


async def test_a_directory_that_cannot_be_read_stops_neither_the_others_nor_retention(
    cluster, two, caplog
):
    """An I/O error of its file system; what looks at disks goes on."""
    node, client = two
    disk, homes = cluster.disks["b1"], by_home(node)
    failing, exists = True, disk.exists

    def fail(path: Path) -> bool:
        if failing and D2 in path.parents:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return exists(path)

    disk.exists = fail
    await until(lambda: node.parts.disks.all[1].gone)
    with pytest.raises(Busy, match=r"it cannot be read: Input/output error"):
        await client.put("t", homes[D2][0], [message(b"x")])
    await client.put("t", homes[D1][0], [message(b"x")])
    await node.parts.upkeep.retainer.relief.pressed()
    failing = False
    await until(lambda: not node.parts.disks.all[1].gone)
    await client.put("t", homes[D2][0], [message(b"x")])
    assert "background task failed" not in caplog.text


# Two nodes ----------------------------------------------------------------------------------------
@pytest.fixture
async def pair(cluster):
    nodes = [await start(cluster, "n1")]
    await topic(cluster, *nodes)
    nodes.append(await start(cluster, "n2"))
    await until(lambda: len(nodes[1].parts.partitions.channels) == 4)
    client = await Client.connect(cluster.network, nodes[0].address)
    await fill_all(client)
    await until(lambda: nodes[0].parts.context.role.named == 2)
    await until(lambda: ends(nodes[0]) == ends(nodes[1]))
    return nodes, client


def ends(node) -> list[int]:
    logs = [node.parts.partitions.channels["t", number].log for number in range(4)]
    return [0 if log is None else log.end_offset for log in logs]


@pytest.mark.slow
async def test_a_copy_whose_further_directory_vanishes_copies_the_rest_and_leaves_the_set(
    cluster, pair
):
    nodes, client = pair
    master, copy = nodes
    homes = by_home(copy)
    cluster.disks["b1-n2"].rename(D2, Path("/away"))
    await until(lambda: copy.parts.disks.all[1].gone)
    before = ends(copy)
    await fill_all(client)
    await until(lambda: master.parts.context.role.named == 1)
    await until(lambda: all(ends(copy)[n] == ends(master)[n] for n in homes[D1]))
    assert all(ends(copy)[n] == before[n] for n in homes[D2])
    cluster.disks["b1-n2"].rename(Path("/away"), D2)
    await until(lambda: master.parts.context.role.named == 2)
    assert ends(copy) == ends(master)


@pytest.mark.slow
async def test_a_master_whose_further_directory_vanishes_hands_over(cluster, pair):
    nodes, _ = pair
    master, copy = nodes
    cluster.disks["b1"].rename(D2, Path("/away"))
    await until(lambda: copy.epoch > 0 and master.epoch == 0)
    client = await Client.connect(cluster.network, copy.address)
    await fill_all(client)


@pytest.mark.slow
async def test_what_lay_in_a_lost_directory_is_copied_anew(cluster, pair):
    """A node that goes on without it gets its partitions from the others, and is in sync again."""
    nodes, client = pair
    master, copy = nodes
    disk = cluster.disks["b1-n2"]
    await copy.stop()
    lost = Identity.from_bytes(disk.read_bytes(D2 / IDENTITY_NAME), D2).id
    disk.rmtree(D2)
    await fill_all(client)
    with pytest.raises(DirectoryRefused):
        await start(cluster, "n2")
    again = await start(cluster, "n2", without_data=(lost,))
    await until(lambda: len(again.parts.partitions.channels) == 4)
    await until(lambda: ends(again) == ends(master))
    await until(lambda: master.parts.context.role.named == 2)
    for number in range(4):
        log = again.parts.partitions.channels["t", number].log
        await settled(again.parts.partitions.channels["t", number])
        assert whole(log, 0) == whole(master.parts.partitions.channels["t", number].log, 0)
    assert disk.exists(D2 / IDENTITY_NAME)
    assert not disk.exists(D2 / CHECKPOINT_NAME)


async def test_a_full_further_disk_of_a_copy_stops_only_its_partitions(cluster, pair):
    nodes, client = pair
    master, copy = nodes
    homes = by_home(copy)
    Disks(copy, cluster.disks["b1-n2"]).fill(D2, 10)
    before = ends(copy)
    for number in homes[D1]:
        await client.put("t", number, [message(b"x")])
    await until(lambda: all(ends(copy)[n] == ends(master)[n] for n in homes[D1]))
    waiting = asyncio.ensure_future(client.put("t", homes[D2][0], [message(b"x")]))
    await until(lambda: master.parts.context.role.named == 1)
    await waiting
    assert all(ends(copy)[n] == before[n] for n in homes[D2])
