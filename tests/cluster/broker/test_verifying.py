"""Damage in what was stored: reported by readers, looked for by operators, told by STATUS."""

import asyncio
import copy
import logging
from types import SimpleNamespace

import pytest
from support.broker import Client, MemoryCluster, message

from vq import limits
from vq.broker.base import steps
from vq.broker.health import verifying
from vq.broker.health.known_damage import RANGES_MAX, Known
from vq.broker.health.verifying import REPORTS_BURST
from vq.broker.observe.exposure import Exposure
from vq.broker.observe.status import RANGES_PER_ANSWER, RANGES_PER_PARTITION, StatusReport
from vq.coordination.topics.topics import delete_topic
from vq.errors import Busy, InvalidRequest, PartitionFailed, VqError
from vq.model import TopicPartition
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import FLAG_HESSIAN, Command
from vq.remoting.messages import encode_header
from vq.store.care.walk import BadRange
from vq.store.log.log_config import LogState
from vq.store.records.format import CONTROL_BYTES
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time


async def _fill(client: Client, batches: int = 10) -> list[int]:
    """Put batches of two messages; return the offsets of their first records."""
    return [
        (await client.put("t", 0, [message(b"x" * 200, n), message(b"y" * 200, n)])).offset
        for n in range(batches)
    ]


def _overwrite(served, offset: int, data: bytes) -> str:
    """Change stored bytes behind the broker's back; return the file's name."""
    log = served.node.parts.partitions.channels["t", 0].log
    piece = next(p for p in log.reader.pieces(0, log.end_offset) if p.start <= offset < p.end)
    file = served.cluster.disks["b1"].open(piece.path)
    file.pwrite([data], offset - piece.block_start)
    file.close()
    return str(piece.path)


async def _verify(client: Client, **fields) -> wire.VerifyResponse:
    request = wire.VerifyRequest(topic="t", partition=0, **fields)
    return (await client.call(Command.VERIFY, request))[0]  # type: ignore[return-value]


async def _pass(served, client: Client | None = None) -> wire.VerifyResponse:
    """Have everything verified and wait for the end."""
    client = client or served.client
    topic_id = served.node.parts.partitions.channels["t", 0].topic_id
    await _verify(client, whole=True, begin=True, topic_id=topic_id)
    while (response := await _verify(client, whole=True)).running:
        await asyncio.sleep(0.001)
    return response


async def _status_damage(client: Client) -> list:
    status = await client.status(with_partitions=True)
    return list(status.partitions[0].damage)


async def test_a_report_of_damage_is_looked_into_and_told(served, caplog):
    """The range, the file and the reason are in the answer, in STATUS and once in the log."""
    starts = await _fill(served.client)
    name = _overwrite(served, starts[4] + 30, b"damage")
    for _ in range(2):
        (found,) = (await _verify(served.client, offset=starts[4])).damage
    assert (found.start, found.end) == (starts[4] - CONTROL_BYTES, starts[5] - CONTROL_BYTES)
    assert found.file == name
    assert "CRC" in found.reason
    assert found.found_ms > 1_700_000_000_000
    assert await _status_damage(served.client) == [found]
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "docs/howto/repair-damage.md" in errors[0].getMessage()
    assert (await served.client.status(with_partitions=True)).partitions[0].state == "rw"


async def test_a_report_of_what_is_intact_finds_nothing(served, caplog):
    """It is logged: then the way to the reader damages data."""
    starts = await _fill(served.client)
    _overwrite(served, starts[4] + 30, b"damage")
    assert not (await _verify(served.client, offset=starts[3])).damage
    assert not await _status_damage(served.client)
    assert "reported damage is not on the disk" in caplog.text


async def test_a_report_outside_the_log_is_refused(served):
    """Nothing is read for it."""
    with pytest.raises(InvalidRequest):
        await _verify(served.client, offset=0)
    starts = await _fill(served.client)
    with pytest.raises(InvalidRequest):
        await _verify(served.client, offset=starts[-1] + 10_000)


async def test_reports_have_a_budget(served):
    """However many come, few are looked into; what is known costs nothing."""
    starts = await _fill(served.client, REPORTS_BURST + 10)
    _overwrite(served, starts[0] + 30, b"damage")
    await _verify(served.client, offset=starts[0])
    refused = 0
    for offset in starts[1:]:
        try:
            await _verify(served.client, offset=offset)
        except Busy:
            refused += 1
    assert refused >= 5
    assert (await _verify(served.client, offset=starts[0])).damage


async def test_reports_of_one_place_share_one_look(served, monkeypatch):
    """A group of readers that all stand there costs one."""
    starts = await _fill(served.client)
    _overwrite(served, starts[4] + 30, b"damage")
    monkeypatch.setattr(verifying, "REPORTS_BURST", 1)
    served.node.parts.verifier.tokens = 1.0
    answers = await asyncio.gather(*(_verify(served.client, offset=starts[4]) for _ in range(20)))
    assert all(len(answer.damage) == 1 for answer in answers)


async def test_a_pass_finds_all_damage(served):
    """Wherever it is; asked again it tells the same."""
    starts = await _fill(served.client, 20)
    for number in (0, 7, 19):
        _overwrite(served, starts[number] + 30, b"damage")
    response = await _pass(served)
    assert [each.start + CONTROL_BYTES for each in response.damage] == [
        starts[0],
        starts[7],
        starts[19],
    ]
    assert response.verified_bytes == response.total_bytes > 0
    assert list((await _verify(served.client, whole=True)).damage) == list(response.damage)
    assert await _status_damage(served.client) == list(response.damage)


async def test_what_was_verified_lately_is_not_read_again(served):
    """A client that asks all day costs one pass; what is new is read."""
    await _fill(served.client)
    first = await _pass(served)
    again = await _pass(served)
    assert first.skipped_bytes == again.total_bytes == 0
    assert again.skipped_bytes == first.total_bytes
    await _fill(served.client, 1)
    third = await _pass(served)
    assert third.skipped_bytes == first.total_bytes
    assert third.total_bytes == first.total_bytes // 10


async def test_a_block_that_is_gone_or_short_is_found_whatever_was_verified_lately(served):
    """Every pass looks whether the files are there with their size."""
    starts = await _fill(served.client)
    log = served.node.parts.partitions.channels["t", 0].log
    (piece,) = log.reader.pieces(0, log.end_offset)
    assert not (await _pass(served)).damage
    file = served.disk.open(piece.path)
    file.truncate(starts[6] - CONTROL_BYTES)
    (short,) = (await _pass(served)).damage
    assert (short.start, short.end) == (starts[6] - CONTROL_BYTES, log.end_offset)
    served.disk.unlink(piece.path)
    (gone,) = (await _pass(served)).damage
    assert (gone.start, gone.end, gone.file) == (0, log.end_offset, str(piece.path))


async def test_a_pass_reads_everything_again_when_asked(served):
    """Also one that is under way."""
    starts = await _fill(served.client)
    first = await _pass(served)
    _overwrite(served, starts[4] + 30, b"damage")
    assert not (await _pass(served)).damage
    topic_id = served.node.parts.partitions.channels["t", 0].topic_id
    await _verify(served.client, whole=True, begin=True, topic_id=topic_id)
    await _verify(served.client, whole=True, begin=True, again=True, topic_id=topic_id)
    while (again := await _verify(served.client, whole=True)).running:
        await asyncio.sleep(0.001)
    assert (again.verified_bytes, again.skipped_bytes) == (first.total_bytes, 0)
    assert len(again.damage) == 1
    assert not again.unverified


async def test_what_lies_behind_the_damage_of_a_quarantined_log_is_told_as_unverified(served):
    """Nobody can look there."""
    await _fill(served.client)
    channel = served.node.parts.partitions.channels["t", 0]
    status = channel.log.status
    status.state, status.reason = LogState.QUARANTINED, "a block is gone"
    channel.apply(channel.settings, channel.placement, channel.placement_version)
    response = await _pass(served)
    assert not response.damage
    assert "quarantined" in response.unverified
    assert "a block is gone" in response.unverified


async def test_a_pass_that_fails_says_so(served, monkeypatch):
    """Nothing is taken for intact that was not read."""
    await _fill(served.client)

    def broken(self):
        raise RuntimeError("a bug")

    monkeypatch.setattr(verifying.Walk, "step", broken)
    assert "a bug" in (await _pass(served)).unverified


async def test_a_pass_forgets_damage_that_is_put_right(served):
    """Damaged blocks are read again in every pass."""
    starts = await _fill(served.client)
    log = served.node.parts.partitions.channels["t", 0].log
    good = bytes(log.reader.read(starts[4] + 30, 6, starts[4] + 36))
    _overwrite(served, starts[4] + 30, b"damage")
    assert len((await _pass(served)).damage) == 1
    _overwrite(served, starts[4] + 30, good)
    assert not (await _pass(served)).damage
    assert not await _status_damage(served.client)


async def test_a_pass_needs_the_id_of_the_topic(served):
    """Who does not read ZooKeeper cannot make a broker read everything."""
    await _fill(served.client)
    with pytest.raises(InvalidRequest, match="topic_id"):
        await _verify(served.client, whole=True, begin=True)
    assert not (await _verify(served.client, whole=True)).begun_ms


class Pauses:
    """Holds a pass in its pauses, and keeps how long they were to be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds: list[float] = []
        self.over = asyncio.Event()
        monkeypatch.setattr(steps, "asyncio", SimpleNamespace(sleep=self._sleep))

    async def _sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await self.over.wait()


async def test_a_pass_is_slow(cluster: MemoryCluster, monkeypatch):
    """As the setting says; reports do not wait for it."""
    node = await cluster.start(verify_bytes_per_s=20_000)
    await cluster.create_topic("t")
    await until(lambda: node.parts.partitions.channels)
    client = await Client.connect(cluster.network, node.address)
    starts = await _fill(client, 20)
    topic_id = node.parts.partitions.channels["t", 0].topic_id
    pauses = Pauses(monkeypatch)
    await _verify(client, whole=True, begin=True, topic_id=topic_id)
    await until(lambda: pauses.seconds)
    assert (await _verify(client, offset=starts[3])).running
    pauses.over.set()
    await until_true(lambda: _has_ended(client))
    size = (await _verify(client, whole=True)).verified_bytes
    assert size > 8_000
    assert sum(pauses.seconds) == pytest.approx(size / 20_000)


async def _has_ended(client: Client) -> bool:
    return not (await _verify(client, whole=True)).running


async def test_a_pass_ends_with_its_topic(served, caplog, monkeypatch):
    """Files that went away with it are no damage."""
    await _fill(served.client)
    topic_id = served.node.parts.partitions.channels["t", 0].topic_id
    pauses = Pauses(monkeypatch)
    await _verify(served.client, whole=True, begin=True, topic_id=topic_id)
    await until(lambda: pauses.seconds)
    async with served.cluster.admin() as coordinator:
        await delete_topic(coordinator, "t")
    await until(lambda: ("t", 0) not in served.node.parts.partitions.channels)
    assert served.node.parts.verifier.busy
    pauses.over.set()
    await until(lambda: not served.node.parts.verifier.busy)
    assert "damage" not in caplog.text
    with pytest.raises(VqError):
        await _verify(served.client, whole=True)


async def test_what_was_verified_is_forgotten_with_its_topic(served):
    """Topics may come and go for ever."""
    channels, verifier = served.node.parts.partitions.channels, served.node.parts.verifier
    for _ in range(3):
        starts = await _fill(served.client)
        _overwrite(served, starts[4] + 30, b"damage")
        assert (await _pass(served)).damage
        channel = channels["t", 0]
        assert (list(verifier.passes), list(verifier._known)) == ([channel], [channel.log])
        async with served.cluster.admin() as coordinator:
            await delete_topic(coordinator, "t")
        await until(lambda: ("t", 0) not in channels)
        await served.cluster.create_topic("t")


@pytest.mark.parametrize("tags", [[], ["x"]])
async def test_a_block_that_a_reader_finds_missing_is_damage(served, caplog, tags):
    """The error names range and file; STATUS has it; the log names the partition, once a block."""
    starts = await _fill(served.client, 1)
    log = served.node.parts.partitions.channels["t", 0].log
    log.roll()
    await _fill(served.client)
    first, *rest = log.reader.pieces(0, log.end_offset)
    assert rest
    log.reader.block_at(0).close()
    served.disk.unlink(first.path)
    for _ in range(3):
        with pytest.raises(PartitionFailed, match=rf"cannot be read.*\[0, {first.end}\)") as caught:
            await served.client.get("t", 0, starts[0], tags=tags)
    assert str(first.path) in str(caught.value)
    await until(lambda: not served.node.parts.verifier.busy)
    (found,) = await _status_damage(served.client)
    assert (found.start, found.end, found.file) == (0, first.end, str(first.path))
    assert caplog.text.count("read failed partition=t-0") == 1
    assert caplog.text.count("damage found partition=t-0 start=0 ") == 1
    assert (await served.client.get("t", 0, rest[0].start, tags=tags))[0]


async def test_damage_met_by_the_broker_itself_is_looked_into(served):
    """A filter that stumbles over it tells STATUS, too."""
    starts = await _fill(served.client)
    _overwrite(served, starts[4] + 16, b"\xff" * 4)  # the flag of a record
    with pytest.raises(VqError):
        await served.client.get("t", 0, starts[4], tags=["x"])
    await until(lambda: not served.node.parts.verifier.busy)
    (found,) = await _status_damage(served.client)
    assert found.start == starts[4] - CONTROL_BYTES


def test_the_ranges_of_a_log_are_bounded():
    """What is more goes to the last one."""
    known = Known(None)  # type: ignore[arg-type]
    damage = [BadRange(n * 10, n * 10 + 5, None, "why") for n in range(200)]  # type: ignore[arg-type]
    assert known.replace(0, 2_000, damage, 7) == damage
    assert len(known.damage) == RANGES_MAX
    assert known.damage[-1][0].end == 1_995
    assert known.find(1_500) is not None


class DamagedEverywhere:
    """A disk on which nothing is intact, as ``Verifier`` tells of it."""

    def damage(self, channel, *, at_most=None) -> list[wire.DamagedRange]:
        path = f"/srv/vq/{channel.partition.topic}/{channel.partition.partition}/{0:020d}.block"
        found = [
            wire.DamagedRange(
                start=n, end=n + 500, file=path, reason="several ranges", found_ms=2**41
            )
            for n in range(RANGES_MAX)
        ]
        return found[:at_most]

    def count_damage(self, channel) -> int:
        return RANGES_MAX


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("name", ["n", "n" * limits.NAME_CHARS_MAX])
async def test_status_tells_of_all_partitions_however_many(served, monkeypatch, damaged, name):
    """In several answers that each fit; of damage the first ranges and how many there are."""
    parts = served.node.parts
    template = parts.partitions.channels["t", 0]
    channels = {}
    for number in range(limits.PARTITIONS_PER_TOPIC_MAX):
        channel = channels[name, number] = copy.copy(template)
        channel.partition = TopicPartition(name, number)
    report = StatusReport(
        parts.facts,
        parts.vitals,
        channels,
        follower=parts.follower,
        retainer=parts.upkeep.retainer,
        verifier=DamagedEverywhere() if damaged else parts.verifier,  # type: ignore[arg-type]
        clock=parts.context.clock,
        exposure=Exposure(served.node.config, parts.server, parts.authority),
    )
    request, told, ranges = wire.StatusRequest(with_partitions=True), [], 0
    for flags in (0, FLAG_HESSIAN):
        request.after_topic, told = "", []
        while True:
            answer = report.report(request)
            header = encode_header(Command.STATUS, answer, flags)
            assert len(header) < 0.6 * limits.FRAME_HEADER_BYTES_MAX
            told += answer.partitions
            ranges = max(ranges, sum(len(each.damage) for each in answer.partitions))
            if not answer.more:
                break
            last = answer.partitions[-1]
            request.after_topic, request.after_partition = last.topic, last.partition
    assert [each.partition for each in told] == list(range(limits.PARTITIONS_PER_TOPIC_MAX))
    assert {each.damaged_ranges for each in told} == {RANGES_MAX if damaged else 0}
    assert max(len(each.damage) for each in told) == (RANGES_PER_PARTITION if damaged else 0)
    assert ranges == (RANGES_PER_ANSWER if damaged else 0)
