"""One partition on its broker: its state, its flushes, how far readers see, and who waits.

``puts`` handles PUTs, ``reading`` GETs, ``copied`` what a master sent. Its state, and what that
allows, comes from the tables of ``partition_state``; only the channel writes it. All of it runs on
the event loop.

The high watermark (HW) is where readers stop: the end of what all nodes in sync have stored, which
is what is durable with flush ``sync``, and what is written with ``async`` (see ``counts_flushed``).
It never goes back, also when the setting changes. With replication ``sync``, acknowledgements stop
there, too, and wait while fewer nodes than ``min_insync`` are in sync; with ``async`` they go up to
what this node has stored.
"""

from collections.abc import Callable, Mapping
from typing import Final

from vq.broker.base.parked import Parked, Woken, wake_all
from vq.broker.partition.acknowledgements import Acknowledgements
from vq.broker.partition.context import Context
from vq.broker.partition.copies import Copies
from vq.broker.partition.flush_due import FlushDue
from vq.broker.partition.partition_state import (
    RULES,
    ChannelEvent,
    ChannelState,
    Rules,
    found,
    local_span,
    next_state,
    placed,
)
from vq.broker.partition.replica_rules import acknowledges, counts_flushed
from vq.broker.partition.replica_rules import committed as all_have
from vq.broker.standing.role import Role
from vq.errors import Busy, StaleEpoch, StorageFailed, VqError
from vq.log_lines import get_logger
from vq.model import (
    FlushMode,
    PartitionPlacement,
    PartitionState,
    Replication,
    TopicPartition,
    TopicSettings,
)
from vq.store.log.log import Log
from vq.store.log.log_config import LogState
from vq.store.log.ticket import SyncTicket

logger = get_logger(__name__)

# Looked up for each batch.
_SYNC: Final = FlushMode.SYNC
_ALONE: Final = Replication.ASYNC  # the master alone acknowledges
_FAILED: Final = LogState.FAILED
_new: Final = tuple.__new__  # of a named tuple: the same without its Python-level wrapper


class Channel:
    """One partition of which this group holds at least a part.

    Attributes:
        partition, topic_id, settings: Of the partition and its topic.
        role: What this node is in the group that holds it; its epoch is stamped into every batch.
        placement, placement_version: As last read from ZooKeeper.
        span: The part of the placement that this group holds; the last one when there are several.
        state: See ``partition_state``. Nobody else writes it.
        cause: The error that ended the partition; None while its state is not one of these ends.
        place: The data directory that has its logs.
        log: None until something is to be read from or written to disk.
        older: Earlier ranges, in rising order, with a gap before the next one.
        earlier: This is one of these.
        start_offset: First offset of ``log``.
        high_watermark: Where readers stop. Invariant: start_offset <= it <= end of the log.
        epoch_start: Where the log ended when this node began to lead, or when it was opened since.
        needed: From which offset on this node itself needs the log; None: it does not.
        own_tag: Messages with this tag are this node's own, and taken of no client; None: there is
            no such tag.
        flushing: The flusher works on the log at this moment; it must not be closed.
        acks: The PUTs that wait to be acknowledged.
        parked: GETs that wait for data.
        copies: Of the log, on other nodes.
    """

    __slots__ = (
        "_when_settled",
        "acks",
        "cause",
        "context",
        "copies",
        "earlier",
        "epoch_start",
        "flush_due",
        "flushing",
        "high_watermark",
        "log",
        "needed",
        "older",
        "own_tag",
        "parked",
        "partition",
        "place",
        "placement",
        "placement_version",
        "role",
        "settings",
        "span",
        "start_offset",
        "state",
        "topic_id",
    )

    def __init__(
        self,
        partition: TopicPartition,
        *,
        topic_id: str,
        settings: TopicSettings,
        placement: PartitionPlacement,
        placement_version: int,
        context: Context,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.settings = settings
        self.placement = placement
        self.placement_version = placement_version
        self.context = context
        self.role: Role = context.roles[context.group]
        self.place = context.main
        self.log: Log | None = None
        self.span = local_span(placement, context.group)
        self.start_offset = self.high_watermark = self.span.start if self.span else 0
        self.epoch_start = 0
        self.needed: int | None = None
        self.own_tag: bytes | None = None
        self.state = ChannelState.OPENING
        self.cause: BaseException | None = None
        self.acks = Acknowledgements(partition, self.role, context)
        self.acks.alone = self.acknowledges_alone
        self.parked: Parked = {}
        self.copies = Copies()
        self.flush_due = FlushDue(context, self.flush_now)
        self._when_settled: list[Callable[[], None]] = []
        self.older: list[Channel] = []
        self.earlier = False
        self.flushing = False
        self._look()

    def __str__(self) -> str:
        return str(self.partition)

    # State --------------------------------------------------------------------------------------
    @property
    def rules(self) -> Rules:
        """What the state allows."""
        return RULES[self.state]

    @property
    def sync(self) -> bool:
        """Whether a PUT is acknowledged when it is durable, and not before."""
        return self.settings.flush is _SYNC

    @property
    def acknowledges_alone(self) -> bool:
        """Whether a PUT is acknowledged when the master has it, whatever the other nodes have."""
        return self.settings.replication is _ALONE

    @property
    def goes_on(self) -> bool:
        """Whether PUTs are acknowledged without a lease: by what all nodes in sync have."""
        return not self.acknowledges_alone and self.role.goes_on

    def give_up_unconfirmed(self) -> None:
        """Answer PUTs that wait for a node which is silent: their outcome is unknown."""
        if self.acks.waiting and not self.acknowledges_alone:
            self.acks.drop(self.acks.unconfirmed())

    @property
    def deleted(self) -> bool:
        """Whether the topic is deleted and can be brought back: clients get nothing of it."""
        return self.placement.state is PartitionState.DELETED

    @property
    def takes_puts(self) -> bool:
        """Whether a PUT may succeed now."""
        return RULES[self.state].refusal is None

    @property
    def told(self) -> tuple[str, str]:
        """The state as STATUS tells it, and why it is not ``rw``."""
        return self.rules.told, self._why()

    def _why(self) -> str:
        """Return why PUTs are refused, "" when they are taken."""
        placement, log = self.placement, self.log
        return self.rules.why.format(
            partition=self.partition,
            topic=self.partition.topic,
            group=self.context.group,
            writer=placement.writer_group,
            placed=placement.state.value,
            log=log.reason if log is not None else "",
            cause=self.cause,
        )

    def _look(self) -> None:
        """Take what the placement says, then what is special about the log."""
        holds_range, group = self.span is not None, self.context.group
        self._step(placed(self.placement, self.settings, group, holds_range=holds_range))
        if self.log is not None:
            event = found(self.log.state, short=self.unprepared)
            if event is not None:
                self._step(event)

    def _step(self, event: ChannelEvent) -> None:
        self.state = next_state(self.state, event)

    def begin_move(self) -> None:
        """Take no appends: a move is to count on the end of the log."""
        self._step(ChannelEvent.SEAL)

    def end_move(self) -> None:
        """The move was abandoned; take appends as soon as the log does."""
        self._step(ChannelEvent.MOVE_OVER)
        self._look()

    def prepare(self) -> None:
        """Stay for a move to this group, under this placement; without a range, too."""
        if self.span is None:
            self._step(ChannelEvent.ADOPT)

    def seal_log(self) -> None:
        """Have the log end here, if there is one that can."""
        if self.log is not None:
            self.log.seal()
            self._look()

    def unseal_log(self, log: Log) -> None:
        """Have the sealed log take appends again."""
        log.unseal()
        self._step(ChannelEvent.UNSEALED)
        self._look()

    def put_aside(self) -> None:
        """Give up the log: another one takes its place."""
        self.log = None
        self.epoch_start = 0
        self._step(ChannelEvent.PUT_ASIDE)

    def holds(self, offset: int) -> bool:
        """Whether ``offset`` is in a part that this group holds, whatever is on disk of it."""
        span = self.placement.span_at(offset)
        return span is not None and span.group == self.context.group

    @property
    def held(self) -> bool:
        """Whether this group holds a part of the partition, or is prepared to take it over."""
        return self.span is not None or self.state is ChannelState.PREPARED

    @property
    def unprepared(self) -> bool:
        """Whether the log is of a range before the one in which this group takes the appends.

        It ends before that begins; or where it begins, and has stored something: the partition was
        given a new log on the same group (``admin.clocks``).
        """
        log, span = self.log, self.span
        if log is None or span is None or span.end is not None:
            return False
        has_times = log.last_append_time_ms > 0
        return log.end_offset < span.start or (
            has_times and log.end_offset == span.start and self.holds(span.start - 1)
        )

    def apply(
        self, settings: TopicSettings, placement: PartitionPlacement, placement_version: int
    ) -> None:
        """Take what ZooKeeper says now of settings and placement."""
        if placement_version != self.placement_version:
            # Completed, abandoned, or overtaken: a mover that knows the old version cannot move it
            # any more.
            self._step(ChannelEvent.MOVE_OVER)
        if settings != self.settings:
            self.settings = settings
            self.acks.alone = self.acknowledges_alone
            self.flush_due.settings_changed()
        self.placement = placement
        self.placement_version = placement_version
        self.span = local_span(placement, self.context.group)
        if self.log is None and self.span is not None:
            self.start_offset = self.high_watermark = self.span.start
        for older in self.older:
            older.settings, older.placement = settings, placement
        self._look()
        if self.log is not None and self.role.epoch and not self.failed:
            self.commit()  # with other settings, less may be waited for
        self.wake()

    def attach(self, log: Log) -> None:
        """Use ``log`` from now on; everything recovered is durable."""
        self.log = log
        log.reader.on_unreadable = lambda offset: self.context.suspect(self, offset)
        self.start_offset = log.start_offset
        self.high_watermark = self.epoch_start = log.end_offset
        if self.role.insync and not self.earlier:
            self.show_what_was_told(log)
        if log.state is LogState.FAILED:
            self.end(ChannelEvent.FAIL, StorageFailed(log.reason))
        else:
            self._look()
            if self.role.epoch:
                self.commit()  # what the other nodes told in this epoch counts for it
        self.wake()

    @property
    def failed(self) -> bool:
        """Whether an I/O error ended writing to the log."""
        return self.log is not None and self.log.status.state is _FAILED

    @property
    def tells_end(self) -> bool:
        """Whether it is known where the log ends, so that it can be said who has all of it.

        One that is damaged, or could not be opened, seems to end too early.
        """
        log = self.log
        if log is None:  # nothing is here, or it is being changed, or could not be opened
            return self.state not in {ChannelState.OPENING, ChannelState.UNREADABLE}
        return log.status.readable and log.state is not LogState.QUARANTINED

    @property
    def knows_end(self) -> bool:
        """Whether the high watermark is what any master before this one may have told of it.

        It is less when this node begins to lead, until the others in sync told what they have, or
        left. Of a log that is damaged, or is written no more, nothing better may come.
        """
        return self.high_watermark >= self.epoch_start or self.failed or not self.tells_end

    def look_at_log(self) -> bool:
        """Take over a failure that was found outside of flushes; return whether there was one."""
        log = self.log
        if log is None or log.status.state is not _FAILED:
            return False
        self.fail(StorageFailed(log.reason))
        return True

    @property
    def read_limit(self) -> int:
        """Where readers stop: at the high watermark, or where another group's range begins.

        This is the only place that decides what readers must not see.
        """
        end = self.span.end if self.span is not None else None
        return self.high_watermark if end is None else min(self.high_watermark, end)

    def take_start(self, log: Log) -> None:
        """Note that retention has moved the start of the log."""
        self.start_offset = log.start_offset
        wake_all(self.partition, self.parked)

    def tell_deleted(self, offset: int) -> None:
        """Have the copies delete what lies before ``offset``: retention has decided that."""
        if offset > self.copies.deleted:
            self.copies.deleted = offset
            wake_all(self.partition, self.copies.parked)

    def detach(self) -> None:
        """Give up the log, which is to be changed on disk; ``attach`` gives it back.

        If this node begins to lead meanwhile, it began with what the log has now.
        """
        if self.log is not None:
            self.epoch_start = self.log.end_offset
        self.log = None

    def why_refused(self, epoch: int = 0) -> VqError:
        """Return the error for a PUT, of a client that knows ``epoch``, that is not taken."""
        refusal = self.rules.refusal
        if refusal is not None:
            if self.state is ChannelState.CLOSED and isinstance(self.cause, VqError):
                refusal = type(self.cause)
            return refusal(self._why())
        if epoch > self.role.epoch:
            return self.stale_epoch(epoch)
        return self.place.to_raise() or Busy(f"the log of partition {self} is not open yet")

    def stale_epoch(self, epoch: int) -> StaleEpoch:
        """Return the error for a peer that knows a newer master than this one."""
        role = self.role
        why = f": {role.problem}" if role.problem else ""
        return StaleEpoch(
            f"the request knows epoch {epoch} of group {role.group}, this node has "
            f"{role.epoch}{why}",
            details={"epoch": role.epoch},
        )

    # Flush --------------------------------------------------------------------------------------
    def flush_now(self) -> None:
        """Have everything appended so far made durable with the next flush."""
        self.flush_due.clear()
        if self.log is not None and not self.failed:
            self.place.storer.mark(self)

    def begin_flush(self) -> SyncTicket | None:
        """See ``storer.Flushable``."""
        if self.log is None:
            return None
        if self.look_at_log():
            self._tell_settled()
            return None
        ticket = self.log.begin_sync()
        if ticket is None:
            self._tell_settled()
        else:
            self.flushing = True
        return ticket

    def end_flush(self, ticket: SyncTicket) -> None:
        """See ``storer.Flushable``."""
        self.flushing = False
        log = self.log
        if log is not None and log.status.state is not _FAILED:
            log.finish_sync(ticket)

    def flush_failed(self, error: BaseException) -> None:
        """See ``storer.Flushable``."""
        self.flushing = False
        self.fail(error)
        self._tell_settled()

    def acknowledge_flushed(self) -> None:
        """Acknowledge what is committed now, and wake the readers."""
        self.commit()
        if self._when_settled:
            self._tell_settled()

    def _stored(self, log: Log) -> int:
        """Return the offset below which everything is stored on this node, as the topic asks."""
        durable = self.settings.flush is _SYNC or self.counts_flushed()
        return log.flushing.synced_offset if durable else log.status.end_offset

    def counts_flushed(self, leaving: int = 0) -> bool:
        """See ``replica_rules.counts_flushed``; so many more nodes are to leave."""
        role = self.role
        return counts_flushed(
            insync=role.named,
            leaving=role.leaving + leaving,
            min_insync=self.settings.min_insync,
        )

    def acknowledgeable(self, log: Log, committed: int) -> int:
        """Return the offset below which PUTs may be acknowledged; 0: none may be."""
        if self.settings.replication is _ALONE:
            return self._stored(log)
        return committed if self.has_enough else 0

    @property
    def has_enough(self) -> bool:
        """Whether what is stored everywhere may be acknowledged; see ``acknowledges``."""
        return self.settings.replication is _ALONE or acknowledges(
            insync=self.role.named, min_insync=self.settings.min_insync
        )

    def committed(self, log: Log) -> int:
        """Return the offset below which all in sync have everything; see ``replica_rules``."""
        if self.role.follows:
            return min(self.copies.told, log.status.end_offset)
        own = self._stored(log)
        others = self.role.insync
        if not others:
            return own
        end = all_have(self.copies.offsets(), others)
        return self.high_watermark if end is None else min(own, end)

    def commit(self) -> None:
        """Acknowledge what may be, and show readers what is committed now.

        Called after a flush, after a copy told what it has, when other nodes count, and when the
        settings changed.
        """
        log = self.log
        if log is None:
            return
        committed = self.committed(log)
        acks = self.acks
        if acks.waiting and (acks.alone or acks.waiting[0].target <= committed):
            acks.give_below(self.acknowledgeable(log, committed))
        self.move_high_watermark(committed)

    @property
    def settled(self) -> bool:
        """Whether no flush of this log runs, and everything appended is durable or given up."""
        log = self.log
        return not self.flushing and (
            log is None or self.failed or log.flushing.synced_offset >= log.status.end_offset
        )

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Flush once more, then call ``callback`` as soon as ``settled`` holds."""
        if self.log is None or (self.failed and not self.flushing):
            callback()
        else:
            self._when_settled.append(callback)
            self.flush_now()

    def _tell_settled(self) -> None:
        if not self._when_settled:
            return
        if self.settled:
            callbacks, self._when_settled = self._when_settled, []
            for callback in callbacks:
                try:
                    callback()
                except Exception:
                    logger.exception("callback after a flush failed", partition=self)
        else:
            self.place.storer.mark(self)

    def fail(self, error: BaseException) -> None:
        """End writing for good: the first I/O error on a log is its last."""
        if self.state not in {ChannelState.FAILED, ChannelState.UNREADABLE}:
            logger.error("writing ends after an error", partition=self, error=error)
            if self.log is not None:
                self.log.fail(error)
            self.end(ChannelEvent.OPEN_FAILED if self.log is None else ChannelEvent.FAIL, error)
        self.acks.drop(StorageFailed(f"partition {self}: {error}"))

    def end(self, event: ChannelEvent, cause: BaseException) -> None:
        if event is ChannelEvent.CLOSE or self.state is not ChannelState.CLOSED:
            self.cause = cause
        self._step(event)

    def begin_epoch(self) -> None:
        """Note that this node leads in a new epoch, or does not lead any more.

        Acknowledgements wait for the epoch in which they began, so the outcome of these PUTs is
        unknown. If other nodes count, nothing is shown that the last master may not have shown,
        until they told what they have.
        """
        role, log = self.role, self.log
        self.copies.begin_epoch()
        if log is not None:
            self.epoch_start = log.end_offset
        if self.acks.waiting and (role.insync or not role.epoch):
            self.acks.drop(self.acks.mastership_lost())
        if log is not None and role.insync:
            self.show_what_was_told(log)
        if role.epoch:
            self.commit()
            wake_all(self.partition, self.copies.parked)  # copies of the epoch before are refused
        else:
            self.wake()  # what is parked is refused now

    def show_what_was_told(self, log: Log) -> None:
        """Show nothing beyond what the last master told: other nodes count, and may lack it."""
        self.high_watermark = max(self.start_offset, min(self.copies.told, log.end_offset))

    # Readers ------------------------------------------------------------------------------------
    @property
    def read_epoch(self) -> int:
        """The epoch of the master whose log readers see here; 0: of none."""
        return self.copies.epoch if self.role.follows else self.role.epoch

    def park(self, waiting: Woken) -> None:
        """Wake ``waiting`` when the high watermark moves."""
        self.parked[waiting] = None
        if self.copies.watch is not None:
            self.copies.watch()

    def move_high_watermark(self, offset: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            if self.parked:
                wake_all(self.partition, self.parked)

    def wake(self) -> None:
        """Have all parked requests look again."""
        wake_all(self.partition, self.parked)
        wake_all(self.partition, self.copies.parked)

    def close(self, error: VqError) -> None:
        """Refuse everything from now on; parked requests are answered with ``error``."""
        self.end(ChannelEvent.CLOSE, error)
        self.flush_due.clear()
        for older in self.older:
            older.close(error)
        self.wake()


#: The channels of a node, by topic and partition; others come and go.
Channels = Mapping[tuple[str, int], Channel]
