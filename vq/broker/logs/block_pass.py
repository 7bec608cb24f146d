"""A pass over partitions of a node, for work on the blocks that they have.

Retention, the archive's runs, early archives, key indexes, the scrub and verification each are a
*visitor*. A pass has its visitor do a little at one partition after the other.

In here: the way over the partitions, whose turn it is between two visits, that an error at one
keeps no other waiting, and what is told. Not in here: what a visitor does, and when a pass is due.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from vq.broker.base.problems import Problems
from vq.broker.partition.channel import Channel
from vq.clock import Clock
from vq.errors import VqError
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: The loop runs other things after so many visits that found nothing to do.
VISITS_PER_TURN: Final = 64


class TopicWork:
    """What a pass has done to one topic.

    Attributes:
        topic: Its name.
        done: Counts, in the words of the visitor.
        problem: The first error; "": there was none.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.done: Counter[str] = Counter()
        self.problem = ""

    def fail(self, channel: Channel, error: object) -> None:
        """Keep why something could not be done at a partition, unless it is not the first."""
        self.problem = self.problem or f"{channel}: {error}"


class Visitor(ABC):
    """One kind of work on blocks.

    Attributes:
        what: Its name, for the log.
        pause_s: How long others get the node after each visit that has more to do.
        problems: Where those of topics are told; None: by the visitor.
    """

    what: str
    pause_s = 0.0
    problems: Problems | None = None

    def wants(self, channel: Channel) -> bool:
        """Whether a partition is to be visited; asked again before each visit."""
        return True

    @abstractmethod
    async def visit(self, channel: Channel, work: TopicWork) -> bool:
        """Do some of what is to be done, a block or a few; return whether there may be more.

        Raises:
            VqError, OSError: It cannot be done; the partition is left.
        """

    def tell(self, work: TopicWork) -> None:
        """Tell what was done to a topic."""
        if self.problems is not None:
            self.problems.tell(work.topic, work.problem)


class BlockPass:
    """One pass: each partition is visited until it has no more to do. Loop-bound.

    Args:
        visitor: Does the work.
        channels: In the order in which they are visited, those of a topic one after the other.
        clock: For the end of a slice.
    """

    def __init__(self, visitor: Visitor, channels: Iterable[Channel], clock: Clock) -> None:
        self._visitor = visitor
        self._left = deque(channels)
        self._clock = clock
        self._work: TopicWork | None = None
        self._visits = 0

    async def go_on(self, slice_s: float = math.inf) -> bool:
        """Make visits; return whether the pass has ended. It goes on with the next call if not.

        ``slice_s``: no visit begins later than that. One visit is made in any case.
        """
        end_s = self._clock.monotonic() + slice_s
        while self._left:
            channel = self._left[0]
            has_more = await self._visit(channel, self._work_on(channel.partition.topic))
            if not has_more:
                self._left.popleft()
            await self._give_turn(has_more=has_more)
            if self._left and self._clock.monotonic() >= end_s:
                return False
        self._end_topic()
        return True

    async def _visit(self, channel: Channel, work: TopicWork) -> bool:
        visitor = self._visitor
        if not visitor.wants(channel):
            return False
        try:
            return await visitor.visit(channel, work)
        except (OSError, VqError) as error:
            work.fail(channel, error)
        except Exception as error:  # one partition must not keep the others waiting
            logger.exception("work on blocks failed", what=visitor.what, partition=channel)
            work.fail(channel, f"{type(error).__name__}: {error}")
        return False

    async def _give_turn(self, *, has_more: bool) -> None:
        self._visits += 1
        if has_more:
            await asyncio.sleep(self._visitor.pause_s)
        elif not self._visits % VISITS_PER_TURN:
            await asyncio.sleep(0)

    def _work_on(self, topic: str) -> TopicWork:
        if self._work is None or self._work.topic != topic:
            self._end_topic()
            self._work = TopicWork(topic)
        return self._work

    def _end_topic(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            self._visitor.tell(work)
