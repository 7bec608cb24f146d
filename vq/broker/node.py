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
import logging
import random
from collections.abc import Callable, Iterable
from enum import Enum

from prometheus_client.metrics_core import Metric

from vq import limits
from vq.broker.archive_runs import Archiver
from vq.broker.archives import Archives
from vq.broker.cold_reads import ColdReads
from vq.broker.config import BrokerConfig
from vq.broker.context import Context, Role
from vq.broker.daily import DailyTime
from vq.broker.daily_runs import Alarm, DailyRuns, no_alarm
from vq.broker.disk_watch import DiskLevel, DiskWatch
from vq.broker.dispatcher import Dispatcher
from vq.broker.diverged_files import DivergedFiles
from vq.broker.epoch_file import EpochFile
from vq.broker.fetching import Fetches
from vq.broker.flusher import Flusher, FlushRunner, ThreadFlusher
from vq.broker.following import Follower
from vq.broker.handing_over import HandOver
from vq.broker.histogram import Histogram
from vq.broker.insync_set import InSyncSet
from vq.broker.lag import Lags
from vq.broker.lease import Lease
from vq.broker.load import FlushMeter, LoadMeter, LoadPublisher
from vq.broker.logs import Logs
from vq.broker.mastership import Mastership
from vq.broker.membership import Membership
from vq.broker.metrics import BrokerMetrics
from vq.broker.monitor import Monitor, Watched
from vq.broker.moving import Mover
from vq.broker.partitions import Partitions
from vq.broker.repairing import Repairer
from vq.broker.reserve import Reserve
from vq.broker.retaining import Retainer
from vq.broker.runner import Lane, Runner, ThreadRunner
from vq.broker.scrubbing import Scrubber
from vq.broker.server import Server
from vq.broker.soundness import Soundness
from vq.broker.status import StatusReport
from vq.broker.storer import Storer
from vq.broker.tasks import Tasks
from vq.broker.turn import Turn
from vq.broker.verifying import Verifier
from vq.clock import Clock
from vq.coordination.coordinator import Coordinator, SessionState
from vq.coordination.dead_masters import remove_dead_master
from vq.coordination.leadership import Following, Leadership
from vq.coordination.paths import BrokerLoad
from vq.coordination.registry import BrokerRegistration
from vq.errors import (
    Busy,
    CoordinationError,
    DiskFull,
    HandOverFailed,
    InvalidState,
    NotMaster,
    ShuttingDown,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting.connection import ServerIdentity
from vq.remoting.format import Command
from vq.remoting.membership import Member
from vq.remoting.transport import Listener, Network
from vq.store.directory import DataDirectory
from vq.store.disk import Disk
from vq.store.log import LogConfig
from vq.version import __version__

logger = get_logger(__name__)


#: How often the trash, and the record of begun logs, are looked at, at least.
_TIDY_INTERVAL_S = 60.0


class Stage(Enum):
    """How far a node is with its end."""

    SERVING = "serving"
    LEAVING = "leaving"
    """It hands over, and follows nobody any more."""
    STOPPING = "stopping"
    """It takes no more requests."""


class BrokerNode:
    """One broker. ``start`` once, ``stop`` once; both on the loop it lives on.

    Args:
        config: Its settings.
        coordinator: Not started yet; the node starts and closes it.
        network: Where it listens.
        disk: Where its data are.
        clock: Time.
        rng: For secrets, nonces and back-off; a real broker has one that nobody can foresee.
        flusher: None: a thread of its own.
        runner: For blocking work; None: a thread of its own.
        log_config: Sizes of its logs; None: the usual ones, with the block size of ``config``.
        cpu_s: Returns the processor time of the calling thread, for its load; None: not measured.
        pid: Of its process, for operators; 0: not known.
        process_metrics: Returns families about the process, for the page of metrics.
        alarm: Rings when the daily run of the archive is due.

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
        flusher: Flusher | None = None,
        runner: Runner | None = None,
        log_config: LogConfig | None = None,
        cpu_s: Callable[[], float] | None = None,
        pid: int = 0,
        process_metrics: Callable[[], Iterable[Metric]] = tuple,
        alarm: Alarm = no_alarm,
    ) -> None:
        self.config = config
        self._coordinator = coordinator
        self._network = network
        self._disk = disk
        self._clock = clock
        self._rng = rng
        self._flushes = FlushMeter(
            flusher or ThreadFlusher(FlushRunner(clock)),
            clock,
            lambda: self._server.requests_waiting,
        )
        self._runner: Runner = runner or ThreadRunner()
        self._log_config = log_config or LogConfig(block_bytes=config.block_bytes)
        self._cpu_s = cpu_s
        self._pid = pid
        self._alarm = alarm
        self._monitor = Monitor(config, coordinator, process_metrics)
        self._tasks = Tasks()
        self._lease = Lease(coordinator, clock)
        asker = Member(config.group, config.node)
        self._membership = Membership(coordinator, clock, self._tasks, rng.randbytes, asker)
        self._reserve = Reserve(config.data, disk)
        self._epoch_file = EpochFile(config.data, disk)
        self._disk_watch = DiskWatch(config.disk_warn, config.disk_refuse, config.disk_resume)
        self._listener: Listener | None = None
        self._registration: BrokerRegistration | None = None
        self._leadership: Leadership | None = None
        self._directory: DataDirectory | None = None
        self._stage = Stage.SERVING
        self._failure: VqError | None = None
        self._failed = asyncio.Event()
        self._remove_listener: Callable[[], None] | None = None
        self.hangs = False

    @property
    def address(self) -> Address:
        """Where it listens.

        Raises:
            InvalidState: It does not.
        """
        if self._listener is None:
            raise InvalidState("the broker does not listen: it was not started, or it stopped")
        return self._listener.address

    @property
    def epoch(self) -> int:
        """Epoch of its mastership, 0 while it has none."""
        return self._context.role.epoch

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
        config = self.config
        self._directory = await self._runner.run(
            lambda: DataDirectory.open(
                config.data, config.cluster, config.group, config.node, self._disk
            )
        )
        await self._runner.run(self._reserve.release_if_short)
        watched = self._build(self._directory)
        self._look_at_disk()
        await self._monitor.start(watched, self._network, self._tasks)
        await self._coordinator.start(config.start_timeout_s)
        self._remove_listener = self._coordinator.add_listener(self._on_session)
        await (
            self._coordinator.sync()
        )  # a server that lags behind knows too few topics, or too many
        await self._membership.start()
        await self._partitions.view.refresh()
        self._partitions.logs.story.end()
        await self._partitions.look_for_strangers()
        in_logs = self._partitions.highest_epoch()
        await self._runner.run(lambda: self._epoch_file.check(in_logs))
        self._listener = await self._network.listen(
            Address(config.host, config.port),
            self._server.new_session,
            on_full=self._server.end_silent,
        )
        self._storer.start()
        self._tasks.keep(self._sweep, "look at silent connections")
        await self._register_and_lead()
        self._tasks.keep(self._partitions.view.run, "follow topics")
        self._tasks.keep(self._watch_disk, "watch the disk")
        self._tasks.keep(self._publish_load, "publish the load")
        self._tasks.keep(self._tidy, "tidy up")
        self._tasks.keep(watched.archiver.run, "archive")
        self._tasks.keep(self._daily_runs().run, "make daily runs")
        self._tasks.keep(self._purge_elsewhere, "purge archives elsewhere")
        self._monitor.has_started = True
        logger.info(
            "broker started",
            group=config.group,
            node=config.node,
            address=self._listener.address,
            leads=self._context.role.epoch > 0,
            follows=self._context.role.follows or None,
            epoch=self._context.role.epoch,
            partitions=len(self._partitions.channels),
            topics=len(self._partitions.view.topics),
        )

    def _build(self, directory: DataDirectory) -> Watched:
        """Make the parts and tie them together; return what ``monitor`` looks at."""
        config, clock = self.config, self._clock
        loop = asyncio.get_running_loop()
        turn = Turn(loop.call_soon)
        self._storer = Storer(self._flushes, turn)
        role = Role(group=config.group, holds=self._lease.holds)
        self._context = Context(
            group=config.group,
            roles={role.group: role},
            storer=self._storer,
            clock=clock,
            call_later=loop.call_later,
            acknowledged=None if config.metrics_port == 0 else Histogram(),
        )
        self._logs = Logs(
            directory,
            disk=self._disk,
            clock=clock,
            config=self._log_config,
            reserve=self._reserve,
        )
        self._partitions = Partitions(
            self._context,
            self._coordinator,
            self._logs,
            runner=self._runner,
            tasks=self._tasks,
            refresh_interval_s=config.refresh_interval_s,
        )
        mover = Mover(
            self._context,
            self._coordinator,
            self._partitions,
            tasks=self._tasks,
            seal_timeout_s=config.seal_timeout_s,
        )
        follower = Follower(
            self._partitions.channels.values,
            self._partitions.logs,
            self._network,
            cluster=config.cluster,
            group=config.group,
            node=config.node,
            prove=self._membership.prove,
            rng=self._rng,
            on_dead=self._master_is_dead,
            bytes_per_s=config.catch_up_bytes_per_s,
        )
        self._tasks.keep(follower.run, "copy from the master")
        self._partitions.on_added = follower.look
        insync = InSyncSet(
            role,
            self._lease,
            self._coordinator,
            self._partitions.channels.values,
            clock,
            node=config.node,
        )

        def begin() -> None:
            self._partitions.begin_epoch()
            insync.begin()

        self._tasks.keep(insync.run, "look at the copies")
        self._hand_over = HandOver(
            role,
            self._coordinator,
            self._partitions.channels.values,
            clock,
            tasks=self._tasks,
            node=config.node,
            timeout_s=config.hand_over_timeout_s,
            on_hold=self._hold_puts,
        )
        self._mastership = Mastership(
            role,
            self._lease,
            self._coordinator,
            self._runner,
            node=config.node,
            store=self._store_epoch,
            accept=self._accept_epoch,
            begin=begin,
            on_change=lambda: self._mastership_changed(follower),
        )
        fetches = Fetches(self._partitions, self._context, turn, config.connections)
        verifier = Verifier(
            self._context,
            disk=self._disk,
            runner=self._runner,
            tasks=self._tasks,
            bytes_per_s=config.verify_bytes_per_s,
        )
        status = StatusReport(config, self._context, self._partitions, self._disk_watch, verifier)
        diverged = DivergedFiles(config.data, self._disk, self._runner, self._tasks)
        diverged.look_soon()
        self._partitions.logs.on_cut = diverged.look_soon
        diverged.on_deleted = self._partitions.look_at_losses
        status.diverged = diverged
        repairer = Repairer(
            self._context,
            self._partitions,
            follower,
            verifier,
            self._coordinator,
            prove=self._membership.prove,
            renew=self._register_anew,
            network=self._network,
            disk=self._disk,
            runner=self._runner,
            tasks=self._tasks,
            cluster=config.cluster,
            node=config.node,
            rng=self._rng,
        )
        self._tasks.keep(repairer.run, "repair damage")
        self._soundness = Soundness(
            role,
            clock,
            repairer,
            tell=self._tell_damage,
            hand_over=self._hand_over.run,
            suspend=follower.suspend,
        )
        scrubber = Scrubber(
            self._partitions.channels,
            verifier,
            disk=self._disk,
            runner=self._runner,
            clock=clock,
            data=config.data,
            bytes_per_s=config.scrub_bytes_per_s,
            interval_s=config.scrub_interval_s,
        )
        self._tasks.keep(scrubber.run, "scrub")
        retainer = Retainer(
            self._partitions.channels.values,
            self._partitions.logs,
            self._coordinator,
            disk=self._disk,
            runner=self._runner,
            clock=clock,
            interval_s=config.retention_interval_s,
        )
        self._tasks.keep(retainer.run, "retention")
        archiver = Archiver(
            self._partitions.channels.values,
            self._partitions.logs,
            self._coordinator,
            group=config.group,
            node=config.node,
            disk=self._disk,
            runner=self._runner,
            clock=clock,
            counters=self._context.counters,
            rng=self._rng,
            stops=lambda: self._stage is not Stage.SERVING,
        )
        self._tasks.keep(
            lambda: self._partitions.logs.discard_archives(self._partitions.channels.values),
            "remove archives elsewhere",
        )
        status.held = lambda: retainer.held
        status.archive_run = lambda: archiver.last
        status.scrub, status.repairs = lambda: scrubber.position, lambda: repairer.count
        status.next_scrub_ms = scrubber.next_ms
        self._context.suspect = verifier.suspect
        self._context.fetch_cold = ColdReads(self._runner, self._tasks).add
        self._dispatcher = Dispatcher(
            self._partitions,
            mover,
            self._context,
            status.report,
            fetches,
            verifier,
            diverged.answer,
            repairer,
        )
        self._dispatcher.add(Command.HAND_OVER, self._hand_over.handle)
        archives = Archives(self._partitions.channels, self._partitions.logs, self._tasks)
        self._dispatcher.add(Command.ARCHIVE, archives.answer)
        self._server = Server(
            config.connections,
            handlers=self._dispatcher.handlers,
            turn=turn,
            clock=clock,
            identity=self._identity(0),
            proving=self._membership.proving,
        )
        status.server = self._server
        status.problems = lambda: self._problems(follower)
        status.not_copied = follower.not_copied
        lags = Lags(self._partitions.channels.values, lambda: role.epoch > 0, clock, self._runner)
        status.lags = lags.told
        self._tasks.keep(lags.run, "measure lags")
        watched = Watched(
            metrics=BrokerMetrics(
                config, self._context, self._server, self._flushes, self._disk_watch, status
            ),
            channels=self._partitions.channels,
            count_damage=verifier.count_damage,
            lags=lags,
            retainer=retainer,
            archiver=archiver,
            registered=lambda: bool(self._registration and self._registration.incarnation),
            not_ready=self._not_ready,
        )
        self._update_refusal()
        return watched

    def _daily_runs(self) -> DailyRuns:
        topics = self._partitions.view
        return DailyRuns(
            self._coordinator,
            self._clock,
            at=DailyTime.parse(self.config.archive_at),
            by=f"{self.config.group}/{self.config.node}",
            topics=lambda: [each.settings for each in topics.topics.values()],
            alarm=self._alarm,
            rng=self._rng,
        )

    def _problems(self, follower: Follower) -> list[str]:
        """Return what is wrong with the node as a whole, for STATUS."""
        # To follow another node is no problem.
        refusal = None if self._dispatcher.refusal is not None else self._dispatcher.put_refusal
        gone = self._soundness.directory_gone
        found = [
            self._listener.trouble if self._listener is not None else "",
            self._gone_text() if gone else str(refusal or ""),
            "" if gone else follower.problem,
            self._mastership.waits,
        ]
        return [*filter(None, found), *self._partitions.told_problems()]

    def _not_ready(self) -> list[str]:
        """Return why the node does not do its work, apart from ZooKeeper."""
        if self._stage is not Stage.SERVING:
            return ["the node is stopping"]
        if self._soundness.directory_gone:
            return ["the data directory is gone, messages are refused"]
        if self._disk_watch.level is DiskLevel.REFUSE:
            return [f"the disk is {self._disk_watch.used_share:.1%} full, messages are refused"]
        return []

    async def families(self) -> Iterable[Metric]:
        """Return the families of metrics as they are now."""
        return await self._monitor.families()

    def _identity(self, incarnation: int) -> ServerIdentity:
        config = self.config
        return ServerIdentity(
            cluster=config.cluster,
            group=config.group,
            node=config.node,
            incarnation=incarnation,
            broker_version=__version__,
        )

    async def _abandon(self) -> None:
        """Give back what a start that failed has taken, within about ``stop_timeout_s``."""
        self._unlisten()
        if self._listener is not None:
            self._listener.close()
        try:
            async with asyncio.timeout(self.config.stop_timeout_s):
                await self._tasks.close()
                await self._leave()
                if hasattr(self, "_storer"):
                    self._storer.close()
                await self._monitor.close()
                await self._coordinator.close()
                await self._runner.close()
                if self._directory is not None:
                    self._directory.close()
        except TimeoutError:
            self.hangs = True
            logger.warning(
                "cleaning up after a failed start takes too long",
                timeout_s=self.config.stop_timeout_s,
            )

    # Mastership ---------------------------------------------------------------------------------
    async def _register_and_lead(self) -> None:
        config, directory = self.config, self._directory
        assert directory is not None
        self._leadership = Leadership(
            self._coordinator,
            group=config.group,
            node=config.node,
            directory=directory.identity.id,
            accept_data_loss=config.accept_data_loss,
            lost_power=lambda: directory.unflushed.lost,
            damaged=self._soundness.has_damage,
            rng=self._rng,
            on_change=self._mastership.stands,
            on_in_sync=self._is_in_sync,
        )
        await self._leadership.check()  # before waiting for a node that another directory left
        if await self._soundness.may_lack_messages():
            await self._doubt_logs(directory)
        self._registration = BrokerRegistration(
            self._coordinator,
            self._clock,
            group=config.group,
            node=config.node,
            address=config.advertised or self.address,
            metrics_port=self._monitor.port,
            version=__version__,
            directory=directory.identity.id,
            pool=config.pool,
            labels=config.labels,
            pid=self._pid,
            rack=config.rack,
            lost_power=lambda: directory.unflushed.lost,
            damaged=lambda: self._soundness.damaged,
            rng=self._rng,
            on_change=self._registration_changed,
        )
        await self._registration.start()
        await self._leadership.start()
        await self._mastership.take_first()
        await self._partitions.lead()
        self._tasks.keep(self._mastership.run, "take epochs")
        self._tasks.keep(self._hand_over.keep_drained, "hand over when drained")
        self._tasks.keep(self._soundness.run, "hand over when damaged")

    def _tell_damage(self) -> None:
        """Have registration and leadership look at what has changed, and the next start know it."""
        assert self._registration is not None
        assert self._leadership is not None
        assert self._directory is not None
        if self._soundness.damaged:
            self._directory.unflushed.lost = True  # at once: a repair may come before the disk
            self._tasks.start(self._doubt_logs(self._directory))
        elif self._context.role.epoch:
            self._is_in_sync()
        self._registration.look()
        self._leadership.look()

    def _registration_changed(self, incarnation: int | None) -> None:
        assert self._leadership is not None
        self._leadership.registered(incarnation)
        if incarnation is None:
            # Whether to go on acting is the lease's decision, not that of a lost session.
            logger.warning("registration lost, messages are taken while the lease allows it")

    async def _master_is_dead(self, following: Following) -> None:
        """Have the group elect another master now, not when the session of the dead one ends."""
        group = self.config.group
        if await remove_dead_master(self._coordinator, group, self.config.node, following):
            logger.warning(
                "master is dead, its registration is removed",
                group=group,
                master=following.master,
                address=following.address,
                epoch=following.epoch,
            )

    async def _register_anew(self) -> None:
        if self._registration is None:
            raise CoordinationError("this node is not registered yet")
        await self._registration.renew()

    def _is_in_sync(self) -> None:
        """Take that this node has all that counts, whatever a loss of power took before.

        Not while it has damage: its next start may not find that again, as it reads no more than
        what follows a checkpoint.
        """
        assert self._directory is not None
        if self._directory.unflushed.lost and not self._soundness.damaged:
            self._directory.unflushed.lost = False
            self._tasks.start(self._settle_unflushed())

    async def _doubt_logs(self, directory: DataDirectory) -> None:
        """Take that something is missing, however that came, until this node has caught up."""
        try:
            await self._runner.run(directory.unflushed.doubt)
        except OSError as error:
            logger.warning("next start may not know that messages are missing", error=error)

    async def _settle_unflushed(self) -> None:
        assert self._directory is not None
        try:
            await self._runner.run(self._directory.unflushed.settle)
        except OSError as error:  # the next start may wait for other nodes without need
            logger.warning("a loss of power cannot be forgotten", error=error)

    async def _clear_unflushed(self) -> None:
        """Note that a loss of power takes nothing from here on, if everything is flushed."""
        assert self._directory is not None
        if self._partitions.all_flushed:
            try:
                await self._runner.run(self._directory.unflushed.clear)
            except OSError as error:
                logger.warning("a clean stop cannot be noted", error=error)

    async def _leave(self) -> None:
        """Claim the group no more and take the registration back."""
        if self._leadership is not None:
            await self._leadership.stop()
        if self._registration is not None:
            await self._registration.stop()

    def _store_epoch(self, epoch: int) -> None:
        self._reserve.spend(
            lambda: self._epoch_file.store(epoch),
            "not even the broker's epoch can be stored",
        )

    def _accept_epoch(self, epoch: int) -> None:
        self._reserve.spend(
            lambda: self._epoch_file.accept(epoch),
            "not even the epoch of the group's master can be stored",
        )

    def _mastership_changed(self, follower: Follower) -> None:
        acting = self._mastership.acting
        following = acting if isinstance(acting, Following) else None
        if acting is not None:
            self._server.identity = self._identity(acting.incarnation)
            self._dispatcher.epoch = acting.epoch
        follows = self._context.role.follows
        self._dispatcher.refusal = self._mastership.refusal if follows else None
        follower.follow(following if self._stage is Stage.SERVING else None)
        if following is None and acting is not None:
            self._tasks.start(self._partitions.lead())
        self._update_refusal()
        self._hand_over.look()
        self._dispatcher.release_puts()

    def _hold_puts(self, holds: bool) -> None:
        self._update_refusal()
        self._dispatcher.hold_puts(holds)

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CLOSED and self._stage is not Stage.STOPPING:
            config = self.config
            self._failure = CoordinationError(
                f"broker {config.group}/{config.node} cannot go on without ZooKeeper at "
                f"{config.zookeeper}: {self._coordinator.why_closed}"
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

    # What goes on beside requests ---------------------------------------------------------------
    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.config.connections.sweep_interval_s)
            self._server.sweep()

    async def _publish_load(self) -> None:
        """Publish the load and look at the group, for ever; log each cause of a failure once."""
        assert self._registration is not None
        meter = LoadMeter(self._context.counters, self._flushes, self._clock, self._cpu_s)
        publisher = LoadPublisher(self._registration, self._clock)
        cause = ""
        while True:
            try:
                await publisher.publish(self._measure(meter))
                await self._mastership.look_at_group()
                cause = ""
            except (CoordinationError, InvalidState) as error:
                if cause != str(error):
                    logger.info("load cannot be published, trying again later", error=error)
                cause = str(error)
            spread = 1 - limits.LOAD_JITTER + 2 * limits.LOAD_JITTER * self._rng.random()
            await asyncio.sleep(self.config.load_interval_s * spread)

    def _measure(self, meter: LoadMeter) -> BrokerLoad:
        channels = self._partitions.channels
        logs = [each.log for each in channels.values() if each.log is not None]
        return meter.measure(
            disk_free=self._disk_watch.free,
            disk_total=self._disk_watch.total,
            stored_bytes=sum(log.size_bytes for log in logs),
            partitions=len(channels),
        )

    async def _tidy(self) -> None:
        """Save which logs were begun here, those found at the start, too.

        Remove data of deleted topics after a while, in which an operator may take them back.
        """
        keep_s = self.config.trash_keep_s
        while True:
            await self._partitions.save_begun()
            await self._partitions.look_at_losses()
            try:
                removed = await self._runner.run(lambda: self._logs.purge_trash(keep_s), Lane.PURGE)
            except OSError as error:
                logger.warning("trash cannot be emptied, trying again later", error=error)
            else:
                if removed:
                    logger.info("data of deleted topics removed", topics=removed)
            await asyncio.sleep(min(keep_s, _TIDY_INTERVAL_S))

    async def _purge_elsewhere(self) -> None:
        """Remove data of deleted topics that have archives elsewhere, where that answers."""
        keep_s = self.config.trash_keep_s
        while True:
            try:
                removed = await self._runner.run(
                    lambda: self._logs.purge_trash(keep_s, elsewhere=True), Lane.UPLOAD
                )
            except OSError as error:
                logger.warning("trash cannot be emptied, trying again later", error=error)
            else:
                if removed:
                    logger.info("data of deleted topics removed", topics=removed)
            await asyncio.sleep(min(keep_s, _TIDY_INTERVAL_S))

    async def _watch_disk(self) -> None:
        while True:
            gone = self._soundness.directory_gone
            if self._disk_watch.level is DiskLevel.OK and not gone and not self._reserve.held:
                await self._runner.run(self._reserve.hold)
            await asyncio.sleep(self.config.disk_interval_s)
            self._look_at_directory()
            self._look_at_disk()

    def _look_at_directory(self) -> None:
        gone = self._directory is not None and self._directory.is_gone()
        if not self._soundness.note_directory(gone=gone):
            return
        if gone:
            logger.error("data directory is gone, messages are refused", path=self.config.data)
        else:
            logger.warning("data directory is there again", path=self.config.data)
        self._update_refusal()

    def _look_at_disk(self) -> None:
        watch = self._disk_watch
        was = watch.level
        try:
            level = watch.observe(*self._disk.free_space(self.config.data))
        except OSError as error:
            if watch.trouble != str(error):
                logger.warning("disk usage cannot be read", path=self.config.data, error=error)
            watch.trouble = str(error)
            return
        watch.trouble = ""
        if level is not was:
            logger.log(
                logging.WARNING if level > was else logging.INFO,
                "disk usage crossed a watermark",
                path=self.config.data,
                used=f"{watch.used_share:.1%}",
                warn=f"{watch.warn:.0%}",
                refuse=f"{watch.refuse:.0%}",
            )
            self._update_refusal()

    def _gone_text(self) -> str:
        return (
            f"the data directory {self.config.data} of broker {self.config.group}/"
            f"{self.config.node} is gone: mount it again, or stop the broker and start it with an "
            "empty one (docs/operations.md, Replace a lost disk)"
        )

    def _update_refusal(self) -> None:
        """Decide again whether this node takes PUTs."""
        refusal: VqError | None = None
        if self._stage is Stage.STOPPING:
            refusal = ShuttingDown(f"broker {self.config.group}/{self.config.node} is stopping")
        elif self._mastership.refusal is not None:
            refusal = self._mastership.refusal
        elif self._soundness.directory_gone:
            refusal = Busy(self._gone_text())
        elif self._disk_watch.level is DiskLevel.REFUSE:
            refusal = DiskFull(
                f"the disk of broker {self.config.group}/{self.config.node} is "
                f"{self._disk_watch.used_share:.1%} full; PUTs are refused from "
                f"{self._disk_watch.refuse:.0%} on"
            )
        elif self._hand_over.holds:
            refusal = Busy(f"group {self.config.group} is being handed over to another node")
        self._dispatcher.put_refusal = refusal

    # Stop ---------------------------------------------------------------------------------------
    async def stop(self) -> bool:
        """End gracefully, within about ``stop_timeout_s`` whatever hangs. Stopping twice is fine.

        Returns:
            Whether everything ended; otherwise threads may still hang in calls to the disk.
        """
        if self._stage is not Stage.SERVING or self._directory is None:
            return True
        self._stage = Stage.LEAVING
        await self._hand_over_before_stop()
        self._stage = Stage.STOPPING
        self._unlisten()
        self._update_refusal()
        try:
            async with asyncio.timeout(self.config.stop_timeout_s):
                await self._stop()
        except TimeoutError:
            self.hangs = True
            logger.warning("broker did not stop in time", timeout_s=self.config.stop_timeout_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._coordinator.close()
            return False
        logger.info("broker stopped", group=self.config.group, node=self.config.node)
        return True

    async def _hand_over_before_stop(self) -> None:
        """If this node leads, have another one in sync take over; bounded, and no error."""
        leads = self._registration is not None and self._context.role.epoch
        if not leads or self._coordinator.state is not SessionState.CONNECTED:
            return
        try:
            if not self._lease.alone:
                timeout_s = self.config.stop_timeout_s / 2
                await self._hand_over.run(resigns=True, timeout_s=timeout_s)
        except (HandOverFailed, NotMaster) as error:
            logger.warning("broker stops without a successor", error=error)

    async def _stop(self) -> None:
        error = ShuttingDown(f"broker {self.config.group}/{self.config.node} is stopping")
        assert self._directory is not None
        if self._listener is not None:
            self._listener.close()
        await self._leave()  # clients look elsewhere from here on
        await self._partitions.close_all(error)
        self._server.turn.run()
        await self._tasks.close()
        self._storer.close()
        await self._clear_unflushed()
        await self._coordinator.close()
        self._server.end_all(error)
        await asyncio.sleep(0)
        await self._monitor.close()
        await self._runner.close()
        self._directory.close()  # the next broker may have it once nothing is done in it any more
        if self._listener is not None:
            await self._listener.wait_closed()
