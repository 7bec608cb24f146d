"""The life of one broker process: start, mastership, load, disk, stop.

    start:  data directory (identity, lock) → ZooKeeper → topics → open logs → listen
            → register, claim mastership → epoch on disk → serve
    stop:   hand over → refuse PUTs → finish flushes → close logs → leave ZooKeeper
            → close connections

A node whose coordinator gave up reports it (``failed``), and its caller stops it: without ZooKeeper
it can neither register again nor read topics.

Everything a node needs from outside comes through its constructor, so that it runs the same on a
virtual clock with disk, network and ZooKeeper in memory. ``main`` builds the real thing.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from prometheus_client.metrics_core import Metric

from vq.broker.base.alarm import Alarm, LoopAlarm
from vq.broker.base.config import BrokerConfig
from vq.broker.base.jobs import While
from vq.broker.base.process import Process
from vq.broker.base.runner import Runner, ThreadRunner
from vq.broker.base.tasks import Tasks
from vq.broker.parts import Front, Outside, Parts
from vq.broker.standing.gate import Stage
from vq.clock import Clock
from vq.coordination.brokers.registry import retried
from vq.coordination.leases.acts import begin_acts
from vq.coordination.tree.coordinator import Coordinator, SessionState
from vq.errors import (
    CoordinationError,
    HandOverFailed,
    InvalidState,
    NotMaster,
    ShuttingDown,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting.transport import Network
from vq.security.tls import TlsContexts
from vq.store.commit.flusher import Flusher, FlushRunner, ThreadFlusher
from vq.store.directory.directories import DataDirectories
from vq.store.disk.disk import Disk
from vq.store.log.log_config import LogConfig

T = TypeVar("T")

logger = get_logger(__name__)


class BrokerNode:
    """One broker. ``start`` once, ``stop`` once; both on the loop it lives on.

    Args:
        config: Its settings.
        coordinator: Not started yet; the node starts and closes it.
        network: Where it listens.
        disk: Where its data are.
        clock: Time.
        rng: For secrets, nonces and back-off; a real broker has one that nobody can foresee.
        flushers: One for each data directory, the main one first; (): a thread for each.
        runner: For blocking work; None: a thread of its own.
        log_config: Sizes of its logs; None: the usual ones, with the block size of ``config``.
        process: Whose loop this is, for its load, its metrics and operators.
        alarm: Rings when a job is due; None: the timers of the loop do.
        metrics_network: Where metrics and health are served; None: ``network``.
        contexts: What these two serve TLS with, if they do.
        spins: The loop may look again for a moment instead of sleeping, see ``LoopSpin``: it runs
            by real time.

    Attributes:
        hangs: A stop, or a start that failed, left threads behind in calls to the disk.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        coordinator: Coordinator,
        network: Network,
        disk: Disk,
        clock: Clock,
        rng: random.Random,
        flushers: Sequence[Flusher] = (),
        runner: Runner | None = None,
        log_config: LogConfig | None = None,
        process: Process | None = None,
        alarm: Alarm | None = None,
        metrics_network: Network | None = None,
        contexts: Sequence[TlsContexts] = (),
        spins: bool = False,
    ) -> None:
        self.config = config
        self._process = process or Process()
        self._outside = Outside(
            coordinator=coordinator,
            network=network,
            disk=disk,
            clock=clock,
            rng=rng,
            flushers=tuple(flushers)
            or tuple(ThreadFlusher(FlushRunner(clock)) for _ in config.directories),
            runner=runner or ThreadRunner(),
            log_config=log_config or LogConfig(block_bytes=config.block_bytes),
            process=self._process,
            alarm=alarm or LoopAlarm(),
            metrics_network=metrics_network or network,
            contexts=tuple(contexts),
            spins=spins,
        )
        self._tasks = Tasks()
        self._directory: DataDirectories | None = None
        self._parts: Parts | None = None
        self._failure: VqError | None = None
        self._failed = asyncio.Event()
        self._remove_listener: Callable[[], None] | None = None
        self.hangs = False

    @property
    def parts(self) -> Parts:
        """Its parts.

        Raises:
            InvalidState: It has none yet: its data directories are not open.
        """
        if self._parts is None:
            raise InvalidState("the broker has no parts yet: it was not started")
        return self._parts

    @property
    def address(self) -> Address:
        """Where it listens.

        Raises:
            InvalidState: It does not.
        """
        return self.parts.server.address

    @property
    def epoch(self) -> int:
        """Epoch of its mastership, 0 while it has none."""
        return self.parts.context.role.epoch

    def look_at_certificate(self) -> None:
        """Look now whether the files of TLS have changed."""
        if self._parts is not None:
            self._parts.certificate.look_soon()

    async def families(self) -> Iterable[Metric]:
        """Return the families of metrics as they are now."""
        return await self.parts.monitor.families()

    # Start --------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Return when the broker is registered and serves.

        Raises:
            DirectoryRefused: The data directory is another broker's, another cluster's, of a
                newer format, or in use.
            AddressUnavailable: The port is taken.
            CoordinationError: ZooKeeper cannot be reached, or this node may not lead its group.
        """
        try:
            await self._start()
        except BaseException:
            # In a task of its own: up to Python 3.11.2, asyncio.timeout raises no TimeoutError in a
            # task that was cancelled before.
            await asyncio.create_task(self._abandon())
            raise

    async def _start(self) -> None:
        config, outside = self.config, self._outside
        coordinator, keep = outside.coordinator, self._tasks.keep
        front = Front(config, outside, self._tasks)
        self._directory = await front.disks.open()
        await front.disks.release_reserves()
        self._parts = parts = Parts(config, outside, self._tasks, front, self._directory)
        keep(parts.follower.run, "copy from the master")
        keep(parts.insync.run, "look at the copies")
        parts.diverged.look_soon()
        parts.jobs.begin(While.STARTED)
        parts.disks.look_now()
        await parts.monitor.start(outside.metrics_network, self._tasks)
        await coordinator.start(config.start_timeout_s)
        self._remove_listener = coordinator.add_listener(self._on_session)
        # A server that lags behind knows too few topics, or too many.
        await self._until_answered(coordinator.sync)
        await self._until_answered(parts.secret.start)
        await self._until_answered(partial(begin_acts, coordinator))
        if parts.users is not None:
            await self._until_answered(parts.users.start)
            parts.users.follow()
        await self._until_answered(parts.quotas.start)
        if parts.authority.enabled:
            if not config.authentication.asks:
                logger.warning(
                    "all users are anonymous to the rules of access",
                    authentication=config.authentication,
                    authorization=config.authorization,
                )
            await self._until_answered(parts.rules.start)
            parts.server.swept.listen(parts.authority.tell)
        await self._until_answered(parts.partitions.view.refresh)
        parts.partitions.logs.story.end()
        await self._until_answered(parts.partitions.leftovers.look_for_strangers)
        in_logs = parts.partitions.highest_epoch()
        await parts.runner.run(lambda: parts.epoch_file.check(in_logs))
        await parts.server.listen(
            outside.network, Address(config.host, config.port), parts.dispatcher.take
        )
        for place in parts.disks.places.values():
            place.storer.start()
        keep(parts.server.run, "look at silent connections")
        await self._register_and_lead(parts)
        keep(parts.mastership.run, "take epochs")
        keep(parts.hand_over.keep_drained, "hand over when drained")
        keep(parts.partitions.view.run, "follow topics")
        parts.jobs.begin(While.REGISTERED)
        parts.upkeep.start()
        parts.gate.started()
        role = parts.context.role
        logger.info(
            "broker started",
            group=config.group,
            node=config.node,
            address=self.address,
            leads=role.epoch > 0,
            follows=role.follows or None,
            epoch=role.epoch,
            partitions=len(parts.partitions.channels),
            topics=len(parts.partitions.view.topics),
        )

    async def _register_and_lead(self, parts: Parts) -> None:
        await parts.presence.check()  # before waiting for a node that another directory left
        damaged = parts.soundness.look_at_start()
        if damaged or await self._until_answered(parts.repairer.is_behind):
            await parts.doubt.begin()
        await parts.presence.begin(
            self.config.advertised or self.address,
            metrics_port=parts.monitor.port,
            pid=self._process.pid,
        )
        await parts.mastership.take_first()
        await parts.partitions.lead()

    async def _until_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask ZooKeeper, and ask again when the connection ends before the answer.

        It does where the machine stalls for longer than the session lasts, and a node that starts
        may wait: it serves nobody yet.
        """
        return await retried(ask, self.config.start_timeout_s, self._outside.rng)

    async def _abandon(self) -> None:
        """Give back what a start that failed has taken, within about ``stop_timeout_s``."""
        self._unlisten()
        parts = self._parts
        if parts is not None:
            parts.server.stop_listening()
        try:
            async with asyncio.timeout(self.config.stop_timeout_s):
                await self._end_background()
                if parts is not None:
                    await parts.presence.end()
                    self._close_storers(parts)
                    await parts.monitor.close()
                await self._outside.coordinator.close()
                await self._outside.runner.close()
                if self._directory is not None:
                    self._directory.close()
        except TimeoutError:
            self.hangs = True
            logger.warning(
                "cleaning up after a failed start takes too long",
                timeout_s=self.config.stop_timeout_s,
            )

    # The session --------------------------------------------------------------------------------
    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CLOSED and self.parts.gate.stage is not Stage.STOPPING:
            config = self.config
            self._failure = CoordinationError(
                f"broker {config.group}/{config.node} cannot go on without ZooKeeper at "
                f"{config.zookeeper}: {self._outside.coordinator.why_closed}"
            )
            self._failed.set()

    def _unlisten(self) -> None:
        if self._remove_listener is not None:
            self._remove_listener()
            self._remove_listener = None

    async def failed(self) -> VqError:
        """Return why the node cannot go on, once that is so; stopping it is the caller's."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    # Stop ---------------------------------------------------------------------------------------
    async def stop(self) -> bool:
        """End gracefully, within about ``stop_timeout_s`` whatever hangs. Stopping twice is fine.

        Returns:
            Whether everything ended; otherwise threads may still hang in calls to the disk.
        """
        parts = self._parts
        if parts is None or not parts.gate.serves:
            return True
        parts.gate.leave()
        await self.hand_over_before_stop()
        self._unlisten()
        parts.gate.stop()
        try:
            async with asyncio.timeout(self.config.stop_timeout_s):
                await self._stop(parts)
        except TimeoutError:
            self.hangs = True
            logger.warning("broker did not stop in time", timeout_s=self.config.stop_timeout_s)
            # Tasks first: without a session, each would log that it failed.
            for close in (self._end_background, self._outside.coordinator.close):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await close()
            return False
        logger.info("broker stopped", group=self.config.group, node=self.config.node)
        return True

    async def hand_over_before_stop(self) -> None:
        """If this node leads, have another one in sync take over; bounded, and no error."""
        parts = self.parts
        connected = self._outside.coordinator.state is SessionState.CONNECTED
        if not self.epoch or not connected or parts.context.role.alone:
            return
        try:
            timeout_s = self.config.stop_timeout_s / 2
            await parts.hand_over.run(resigns=True, timeout_s=timeout_s)
        except (HandOverFailed, NotMaster) as error:
            logger.warning("broker stops without a successor", error=error)

    async def _end_background(self) -> None:
        """End what goes on beside requests."""
        parts = self._parts
        if parts is None:
            await self._tasks.close()
            return
        parts.jobs.close()
        if parts.users is not None:
            await parts.users.stop()
        await asyncio.gather(
            self._tasks.close(),
            parts.upkeep.stop(),
            parts.rules.stop(),
            parts.quotas.stop(),
            parts.timers.readers.close(),
            parts.journals.readers.close(),
            parts.shared.readers.close(),
        )
        await parts.outbox.close()

    @staticmethod
    def _close_storers(parts: Parts) -> None:
        for place in parts.disks.places.values():
            place.storer.close()

    async def _stop(self, parts: Parts) -> None:
        error = ShuttingDown(f"broker {self.config.group}/{self.config.node} is stopping")
        server, partitions = parts.server, parts.partitions
        server.stop_listening()
        await parts.presence.end()  # clients look elsewhere from here on
        await partitions.close_all(error, saves_s=self.config.stop_timeout_s / 2)
        server.turn.run()
        await self._end_background()
        self._close_storers(parts)
        if partitions.all_flushed:
            await parts.doubt.clear()
        await self._outside.coordinator.close()
        server.end_all(error)
        await asyncio.sleep(0)
        await parts.monitor.close()
        await parts.runner.close()
        parts.directory.close()  # the next broker may have it once nothing is done in it any more
        await server.wait_closed()
