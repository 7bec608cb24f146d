"""A slow pass over all stored bytes, again and again: damage is found before somebody needs them.

In here: whether a pass is due, how far it is, and where it goes on after a restart. Not in here:
verifying bytes and what follows from damage (``verifying``, ``repairing``).

The position is a text file of one line, ``<data>/@scrub``, written about once a minute and when the
node stops:

    {"v": 2, "begun_ms": "1763800000000", "ended_ms": "0", "read_bytes": "123456789",
     "topic": "orders", "partition": "3", "offset": "134217728", "since_ms": "0", "crc": "0a1b2c3d"}

A file that cannot be read costs a pass from the beginning.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from vq.broker.base.facts import Fact, Facts, gauge
from vq.broker.base.jobs import Every, Jobs, While
from vq.broker.base.problems import Problems
from vq.broker.base.runner import Lane, Runner
from vq.broker.base.steps import StepPace
from vq.broker.health.verifying import Verifier
from vq.broker.logs.block_pass import BlockPass, TopicWork, Visitor
from vq.broker.partition.channel import Channel, Channels
from vq.clock import Clock
from vq.errors import CorruptData
from vq.log_lines import get_logger
from vq.store.disk.disk import Disk
from vq.store.records.checked_text import decode_text, encode_text

logger = get_logger(__name__)

SCRUB_NAME: Final = "@scrub"  # no topic can have this name
_VERSION: Final = 2
#: How often it is looked whether a pass is due, and the position is saved.
LOOK_S: Final = 10.0
SAVE_S: Final = 60.0
#: A pass goes on for so long, and with the block it is at, before the position may be saved.
SLICE_S: Final = 10.0
#: Batches verified in a second, at most: each takes about 3 µs of the interpreter.
BATCHES_PER_S: Final = 5_000


@dataclass(slots=True)
class Position:
    """How far the pass is.

    Attributes:
        begun_ms: When the last pass began, by the wall clock; 0: there was none.
        ended_ms: When it ended; 0: it goes on.
        read_bytes: What it has read.
        topic, partition, offset: Everything before this was read.
        since_ms: Since when the directory waits for its first pass; 0: not known, or it had one.
    """

    begun_ms: int = 0
    ended_ms: int = 0
    read_bytes: int = 0
    topic: str = ""
    partition: int = -1
    offset: int = 0
    since_ms: int = 0

    @classmethod
    def from_bytes(cls, data: bytes) -> "Position":
        """Return what ``to_bytes`` was given.

        Raises:
            CorruptData: It is no position.
        """
        try:
            version, values = decode_text(data, version_max=_VERSION)
            if version != _VERSION:
                raise CorruptData(f"version {version}")
            numbers = {name: int(values[name]) for name in values if name != "topic"}
            return cls(topic=str(values["topic"]), **numbers)
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptData(f"{SCRUB_NAME}: {error}") from error

    def to_bytes(self) -> bytes:
        """Return the bytes of the file."""
        return encode_text(_VERSION, {name: str(value) for name, value in asdict(self).items()})


class Scrubber(Visitor):
    """Verifies all that a node stores, slowly and for ever; the visitor of its pass. Loop-bound.

    Args:
        jobs: Has this done.
        channels: Of the node.
        verifier: Verifies pieces, and notes damage.
        disk, runner: For the position.
        clock: Says when a pass is due.
        data: The data directory.
        bytes_per_s: How fast it reads, at most; 0: it does not.
        interval_s: From the begin of a pass to that of the next one, at least.

    Attributes:
        position: How far it is.
    """

    what = "scrub"

    def __init__(
        self,
        jobs: Jobs,
        channels: Channels,
        verifier: Verifier,
        *,
        disk: Disk,
        runner: Runner,
        clock: Clock,
        data: Path,
        bytes_per_s: int,
        interval_s: float,
    ) -> None:
        self._channels = channels
        self._verifier = verifier
        self._disk = disk
        self._runner = runner
        self._clock = clock
        self._path = data / SCRUB_NAME
        self._bytes_per_s = bytes_per_s
        self._pace = StepPace(bytes_per_s, BATCHES_PER_S)
        self.problems = Problems(logger, "partition is not scrubbed")
        self._saved_s = 0.0  # when the position was saved, or the pass began
        self._interval_s = interval_s
        self._loaded = self._waits = False
        self.position = Position()
        why_off = "" if bytes_per_s else "scrub_bytes_per_s is 0"
        # Not before the partitions are there: a pass over none of them would end, and count.
        when = While.REGISTERED
        jobs.add("scrub", self._run, Every(LOOK_S), when, at_once=True, why_off=why_off)

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[Position](
            things=lambda: {(): self.position},
            facts=(
                gauge(
                    "vq_scrub_begin_timestamp_seconds",
                    "When the last pass over all that is stored began; none before the first.",
                    lambda position: position.begun_ms or None,
                    status="scrub_begun_ms",
                    ms=True,
                ),
                gauge(
                    "vq_scrub_end_timestamp_seconds",
                    "When it ended; none while it goes on.",
                    lambda position: position.ended_ms or None,
                    status="scrub_ended_ms",
                    ms=True,
                ),
                gauge(
                    "vq_scrub_read_bytes",
                    "Bytes that this pass has verified.",
                    lambda position: position.read_bytes,
                    status="scrub_read_bytes",
                ),
                Fact(read=lambda _: self._bytes_per_s, status="scrub_bytes_per_s"),
                Fact(read=lambda _: self.next_ms(), status="scrub_next_ms"),
            ),
        )

    def next_ms(self) -> int:
        """Return when the next pass begins; 0: not known, or a pass goes on, or there are none."""
        since_ms = self.position.begun_ms or self.position.since_ms
        if not since_ms or self._is_running():
            return 0
        return since_ms + int(self._interval_s * 1000)

    def _is_running(self) -> bool:
        return bool(self.position.begun_ms) and not self.position.ended_ms

    async def _run(self) -> None:
        """Learn how far the last process was; then, if a pass is due, make it to its end."""
        if not self._loaded:
            await self._load()
            self._loaded = True
            self._waits = not self.position.begun_ms and not self.position.since_ms
            if self._waits:
                self.position.since_ms = self._clock.wall_ms()
            return
        if self._waits:  # or a node that is restarted within each interval would never begin
            await self._save()
            self._waits = False
        try:
            await self.look()
            while self._is_running():
                await self.look()
        finally:
            if self._is_running():  # the node stops: the next start goes on here
                await self._save()

    async def look(self, slice_s: float = SLICE_S) -> None:
        """Begin a pass if one is due; go on with it for a while, one block at least."""
        if self._is_due():
            self.position = Position(begun_ms=self._clock.wall_ms())
            self._saved_s = self._clock.monotonic()
            logger.info("scrub started", bytes_per_s=self._bytes_per_s)
        if not self._is_running():
            return
        place = (self.position.topic, self.position.partition)
        left = [self._channels[key] for key in sorted(self._channels) if key >= place]
        if await BlockPass(self, left, self._clock).go_on(slice_s):
            self.position.ended_ms = self._clock.wall_ms()
            await self._save()
            logger.info("scrub ended", bytes=self.position.read_bytes)
        elif self._clock.monotonic() - self._saved_s >= SAVE_S:
            await self._save()

    def _is_due(self) -> bool:
        since_ms = self.position.begun_ms or self.position.since_ms
        # After a clock that was set back, too, a pass comes within the interval.
        passed_ms = abs(self._clock.wall_ms() - since_ms)
        return not self._is_running() and passed_ms >= self._interval_s * 1000

    def wants(self, channel: Channel) -> bool:
        """See ``Visitor.wants``."""
        return channel.rules.verify

    async def visit(self, channel: Channel, work: TopicWork) -> bool:
        """Verify the next block of a partition; see ``Visitor``."""
        position = self.position
        if (position.topic, position.partition) != channel.partition:
            position.topic, position.partition = channel.partition
            position.offset = 0
        try:
            end = await self._verifier.scrub(channel, position.offset, self._pace, self._read)
        except Exception:
            position.partition, position.offset = position.partition + 1, 0
            raise
        if end is None:
            position.partition, position.offset = position.partition + 1, 0
            return False
        position.offset = end
        return True

    def _read(self, size: int) -> None:
        self.position.read_bytes += size

    async def _load(self) -> None:
        def load() -> Position:
            if not self._disk.exists(self._path):
                return Position()
            return Position.from_bytes(self._disk.read_bytes(self._path))

        try:
            self.position = await self._runner.run(load, Lane.VERIFY)
        except (OSError, CorruptData) as error:
            logger.warning("position of the scrub cannot be read", path=self._path, error=error)

    async def _save(self) -> None:
        data = self.position.to_bytes()
        self._saved_s = self._clock.monotonic()
        try:
            await self._runner.run(lambda: self._disk.write_atomic(self._path, data), Lane.VERIFY)
        except OSError as error:
            logger.warning("position of the scrub cannot be saved", path=self._path, error=error)
