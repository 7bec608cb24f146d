"""The answers to the PUTs of one partition, and the PUTs that wait for theirs.

The channel decides how far PUTs may be acknowledged; this answers each of them once, and counts
what was refused and how long the others took.
"""

from collections import deque
from typing import NamedTuple

from vq.broker.base.session import Session
from vq.broker.partition.context import Context
from vq.broker.standing.role import Role
from vq.errors import InternalError, OutcomeUnknown, VqError
from vq.log_lines import get_logger
from vq.model import TopicPartition
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId

logger = get_logger(__name__)


class Acknowledgement(NamedTuple):
    """A PUT that waits until the log is stored up to ``target`` where it has to be."""

    target: int
    session: Session
    request_id: RequestId
    offset: int  # of the batch's first record
    duplicate: bool
    since: float  # when it was appended; 0: that is not measured


class Acknowledgements:
    """Answers PUTs.

    Args:
        partition: To which they are sent.
        role: What this node is in the group that holds it; its epoch stands in the answers.
        context: Has the counters.

    Attributes:
        alone: The master acknowledges what it has itself, so only while its lease holds.
        waiting: In rising order of targets, but for resends.
    """

    __slots__ = ("_context", "_partition", "_role", "alone", "waiting")

    def __init__(self, partition: TopicPartition, role: Role, context: Context) -> None:
        self._partition = partition
        self._role = role
        self._context = context
        self.alone = False
        self.waiting: deque[Acknowledgement] = deque()

    def give(
        self, session: Session, request_id: RequestId, offset: int, *, duplicate: bool
    ) -> None:
        """Acknowledge a PUT, if this node may do so still."""
        role = self._role
        if (not self.alone and role.goes_on) or role.holds():
            session.reply(
                request_id, wire.PutResponse(offset=offset, duplicate=duplicate, epoch=role.epoch)
            )
        else:
            session.refuse(request_id, self.mastership_lost())

    def give_below(self, stored: int) -> None:
        """Acknowledge those that wait for no more than is stored."""
        waiting = self.waiting
        times = self._context.acknowledged
        now = 0.0 if times is None else self._context.clock.monotonic()
        while waiting and waiting[0].target <= stored:
            _, session, request_id, offset, duplicate, since = waiting.popleft()
            try:
                self.give(session, request_id, offset, duplicate=duplicate)
                if since and times is not None:
                    times.observe(now - since)
            except Exception:
                logger.exception("acknowledging failed", partition=self._partition)

    def refuse(self, session: Session, request_id: RequestId, error: VqError) -> None:
        """Refuse a PUT."""
        self._context.counters.refused += 1
        session.refuse(request_id, error)

    def drop(self, error: OutcomeUnknown) -> None:
        """Answer all that wait: the outcome is unknown."""
        dropped, self.waiting = self.waiting, deque()
        for ack in dropped:
            try:
                self.refuse(ack.session, ack.request_id, error)
            except Exception:
                logger.exception("refusing failed", partition=self._partition)

    def unconfirmed(self) -> OutcomeUnknown:
        """Return the error for those that wait while a node in sync is silent."""
        return InternalError(
            f"partition {self._partition}: not all nodes in sync of {self._role.group} have stored "
            "the batch, and ZooKeeper does not answer; it is stored here, send it again"
        )

    def mastership_lost(self) -> OutcomeUnknown:
        """Return the error for those that wait when this node leads no longer."""
        return InternalError(
            f"partition {self._partition}: the mastership of {self._role.group} was lost before "
            "the batch could be acknowledged"
        )
