"""T-CRASH for what lies around the logs: identity, epoch, topics' directories, the trash.

    story ──▶ data directory on a recording disk ──▶ power cut at every operation ──▶ open, judge

A broker starts, acts in rising epochs, takes over topics, appends, sees a topic deleted and made
again under its old name, starts again. Whenever the power goes: the directory opens and is the
same one, no epoch that was acted in is forgotten, each topic has what was acknowledged under its
id, and nothing of its namesake. The seed of a failing state is in the assertion's message.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c
import pytest
from support.faults import LONG, times

from vq.broker.replication.epoch_file import EpochFile, read_epoch
from vq.clock import ManualClock
from vq.errors import VqError
from vq.store.directory.directory import DataDirectory, NamesakeFound
from vq.store.disk.memory_disk import DiskOperation, MemoryDisk, keep_all, keep_none
from vq.store.disk.memory_names import RandomChance
from vq.store.log.log import Log
from vq.store.log.log_config import LogConfig
from vq.store.records.record import decode_into, encode_record

pytestmark = pytest.mark.slow

STORIES = times(8, 200)
CHANCES_PER_PREFIX = times(2, 20)
STEPS = 12
DATA = Path("/srv/vq/b1")
TOPICS = ("orders", "audit")
CONFIG = LogConfig(
    block_bytes=4096, checkpoint_bytes=4096, allocate_bytes_min=4096, allocate_bytes_max=8192
)


@dataclass
class Told:
    """What was begun and what was answered, each with the operations recorded by then."""

    identity: list[tuple[int, str]] = field(default_factory=list)
    epochs: list[tuple[int, int, int]] = field(default_factory=list)  # begun, done, epoch
    claims: list[tuple[int, str, str]] = field(default_factory=list)  # begun, topic, id
    appended: list[tuple[int, str, bytes]] = field(default_factory=list)  # begun, id, payload
    acknowledged: list[tuple[int, str, bytes]] = field(default_factory=list)  # done, id, payload


def open_directory(disk: MemoryDisk) -> DataDirectory:
    return DataDirectory.open(DATA, "c", "b1", "n1", disk)


def open_log(disk: MemoryDisk, directory: DataDirectory, topic: str, topic_id: str) -> Log:
    place = directory.log_directory(topic, 0)
    return Log.open(place, topic_id=topic_id, config=CONFIG, disk=disk, clock=ManualClock())


def claimed(directory: DataDirectory, topic: str, topic_id: str) -> None:
    """Claim a topic as a broker does: what lies there of a deleted one goes to the trash."""
    try:
        directory.claim_topic(topic, topic_id)
    except NamesakeFound as found:
        directory.move_topic(topic, found.topic_id, ManualClock(), keep=False)
        directory.claim_topic(topic, topic_id)


def payloads(log: Log) -> list[bytes]:
    found: list = []
    offset = log.start_offset
    while offset < log.end_offset:
        offset = decode_into(log.reader.read(offset, 1 << 20, log.end_offset), offset, found)
    return [record.payload for record in found]


def tell(disk: MemoryDisk, rng: random.Random) -> Told:
    """Do random things with a data directory; return what was done."""
    told = Told()
    ids: dict[str, str] = {}
    logs: dict[str, Log] = {}

    def now() -> int:
        return len(disk.operations)

    def start() -> DataDirectory:
        logs.clear()
        opened = open_directory(disk)
        told.identity.append((now(), opened.identity.id))
        return opened

    def claim(topic: str, topic_id: str) -> None:
        told.claims.append((now(), topic, topic_id))
        claimed(directory, topic, topic_id)
        ids[topic] = topic_id
        logs[topic] = open_log(disk, directory, topic, topic_id)

    def append(topic: str) -> None:
        if topic not in logs:
            claim(topic, ids.get(topic, f"{topic}-1"))
        payload = b"%06d" % len(told.appended) + rng.randbytes(rng.choice((0, 60, 700)))
        told.appended.append((now(), ids[topic], payload))
        body = encode_record(1, payload)
        logs[topic].append(body, record_count=1, records_crc=google_crc32c.value(body), epoch=1)
        ticket = logs[topic].begin_sync()
        assert ticket is not None
        ticket.run()
        logs[topic].finish_sync(ticket)
        told.acknowledged.append((now(), ids[topic], payload))

    directory = start()
    epoch = 0
    for _ in range(STEPS):
        topic = rng.choice(TOPICS)
        match rng.randrange(8):
            case 0:
                for log in logs.values():
                    log.close()
                directory.close()
                directory = start()
            case 1 | 2:
                epoch += 1
                begun = now()
                EpochFile(DATA, disk).store(epoch)
                told.epochs.append((begun, now(), epoch))
            case 3 if topic in logs:
                logs.pop(topic).close()
                claim(topic, f"{topic}-{int(ids[topic].split('-')[1]) + 1}")
            case _:
                append(topic)
    return told


def examine(disk: MemoryDisk, told: Told, at: int) -> list[str]:
    """Open a crashed disk as the broker would; return what is wrong."""
    faults = []
    known = {identity for done, identity in told.identity if done <= at}
    first, facts = None, None
    for _ in range(2):  # recovered twice is recovered once
        try:
            directory = open_directory(disk)
            if known and directory.identity.id not in known:
                faults.append(f"it is another directory: {directory.identity.id}, not {known}")
            acted_in = max((e for _, done, e in told.epochs if done <= at), default=0)
            begun = max((e for begun, _, e in told.epochs if begun < at), default=0)
            epoch = read_epoch(DATA, disk)
            if not acted_in <= epoch <= begun:
                faults.append(f"epoch {epoch}, acted in {acted_in}, begun {begun}")
            held = {}
            for topic in TOPICS:
                ids = [i for claimed, each, i in told.claims if each == topic and claimed < at]
                if not ids:
                    continue
                claimed(directory, topic, ids[-1])
                found = held[topic] = payloads(open_log(disk, directory, topic, ids[-1]))
                appended = [p for begun, i, p in told.appended if i == ids[-1] and begun < at]
                answered = [p for done, i, p in told.acknowledged if i == ids[-1] and done <= at]
                if found != appended[: len(found)]:
                    faults.append(f"{topic} ({ids[-1]}) holds what was not appended to it")
                if len(found) < len(answered):
                    faults.append(f"{topic} has {len(found)} of {len(answered)} acknowledged")
            names = {each.topic for each in directory.topics()}
            facts = (directory.identity.id, epoch, names, held)
        except VqError as error:
            return [*faults, f"{type(error).__name__}: {error}"]
        if first is not None and facts != first:
            faults.append("recovered twice is not recovered once")
        first = facts
        disk = disk.crash(keep_none)
    return faults


def begin(seed: int) -> tuple[MemoryDisk, list[DiskOperation], Told]:
    """Tell a story; return the disk before it, what was done to that, and what was told."""
    disk = MemoryDisk()
    before = disk.crash(keep_all)
    told = tell(disk, random.Random(seed))
    return before, list(disk.operations), told


def crash_everywhere(
    seed: int, stage: MemoryDisk, operations: list[DiskOperation], told: Told
) -> tuple[int, list[str]]:
    """Crash a story at every operation; return the number of states and the faults."""
    states = 0
    for at, _ in enumerate(stage.replay(operations), start=1):
        for number in range(CHANCES_PER_PREFIX):
            chance = RandomChance(random.Random((seed * 10_000 + at) * 100 + number))
            faults = examine(stage.crash(chance), told, at)
            states += 1
            if faults:
                return states, [f"seed {seed}, operation {at}/{number}", *faults]
    return states, []


@pytest.mark.timeout(3600 if LONG else 300)
def test_no_power_cut_forgets_identity_epoch_or_topics() -> None:
    states = 0
    for seed in range(STORIES):
        count, faults = crash_everywhere(seed, *begin(seed))
        states += count
        assert not faults, "\n".join(faults)
    print(states, "states")
    assert states > (50_000 if LONG else 1_000), f"only {states} states: the run is void"


def test_the_judge_notices_names_that_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a broker that syncs no directory forgets identity, epochs and messages."""
    with monkeypatch.context() as patch:
        patch.setattr(MemoryDisk, "sync_directory", lambda disk, path: None)
        stories = [begin(seed) for seed in range(STORIES)]
    found = [line for n, story in enumerate(stories) for line in crash_everywhere(n, *story)[1]]
    assert any("it is another directory" in line for line in found), found


def test_the_judge_notices_files_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a file that is overwritten instead of replaced is found torn, empty or old."""

    def write(disk: MemoryDisk, path: Path, data: bytes) -> None:
        file = disk.open(path, create=not disk.exists(path))
        file.pwrite([data], 0)
        file.datasync()
        file.close()
        disk.sync_directory(path.parent)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDisk, "write_atomic", write)
        stories = [begin(seed) for seed in range(STORIES)]
    assert any(crash_everywhere(n, *story)[1] for n, story in enumerate(stories))
