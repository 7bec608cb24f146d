"""Damaged bytes of this node's logs are replaced by those of another node of the group.

    damage found ──▶ which node has the bytes? ──▶ REPAIR ──▶ verified, put back, verified again
    log in quarantine ──▶ the same for all that it lacks ──▶ opened again
                          └─▶ what a copy cannot repair so, it gives up, and copies it anew

A copy asks its master. A master asks the nodes that copy from it, and a copy without a master the
other nodes. Bytes come from a node whose log is known to be equal (a copy was compared with its
master), or whose log goes on behind the damage with the same batch of the same epoch, or has the
batch of that epoch with which this log ended when it was closed.

A copy gives up a log only when its group's record does not name it as in sync.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from vq.backoff import Backoff, Draws
from vq.broker.base.facts import Facts, counter
from vq.broker.base.jobs import Every, Jobs
from vq.broker.base.retries import Retries
from vq.broker.base.runner import Lane, Runner
from vq.broker.base.session import Session
from vq.broker.base.tasks import Tasks
from vq.broker.health.known_damage import is_broken
from vq.broker.health.repair import Repair, RepairSource
from vq.broker.health.verifying import Verifier
from vq.broker.logs.partitions import Partitions
from vq.broker.partition.channel import Channel
from vq.broker.partition.context import Context
from vq.broker.partition.partition_state import ChannelState
from vq.broker.partition.ranges import holding
from vq.broker.replication.following import Follower
from vq.broker.replication.presence import Presence
from vq.broker.replication.secret import KnownSecret
from vq.broker.replication.soundness import Soundness
from vq.coordination.brokers.registry import read_state
from vq.coordination.tree.coordinator import Coordinator, NoNode
from vq.coordination.tree.values.brokers import GroupState, Registration
from vq.errors import CoordinationError, CorruptData, PartitionQuarantined, StorageFailed, VqError
from vq.limits import MIB
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting import wire_pb2 as wire
from vq.remoting.broker_connection import BrokerConnection, connect
from vq.remoting.connection import RequestId
from vq.remoting.format import Command
from vq.remoting.login import MEMBER_LOGIN
from vq.remoting.transport import Network
from vq.store.archive.archive import ArchiveFiles, joined
from vq.store.care.repair import batch_before, check_intact, find_damage, read_intact
from vq.store.care.walk import BadRange
from vq.store.disk.disk import Disk
from vq.store.disk.new_block import NewBlock
from vq.store.log.block import Block
from vq.store.log.log import Log
from vq.store.log.log_config import LogState
from vq.store.log.repair_file import put_back

logger = get_logger(__name__)

#: How often damage that is known is looked at.
LOOK_S: Final = 0.5
#: Pauses before a partition is tried again.
BACKOFF: Final = Backoff(first_s=0.5, most_s=10.0, jitter=0.2)
CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 20.0
#: How long a start waits for another node in sync to tell what it has.
ASK_TIMEOUT_S: Final = 2.0
#: What one answer has, unless a batch is larger.
REPAIR_BYTES: Final = 4 * MIB
#: Repairs that are kept in memory to be told.
REPAIRS_MAX: Final = 256


class Repairer:
    """Repairs the logs of a node, and gives other nodes what they lack. Loop-bound.

    Args:
        context: Of the node.
        partitions: Its channels.
        follower: Knows whom the node follows, and what it copies.
        verifier: Knows the damage.
        coordinator: Tells where other nodes are, and who is in sync.
        secret: Has both ends of a connection show that they belong to the cluster.
        presence: Has this node registered anew.
        soundness: Is told whether there is damage.
        network, disk, runner, tasks: To act with.
        jobs: Has damage looked at.
        cluster, node: Names of this node.
        rng: For the back-off.

    Attributes:
        repairs: The last ones, the newest at the end.
        count: How many there were since the start.
        retries: The partitions that could not be repaired.
    """

    def __init__(
        self,
        context: Context,
        partitions: Partitions,
        follower: Follower,
        verifier: Verifier,
        coordinator: Coordinator,
        *,
        secret: KnownSecret,
        presence: Presence,
        soundness: Soundness,
        network: Network,
        disk: Disk,
        runner: Runner,
        tasks: Tasks,
        jobs: Jobs,
        cluster: str,
        node: str,
        rng: Draws,
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._secret = secret
        self._presence = presence
        self._soundness = soundness
        self._follower = follower
        self._verifier = verifier
        self._coordinator = coordinator
        self._network = network
        self._disk = disk
        self._runner = runner
        self._tasks = tasks
        self._cluster = cluster
        self._node = node
        self.retries: Retries[Channel] = Retries(BACKOFF, rng)
        self._held: dict[Channel, bool] = {}  # to be given up; True: registered anew since
        self._connections: dict[Address, BrokerConnection] = {}
        self.repairs: deque[Repair] = deque(maxlen=REPAIRS_MAX)
        self.count = 0
        self._lacked = False  # a channel, at the last look
        jobs.add("repair", self.look, Every(LOOK_S))

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[Repairer].of(
            self,
            counter(
                "vq_repairs",
                "Repairs of damaged ranges with bytes of another node.",
                lambda repairer: repairer.count,
                status="repairs",
            ),
        )

    # What this node has -------------------------------------------------------------------------
    async def is_behind(self) -> bool:
        """Whether another node in sync has more of a log than this one, which starts.

        Then this node may have lost the end of it: it must not lead before it has copied that.
        """
        group = self._context.group
        state = await read_state(self._coordinator, group)
        if state is None or self._node not in state.insync:
            return False
        found = False
        for node in state.insync:
            path = Registration.path(group, node)
            try:
                if node != self._node:
                    value = Registration.decode(path, (await self._coordinator.get(path)).data)
                    found |= await self._has_more(node, Address(value.host, value.port))
            except NoNode:
                pass
            except VqError as error:
                logger.info("node in sync cannot be asked what it has", node=node, error=error)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        return found

    async def _has_more(self, node: str, address: Address) -> bool:
        """Whether a node has more of a log than this one."""
        connection = await self._connect(address, ASK_TIMEOUT_S)
        hello: Any = connection.opened.result()
        if (hello.group, hello.node) != (self._context.group, node):
            return False
        more, after, found = True, ("", 0), False
        while more:
            request = wire.StatusRequest(
                with_partitions=True, after_topic=after[0], after_partition=after[1]
            )
            answer: Any
            answer, _ = await connection.request(Command.STATUS, request, timeout=ASK_TIMEOUT_S)
            for each in answer.partitions:
                after = each.topic, each.partition
                channel = self._partitions.channels.get(after)
                if channel is None:
                    continue
                ours = channel.start_offset if channel.log is None else channel.log.end_offset
                if each.log_end_offset > ours:
                    found = True
                    logger.warning(
                        "log ends before that of another node in sync",
                        partition=channel,
                        end=ours,
                        node=node,
                        end_there=each.log_end_offset,
                    )
            more = answer.more and bool(answer.partitions)
        return found

    async def give(
        self,
        channel: Channel,
        _session: Session,
        _request_id: RequestId,
        header: wire.RepairRequest,
    ) -> tuple[wire.RepairResponse, bytes]:
        """Answer a REPAIR."""
        log = holding(channel, header.start).log
        try:
            if log is None or not log.status.readable:
                raise PartitionQuarantined(f"the log of {channel} is not open here")
            pieces = log.reader.pieces(header.start, log.end_offset)
            pieces = [each._replace(start=max(each.start, header.start)) for each in pieces]
            most = min(max(1, header.max_bytes), REPAIR_BYTES)
            places = joined(each.place for each in pieces)
            data, following = await self._runner.run(
                lambda: read_intact(self._disk, pieces, header.start, most),
                Lane.ELSEWHERE if places else Lane.VERIFY,
                places,
            )
        except CorruptData as error:
            if any(each.start <= header.start < each.end for each in pieces):
                self._context.suspect(channel, header.start)  # perhaps nobody has read it before
            raise PartitionQuarantined(f"{channel}: {error}") from error
        except OSError as error:
            raise StorageFailed(f"{channel}: {error}") from error
        response = wire.RepairResponse(
            end_offset=header.start + len(data),
            following=following,
            epoch=channel.role.epoch,
        )
        return response, data

    # What this node lacks -----------------------------------------------------------------------
    async def look(self) -> None:
        """Repair what is damaged."""
        now = asyncio.get_running_loop().time()
        damaged = self._to_repair()
        sound = self._soundness
        sound.found = bool(damaged)
        lacks = await self._look_at_channels()
        sound.failed = lacks or any(each.failed for each in self._channels())
        for channel in damaged:
            if self.retries.is_due(channel, now):
                await self._try(channel)
        sound.found = sound.found and bool(self._to_repair())
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        retried = self.retries.failed
        for channel in [each for each in retried if each.state is ChannelState.CLOSED]:
            del retried[channel]
        if self._held:
            broken = set(self._to_repair())
            for channel in [each for each in self._held if each not in broken]:
                del self._held[channel]
                self._follower.release(channel)

    async def _look_at_channels(self) -> bool:
        """Return whether a channel is lacking; have the group know where the logs end if not.

        Only a registration says that, and this node's was made without these logs.
        """
        lacks = self._partitions.lacks_channel()
        if self._lacked and not lacks and not self._context.role.epoch:
            try:
                await self._presence.register_anew()
            except CoordinationError as error:
                logger.info("node cannot register anew, trying again", error=error)
                return lacks
        self._lacked = lacks
        return lacks

    def _channels(self) -> list[Channel]:
        return list(self._partitions.channels.values())

    def _to_repair(self) -> list[Channel]:
        damaged = set(self._verifier.damaged_channels())
        held = [each for each in self._channels() if each.span is not None]
        return [each for each in held if is_broken(each) or each in damaged]

    async def _try(self, channel: Channel) -> None:
        """Repair a partition, or note why that is not possible now."""
        try:
            await self._repair(channel)
            self.retries.failed.pop(channel, None)
        except Exception as error:  # the others are to be repaired, too
            if not isinstance(error, VqError | OSError):
                logger.exception("repairing failed", partition=channel)
            now = asyncio.get_running_loop().time()
            retry, is_new = self.retries.note(channel, error, now)
            if is_new:
                logger.warning(
                    "damage is not repaired, trying again",
                    partition=channel,
                    retry_s=round(retry.pause_s, 2),
                    error=error,
                )

    async def _repair(self, channel: Channel) -> None:
        """Repair all that is known to be damaged of a partition.

        Raises:
            VqError, OSError: Not all of it could be repaired.
        """
        for log, damage in self._verifier.known(channel):
            await self._replace(channel, damage, log)
            if log.start_offset < damage.end:
                await self._verifier.look_again(channel, log, damage.start, damage.end)
        for part in (*channel.older, channel):
            if part.log is not None and part.log.state is LogState.QUARANTINED:
                await self.heal(channel, part, part.log)
            elif part.state is ChannelState.UNREADABLE and part is not channel:
                await self._start_over(channel)
                return

    async def heal(self, channel: Channel, part: Channel, log: Log) -> None:
        """Repair what a log in quarantine lacks, and open it again."""
        x = log.end_offset
        found = await self._runner.run(
            lambda: find_damage(self._disk, log.directory, x), Lane.VERIFY
        )
        problem: VqError | OSError | None = None
        try:
            for damage in reversed(found):  # what follows one tells whether both logs are equal
                await self._replace(channel, damage)
        except (VqError, OSError) as error:
            problem = error
        else:
            if found:
                await self._partitions.logs.open_again(channel, part)
                logs = [each.log for each in (*channel.older, channel) if each.log is not None]
                opened = [each for each in logs if each.directory == log.directory]
                if opened and opened[0].state is not LogState.QUARANTINED:
                    return
        if problem is not None and not isinstance(problem, CorruptData):
            raise problem  # perhaps the other node is damaged, too: this log may be all there is
        await self._start_over(channel)

    async def _start_over(self, channel: Channel) -> None:
        """Put all that is here of a partition out of the way; it is copied anew.

        Raises:
            PartitionQuarantined: This node leads, or it is in sync until its master says otherwise.
        """
        role = self._context.role
        if not role.follows:
            raise PartitionQuarantined(f"{channel}: {channel.told[1] or 'it cannot be read'}")
        following = self._follower.following
        if following is None or following.address is None:
            raise PartitionQuarantined(f"{channel}: its master {role.follows} is not there")
        if channel not in self._held:
            self._held[channel] = False
            self._follower.hold(channel)  # if it is in sync, the node leaves the set by that
            raise PartitionQuarantined(f"{channel} is given up, and copied anew in a moment")
        await self._check_not_in_sync(channel)
        if not self._held[channel]:
            # A master may be about to name the node, by what it had. It cannot name the next
            # registration: by that one, nobody is told of the partitions that are held.
            held = list(self._held)
            await self._presence.register_anew()
            self._held.update(dict.fromkeys(held, True))
            await self._check_not_in_sync(channel)
        paths = await self._partitions.logs.give_up(channel)
        logger.warning(
            "damaged log is put aside and copied anew",
            partition=channel,
            master=role.follows,
            path=", ".join(map(str, paths)) or None,
        )

    async def _check_not_in_sync(self, channel: Channel) -> None:
        """Return if the group's record does not name this node.

        Raises:
            PartitionQuarantined: It may.
        """
        group = self._context.group
        await self._coordinator.sync(GroupState.path(group))  # it may know less than the master
        state = await read_state(self._coordinator, group)
        if state is None or self._node in state.insync:
            raise PartitionQuarantined(
                f"{channel} is copied anew when node {self._node} is not in sync any more"
            )

    # One range ----------------------------------------------------------------------------------
    async def _replace(self, channel: Channel, damage: BadRange, log: Log | None = None) -> None:
        """Replace the bytes of one range, unless retention drops them from ``log`` meanwhile.

        Raises:
            VqError, OSError: They could not be, or not all of them.
        """
        problem: VqError = PartitionQuarantined(f"no other node has {channel} at {damage.start}")
        for source in await self._sources(channel):
            try:
                await self._replace_from(channel, damage, source, log)
                return
            except (VqError, OSError) as error:
                if _is_dropped(log, damage):
                    return
                if not isinstance(error, VqError):
                    raise
                problem = error
        raise problem

    async def _replace_from(
        self, channel: Channel, damage: BadRange, source: RepairSource, log: Log | None
    ) -> None:
        disk, run = self._disk, self._runner.run
        damage, block = _located(log, damage)
        block_start = int(damage.path.stem)
        trusted = damage.end <= source.trusted_to or await self._joins(channel, damage, source)
        is_there = await run(lambda: disk.exists(damage.path), Lane.VERIFY)
        new = None if is_there else await run(lambda: NewBlock(disk, damage.path), Lane.VERIFY)
        todo, kept = damage, list[Path]()
        try:
            while todo.start < todo.end:
                data, following = await self._ask(channel, todo, source)
                at = todo

                def put(
                    at: BadRange = at, data: bytes = data, following: bytes = following
                ) -> tuple[int, Path | None]:
                    end = check_intact(disk, at, block_start, data, following, trusted=trusted)
                    if new is not None:
                        new.add(data)
                        return end, None
                    return end, put_back(disk, at.path, block_start, at.start, data)

                end, saved = await run(put, Lane.VERIFY)
                kept += [] if saved is None else [saved]
                todo = todo._replace(start=end)
            if new is not None and _is_dropped(log, damage):
                # It would come back to a log that begins behind it.
                await run(new.discard, Lane.VERIFY)
                return
            if new is not None and block is not None:
                await self._partitions.logs.archiving.put_back(
                    channel, block, new.finish, lambda: block.is_archived
                )
            elif new is not None:
                await run(new.finish, Lane.VERIFY)
        finally:
            if new is not None:
                await run(new.close, Lane.VERIFY)
        self._note(channel, damage, source, kept)

    async def _joins(self, channel: Channel, damage: BadRange, source: RepairSource) -> bool:
        """Whether the copy of the master is equal up to the damage, so that it may be copied on.

        What lies behind the damage here, if something does, decides more: see ``check_intact``.
        """
        following = self._follower.following
        if following is None or following.master != source.node:
            return False
        start = int(damage.path.stem)
        before = await self._runner.run(
            lambda: batch_before(self._disk, damage.path, start, damage.start), Lane.VERIFY
        )
        if before is None:
            return False
        offset, record = before
        data, _ = await self._ask(channel, damage._replace(start=offset, end=offset + 1), source)
        return data.startswith(record)

    async def _ask(
        self, channel: Channel, damage: BadRange, source: RepairSource
    ) -> tuple[bytes, bytes]:
        topic, number = channel.partition
        request = wire.RepairRequest(
            node=self._node,
            topic=topic,
            partition=number,
            topic_id=channel.topic_id,
            start=damage.start,
            end=damage.end,
            max_bytes=min(REPAIR_BYTES, damage.end - damage.start),
        )
        connection = await self._connect(source.address)
        answer: Any
        answer, data = await connection.request(Command.REPAIR, request, timeout=ANSWER_TIMEOUT_S)
        return data, answer.following

    async def _connect(
        self, address: Address, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> BrokerConnection:
        known = self._connections.get(address)
        if known is None or known.closed:
            known = self._connections[address] = await connect(
                self._network,
                address,
                client_id=f"repair.{self._context.group}.{self._node}",
                cluster=self._cluster,
                timeout=timeout_s,
                on_close=lambda _: None,
                login=MEMBER_LOGIN,
            )
            await self._secret.prove(known)
        return known

    async def _sources(self, channel: Channel) -> list[RepairSource]:
        """Return who may have bytes of a partition, the one that is known to be equal first."""
        role, everything = self._context.role, 1 << 63
        following = self._follower.following if role.follows else None
        if following is not None and following.address is not None and not following.waits:
            trusted = everything if self._follower.copies(channel) else 0
            return [RepairSource(following.master, following.address, trusted)]
        found = []
        parent = Registration.parent(role.group)
        nodes = await self._coordinator.children(parent)
        for node in sorted(nodes):
            if node == self._node:
                continue
            path = Registration.path(role.group, node)
            with contextlib.suppress(NoNode):
                value = Registration.decode(path, (await self._coordinator.get(path)).data)
                position = channel.copies.positions.get(node) if role.epoch else None
                trusted = 0 if position is None else position.offset
                found.append(RepairSource(node, Address(value.host, value.port), trusted))
        return sorted(found, key=lambda each: -each.trusted_to)

    def _note(
        self, channel: Channel, damage: BadRange, source: RepairSource, kept: list[Path]
    ) -> None:
        self.count += 1
        repair = Repair(
            channel.partition,
            damage.start,
            damage.end,
            source.node,
            damage.why,
            kept[0] if kept else None,
            self._context.clock.wall_ms(),
        )
        self.repairs.append(repair)
        logger.warning(
            "damage is repaired",
            partition=channel,
            start=damage.start,
            end=damage.end,
            file=damage.path,
            source=source.node,
            kept=repair.kept,
            cause=damage.why,
        )


def _located(log: Log | None, damage: BadRange) -> tuple[BadRange, Block | None]:
    """Return damage where its block is by now, and the block if it is archived.

    An archive is not written to: a block file takes its place, with all bytes of another node.
    """
    block = None if log is None else log.reader.block_at(damage.start)
    if block is None:
        return damage, None
    if block.archive is None:
        return damage._replace(path=block.path), None
    path = ArchiveFiles.of(block.path).block
    return BadRange(block.start_offset, block.end_offset, path, damage.why), block


def _is_dropped(log: Log | None, damage: BadRange) -> bool:
    """Whether retention has dropped what is damaged."""
    return log is not None and log.start_offset >= damage.end
