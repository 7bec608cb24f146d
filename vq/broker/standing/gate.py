"""What a node refuses as a whole, and why: asked by every request, decided in here.

    role     it is not registered, does not lead, cannot store an epoch, or hands over: PUTs wait
    disks    they are full, gone or silent
    stage    it stops

Not in here: what one partition refuses (``partition_state``), and what follows for its requests
(``dispatcher``).
"""

from dataclasses import replace
from enum import Enum

from vq.broker.base.notice import Notice
from vq.broker.standing.role import Role
from vq.errors import Busy, ShuttingDown, VqError
from vq.remoting.hello import ServerIdentity


class Stage(Enum):
    """How far a node is with its start and its end."""

    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"
    """It hands over, and follows nobody any more."""
    STOPPING = "stopping"
    """It takes no more requests."""


class Gate:
    """The gate of one node. Loop-bound.

    Args:
        identity: How the node answers HELLO, until it acts as something else.
        role: Whether it leads its group.

    Attributes:
        identity: How it answers HELLO.
        epoch: The newest that it acted in or followed; a PUT that knows a newer one waits.
        refusal: Why it serves no partition, or None: another node leads its group.
        put_refusal: Why it takes no PUTs, or None.
        holds: PUTs that are refused wait: it hands over.
        stage: How far it is with its start and its end.
        moved: Told after the role has changed some of this: PUTs that wait may go on, or are
            refused.
    """

    def __init__(self, identity: ServerIdentity, role: Role) -> None:
        self.identity = identity
        self._role = role
        self.epoch = 0
        self.refusal: VqError | None = None
        self.put_refusal: VqError | None = None
        self.holds = False
        self.stage = Stage.STARTING
        self.moved = Notice[[]]()
        self._disks: VqError | None = None
        self._decide()
        role.changed.listen(self._role_changed)

    @property
    def name(self) -> str:
        """The node, with its group."""
        return f"{self.identity.group}/{self.identity.node}"

    @property
    def serves(self) -> bool:
        """Whether the end of the node has not begun."""
        return self.stage in {Stage.STARTING, Stage.SERVING}

    def acts(self, incarnation: int, epoch: int) -> None:
        """Take as what, and in which epoch, the node acts or follows from now on."""
        self.identity = replace(self.identity, incarnation=incarnation)
        self.epoch = epoch

    def _role_changed(self) -> None:
        self._decide()
        self.moved.tell()

    def note_disks(self, refusal: VqError | None) -> None:
        """Take why no disk of the node takes messages; None: at least some do."""
        self._disks = refusal
        self._decide()

    def started(self) -> None:
        """Note that the node does its work from now on, unless its end has begun."""
        if self.stage is Stage.STARTING:
            self.stage = Stage.SERVING

    def leave(self) -> None:
        """Note that the node is about to stop."""
        self.stage = Stage.LEAVING

    def stop(self) -> None:
        """Take no more requests."""
        self.stage = Stage.STOPPING
        self._decide()

    def _decide(self) -> None:
        role = self._role
        self.refusal = role.refusal if role.follows else None
        self.holds = role.puts == "held"
        refusal = role.refusal or self._disks
        if self.stage is Stage.STOPPING:
            refusal = ShuttingDown(f"broker {self.name} is stopping")
        elif refusal is None and self.holds:
            refusal = Busy(f"group {self.identity.group} is being handed over to another node")
        self.put_refusal = refusal
