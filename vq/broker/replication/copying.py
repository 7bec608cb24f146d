"""What a copy gets from its master, and how it is stored: one fetch session (REPLICATE).

What is asked for tells the master what is stored here, so the next bytes of a partition are asked
for when the last ones are flushed (with flush ``async``: written). All partitions that were
flushed together are asked for together.

A batch says how much of the log was durable when it was appended. So a batch is written when all
of that is durable here, too: after a loss of power, recovery may believe it as on the master.
"""

import asyncio
import contextlib
from typing import Any, Final

from vq import limits
from vq.broker.logs.channel_logs import ChannelLogs
from vq.broker.partition.channel import Channel
from vq.broker.partition.copied import append_copied, begin_copying, end_copying, show_copied
from vq.coordination.brokers.leadership import Following
from vq.errors import (
    ConnectionCut,
    InternalError,
    NotMaster,
    ShuttingDown,
    StaleEpoch,
    StorageFailed,
    VqError,
)
from vq.log_lines import get_logger
from vq.pace import Pace
from vq.remoting import wire_pb2 as wire
from vq.remoting.broker_connection import BrokerConnection
from vq.remoting.fetch_state import FetchState
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.messages import decode_reply, described_error, encode_header
from vq.store.log.framing import batches_ready
from vq.store.log.log_config import LogBegin
from vq.store.records.format import BATCH_ON_DISK_BYTES_MAX
from vq.turn import Turn

logger = get_logger(__name__)

ANSWER_TIMEOUT_S: Final = 10.0
#: The master answers a request that waits at the latest after this time.
WAIT_S: Final = 10.0
#: With more bytes to be written than this nothing further is asked for.
PENDING_BYTES_MAX: Final = 64 * limits.MIB
#: Errors of one partition that are so of all: the peer leads no more, or is gone.
OF_ALL: Final = (NotMaster, StaleEpoch, ShuttingDown, ConnectionCut)
#: While nothing is taken for a partition, it is asked for so often.
PAUSED_S: Final = 5.0
#: For so long after a partition got something while another one was written, a request waits at the
#: master during flushes,
SEVERAL_S: Final = 1.0
#: and once in so many answers it does so in any case: otherwise that could not be seen.
LOOK_EVERY: Final = 16
#: A master that is left has so long to hear of it.
LAST_WORD_S: Final = 1.0
_SESSION: Final = 1


class Copy:
    """One partition that is copied.

    Attributes:
        channel: Of the partition, on this node.
        pending: What came and is not written yet. A view: a long answer is written in many parts,
            each behind a flush; to copy what is left each time took a seventh of all time.
        asked_at: What follows this offset is asked for and did not come yet; -1: nothing is.
    """

    __slots__ = ("_held", "_session", "_wrote", "asked_at", "channel", "pending")

    def __init__(self, channel: Channel, session: "CopySession") -> None:
        self.channel = channel
        self.pending = memoryview(b"")
        self._held = 0  # bytes that ``pending`` keeps in memory
        self.asked_at = -1
        self._wrote = False  # something of what came last
        self._session = session

    @property
    def offset(self) -> int:
        """Where it goes on."""
        log = self.channel.log
        return self.channel.start_offset if log is None else log.end_offset

    def take(self, data: bytes) -> None:
        """Write what came; ask for what follows once that is stored.

        Raises:
            VqError: It cannot be written; nothing of it counts.
        """
        self._wrote = False
        self._hold(len(data))
        self._keep(memoryview(data))
        self._write()

    def _keep(self, data: memoryview) -> None:
        """Have so much left to write."""
        self.pending = data
        if not data:
            self._hold(0)

    def _hold(self, size: int) -> None:
        """Count the memory of an answer until all of it is written."""
        self._session.pending += size - self._held
        self._held = size

    def drop(self) -> None:
        """Write nothing more."""
        self._keep(memoryview(b""))

    def watch(self) -> None:
        """See ``Copies.watch``. While something is written here, the next request does it."""
        if self.asked_at >= 0:
            self._session.ask(self)

    def _write(self) -> None:
        """Write the batches that may be written now; the others after the next flush."""
        channel, log = self.channel, self.channel.log
        if log is None:
            raise InternalError(f"partition {channel} has no log to copy to")
        end = log.end_offset
        ready = batches_ready(self.pending, end, log.synced_offset)
        if ready:
            size = ready[-1].end_offset - end
            append_copied(channel, self.pending[:size], ready)
            self._keep(self.pending[size:])
            self._wrote = True
            if channel.copies.told > channel.high_watermark:
                show_copied(channel)
        elif log.synced_offset >= log.end_offset:  # no flush would help
            if not self._wrote:
                append_copied(channel, self.pending)  # it says what is wrong with them
            self._keep(memoryview(b""))  # the beginning of a batch, which is asked for again
        if self.pending or channel.sync:
            channel.when_settled(self._settled)
        else:
            self._session.ask(self)

    def _settled(self) -> None:
        """All that was written is durable, or nothing more will be."""
        try:
            self._go_on()
        except VqError as error:
            self._session.fail(self, error)
        except Exception as error:  # nobody else would ask for what follows
            logger.exception("copying a partition failed", partition=self.channel)
            self._session.end(InternalError(f"{type(error).__name__}: {error}"))

    def _go_on(self) -> None:
        """Write what is left, or ask for what follows.

        Raises:
            VqError: Neither can be done.
        """
        if not self._session.has(self):
            return  # another session may write to the log now
        channel = self.channel
        if channel.log is None or channel.failed:
            raise StorageFailed(f"partition {channel}: {channel.cause or 'it is closed'}")
        if self.pending:
            self._write()
        else:
            self._session.ask(self)


class CopySession:
    """The connection to one master, and what is copied over it. Loop-bound.

    Args:
        connection: To the master.
        following: Whom this node follows.
        node: This node's name.
        logs: Delete what its master has deleted; also where nothing is taken, as the disk is full:
            that makes space.
        turn: Of the loop.
        bytes_per_s: How fast this node catches up, at most; 0: no limit. What a node in sync copies
            is not slowed.
    """

    def __init__(
        self,
        connection: BrokerConnection,
        following: Following,
        node: str,
        logs: ChannelLogs,
        turn: Turn,
        *,
        bytes_per_s: int = 0,
    ) -> None:
        self._turn = turn
        self._logs = logs
        self._pace = Pace(bytes_per_s)
        # Any batch has room in an answer; one at a time, so that others are not held up by a burst.
        self._answer_bytes = BATCH_ON_DISK_BYTES_MAX if bytes_per_s else limits.FETCH_BYTES_MAX
        self._connection = connection
        self._following = following
        self._node = node
        # The fields that all requests share; protobuf merges what is encoded one behind another.
        self._same = encode_header(
            Command.REPLICATE,
            wire.ReplicateRequest(
                session=_SESSION,
                max_bytes=self._answer_bytes,
                max_wait_ms=round(WAIT_S * 1000),
                node=node,
                incarnation=following.incarnation,
                epoch=following.epoch,
            ),
        )
        self._loop = asyncio.get_running_loop()
        self.state: FetchState[Copy] = FetchState()
        self._paused: dict[Copy, float] = {}  # since when
        self._scheduled = False
        self._leaving = False  # the connection is closed once the master has heard the last word
        self._taken: Copy | None = None  # the partition that got something last
        self._takes = 0
        self._several_until = 0.0
        self.pending = 0  # bytes of answers that are not wholly written
        self.answered_at = self._loop.time()
        self.ended: asyncio.Future[VqError] = self._loop.create_future()
        self.failures: dict[Channel, VqError] = {}

    @property
    def channels(self) -> dict[Channel, None]:
        """What is copied."""
        return {copy.channel: None for copy in self.state.parts.values()}

    def has(self, copy: Copy) -> bool:
        """Whether a partition is still copied in this session."""
        return copy in self.state

    def add(self, channel: Channel) -> None:
        """Copy a partition whose log has nothing that the master's has not."""
        if self.ended.done():
            return  # this node follows another master by now, or leads
        copy = Copy(channel, self)
        begin_copying(channel, self._following.epoch, copy.watch)
        self._ask(copy)

    def remove(self, channel: Channel) -> None:
        """Copy a partition no more."""
        for copy in list(self.state.parts.values()):
            if copy.channel is channel:
                self.state.remove(copy)
                self._leave(copy)
                self._schedule()

    def _leave(self, copy: Copy) -> None:
        """End what concerns a copy that is in the session no more."""
        end_copying(copy.channel)
        self._paused.pop(copy, None)
        copy.drop()

    def leave(self, epoch: int) -> None:
        """Copy nothing more, as this node follows another master in ``epoch``, or leads.

        The old one is told: it may not know yet, and lead on without anybody who confirms. The
        connection stays open until it has heard that.
        """
        following = self._following
        if epoch > following.epoch and not self.ended.done():
            request = wire.ReplicateRequest(
                session=_SESSION,
                node=self._node,
                incarnation=following.incarnation,
                epoch=epoch,
            )
            self.state.fill(request, 0)
            header = encode_header(Command.REPLICATE, request)
            close = self._connection.close
            with contextlib.suppress(VqError):
                self._connection.send(Command.REPLICATE, header, b"", lambda _: close())
                self._loop.call_later(LAST_WORD_S, close)
                self._leaving = True
        self._stop(ConnectionCut("this node follows another master, or leads"))

    def end(self, why: VqError) -> None:
        """End the session; ``why`` is for the log."""
        self._stop(why)
        if not self._leaving:
            self._connection.close()

    def _stop(self, why: VqError) -> None:
        if not self.ended.done():
            self.ended.set_result(why)
        for copy in list(self.state.parts.values()):
            self.state.drop(copy)
            self._leave(copy)

    # Requests -----------------------------------------------------------------------------------
    def ask(self, copy: Copy) -> None:
        """Ask for what follows, with the next request."""
        if self.has(copy):
            self._ask(copy)

    def _ask(self, copy: Copy) -> None:
        copy.asked_at = copy.offset
        handle, is_new = self.state.place(copy)
        item = wire.FetchPartition(handle=handle, offset=copy.asked_at)
        if is_new:
            item.topic, item.partition = copy.channel.partition
            item.topic_id = copy.channel.topic_id
        self.state.ask(item)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self.pending <= PENDING_BYTES_MAX:
            self._scheduled = True
            pause_s = self._pace.pause_s(self._loop.time())
            if pause_s:
                self._loop.call_later(pause_s, self.write_out)
            else:
                self._turn.add(self)  # behind a flush it ends without a further iteration

    def write_out(self) -> None:
        """See ``turn.Writer``: send one request for all that is asked for."""
        self._scheduled = False
        if self.ended.done():
            return
        request = wire.ReplicateRequest()
        self.state.fill(request, limits.FETCH_PARTITIONS_PER_REQUEST_MAX)
        for item in request.partitions:
            channel = self.state.parts[item.handle].channel
            # One byte: one batch, to be thrown away; only what was deleted is of use now.
            item.max_bytes = 1 if channel.place.copy_refusal else self._answer_bytes
            if channel.parked:  # 1: no log has a high watermark between 0 and that
                item.watch_above = max(1, channel.high_watermark)
        try:
            self._connection.send(
                Command.REPLICATE,
                self._same + encode_header(Command.REPLICATE, request),
                b"",
                self._answered,
                at_once=True,
            )
        except VqError as error:
            self.end(error)
            return
        self.state.unanswered += 1
        if self.state.items:
            self._schedule()

    # Answers ------------------------------------------------------------------------------------
    def _answered(self, frame: Frame | None) -> None:
        if self.ended.done():
            return
        self.answered_at = self._loop.time()
        self.state.unanswered -= 1
        turn, alone = self._turn, False
        begins = turn.begin()
        try:
            if frame is None:
                raise ConnectionCut("the connection to the master has ended")
            response: Any = decode_reply(frame)
            self.take_answer(response, frame.body)
            alone = self._writes_alone
            if alone:
                turn.hasten()  # nothing else will share the flush
            else:
                self.keep_waiting()
        except VqError as error:
            self.end(error)
        except Exception as error:
            logger.exception("taking what was copied failed")
            self.end(InternalError(f"{type(error).__name__}: {error}"))
        finally:
            if begins:
                turn.leave(hastened=alone)

    def take_answer(self, response: Any, body: bytes) -> None:
        """Take the bytes of an answer.

        Raises:
            ProtocolError: They are not those of the answer.
            NotMaster: Another epoch than the one followed gave them.
            VqError: The peer leads no more, see ``OF_ALL``.
        """
        for copy, result, data in self.state.results("an answer to REPLICATE", response, body):
            if result.status:
                error = described_error(result)
                if isinstance(error, OF_ALL):
                    raise error
                self.state.drop(copy)
                self._leave(copy)
                self.failures[copy.channel] = error
                continue
            if result.epoch != self._following.epoch:
                raise NotMaster(
                    f"the master leads in epoch {result.epoch}, this node follows "
                    f"{self._following.epoch}"
                )
            copies = copy.channel.copies
            if result.high_watermark > copies.told:
                copies.told = result.high_watermark
                show_copied(copy.channel)
            if result.deleted_before > copies.deleted:
                self._logs.drop_soon(copy.channel, result.deleted_before)
            if result.offset != copy.asked_at:
                continue  # it was asked for twice, see ``Copy.watch``, and came before
            copy.asked_at = -1
            self.state.items.pop(result.handle, None)  # for ``Copy.watch``, and not sent
            if not data:
                self.ask(copy)
                continue
            if copy.channel.place.copy_refusal:
                self._paused[copy] = self._loop.time()
                continue
            lacked = min(result.size, result.high_watermark - result.offset)
            if lacked > 0:  # never so of a node in sync: the high watermark waits for it
                self._pace.spend(lacked, self.answered_at)
            self._note_taken(copy)
            try:
                copy.take(data)
            except VqError as error:
                self.fail(copy, error)

    def _note_taken(self, copy: Copy) -> None:
        last, self._taken = self._taken, copy
        self._takes += 1
        if last is not None and last is not copy and last.asked_at < 0 and self.has(last):
            self._several_until = self.answered_at + SEVERAL_S

    @property
    def _writes_alone(self) -> bool:
        """Whether one partition is written, and the next request leaves behind its flush.

        A request that waited at the master meanwhile would be answered with nothing, for each
        message of a lone sender once more. What another partition gets nevertheless is asked for
        behind the flush, or by ``keep_waiting``, which the follower calls every second. If several
        partitions get something at the same time, a request waits for that: see ``SEVERAL_S``.
        """
        copy = self._taken
        return (
            copy is not None
            and copy.asked_at < 0
            and not self.state.items
            and self.answered_at >= self._several_until
            and self._takes % LOOK_EVERY != 0
            and copy not in self._paused
            and self.has(copy)
        )

    def fail(self, copy: Copy, error: VqError) -> None:
        """Copy a partition no more until its log was compared with the master's again."""
        if self.has(copy):
            self.state.remove(copy)
            self._leave(copy)
            self.failures[copy.channel] = error
            self.keep_waiting()

    def look_at_paused(self, now: float) -> None:
        """Ask again for what was not taken: if it is now, and else to hear what was deleted."""
        for copy, since in list(self._paused.items()):
            if now - since >= PAUSED_S or not copy.channel.place.copy_refusal:
                del self._paused[copy]
                self.ask(copy)

    def keep_waiting(self) -> None:
        """Have a request wait at the master, if none does."""
        if not self.ended.done() and (
            self.state.items or (self.state and not self.state.unanswered)
        ):
            self._schedule()

    def check_answered(self, now: float) -> None:
        """Return if the master owes no answer for long; ``now`` is a time of the loop.

        Raises:
            ConnectionCut: It has been silent for too long.
        """
        if self.state.unanswered and now - self.answered_at > WAIT_S + ANSWER_TIMEOUT_S:
            raise ConnectionCut(f"the master was silent for {WAIT_S + ANSWER_TIMEOUT_S:g} s")


async def ask_begin(channel: Channel, epoch: int, connection: BrokerConnection) -> LogBegin:
    """Return where a log begins here, with the number that its master has there, if it tells it."""
    begin, (topic, partition) = LogBegin(channel.start_offset), channel.partition
    request = wire.OffsetsRequest(
        topic=topic,
        partition=partition,
        topic_id=channel.topic_id,
        epoch=epoch,
        number=True,
        number_offset=begin.offset,
    )
    with contextlib.suppress(VqError):  # it stays unknown
        answer: Any
        answer, _ = await connection.request(Command.OFFSETS, request, timeout=ANSWER_TIMEOUT_S)
        if answer.number_known:
            return begin._replace(number=answer.number)
    return begin
