"""What a broker opened when it started, for its log: the first logs one by one, then all together.

A node may open ten thousand logs, so only the first with something to verify get lines of their
own. What recovery found wrong is logged by ``logs``, log by log. Loop-bound.
"""

from typing import Final

from vq.log_lines import get_logger
from vq.model import TopicPartition
from vq.store.log.recovered import Case, RecoveryReport

logger = get_logger(__name__)

#: Logs with lines of their own, and topics that are named.
LINES_MAX: Final = 20
TOPICS_MAX: Final = 20


class StartStory:
    """Tells what was recovered. ``ended`` says that later logs are no part of the start."""

    def __init__(self) -> None:
        self._topics: dict[str, None] = {}  # a set that keeps its order
        self._logs = self._lines = self._cut_logs = 0
        self._verified_bytes = self._cut_bytes = 0
        self._took_s = 0.0
        self._slowest: tuple[float, TopicPartition | None] = (0.0, None)
        self.ended = False

    def opened(self, partition: TopicPartition, report: RecoveryReport, took_s: float) -> None:
        """Note a log that was opened; a line for it, unless there are too many."""
        if report.case is Case.NEW or self.ended:
            return
        self._topics[partition.topic] = None
        self._logs += 1
        self._verified_bytes += report.verified_bytes
        self._cut_bytes += report.cut_bytes
        self._cut_logs += report.cut_bytes > 0
        self._took_s += took_s
        self._slowest = max(self._slowest, (took_s, partition), key=lambda each: each[0])
        if (report.verified_bytes or report.cut_bytes) and self._lines < LINES_MAX:
            self._lines += 1
            logger.info(
                "log recovered",
                partition=partition,
                case=report.case,
                verified_bytes=report.verified_bytes,
                batches=report.batches,
                cut_bytes=report.cut_bytes,
                cut_messages=report.cut_messages if report.cut_bytes else 0,
                took_s=round(took_s, 3),
            )

    def end(self) -> None:
        """Write the sums."""
        self.ended = True
        names = list(self._topics)[:TOPICS_MAX]
        logger.info(
            "logs opened",
            topics=len(self._topics),
            logs=self._logs,
            verified_bytes=self._verified_bytes,
            cut_logs=self._cut_logs,
            cut_bytes=self._cut_bytes,
            took_s=round(self._took_s, 3),
            slowest=self._slowest[1],
            slowest_s=round(self._slowest[0], 3),
            names=",".join(names) + (",…" if len(self._topics) > len(names) else ""),
        )
