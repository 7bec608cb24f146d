"""One partition as a consumer reads it: where it is, and what has come and is not consumed yet.

Loop-bound. It asks for the bytes at its position, and for the next ones as soon as those are there
and the consumer has not fallen behind by more than the prefetch bound. Whom they are asked from,
together with those of the consumer's other partitions, is the business of ``fetch_sessions``. The
fetcher does not look at records: an answer may end inside one, the next goes on at that very byte,
and the decoder joins them.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from vq import limits
from vq.backoff import Backoff
from vq.client.consumer.fetch.epochs import Epochs
from vq.client.consumer.fetch.fetch_sessions import DELAY_TOLD_S, Fetches
from vq.client.loop_calls import call_soon
from vq.client.reading.chunk import NO_REST, Chunk, Rest, chunk_of
from vq.client.reading.damage import Damaged, bad_record_in
from vq.client.reading.nodes import passes
from vq.client.reading.partition_reader import PartitionReader
from vq.coordination.topics.routes import Routes
from vq.errors import InternalError, ProtocolError, VqError
from vq.log_lines import get_logger
from vq.message_filter import Filter
from vq.model import Span, TopicPartition
from vq.remoting.wire_pb2 import FetchResult, GetRequest, GetResponse
from vq.shown import shown_raised
from vq.store.records.format import RECORD_HEADER_BYTES, RECORD_LENGTH_MAX
from vq.tasks import begin_task

logger = get_logger(__name__)
BACKOFF = Backoff(first_s=0.02, most_s=1.0, jitter=0.5)
#: Pauses before bytes that failed a check are read again: long enough that damage on disk, which
#: stays, costs next to nothing.
AGAIN = Backoff(first_s=0.1, most_s=30.0, jitter=0.25)
#: From this try on a record is read as a whole: what comes in many pieces may never come unhurt.
_WHOLE_TRIES = 3
RECORD_BYTES_MAX = RECORD_HEADER_BYTES + RECORD_LENGTH_MAX


@dataclass(slots=True)
class _Masters:
    """Which masters the bytes came from.

    Attributes:
        epoch: Of the last answer.
        epochs: By broker group.
        ended: A broker came up anew since the last bytes.
        last: Epoch of the batch before the position; 0: not known.
        inside: Routes by which the position is behind the start of the last range; None: of none.
        unsure: See ``asker.Asker``.
    """

    epoch: int = 0
    epochs: dict[str, int] = field(default_factory=dict)
    ended: bool = False
    last: int = 0
    inside: Routes | None = None
    unsure: bool = False


@dataclass(slots=True)
class _Again:
    """Bytes that failed a check, and are read once more.

    Attributes:
        task: Reads them; None when nothing is read again.
        damage: Why a record cannot be read; None: something else failed.
        space: The buffer space that the task waits for.
    """

    task: "asyncio.Task[None] | None" = None
    damage: VqError | None = None
    space: "asyncio.Future[None] | None" = None


@dataclass(slots=True)
class _Silence:
    """Since the last answer.

    Attributes:
        failures: So often asking failed.
        since: When the first failure or delay came; None: none did.
    """

    failures: int = 0
    since: float | None = None


class PartitionFetcher:
    """Fetches from ``offset`` on until stopped; hands chunks to ``on_chunk`` in order.

    ``on_new_epoch`` is called when a broker has come up anew and everything fetched before was
    consumed: what the log holds there may be something else by now. ``start`` goes on.

    ``on_bad_record`` is awaited with the offset of a record that no node has so that it can be read
    (``Damaged.is_everywhere``), and why; it returns where to go on, or None: to read again.

    Attributes:
        position: What is asked for next.
        high_watermark: As told with the last answer; -1 before that.
        asked, buffered, missing, behind, at_once, validate, topic_id, wanted, last_epoch, unsure:
            See ``asker.Asker``.
    """

    def __init__(
        self,
        fetches: Fetches,
        partition: TopicPartition,
        offset: int,
        *,
        length: int,
        prefetch_bytes: int,
        wanted: Filter,
        last_epoch: int = 0,
        on_chunk: Callable[[Chunk], None],
        on_error: Callable[[VqError | None], None],
        on_new_epoch: Callable[[], None],
        on_bad_record: Callable[[int, VqError], Awaitable[int | None]],
    ) -> None:
        self.partition = partition
        self.position = offset
        self.high_watermark = -1
        self.asked = 0
        self.buffered = 0
        self.validate = True
        self.wanted = wanted
        self._rest = NO_REST  # counted in ``buffered``
        # Reported by ``finished`` and not counted yet; and whether that may wait for an answer.
        self._finished: deque[tuple[int, Rest]] = deque()
        self._may_count_later = False
        self._fetches = fetches
        self._space = fetches.space
        self._cluster = fetches.cluster
        view = self._cluster.routes.topics.get(partition.topic)
        self.topic_id = view.id if view is not None else ""  # offsets mean nothing elsewhere
        self._loop = asyncio.get_running_loop()
        self._length = min(length, limits.FETCH_BYTES_MAX)
        self._prefetch_bytes = prefetch_bytes
        self._on_chunk = on_chunk
        self._on_error = on_error  # None: what was told before is over
        self._on_new_epoch = on_new_epoch
        self._on_bad_record = on_bad_record
        self._masters = _Masters(last=last_epoch)
        self._epochs = Epochs()
        self._epochs.note(offset, last_epoch, offset, last_epoch)
        self._joined = False
        self._waiting = True  # for ``start``
        self.at_once = False
        self._stopped = False
        self._silence = _Silence()
        self._timer: asyncio.TimerHandle | None = None
        self._again = _Again()
        self._damaged = Damaged(self._cluster, partition, fetches.nodes, pauses=AGAIN)

    @property
    def missing(self) -> int:
        """See ``asker.Asker``."""
        return self._rest.missing if self._again.space is None else self._again_bytes

    @property
    def behind(self) -> bool:
        """See ``asker.Asker``."""
        return self.position < self.high_watermark

    @property
    def last_epoch(self) -> int:
        """See ``asker.Asker``."""
        masters, routes = self._masters, self._cluster.routes
        if not masters.last or masters.inside is routes:
            return masters.last
        span = self._span()
        # The batch before the start of a span has an epoch of another group.
        if span is None or span.start >= self.position:
            return 0
        masters.inside = routes if span.end is None else None  # the position rises from here on
        return masters.last

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the batch before an offset that was read; 0: not known."""
        return self._epochs.at(offset)

    @property
    def unsure(self) -> bool:
        """See ``asker.Asker``."""
        return self._masters.unsure

    def _span(self) -> Span | None:
        """Return the span that has the position, as far as is known."""
        view = self._cluster.routes.topics.get(self.partition.topic)
        if view is None or self.partition.partition >= len(view.partitions):
            return None
        return view.partitions[self.partition.partition].span_at(self.position)

    def start(self) -> None:
        """Begin to fetch, or go on after ``on_new_epoch``."""
        if self._stopped:
            return
        if not self._joined:
            self._joined = True
            self._fetches.join(self)
        self._waiting = False
        self._maybe_fetch()

    def stop(self) -> None:
        """Fetch no more; an answer on its way is dropped."""
        self._stopped = True
        self._fetches.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._again.task is not None:
            self._again.task.cancel()

    def fetch_again(self, offset: int, damage: VqError | None = None) -> None:
        """Forget what was fetched; read from ``offset`` on, after a pause, on a new connection.

        ``damage``: why a record cannot be read; None: something else failed.

        For bytes that failed a check: they may have been damaged on the way, by this connection or
        by what lies between, or on the broker's disk, where they may be put right. Another node of
        the broker group is asked in turn with the master.
        """
        if self._stopped:
            return
        self._damaged.note(offset)
        self._again.damage = damage
        self._move(offset)
        if self._again.task is not None:
            self._again.task.cancel()
            self._again.space = None
        self._again.task = begin_task(self._fetch_again())

    def _move(self, offset: int) -> None:
        """Forget what was fetched, and ask for what begins at an offset next."""
        self.position = offset
        self._masters.last, self._masters.inside = 0, None
        self.validate = True
        self._fetches.withdraw(self)
        self._rest = NO_REST
        self._finished.clear()
        self._count(asked=0, buffered=0)

    @property
    def _again_bytes(self) -> int:
        share = min(self._length, self._space.share_bytes)
        return share if self._damaged.reads < _WHOLE_TRIES else max(share, RECORD_BYTES_MAX)

    async def _fetch_again(self) -> None:
        await asyncio.sleep(self._damaged.pause_s)
        space = self._again.space = self._loop.create_future()
        self.go_on()
        await space
        self._again.space = None
        request = GetRequest(
            offset=self.position,
            max_bytes=self.asked,
            tags=self.wanted.tags,
            where=self.wanted.where,
            validate=True,
        )
        reader = PartitionReader(
            self._cluster, self.partition, self.topic_id, nodes=self._fetches.nodes
        )
        try:
            following = await self._meet_damage(self._again.damage)
            if following is not None:
                self._again.task = None
                self._damaged.over()
                self._move(following)
                self._maybe_fetch()
                return
            response, body = await reader.get(request, damaged=self._damaged)
            self._again.task = None
            self.took(response, body)
        except VqError as error:
            self._again.task = None
            self.failed(error)
        except Exception as error:
            self._again.task = None
            what = f"{self.partition}: handling an answer to GET failed: {shown_raised(error)}"
            self.failed(InternalError(what))
            logger.exception("handling an answer to GET failed", partition=self.partition)

    async def _meet_damage(self, damage: VqError | None) -> int | None:
        """Report a record that cannot be read; return where to go on behind it, None: at it."""
        if damage is None:
            return None
        bad = int(damage.details.get("offset", self.position))
        if await self._damaged.report(bad) and self._damaged.is_everywhere:
            return await self._on_bad_record(bad, damage)
        return None

    def finished(self, size: int, rest: Rest = NO_REST) -> None:
        """The consumer is done with ``size`` bytes of chunks, but for ``rest``. Any thread.

        While an answer is due, and the partition takes no more than its share of the buffer, it is
        counted with that answer. So the loop is not woken for each chunk.
        """
        self._finished.append((size, rest))
        if not self._may_count_later:
            call_soon(self._loop, self._go_on_after_finished)

    def _go_on_after_finished(self) -> None:
        if not self._stopped:
            if self._finished:  # ``Fetches.expect`` may have counted it, which does not ask
                self.count()
            self._maybe_fetch()

    @property
    def _queued(self) -> int:
        """What the consumer will be done with without any further bytes."""
        return self.buffered - self._rest.size

    def go_on(self) -> None:
        """See ``asker.Asker``."""
        space = self._again.space
        if space is None:
            self._maybe_fetch()
        elif not space.done() and self._has_space(self._again_bytes):
            self._count(asked=self._again_bytes)
            space.set_result(None)

    def _has_space(self, size: int) -> bool:
        """Whether ``size`` bytes may be asked for now; if not, ``go_on`` is called later."""
        return self._space.allowance(self) >= size or self._space.may_exceed(self)

    def _maybe_fetch(self) -> None:
        queued = self._queued
        if (
            self._stopped
            or self._waiting
            or self.asked
            or self._timer is not None
            or self._again.task is not None
            or queued >= self._prefetch_bytes
        ):
            return
        if self._masters.ended:
            # What was fetched before is handled first: then it is known where to look.
            if not queued:
                self._masters.ended, self._waiting = False, True
                self._on_new_epoch()
            return
        size = min(self._length, self._space.allowance(self))
        if queued:
            if size < min(self._length, self._space.share_bytes) // 2:
                return  # asked again when some of it is consumed
        elif size < self._rest.missing:  # nothing will be consumed before that is there
            size = self._rest.missing
            if not self._has_space(size):
                return
        self._count(asked=size)
        self._fetches.ask(self)

    def _count(self, *, asked: int, buffered: int | None = None) -> None:
        self.asked = asked
        if buffered is not None:
            self.buffered = buffered
        self.count()

    def count(self) -> None:
        """See ``asker.Asker``."""
        self._may_count_later = False  # first: what is reported from now on wakes the loop
        while self._finished:
            size, rest = self._finished.popleft()
            # Not below 0: these may be of what was fetched before ``fetch_again``.
            self.buffered = max(0, self._queued - size) + rest.size
            self._rest = rest
        self._space.count(self)
        used = self.asked + self.buffered
        self._may_count_later = self.asked > 0 and used <= self._space.share_bytes

    def took(self, result: GetResponse | FetchResult, body: bytes, *, again: bool = False) -> None:
        """See ``asker.Asker``: hand the bytes on, and ask for what follows."""
        if result.offset != self.position:
            self._fetches.withdraw(self)
            self.failed(
                ProtocolError(
                    f"{self.partition}: asked for offset {self.position}, the answer is for "
                    f"{result.offset}"
                )
            )
            return
        if result.epoch != self._masters.epoch and self._is_new_master(result.epoch):
            self._masters.ended = self._masters.unsure = True
            if again:
                self._fetches.withdraw(self)
            self._count(asked=0)
            self._maybe_fetch()
            return
        if self.at_once and self._report_error(None):
            self.at_once = False
        self._silence.failures, self._silence.since = 0, None
        self.validate = self._masters.unsure = False
        self.high_watermark = result.high_watermark
        chunk = chunk_of(result, body)
        following = chunk.next_offset
        if following > self.position:
            self._on_chunk(chunk)  # first: what fails here is asked for again
            raw = body if chunk.offsets is None else b""
            last_epoch = result.last_epoch
            self._epochs.note(self.position, self.last_epoch, following, last_epoch, raw)
            self._masters.last = last_epoch
            self.position = following
            asked = max(1, self.asked - chunk.size) if again else 0
            self._count(asked=asked, buffered=self.buffered + chunk.size)
        else:
            self._masters.last = result.last_epoch
            self._count(asked=self.asked if again else 0)
        self._maybe_fetch()

    def _is_new_master(self, epoch: int) -> bool:
        """Note the epoch of an answer; whether the broker group was led by another one before.

        Then a broker has come up again, and what it has there may be something else by now.
        """
        self._masters.epoch = epoch
        span = self._span()
        if span is None:
            return False
        before = self._masters.epochs.get(span.group, epoch)
        self._masters.epochs[span.group] = epoch
        return before != epoch

    def failed(self, error: VqError) -> None:
        """See ``asker.Asker``: tell of the error if it stays; ask again after a pause."""
        if self._stopped:
            return
        self._count(asked=0)
        if not self._queued and bad_record_in(error) is not None:
            self.at_once = True
            self._report_error(error)
            self.fetch_again(self.position, error)
            return
        if error.refresh_routes:
            self._cluster.refresh(self.partition.topic, error)
        stays = not passes(error)
        if stays:
            self.at_once = True
        if self._timer is None:
            failures = self._silence.failures = self._silence.failures + 1
            rng = self._cluster.rng
            pause = BACKOFF.longest_s(rng) if stays else BACKOFF.pause_s(failures, rng)
            self._timer = self._loop.call_later(pause, self._retry)
        if stays:
            self._report_error(error)
        else:
            self.delayed(error)

    def delayed(self, error: VqError, answered_at: float | None = None) -> None:
        """See ``asker.Asker``: tell of the error if there has been no answer for long."""
        now, since = self._loop.time(), self._silence.since
        if since is None or (answered_at is not None and answered_at > since):
            self._silence.since = now
        elif now - since >= DELAY_TOLD_S:
            self.at_once = True
            self._report_error(error)

    def _report_error(self, error: VqError | None) -> bool:
        """Tell what keeps this from going on; False if that failed, as logging may."""
        try:
            self._on_error(error)
        except Exception:
            with contextlib.suppress(Exception):
                logger.exception("reporting an error failed", partition=self.partition)
            return False
        return True

    def _retry(self) -> None:
        self._timer = None
        self._maybe_fetch()
