"""Whether this node acts as master of its group or follows another node, and in which epoch.

In here: taking an epoch (stored first, then acted in or followed), looking whether the group still
has this node as its master, and the reason why PUTs are refused. Not in here: registering the node
(``coordination.brokers.registry``), claiming the group (``coordination.brokers.leadership``), and
for how long a reply of ZooKeeper vouches for us (``lease``).

An epoch that cannot be stored is not used. The broker goes on, tries again while it is the newest
epoch, and refuses PUTs with the reason.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from vq.broker.base.runner import Runner
from vq.broker.partition.context import Role
from vq.broker.partition.gate import Gate
from vq.broker.partition.reserve import Reserve
from vq.broker.replication.epoch_file import EpochFile
from vq.broker.replication.following import Follower
from vq.broker.replication.lease import Lease
from vq.coordination.brokers.leadership import Following, Standing
from vq.coordination.brokers.registry import read_state
from vq.coordination.tree.coordinator import Coordinator
from vq.errors import CoordinationError, DiskFull, NotMaster, VqError
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: Pause after an epoch could not be stored.
RETRY_S: Final = 1.0


class Duty(Protocol):
    """What a node does while it leads its group, and only then."""

    def start(self, epoch: int) -> None:
        """Take that this node leads in an epoch, before anything is served in it."""
        ...

    def stop(self) -> None:
        """Take that this node does not lead, or follows another one than it did."""
        ...


class Mastership:
    """The mastership of one node in one group. Used on its loop.

    Args:
        role: Its ``epoch`` and ``problem`` are set in here.
        lease: Its ``alone`` and ``revoked`` are set in here.
        node: The name of this node.
        epoch_file: Makes epochs durable.
        reserve: The space for that on a full disk.
        gate: Is told what this node acts as, and why it takes no PUTs.
        follower: Copies from the master.
        duties: Of a master, in the order in which they begin and end.

    Attributes:
        refusal: Why this node takes no PUTs, None if it does.
        acting: The registration, and the epoch that is acted in or followed.
    """

    def __init__(
        self,
        role: Role,
        lease: Lease,
        coordinator: Coordinator,
        runner: Runner,
        *,
        node: str,
        epoch_file: EpochFile,
        reserve: Reserve,
        gate: Gate,
        follower: Follower,
        duties: Sequence[Duty],
    ) -> None:
        self._role = role
        self._lease = lease
        self._coordinator = coordinator
        self._runner = runner
        self._node = node
        self._epoch_file = epoch_file
        self._reserve = reserve
        self._gate = gate
        self._follower = follower
        self._duties = duties
        self._newest: Standing | None = None
        self._seen_epoch = 0  # of the group's record, when it was read last
        self._wake = asyncio.Event()
        self.refusal: VqError | None = NotMaster("this node is not registered yet")
        self.acting: Standing | None = None

    @property
    def waits(self) -> str:
        """Why this node, which is in sync, does not lead although nobody does; "": it may."""
        return self.acting.waits if isinstance(self.acting, Following) else ""

    @property
    def newest_epoch(self) -> int:
        """The newest epoch in which this node leads or follows, or is about to; 0: none yet."""
        return self._newest.epoch if self._newest is not None else 0

    def hear(self, epoch: int, node: str) -> bool:
        """Take what a node of the group says that copied from this one: it is in a newer epoch.

        ZooKeeper may tell it later, or not until it is back.

        Returns:
            Whether this node led until now.
        """
        role = self._role
        if not role.epoch or self._lease.revoked or epoch <= max(role.epoch, self.newest_epoch):
            return False
        logger.info(
            "node leads no more, as another one says",
            group=role.group,
            epoch=role.epoch,
            newer=epoch,
            node=node,
        )
        self._lease.revoked = True
        self._refuse(
            NotMaster(
                f"group {role.group} is in epoch {epoch}, as node {node} says, this process has "
                f"epoch {role.epoch}"
            )
        )
        return True

    def stands(self, standing: Standing) -> None:
        """Take the epoch of a claim that was made, or of the master that is to be followed."""
        self._newest = standing
        if isinstance(standing, Following):
            self._lead_no_more(standing)  # at once; what is followed is stored before
        self._wake.set()

    async def take_first(self) -> None:
        """Take the epoch of the first claim; one that a disk refuses is left to ``run``.

        Raises:
            CoordinationError: It does not rise above the one stored: ZooKeeper lost the record.
            DirectoryRefused: The epoch stored cannot be read.
        """
        self._wake.clear()
        try:
            await self._take_newest()
        except (OSError, DiskFull) as error:
            self._cannot_store(error)
            self._wake.set()

    async def run(self) -> None:
        """Take the epochs of later claims, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._take_newest()
            except Exception as error:  # without this task, nobody would lead the group
                if not isinstance(error, OSError | VqError):
                    logger.exception("taking an epoch failed, trying again")
                self._cannot_store(error)
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def _take_newest(self) -> None:
        """Store the epoch of the newest claim, then act in it or follow it."""
        newest = self._newest
        if newest is None or newest == self.acting:
            return
        if isinstance(newest, Following):
            await self._runner.run(lambda: self._accept(newest.epoch))
            self._follow(newest)
            return
        await self._runner.run(lambda: self._store(newest.epoch))
        if isinstance(self._newest, Following):
            return  # another node leads by now; its epoch comes next
        role = self._role
        role.epoch, role.problem, role.follows = max(role.epoch, newest.epoch), "", ""
        role.insync = frozenset(newest.insync) - {self._node}
        role.named, role.leaving = len(role.insync) + 1, 0
        self._lease.alone = not role.insync
        for each in self._duties:
            each.start(role.epoch)
        self.acting = newest
        if newest.epoch < self._seen_epoch:
            # While it was stored, somebody else began to lead; that refusal stays. Nothing is
            # copied any more from whom this node followed before.
            self._tell()
            return
        self._lease.revoked = False
        self._refuse(None)
        logger.info("epoch is stored and in use", group=role.group, epoch=newest.epoch)
        try:
            await self.look_at_group()
        except CoordinationError as error:  # it is looked at again with every load published
            logger.info(
                "state of the group cannot be read, trying again later",
                group=role.group,
                error=error,
            )

    def _follow(self, following: Following) -> None:
        """Follow a master, whose epoch is stored."""
        self._lead_no_more(following)
        self.acting = following
        self._tell()

    def _lead_no_more(self, following: Following) -> None:
        """Acknowledge nothing and serve nothing: another node leads."""
        role = self._role
        if role.epoch or role.follows != following.master:
            role.epoch, role.problem, role.follows = 0, "", following.master
            role.insync, role.named, role.leaving = frozenset(), 1, 0
            self._lease.revoked = True
            self.acting = None
            for each in self._duties:
                each.stop()
        at = f" at {following.address}" if following.address is not None else ", which is down"
        details: dict[str, int | str] = {
            "group": role.group,
            "epoch": following.epoch,
            "master": following.master,
        }
        if following.address is not None:
            details |= {"host": following.address.host, "port": following.address.port}
        self._refuse(
            NotMaster(
                following.waits
                or f"group {role.group} is led by node {following.master}{at}; this node copies "
                "its logs",
                details=details,
            )
        )

    def _cannot_store(self, error: BaseException) -> None:
        role, newest = self._role, self._newest
        assert newest is not None
        problem = f"epoch {newest.epoch} of group {role.group} cannot be stored: {error}"
        if problem != role.problem:
            logger.error(
                "epoch cannot be stored, messages are refused",
                group=role.group,
                epoch=newest.epoch,
                retry_s=RETRY_S,
                error=error,
            )
        role.problem = problem
        self._refuse((DiskFull if isinstance(error, DiskFull) else NotMaster)(problem))

    async def look_at_group(self) -> None:
        """See whether this node still leads its group, and whether it is alone in sync.

        Raises:
            CoordinationError: ZooKeeper cannot be asked.
        """
        role, newest = self._role, self._newest
        state = await read_state(self._coordinator, role.group)
        if state is None or isinstance(newest, Following):
            return  # nobody else can lead by it either; or this node does not lead
        self._seen_epoch = state.epoch
        self._lease.alone = state.insync == (self._node,) and not role.insync
        claimed = max(role.epoch, newest.epoch if newest is not None else 0)
        if state.master != self._node or state.epoch > claimed:
            # Another node, or another process under this node's name with other data.
            self._lease.revoked = True
            self._refuse(
                NotMaster(
                    f"group {role.group} is led by {state.master} in epoch {state.epoch}, "
                    f"this process has epoch {role.epoch}"
                )
            )

    def _refuse(self, refusal: VqError | None) -> None:
        self.refusal = refusal
        self._tell()

    def _tell(self) -> None:
        """Have those know who act on it what this node acts as, and why it takes no PUTs."""
        acting = self.acting
        following = acting if isinstance(acting, Following) else None
        self._follower.follow(following if self._gate.serves else None, self.newest_epoch)
        if acting is not None:
            self._gate.acts(acting.incarnation, acting.epoch)
        self._gate.note_mastership(self.refusal, follows=bool(self._role.follows))

    # Blocks -------------------------------------------------------------------------------------
    def _store(self, epoch: int) -> None:
        self._reserve.spend(
            lambda: self._epoch_file.store(epoch), "not even the broker's epoch can be stored"
        )

    def _accept(self, epoch: int) -> None:
        self._reserve.spend(
            lambda: self._epoch_file.accept(epoch),
            "not even the epoch of the group's master can be stored",
        )
