"""Names that a peer chooses: they become no path, on no disk and in no tree, and tell nothing."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.access import allow, believe_names, connect_as
from support.broker import Client, MemoryCluster, memory_cluster
from support.cases import case
from support.fetch_requests import add

from vq.broker.base.config import Authorization
from vq.errors import InvalidRequest, VqError
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_error
from vq.store.disk.memory_disk import MemoryDirectory, MemoryDisk
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

#: The mark is looked for in names on disks and in the tree.
MARK: Final = "evil"
NAMES: Final = (
    f"../../{MARK}",
    f"..{'/..' * 20}/etc/cron.d/{MARK}",
    f"/{MARK}",
    f"t/../{MARK}",
    f"{MARK}\0.txt",
    f"{MARK}\n",
    f"{MARK}%2e%2e%2f",
    f"\uff0e\uff0e\uff0f{MARK}",  # full-width dots, which NFKC makes "../"
    f"{MARK}{'x' * 201}",
    f"$({MARK})",
    ".",
    "..",
)
#: They list what is there of a name, or behind it: nothing.
_LISTS: Final = {Command.STATUS, Command.BLOCKS, Command.ARCHIVE, Command.DIVERGED}
#: Commands of the connection itself, which are over.
_BEFORE: Final = {Command.HELLO, Command.PROVE, Command.AUTHENTICATE}


def paths_of(disk: MemoryDisk) -> Iterator[str]:
    def below(path: Path) -> Iterator[str]:
        yield str(path)
        found = disk.find(path)
        if isinstance(found, MemoryDirectory):
            for name in disk.listdir(path):
                yield from below(path / name)

    yield from below(Path("/"))


def every_path(cluster: MemoryCluster) -> set[str]:
    """Return all names on all disks and in ZooKeeper."""
    tree = cluster.ensemble.tree
    found, left = set(), [""]
    while left:
        path = left.pop()
        found.add(path)
        left += [f"{path}/{name}".lstrip("/") for name in tree.children(path)]
    for disk in cluster.disks.values():
        found |= set(paths_of(disk))
    return found


def named(command: Command, name: str) -> Any:
    """Return a request that has a name in each field of text; None: it has no such field."""
    header = command.request()
    texts = [
        each.name
        for each in header.DESCRIPTOR.fields
        if each.type == each.TYPE_STRING and not each.is_repeated
    ]
    for field in texts:
        setattr(header, field, name)
    if command in {Command.FETCH, Command.REPLICATE}:
        header.session = 1
        header.partitions.append(add(0, topic=name))
    elif not texts:
        return None
    return header


async def answer_of(client: Client, command: Command, header: Any) -> VqError | None:
    frame = await client.send(command, header)
    if frame.status:
        return decode_error(frame.status, frame.header, 0)
    if command in {Command.FETCH, Command.REPLICATE}:
        answer = command.response.FromString(frame.header)
        return VqError() if all(each.status for each in answer.results) else None
    return None


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster() as made:
        await made.start()
        await made.create_topic("t")
        yield made


@pytest.mark.parametrize("who", ["anybody", "a member of the group"])
async def test_no_name_of_a_request_becomes_a_path(cluster: MemoryCluster, who: str) -> None:
    """Every command of the table, with such names in each of its fields of text."""
    client = await connect_as(cluster, cluster.nodes["b1"])
    if who != "anybody":
        await cluster.prove(client, "b1", "n2")
    before = every_path(cluster)
    tried = 0
    for command in Command:
        if command in _BEFORE:
            continue
        for name in NAMES:
            header = named(command, name)
            if header is None:
                continue
            with case(command, name):
                error = await answer_of(client, command, header)
                assert error is not None or command in _LISTS
                assert not client.closed.is_set()
                tried += 1
    assert tried > 15 * len(NAMES)
    after = every_path(cluster)
    assert after - before <= {"/data/t", "/data/t/topic.json"}, "of the topic that there is"
    assert not any(MARK in each or ".." in each for each in after)


async def test_a_client_with_such_a_name_is_not_taken(cluster: MemoryCluster) -> None:
    before = every_path(cluster)
    for name in NAMES:
        with case(name):
            _, client = await cluster.network.at("client").connect(
                cluster.nodes["b1"].address, Client
            )
            client.transport.writelines(client.connection.hello(client_id=name[:1_000]))
            await until(client.closed.is_set)
            assert isinstance(client.closing, InvalidRequest)
            assert "\n" not in str(client.closing)
    assert every_path(cluster) == before


async def test_a_name_cannot_be_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a right a topic that is there and one that is not have the same answer."""
    believe_names(monkeypatch)
    async with memory_cluster() as made:
        await made.start(authorization=Authorization.ENFORCED)
        await made.create_topic("there-is")
        await allow(made, "allow user:alice read,write topic:own")
        client = await connect_as(made, made.nodes["b1"], "alice")
        for command in (
            Command.PUT,
            Command.GET,
            Command.FIND,
            Command.OFFSETS,
            Command.VERIFY,
            Command.BLOCKS,
            Command.CANCEL,
        ):
            answers = []
            for topic in ("there-is", "there-no"):
                frame = await client.send(command, command.request(topic=topic))
                error = decode_error(frame.status, frame.header, 0)
                answers.append((frame.status, str(error).replace(topic, "TOPIC"), frame.body))
            with case(command):
                assert answers[0] == answers[1]
                assert answers[0][0] != 0
        fetched = wire.FetchRequest(
            session=1, partitions=[add(0, topic="there-is"), add(0, topic="there-no", handle=1)]
        )
        frame = await client.send(Command.FETCH, fetched)
        results = wire.FetchResponse.FromString(frame.header).results
        assert len({each.status for each in results}) == 1
