"""Broken variants of vq, each a known way to lose, repeat or reorder messages.

A simulation that does not notice them proves nothing about the real thing. Every mutant patches
production code in the test's process only, and names the faults under which it should show.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from support.simulation.world import Size

from vq.broker.logs import channel_problems, partitions
from vq.broker.logs.channel_logs import ChannelLogs
from vq.broker.logs.logs import Logs
from vq.broker.observe import survey
from vq.broker.partition import puts
from vq.broker.partition.channel import Channel
from vq.broker.partition.copies import Copies
from vq.broker.replication.soundness import Soundness
from vq.broker.serving import moving
from vq.broker.shared.ledger import Now, SharedLedger, SharedSource
from vq.broker.shared.notes import Settlement, SettlementKind
from vq.broker.shared.open_keys import OpenKeys
from vq.broker.shared.shared_journal import SharedJournal
from vq.client.consumer.deliver.delivery import Delivery
from vq.client.consumer.deliver.permit import PermitKeeper
from vq.client.consumer.deliver.progress import Progress
from vq.client.consumer.fetch.fetcher import PartitionFetcher
from vq.client.consumer.group.share import Share
from vq.client.producer.queue.partition_queue import PartitionQueue
from vq.client.reading.chunk import Chunk
from vq.coordination.groups import claims, zookeeper_offsets
from vq.coordination.tree.coordinator import Check, Create, Operation, Set
from vq.coordination.tree.values.consumers import Assignment, CommittedOffset
from vq.errors import NotSent, OffsetOutOfRange, SequenceGap, VqError
from vq.model import ProducerStamp
from vq.store.care.divergence import Diverged
from vq.store.commit.storer import Storer
from vq.store.log import recovery
from vq.store.log.log import Log
from vq.store.log.ticket import SyncTicket
from vq.store.records.producers import ProducerTable
from vq.store.records.scan import is_zero, verify

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A way to break vq, and the faults that bring it to light; in a cluster of this size."""

    name: str
    patch: Patch
    kinds: tuple[str, ...]
    size: Size | None = None

    def __str__(self) -> str:
        return self.name


def _ack_before_fsync(patch: pytest.MonkeyPatch) -> None:
    mark = Storer.mark

    def mark_and_settle(self: Storer, channel: Any) -> None:
        mark(self, channel)
        log = channel.log
        if log is not None and channel.acks.waiting:
            flushing = log.flushing
            synced, flushing.synced_offset = flushing.synced_offset, log.end_offset
            acks, channel.acks.waiting = channel.acks.waiting, deque()
            for ack in acks:
                channel.acks.give(ack.session, ack.request_id, ack.offset, duplicate=ack.duplicate)
            flushing.synced_offset = synced

    patch.setattr(Storer, "mark", mark_and_settle)


def _no_directory_sync(patch: pytest.MonkeyPatch) -> None:
    run = SyncTicket.run

    def run_without(self: SyncTicket, **options: Any) -> None:
        self.directories = []
        run(self, **options)

    patch.setattr(SyncTicket, "run", run_without)


def _failed_fsync_tried_again(patch: pytest.MonkeyPatch) -> None:
    run = SyncTicket.run

    def run_twice(self: SyncTicket, **options: Any) -> None:
        try:
            run(self, **options)
        except OSError:
            run(self, **options)

    patch.setattr(SyncTicket, "run", run_twice)


def _checkpoint_before_data(patch: pytest.MonkeyPatch) -> None:
    run = SyncTicket.run

    def run_reversed(self: SyncTicket, **options: Any) -> None:
        if self.checkpoint is not None:
            self._save_work(self.checkpoint)
            self.checkpoint = None
            return  # and then the power goes: the data of this flush wait for the next one
        run(self, **options)

    patch.setattr(SyncTicket, "run", run_reversed)


def _zeros_are_records(patch: pytest.MonkeyPatch) -> None:
    def verify_kindly(
        file: Any, block_start: int, offset: int, end: int, facts: Any, index: Any
    ) -> int:
        stop = verify(file, block_start, offset, end, facts, index)
        return end if is_zero(file, stop - block_start, end - block_start) else stop

    patch.setattr(recovery, "verify", verify_kindly)


def _producers_forgotten(patch: pytest.MonkeyPatch) -> None:
    recover = Log.__init__

    def forget(self: Log, *arguments: Any, **options: Any) -> None:
        recover(self, *arguments, **options)
        self.producers = ProducerTable()

    patch.setattr(Log, "__init__", forget)


def _resends_not_recognised(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerTable, "check", lambda _table, _stamp: None)


def _gaps_accepted(patch: pytest.MonkeyPatch) -> None:
    check = ProducerTable.check

    def check_kindly(self: ProducerTable, stamp: ProducerStamp) -> int | None:
        try:
            return check(self, stamp)
        except SequenceGap:
            return None

    patch.setattr(ProducerTable, "check", check_kindly)


def _unflushed_readable(patch: pytest.MonkeyPatch) -> None:
    put = puts.put

    def put_and_show(self: Channel, *arguments: Any) -> None:
        put(self, *arguments)
        if self.log is not None:
            self.move_high_watermark(self.log.end_offset)

    patch.setattr(puts, "put", put_and_show)


def _unseal_keeps_version(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> None:
        return

    patch.setattr(moving, "touch_partition", nothing)


def _adopt_unchecked(patch: pytest.MonkeyPatch) -> None:
    for module in (moving, partitions):
        patch.setattr(module, "check_placement_version", lambda *_: None)
    patch.setattr(ChannelLogs, "_check_current", lambda *_: None)
    patch.setattr(Channel, "unprepared", False)


def _seal_not_durable(patch: pytest.MonkeyPatch) -> None:
    make = Log._make_checkpoint
    patch.setattr(Log, "_make_checkpoint", lambda log: replace(make(log), sealed=False))


def _commit_unguarded(patch: pytest.MonkeyPatch) -> None:
    def operations(claimed: claims.Claim, offset: CommittedOffset) -> list[Operation]:
        topic, number = claimed.partition
        path = CommittedOffset.path(claimed.group, topic, number)
        fence = Check(Assignment.path(claimed.group, topic, number), -1)
        if claimed.offset_version is None:
            return [fence, Create(path, offset.encode())]
        return [fence, Set(path, offset.encode(), -1)]

    patch.setattr(zookeeper_offsets, "commit_operations", operations)


def _owner_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claims, "is_held_by", lambda *_: True)


def _released_before_drained(patch: pytest.MonkeyPatch) -> None:
    give_up = Share.give_up

    async def release_first(self: Share, holds: Any) -> None:
        leaving = list(holds)
        for hold in leaving:
            await claims.release(self._coordinator, hold.claim)
        await give_up(self, leaving)

    patch.setattr(Share, "give_up", release_first)


def _commit_ahead(patch: pytest.MonkeyPatch) -> None:
    add, ends = Delivery.add, WeakKeyDictionary[Delivery, int]()

    def add_and_finish(self: Delivery, chunk: Chunk) -> None:
        add(self, chunk)
        ends[self] = chunk.next_offset

    def progress(self: Delivery) -> Progress:
        return Progress(ends[self]) if self in ends else self.window.place()

    patch.setattr(Delivery, "add", add_and_finish)
    patch.setattr(Delivery, "progress", progress)


def _unknown_called_refused(patch: pytest.MonkeyPatch) -> None:
    def given_up(self: PartitionQueue, _batch: Any) -> VqError:
        return NotSent(f"{self.partition}: not sent within its deadline")

    patch.setattr(PartitionQueue, "_given_up", given_up)


def _out_of_range_begins_anew(patch: pytest.MonkeyPatch) -> None:
    failed = PartitionFetcher.failed

    def begin_anew(self: PartitionFetcher, error: VqError) -> None:
        if isinstance(error, OffsetOutOfRange):
            self.position = 0
        failed(self, error)

    patch.setattr(PartitionFetcher, "failed", begin_anew)


def _permit_never_lapses(patch: pytest.MonkeyPatch) -> None:
    def extend(self: PermitKeeper, _since: float) -> None:
        self._permit.until = math.inf

    patch.setattr(PermitKeeper, "_extend", extend)
    patch.setattr(PermitKeeper, "revoke", lambda _: None)


def _shown_before_copied(patch: pytest.MonkeyPatch) -> None:
    committed = Channel.committed

    def committed_here(self: Channel, log: Log) -> int:
        if self.acknowledges_alone:
            return max(self.high_watermark, self._stored(log))
        return committed(self, log)

    patch.setattr(Channel, "committed", committed_here)


def _master_alone_in_all_topics(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Channel, "acknowledgeable", lambda self, log, _: self._stored(log))


def _cut_bytes_thrown_away(patch: pytest.MonkeyPatch) -> None:
    cut_back = Logs.cut_back

    def cut_and_forget(self: Logs, *arguments: Any) -> list[Diverged]:
        files = cut_back(self, *arguments)
        for each in files:
            self._disk.unlink(each.path)
        return files

    patch.setattr(Logs, "cut_back", cut_and_forget)


def _loss_not_told(patch: pytest.MonkeyPatch) -> None:
    for module in (channel_problems, survey):
        patch.setattr(module, "lost_in_take_overs", lambda _: [])


def _positions_outlive_their_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Copies, "begin_epoch", lambda _: None)


def _full_node_does_not_tell(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Soundness, "disk_full", False)


def _late_acknowledgement_taken(patch: pytest.MonkeyPatch) -> None:
    held_of = SharedSource.held_of
    patch.setattr(SharedSource, "held_of", lambda self, run, _: held_of(self, run, Now(-1, 0)))


def _lease_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    def now(self: SharedJournal) -> Now:
        return Now(self._clock.wall_ms(), self._clock.wall_ms())

    patch.setattr(SharedJournal, "_now", now)


def _leases_not_begun_again(patch: pytest.MonkeyPatch) -> None:
    def lapse(self: SharedLedger, now: Now) -> None:
        for group in self.groups.values():
            for source in group.sources.values():
                for run in source.runs:
                    run.until_ms = min(run.until_ms, now.ms)

    patch.setattr(SharedLedger, "begin_to_lead", lapse)


def _count_lost_with_its_node(patch: pytest.MonkeyPatch) -> None:
    begin_to_lead = SharedLedger.begin_to_lead

    def forget(self: SharedLedger, now: Now) -> None:
        begin_to_lead(self, now)
        for group in self.groups.values():
            for source in group.sources.values():
                for run in source.runs:
                    run.deliveries = 0

    patch.setattr(SharedLedger, "begin_to_lead", forget)


def _settled_before_committed(patch: pytest.MonkeyPatch) -> None:
    async def at_once(_: SharedJournal) -> None:
        return

    patch.setattr(SharedJournal, "_until_committed", at_once)


def _unread_messages_have_no_key(patch: pytest.MonkeyPatch) -> None:
    def waits(self: OpenKeys, number: int) -> bool:
        key = self._of.get(number, 0)
        return key != 0 and self._messages[key][0] != number

    patch.setattr(OpenKeys, "waits", waits)


def _failure_frees_its_key(patch: pytest.MonkeyPatch) -> None:
    settle = SharedSource.settle

    def settle_and_free(self: SharedSource, run: Settlement, now: Now) -> None:
        settle(self, run, now)
        if self.keys is not None and run.kind is SettlementKind.RELEASE:
            self.tell_keys(run.first, [0] * run.messages)

    patch.setattr(SharedSource, "settle", settle_and_free)


#: Three nodes, of which a link can be silent.
TRIO = Size(brokers=1, partitions=2, producers=3, members=1, copies=2)
#: With copies, and a topic whose messages the master acknowledges alone; what loses some of them.
FAST = Size(copies=1, fast=True)
TAKE_OVERS = ("kill broker", "slow disk", "pause")
#: With a shared group.
SHARED = Size(brokers=1, partitions=2, members=1, shared=3)
KEYED = replace(SHARED, keyed=True)
#: Named by tests of their own; a healthy cluster never gets there by itself, or hardly ever.
PERMIT_NEVER_LAPSES = Mutant("the permit never lapses", _permit_never_lapses, ())
OUT_OF_RANGE_BEGINS_ANEW = Mutant("out of range begins anew", _out_of_range_begins_anew, ())
FULL_NODE_DOES_NOT_TELL = Mutant(
    "a full node does not tell", _full_node_does_not_tell, ("full heir",), TRIO
)

MUTANTS = (
    Mutant("acknowledged before fsync", _ack_before_fsync, ("power cut", "slow disk")),
    Mutant("directories not synced", _no_directory_sync, ("power cut",)),
    Mutant("failed fsync tried again", _failed_fsync_tried_again, ("failing disk",)),
    Mutant("checkpoint before data", _checkpoint_before_data, ("power cut",)),
    Mutant("zeros are records", _zeros_are_records, ("power cut", "kill broker")),
    Mutant("producers forgotten", _producers_forgotten, ("kill broker", "slow disk")),
    Mutant("resends not recognised", _resends_not_recognised, ("reset",)),
    Mutant("gaps accepted", _gaps_accepted, ("full disk", "slow disk")),
    Mutant("unflushed bytes readable", _unflushed_readable, ("power cut", "slow disk")),
    Mutant("unseal keeps the version", _unseal_keeps_version, ("move", "cut")),
    Mutant("adopt not checked", _adopt_unchecked, ("sleepy mover", "watches")),
    Mutant("seal not durable", _seal_not_durable, ("move", "kill broker")),
    Mutant("commit unguarded", _commit_unguarded, ("pause", "expire")),
    Mutant("owner not waited for", _owner_not_waited_for, ("leave",)),
    Mutant("released before drained", _released_before_drained, ("leave",)),
    Mutant("commit ahead of delivery", _commit_ahead, ("leave", "client dies")),
    Mutant("unknown called refused", _unknown_called_refused, ("cut", "reset")),
    Mutant("shown before it is copied", _shown_before_copied, TAKE_OVERS, FAST),
    Mutant("master alone in all topics", _master_alone_in_all_topics, TAKE_OVERS, FAST),
    Mutant("cut bytes thrown away", _cut_bytes_thrown_away, TAKE_OVERS, FAST),
    Mutant("loss not told", _loss_not_told, TAKE_OVERS, FAST),
    Mutant("positions outlive their epoch", _positions_outlive_their_epoch, ("silent link",), TRIO),
    FULL_NODE_DOES_NOT_TELL,
    Mutant("late acknowledgement taken", _late_acknowledgement_taken, ("slow disk",), SHARED),
    Mutant("lease by the wall clock", _lease_by_the_wall_clock, ("clocks",), SHARED),
    Mutant("leases not begun again", _leases_not_begun_again, ("kill broker",), SHARED),
    Mutant("count lost with its node", _count_lost_with_its_node, ("kill broker",), SHARED),
    Mutant("unread messages have no key", _unread_messages_have_no_key, ("kill broker",), KEYED),
    Mutant("failure frees its key", _failure_frees_its_key, ("reset",), KEYED),
    Mutant(
        "settled before committed", _settled_before_committed, ("power cut", "slow disk"), SHARED
    ),
)
