"""Reads many partitions with few requests: one fetch session for each broker connection.

Loop-bound. A ``PartitionFetcher`` asks here for the bytes at its position, once, and gets them or
an error. In here: which broker has them, and what the session on that broker knows. How much memory
all partitions of the consumer may take is in ``buffer_space``. The session is described in
docs/protocol.md, FETCH.

    fetcher ── ask ──▶ Fetches ── master of the offset ──▶ FetchSession ──▶ FETCH
       ▲                                                        │
       └───────────────────── took / failed ────────────────────┘
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from vq import limits
from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.consumer.fetch.asker import Asker
from vq.client.consumer.fetch.buffer_space import BufferSpace
from vq.client.reading.nodes import Nodes, passes
from vq.errors import (
    ConnectionCut,
    InternalError,
    ProtocolError,
    Unreachable,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting import messages
from vq.remoting.broker_connection import BrokerConnection
from vq.remoting.connection import is_again
from vq.remoting.fetch_state import FetchState
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.wire_pb2 import FetchPartition, FetchRequest, FetchResponse, FetchResult
from vq.shown import shown_raised

logger = get_logger(__name__)
#: A broker that has not answered this long after the hold ended is asked again elsewhere.
GRACE_S = 10.0
BACKOFF = Backoff(first_s=0.02, most_s=1.0, jitter=0.5)
#: One request waits, one changes what is waited for.
_REQUESTS_MAX = 2
#: Partitions of one request: the broker checks each of them in one iteration of its loop.
_ITEMS_MAX = 256
#: Of all partitions in one answer: it is taken apart while it is in the processor's cache. Four
#: times as much cost 15 % of the throughput over 64 partitions.
_ANSWER_BYTES_MAX = 2 * limits.MIB


#: An error that passes is told when there has been no answer for so long. It is more than a change
#: of the master takes, so that nobody is told of one.
DELAY_TOLD_S = 10.0


def _of(address: Address, error: VqError) -> VqError:
    """Return an error that passes with the broker that told it."""
    if not passes(error):
        return error
    return type(error)(f"{address}: {error.message}", details=error.details, hint=error.hint)


class Fetches:
    """The fetch sessions of one consumer, and its buffer space.

    ``nodes`` says from which node of a broker group a partition is read; None: from the master.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        *,
        max_wait_s: float,
        buffer_bytes: int,
        nodes: Nodes | None = None,
    ) -> None:
        self.cluster = cluster
        self.nodes = nodes or Nodes(cluster)
        self.max_wait_s = max_wait_s
        self.number = next(cluster.fetch_numbers)
        self._loop = asyncio.get_running_loop()
        self.space = BufferSpace(buffer_bytes)
        self._sessions: dict[BrokerConnection, FetchSession] = {}
        self._placed: dict[Asker, FetchSession] = {}
        self._waiting: dict[Asker, None] = {}  # for a connection
        self._routes: object = None
        self._look_due = False
        self._failures = 0  # since a broker answered
        self._timer: asyncio.TimerHandle | None = None
        self._remove_listener: Callable[[], None] | None = None

    # Partitions -----------------------------------------------------------------------------------
    def expect(self, count: int) -> None:
        """Divide the memory by so many partitions from now on; some of them may join later.

        Idle partitions were requested with their old share. They are requested again, or all of
        them together could send more than the bound.
        """
        if not self.space.expect(count):
            return
        for asker in self.space.askers():
            is_idle = asker in self._placed and not asker.behind
            if is_idle and asker.asked > self.space.share_bytes:
                self.withdraw(asker)
                asker.asked = 0
                asker.count()
                asker.go_on()
            else:
                asker.count()

    def join(self, asker: Asker) -> None:
        """A partition is to be read from now on."""
        if self._remove_listener is None:
            self._remove_listener = self.cluster.on_change(self._changed)
        self.space.join(asker)

    def leave(self, asker: Asker) -> None:
        """A partition is read no more; an answer to it that is on its way is dropped."""
        if asker not in self.space:
            return
        self.withdraw(asker)
        self.space.leave(asker)
        if len(self.space) == 0 and self._remove_listener is not None:
            self._remove_listener()
            self._remove_listener = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def withdraw(self, asker: Asker) -> None:
        """Cancel the request of a partition; it may ask again."""
        self._waiting.pop(asker, None)
        session = self._placed.pop(asker, None)
        if session is not None:
            session.remove(asker)

    def ask(self, asker: Asker) -> None:
        """Ask for the bytes at a partition's position, ``asked`` at most."""
        try:
            address, epoch = self.nodes.at(asker.partition, asker.position)
        except VqError as error:
            self.withdraw(asker)
            asker.failed(error)
            return
        session = self._placed.get(asker)
        if session is not None and session.address != address:
            self.withdraw(asker)
            session = None
        if session is None:
            connection = self.cluster.live_connection(address)
            if connection is None or connection.closed:
                self._wait_for_connection(asker, address)
                return
            session = self._sessions.get(connection)
            if session is None:
                session = self._sessions[connection] = FetchSession(self, connection, self._loop)
            self._placed[asker] = session
        session.ask(asker, epoch)

    # What sessions tell ---------------------------------------------------------------------------
    def answered(self) -> None:
        """A broker answered; the next request needs no pause."""
        self._failures = 0

    def dropped(self, asker: Asker) -> None:
        """A partition has left its session, with an error of its own."""
        self._placed.pop(asker, None)

    def ended(self, session: "FetchSession", error: VqError | None) -> None:
        """A session is over, by itself or with its connection; its partitions begin another.

        ``error``: why; None: it was closed, or that was logged.
        """
        if self._sessions.get(session.connection) is session:
            del self._sessions[session.connection]
        askers = session.askers()
        again = error is None or passes(error)
        for asker in askers:
            self._placed.pop(asker, None)
            if again and asker.asked:
                self._wait_for_connection(asker, session.address, error, session.answered_at)
        if error is not None and not again:
            for asker in askers:
                if asker.asked and asker in self.space:
                    asker.failed(self.refused(asker, session.address, error))
        self._retry_later()

    def refused(self, asker: Asker, address: Address, error: VqError) -> VqError:
        """See ``Nodes.refused``."""
        return self.nodes.refused(asker.partition, asker.position, address, error)

    def _wait_for_connection(
        self,
        asker: Asker,
        address: Address,
        error: VqError | None = None,
        answered_at: float | None = None,
    ) -> None:
        """Ask again once the attempt to connect has ended; but not with the permit in hand."""
        failures = self.cluster.unreachable.get(address)
        if failures is not None and failures.refusal is not None:
            asker.failed(failures.refusal)
            return
        if error is None and failures is not None:
            error = Unreachable(f"{address}: {failures.cause}")
        if self.space.has_permit(asker):
            asker.failed(
                error
                or ConnectionCut(f"{asker.partition}: there is no connection to {address} now")
            )
        else:
            self._waiting[asker] = None
            if error is not None:
                asker.delayed(error, answered_at)

    def _retry_later(self) -> None:
        if self._timer is None and self._waiting:
            self._failures += 1
            pause = BACKOFF.pause_s(self._failures, self.cluster.rng)
            self._timer = self._loop.call_later(pause, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self._place_waiting()

    # Following the cluster ------------------------------------------------------------------------
    def _changed(self) -> None:
        """Routes or connections changed; check once for all changes of this loop iteration."""
        if not self._look_due:
            self._look_due = True
            self._loop.call_soon(self._look_around)

    def _look_around(self) -> None:
        self._look_due = False
        if self._timer is None:
            self._place_waiting()
        routes = self.cluster.routes
        if routes is not self._routes:
            self._routes = routes
            self._follow_masters()

    def _place_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for asker in waiting:
            if asker in self.space:
                self.ask(asker)

    def _follow_masters(self) -> None:
        """Ask again where the node to read from, or the master's epoch, has changed.

        A former master that does not know it would never answer.
        """
        for asker, session in list(self._placed.items()):
            if asker.asked:
                self._follow(asker, session)

    def answered_again(self, asker: Asker) -> None:
        """A partition was answered and counts as asked for again; it may be better read elsewhere.

        Otherwise a copy that was left for a while would be left as long as the request goes on.
        """
        session = self._placed.get(asker)
        if self.nodes.from_copy and session is not None and asker.asked:
            self._follow(asker, session)

    def _follow(self, asker: Asker, session: "FetchSession") -> None:
        try:
            place = self.nodes.at(asker.partition, asker.position)
        except VqError:
            return  # nobody else is known either
        if place != (session.address, session.epoch_of(asker)):
            self.withdraw(asker)
            self.ask(asker)


class FetchSession:
    """The partitions that one broker reads for one consumer.

    Attributes:
        connection: To the broker.
        address: The broker's.
        answered_at: When the broker last answered, by the loop's time; None: never.
    """

    def __init__(
        self, fetches: Fetches, connection: BrokerConnection, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.connection = connection
        self.address = connection.address
        self._what = f"{self.address}: an answer to FETCH"
        self.answered_at: float | None = None
        self._fetches = fetches
        self._loop = loop
        self._state: FetchState[Asker] = FetchState()
        self._epochs: dict[Asker, int] = {}
        self._unanswered: set[Asker] = set()  # that were asked for, sent or not
        self._send_due = False
        self._over = False

    def askers(self) -> list[Asker]:
        """Return all partitions of the session."""
        return list(self._state.parts.values())

    def epoch_of(self, asker: Asker) -> int:
        """Return the epoch that a partition was asked for with."""
        return self._epochs[asker]

    def ask(self, asker: Asker, epoch: int) -> None:
        """Ask for a partition with the next request, which leaves soon."""
        handle, is_new = self._state.place(asker)
        item = FetchPartition(
            handle=handle,
            offset=asker.position,
            max_bytes=asker.asked,
            epoch=epoch,
            validate=asker.validate,
            at_once=asker.at_once,
        )
        if is_new or asker.unsure or self._epochs[asker] != epoch:
            item.last_epoch = asker.last_epoch
        if is_new:
            item.topic = asker.partition.topic
            item.partition = asker.partition.partition
            item.topic_id = asker.topic_id
            item.tags.extend(asker.wanted.tags)
            item.where = asker.wanted.where
        self._epochs[asker] = epoch
        self._unanswered.add(asker)
        self._state.ask(item)
        self._send_soon()

    def remove(self, asker: Asker) -> None:
        """Forget a partition, and have the broker forget it."""
        self._state.remove(asker)
        self._forget(asker)
        self._send_soon()

    def _forget(self, asker: Asker) -> None:
        del self._epochs[asker]
        self._unanswered.discard(asker)

    def _send_soon(self) -> None:
        if not self._send_due and not self._over:
            self._send_due = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        """Send what changed, or wait for more; at most two requests are on their way."""
        self._send_due = False
        state = self._state
        is_changed = state.changed
        if self._over or state.unanswered >= (_REQUESTS_MAX if is_changed else 1):
            return
        if not is_changed and not self._unanswered:
            return
        request = FetchRequest(
            session=self._fetches.number,
            max_bytes=_ANSWER_BYTES_MAX,
            from_copy=self._fetches.nodes.from_copy,
            again=True,
        )
        state.fill(request, _ITEMS_MAX)
        if not state.parts:
            request.close = True
        elif not state.items:
            request.max_wait_ms = int(self._fetches.max_wait_s * 1000)
        self._request(request)
        if request.close and not self._over:
            self._over = True
            self._fetches.ended(self, None)

    def _request(self, request: FetchRequest) -> None:
        bound_s = self._fetches.max_wait_s + GRACE_S
        timer = self._loop.call_later(bound_s, self._no_answer)

        def on_reply(frame: Frame | None) -> None:
            nonlocal timer
            timer.cancel()
            again = frame is not None and is_again(frame)
            if again:
                timer = self._loop.call_later(bound_s, self._no_answer)
            else:
                self._state.unanswered -= 1
            if not self._over:
                self._on_reply(frame, again=again)
            elif again:
                timer.cancel()

        try:
            self.connection.send(Command.FETCH, request.SerializeToString(), b"", on_reply)
        except VqError as error:  # it has just ended, or takes no more for now
            timer.cancel()
            self._end(error)
        else:
            self._state.unanswered += 1

    def _no_answer(self) -> None:
        if not self.connection.closed:
            logger.warning("broker does not answer, connecting again", broker=self.address)
            self.connection.close()

    def _on_reply(self, frame: Frame | None, *, again: bool = False) -> None:
        if frame is None:
            self._end(ConnectionCut(f"the connection to {self.address} has ended"))
            return
        try:
            response = messages.decode_reply(frame)
            assert isinstance(response, FetchResponse)
            results = self._state.results(self._what, response, frame.body)
        except VqError as error:
            self._end(_of(self.address, error))
            return
        self._fetches.answered()
        self.answered_at = self._loop.time()
        self._send_due = True  # below: what is asked for meanwhile needs no turn of its own
        try:
            self._take_apart(results, again=again)
        except BaseException:
            self._end(None)  # all ask anew: those behind this one would wait for ever
            raise
        # At once, not at the end of the turn: the listeners that were just given messages run until
        # this loop gets the interpreter again, and the broker need not wait for them.
        self._send()
        self.connection.flush()

    def _take_apart(
        self, results: Iterable[tuple[Asker, FetchResult, bytes]], *, again: bool
    ) -> None:
        """Hand each partition its result; an error in one does not stop the others."""
        for asker, result, part in results:
            try:
                self._tell(asker, result, part, again=again)
            except Exception as error:  # noqa: BLE001 - told and logged there
                self._not_handled(asker, error)

    def _not_handled(self, asker: Asker, error: Exception) -> None:
        """Handling an answer failed: a bug, or logging that raises."""
        is_first = not asker.at_once
        self._fetches.withdraw(asker)
        asker.failed(
            InternalError(
                f"{asker.partition}: handling an answer to FETCH failed: {shown_raised(error)}"
            )
        )
        if is_first:
            with contextlib.suppress(Exception):  # of the application's logging
                logger.error(
                    "handling an answer to FETCH failed", partition=asker.partition, exc_info=error
                )

    def _tell(self, asker: Asker, result: FetchResult, part: bytes, *, again: bool) -> None:
        if result.status:
            self._state.drop(asker)
            self._forget(asker)
            self._fetches.dropped(asker)
            error = _of(self.address, messages.described_error(result))
            asker.failed(self._fetches.refused(asker, self.address, error))
        elif asker in self._unanswered:
            if not again:
                self._unanswered.discard(asker)
            asker.took(result, part, again=again)
            if again:
                self._fetches.answered_again(asker)
        else:
            self._fetches.withdraw(asker)
            asker.failed(ProtocolError(f"{asker.partition}: {self.address} answered it twice"))

    def _end(self, error: VqError | None) -> None:
        """End it after a failure; None: one of this program, which is logged."""
        self._over = True
        self._fetches.nodes.avoid(self.address)
        self._fetches.ended(self, error)
