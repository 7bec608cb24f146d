"""Reads one log as its master: first what others have noted there, then what is committed since.

    log ──▶ read, record by record, up to the high watermark ──▶ taken
                                     all that was there is read: live ──▶ written, and delivered

Whatever changes what is known is read from the log, what this node notes included: so a node that
begins to lead reads the log and knows what the one before it knew.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from vq.broker.base.parked import Woken
from vq.broker.base.runner import Runner
from vq.broker.journal.deliveries import DONE_S, RETRY_S, Deliveries, Source
from vq.broker.journal.log_records import LogRecords
from vq.broker.journal.outbox import Outbox
from vq.broker.journal.own_writes import append_notes
from vq.broker.partition.channel import Channel
from vq.broker.standing.gate import Gate
from vq.clock import Clock
from vq.errors import NotMaster, VqError
from vq.log_lines import get_logger
from vq.store.records.record import Record

logger = get_logger(__name__)

#: The clock is looked at so often at least: it may be set.
LOOK_S: Final = 1.0
#: Records that could not be read are read again this often.
READ_AGAIN_S: Final = 30.0


class JournalReader(Woken, ABC):
    """See the module. Loop-bound; ``run`` is its task, and ends with the mastership.

    Args:
        channel: Of the partition.
        outbox: Sends what is to be delivered.
        gate: Says whether anything may be appended.
        clock: Tells the time.
        runner: Reads what is not in memory.
        passes_by: What cannot be read is passed by after some tries, and read again later.

    Attributes:
        is_live: All that was committed before this node began to lead was read.
        what: How what it has is called, in the log.
    """

    @property
    @abstractmethod
    def what(self) -> str: ...

    def __init__(
        self,
        channel: Channel,
        outbox: Outbox,
        gate: Gate,
        *,
        clock: Clock,
        runner: Runner,
        passes_by: bool,
    ) -> None:
        self.channel: Final = channel
        self.is_live = False
        self._has_begun = self._is_over = False
        self._gate = gate
        self._clock = clock
        self._woken = asyncio.Event()
        self._log = LogRecords(channel, outbox, runner, passes_by=passes_by)
        self._read_again_at = 0.0
        self._problems: dict[object, str] = {}  # by what does not go on

    @property
    def position(self) -> int:
        """Up to where the log was read."""
        return self._log.position

    # The task -------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Do all of it until cancelled."""
        try:
            while True:
                self._woken.clear()
                try:
                    self._has_begun = self._has_begun or await self.begin()
                    if self._has_begun:
                        await self._read()
                    self.tell("reading", "")
                except (VqError, OSError) as error:
                    why = f"{self.what} of {self.channel} cannot be read: {error}"
                    self.tell("reading", why)
                    await self._wait(RETRY_S)
                    continue
                if self._is_caught_up() and not self.is_live:
                    self.is_live = True
                    self.go_live()
                if self.is_live:
                    self.write()
                    await self._go_on()
                    self.channel.needed = min([self.position, *self._log.unread, *self.needs()])
                await self._wait(self.pause_s() if self.is_live else LOOK_S)
        finally:
            self._is_over, self.is_live = True, False
            self.channel.parked.pop(self, None)
            self.ended()
            await self.close()

    def old_before(self, behind: int) -> int:
        """Return before which offset what still counts is to be noted again.

        So many bytes of the log lie behind it; or it is in a range of another group of brokers,
        which keeps that for a while only.
        """
        log = self.channel.log
        return max(self.position - behind, 0 if log is None else log.start_offset)

    def wake(self) -> None:
        """See ``parked.Woken``: more may be committed, or to be noted."""
        self._woken.set()

    async def _wait(self, pause_s: float) -> None:
        self.channel.park(self)
        try:
            async with asyncio.timeout(pause_s):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _is_caught_up(self) -> bool:
        channel = self.channel
        return self._has_begun and channel.knows_end and self._log.position >= channel.read_limit

    def tell(self, what: object, why: str) -> None:
        """Note why something does not go on; "": it does. A new reason is logged."""
        before = self._problems.pop(what, "")
        if why:
            self._problems[what] = why
            if not before:
                logger.warning(
                    "deliveries wait", what=self.what, partition=self.channel, reason=why
                )

    @property
    def problems(self) -> list[str]:
        """Why something waits that should go on."""
        return list(self._problems.values())

    async def _go_on(self) -> None:
        try:
            await self.go_on()
            self.tell("carrying", "")
        except (VqError, OSError) as error:
            self.tell("carrying", f"{self.what} of {self.channel} cannot be noted again: {error}")

    # Reading and writing --------------------------------------------------------------------------
    async def _read(self) -> None:
        """Take what is committed and was not read yet.

        Raises:
            VqError, OSError: It cannot be read.
        """
        log = self._log
        while log.has_more:
            self.take_all(await log.next_records())
            await asyncio.sleep(0)
        if log.unread and self._clock.monotonic() >= self._read_again_at:
            self._read_again_at = self._clock.monotonic() + READ_AGAIN_S
            for record in await log.read_again():
                self.take_late(record)
        self.tell("records", log.problem)

    def append(self, notes: Sequence[bytes]) -> VqError | None:
        """Append notes to the log as one batch; return why they cannot be committed, or None."""
        if self._is_over:  # another reader has the log, which does not know of this one's notes
            return NotMaster(f"{self.channel} was led by another node meanwhile")
        why = append_notes(self.channel, self._gate, notes)
        if why is None:
            self.tell("writing", "")
        else:
            self.tell("writing", f"nothing can be noted in {self.channel}: {why}")
            asyncio.get_running_loop().call_later(RETRY_S, self.wake)
        return why

    async def begin(self) -> bool:
        """Leave out what need not be read of the log; return False if that is not known yet.

        Raises:
            VqError, OSError: It cannot be looked up now.
        """
        return True

    # What the log is about ------------------------------------------------------------------------
    def take_all(self, records: Sequence[Record]) -> None:
        """Take the next records of the log."""
        for record in records:
            try:
                self.take(record)
            except BaseException:
                self._log.position = record.offset  # it is not passed by
                raise

    @abstractmethod
    def take(self, record: Record) -> None:
        """Take the next record of the log."""

    def take_late(self, record: Record) -> None:
        """Take a record that could not be read when it was its turn."""

    def go_live(self) -> None:
        """All that was committed before is read."""

    @abstractmethod
    def write(self) -> None:
        """Note what is due."""

    async def go_on(self) -> None:
        """Do some of what takes longer; nothing is read meanwhile.

        Raises:
            VqError, OSError: It cannot be done now.
        """

    @abstractmethod
    def needs(self) -> Sequence[int]:
        """Return offsets from which on the log is needed, beside what is not read."""

    def pause_s(self) -> float:
        """Return after how long there may be something to write."""
        return DONE_S

    def ended(self) -> None:
        """Another node leads, or this one ends."""

    async def close(self) -> None:
        """End what goes on beside the reading."""


class DeliveringReader(JournalReader, Source, ABC):
    """A reader of a log that holds what is delivered to other partitions. Loop-bound.

    Args:
        channel, outbox, gate, clock, runner, passes_by: See ``JournalReader``.
    """

    def __init__(
        self,
        channel: Channel,
        outbox: Outbox,
        gate: Gate,
        *,
        clock: Clock,
        runner: Runner,
        passes_by: bool,
    ) -> None:
        super().__init__(channel, outbox, gate, clock=clock, runner=runner, passes_by=passes_by)
        self._deliveries = Deliveries(channel, outbox, clock, self)

    def go_live(self) -> None:
        """See ``JournalReader``; what is ready goes from now on."""
        self._deliveries.go_live()

    async def close(self) -> None:
        """See ``JournalReader``."""
        await self._deliveries.close()
