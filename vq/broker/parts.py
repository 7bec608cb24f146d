"""The parts of a node, and how they are put together.

A part is given what it needs when it is made, and nothing is set later. So a part knows those that
stand above it here, and none below. What happens in a part above is heard of by listening
(``base.notice``).

Not in here: when parts start and stop (``node``).
"""

import asyncio
import random
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from vq.broker.base.alarm import Alarm
from vq.broker.base.config import AuthenticationMode, BrokerConfig
from vq.broker.base.facts import table
from vq.broker.base.histogram import Histogram
from vq.broker.base.jobs import Jobs
from vq.broker.base.own_certificate import OwnCertificate
from vq.broker.base.process import Process
from vq.broker.base.runner import Runner
from vq.broker.base.tasks import Tasks
from vq.broker.connections.loop_spin import LoopSpin
from vq.broker.connections.revoking import Revoker
from vq.broker.connections.server import Server
from vq.broker.connections.server_facts import server_facts
from vq.broker.disks.data_disks import DataDisks
from vq.broker.disks.flush_meter import FlushMeter
from vq.broker.health.diverged_files import DivergedFiles
from vq.broker.health.repairing import Repairer
from vq.broker.health.verifying import Verifier
from vq.broker.journal.outbox import Outbox
from vq.broker.logs.logs import Logs
from vq.broker.logs.partitions import Partitions
from vq.broker.observe.exposure import Exposure
from vq.broker.observe.load import LoadMeter, LoadPublisher, NodeLoad
from vq.broker.observe.monitor import Monitor
from vq.broker.observe.status import StatusReport
from vq.broker.observe.survey import Survey
from vq.broker.observe.vitals import Vitals
from vq.broker.partition import puts
from vq.broker.partition.cold_reads import ColdReads
from vq.broker.partition.context import Context
from vq.broker.replication.doubt import Doubt
from vq.broker.replication.epoch_file import EpochFile
from vq.broker.replication.fitness import NodeFitness
from vq.broker.replication.following import Follower
from vq.broker.replication.handing_over import HandOver
from vq.broker.replication.insync_set import InSyncSet
from vq.broker.replication.lag import Lags
from vq.broker.replication.mastership import Mastership
from vq.broker.replication.presence import Presence
from vq.broker.replication.secret import KnownSecret
from vq.broker.replication.soundness import Soundness
from vq.broker.security.accounts import Accounts, known_quotas
from vq.broker.security.authentication import Authentication
from vq.broker.security.authority import Authority
from vq.broker.security.known_rules import KnownRules
from vq.broker.security.request_access import RequestAccess
from vq.broker.security.users import MirroredUsers
from vq.broker.serving import reading
from vq.broker.serving.archives import Archives
from vq.broker.serving.dispatcher import Dispatcher, Route
from vq.broker.serving.fetching import ServedSessions
from vq.broker.serving.finding import Finder
from vq.broker.serving.getting import get
from vq.broker.serving.held_blocks import HeldBlocks
from vq.broker.serving.moving import Mover
from vq.broker.serving.reasons import Reasons
from vq.broker.shared.shared_journals import SharedJournals
from vq.broker.standing.gate import Gate
from vq.broker.standing.lease import Lease
from vq.broker.standing.role import Role
from vq.broker.timers.timers import Timers
from vq.broker.transactions.journals import Journals
from vq.broker.upkeep import Upkeep
from vq.clock import Clock
from vq.coordination.brokers.dead_masters import DeadMasters
from vq.coordination.tree.coordinator import Coordinator
from vq.errors import NotMaster
from vq.remoting.format import Command
from vq.remoting.hello import ServerIdentity
from vq.remoting.membership import Principal
from vq.remoting.transport import Network
from vq.security.certificates import parse_certificate_rules
from vq.security.tls import TlsContexts
from vq.store.commit.flusher import Flusher
from vq.store.directory.directories import DataDirectories
from vq.store.directory.identity import check_there
from vq.store.disk.disk import Disk
from vq.store.log.log_config import LogConfig
from vq.turn import Turn
from vq.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What a node is given from outside; see ``BrokerNode``."""

    coordinator: Coordinator
    network: Network
    disk: Disk
    clock: Clock
    rng: random.Random
    flushers: tuple[Flusher, ...]
    runner: Runner
    log_config: LogConfig
    process: Process
    alarm: Alarm
    metrics_network: Network
    contexts: tuple[TlsContexts, ...] = ()
    spins: bool = False


class Front:
    """The parts that are there before the data directories are open. Made on the loop of the node.

    Attributes:
        turn: Of the loop.
        jobs: What is done again and again.
        role: What the node is in its group.
        gate: Why the node refuses requests.
        secret: The cluster's secret.
        users: Who may connect; None: the node asks nobody.
        quotas: As the node knows them.
        accounts: What users have used of their quotas.
        server: The connections.
        flushes: Measure flushes, one for each data directory.
        disks: The data directories: how full they are, and whether they are there.
        certificate: What the node serves TLS with.
    """

    def __init__(self, config: BrokerConfig, outside: Outside, tasks: Tasks) -> None:
        coordinator, clock = outside.coordinator, outside.clock
        call_soon = asyncio.get_running_loop().call_soon
        self.turn = Turn(call_soon)
        self.jobs = Jobs(outside.alarm, clock, tasks, outside.rng)
        refusal = NotMaster("this node is not registered yet")
        self.role = Role(config.group, Lease(coordinator, clock), refusal)
        self.gate = Gate(
            ServerIdentity(
                cluster=config.cluster,
                group=config.group,
                node=config.node,
                broker_version=__version__,
            ),
            self.role,
        )
        asker = Principal(config.group, config.node)
        self.secret = KnownSecret(coordinator, clock, tasks, outside.rng, asker)
        self.users: MirroredUsers | None = None
        self.quotas = known_quotas(coordinator, clock, outside.runner, outside.rng)
        self.accounts = Accounts(self.quotas, clock)
        self.server = Server(
            config.connections,
            turn=self.turn,
            clock=clock,
            gate=self.gate,
            proving=self.secret.proving,
            authentication=self._authentication(config, outside),
            accounts=self.accounts,
            spin=LoopSpin(call_soon, self._is_flushing) if outside.spins else None,
        )
        times = Histogram()
        self.flushes = tuple(
            FlushMeter(each, clock, self.server, times) for each in outside.flushers
        )
        self.certificate = OwnCertificate(
            outside.contexts,
            clock,
            outside.runner,
            self.jobs,
            host=config.host if config.advertised is None else config.advertised.host,
        )
        self.disks = DataDisks(
            config,
            outside.disk,
            outside.runner,
            self.jobs,
            clock,
            flushes=self.flushes,
            turn=self.turn,
            gate=self.gate,
        )

    def _is_flushing(self) -> bool:
        return any(each.is_busy for each in self.flushes)

    def _authentication(self, config: BrokerConfig, outside: Outside) -> Authentication | None:
        mode = config.authentication
        if not mode.asks:
            return None
        self.users = MirroredUsers(
            outside.coordinator, outside.clock, outside.rng, on_change=self._user_changed
        )
        return Authentication(
            anonymous=mode is AuthenticationMode.OPTIONAL,
            users=self.users,
            secret=self.secret.proving.secret,
            random=outside.rng.randbytes,
            clock=outside.clock,
            certificates=parse_certificate_rules(config.certificate_users),
        )

    def _user_changed(self, name: str) -> None:
        if self.server.authentication is not None:
            self.server.authentication.revoke(name, self.server.sessions)


class Parts:
    """All parts of a node, by name: for its start and stop, and for tests.

    Attributes:
        tasks: What runs beside requests.
        runner: Blocking work.
        disk: The file system.
        directory: The data directories, locked, and whose they are.
        jobs, gate, secret, users, quotas, accounts, server, flushes, disks, certificate: See
            ``Front``.
        context: What all channels share: the role of the node, counters, storers, timers.
        logs: What is stored of partitions, in which directory.
        partitions: The channels, their logs, and what ZooKeeper says of topics.
        verifier: Looks for damage, and knows what was found.
        diverged: What was cut from logs and is kept aside.
        doubt: Whether a loss of power took messages.
        hand_over: Hands the group over to another node.
        soundness: What follows from damage, and from full disks.
        rules: The rules of access as the node knows them.
        authority: Decides by these what users may do.
        follower: Copies from the master, while the node does not lead.
        insync: Which nodes are in sync with it, while it leads.
        lags: How far the nodes that copy from it are behind.
        epoch_file: The epochs that it acted in.
        outbox: Sends messages to other partitions.
        timers: Deliver messages later, while it leads.
        journals: Have the transactions, while it leads.
        shared: Has what members of shared groups have, while it leads.
        mastership: Whether it leads or follows, and in which epoch.
        presence: What the group sees of the node.
        repairer: Repairs damage from other nodes.
        upkeep: Scrub, retention, archive, key indexes, removals.
        cold_reads: Reads what is not in memory.
        fetches: The fetch sessions.
        mover: Seals and adopts partitions.
        finder: Searches for messages.
        dispatcher: Takes every request; it has the table of what carries out each command.
        vitals: Whether the node does its work.
        facts: What STATUS, metrics and load tell.
        status: The answer to STATUS.
        monitor: Metrics and health over HTTP.
    """

    def __init__(
        self,
        config: BrokerConfig,
        outside: Outside,
        tasks: Tasks,
        front: Front,
        directory: DataDirectories,
    ) -> None:
        coordinator, network, clock, rng = (
            outside.coordinator,
            outside.network,
            outside.clock,
            outside.rng,
        )
        self.tasks = tasks
        self.runner = runner = outside.runner
        self.disk = disk = outside.disk
        self.directory = directory
        self.jobs = jobs = front.jobs
        self.gate = gate = front.gate
        self.secret = secret = front.secret
        self.users = front.users
        self.quotas = front.quotas
        self.accounts = front.accounts
        self.server = front.server
        self.flushes = front.flushes
        self.disks = disks = front.disks
        self.certificate = front.certificate

        # What is stored, and the channels to it
        role = front.role
        self.cold_reads = ColdReads(runner, tasks)
        self.context = Context(
            group=config.group,
            roles={role.group: role},
            places=disks.places,
            clock=clock,
            call_later=asyncio.get_running_loop().call_later,
            fetch_cold=self.cold_reads.add,
            acknowledged=None if config.metrics_port == 0 else Histogram(),
        )
        self.logs = Logs(
            directory,
            disk=disk,
            clock=clock,
            config=outside.log_config,
            reserves=disks.reserves,
            archive_places=config.archive_places,
            role=role,
        )
        self.partitions = Partitions(
            self.context,
            coordinator,
            self.logs,
            runner=runner,
            tasks=tasks,
            refresh_interval_s=config.refresh_interval_s,
        )
        self.verifier = Verifier(
            self.context,
            self.partitions,
            disk=disk,
            runner=runner,
            tasks=tasks,
            bytes_per_s=config.verify_bytes_per_s,
        )
        self.diverged = DivergedFiles(config.directories, disk, runner, tasks, self.partitions)

        # Master and copies
        self.doubt = Doubt(directory.unflushed, runner, tasks)
        self.hand_over = HandOver(
            role,
            coordinator,
            self.partitions.channels,
            clock,
            tasks=tasks,
            node=config.node,
            timeout_s=config.hand_over_timeout_s,
        )
        self.soundness = Soundness(
            role,
            clock,
            damage=self.verifier,
            disks=disks,
            channels=self.partitions.channels,
            hand_over=self.hand_over,
            jobs=jobs,
        )
        fitness = NodeFitness(self.soundness, self.doubt, self.partitions)
        dead_masters = DeadMasters(
            coordinator,
            group=config.group,
            node=config.node,
            fitness=fitness,
        )
        self.follower = Follower(
            self.partitions,
            disks,
            network,
            front.turn,
            cluster=config.cluster,
            group=config.group,
            node=config.node,
            secret=secret,
            dead_masters=dead_masters,
            rng=rng,
            bytes_per_s=config.catch_up_bytes_per_s,
        )
        self.insync = InSyncSet(
            role, coordinator, self.partitions, network, clock, node=config.node
        )
        self.lags = Lags(self.partitions.channels, clock, runner, jobs)
        main = config.directories[0]
        self.epoch_file = EpochFile(main, disk, partial(check_there, main, disk))
        self.rules = KnownRules(coordinator, clock, runner, rng, age_max_s=config.rules_age_max_s)
        self.authority = Authority(config.authorization, config.super_users, self.rules, clock)
        outbox = Outbox(
            coordinator,
            network,
            rng,
            cluster=config.cluster,
            client_id=f"journals.{config.group}.{config.node}",
            prove=secret.prove,
        )
        self.outbox = outbox
        self.timers = Timers(
            self.partitions, outbox, gate, self.authority, clock=clock, runner=runner
        )
        self.journals = Journals(
            self.partitions,
            outbox,
            gate,
            self.authority,
            coordinator=coordinator,
            clock=clock,
            runner=runner,
        )
        self.shared = SharedJournals(
            self.partitions, outbox, gate, self.authority, clock=clock, runner=runner
        )
        self.mastership = Mastership(
            role,
            coordinator,
            runner,
            node=config.node,
            epoch_file=self.epoch_file,
            reserve=disks.main.reserve,
            gate=gate,
            follower=self.follower,
            duties=(
                self.partitions,
                self.insync,
                self.lags,
                self.hand_over,
                self.timers.readers,
                self.journals.readers,
                self.shared.readers,
                jobs,
            ),
        )
        self.presence = Presence(
            config,
            coordinator,
            clock,
            rng,
            directory=directory.identity.id,
            role=role,
            soundness=self.soundness,
            doubt=self.doubt,
            fitness=fitness,
            mastership=self.mastership,
        )

        # Care for what is stored
        self.repairer = Repairer(
            self.context,
            self.partitions,
            self.follower,
            self.verifier,
            coordinator,
            secret=secret,
            presence=self.presence,
            soundness=self.soundness,
            network=network,
            disk=disk,
            runner=runner,
            tasks=tasks,
            jobs=jobs,
            cluster=config.cluster,
            node=config.node,
            rng=rng,
        )
        self.upkeep = Upkeep(
            config,
            jobs,
            self.context,
            self.partitions,
            self.verifier,
            coordinator,
            disks.all,
            disk=disk,
            runner=runner,
            clock=clock,
            rng=rng,
            data=directory.path,
            tasks=tasks,
            gate=gate,
        )

        # What is told of all this
        survey = Survey(self.partitions.channels, self.verifier)
        self.vitals = Vitals(
            self.context,
            coordinator,
            gate,
            self.server,
            disks,
            self.partitions,
            self.presence,
            self.follower,
            (self.timers.readers, self.journals.readers, self.shared.readers),
            self.certificate,
        )
        self.facts = table(
            self.vitals.facts(),
            self.presence.facts(),
            role.facts(),
            self.context.facts(),
            server_facts(self.server),
            self.certificate.facts(),
            survey.facts(),
            self.lags.facts(),
            self.diverged.facts(),
            disks.facts(),
            self.upkeep.facts(),
            self.repairer.facts(),
            self.timers.facts(),
            self.journals.facts(),
            self.shared.facts(),
            self.authority.facts(),
            self.accounts.facts(),
            jobs.facts(),
        )
        self.status = StatusReport(
            self.facts,
            self.vitals,
            self.partitions.channels,
            follower=self.follower,
            retainer=self.upkeep.retainer,
            verifier=self.verifier,
            clock=clock,
            exposure=Exposure(config, front.server, self.authority),
        )
        self.monitor = Monitor(config, self.facts, survey, self.vitals, outside.process)
        NodeLoad(
            jobs,
            LoadMeter(self.context.counters, self.flushes, clock, outside.process),
            LoadPublisher(self.presence, clock),
            table=self.facts,
            mastership=self.mastership,
            interval_s=config.load_interval_s,
        )

        # Requests
        self.mover = Mover(
            self.context,
            coordinator,
            self.partitions,
            tasks=tasks,
            seal_timeout_s=config.seal_timeout_s,
        )
        self.fetches = ServedSessions(
            self.partitions,
            self.context,
            front.turn,
            config.connections,
            self.authority,
            self.server.meters,
        )
        Revoker(self.server, self.rules, self.authority, self.context.call_later)
        self.finder = Finder(self.context, self.upkeep.indexer, disk=disk, runner=runner)
        archives = Archives(self.partitions.channels, self.partitions.logs)
        held = HeldBlocks(
            self.partitions.channels,
            self.context,
            config,
            disks.all,
            disk=disk,
            runner=runner,
        )
        why = Reasons(gate, self.context, self.partitions, self.mastership)
        to_channel = partial(Route, of_partition=True)
        to_master = partial(to_channel, opens=attrgetter("takes_puts"))
        routes: dict[int, Route] = {
            Command.PING: Route(self.status.ping),
            Command.STATUS: Route(self.status.answer),
            Command.PUT: to_master(puts.put, why.appends, appends=True),
            Command.GET: Route(partial(get, self.fetches), why.reads),
            Command.OFFSETS: to_channel(reading.offsets, why.serves),
            Command.FETCH: Route(self.fetches.fetch, why.reads),
            Command.VERIFY: to_channel(self.verifier.verify),
            Command.FIND: to_channel(self.finder.find, why.serves),
            Command.CANCEL: to_channel(self.timers.cancel, why.appends),
            Command.TRANSACT: to_master(self.journals.transact, why.decides, with_body=True),
            Command.FENCE: to_master(self.journals.fence, why.appends),
            Command.CHECK: to_master(self.journals.check, why.appends),
            Command.TRANSACTIONS: to_channel(self.journals.listed, why.serves),
            Command.RECEIVE: to_master(self.shared.receive, why.appends),
            Command.SETTLE: to_master(self.shared.settle, why.appends),
            Command.SHARED: to_channel(self.shared.describe, why.serves),
            Command.BLOCKS: Route(held.answer),
            Command.SEAL: to_channel(self.mover.seal, why.seals),
            Command.ADOPT: Route(self.mover.adopt, why.adopts),
            Command.REPLICATE: Route(self.fetches.replicate, why.copied),
            Command.EPOCH_END: to_channel(
                reading.epoch_end, why.copied, opens=attrgetter("rules.read")
            ),
            Command.HAND_OVER: Route(self.hand_over.handle),
            Command.DIVERGED: Route(self.diverged.answer),
            Command.REPAIR: to_channel(self.repairer.give),
            Command.ARCHIVE: Route(archives.answer),
        }
        access = RequestAccess(self.authority, self.journals.concerned, routes)
        self.dispatcher = Dispatcher(
            routes,
            self.partitions,
            self.context,
            gate=gate,
            tasks=tasks,
            access=access if access.enabled else None,
        )
