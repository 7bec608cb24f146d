"""Where the messages of a consumer go that have used up their attempts: copies in reserved topics.

    on_failure = "retry-topic"  ─▶ the retry topic, after a delay; behind the last one: as below
    on_failure = "dead-letter"  ─▶ the topic of dead letters
    on_failure = "skip"         ─▶ the member's failed file, on this machine

Loop-bound.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from vq.client import failed_file
from vq.client.cluster import ClusterClient
from vq.client.consumer.deliver.giving_up import COPIED, Copied, FailedTries, Spent
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.tracebacks import Tracebacks
from vq.client.copies import MessageCopies, origin_of
from vq.client.disk_thread import DiskThread
from vq.coordination.tree.values.group_terms import OnBadRecord, OnFailure
from vq.errors import InvalidArgument, InvalidState
from vq.log_lines import get_logger
from vq.model import Message
from vq.reserved import GROUP_CHARS_MAX, Purpose, group_of, redelivery_in, topic_of

logger = get_logger(__name__)
#: How long one try to copy a message waits for the broker.
_COPY_S: Final = 10.0
#: How long one try to record a message waits for the disk.
_DISK_S: Final = 30.0


class FailedMessages:
    """The copies of one consumer.

    Attributes:
        copier: Makes the copies.
        tries: What listeners failed for while messages are copied.
        retry_topic: Of the group; "": its name is too long for one.
    """

    def __init__(
        self, cluster: ClusterClient, group: str, member: str, policy: PolicyInForce
    ) -> None:
        self._group = group
        self._policy = policy
        self._now_ms = cluster.clock.wall_ms
        self._member = member
        self._cluster_name = cluster.config.cluster
        self._file: failed_file.FailedFile | None = None
        self._thread = DiskThread("vq-failed")
        self._tracebacks = Tracebacks(cluster.clock.wall_ms)
        self.copier = MessageCopies(cluster, group)
        self.tries = FailedTries(policy, cluster.clock.wall_ms)
        has_name = 0 < len(group) <= GROUP_CHARS_MAX
        self.retry_topic = topic_of(Purpose.RETRY, group) if has_name else ""

    def copies(self, topic: str) -> bool:
        """Whether messages of a topic are copied: those that have used up their attempts, say.

        Some of the retry topic always are: those that this member has no listener for.
        """
        policy = self._policy.now
        if topic == self.retry_topic:
            return True
        return policy.on_failure in COPIED or policy.on_bad_record == OnBadRecord.DEAD_LETTER

    def check_topic(self, topic: str) -> None:
        """Refuse a subscription that would read what this consumer writes.

        Raises:
            InvalidArgument: It would.
        """
        group = self._group
        given: object = topic
        if not isinstance(given, str):
            return  # refused by others
        if group and topic == self.retry_topic:
            raise InvalidArgument(
                f"topic {topic!r} is the retry topic of group {group!r}, whose members read it by "
                "themselves; leave it out, or read it with another group"
            )
        if group and group_of(topic, Purpose.DEAD_LETTERS) == group:
            raise InvalidArgument(
                f"group {group!r} would copy its dead letters into topic {topic!r}, which it "
                "reads; read them with another group"
            )

    def is_retried(self, spent: Spent) -> bool:
        """Whether a message is delivered once more from the retry topic."""
        policy = self._policy.now
        if spent.is_bad or not (policy.on_failure == OnFailure.RETRY_TOPIC or spent.passes_on):
            return False
        return self._redelivery(spent.message) <= len(policy.retry_topic_s)

    def _redelivery(self, message: Message) -> int:
        """Return which redelivery the next one is, from 1 on."""
        if message.topic != self.retry_topic:
            return 1
        return redelivery_in(message.headers) + 1

    async def open(self, message: Message) -> None:
        """Have the retry topic.

        Raises:
            VqError: It could not be made.
        """
        await self.copier.open(self.retry_topic, message.topic)

    async def copy_all(self, spent: Sequence[Spent]) -> Copied:
        """Return once the copies of messages are stored, those for one partition in one batch.

        What is stored behind one that is not is not stored once more by the next call.
        """
        results = await asyncio.gather(
            *(self._copy(each) for each in spent), return_exceptions=True
        )
        count = next((at for at, each in enumerate(results) if each is not None), len(spent))
        if count == len(spent):
            return count, None
        for each, result in zip(spent[count:], results[count:], strict=True):
            if result is None:
                self.copier.is_stored(each.message, each.failure)
        error = results[count]
        if not isinstance(error, Exception):
            assert error is not None
            raise error
        return count, error

    async def _copy(self, spent: Spent) -> None:
        """Return once a copy is stored.

        Raises:
            VqError: It is not, or may not be; to be called again.
        """
        message, failure, after_s, is_bad, *_ = spent
        is_skipped = not is_bad and not spent.passes_on
        if is_skipped and self._policy.now.on_failure == OnFailure.SKIP:
            file = self._file
            if file is None:
                file = failed_file.file_of(self._cluster_name, self._group, self._member)
                self._file = file
            record = self.copier.record(message, failure)
            why = f"the disk with failed file {file.path} gave no answer within {_DISK_S:g} s"
            # What hangs may still be written: a message that is recorded twice counts once.
            await self._thread.call(
                lambda: file.add(record, self._now_ms()), _DISK_S, lambda: InvalidState(why)
            )
            logger.error(
                "listener failed, message skipped",
                group=self._group,
                message=origin_of(message),
                tries=failure.attempts,
                path=file.path,
                error=failure.reason,
                exc_info=self._tracebacks.new(spent.error),
            )
            return
        if not self.is_retried(spent):
            await self.copier.give_up(message, failure, timeout=_COPY_S)
            logger.error(
                "message is a dead letter now",
                group=self._group,
                message=origin_of(message),
                error=failure.reason,
                exc_info=self._tracebacks.new(spent.error),
            )
            return
        redelivery = self._redelivery(message)
        delay_s = self._policy.now.retry_topic_s[redelivery - 1] if after_s is None else after_s
        await self.copier.retry_later(
            message, failure, redelivery=redelivery, delay_s=delay_s, timeout=_COPY_S
        )
        logger.warning(
            "message is tried again from the retry topic",
            group=self._group,
            message=origin_of(message),
            redelivery=redelivery,
            delay_s=delay_s,
            error=failure.reason,
            exc_info=self._tracebacks.new(spent.error),
        )

    def close(self) -> None:
        """End the thread that records messages, once its call has ended."""
        self._thread.close()
