"""A place of a partition whose bytes fail a check, for what reads by position."""

import asyncio
from typing import Final

from vq.admin.stored import Source
from vq.backoff import Backoff
from vq.errors import CorruptData, VqError

_AGAIN: Final = Backoff(first_s=0.1, most_s=2.0)
#: So many damaged readings of one place end the reading.
_READS_OF_DAMAGE: Final = 4
#: Damage is reported after so many: the first one may have met a bad network.
_REPORT_AFTER_READS: Final = 2
_HINT_OF_DAMAGE: Final = (
    "the broker was told; `vq topic describe` shows the damaged range. Read on behind it with "
    "--offset; docs/operations.md (Damage in a partition) says how to repair it"
)


class Damaged:
    """A place of one partition whose bytes fail a check.

    The second reading is reported, so that the broker verifies what it has and repairs it from
    another node. From then on the nodes are asked in turn: one of them may have the right bytes.

    Attributes:
        reads: How many readings of this place were damaged.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.reads = 0

    async def note(self, offset: int, error: VqError) -> None:
        """Note a damaged reading, and wait for a while.

        Raises:
            CorruptData: There were too many.
        """
        offset = int(error.details.get("offset", offset))
        self.reads += 1
        if self.reads == _REPORT_AFTER_READS:
            await self._source.report(offset)
        if self.reads >= _READS_OF_DAMAGE:
            raise CorruptData(
                f"{self._source.partition}: {error}",
                details={**error.details, "offset": offset},
                hint=_HINT_OF_DAMAGE,
            ) from error
        await asyncio.sleep(_AGAIN.pause_s(self.reads))
