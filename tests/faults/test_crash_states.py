"""T-CRASH: whenever the power goes, nothing acknowledged is missing and nothing is invented.

    story ──▶ log on a recording disk ──▶ operations o1 o2 o3 … on
                                              │
             for every prefix o1 … ok:        ▼  power cut: un-synced sectors, lengths and names
                                         survive or not, by the toss of a coin
                                              │
                                              ▼
                          open ──▶ judge ──▶ open again: the same ──▶ append, flush, power cut

The short form runs by default; ``VQ_LONG=1`` runs ten times as many stories, and twenty
states for each prefix. The seed of a failing state is in the assertion's message, and the same seed
gives the same state again.
"""

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c
import pytest
from support.store import patiently

from vq.clock import ManualClock
from vq.errors import DiskFull, VqError
from vq.model import ProducerStamp
from vq.store.disk.memory_disk import DiskOperation, MemoryDisk, keep_all, keep_none
from vq.store.disk.memory_names import RandomChance
from vq.store.log.log import Log
from vq.store.log.log_config import LogConfig, LogState
from vq.store.log.ticket import SyncTicket
from vq.store.records.format import CONTROL_BYTES
from vq.store.records.record import decode_into, encode_record

LONG = os.environ.get("VQ_LONG") == "1"
STORIES = 200 if LONG else 20
CHANCES_PER_PREFIX = 20 if LONG else 1
DIRECTORY = Path("/data/orders/0")
CONFIG = LogConfig(
    block_bytes=4096,
    checkpoint_bytes=4096,
    checkpoint_batches=9,
    allocate_bytes_min=4096,
    allocate_bytes_max=8192,
)


@dataclass(frozen=True)
class Batch:
    """One append: where it lies, its payloads, and how many operations were recorded before it."""

    start: int
    end: int
    payloads: tuple[bytes, ...]
    stamp: ProducerStamp | None
    operations_before: int


@dataclass
class History:
    """What was asked of the log and answered, with the number of operations recorded by then."""

    batches: list[Batch] = field(default_factory=list)
    acknowledged: list[tuple[int, int]] = field(default_factory=list)  # (operations, offset)
    dropped: list[tuple[int, int]] = field(default_factory=list)
    serial: int = 0

    def acknowledged_at(self, operations: int) -> int:
        return max((o for at, o in self.acknowledged if at <= operations), default=0)

    def may_be_dropped_at(self, operations: int) -> int:
        return max((o for at, o in self.dropped if at <= operations), default=0)

    def cut(self, end: int) -> None:
        """After a crash: what was not recovered is gone for good."""
        self.batches = [
            Batch(b.start, b.end, b.payloads, b.stamp, 0) for b in self.batches if b.end <= end
        ]
        self.acknowledged = [(0, end)]
        self.dropped = [(0, self.may_be_dropped_at(1 << 60))]


def open_log(disk: MemoryDisk) -> Log:
    return Log.open(DIRECTORY, topic_id="t1", config=CONFIG, disk=disk, clock=ManualClock())


def new_disk() -> MemoryDisk:
    disk = MemoryDisk()
    for parent in disk.mkdir(DIRECTORY.parent):
        disk.sync_directory(parent)
    return disk.crash(keep_all)


class Storyteller:
    """Does random things to a log and writes down what it was told."""

    def __init__(self, disk: MemoryDisk, history: History, rng: random.Random) -> None:
        self.disk = disk
        self.history = history
        self.rng = rng
        self.log = open_log(disk)

    def tell(self, steps: int) -> None:
        acts = [self.append] * 8 + [self.flush] * 3
        acts += [self.overlapped_flush, self.retention, self.reopen, self.full_disk]
        for _ in range(steps):
            self.rng.choice(acts)()

    def append(self) -> None:
        rng, history = self.rng, self.history
        payloads = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            history.serial += 1
            payloads.append(b"%06d" % history.serial + rng.randbytes(rng.choice((0, 60, 700))))
        body = b"".join(encode_record(history.serial, payload) for payload in payloads)
        stamp = None
        if rng.random() < 0.7:
            producer = rng.randint(1, 3)
            sent = sum(1 for b in history.batches if b.stamp and b.stamp.producer_id == producer)
            stamp = ProducerStamp(producer, 0, sent)
        before = len(self.disk.operations)
        start = self.log.append(
            body,
            record_count=len(payloads),
            records_crc=google_crc32c.value(body),
            epoch=1,
            stamp=stamp,
        )
        end = start + CONTROL_BYTES + len(body)
        history.batches.append(Batch(start, end, tuple(payloads), stamp, before))

    def flush(self) -> None:
        ticket = self.log.begin_sync()
        if ticket is not None:
            ticket.run()
            self.log.finish_sync(ticket)
            self._acknowledge()

    def overlapped_flush(self) -> None:
        ticket = self.log.begin_sync()
        self.append()
        if ticket is not None:
            ticket.run()
            self.append()
            self.log.finish_sync(ticket)
            self._acknowledge()

    def retention(self) -> None:
        if self.rng.random() < 0.3:
            self.log.roll()
        target = self.rng.randint(self.log.start_offset, self.log.end_offset)
        self.history.dropped.append((len(self.disk.operations), target))
        patiently(lambda: self.log.drop_before(target))

    def reopen(self) -> None:
        if self.rng.random() < 0.5:
            self.log.close()
            self._acknowledge()
        end = self.log.end_offset
        self.log = open_log(self.disk)
        assert self.log.end_offset == end, "a killed process loses nothing that was written"
        self._acknowledge()

    def full_disk(self) -> None:
        self.disk.capacity_bytes = (
            self.disk.free_space(Path("/"))[1]
            - self.disk.free_space(Path("/"))[0]
            + self.rng.randint(0, 600)
        )
        end = self.log.end_offset
        try:
            self.append()
        except DiskFull:
            assert self.log.state is LogState.OK
            assert self.log.end_offset == end
        finally:
            self.disk.capacity_bytes = None

    def _acknowledge(self) -> None:
        self.history.acknowledged.append((len(self.disk.operations), self.log.synced_offset))


def read_all(log: Log) -> list[tuple[int, bytes]]:
    records, offset = [], log.start_offset
    while offset < log.end_offset:
        found: list = []
        offset = decode_into(log.reader.read(offset, 1 << 20, log.end_offset), offset, found)
        records += [(r.offset, r.payload) for r in found]
    return records


def expected(batches: list[Batch], start: int, end: int) -> list[tuple[int, bytes]]:
    records = []
    for batch in batches:
        if start <= batch.start and batch.end <= end:
            at = batch.start + CONTROL_BYTES
            for payload in batch.payloads:
                records.append((at, payload))
                at += 20 + len(payload)
    return records


def judge(log: Log, history: History, operations: int) -> list[str]:
    """Return what is wrong with a recovered log."""
    faults = []
    if log.state is not LogState.OK:
        return [f"state {log.state}: {log.reason}"]
    if log.end_offset < history.acknowledged_at(operations):
        faults.append(f"acknowledged {history.acknowledged_at(operations)}, has {log.end_offset}")
    if log.start_offset > history.may_be_dropped_at(operations):
        faults.append(f"starts at {log.start_offset}, nobody dropped that")
    possible = [b for b in history.batches if b.operations_before < max(operations, 1)]
    if read_all(log) != expected(possible, log.start_offset, log.end_offset):
        faults.append("holds other records than were appended")
    kept = [b for b in possible if b.start >= log.start_offset and b.end <= log.end_offset]
    if log.messages != sum(len(b.payloads) for b in kept):
        faults.append(f"counts {log.messages} messages")
    counted, _ = patiently(lambda: log.reader.count(log.start_offset, log.end_offset))
    if counted != (log.messages, True):
        faults.append(f"counts {counted}")
    last = {b.stamp.producer_id: b for b in kept if b.stamp}
    return faults + [
        f"does not know {batch.stamp} again"
        for batch in last.values()
        if log.producers.check(batch.stamp) != batch.start
    ]


def facts(log: Log) -> tuple:
    return log.start_offset, log.end_offset, log.messages, log.epoch, read_all(log)


def examine(disk: MemoryDisk, history: History, operations: int, *, deep: bool) -> list[str]:
    """Open a crashed disk, judge it, and see that recovery is repeatable and the log usable."""
    before = disk.crash(keep_all)
    try:
        once = open_log(disk)
        recovery = list(disk.operations)
        faults = judge(once, history, operations)
        first = facts(once)
        twice = open_log(disk)
        if facts(twice) != first or twice.recovery.cut_bytes:
            faults.append("recovered twice is not recovered once")
        if deep:
            faults += crash_while_recovering(before, recovery, history, operations)
        faults += still_usable(disk)
    except VqError as error:
        return [f"{type(error).__name__}: {error}"]
    return faults


def crash_while_recovering(
    stage: MemoryDisk, recovery: list[DiskOperation], history: History, operations: int
) -> list[str]:
    """Cut the power at every operation of a recovery."""
    faults = []
    for at, _ in enumerate(stage.replay(recovery)):
        log = open_log(stage.crash(RandomChance(random.Random(at))))
        faults += [f"during recovery, operation {at}: {f}" for f in judge(log, history, operations)]
    return faults


def still_usable(disk: MemoryDisk) -> list[str]:
    log = open_log(disk)
    body = encode_record(1, b"afterwards")
    start = log.append(body, record_count=1, records_crc=google_crc32c.value(body), epoch=2)
    ticket = log.begin_sync()
    assert ticket is not None
    ticket.run()
    log.finish_sync(ticket)
    after = open_log(disk.crash(keep_none))
    found = [payload for offset, payload in read_all(after) if offset == start + CONTROL_BYTES]
    return [] if found == [b"afterwards"] else ["an append after recovery was lost"]


def crash_everywhere(seed: int, disk: MemoryDisk, *, generations: int) -> tuple[int, list[str]]:
    """Tell a story, crash it at every operation; go on from one of the crashes. Count states."""
    rng = random.Random(seed)
    history = History()
    states = 0
    for generation in range(generations):
        start = disk.crash(keep_all)
        Storyteller(disk, history, rng).tell(12)
        stage = start
        for at, _ in enumerate(stage.replay(list(disk.operations)), start=1):
            for number in range(CHANCES_PER_PREFIX):
                chance_seed = ((seed * 1000 + generation) * 10_000 + at) * 100 + number
                crashed = stage.crash(RandomChance(random.Random(chance_seed)))
                faults = examine(crashed, history, at, deep=number == 0 and at % 7 == 0)
                states += 1
                if faults:
                    return states, [
                        f"seed {seed}, generation {generation}, op {at}/{number}",
                        *faults,
                    ]
        disk = disk.crash(RandomChance(rng))
        log = open_log(disk)
        history.cut(log.end_offset)
        disk = disk.crash(keep_all)
    return states, []


@pytest.mark.slow
@pytest.mark.timeout(7200 if LONG else 300)
def test_no_power_cut_loses_or_invents_a_record() -> None:
    """Every state that a power cut can leave opens with all that was acknowledged."""
    states = 0
    for seed in range(STORIES):
        count, faults = crash_everywhere(seed, new_disk(), generations=2)
        states += count
        assert not faults, "\n".join(faults)
    assert states > (100_000 if LONG else 1_000), f"only {states} states: the run is void"


@pytest.mark.slow
def test_the_judge_notices_a_log_that_does_not_sync_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without fdatasync acknowledged records are lost, and the judge says so."""
    monkeypatch.setattr(SyncTicket, "run", lambda ticket, *, synced=None: None)
    assert any(crash_everywhere(seed, new_disk(), generations=1)[1] for seed in range(5))


@pytest.mark.slow
def test_the_judge_notices_a_log_that_does_not_sync_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without syncing directories acknowledged records are lost, and the judge says so."""
    monkeypatch.setattr(MemoryDisk, "sync_directory", lambda disk, path: None)
    assert any(crash_everywhere(seed, new_disk(), generations=1)[1] for seed in range(5))
