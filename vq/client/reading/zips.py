"""Archives that a client reads by itself, at the URLs that brokers told.

In here: which places answer, what is remembered of them, and what is told in the log. Not in here:
whether the bytes may be read (the broker says that before each part), and what a zip must be
(``store.archive.zipped_block``). Loop-bound; a place blocks threads only, and for a bounded time.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from vq.client.blocking_calls import BlockingCalls
from vq.clock import Clock
from vq.errors import CorruptData, InvalidArgument
from vq.log_lines import get_logger
from vq.model import ARCHIVE_PLACES, TopicPartition, check_archive_place
from vq.remoting.wire_pb2 import GetResponse
from vq.store.archive.archive import place_of
from vq.store.archive.archive_place import ZipUnreachable, zip_at
from vq.store.archive.zipped_block import WantedBlock, ZippedBlock

logger = get_logger(__name__)

#: How long one part of a zip is waited for: some megabytes over a slow network.
ANSWER_S: Final = 20.0
#: A place that could not be reached is left alone for so long: one that hangs costs ``ANSWER_S``
#: each time.
AWAY_S: Final = 300.0
#: Parts that are read of one place at a time. A range reads one part, and one ahead.
THREADS_MAX: Final = 8
#: Places with threads of their own, of those that were read last.
PLACES_MAX: Final = 16
#: Zips whose directories are kept: some kilobytes each, of those that tasks read at this moment.
_OPEN_MAX: Final = 8
#: Places and zips of which is remembered that a warning told them.
_TOLD_MAX: Final = 256


class Zips:
    """The archives that one client reads by itself.

    Args:
        clock: Tells when a place is tried again.
        places: URLs at and below which archives are read; brokers tell their URLs.

    Attributes:
        calls: By place: calls that hang in one take threads for good, and not those of another one.
        away: By place: until when it is left alone.
    """

    def __init__(self, clock: Clock, places: Sequence[str] = ARCHIVE_PLACES) -> None:
        self._clock = clock
        self._places = places
        self.calls: OrderedDict[str, BlockingCalls] = OrderedDict()
        self._open: OrderedDict[WantedBlock, ZippedBlock] = OrderedDict()
        self.away: dict[str, float] = {}
        self._told: OrderedDict[str, None] = OrderedDict()  # places and URLs

    async def read_told(
        self,
        answer: GetResponse,
        partition: TopicPartition,
        topic_id: str,
        size: int,
        timeout_s: float,
    ) -> tuple[int, bytes] | None:
        """``read`` what a broker has told to be in an archive."""
        wanted = WantedBlock(
            answer.archive_url,
            answer.archive_bytes,
            partition.topic,
            partition.partition,
            topic_id,
            answer.archive_start,
            answer.archive_end,
        )
        return await self.read(wanted, answer.offset, size, timeout_s)

    async def read(
        self, wanted: WantedBlock, offset: int, size: int, timeout_s: float
    ) -> tuple[int, bytes] | None:
        """Return a part of a block as ``ZippedBlock.read``; None: its broker is to be asked.

        Then the place cannot be reached or does not answer in time, or none is to be opened there,
        or the zip is not there or damaged. A warning says so, once.
        """
        place = place_of(wanted.url)
        try:
            check_archive_place(wanted.url, self._places)
        except InvalidArgument as error:
            self._tell(place, error)
            return None
        if self._clock.monotonic() < self.away.get(place, 0.0):
            return None
        opened = self._open.pop(wanted, None)

        def read() -> tuple[ZippedBlock, tuple[int, bytes]]:
            block = opened or ZippedBlock(zip_at(wanted.url), wanted)
            return block, block.read(offset, size)

        bound_s = min(timeout_s, ANSWER_S)
        try:
            block, part = await self._calls_of(place).run(read, bound_s)
        except TimeoutError:
            self._leave(place, f"no answer within {bound_s:g} s")
        except ZipUnreachable as error:
            self._leave(place, error)
        except (OSError, CorruptData) as error:
            self._tell(wanted.url, error)
        else:
            self.away.pop(place, None)
            self._told.pop(place, None)
            self._open[wanted] = block
            if len(self._open) > _OPEN_MAX:
                self._open.popitem(last=False)
            return part
        return None

    def close(self) -> None:
        """End the threads, each after its call."""
        for each in self.calls.values():
            each.close()

    def _calls_of(self, place: str) -> BlockingCalls:
        calls = self.calls.pop(place, None) or BlockingCalls(THREADS_MAX, "vq-archive")
        self.calls[place] = calls
        if len(self.calls) > PLACES_MAX:
            self.calls.popitem(last=False)[1].close()
        return calls

    def _leave(self, place: str, why: object) -> None:
        self.away[place] = self._clock.monotonic() + AWAY_S
        self._tell(place, why)

    def _tell(self, url: str, why: object) -> None:
        if url not in self._told:
            logger.warning("archive cannot be read here, asking its broker", url=url, error=why)
            self._told[url] = None
            if len(self._told) > _TOLD_MAX:
                self._told.popitem(last=False)
