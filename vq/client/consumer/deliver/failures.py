"""What becomes of a message whose listener raised: it is tried again, or skipped."""

from vq.backoff import Backoff
from vq.client.config import ConsumerConfig, OnListenerError
from vq.errors import ListenerFailed, VqError
from vq.log_lines import get_logger
from vq.model import TopicPartition
from vq.shown import shown_raised

logger = get_logger(__name__)
_BACKOFF_MAX_S = 30.0


class Failures:
    """The failed tries of one partition's message at hand."""

    def __init__(self, partition: TopicPartition, config: ConsumerConfig) -> None:
        self._partition = partition
        self._config = config
        self._offset = -1  # of the message that failed last,
        self._tries = 0  # and how often it did

    def failed(
        self, offset: int, error: BaseException, before: VqError | None
    ) -> tuple[ListenerFailed, float | None]:
        """Return what to tell, and the pause before the next try; None: skip the message.

        Args:
            offset: Of the message.
            error: What the listener raised.
            before: Why the partition stands still already; None: it does not.
        """
        self._tries = self._tries + 1 if offset == self._offset else 1
        self._offset = offset
        config = self._config
        failed = ListenerFailed(
            f"the listener raised for the message at offset {offset}: {shown_raised(error)}",
            details={"offset": offset},
        )
        failed.__cause__ = error
        # Once for each cause: a listener may fail in another way at a later try.
        is_told = (
            before is not None
            and type(before.__cause__) is type(error)
            and before.details.get("offset") == offset
        )
        where_raised = None if is_told else error
        if config.on_listener_error is OnListenerError.SKIP and (
            self._tries > config.listener_retries
        ):
            logger.error(
                "listener raised, message skipped",
                partition=self._partition,
                tries=self._tries,
                error=failed,
                exc_info=where_raised,
            )
            return failed, None
        logger.warning(
            "listener raised, trying again",
            partition=self._partition,
            tries=self._tries,
            error=failed,
            exc_info=where_raised,
        )
        backoff = Backoff(first_s=config.listener_backoff_s, most_s=_BACKOFF_MAX_S)
        return failed, backoff.pause_s(self._tries)
