"""FETCH: one request waits for many partitions.

A session remembers what a client wants to read; a request names only what changed.

    FETCH ──▶ partitions named are looked at ──▶ ready ──▶ gathered into one answer
                      │ nothing to read yet        ▲
                      ▼                            │ the session answers at the end of the turn
              parked in their channels ── wake ────┘

Each partition is asked for once and answered once; then it rests until the client asks for it
again. Idle partitions therefore cost no work: neither a request that waits, nor its time-out, nor
an answer looks at any partition but those that are ready. Ready ones are answered in turn, so
that none waits for more than one answer of each of the others.

Sessions end with their connection. What they remember is bounded per connection and per node.
"""

import enum
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Final

from vq import limits
from vq.broker.base.config import ConnectionLimits
from vq.broker.base.session import Session, is_own_fault
from vq.broker.connections.metered_connection import Meters
from vq.broker.partition.channel import Channel
from vq.broker.partition.cold_reads import ColdRead, Tries
from vq.broker.partition.context import Context
from vq.broker.security.authority import Authority
from vq.broker.serving.directory import Directory, known, look_up
from vq.broker.serving.fetch_answer import FetchAnswer, FetchTimer, FetchWait
from vq.broker.serving.fetch_turns import FetchTurns
from vq.broker.serving.fetched_partition import FetchedPartition
from vq.broker.serving.reach import COPY_READERS, READERS, CopyReach, Reach
from vq.broker.serving.reading import FILTER_SCAN_BYTES, cold, scan
from vq.errors import Busy, FetchSessionLost, InternalError, InvalidRequest, VqError
from vq.log_lines import get_logger
from vq.message_filter import ALL, Filter
from vq.model import TopicPartition
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.security.rules import Resource, Right
from vq.store.archive.archived_file import NotInMemory
from vq.turn import Turn

logger = get_logger(__name__)

#: Filtered partitions scanned for one answer once it has something to tell: 128 KiB each, one a
#: turn of the loop.
SCANS_PER_ANSWER: Final = 8
#: So many partitions that a request names are looked at in the turn in which it comes, some 20 us
#: each, and as much again for one that is looked up ...
NAMED_AT_ONCE: Final = 64
#: ... and of a request that names more, so many in a step, each; see ``FetchTurns``.
NAMED_PER_STEP: Final = 4
#: So many errors are told of in a step.
ERRORS_PER_STEP: Final = 16


class ServedSessions:
    """All fetch sessions of a node.

    Args:
        directory, context: See ``Dispatcher``.
        turn: Of the loop.
        bounds: Of what sessions keep.
        authority: Says which topics users may read; None, or not enabled: all.
        meters: Are told what looking for tags takes, which comes after the door; None: nobody is.

    Attributes:
        scan: Has a session look through the next bytes of a filtered partition.
    """

    scan: Callable[["ServedSession", FetchedPartition], None]

    def __init__(
        self,
        directory: Directory,
        context: Context,
        turn: Turn,
        bounds: ConnectionLimits,
        authority: Authority | None = None,
        meters: Meters | None = None,
    ) -> None:
        self._meters = meters
        self._choose_scan()
        if meters is not None:
            meters.accounts.changed.listen(self._choose_scan)
        self.authority = authority if authority is not None and authority.enabled else None
        self.directory = directory
        self.context = context
        self.turn = turn
        self.turns = FetchTurns(context.call_later)
        self._bounds = bounds
        self._sessions: dict[tuple[Session, int], ServedSession] = {}
        self._bytes: dict[Session, int] = {}
        self._bytes_of: Counter[str] = Counter()  # by address
        self._bytes_total = 0

    def fetch(self, session: Session, request_id: RequestId, header: wire.FetchRequest) -> None:
        """FETCH: change what a session waits for, and answer when some of it is there."""
        found = self._sessions.get((session, header.session))
        reach = COPY_READERS if header.from_copy else READERS
        self._request(session, request_id, header, found, reach)

    def replicate(
        self, session: Session, request_id: RequestId, header: wire.ReplicateRequest
    ) -> None:
        """REPLICATE: the same for a node of this group, up to the end of the logs."""
        found = self._sessions.get((session, header.session))
        reach = None if found is None or not header.sequence else found.reach
        if not isinstance(reach, CopyReach) or not reach.is_of(header):
            reach = CopyReach(header.node, header.incarnation, header.epoch)
        self._request(session, request_id, header, found, reach)

    def _request(
        self,
        session: Session,
        request_id: RequestId,
        header: wire.FetchRequest | wire.ReplicateRequest,
        found: "ServedSession | None",
        reach: Reach,
    ) -> None:
        try:
            if len(header.partitions) > limits.FETCH_PARTITIONS_PER_REQUEST_MAX:
                raise InvalidRequest(
                    f"{len(header.partitions)} partitions in one FETCH; at most "
                    f"{limits.FETCH_PARTITIONS_PER_REQUEST_MAX} are taken"
                )
            if header.sequence == 0:
                if found is not None:
                    found.end()
                if not self.count_bytes(session, limits.FETCH_STATE_ENTRY_BYTES):
                    raise Busy(self.too_many_bytes)
                found = ServedSession(self, session, header.session, reach)
                self._sessions[session, header.session] = found
            elif found is None or found.reach is not reach:
                raise FetchSessionLost(
                    f"fetch session {header.session} is unknown, or was begun by another command, "
                    "with another from_copy, or in another epoch"
                )
            elif header.sequence != found.sequence + 1:
                raise FetchSessionLost(
                    f"fetch session {header.session} is at sequence {found.sequence}, the request "
                    f"has sequence {header.sequence}"
                )
        except VqError:
            if found is not None:
                found.end()
            raise
        try:
            found.take(request_id, header)
        except Exception:
            found.cancel()
            raise

    def _choose_scan(self) -> None:
        timed = self._meters is not None and self._meters.accounts.limits_time
        self.scan = self._scan_timed if timed else ServedSession.scan

    def _scan_timed(self, served: "ServedSession", fetched: FetchedPartition) -> None:
        assert self._meters is not None
        with self._meters.timed(served.session):
            served.scan(fetched)

    @property
    def sessions(self) -> Collection["ServedSession"]:
        """Those that are open."""
        return self._sessions.values()

    @property
    def kept_bytes(self) -> int:
        """How much memory they cost, estimated."""
        return self._bytes_total

    @property
    def too_many_bytes(self) -> str:
        """The text of the error when ``count_bytes`` refuses."""
        return (
            f"too many fetched partitions: at most {self._bounds.fetch_state_bytes_max} "
            f"bytes are kept for a connection, {self._bounds.fetch_state_bytes_total_max} for all, "
            "half of them for the connections of one address"
        )

    def count_bytes(self, session: Session, size: int) -> bool:
        """Count ``size`` bytes for a connection; False, and nothing is counted, beyond a bound.

        The connections of one address get half of what there is for all.
        """
        used = self._bytes.get(session, 0) + size
        of_address = self._bytes_of[session.counted_as] + size
        total_max = self._bounds.fetch_state_bytes_total_max
        if (
            used > self._bounds.fetch_state_bytes_max
            or of_address > total_max // 2
            or self._bytes_total + size > total_max
        ):
            return False
        self._bytes[session] = used
        self._bytes_of[session.counted_as] = of_address
        self._bytes_total += size
        return True

    def uncount_bytes(self, session: Session, size: int) -> None:
        """Subtract what ``count_bytes`` added."""
        self._bytes_total -= size
        self._bytes[session] -= size
        if not self._bytes[session]:
            del self._bytes[session]
        self._bytes_of[session.counted_as] -= size
        if not self._bytes_of[session.counted_as]:
            del self._bytes_of[session.counted_as]

    def forget(self, session: Session, number: int) -> None:
        """A session has ended."""
        del self._sessions[session, number]
        self.uncount_bytes(session, limits.FETCH_STATE_ENTRY_BYTES)


class Due(enum.Enum):
    """Who calls a session that is to answer."""

    END_OF_TURN = "the end of this turn"
    NEXT_TURN = "the next turn"
    PEER = "the connection, once the peer has taken more"


class ServedSession:
    """What one client waits for, and the FETCH that it waits with.

    Attributes:
        partitions: By handle.
        reach: How far its reads go.
        sequence: Of the last request.
    """

    __slots__ = (
        "_answer",
        "_cold",
        "_due",
        "_fetches",
        "_needs_turn",
        "_number",
        "_progress_since",
        "_progressed",
        "_ready",
        "_scans",
        "_session",
        "_timer",
        "_unasked",
        "_waiting",
        "partitions",
        "reach",
        "sequence",
    )

    _new_answer: ClassVar[type[FetchAnswer]] = FetchAnswer

    def __init__(
        self, fetches: ServedSessions, session: Session, number: int, reach: Reach
    ) -> None:
        self._fetches = fetches
        self.reach = reach
        self._session = session
        self._number = number
        self.partitions: dict[int, FetchedPartition] = {}
        self.sequence = 0
        # Ready for the next answer, in the order in which they became so: those to be read from
        # or to be told of, and those to be looked through for tags.
        self._ready: dict[FetchedPartition, None] = {}
        self._scans: dict[FetchedPartition, None] = {}
        # Those whose bytes are being brought into memory, from an offset on.
        self._cold: dict[FetchedPartition, int] = {}
        # Filtered ones that have come further and have nothing to show for it yet.
        self._progressed: dict[FetchedPartition, None] = {}
        self._progress_since = 0.0
        # The request that waits, the partitions that it names and that nobody has looked at yet,
        self._waiting: FetchWait | None = None
        self._unasked: deque[wire.FetchPartition] = deque()
        self._timer = FetchTimer(fetches.context, self._ring)
        self._due: Due | None = None
        # It goes on in a later turn: once, however many requests come meanwhile.
        self._needs_turn = False
        # and its answer so far.
        self._answer = self._new_answer()
        session.waiting[self] = None

    @property
    def session(self) -> Session:
        """The connection."""
        return self._session

    # Requests -----------------------------------------------------------------------------------
    def take(
        self, request_id: RequestId, header: wire.FetchRequest | wire.ReplicateRequest
    ) -> None:
        """Change what is waited for; answer now, or as soon as there is something to tell.

        A request that waits already is answered first, with what there is: perhaps nothing. A
        request that names many partitions has them looked at in steps.
        """
        self.sequence = header.sequence
        while self._unasked:
            self._ask(self._unasked.popleft())
        if self._waiting is not None:
            self._send(self._waiting)
        waiting = self._wait(request_id, header)
        waiting.again = isinstance(header, wire.FetchRequest) and header.again
        if header.close:
            self.end()
            return
        for handle in header.removed:
            self._remove(handle)
        named: Sequence[wire.FetchPartition] = header.partitions
        if len(named) > NAMED_AT_ONCE:
            self._unasked.extend(named)
        else:
            for item in named:
                self._ask(item)
        self._begin(waiting)

    def _wait(
        self,
        request_id: RequestId,
        header: wire.FetchRequest | wire.ReplicateRequest | wire.GetRequest,
    ) -> FetchWait:
        """Have a request wait for its answer; ``_begin`` comes next."""
        self._due = Due.NEXT_TURN  # ``_begin``, for all that is ready by then
        wait_s = min(header.max_wait_ms / 1000, limits.LONG_POLL_S_MAX)
        max_bytes = min(header.max_bytes or limits.FETCH_BYTES_MAX, limits.FETCH_BYTES_MAX)
        until = self._fetches.context.clock.monotonic() + wait_s
        self._waiting = FetchWait(request_id, max_bytes, wait_s, until, wait_s <= 0)
        return self._waiting

    def _begin(self, waiting: FetchWait) -> None:
        """Answer with what is ready by now, or wait."""
        if self._ready or self._scans or self._unasked or self._answer.results or waiting.timed_out:
            self._gather(waiting)
            if self._waiting is not waiting or waiting.timed_out:
                return
        else:
            self._due = None
        self._timer.set(waiting.until)

    def _ring(self) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.timed_out and self._timer.ends(waiting.until):
            self._expire(waiting)

    def _ask_on(self) -> bool:
        """Look at more of the partitions that the request names; False: some are left."""
        while self._unasked:
            if not self._fetches.turns.take_step():
                return False
            for _ in range(min(NAMED_PER_STEP, len(self._unasked))):
                self._ask(self._unasked.popleft())
        return True

    def _ask(self, item: wire.FetchPartition) -> None:
        """Look at one partition that a request names."""
        if item.topic:
            self._add(item)
            return
        fetched = self.partitions.get(item.handle)
        if fetched is None:
            error = InvalidRequest(f"handle {item.handle} is not in fetch session {self._number}")
            self._answer.add_error(item.handle, item.offset, error)
            self._session.owe(1)
            return
        self._unready(fetched)
        fetched.ask(item)
        fetched.look()

    def _add(self, item: wire.FetchPartition) -> None:
        """Take a partition into the session. One that cannot be is told of in this answer."""
        self._remove(item.handle)
        authority = self._fetches.authority
        try:
            if authority is not None:
                authority.check(self._session.principal, Right.READ, Resource.TOPIC, item.topic)
            named = item.tags or item.where
            wanted = Filter.of_request(item.tags, item.where) if named else ALL
            if wanted and isinstance(self.reach, CopyReach):
                raise InvalidRequest("a copy of a log takes all records; send no filter")
            fetched = self._fetched(item.handle, wanted, limits.FETCH_STATE_ENTRY_BYTES)
        except VqError as error:
            self._answer.add_error(item.handle, item.offset, error)
            self._session.owe(is_own_fault(error))
            return
        self._join(fetched, item)

    def _fetched(self, handle: int, wanted: Filter, entry_bytes: int) -> FetchedPartition:
        """Return a partition for the session, after its filter and ``entry_bytes`` are counted.

        Raises:
            Busy: There is no memory for it.
        """
        size = entry_bytes + wanted.state_bytes
        if size and not self._fetches.count_bytes(self._session, size):
            raise Busy(self._fetches.too_many_bytes)
        return FetchedPartition(self, handle, wanted, size)

    def _join(self, fetched: FetchedPartition, item: wire.FetchPartition) -> None:
        self.partitions[item.handle] = fetched
        fetched.topic = item.topic
        fetched.ask(item)
        partition = TopicPartition(item.topic, item.partition)
        directory = self._fetches.directory
        fetched.channel = known(directory, partition, item.topic_id)
        if fetched.channel is None:
            look_up(directory, partition, item.topic_id, fetched.found, self._session)
            self._session.owe(1)  # now: until it is found or not, a thousand more could come
        else:
            fetched.look()

    def _remove(self, handle: int) -> None:
        fetched = self.partitions.pop(handle, None)
        if fetched is not None:
            fetched.unpark()
            if fetched.channel is not None:
                self.reach.gone(fetched.channel)
            self._unready(fetched)
            if fetched.size:
                self._fetches.uncount_bytes(self._session, fetched.size)

    def _unready(self, fetched: FetchedPartition) -> None:
        self._ready.pop(fetched, None)
        self._cold.pop(fetched, None)
        if fetched.is_filtered:
            self._scans.pop(fetched, None)
            self._progressed.pop(fetched, None)

    def look_at_rights(self) -> int:
        """End the reads of topics that the client may not read any more.

        Returns:
            How many partitions were looked at.
        """
        authority, asker = self._fetches.authority, self._session.principal
        if authority is None:
            return 0
        for fetched in self.partitions.values():
            refusal = authority.refusal(asker, Right.READ, Resource.TOPIC, fetched.topic)
            fetched.revoked = refusal
            if refusal is None:
                continue
            fetched.failure = refusal
            is_asked = fetched in self._ready or fetched in self._scans or fetched in self._cold
            if is_asked or fetched.waits:
                fetched.unpark()
                self._unready(fetched)
                self.ready(fetched)
        return len(self.partitions)

    def end(self) -> None:
        """End the session; a request that waits is answered with what there is."""
        if self._waiting is not None:
            self._send(self._waiting)
        self.cancel()

    def cancel(self) -> None:
        """See ``session.Cancellable``; called when the connection has ended."""
        if self not in self._session.waiting:
            return  # it has ended before
        del self._session.waiting[self]
        self._unasked.clear()
        self._waiting = None
        self._timer.stop()
        self._fetches.turns.remove(self)
        for handle in list(self.partitions):
            self._remove(handle)
        self._forget()

    def _forget(self) -> None:
        self._fetches.forget(self._session, self._number)

    # Answers ------------------------------------------------------------------------------------
    def ready(self, fetched: FetchedPartition) -> None:
        """There is something to tell of a partition."""
        if fetched.is_filtered and fetched.failure is None and not fetched.unchecked:
            self._scans[fetched] = None
        else:
            self._ready[fetched] = None
        if self._waiting is not None and self._due is None:
            self._due = Due.END_OF_TURN
            self._fetches.turn.add(self)

    def write_out(self) -> None:
        """See ``turn.Writer``: answer with all that became ready in this turn."""
        self._go_on(Due.END_OF_TURN)

    def turn_came(self) -> None:
        """See ``fetch_turns.Stepping``."""
        self._needs_turn = False
        self._go_on(Due.NEXT_TURN)

    def _expire(self, waiting: FetchWait) -> None:
        """Answer: the time is up."""
        waiting.timed_out = True
        self._go_on(None)

    def _go_on(self, due: Due | None) -> None:
        """Answer if it is due; called by nobody who could deal with an error."""
        waiting = self._waiting
        if waiting is None or self._due is not due:
            return
        try:
            self._gather(waiting)
        except Exception as error:
            logger.exception("fetch session failed", request=waiting.request_id)
            self._session.refuse(
                waiting.request_id, InternalError(f"{type(error).__name__}: {error}")
            )
            self.cancel()

    def _gather(self, waiting: FetchWait) -> None:
        """Gather what is ready, and send it once it is enough."""
        if self._session.congested:
            if self._due is not Due.PEER:
                self._due = Due.PEER
                self._session.defer(lambda: self._go_on(Due.PEER))
            return
        self._due = Due.NEXT_TURN  # until it is decided below
        answer = self._answer
        turns, turn_is_used = self._fetches.turns, self._needs_turn  # by a request before this one
        if self._unasked and (turn_is_used or not self._ask_on()):
            self._go_on_later()
            return
        lacks_step = False
        if not turn_is_used and self._scans and not answer.is_full(waiting.max_bytes):
            lacks_step = not turns.take_step()
            if not lacks_step:
                self._fetches.scan(self, next(iter(self._scans)))
        while self._ready and not lacks_step and not answer.is_full(waiting.max_bytes):
            fetched = next(iter(self._ready))
            needs_step = fetched.failure is None and fetched.unchecked
            lacks_step = needs_step and not turns.take_step()
            errors = answer.errors
            if lacks_step or not self._read(fetched, waiting.max_bytes - answer.size):
                break
            if answer.errors > errors and answer.errors % ERRORS_PER_STEP == 0:
                lacks_step = not turns.take_step()
        is_far = answer.results and answer.scans >= SCANS_PER_ANSWER
        scans_on = self._scans and not is_far and (turn_is_used or self._scans_on(waiting))
        if (scans_on or lacks_step) and not answer.is_full(waiting.max_bytes):
            self._go_on_later()
            return
        self._due = None
        if self._progressed and (answer.results or waiting.timed_out):
            self._tell_progress(waiting)
        if waiting.again and answer.results and self._goes_on(waiting):
            return
        if answer.results or (waiting.timed_out and answer.may_be_empty):
            self._send(waiting)

    def _go_on_later(self) -> None:
        if not self._needs_turn:
            self._needs_turn = True
            self._fetches.turns.add(self)

    def _scans_on(self, waiting: FetchWait) -> bool:
        """Whether filtered partitions are looked through in one more turn."""
        return not waiting.timed_out

    def _read(self, fetched: FetchedPartition, room: int) -> bool:
        """Put bytes or the error of a partition into the answer; False when that must wait."""
        try:
            if fetched.failure is not None:
                self._fail(fetched, fetched.failure)
                return True
            if fetched.unchecked:
                fetched.check()
                if fetched.is_filtered:
                    del self._ready[fetched]
                    fetched.look()
                    return True
            part = fetched.readable()
            limit = self.reach.limit(part)
            there = limit - fetched.position
            wanted = min(there, fetched.max_bytes)
            if wanted > room and self._answer.size:
                return False  # it comes first in the next answer, and whole
            if part.log is None or there < (1 if fetched.at_once else fetched.min_bytes):
                if fetched.at_once or fetched.is_news_due:
                    self._tell(fetched, fetched.position, [])
                else:
                    del self._ready[fetched]
                    fetched.look()
                return True
            if self._must_fetch(fetched, part, min(wanted, room)):
                return True
            view = part.log.reader.read(fetched.position, min(wanted, room), limit)
        except NotInMemory as error:
            self._fetch_again(fetched, error)
            return True
        except VqError as error:
            self._fail(fetched, error)
            return True
        self._tell(fetched, fetched.position + len(view), [view])
        return True

    def scan(self, fetched: FetchedPartition) -> None:
        """Look through the next bytes of a filtered partition."""
        del self._scans[fetched]
        self._answer.scans += 1
        try:
            part = fetched.readable()
            if self._must_fetch(fetched, part, FILTER_SCAN_BYTES):
                return
            slices, offsets, position = scan(
                part, fetched.position, fetched.wanted, fetched.max_bytes
            )
        except NotInMemory as error:
            self._fetch_again(fetched, error)
            return
        except VqError as error:
            fetched.failure = error
            self._ready[fetched] = None
            return
        moved = position > fetched.position
        fetched.position = position
        if slices or (fetched.at_once and position >= part.read_limit):
            self._tell(fetched, position, slices, offsets)
            return
        if moved:
            if not self._progressed:
                self._progress_since = self._fetches.context.clock.monotonic()
            self._progressed[fetched] = None
        fetched.look()

    def _must_fetch(self, fetched: FetchedPartition, part: Channel, max_bytes: int) -> bool:
        """Whether bytes must be brought into memory first; then the partition is not ready."""
        offset = fetched.position
        fetch = (
            None
            if fetched.warm == offset
            else cold(part, offset, max_bytes, self.reach.limit(part))
        )
        if fetch is None:
            return False
        self._fetch(fetched, fetch, warm=offset)
        return True

    def _fetch_again(self, fetched: FetchedPartition, error: NotInMemory) -> None:
        """Bring bytes into memory that a check lacks, or that were pushed out again."""
        if fetched.tries is None:
            fetched.tries = Tries()
        try:
            fetched.tries.spend(error)
        except VqError as refusal:
            self._scans.pop(fetched, None)
            fetched.failure = refusal
            self._ready[fetched] = None
        else:
            self._fetch(fetched, error.fetch, warm=-1)

    def _fetch(self, fetched: FetchedPartition, fetch: Callable[[], None], *, warm: int) -> None:
        """Bring bytes into memory; until then the partition is not ready.

        ``warm``: those from this offset on are there then; -1: others are.
        """
        offset = fetched.position
        self._ready.pop(fetched, None)
        self._scans.pop(fetched, None)
        self._cold[fetched] = offset

        def then() -> None:
            del self._cold[fetched]
            fetched.warm = warm  # read them now, even if they were pushed out again
            self.ready(fetched)

        read = ColdRead(fetch, lambda: self._cold.get(fetched) == offset, then)
        self._fetches.context.fetch_cold(self._session, read)

    def _fail(self, fetched: FetchedPartition, error: VqError) -> None:
        """Tell of an error; or first how far a filter got, since that is where to go on."""
        if fetched.position > fetched.offset:
            self._tell(fetched, fetched.position, [])
        else:
            self._remove(fetched.handle)
            self._answer.add_error(fetched.handle, fetched.offset, error)

    def _tell_progress(self, waiting: FetchWait) -> None:
        """Tell how far filters got that picked nothing, once in a while."""
        since = self._fetches.context.clock.monotonic() - self._progress_since
        if not waiting.timed_out and since < waiting.wait_s:
            return
        while self._progressed and not self._answer.is_full(waiting.max_bytes):
            fetched = next(iter(self._progressed))
            self._tell(fetched, fetched.position, [])

    def _tell(
        self,
        fetched: FetchedPartition,
        next_offset: int,
        slices: list[memoryview],
        offsets: list[int] | None = None,
    ) -> None:
        """Put a partition's result into the answer; it rests until it is asked for again."""
        channel = fetched.channel
        assert channel is not None
        fetched.unpark()
        self._unready(fetched)
        offsets = offsets or []
        fetched.told_deleted = self.reach.deleted(channel)
        self._answer.add(fetched, channel, next_offset, slices, offsets)

    def _send(self, waiting: FetchWait) -> None:
        """Answer a request for the last time."""
        self._waiting = None
        answer, self._answer = self._answer, self._new_answer()
        self._fetches.context.counters.bytes_out += answer.size
        answer.send(self._session, waiting.request_id)

    def _goes_on(self, waiting: FetchWait) -> bool:
        """Answer a request that waits on for what follows; False: it is to be answered at last."""
        answer = self._answer
        if self._ready or self._scans or self._unasked or waiting.timed_out:
            return False
        if not answer.send_again(self._session, waiting.request_id):
            return False
        self._answer = self._new_answer()
        context = self._fetches.context
        context.counters.bytes_out += answer.size
        waiting.until = context.clock.monotonic() + waiting.wait_s
        for fetched, offset, size in answer.told:
            fetched.go_on(offset, size)
        return True
