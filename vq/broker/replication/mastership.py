"""Whether this node acts as master of its group or follows another node, and in which epoch.

In here: taking an epoch (stored first, then acted in or followed), and looking whether the group
still has this node as its master. Not in here: what follows for the node (``standing.role``),
registering it (``coordination.brokers.registry``), and claiming the group
(``coordination.brokers.leadership``).

An epoch that cannot be stored is not used. The broker goes on, tries again while it is the newest
epoch, and refuses PUTs with the reason.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from vq.broker.base.runner import Runner
from vq.broker.logs.reserve import Reserve
from vq.broker.replication.epoch_file import EpochFile
from vq.broker.replication.following import Follower
from vq.broker.standing.gate import Gate
from vq.broker.standing.role import Role
from vq.coordination.brokers.leadership import Following, Leading, Standing
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
        """Note that this node leads in an epoch, before anything is served in it."""
        ...

    def stop(self) -> None:
        """Note that this node does not lead, or follows another one than it did."""
        ...


class Mastership:
    """The mastership of one node in one group. Used on its loop.

    Args:
        role: Is told what happens.
        node: The name of this node.
        epoch_file: Makes epochs durable.
        reserve: The space for that on a full disk.
        gate: Is told what this node acts as.
        follower: Copies from the master.
        duties: Of a master, in the order in which they begin and end.

    Attributes:
        acting: The registration, and the epoch that is acted in or followed.
    """

    def __init__(
        self,
        role: Role,
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
        self.acting: Standing | None = None

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
        if not role.epoch or role.deposed or epoch <= max(role.epoch, self.newest_epoch):
            return False
        logger.info(
            "node leads no more, as another one says",
            group=role.group,
            epoch=role.epoch,
            newer=epoch,
            node=node,
        )
        role.is_deposed(
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
        else:
            self._role.claimed(sole={*standing.insync} <= {self._node})
        self._wake.set()

    async def take_first(self) -> None:
        """Take the epoch of the first claim; one that a disk refuses is left to ``run``.

        Raises:
            CoordinationError: It does not rise above the one stored: ZooKeeper lost the record.
            DirectoryRefused: The epoch stored cannot be read.
        """
        self._wake.clear()
        newest = self._newest
        try:
            await self.take(newest)
        except (OSError, DiskFull) as error:
            self._cannot_store(newest, error)

    async def run(self) -> None:
        """Take the epochs of later claims, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            newest = self._newest
            try:
                await self.take(newest)
            except Exception as error:  # without this task, nobody would lead the group
                if not isinstance(error, OSError | VqError):
                    logger.exception("taking an epoch failed, trying again")
                self._cannot_store(newest, error)
                await asyncio.sleep(RETRY_S)

    async def take(self, newest: Standing | None) -> None:
        """Store the epoch of a claim or a master, then act in it or follow it.

        Unless another one has come meanwhile: that one is next.
        """
        if newest is None or newest == self.acting:
            return
        if isinstance(newest, Following):
            await self._runner.run(lambda: self._accept(newest.epoch))
            if newest is self._newest:
                self._lead_no_more(newest)
                self.acting = newest
                self._tell()
            return
        await self._runner.run(lambda: self._store(newest.epoch))
        if newest is self._newest:
            await self._lead(newest)

    async def _lead(self, claim: Leading) -> None:
        """Act in an epoch, which is stored."""
        role = self._role
        role.begins(claim.epoch, {*claim.insync} - {self._node})
        for each in self._duties:
            each.start(role.epoch)
        self.acting = claim
        self._tell()  # nothing is copied any more from whom this node followed before
        if claim.epoch < self._seen_epoch:
            role.leads(
                NotMaster(
                    f"group {role.group} is in epoch {self._seen_epoch}, this process has epoch "
                    f"{role.epoch}"
                )
            )
            return
        role.leads()
        logger.info("epoch is stored and in use", group=role.group, epoch=claim.epoch)
        try:
            await self.look_at_group()
        except CoordinationError as error:  # it is looked at again with every load published
            logger.info(
                "state of the group cannot be read, trying again later",
                group=role.group,
                error=error,
            )

    def _lead_no_more(self, following: Following) -> None:
        """Acknowledge nothing and serve nothing: another node leads."""
        role = self._role
        at = f" at {following.address}" if following.address is not None else ", which is down"
        details: dict[str, int | str] = {
            "group": role.group,
            "epoch": following.epoch,
            "master": following.master,
        }
        if following.address is not None:
            details |= {"host": following.address.host, "port": following.address.port}
        refusal = NotMaster(
            following.waits
            or f"group {role.group} is led by node {following.master}{at}; this node copies its "
            "logs",
            details=details,
        )
        if role.follow(following.master, refusal, waits=following.waits):
            self.acting = None
            for each in self._duties:
                each.stop()
        self._tell()

    def _cannot_store(self, newest: Standing | None, error: BaseException) -> None:
        """Refuse PUTs with the reason, and try again, unless something newer has come."""
        if newest is None or newest is not self._newest:
            return
        role = self._role
        problem = f"epoch {newest.epoch} of group {role.group} cannot be stored: {error}"
        if problem != role.problem:
            logger.error(
                "epoch cannot be stored, messages are refused",
                group=role.group,
                epoch=newest.epoch,
                retry_s=RETRY_S,
                error=error,
            )
        role.cannot_store((DiskFull if isinstance(error, DiskFull) else NotMaster)(problem))
        self._tell()
        self._wake.set()

    async def look_at_group(self) -> None:
        """See whether this node still leads its group, and whether it is alone in sync.

        Raises:
            CoordinationError: ZooKeeper cannot be asked.
        """
        role, newest = self._role, self._newest
        state = await read_state(self._coordinator, role.group)
        if state is None or isinstance(newest, Following):
            return  # nobody else can lead by it either; or this node does not lead
        if newest is not self._newest:
            return  # what was read came with that, or before it
        self._seen_epoch = state.epoch
        role.counts(role.insync, alone=state.insync == (self._node,) and not role.insync)
        if state.master != self._node or state.epoch > max(role.epoch, self.newest_epoch):
            # Another node, or another process under this node's name with other data.
            role.is_deposed(
                NotMaster(
                    f"group {role.group} is led by {state.master} in epoch {state.epoch}, "
                    f"this process has epoch {role.epoch}"
                )
            )

    def _tell(self) -> None:
        """Have those know who act on it what this node acts as."""
        acting = self.acting
        following = acting if isinstance(acting, Following) else None
        self._follower.follow(following if self._gate.serves else None, self.newest_epoch)
        if acting is not None:
            self._gate.acts(acting.incarnation, acting.epoch)

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
