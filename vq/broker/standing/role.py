"""What a node is in its group: whether it leads, in which epoch, and with which nodes in sync.

In here: the present state of ``node_state`` and what it is about. All of it changes by the methods
below, which say what has happened. Not in here: the reading and writing of the group's record, and
the storing of epochs (``replication.mastership``, ``replication.insync_set``).
"""

from collections.abc import Collection, Iterator
from typing import Any

from vq.broker.base.facts import Fact, Facts, gauge
from vq.broker.base.notice import Notice
from vq.broker.standing.lease import Lease
from vq.broker.standing.node_state import NODE_RULES, NodeEvent, NodeState, next_node_state
from vq.errors import VqError
from vq.log_lines import get_logger

logger = get_logger(__name__)


class Role:
    """The role of one node in one group. Loop-bound.

    What all nodes in sync have stored in the epoch of their master stays, whoever is elected later:
    it is one of them, and none takes anything of an older epoch once it follows or leads in a newer
    one. No clock takes part in that. So a topic with replication ``sync`` goes on while ZooKeeper
    is away, however long that is (``goes_on``).

    Where the master acknowledges alone, it stops by itself before its session can have ended and
    another master can have been chosen (``holds``). So less is lost in a take-over. A group whose
    in-sync set is this node alone can have no other master, so it needs no lease.

    Args:
        group: The group.
        lease: Whether a reply of ZooKeeper vouches that nobody else was elected, see there.
        refusal: Why this node takes no PUTs at first.

    Attributes:
        state: How the node stands.
        epoch: In which it leads, stamped into every batch; 0 while it does not.
        problem: Why it does not use a newer epoch than ``epoch``; "" if there is none.
        follows: The node that leads instead, and whose logs this one copies; "" if there is none.
        waits: Why this node, which is in sync, does not lead although nobody does; "": it may.
        refusal: Why it takes no PUTs; None: it takes them, or hands over.
        insync: The other nodes of its group without which nothing is committed; see
            ``replica_rules.counted``.
        named: How many nodes its group's record names as in sync, itself included.
        leaving: How many of these are to leave, or may have left already.
        alone: The record can name no other node as in sync.
        sole: It had no role yet, and was claimed where no other node is in sync.
        silent: A node in sync that does not keep up, while ZooKeeper cannot be asked to put it out
            of the set; "": there is none.
        changed: Told after ``state`` or ``refusal`` has changed.
    """

    __slots__ = (
        "_acts",
        "_lease",
        "alone",
        "changed",
        "epoch",
        "follows",
        "group",
        "insync",
        "leaving",
        "named",
        "problem",
        "refusal",
        "silent",
        "sole",
        "state",
        "waits",
    )

    def __init__(self, group: str, lease: Lease, refusal: VqError) -> None:
        self.group = group
        self._lease = lease
        self.state = NodeState.UNREGISTERED
        self._acts = False
        self.epoch = 0
        self.problem = self.follows = self.waits = self.silent = ""
        self.refusal: VqError | None = refusal
        self.insync: frozenset[str] = frozenset()
        self.named, self.leaving = 1, 0
        self.alone = self.sole = False
        self.changed = Notice[[]]()

    # What follows from it -----------------------------------------------------------------------
    def holds(self) -> bool:
        """Whether this node may act as master right now, without asking its copies."""
        return self._acts and (self.alone or self._lease.lasts())

    @property
    def goes_on(self) -> bool:
        """Whether it may act without a lease, where other nodes in sync confirm all that counts.

        While one of them is silent, nothing would be confirmed: messages are refused, not kept
        waiting for an outcome.
        """
        return self._acts and bool(self.insync) and not self.silent

    @property
    def acts(self) -> bool:
        """Whether this node leads, and takes messages at least where its copies confirm them."""
        return self.epoch > 0 and (self.holds() or self.goes_on)

    @property
    def shows(self) -> bool:
        """Whether it is known what of this node's logs readers may see.

        A node that has just started may have what other nodes in sync lack.
        """
        return self.epoch > 0 or bool(self.follows) or self.sole

    @property
    def leads_others(self) -> bool:
        """Whether this node leads while others are in sync."""
        return self.epoch > 0 and self.named > 1

    @property
    def deposed(self) -> bool:
        """Whether this node has led, and another one does by now."""
        return self.epoch > 0 and not self._acts

    @property
    def puts(self) -> str:
        """What becomes of a PUT, see ``NodeRules``."""
        return NODE_RULES[self.state].puts

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[Role].of(
            self,
            gauge(
                "vq_leader",
                "1 if this node leads its group, else 0.",
                lambda role: role.epoch > 0,
            ),
            gauge(
                "vq_leader_may_act",
                "1 if it leads and takes messages: ZooKeeper answered not long ago, or (for "
                "replication = sync) all nodes in sync keep up; else 0.",
                lambda role: role.acts,
                status="master",
            ),
            gauge(
                "vq_epoch",
                "Epoch in which this node leads; none while it does not.",
                lambda role: role.epoch or None,
                status="epoch",
            ),
            gauge(
                "vq_in_sync_nodes",
                "Nodes in sync of the group, this one included; none while it does not lead.",
                lambda role: role.named if role.epoch else None,
            ),
            Fact(read=lambda role: role.follows, status="follows"),
        )

    # What happens -------------------------------------------------------------------------------
    def claimed(self, *, sole: bool = False) -> None:
        """Note that the record names this node, in an epoch that is not stored yet.

        Args:
            sole: It names no other node as in sync.
        """
        self.sole = sole
        self._happens(NodeEvent.CLAIMED, self.refusal)

    def begins(self, epoch: int, others: Collection[str]) -> None:
        """Take the epoch in which this node leads next; it is stored. ``leads`` comes after it.

        Args:
            epoch: The epoch.
            others: The nodes in sync that the record named beside this one.
        """
        self.epoch = max(self.epoch, epoch)
        self.problem = self.follows = self.waits = self.silent = ""
        self.counts(frozenset(others), alone=not others)
        self.named, self.leaving = len(self.insync) + 1, 0

    def leads(self, overtaken: VqError | None = None) -> None:
        """Note that this node leads in the epoch that has begun.

        Args:
            overtaken: Why it does not: the record names another master by now.
        """
        self._happens(NodeEvent.STORED if overtaken is None else NodeEvent.STORED_LATE, overtaken)

    def cannot_store(self, problem: VqError) -> None:
        """Note that a newer epoch cannot be stored."""
        self.problem = problem.message
        self._happens(NodeEvent.NOT_STORED, problem)

    def is_deposed(self, why: VqError) -> None:
        """Note that another node leads, or another process under this name."""
        self._happens(NodeEvent.DEPOSED, why)

    def follow(self, master: str, why: VqError, *, waits: str = "") -> bool:
        """Note that another node leads, or is to.

        Args:
            master: That node.
            why: What PUTs are refused with.
            waits: Why this node waits for it although it does not lead; "": it leads.

        Returns:
            Whether this node led, or followed another one, until now.
        """
        turns = self.epoch > 0 or self.follows != master
        self.epoch, self.follows, self.waits = 0, master, waits
        self.problem = self.silent = ""
        self.insync, self.named, self.leaving = frozenset(), 1, 0
        self._happens(NodeEvent.WAIT if waits else NodeEvent.FOLLOW, why)
        return turns

    def hold(self) -> None:
        """Have PUTs wait: another node in sync is about to take over."""
        self._happens(NodeEvent.HOLD, self.refusal)

    def let_go(self) -> None:
        """Have no PUT wait for a hand-over any more."""
        self._happens(NodeEvent.LET_GO, self.refusal)

    def counts(self, insync: frozenset[str], *, alone: bool) -> None:
        """Take which other nodes count as in sync, and whether the record can name none of them."""
        self.insync, self.alone = insync, alone

    def _happens(self, event: NodeEvent, refusal: VqError | None) -> None:
        before, self.state = self.state, next_node_state(self.state, event)
        self._acts = NODE_RULES[self.state].acts
        self.refusal = refusal
        if before is not self.state:
            logger.debug("node stands otherwise", group=self.group, event=event, state=self.state)
        self.changed.tell()
