"""A node that does not lead copies the logs of its group from the node that does.

One connection to the master, and one fetch session on it (``copying``) for all partitions:

    add ── where do both logs part? (EPOCH_END) ── cut ── ask ──▶ bytes ── append ── flush
                                                          ▲                            │
                                                          └──── ask for what follows ◀─┘

In here: whom to follow, and where both logs part. Not in here: what comes, and how it is stored
(``copying``).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from vq.backoff import Backoff, Draws
from vq.broker.base.retries import Retries
from vq.broker.base.tasks import Tasks
from vq.broker.disks.data_disks import DataDisks
from vq.broker.logs.partitions import Partitions
from vq.broker.partition.channel import Channel
from vq.broker.partition.cold_reads import Tries
from vq.broker.partition.partition_state import ChannelState
from vq.broker.partition.ranges import end_of_range
from vq.broker.partition.replica_rules import common_end
from vq.broker.replication.copying import ANSWER_TIMEOUT_S, OF_ALL, CopySession, ask_begin
from vq.broker.replication.refusals import REFUSALS, REFUSED_PAUSE_S
from vq.broker.replication.secret import KnownSecret
from vq.coordination.brokers.dead_masters import DeadMasters
from vq.coordination.brokers.leadership import Following
from vq.errors import (
    Busy,
    ConnectionCut,
    CoordinationError,
    CorruptData,
    InternalError,
    NotMaster,
    OffsetOutOfRange,
    ProtocolError,
    StorageFailed,
    UnknownTopic,
    VqError,
)
from vq.limits import EPOCH_MAX
from vq.log_lines import get_logger
from vq.remoting import wire_pb2 as wire
from vq.remoting.broker_connection import BrokerConnection, connect
from vq.remoting.format import Command
from vq.remoting.login import MEMBER_LOGIN
from vq.remoting.transport import Network, nobody_listens
from vq.store.archive.archived_file import NotInMemory
from vq.store.log.log import Log
from vq.store.log.log_config import LogBegin
from vq.store.log.lookup import EpochEnd
from vq.store.records.format import OFFSET_MAX
from vq.turn import Turn

logger = get_logger(__name__)

CONNECT_TIMEOUT_S: Final = 5.0
#: How often the partitions of this node are compared with those that are copied, and the connection
#: with the time of its last answer.
AUDIT_S: Final = 1.0
#: Pauses before a connection, or a partition, that failed is tried again.
BACKOFF: Final = Backoff(first_s=0.1, most_s=5.0, jitter=0.2)
#: Partitions whose logs are compared with those of the master at the same time.
COMPARED_AT_ONCE: Final = 256
#: A connection, or a partition, that was copied for so long is well: its next failure is a first
#: one.
WELL_S: Final = 10.0
#: Connections that were made and broke count as at most so many failures in a row: the master
#: lives, and a node in sync that pauses for longer than ``LAG_MAX_S`` leaves the set.
BREAKS_MAX: Final = 3
#: Failures that usually go away by themselves: at the end of an earlier range the next one is begun
#: at once; a topic that was deleted at the master is deleted here, too, a moment later.
USUAL: Final = (OffsetOutOfRange, UnknownTopic, Busy)
#: Such a failure is told when it happened so often.
USUAL_FAILURES_MAX: Final = 6


class _NotKnown(Exception):
    """The answer of the master about an epoch is needed first."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch


class Follower:
    """Copies all logs of a group from the node that leads it, while this node does not.

    Args:
        partitions: Those of this node.
        disks: Where they lie. While the main directory is gone, nothing is copied.
        network: To reach the master.
        turn: Of the loop.
        cluster, group, node: Of this node.
        secret: Has both ends of a connection show that they belong to the cluster.
        dead_masters: Is told of a master that this node was connected to, and that is dead: its
            machine says, ``REFUSALS`` times one after the other, that nobody listens.
        rng: For the back-off.
        bytes_per_s: How fast this node catches up with a master, at most; 0: no limit.

    Attributes:
        problem: Why nothing is copied, although this node follows; "" if there is no reason.
    """

    def __init__(
        self,
        partitions: Partitions,
        disks: DataDisks,
        network: Network,
        turn: Turn,
        *,
        cluster: str,
        group: str,
        node: str,
        secret: KnownSecret,
        dead_masters: DeadMasters,
        rng: Draws,
        bytes_per_s: int = 0,
    ) -> None:
        self._channels = partitions.channels
        self._dead_masters = dead_masters
        self._bytes_per_s = bytes_per_s
        self._logs = partitions.logs
        self._disks = disks
        self._network = network
        self._turn = turn
        self._cluster = cluster
        self._group = group
        self._node = node
        self._secret = secret
        self._rng = rng
        self._following: Following | None = None
        self._met: Following | None = None  # whom this node was connected to last
        self._reached = False  # that one, by the last try
        self._refusals = 0  # of connections to that one, since then
        self._session: CopySession | None = None
        self._changed = asyncio.Event()  # whom to follow
        self._look = asyncio.Event()  # that, or something about the session
        self._retries: Retries[Channel] = Retries(BACKOFF, rng)
        self._held: dict[Channel, None] = {}
        self._suspended = ""
        self._gone = [each.gone for each in disks.all]
        self.problem = ""
        partitions.added.listen(self.look)
        disks.changed.listen(self._look_at_disks)

    def follow(self, following: Following | None, epoch: int = 0) -> None:
        """Copy from this master from now on; None: this node leads, or follows nobody yet.

        ``epoch`` is the newest one that this node knows: the master before is told.
        """
        if following != self._following:
            self._following = following
            self._retries.failed.clear()
            if self._session is not None:  # nothing more is written for it
                self._session.leave(epoch)
            self._changed.set()
            self._look.set()

    def _look_at_disks(self) -> None:
        gone = [each.gone for each in self._disks.all]
        if gone != self._gone:
            self._gone = gone
            self.suspend("the data directory is gone" if self._disks.main.gone else "")

    def suspend(self, why: str) -> None:
        """Copy nothing, so that this node leaves the set of those in sync; "": copy again."""
        self._suspended = why
        self._changed.set()
        self._look.set()

    @property
    def following(self) -> Following | None:
        """Whom this node follows; None: it leads."""
        return self._following

    def copies(self, channel: Channel) -> bool:
        """Whether a partition is copied: its log was compared with the master's, and is equal."""
        return self._session is not None and channel in self._session.channels

    def hold(self, channel: Channel) -> None:
        """Copy a partition no more, until ``release``, from no master: its log is given up."""
        self._held[channel] = None
        self._look.set()

    def release(self, channel: Channel) -> None:
        """Copy a partition again."""
        self._held.pop(channel, None)
        self._look.set()

    def look(self) -> None:
        """Look soon for partitions that are not copied."""
        self._look.set()

    async def run(self) -> None:
        """Copy, for ever."""
        loop, failures = asyncio.get_running_loop(), 0
        last: Following | None = None
        while True:
            self._changed.clear()
            following = self._following
            if following != last:
                last, failures = following, 0
            if following is None or following.address is None or self._suspended:
                self.problem = self._suspended if following is not None else ""
                await self._changed.wait()
                failures = 0
                continue
            begun, self._reached = loop.time(), False
            try:
                await self._copy(following)
            except Exception as error:
                if not isinstance(error, VqError | OSError):
                    logger.exception("copying failed")
                failures = failures + 1 if loop.time() - begun <= WELL_S else 1
                if self._reached:
                    failures = min(failures, BREAKS_MAX)
                pause_s = BACKOFF.pause_s(failures, self._rng)
                if await self._is_first_refusal(following, error):
                    pause_s = REFUSED_PAUSE_S
                self._tell(following, error, pause_s)
                await _is_set_within(self._changed, pause_s)

    async def _is_first_refusal(self, following: Following, error: Exception) -> bool:
        """Whether the next try tells if the master is dead; if it is by now, have it be dead."""
        refused = nobody_listens(error) and following == self._met
        self._refusals = self._refusals + 1 if refused else 0
        if self._refusals < REFUSALS or self._following != following:
            return refused
        try:
            await self._dead_masters.remove(following)
        except CoordinationError as why:  # its session ends by itself, or the next refusal counts
            logger.info("registration of a dead master stays", master=following.master, error=why)
        return False

    def _tell(self, following: Following, error: Exception, pause_s: float) -> None:
        problem = f"nothing is copied from {following.master} at {following.address}: {error}"
        if problem != self.problem:
            logger.warning(
                "copying ended, trying again",
                master=following.master,
                address=following.address,
                retry_s=round(pause_s, 2),
                error=error,
            )
        self.problem = problem

    async def _copy(self, following: Following) -> None:
        """Copy from one master until another one is to be followed.

        Raises:
            VqError: The connection ended, or the peer is not that master.
        """
        assert following.address is not None
        connection = await connect(
            self._network,
            following.address,
            client_id=f"copy.{self._group}.{self._node}",
            cluster=self._cluster,
            timeout=CONNECT_TIMEOUT_S,
            on_close=lambda _: self._look.set(),
            login=MEMBER_LOGIN,
        )
        tasks = Tasks()
        session = self._session = CopySession(
            connection,
            following,
            self._node,
            self._logs,
            self._turn,
            bytes_per_s=self._bytes_per_s,
        )
        try:
            hello: Any = connection.opened.result()
            if (hello.group, hello.node) != (self._group, following.master):
                raise NotMaster(
                    f"{following.address} is node {hello.node} of group {hello.group}, not "
                    f"{following.master} of {self._group}"
                )
            await self._secret.prove(connection)
            logger.info("copying", master=following.master, address=following.address)
            self.problem = ""
            self._met, self._reached = following, True
            await self._keep(session, following, connection, tasks)
        finally:
            self._session = None
            session.end(ConnectionCut("copying ended"))
            await tasks.close()

    async def _keep(
        self, session: CopySession, following: Following, connection: BrokerConnection, tasks: Tasks
    ) -> None:
        """Copy every partition that there is, as long as the session lasts."""
        comparing: set[Channel] = set()
        while self._following == following and not self._suspended:
            self._look.clear()
            if session.ended.done():
                raise session.ended.result()
            now = asyncio.get_running_loop().time()
            session.check_answered(now)
            for channel, error in session.failures.items():
                self._note(channel, error)
            session.failures.clear()
            copied = session.channels
            for channel in self._channels.values():
                if channel in self._held or channel.place.gone or not _can_be_copied(channel):
                    continue
                if channel in copied:
                    del copied[channel]
                    continue
                has_space = len(comparing) < COMPARED_AT_ONCE
                if has_space and channel not in comparing and self._retries.is_due(channel, now):
                    comparing.add(channel)
                    tasks.start(self._begin(session, following, connection, channel, comparing))
            for channel in copied:  # closed, or failed
                session.remove(channel)
            for channel, retry in list(self._retries.failed.items()):
                if channel.state is ChannelState.CLOSED or now - retry.at > WELL_S:
                    del self._retries.failed[channel]
            session.look_at_paused(now)
            session.keep_waiting()
            await _is_set_within(self._look, AUDIT_S)

    # One partition ------------------------------------------------------------------------------
    def not_copied(self) -> dict[Channel, str]:
        """Return the partitions that cannot be copied now, with the cause."""
        copied = self._session.channels if self._session is not None else {}
        return {
            channel: retry.told
            for channel, retry in self._retries.failed.items()
            if channel not in copied
            and (not issubclass(retry.kind, USUAL) or retry.failures > USUAL_FAILURES_MAX)
        }

    def _note(self, channel: Channel, error: VqError) -> None:
        """Note that a partition cannot be copied now."""
        retry, is_new = self._retries.note(channel, error, asyncio.get_running_loop().time())
        if is_new:
            logger.log(
                logging.DEBUG if isinstance(error, USUAL) else logging.WARNING,
                "partition is not copied, trying again",
                partition=channel,
                retry_s=round(retry.pause_s, 2),
                error=error,
            )

    async def _begin(
        self,
        session: CopySession,
        following: Following,
        connection: BrokerConnection,
        channel: Channel,
        comparing: set[Channel],
    ) -> None:
        """Compare a log with the master's, cut what the master has not, and copy from there."""
        try:
            await self._fit(channel, following, connection)
            session.add(channel)
        except OF_ALL as error:
            session.end(error)
        except CorruptData as error:  # perhaps nobody has read there before
            offset = error.details.get("offset", channel.start_offset)
            channel.context.suspect(channel, int(offset))
            self._note(channel, error)
        except (VqError, OSError) as error:
            self._note(channel, error if isinstance(error, VqError) else StorageFailed(str(error)))
        except Exception as error:
            logger.exception("comparing a copy with its master failed", partition=channel)
            self._note(channel, InternalError(f"{type(error).__name__}: {error}"))
        finally:
            comparing.discard(channel)
            if len(comparing) <= COMPARED_AT_ONCE // 2:  # each look goes over all partitions
                self._look.set()

    async def _fit(
        self, channel: Channel, following: Following, connection: BrokerConnection
    ) -> None:
        """Have the log begin where the master's does, and hold nothing that the master's does not.

        Raises:
            VqError, OSError: It does not.
        """

        async def ask(**question: Any) -> Any:
            topic, number = channel.partition
            request = wire.EpochEndRequest(
                node=self._node,
                incarnation=following.incarnation,
                epoch=following.epoch,
                topic=topic,
                partition=number,
                topic_id=channel.topic_id,
                **question,
            )
            answer, _ = await connection.request(
                Command.EPOCH_END, request, timeout=ANSWER_TIMEOUT_S
            )
            if answer.epoch != following.epoch:
                raise NotMaster(
                    f"the peer answers in epoch {answer.epoch}, this node follows {following.epoch}"
                )
            _check_answer(answer, question.get("of_epoch"))
            return answer

        if channel.log is None:
            if channel.older:  # the next range could not be begun when the last one was put aside
                answer = await ask(end=end_of_range(channel.older[-1]))
                if answer.next_start:
                    answer = await ask(end=_inside(answer.next_start))
                else:
                    answer = await ask(end=answer.end_offset)
            else:
                answer = await ask(new=True)
            await self._logs.begin_log(channel, _begin_of(answer))
        await self._logs.unseal_copy(channel)
        await self._logs.settle(channel)  # what an earlier session wrote
        log = channel.log
        if log is None or channel.failed:
            raise Busy(f"the log of {channel} is not open: {channel.told[1]}")
        common = await self._compare(log, ask)
        answer, begin = common.answer, common.answer.log_start_offset
        if common.shared and max(begin, log.start_offset) <= common.end:
            # Retention works block by block, so each log may begin before the other one does.
            if common.end < log.end_offset:
                await self._logs.cut_log(channel, common.end)
            elif common.has_all and _goes_on(log, answer.next_start):  # of an earlier range
                answer = await ask(end=_inside(answer.next_start))
                await self._logs.renew_log(channel, _begin_of(answer))
        elif log.end_offset <= begin:  # the master keeps nothing of what is here
            await self._logs.renew_log(channel, _begin_of(answer))
        elif begin == log.start_offset:  # no batch here is one of the master's
            await self._logs.cut_log(channel, begin)
        else:
            await self._begin_anew(channel, log, begin)
        if common.shared and channel.log is not None:
            channel.log.learn_number(_begin_of(answer))
            if channel.log.status.first_number is None:  # it begins behind the master's, say
                channel.log.learn_number(await ask_begin(channel, following.epoch, connection))

    async def _compare(self, log: Log, ask: Callable[..., Awaitable[Any]]) -> "_Common":
        """Ask the master until it is known how far both logs are equal."""
        if log.start_offset == log.end_offset:
            # No batch that could be another one than the master's; the epoch of one that retention
            # took here may be unknown there.
            answer = await ask(of_epoch=EPOCH_MAX, end=log.end_offset)
            end = log.end_offset
            is_whole = answer.damaged and end >= answer.whole_end
            return _Common(
                answer,
                end,
                shared=is_whole or (answer.found and answer.end_offset >= end),
                has_all=is_whole or (answer.found and answer.end_offset == end),
            )
        answers: dict[int, EpochEnd | None] = {}
        asked = log.epoch
        tries = Tries()
        while True:
            answer = await ask(of_epoch=asked, end=log.end_offset)
            found = EpochEnd(answer.end_epoch, answer.end_offset)
            answers[asked] = found if answer.found else None
            try:
                parts_at = _where_to_cut(log, answers)
                break
            except _NotKnown as missing:
                asked = missing.epoch
            except NotInMemory as missing:  # an index; the same is asked again, as time passes
                tries.spend(missing)
                await self._logs.bring(missing)
        end = log.start_offset if parts_at is None else parts_at
        if answer.damaged and end >= answer.whole_end:
            # The peer cannot tell what is wrong behind that.
            return _Common(answer, log.end_offset, shared=True, has_all=True)
        has_all = answer.found and end == found.offset  # not found: there are newer epochs only
        return _Common(answer, end, shared=parts_at is not None, has_all=has_all)

    async def _begin_anew(self, channel: Channel, log: Log, begin: int) -> None:
        """Put a log out of the way that no common batch joins to the master's, and copy all.

        Nothing that was committed is in one of them alone: retention drops only what is committed,
        so the master began with other messages (an operator had it lead without those here), or the
        place where both part is among what retention took.

        Raises:
            Busy: Always; the next try finds no log.
        """
        start, end = log.start_offset, log.end_offset
        paths = await self._logs.give_up(channel)
        logger.warning(
            "copy has nothing in common with its master, put aside and copied anew",
            partition=channel,
            start=start,
            end=end,
            master_start=begin,
            path=", ".join(map(str, paths)) or None,
        )
        raise Busy(f"the log of {channel} is copied anew")


class _Common(NamedTuple):
    """How far the log of a copy is that of its master.

    Attributes:
        answer: The last one of the master.
        end: Up to which offset.
        shared: The master has the batch before that, or the copy has no batch. Otherwise no batch
            of the copy is known to be the master's.
        has_all: The master has nothing behind that, of this range.
    """

    answer: Any
    end: int
    shared: bool
    has_all: bool


def _begin_of(answer: Any) -> LogBegin:
    """Return where the log of the master begins."""
    number = answer.number if answer.number_known else None
    return LogBegin(answer.log_start_offset, answer.producers, number)


def _inside(next_start: int) -> int:
    """Return an offset of the range that begins there; the one before may end at that offset."""
    return next_start + 1


def _goes_on(log: Log, next_start: int) -> bool:
    """Whether another range follows the one that a log is of; 0: none does."""
    is_next = log.start_offset == next_start and not log.last_append_time_ms
    return next_start > 0 and not is_next


def _check_answer(answer: Any, of_epoch: int | None) -> None:
    """Return if an answer to EPOCH_END, about ``of_epoch`` or about none, can be one.

    Raises:
        ProtocolError: It cannot. Two logs would be compared without end, or this one cut or put
            aside at an offset that no log has.
    """
    begin, end = answer.log_start_offset, answer.end_offset
    if max(begin, end, answer.next_start, answer.whole_end) > OFFSET_MAX:
        raise ProtocolError(f"an answer to EPOCH_END has an offset above {OFFSET_MAX}")
    if of_epoch is None or not answer.found:
        return
    if answer.end_epoch > of_epoch:
        raise ProtocolError(
            f"the answer to EPOCH_END about epoch {of_epoch} names the later epoch "
            f"{answer.end_epoch}"
        )
    if end < begin:
        raise ProtocolError(f"an answer to EPOCH_END ends at {end}, before it begins at {begin}")


async def _is_set_within(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _can_be_copied(channel: Channel) -> bool:
    return (
        channel.span is not None
        and channel.rules.read
        and channel.state not in {ChannelState.FAILED, ChannelState.QUARANTINED}
    )


def _where_to_cut(log: Log, answers: Mapping[int, EpochEnd | None]) -> int | None:
    """Return where the log has to end; None: none of its batches is known to be the master's.

    Raises:
        _NotKnown: The master's answer about another epoch is needed.
    """

    def other(epoch: int) -> EpochEnd | None:
        if epoch not in answers:
            raise _NotKnown(epoch)
        return answers[epoch]

    return common_end(log.epoch, log.reader.epoch_end, other)
