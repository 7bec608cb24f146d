"""What a transaction asks of the partition of the journal that decides it."""

from collections.abc import Sequence
from typing import Final

from vq.client.asking import ask_master
from vq.client.producer.transaction.transactional_id import TransactionalId
from vq.coordination.groups.decisions import DecisionNode
from vq.model import TopicPartition, TransactionState, Xid
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import (
    TransactionChecks,
    TransactionPart,
    TransactRequest,
    TransactResponse,
)

#: Of the time for a try, a broker may wait so much until all is stored.
_WAIT_SHARE: Final = 0.8


class JournalRequests:
    """The requests that bring the messages of a transaction to the journal. Loop-bound.

    The last of them commits, or prepares. There are none before ``begin`` and after ``clear``.

    Attributes:
        sent: So many of them were answered.
    """

    def __init__(self, id: TransactionalId, xid: Xid | None, *, keep: bool) -> None:
        self._id = id
        self._xid = xid
        self._keep = keep
        self._number = 0
        self._journal: TopicPartition | None = None
        self._checks: TransactionChecks | None = None
        self._requests: list[tuple[TransactRequest, bytes]] = []
        self.sent = 0

    def __len__(self) -> int:
        return len(self._requests)

    def begin(
        self,
        journal: TopicPartition,
        number: int,
        given: Sequence[tuple[list[TransactionPart], bytes]],
        last: TransactionState,
        *,
        checks: TransactionChecks | None,
        node: DecisionNode | None,
    ) -> None:
        """Make them.

        Args:
            journal: The partition that decides.
            number: Of the transaction.
            given: For each request its parts and their bytes.
            last: What the last one makes of the transaction.
            checks: See ``TransactionCore.prepare``.
            node: The one in ZooKeeper that decides, if it has offsets.
        """
        self._journal, self._number, self._checks = journal, number, checks
        for index, (parts, body) in enumerate(given):
            is_last = index == len(given) - 1
            request = self._make(last if is_last else TransactionState.OPEN, index)
            request.parts.extend(parts)
            if is_last and node is not None:
                _, request.decision, request.decision_version = node
            self._requests.append((request, body))

    def renumber(self, number: int) -> None:
        """Give the transaction another number; no request of it was carried out."""
        self._number = number
        for request, _ in self._requests:
            request.transaction = number

    @property
    def last(self) -> tuple[TransactRequest, bytes]:
        """The request that commits, or prepares, and its bytes."""
        return self._requests[-1]

    @property
    def are_answered(self) -> bool:
        """Whether all of them are."""
        return self.sent == len(self._requests)

    async def send_first_ones(self, deadline: float) -> None:
        """Send all but the last one, and what was answered before.

        Raises:
            VqError: One was not carried out, or nobody knows; nothing was decided.
        """
        while self.sent < len(self._requests) - 1:
            await self.ask(*self._requests[self.sent], deadline)
            self.sent += 1

    def drop_messages(self) -> None:
        """Keep no messages: the journal has them."""
        for request, _ in self._requests:
            request.ClearField("parts")
        self._requests = [(request, b"") for request, _ in self._requests]

    def clear(self) -> None:
        """Keep none."""
        self._requests.clear()

    def make(self, state: TransactionState) -> TransactRequest:
        """Return the request after those that were answered, which makes it so, or asks."""
        return self._make(state, self.sent)

    def _make(self, state: TransactionState, number: int) -> TransactRequest:
        config, journal = self._id.config, self._journal
        assert journal is not None
        return TransactRequest(
            topic=journal.topic,
            partition=journal.partition,
            transaction=self._number,
            number=number,
            state=int(state),
            client=config.transactional_id or "",
            client_epoch=self._id.epoch,
            timeout_ms=int(config.transaction_timeout_s * 1_000),
            xid="" if self._xid is None else self._xid.text,
            keep=self._keep,
            checks=self._checks if state is TransactionState.PREPARED else None,
        )

    async def ask(self, request: TransactRequest, body: bytes, deadline: float) -> TransactResponse:
        """Send a request to the master of the journal.

        Raises:
            OutcomeUnknown: It is unknown whether it was carried out.
            VqError: It was not.
        """
        assert self._journal is not None
        cluster = self._id.cluster
        left_s = max(0.0, deadline - cluster.clock.monotonic())
        wait_s = _WAIT_SHARE * min(left_s / 2, cluster.config.request_timeout_s)
        request.max_wait_ms = int(wait_s * 1_000)  # and there is time for another try
        answer: TransactResponse = await ask_master(
            cluster,
            self._journal,
            Command.TRANSACT,
            request,
            body,
            deadline=deadline,
            what=f"what became of transaction {self._number}",
        )
        return answer
