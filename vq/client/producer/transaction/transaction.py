"""The transactions of a producer, and what each of them is.

    open ──▶ ending ──┬──▶ committed
     │         ▲      ├──▶ rolled back
     │         │      ├──▶ in doubt ──▶ ending again
     │         └──────┴─── prepared
     └──▶ given up ──▶ rolled back

One is given up when its time is over, or its producer closes. Its thread, or task, does not know
that yet: what it sends is refused until it ends the transaction, or begins another one.

Messages are kept here until the transaction is committed: the broker knows nothing of it before,
and to roll it back costs nothing. A commit takes them to a journal in one request, mostly, and is
decided there. What is prepared waits in the journal until it is committed or rolled back.
"""

import asyncio
import contextlib
import math
import weakref
from collections.abc import Iterator, Sequence
from contextvars import Context, ContextVar
from enum import Enum
from typing import Final

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig
from vq.client.future import SendCallback, SendFuture
from vq.client.producer.intake.accumulator import Accumulator
from vq.client.producer.transaction.collected import Collected
from vq.client.producer.transaction.in_journal import JournalRequests
from vq.client.producer.transaction.journal_choice import choose_journal
from vq.client.producer.transaction.single_part import Lines, SinglePart
from vq.client.producer.transaction.transactional_id import TransactionalId
from vq.client.producer.transaction.with_offsets import DecisionNodes, MovedOffsets, Moving
from vq.coordination.groups.decisions import DecisionNode, take_away
from vq.coordination.groups.zookeeper_offsets import DecisionOvertaken
from vq.errors import (
    BatchTooLarge,
    InvalidState,
    NotAuthorized,
    NotSent,
    OutcomeUnknown,
    ProducerFenced,
    Refused,
    TransactionInDoubt,
    TransactionRefused,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import Message, SendResult, TopicPartition, TransactionState, Xid
from vq.remoting.wire_pb2 import TransactionChecks, TransactRequest, TransactResponse
from vq.tasks import begin_task

logger = get_logger(__name__)

#: What a refusal may say of a transaction that still may be committed.
_MAY_COMMIT: Final = frozenset((TransactionState.UNKNOWN, TransactionState.PREPARED))
#: So many numbers are tried for one transaction: brokers know the others as other users'.
NUMBERS_MAX: Final = 4
#: The journal is told for so long that it need not wait for the time-out of a transaction.
_TOLD_S: Final = 1.0


class _Stage(Enum):
    """How far a transaction is."""

    OPEN = "open"
    ENDING = "being ended"
    PREPARED = "prepared"
    IN_DOUBT = "in doubt"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    GIVEN_UP = "given up"


_DECISIONS: Final = {
    _Stage.COMMITTED: TransactionState.COMMITTED,
    _Stage.GIVEN_UP: TransactionState.ROLLED_BACK,
    _Stage.ROLLED_BACK: TransactionState.ROLLED_BACK,
}


class Transactions:
    """The transactions of one producer.

    Attributes:
        open: By ``id``, those to which a thread or task may send. Any thread looks whether there
            are any; each change is one step, and who keeps a transaction is somebody else.
        accumulator, cluster, config: Those of the producer.
        lines: For transactions with messages for one partition alone.
        nodes: For transactions with offsets of a consumer.
        telling: Tells the journal of the last one that ZooKeeper has decided.
        id: The transactional id, if there is one.
    """

    def __init__(
        self, cluster: ClusterClient, accumulator: Accumulator, config: ProducerConfig
    ) -> None:
        self.cluster = cluster
        self.accumulator = accumulator
        self.config = config
        self.open: dict[int, weakref.ref[TransactionCore]] = {}
        self._unended: dict[TransactionCore, None] = {}  # whose messages have no outcome
        self._is_watched = False  # the loop looks whose time is over
        self._watch: asyncio.TimerHandle | None = None
        self.lines = Lines(cluster)
        self.nodes = DecisionNodes(cluster)
        self.telling: asyncio.Task[None] | None = None
        self.id = TransactionalId(cluster, config)

    def current(self) -> "TransactionCore | None":
        """Return the transaction to which this thread, or this task, sends."""
        if not self.open:
            return None
        for each in _CURRENT.get():
            if each.producer is self and each.awaits_end:
                return each
        return None

    def begin(
        self, xid: Xid | None = None, *, number: int = 0, keep: bool = False
    ) -> "TransactionCore":
        """Begin one for this thread, or this task, and those that it begins.

        Args:
            xid: Its name in other resources, if it has one.
            number: Its number, if that is known before.
            keep: Its commit decides for these, and is kept until it is forgotten.

        Raises:
            InvalidState: It has one already, or the producer is closed.
            ProducerFenced: Another producer has its transactional id.
        """
        if xid is not None and self.config.transactional_id is not None:
            raise InvalidState(
                "a producer with a transactional_id has no transactions with names of their own: "
                "each of the two says in which journal a transaction is",
                hint="vq.distributed, vq.datamanager and tpc_begin give names: create another "
                "producer for them, without a transactional_id",
            )
        begun = self.begin_apart(xid, number, keep=keep)
        others = (e for e in _CURRENT.get() if e.awaits_end and e.producer is not self)
        _CURRENT.set((*others, begun))
        return begun

    def begin_apart(
        self, xid: Xid | None = None, number: int = 0, *, keep: bool = False
    ) -> "TransactionCore":
        """Begin one that gets its messages by ``add`` alone; otherwise as ``begin``."""
        self.id.check()
        if self.accumulator.closed:
            raise InvalidState(self.accumulator.closed)
        if self.config.identity is not None:
            raise InvalidState(
                "a producer with an identity has no transactions: give it a transactional_id"
            )
        found = self.current()
        if found is not None and found.is_open:
            raise InvalidState(
                "this thread, or task, has a transaction of this producer already; commit it or "
                "roll it back first"
            )
        begun = TransactionCore(self, xid, number, keep=keep)
        key, still = id(begun), self.open
        still[key] = weakref.ref(begun, lambda _: still.pop(key, None))
        self._unended[begun] = None
        if not self._is_watched and self.cluster.loop is not None:
            self._is_watched = True
            nobody = Context()  # otherwise the timer keeps what its task has in ``_CURRENT``
            self.cluster.loop.call_soon_threadsafe(self._give_up_late, context=nobody)
        return begun

    def _give_up_late(self) -> None:
        """Give up what nobody has ended in its time, and look again for the next one. On the loop.

        All have the same time, so what begins later ends later: one timer is enough.
        """
        self._is_watched = False  # first: who begins one now is seen below, or calls this again
        self._unwatch()
        now, next_at = self.cluster.clock.monotonic(), math.inf
        for each in list(self._unended):
            if each.is_open and not each.give_up_late(now):
                next_at = min(next_at, each.ends_at)
        if next_at < math.inf:
            self._is_watched = True
            self._watch = asyncio.get_running_loop().call_later(next_at - now, self._give_up_late)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    def ended(self, transaction: "TransactionCore") -> None:
        """Note that nobody sends to a transaction any more."""
        self.open.pop(id(transaction), None)

    def known(self, transaction: "TransactionCore") -> None:
        """Note that the messages of a transaction have their outcomes."""
        self._unended.pop(transaction, None)

    def give_up(self, why: str, *, ending: bool) -> None:
        """Roll back what is open: the producer closes.

        Args:
            why: What each message is told.
            ending: Nobody will end what is being ended, either.
        """
        given_up = [each.give_up(why, ending=ending) for each in list(self._unended)]
        if any(given_up):
            logger.warning(
                "producer closes, and its open transactions are rolled back",
                transactions=sum(map(bool, given_up)),
                messages=sum(given_up),
            )

    def abandon_in_child(self, why: str) -> None:
        """Fail all messages in the child of a fork; see ``ProducerCore.abandon_in_child``."""
        for each in list(self._unended):
            each.abandon_in_child(why)

    async def until_told(self, deadline: float) -> None:
        """Return once the journal has stored what ZooKeeper has decided, or does it by itself."""
        while self.telling is not None and not self.telling.done():
            left_s = deadline - self.cluster.clock.monotonic()
            if left_s <= 0:
                return
            await asyncio.wait([self.telling], timeout=left_s)

    async def close(self) -> None:
        """Tell what is to be told, and leave nothing in ZooKeeper."""
        self._unwatch()
        await self.until_told(self.cluster.clock.monotonic() + self.config.send_timeout_s)
        await self.nodes.close()

    async def journal_of(
        self, first: TopicPartition | None, xid: Xid | None = None, *, has_offsets: bool = False
    ) -> TopicPartition:
        """Return the partition of the journal in which a transaction is decided.

        With offsets it is rather one for which there is a decision node already.

        Raises:
            VqError: See ``choose_journal``.
        """
        decides = self.nodes.has_one_of if has_offsets else None
        return await choose_journal(
            self.cluster, first, xid, self.config.transactional_id, decides=decides
        )


class TransactionCore:
    """See the module. ``add`` is for one thread or task at a time; all others are loop-bound.

    Attributes:
        producer: Whose it is.
        number: Known to brokers; 0 before they have heard of it.
        xid: Its name in other resources, if it has one.
        ends_at: It is given up then if it is still open; monotonic time.
    """

    def __init__(
        self,
        producer: Transactions,
        xid: Xid | None = None,
        number: int = 0,
        *,
        keep: bool = False,
    ) -> None:
        self.producer = producer
        self.number = number
        self._numbers_left = 0 if number else NUMBERS_MAX - 1  # others know a given one
        self.xid = xid
        self._keep = keep
        self._collected: Final = Collected(producer.cluster.take_ids)
        self._lock: Final = producer.accumulator.lock
        self._stage = _Stage.OPEN
        self._given_up: VqError | None = None  # why
        timeout_s = producer.config.transaction_timeout_s
        self.ends_at: Final = producer.cluster.clock.monotonic() + timeout_s
        self._single: SinglePart | None = None  # or it needs a journal:
        self._requests: Final = JournalRequests(producer.id, xid, keep=keep)
        self._prepares = False  # the last one prepares, and another one decides
        self._may_be_decided = False  # one that decides was sent, and has no answer
        self._results: list[SendResult] = []
        self._moving: Moving | None = None  # offsets of a consumer

    @property
    def is_open(self) -> bool:
        """Whether it takes messages."""
        return self._stage is _Stage.OPEN

    @property
    def awaits_end(self) -> bool:
        """Whether its thread, or task, is to end it: it is open, or was given up meanwhile."""
        return self._stage in {_Stage.OPEN, _Stage.GIVEN_UP}

    @property
    def decision(self) -> TransactionState | None:
        """What it was decided to be, as far as this process knows."""
        return _DECISIONS.get(self._stage)

    # Messages -------------------------------------------------------------------------------------
    def add(
        self,
        message: Message,
        callback: SendCallback | None = None,
        timeout: float | None = None,
        *,
        block: bool = True,
    ) -> SendFuture:
        """Add a message; its future ends with the transaction.

        Raises:
            NotPublished: The producer has not published the topic.
            BatchTooLarge: The transaction would be too large.
            VqError: The message is refused, or the transaction takes no messages any more.
        """
        self._check_open()
        future, queues = self.producer.accumulator.prepare_any(message, callback)
        with self._lock:
            self._check_open()
            self._collected.add(((future, queues),))
        return future

    def add_batch(self, messages: Sequence[Message]) -> list[SendResult]:
        """Add messages in one step; return what is known of their places: all but the offsets.

        Raises:
            BatchTooLarge: The transaction would be too large; the messages before that were added.
            NotPublished: The producer has not published a topic; nothing was added.
            VqError: A message is refused, and nothing was added; see ``add``.
        """
        accumulator = self.producer.accumulator
        self._check_open()
        prepared = [accumulator.prepare_any(each, None) for each in messages]
        with self._lock:
            self._check_open()
            ids = self._collected.add(prepared)
        found = zip(prepared, ids, strict=True)
        return [SendResult(future.partition, -1, id) for (future, _), id in found]

    def check_not_inside(self) -> None:
        """Raise if this thread is inside a send of its producer; see ``Accumulator``.

        Raises:
            InvalidState: It is.
        """
        self.producer.accumulator.check_not_inside()

    def check_offsets(self, cluster: ClusterClient) -> None:
        """Return if it may have offsets of a consumer of a cluster.

        Raises:
            InvalidState: It may not; or it takes nothing any more.
            TransactionRefused: Its time is over.
        """
        self._check_open()
        if self.xid is not None or self._keep:
            raise InvalidState(
                "offsets of a consumer are decided in ZooKeeper; a transaction in which other "
                "resources take part cannot have them"
            )
        if cluster is not self.producer.cluster:
            raise InvalidState(
                "producer and consumer are of different factories, and a transaction is of one: "
                "create both with the same MessageFactory"
            )

    def add_offsets(self, offsets: MovedOffsets) -> None:
        """Have the offsets of a consumer moved when it is committed, and only then.

        Raises:
            InvalidState: It has others already, or these are of another transaction; or it takes
                nothing any more.
        """
        with self._lock:
            self._check_open()
            if self._moving is not None and self._moving.offsets is not offsets:
                raise InvalidState(
                    "the transaction has offsets already, of another consumer or of messages "
                    "before; commit it, and begin another one"
                )
            offsets.of(self, self.give_up_open)
            self._moving = self._moving or Moving(offsets)

    def place_of(self, future: SendFuture) -> SendResult:
        """Return what is known of the place of a message that was added: all but its offset."""
        return self._collected.place_of(future)

    def _check_open(self) -> None:
        if self._given_up is not None and self._stage is _Stage.GIVEN_UP:
            raise self._given_up.with_traceback(None)
        if self._stage is not _Stage.OPEN:
            raise InvalidState(f"the transaction is {self._stage.value}; it takes no messages")
        if self.producer.cluster.clock.monotonic() >= self.ends_at:
            raise TransactionRefused(self._late())

    def _late(self) -> str:
        return (
            "the transaction is open for longer than transaction_timeout_s of its producer, "
            f"{self.producer.config.transaction_timeout_s:g} s; it is rolled back"
        )

    # The end --------------------------------------------------------------------------------------
    def leave(self) -> None:
        """Have this thread, or this task, keep nothing of it; it has ended."""
        _CURRENT.set(tuple(each for each in _CURRENT.get() if each is not self))

    async def commit(self, timeout_s: float) -> list[SendResult]:
        """Have all messages stored; return their places, in the order in which they were added.

        A place whose offset is -1 is not known yet: that message is stored soon. May be called
        again after ``TransactionInDoubt``.

        Raises:
            TransactionInDoubt: It is unknown whether it is committed.
            VqError: It is rolled back.
        """
        if self._stage is _Stage.COMMITTED:
            if self._moving is not None and self._moving.telling is not None:
                await asyncio.wait([self._moving.telling], timeout=timeout_s)
            return self._results
        with self._ending(_Stage.OPEN, _Stage.PREPARED, _Stage.IN_DOUBT):
            return await self._commit(self._until(timeout_s))

    async def prepare(self, timeout_s: float, *, checks: TransactionChecks | None = None) -> None:
        """Have all messages wait at the broker, durably, until a decision, however long that takes.

        Then it takes no messages, and its time is over no more. May be called again after
        ``TransactionInDoubt``. A transaction without messages can be prepared, too.

        Args:
            timeout_s: Until then it must be known.
            checks: Of a half message: how producers are asked what is to become of it.

        Raises:
            BatchTooLarge: It is a half message, and too large for one request.
            TransactionInDoubt: It is unknown whether it is prepared; nothing was committed.
            VqError: It is rolled back.
        """
        if self._stage is _Stage.PREPARED:
            return
        if self._moving is not None:  # and it stays as it is
            raise InvalidState(
                "a transaction with offsets of a consumer is decided in ZooKeeper; it cannot be "
                "prepared for somebody else's decision"
            )
        with self._ending(_Stage.OPEN, _Stage.IN_DOUBT):
            deadline = self._until(timeout_s)
            if not self._requests:
                self._prepares = True
                await self._make_requests(checks)
            if not self._prepares:
                raise InvalidState("the transaction is being committed; it cannot be prepared")
            await self._send_all(deadline)
            self._stage = _Stage.PREPARED
            self._requests.drop_messages()

    def _until(self, timeout_s: float) -> float:
        return self.producer.cluster.clock.monotonic() + timeout_s

    async def rollback(self, timeout_s: float) -> None:
        """Have no message stored. May be called again.

        Raises:
            TransactionRefused: It is committed.
            TransactionInDoubt: The broker could not be asked, and it may be committed.
        """
        if self._stage in {_Stage.ROLLED_BACK, _Stage.GIVEN_UP}:
            self._take_given_up()
            return
        with self._ending(_Stage.OPEN, _Stage.PREPARED, _Stage.IN_DOUBT):
            if self._single is not None:
                await self._store(self._single, self._until(timeout_s))
                raise TransactionRefused(f"transaction {self.number} is committed")
            if self._has_offsets_alone:
                await self._take_away()
            if self._requests:
                request = self._requests.make(TransactionState.ROLLED_BACK)
                deadline = self._until(timeout_s)
                if self._prepares and self._requests.are_answered:
                    await self._decide_prepared(request, deadline)
                else:
                    await self._decide(request, b"", deadline)
            self._roll_back(NotSent("its transaction was rolled back"))

    @property
    def _has_offsets_alone(self) -> bool:
        """Whether it was sent, or may have been, and has offsets and no messages."""
        moving = self._moving
        return moving is not None and moving.node is not None and not self._requests

    async def _take_away(self) -> None:
        """See to it that offsets alone, which may be committed, are not.

        Raises:
            TransactionRefused: They are.
            TransactionInDoubt: ZooKeeper does not say so.
        """
        assert self._moving is not None
        assert self._moving.node is not None
        node = self._moving.node
        try:
            committed = await take_away(self.producer.cluster.coordinator, node, self.number)
        except VqError as error:
            raise self._in_doubt(error) from error
        if committed:
            self._end(_Stage.COMMITTED)
            raise TransactionRefused(f"transaction {self.number} is committed")

    async def outcome(self, timeout_s: float) -> TransactionState:
        """Return what became of it, as its journal knows.

        Raises:
            VqError: That cannot be told now.
        """
        if self._stage is _Stage.COMMITTED:
            return TransactionState.COMMITTED
        if self._stage is _Stage.ROLLED_BACK:
            return TransactionState.ROLLED_BACK
        if self._single is not None or self._has_offsets_alone:  # to ask is to send it again
            with contextlib.suppress(Refused):
                await self.commit(timeout_s)
            return await self.outcome(timeout_s)
        if not self._requests:
            return TransactionState.OPEN
        request = self._requests.make(TransactionState.UNKNOWN)
        answer = await self._requests.ask(request, b"", self._until(timeout_s))
        return TransactionState(answer.state)

    @contextlib.contextmanager
    def _ending(self, *stages: _Stage) -> Iterator[None]:
        """End it, from one of some stages; if that is interrupted it is in doubt.

        Raises:
            InvalidState: It is not in one of these.
        """
        with self._lock:
            before = self._stage
            if before is _Stage.GIVEN_UP:
                raise self._take_given_up()
            if before not in stages:
                kind = TransactionRefused if before is _Stage.COMMITTED else InvalidState
                raise kind(f"the transaction is {before.value}")
            self._stage = _Stage.ENDING
        if before is _Stage.OPEN:
            self.producer.ended(self)
        try:
            yield
        finally:
            if self._stage is _Stage.ENDING:
                self._in_doubt(OutcomeUnknown("its end was interrupted"))

    def _take_given_up(self) -> VqError:
        """Have its thread, or task, know that it was given up; return why it was."""
        self._stage = _Stage.ROLLED_BACK
        self.producer.ended(self)
        return self._given_up or InvalidState("the transaction is rolled back")

    async def _commit(self, deadline: float) -> list[SendResult]:
        clock = self.producer.cluster.clock
        if self._moving is None:
            await self.producer.until_told(deadline)
        else:
            return await self._commit_with(self._moving, deadline)
        if not self._requests and self._single is None:
            if not self._collected.messages and self.xid is None:
                self._end(_Stage.COMMITTED)
                return []
            await self._make_requests()
        if self._single is not None:
            return await self._store(self._single, deadline)
        answer = await self._send_all(deadline)
        if self._prepares:
            request = self._requests.make(TransactionState.COMMITTED)
            answer = await self._decide_prepared(request, deadline)
        while not answer.stored and clock.monotonic() + 1 < deadline:
            try:
                request = self._requests.make(TransactionState.COMMITTED)
                answer = await self._requests.ask(request, b"", deadline)
            except VqError:
                break  # it is committed: where its messages are is not known
        return self._committed(list(answer.offsets))

    # With offsets ---------------------------------------------------------------------------------
    async def _commit_with(self, moving: Moving, deadline: float) -> list[SendResult]:
        """Commit it together with offsets: what ZooKeeper has taken is committed."""
        if moving.node is None:
            self._prepares = self._collected.messages > 0
            await self._make_requests()
        node = moving.node
        assert node is not None
        if self._requests:
            try:
                await self._send_all(deadline)
            except VqError:
                if self._stage is _Stage.ROLLED_BACK:  # it was not prepared, so nobody has the node
                    self.producer.nodes.give_back(node)
                raise
        before, self._may_be_decided = self._may_be_decided, True
        try:
            await moving.offsets.commit(node, self.number, deadline)
        except DecisionOvertaken as error:
            await self._was_overtaken(error, deadline, was_sent=before)
        except OutcomeUnknown as error:
            raise self._in_doubt(error) from error
        except VqError as error:
            self._may_be_decided = False
            if self._requests:
                request = self._requests.make(TransactionState.ROLLED_BACK)
                with contextlib.suppress(VqError):  # otherwise the journal finds out by itself
                    await self._requests.ask(request, b"", min(deadline, self._until(_TOLD_S)))
            else:
                await self.producer.nodes.refused(node, was_tried=moving.offsets.was_tried)
            self._roll_back(error)
            raise
        self._may_be_decided = False
        if not self._requests:
            self.producer.nodes.give_back(node.used)
            return self._committed([])
        await self.producer.until_told(deadline)  # what was committed before is stored before
        results = self._committed([])
        moving.telling = self.producer.telling = begin_task(self._tell(node, self.producer.telling))
        return results

    async def _tell(self, node: DecisionNode, before: "asyncio.Task[None] | None") -> None:
        """Tell the journal that it is committed; learn where its messages are.

        The one before is told first: so what is committed later is stored later.
        """
        if before is not None:
            await asyncio.wait([before])
        deadline = self._until(self.producer.config.send_timeout_s)
        is_told = False
        with contextlib.suppress(VqError):  # the journal finds out by itself
            while True:
                request = self._requests.make(TransactionState.COMMITTED)
                answer = await self._requests.ask(request, b"", deadline)
                if not is_told:
                    self.producer.nodes.give_back(node.used)
                is_told = True
                self._results = self._collected.results(list(answer.offsets))
                if answer.stored or self.producer.cluster.clock.monotonic() + 1 >= deadline:
                    break

    async def _was_overtaken(
        self, error: DecisionOvertaken, deadline: float, *, was_sent: bool
    ) -> None:
        """Return if it is committed after all; somebody has taken its decision away, or used it.

        Raises:
            TransactionInDoubt: Nobody could be asked.
            TransactionRefused: It is rolled back.
        """
        if self._requests:
            request = self._requests.make(TransactionState.ROLLED_BACK)
            try:
                answer = await self._requests.ask(request, b"", deadline)
            except VqError as refused:
                if refused.details.get("state") == TransactionState.COMMITTED:
                    return
                raise self._in_doubt(refused) from refused
            by = f" by {answer.by}" if answer.by else ""
        elif was_sent:
            raise self._in_doubt(error) from error
        else:
            by = ""
        self._may_be_decided = False
        rolled_back = TransactionRefused(
            f"transaction {self.number} is rolled back{by}, with its offsets"
        )
        self._roll_back(rolled_back)
        raise rolled_back from error

    async def _send_all(self, deadline: float) -> TransactResponse:
        """Send the requests that were made, the last of which commits or prepares.

        Returns:
            The answer to the last one; an empty one if that was answered before.

        Raises:
            TransactionInDoubt: It is unknown whether the last one was carried out.
            VqError: It was not; the transaction is rolled back.
        """
        while True:
            try:
                await self._requests.send_first_ones(deadline)
                break
            except VqError as error:
                if self._takes_another_number(error):
                    continue
                # Nothing was decided, and nobody will decide but the time-out.
                refused = error
                if isinstance(error, OutcomeUnknown):
                    refused = NotSent(f"the transaction could not be committed: {error}")
                    refused.__cause__ = error
                self._roll_back(refused)
                raise refused from None
        if self._prepares and self._requests.are_answered:
            return TransactResponse()
        answer = await self._decide(*self._requests.last, deadline)
        if self._prepares:
            self._requests.sent += 1
        return answer

    async def _make_requests(self, checks: TransactionChecks | None = None) -> None:
        """Give it a number, and a journal and requests, or what needs none.

        Raises:
            VqError: That cannot be done; the transaction is rolled back.
        """
        try:
            if self.producer.cluster.clock.monotonic() >= self.ends_at:
                raise TransactionRefused(self._late())
            if not self.number:
                (self.number,) = self.producer.cluster.take_ids(1)
            if checks is not None:
                self._check_half()
            journal, node = None, None
            if self._moving is not None:
                journal = await self.producer.journal_of(self._collected.first, has_offsets=True)
                node = self._moving.node = await self.producer.nodes.take(journal.partition)
                if not self._collected.messages:
                    return
            needs_journal = self._prepares or self.xid is not None
            only = None if needs_journal else self._collected.only_part()
            if only is not None and self.producer.config.transactional_id is None:
                self._single = SinglePart(self.producer.lines, self.number, *only)
                return
            if journal is None:
                journal = await self.producer.journal_of(self._collected.first, self.xid)
        except VqError as error:
            self._roll_back(error)
            raise
        last = TransactionState.PREPARED if self._prepares else TransactionState.COMMITTED
        given = self._collected.requests() or [([], b"")]
        self._requests.begin(journal, self.number, given, last, checks=checks, node=node)

    def _check_half(self) -> None:
        size = self._collected.size
        if size > limits.TRANSACT_BYTES_MAX:
            raise BatchTooLarge(
                f"a half message of {size} bytes; all its messages are shown to a listener "
                f"together, so {limits.TRANSACT_BYTES_MAX} are allowed",
                hint="send fewer messages together, or use a transaction",
            )

    async def _decide(
        self, request: TransactRequest, body: bytes, deadline: float
    ) -> TransactResponse:
        """Send a request that decides.

        Raises:
            TransactionInDoubt: It is unknown whether it was carried out.
            VqError: It was not; the transaction is rolled back, or committed if it should be not.
        """
        before, self._may_be_decided = self._may_be_decided, True
        while True:
            try:
                answer = await self._requests.ask(request, body, deadline)
                break
            except OutcomeUnknown as error:
                raise self._in_doubt(error) from error
            except VqError as error:
                if not before and self._takes_another_number(error):
                    continue
                if before and not _tells_the_end(error):
                    raise self._in_doubt(error) from error
                self._may_be_decided = False
                if isinstance(error, ProducerFenced):
                    self.producer.id.fence(error)
                if error.details.get("state") == TransactionState.COMMITTED:
                    self._end(_Stage.COMMITTED)
                    raise
                self._roll_back(error)
                raise
        self._may_be_decided = False
        return answer

    def _takes_another_number(self, error: VqError) -> bool:
        """Whether a broker knows its number as another user's, and it begins with another one.

        Numbers can be foreseen. Whoever uses this one was first: no request of this transaction was
        carried out.
        """
        is_taken = isinstance(error, NotAuthorized) and error.details.get("number") == self.number
        if not is_taken or self._requests.sent or not self._numbers_left:
            return False
        self._numbers_left -= 1
        try:
            self.number = self.producer.cluster.take_unforeseen_id()
        except VqError:
            return False
        self._requests.renumber(self.number)
        return True

    async def _decide_prepared(self, request: TransactRequest, deadline: float) -> TransactResponse:
        """Send the decision on what is prepared; whatever hinders that, it stays prepared.

        Raises:
            TransactionInDoubt: It is unknown whether it was carried out.
            TransactionRefused: It was decided in another way.
            VqError: It was not carried out.
        """
        before, self._may_be_decided = self._may_be_decided, True
        try:
            answer = await self._requests.ask(request, b"", deadline)
        except OutcomeUnknown as error:
            raise self._in_doubt(error) from error
        except VqError as error:
            state = error.details.get("state")
            if isinstance(error, ProducerFenced):
                self.producer.id.fence(error)
            if isinstance(error, TransactionRefused) and state == TransactionState.COMMITTED:
                self._end(_Stage.COMMITTED)
            elif isinstance(error, TransactionRefused) and state == TransactionState.ROLLED_BACK:
                self._roll_back(error)
            elif before:
                raise self._in_doubt(error) from error
            else:
                self._may_be_decided = False
                self._stage = _Stage.PREPARED
            raise
        self._may_be_decided = False
        return answer

    async def _store(self, single: SinglePart, deadline: float) -> list[SendResult]:
        """Store what needs no journal.

        Raises:
            TransactionInDoubt: It is unknown whether it is stored.
            VqError: It is not.
        """
        while True:
            try:
                return self._committed([await single.commit(deadline)])
            except OutcomeUnknown as error:
                raise self._in_doubt(error) from error
            except VqError as error:
                if not self._takes_another_number(error):
                    self._roll_back(error)
                    raise
                single.renumber(self.number)

    def _committed(self, offsets: list[int]) -> list[SendResult]:
        self._results = self._collected.results(offsets)
        self._end(_Stage.COMMITTED)
        self._collected.succeed(self._results)
        return self._results

    def _in_doubt(self, error: VqError) -> TransactionInDoubt:
        self._stage = _Stage.IN_DOUBT
        is_decided = not self._prepares or self._requests.are_answered
        what = "committed" if is_decided else "prepared"
        details: dict[str, int | str] = {"transaction": self.number}
        named = ""
        if self.xid is not None:
            details["xid"], named = self.xid.text, f", xid {self.xid.text},"
        doubt = TransactionInDoubt(
            f"it is unknown whether transaction {self.number}{named} is {what}: {error}",
            details=details,
        )
        self._collected.fail(doubt)
        self.producer.known(self)  # who wants to know what became of it keeps it
        return doubt

    def _end(self, stage: _Stage) -> None:
        self._stage = stage
        self.producer.known(self)
        if self._moving is not None:
            self._moving.offsets.ended(committed=stage is _Stage.COMMITTED)
        self._requests.clear()  # whoever keeps it keeps no second copy of its messages

    def give_up(self, why: str, *, ending: bool) -> int:
        """See ``Transactions.give_up``; return how many messages are rolled back."""
        rolled_back = NotSent(f"{why}; its transaction is rolled back")
        if self._end_open(rolled_back, _Stage.GIVEN_UP):
            return self._collected.messages
        if ending or self._stage in {_Stage.PREPARED, _Stage.IN_DOUBT}:
            self._collected.fail(TransactionInDoubt(f"{why}: its transaction may be committed"))
        return 0

    def give_up_late(self, now: float) -> bool:
        """Give it up if its time is over; whether it is."""
        is_late = now >= self.ends_at
        if is_late:
            self._end_open(TransactionRefused(self._late()), _Stage.GIVEN_UP)
        return is_late

    def _end_open(self, error: VqError, stage: _Stage) -> bool:
        with self._lock:
            if self._stage is not _Stage.OPEN:
                return False
            self._given_up = error
            self._end(stage)
        self._collected.fail(error)
        return True

    def let_go(self) -> None:
        """Keep nothing of what is prepared, or in doubt: others learn what becomes of it."""
        self.producer.known(self)
        doubt = TransactionInDoubt(
            f"it is unknown whether transaction {self.number} is committed: a check tells",
            details={"transaction": self.number},
        )
        self._collected.fail(doubt)
        self._requests.clear()

    def give_up_open(self, why: str) -> None:
        """Roll it back if it is open: its thread, or task, sends nothing to it. Any thread."""
        error = NotSent(f"{why}; its transaction is rolled back")
        if self._end_open(error, _Stage.ROLLED_BACK):
            self.producer.ended(self)

    def abandon_in_child(self, why: str) -> None:
        """See ``Transactions.abandon_in_child``; it takes no lock."""
        self._collected.abandon(InvalidState(why))

    def _roll_back(self, error: VqError) -> None:
        self._end(_Stage.ROLLED_BACK)
        self._collected.fail(error if isinstance(error, Refused) else NotSent(str(error)))


def _tells_the_end(error: VqError) -> bool:
    """Whether a refusal says what became of a request that was sent before and got no answer."""
    ended = isinstance(error, TransactionRefused | ProducerFenced)
    return ended and error.details.get("state") not in _MAY_COMMIT


_CURRENT: ContextVar[tuple[TransactionCore, ...]] = ContextVar("vq_transactions", default=())
