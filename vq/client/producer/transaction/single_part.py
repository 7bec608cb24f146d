"""Transactions whose messages all go to one partition: each is a batch there, and needs no journal.

A batch is stored whole or not at all, and its stamp says whether it is: the broker recognises it
when it comes again. A stamp is of a line of batches, one behind the other; as many lines are in use
as such transactions end at the same time, so that a log remembers few producers for all of them.
"""

from dataclasses import dataclass
from typing import Final

from vq.client.cluster import ClusterClient
from vq.client.puts import put_batch
from vq.errors import STAMP_REFUSED, OutcomeUnknown, VqError
from vq.model import ProducerStamp, TopicPartition


@dataclass(slots=True)
class _StampLine:
    """Batches to one partition, one behind the other.

    Attributes:
        producer_id, sequence: Of the next one.
    """

    producer_id: int
    sequence: int = 0


class Lines:
    """The lines of one producer that no transaction uses. Loop-bound."""

    def __init__(self, cluster: ClusterClient) -> None:
        self.cluster: Final = cluster
        self._idle: dict[tuple[TopicPartition, str], list[_StampLine]] = {}

    def take(self, to: TopicPartition, topic_id: str) -> _StampLine:
        """Return a line for one transaction."""
        idle = self._idle.get((to, topic_id))
        return idle.pop() if idle else self.new()

    def new(self) -> _StampLine:
        """Return a line that nobody has used."""
        return _StampLine(self.cluster.rng.getrandbits(63) | 1)

    def give_back(self, to: TopicPartition, topic_id: str, line: _StampLine) -> None:
        """Have another transaction use a line; what became of all its batches is known."""
        self._idle.setdefault((to, topic_id), []).append(line)


class SinglePart:
    """One such transaction. Loop-bound.

    Args:
        lines: Those of its producer.
        number: Of the transaction.
        to, topic_id: Where it goes.
        body, messages: Its records, and how many they are.
    """

    def __init__(
        self,
        lines: Lines,
        number: int,
        to: TopicPartition,
        topic_id: str,
        body: bytes,
        messages: int,
    ) -> None:
        self._lines = lines
        self._number = number
        self._to = to
        self._topic_id = topic_id
        self._body = body
        self._messages = messages
        self._line: _StampLine | None = lines.take(to, topic_id)
        self._was_sent = False

    def renumber(self, number: int) -> None:
        """Give it another number, after ``commit`` has raised that the first one is not its own."""
        self._number = number
        self._line = self._lines.take(self._to, self._topic_id)

    async def commit(self, deadline: float) -> int:
        """Have it stored; return its offset. May be called again.

        Once it was sent there is no way back: to call it again is how to learn the outcome.

        Raises:
            OutcomeUnknown: It may be stored.
            VqError: It is not, and never will be.
        """
        try:
            return await self._put(deadline)
        except STAMP_REFUSED:  # it was never sent before, so it is not stored
            self._line = self._lines.new()
            return await self._put(deadline)

    async def _put(self, deadline: float) -> int:
        line = self._line
        assert line is not None
        stamp = ProducerStamp(line.producer_id, 0, line.sequence)
        resend, self._was_sent = self._was_sent, True
        try:
            offset = await put_batch(
                self._lines.cluster,
                self._to,
                stamp,
                (self._body,),
                messages=self._messages,
                topic_id=self._topic_id,
                deadline=deadline,
                resend=resend,
                transaction=self._number,
            )
        except OutcomeUnknown:
            raise
        except VqError as error:
            if resend:  # that says nothing of what was sent before
                raise OutcomeUnknown(f"{self._to}: a try had no answer; then: {error}") from error
            self._was_sent = False
            if not isinstance(error, STAMP_REFUSED):
                self._end(line)
            raise
        line.sequence += 1
        self._end(line)
        return offset

    def _end(self, line: _StampLine) -> None:
        self._line = None
        self._lines.give_back(self._to, self._topic_id, line)
