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
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial

from prometheus_client.metrics_core import Metric

from vq.broker.base.config import BrokerConfig
from vq.broker.base.histogram import Histogram
from vq.broker.base.runner import Runner, ThreadRunner
from vq.broker.base.tasks import Tasks
from vq.broker.base.turn import Turn
from vq.broker.disks.data_disks import DataDisks
from vq.broker.health.diverged_files import DivergedFiles
from vq.broker.health.repairing import Repairer
from vq.broker.health.verifying import Verifier
from vq.broker.history.daily_runs import Alarm, no_alarm
from vq.broker.observe.load import LoadMeter, LoadPublisher
from vq.broker.observe.metrics import BrokerMetrics
from vq.broker.observe.monitor import Monitor, Watched
from vq.broker.observe.status import StatusReport
from vq.broker.partition.cold_reads import ColdReads
from vq.broker.partition.context import Context, Role
from vq.broker.partition.flush_meter import FlushMeter
from vq.broker.partition.flusher import Flusher, FlushRunner, ThreadFlusher
from vq.broker.partition.logs import Logs
from vq.broker.partition.partitions import Partitions
from vq.broker.parts import Parts
from vq.broker.replication.doubt import Doubt
from vq.broker.replication.epoch_file import EpochFile
from vq.broker.replication.following import Follower
from vq.broker.replication.handing_over import HandOver
from vq.broker.replication.insync_set import TICK_S, InSyncSet
from vq.broker.replication.lag import Lags
from vq.broker.replication.lease import Lease
from vq.broker.replication.mastership import Mastership
from vq.broker.replication.membership import Membership
from vq.broker.replication.presence import Presence
from vq.broker.replication.refusals import is_dead
from vq.broker.replication.soundness import Soundness
from vq.broker.serving.archives import Archives
from vq.broker.serving.dispatcher import Dispatcher
from vq.broker.serving.fetching import Fetches
from vq.broker.serving.finding import Finder
from vq.broker.serving.held_blocks import HeldBlocks
from vq.broker.serving.moving import Mover
from vq.broker.serving.server import Server
from vq.broker.upkeep import Upkeep
from vq.clock import Clock
from vq.coordination.brokers.dead_masters import DeadMasters
from vq.coordination.brokers.leadership import Following
from vq.coordination.tree.coordinator import Coordinator, SessionState
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.errors import (
    Busy,
    CoordinationError,
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
from vq.store.directory.directories import DataDirectories
from vq.store.directory.identity import check_there
from vq.store.disk.disk import Disk
from vq.store.log.log import LogConfig
from vq.version import __version__

logger = get_logger(__name__)


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
        flusher: For the main data directory; None: a thread of its own.
        new_flusher: Makes one for each further data directory.
        runner: For blocking work; None: a thread of its own.
        log_config: Sizes of its logs; None: the usual ones, with the block size of ``config``.
        cpu_s: Returns the processor time of the calling thread, for its load; None: not measured.
        pid: Of its process, for operators; 0: not known.
        process_metrics: Returns families about the process, for the page of metrics.
        alarm: Rings when the daily run of the archive is due.

    Attributes:
        stage: How far it is with its end.
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
        new_flusher: Callable[[Clock], Flusher] = lambda clock: ThreadFlusher(FlushRunner(clock)),
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
        times = Histogram()
        self._parts: Parts | None = None
        self._flushes = tuple(
            FlushMeter(each, clock, lambda: self.parts.server.requests_waiting, times)
            for each in (
                flusher or new_flusher(clock),
                *(new_flusher(clock) for _ in config.directories[1:]),
            )
        )
        self._runner: Runner = runner or ThreadRunner()
        self._log_config = log_config or LogConfig(block_bytes=config.block_bytes)
        self._cpu_s = cpu_s
        self._pid = pid
        self._alarm = alarm
        self._monitor = Monitor(config, coordinator, process_metrics)
        self._tasks = Tasks()
        self._disks = DataDisks(
            config,
            disk,
            self._runner,
            clock,
            on_change=self._disks_changed,
            on_gone=lambda gone, main: self.parts.soundness.note_directory(gone=gone, main=main),
        )
        main = config.directories[0]
        self._epoch_file = EpochFile(main, disk, partial(check_there, main, disk))
        self._listener: Listener | None = None
        self._directory: DataDirectories | None = None
        self.stage = Stage.SERVING
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
    def parts(self) -> Parts:
        """Its parts.

        Raises:
            InvalidState: It has none yet: its data directories are not open.
        """
        if self._parts is None:
            raise InvalidState("the broker has no parts yet: it was not started")
        return self._parts

    @property
    def epoch(self) -> int:
        """Epoch of its mastership, 0 while it has none."""
        return self.parts.context.role.epoch

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
        self._directory = await self._disks.open(
            lambda: DataDirectories.open(
                config.directories,
                config.cluster,
                config.group,
                config.node,
                self._disk,
                without=config.without_data,
                adopt=config.adopt_archives,
                spend=self._disks.main.reserve.spend,
            )
        )
        await self._disks.release_reserves()
        watched = self._build(self._directory)
        self._disks.look_now()
        await self._monitor.start(watched, self._network, self._tasks)
        await self._coordinator.start(config.start_timeout_s)
        self._remove_listener = self._coordinator.add_listener(self._on_session)
        await (
            self._coordinator.sync()
        )  # a server that lags behind knows too few topics, or too many
        await self.parts.membership.start()
        await self.parts.partitions.view.refresh()
        self.parts.partitions.logs.story.end()
        await self.parts.partitions.look_for_strangers()
        in_logs = self.parts.partitions.highest_epoch()
        await self._runner.run(lambda: self._epoch_file.check(in_logs))
        self._listener = await self._network.listen(
            Address(config.host, config.port),
            self.parts.server.new_session,
            on_full=self.parts.server.end_silent,
        )
        for place in self.parts.context.places.values():
            place.storer.start()
        self._tasks.keep(self._sweep, "look at silent connections")
        await self._register_and_lead()
        self._tasks.keep(self.parts.partitions.view.run, "follow topics")
        self._disks.keep_looking(self._tasks)
        self._tasks.keep(self._publish_load, "publish the load")
        self.parts.upkeep.run_registered(self._tasks)
        self._monitor.has_started = True
        logger.info(
            "broker started",
            group=config.group,
            node=config.node,
            address=self._listener.address,
            leads=self.parts.context.role.epoch > 0,
            follows=self.parts.context.role.follows or None,
            epoch=self.parts.context.role.epoch,
            partitions=len(self.parts.partitions.channels),
            topics=len(self.parts.partitions.view.topics),
        )

    def _build(self, directory: DataDirectories) -> Watched:
        """Make the parts and tie them together; return what ``monitor`` looks at."""
        config, clock = self.config, self._clock
        loop = asyncio.get_running_loop()
        turn = Turn(loop.call_soon)
        directory.takes, directory.silent = self._disks.takes, self._disks.silent
        self._disks.know(directory.ids)
        lease = Lease(self._coordinator, clock)
        asker = Member(config.group, config.node)
        membership = Membership(self._coordinator, clock, self._tasks, self._rng.randbytes, asker)
        doubt = Doubt(directory.unflushed, self._runner, self._tasks)
        role = Role(group=config.group, holds=lease.holds, may_confirm=lease.goes_on)
        context = Context(
            group=config.group,
            roles={role.group: role},
            places=self._disks.make_places(self._flushes, turn),
            clock=clock,
            call_later=loop.call_later,
            acknowledged=None if config.metrics_port == 0 else Histogram(),
        )
        logs = Logs(
            directory,
            disk=self._disk,
            clock=clock,
            config=self._log_config,
            reserves=self._disks.reserves,
            archive_places=self.config.archive_places,
            leads_others=lambda: role.epoch > 0 and role.named > 1,
        )
        partitions = Partitions(
            context,
            self._coordinator,
            logs,
            runner=self._runner,
            tasks=self._tasks,
            refresh_interval_s=config.refresh_interval_s,
        )
        mover = Mover(
            context,
            self._coordinator,
            partitions,
            tasks=self._tasks,
            seal_timeout_s=config.seal_timeout_s,
        )
        dead_masters = DeadMasters(
            self._coordinator,
            group=config.group,
            node=config.node,
            may_lead=lambda: not soundness.has_damage(),
        )
        follower = Follower(
            partitions.channels.values,
            partitions.logs,
            self._network,
            cluster=config.cluster,
            group=config.group,
            node=config.node,
            prove=membership.prove,
            refuse=self._disks.copy_refusal,
            rng=self._rng,
            on_dead=dead_masters.remove,
            bytes_per_s=config.catch_up_bytes_per_s,
        )
        self._tasks.keep(follower.run, "copy from the master")
        partitions.on_added = follower.look
        insync = InSyncSet(
            role,
            lease,
            self._coordinator,
            partitions.channels.values,
            clock,
            node=config.node,
            is_dead=partial(is_dead, self._network, timeout_s=TICK_S),
            knows_all=partitions.knows_all,
        )

        def begin() -> None:
            partitions.begin_epoch()
            insync.begin()

        self._tasks.keep(insync.run, "look at the copies")
        hand_over = HandOver(
            role,
            self._coordinator,
            partitions.channels.values,
            clock,
            tasks=self._tasks,
            node=config.node,
            timeout_s=config.hand_over_timeout_s,
            on_hold=self._hold_puts,
        )
        mastership = Mastership(
            role,
            lease,
            self._coordinator,
            self._runner,
            node=config.node,
            store=self._store_epoch,
            accept=self._accept_epoch,
            begin=begin,
            on_change=lambda: self._mastership_changed(follower),
        )
        fetches = Fetches(partitions, context, turn, config.connections)
        verifier = Verifier(
            context,
            disk=self._disk,
            runner=self._runner,
            tasks=self._tasks,
            bytes_per_s=config.verify_bytes_per_s,
        )
        status = StatusReport(config, context, partitions, self._disks.all, verifier)
        diverged = DivergedFiles(config.directories, self._disk, self._runner, self._tasks)
        diverged.look_soon()
        partitions.logs.on_cut = diverged.look_soon
        diverged.on_deleted = partitions.look_at_losses
        status.diverged = diverged
        repairer = Repairer(
            context,
            partitions,
            follower,
            verifier,
            self._coordinator,
            prove=membership.prove,
            renew=lambda: presence.register_anew(),
            network=self._network,
            disk=self._disk,
            runner=self._runner,
            tasks=self._tasks,
            cluster=config.cluster,
            node=config.node,
            rng=self._rng,
        )
        self._tasks.keep(repairer.run, "repair damage")
        soundness = Soundness(
            role,
            clock,
            repairer,
            tell=lambda: presence.tell_damage(),
            hand_over=hand_over.run,
            suspend=follower.suspend,
            is_needed=lambda: any(
                each.settings.min_insync == role.named for each in partitions.channels.values()
            ),
        )
        presence = Presence(
            config,
            self._coordinator,
            clock,
            self._rng,
            directory=directory.identity.id,
            role=role,
            soundness=soundness,
            doubt=doubt,
            log_end_bytes=partitions.log_end_bytes,
            on_change=mastership.stands,
        )
        upkeep = Upkeep(
            config,
            context,
            role,
            partitions,
            verifier,
            self._coordinator,
            self._disks.all,
            disk=self._disk,
            runner=self._runner,
            clock=clock,
            rng=self._rng,
            data=directory.path,
            alarm=self._alarm,
            stops=lambda: self.stage is not Stage.SERVING,
        )
        upkeep.run(self._tasks)
        finder = Finder(context, disk=self._disk, runner=self._runner, tasks=self._tasks)
        finder.on_unfit = upkeep.indexer.rebuild
        status.held = lambda: upkeep.retainer.held
        status.archive_run = lambda: upkeep.archiver.last
        status.unindexed_bytes = lambda: upkeep.indexer.unindexed_bytes
        status.scrub, status.repairs = lambda: upkeep.scrubber.position, lambda: repairer.count
        status.next_scrub_ms = upkeep.scrubber.next_ms
        context.suspect = verifier.suspect
        cold_reads = ColdReads(self._runner, self._tasks)
        context.fetch_cold = cold_reads.add
        dispatcher = Dispatcher(
            partitions,
            mover,
            context,
            status.report,
            fetches,
            verifier,
            diverged.answer,
            repairer,
            finder,
        )
        dispatcher.on_newer_epoch = self._hear_of_epoch
        dispatcher.add(Command.HAND_OVER, hand_over.handle)
        archives = Archives(partitions.channels, partitions.logs, self._tasks)
        dispatcher.add(Command.ARCHIVE, archives.answer)
        held = HeldBlocks(
            partitions.channels,
            context,
            config,
            self._disks.all,
            disk=self._disk,
            runner=self._runner,
            tasks=self._tasks,
        )
        dispatcher.add(Command.BLOCKS, held.answer)
        server = Server(
            config.connections,
            handlers=dispatcher.handlers,
            turn=turn,
            clock=clock,
            identity=self._identity(0),
            proving=membership.proving,
        )
        status.server = server
        status.problems = lambda: self._problems(follower)
        status.not_copied = follower.not_copied
        lags = Lags(partitions.channels.values, lambda: role.epoch > 0, clock, self._runner)
        status.lags = lags.told
        self._tasks.keep(lags.run, "measure lags")
        watched = Watched(
            metrics=BrokerMetrics(
                config, context, server, self._flushes[0].times, self._disks.all, status
            ),
            channels=partitions.channels,
            count_damage=verifier.count_damage,
            lags=lags,
            retainer=upkeep.retainer,
            archiver=upkeep.archiver,
            registered=lambda: presence.is_registered,
            not_ready=self._not_ready,
        )
        self._parts = Parts(
            tasks=self._tasks,
            runner=self._runner,
            disk=self._disk,
            directory=directory,
            disks=self._disks,
            context=context,
            partitions=partitions,
            logs=logs,
            lease=lease,
            mastership=mastership,
            insync=insync,
            hand_over=hand_over,
            follower=follower,
            membership=membership,
            presence=presence,
            soundness=soundness,
            doubt=doubt,
            verifier=verifier,
            repairer=repairer,
            upkeep=upkeep,
            finder=finder,
            mover=mover,
            fetches=fetches,
            cold_reads=cold_reads,
            dispatcher=dispatcher,
            server=server,
            status=status,
            monitor=self._monitor,
        )
        self._update_refusal()
        return watched

    def _problems(self, follower: Follower) -> list[str]:
        """Return what is wrong with the node as a whole, for STATUS."""
        # To follow another node is no problem.
        refusal = (
            None if self.parts.dispatcher.refusal is not None else self.parts.dispatcher.put_refusal
        )
        disks = self._disks.problems(follows=bool(self.parts.context.role.follows))
        gone = self._disks.main.gone
        found = [
            self._listener.trouble if self._listener is not None else "",
            *disks,
            "" if gone or str(refusal) in disks else str(refusal or ""),
            "" if gone else follower.problem,
            self.parts.mastership.waits,
        ]
        return [*filter(None, found), *self.parts.partitions.told_problems()]

    def _not_ready(self) -> list[str]:
        """Return why the node does not do its work, apart from ZooKeeper."""
        if self.stage is not Stage.SERVING:
            return ["the node is stopping"]
        return self._disks.not_ready

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
                if self._parts is not None:
                    await self._parts.presence.end()
                    self._close_storers()
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
        await self.parts.presence.begin(
            self.config.advertised or self.address,
            metrics_port=self._monitor.port,
            pid=self._pid,
        )
        await self.parts.mastership.take_first()
        await self.parts.partitions.lead()
        self._tasks.keep(self.parts.mastership.run, "take epochs")
        self._tasks.keep(self.parts.hand_over.keep_drained, "hand over when drained")
        self._tasks.keep(self.parts.soundness.run, "hand over when damaged")

    def _store_epoch(self, epoch: int) -> None:
        self._disks.main.reserve.spend(
            lambda: self._epoch_file.store(epoch),
            "not even the broker's epoch can be stored",
        )

    def _accept_epoch(self, epoch: int) -> None:
        self._disks.main.reserve.spend(
            lambda: self._epoch_file.accept(epoch),
            "not even the epoch of the group's master can be stored",
        )

    def _mastership_changed(self, follower: Follower) -> None:
        acting = self.parts.mastership.acting
        following = acting if isinstance(acting, Following) else None
        if acting is not None:
            self.parts.server.identity = self._identity(acting.incarnation)
            self.parts.dispatcher.epoch = acting.epoch
        follows = self.parts.context.role.follows
        self.parts.dispatcher.refusal = self.parts.mastership.refusal if follows else None
        serves = self.stage is Stage.SERVING
        follower.follow(following if serves else None, self.parts.mastership.newest_epoch)
        if following is None and acting is not None:
            self._tasks.start(self.parts.partitions.lead())
        self._update_refusal()
        self.parts.hand_over.look()
        self.parts.dispatcher.release_puts()

    def _hear_of_epoch(self, epoch: int, node: str) -> None:
        """Take that a node which copied from this one is in a newer epoch: nobody confirms here."""
        if self.parts.mastership.hear(epoch, node):
            for channel in self.parts.partitions.channels.values():
                channel.acks.drop(channel.acks.mastership_lost())

    def _hold_puts(self, holds: bool) -> None:
        self._update_refusal()
        self.parts.dispatcher.hold_puts(holds)

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CLOSED and self.stage is not Stage.STOPPING:
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
            self.parts.server.sweep()

    async def _publish_load(self) -> None:
        """Publish the load and look at the group, for ever."""
        registration = self.parts.presence.registration
        assert registration is not None
        meter = LoadMeter(self.parts.context.counters, self._flushes, self._clock, self._cpu_s)
        await LoadPublisher(registration, self._clock).run(
            lambda: self._measure(meter),
            self.parts.mastership.look_at_group,
            interval_s=self.config.load_interval_s,
            rng=self._rng,
        )

    def _measure(self, meter: LoadMeter) -> BrokerLoad:
        channels = self.parts.partitions.channels
        logs = [each.log for each in channels.values() if each.log is not None]
        return meter.measure(
            disk_free=self._disks.free_bytes,
            disk_total=self._disks.total_bytes,
            disk_excess=self._disks.pressure_bytes,
            stored_bytes=sum(log.size_bytes for log in logs),
            partitions=len(channels),
        )

    def _disks_changed(self) -> None:
        self.parts.soundness.note_disks(full=self._disks.full)
        self._update_refusal()

    def _update_refusal(self) -> None:
        """Decide again whether this node takes PUTs."""
        refusal = self.parts.mastership.refusal or self._disks.refusal
        if self.stage is Stage.STOPPING:
            refusal = ShuttingDown(f"broker {self.config.group}/{self.config.node} is stopping")
        elif refusal is None and self.parts.hand_over.holds:
            refusal = Busy(f"group {self.config.group} is being handed over to another node")
        self.parts.dispatcher.put_refusal = refusal

    # Stop ---------------------------------------------------------------------------------------
    async def stop(self) -> bool:
        """End gracefully, within about ``stop_timeout_s`` whatever hangs. Stopping twice is fine.

        Returns:
            Whether everything ended; otherwise threads may still hang in calls to the disk.
        """
        if self.stage is not Stage.SERVING or self._directory is None:
            return True
        self.stage = Stage.LEAVING
        await self._hand_over_before_stop()
        self.stage = Stage.STOPPING
        self._unlisten()
        self._update_refusal()
        try:
            async with asyncio.timeout(self.config.stop_timeout_s):
                await self._stop()
        except TimeoutError:
            self.hangs = True
            logger.warning("broker did not stop in time", timeout_s=self.config.stop_timeout_s)
            # Tasks first: without a session, each would log that it failed.
            for close in (self._tasks.close, self._coordinator.close):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await close()
            return False
        logger.info("broker stopped", group=self.config.group, node=self.config.node)
        return True

    async def _hand_over_before_stop(self) -> None:
        """If this node leads, have another one in sync take over; bounded, and no error."""
        leads = self.parts.context.role.epoch > 0
        if not leads or self._coordinator.state is not SessionState.CONNECTED:
            return
        try:
            if not self.parts.lease.alone:
                timeout_s = self.config.stop_timeout_s / 2
                await self.parts.hand_over.run(resigns=True, timeout_s=timeout_s)
        except (HandOverFailed, NotMaster) as error:
            logger.warning("broker stops without a successor", error=error)

    def _close_storers(self) -> None:
        for place in self.parts.context.places.values():
            place.storer.close()

    async def _stop(self) -> None:
        error = ShuttingDown(f"broker {self.config.group}/{self.config.node} is stopping")
        assert self._directory is not None
        if self._listener is not None:
            self._listener.close()
        await self.parts.presence.end()  # clients look elsewhere from here on
        await self.parts.partitions.close_all(error, saves_s=self.config.stop_timeout_s / 2)
        self.parts.server.turn.run()
        await self._tasks.close()
        self._close_storers()
        if self.parts.partitions.all_flushed:
            await self.parts.doubt.clear()
        await self._coordinator.close()
        self.parts.server.end_all(error)
        await asyncio.sleep(0)
        await self._monitor.close()
        await self._runner.close()
        self._directory.close()  # the next broker may have it once nothing is done in it any more
        if self._listener is not None:
            await self._listener.wait_closed()
