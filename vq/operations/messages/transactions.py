"""Transactions: which there are, what became of them, and decisions of an operator.

Loop-bound functions on a ``ClusterClient``. The masters of the journal are asked: each knows those
of its partition. What is refused here is refused there, by the rules that hold for producers.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, NoReturn

from vq.bounds import check_between, check_whole
from vq.client.asking import ask_for_body, ask_master
from vq.client.cluster import ClusterClient
from vq.client.producer.transaction.waiting import waiting_messages
from vq.coordination.tree.reading import gather_all
from vq.errors import (
    InvalidArgument,
    OutcomeUnknown,
    TransactionInDoubt,
    TransactionRefused,
    UnknownTopic,
    VqError,
)
from vq.model import Message, TopicPartition, TransactionState, check_timeout
from vq.operations.base.acts import audited
from vq.operations.base.who import who
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import (
    CheckRequest,
    TransactionCheckStatus,
    TransactionsRequest,
    TransactionStatus,
    TransactRequest,
)
from vq.reserved import TRANSACTIONS_TOPIC

#: How long the masters of the journal are asked what there is, in seconds, and for a decision.
ASK_S: Final = 10.0
DECIDE_S: Final = 30.0
#: Of that time, a master may wait so much until all of a transaction is stored.
_WAIT_SHARE: Final = 0.5
#: Transactions that one answer has at most.
_PAGE: Final = 1_000
_NUMBER_MAX: Final = 2**63 - 1
_NEXT: Final = {TransactionState.OPEN: "time-out", TransactionState.PREPARED: "decision"}


@dataclass(frozen=True, slots=True)
class PartOfTransaction:
    """What a transaction has for one partition.

    Attributes:
        topic, partition: Where it goes.
        messages: How many.
        size_bytes: How long their records are.
        stored: They are in the partition, or that is gone.
        offset: Of the first of them; None: it is not stored, or not known.
    """

    topic: str
    partition: int
    messages: int
    size_bytes: int
    stored: bool
    offset: int | None


@dataclass(frozen=True, slots=True)
class TransactionChecking:
    """How producers are asked what is to become of a half message.

    Attributes:
        group: The producer group.
        sent: Checks that a producer got.
        most: So many are sent.
        next_ms: When the next one is due, in milliseconds since 1970; None: none is.
        parked: All were sent, and the last one had its time: an operator is to decide.
    """

    group: str
    sent: int
    most: int
    next_ms: int | None
    parked: bool


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transaction, as its journal tells it. Times are in milliseconds since 1970.

    Attributes:
        number: Its number.
        journal: The partition of the journal in which it is decided.
        state: What it is.
        owner: The transactional id of its producer; None: that has none.
        owner_epoch: Which producer with that id: it rises with each; 0: it has none.
        xid: Its name in other resources; None: it has none.
        begun_ms: When its first request came.
        ends_ms: When it is rolled back if it is still open; None: only a decision ends it.
        decided_ms: When it was decided; None: it is not.
        by: Who has decided, if it was not its producer.
        kept: Its decision is kept until it is forgotten.
        parts: What it has for each partition; of one that has ended, too.
        checks: Of a half message; None: it is none.
    """

    number: int
    journal: int
    state: TransactionState
    owner: str | None
    owner_epoch: int
    xid: str | None
    begun_ms: int
    ends_ms: int | None
    decided_ms: int | None
    by: str | None
    kept: bool
    parts: tuple[PartOfTransaction, ...]
    checks: TransactionChecking | None = None

    @property
    def messages(self) -> int:
        """How many messages it has."""
        return sum(each.messages for each in self.parts)

    @property
    def size_bytes(self) -> int:
        """How long their records are."""
        return sum(each.size_bytes for each in self.parts)

    @property
    def next(self) -> str:
        """What comes next: ``time-out``, ``decision``, ``storing``, ``forget`` or ``nothing``."""
        if self.state in _NEXT:
            return _NEXT[self.state]
        if self.state is TransactionState.COMMITTED and not self.stored:
            return "storing"
        return "forget" if self.kept else "nothing"

    @property
    def stored(self) -> bool:
        """Whether it is committed, and all of it is stored."""
        is_committed = self.state is TransactionState.COMMITTED
        return is_committed and all(each.stored for each in self.parts)


@dataclass(frozen=True, slots=True)
class TransactionDecision:
    """What became of a transaction that was to be decided.

    Attributes:
        number: Its number.
        state: What it is now.
        by: Who has decided, if it was not its producer.
        stored: It is committed, and all of it is stored.
    """

    number: int
    state: TransactionState
    by: str | None
    stored: bool


async def list_transactions(
    cluster: ClusterClient, *, ended: bool = False, kept: bool = False, older_than_s: int = 0
) -> list[TransactionDescription]:
    """Return the transactions that have not ended, in the order of their numbers, so of their ages.

    One has ended if it is rolled back, or committed and all of it is stored.

    Args:
        ended: Also the last ones that have ended: each of the journals remembers up to 1,000.
        kept: Also those whose decision is kept until it is forgotten.
        older_than_s: Only those that began so long ago, by this machine's clock.

    Raises:
        InvalidArgument: ``older_than_s`` is no whole number from 0 on.
        VqError: The master of a partition of the journal does not answer.
    """
    found, silent = await look_at_journals(
        cluster, ended=ended, kept=kept, older_than_s=older_than_s
    )
    if silent:
        raise silent[0]
    return found


async def look_at_journals(
    cluster: ClusterClient, *, ended: bool, kept: bool, older_than_s: int
) -> tuple[list[TransactionDescription], list[VqError]]:
    """Return the transactions of the journals that answer, and why the others do not.

    Arguments and order: see ``list_transactions``.
    """
    check_whole("older_than_s", older_than_s)
    if older_than_s < 0:
        raise InvalidArgument(f"older_than_s = {older_than_s} is negative; give 0 or more")
    before_ms = cluster.clock.wall_ms() - older_than_s * 1_000
    journals = await _journals(cluster)
    answers = await gather_all(
        _told(_of(cluster, each, ended=ended, kept=kept)) for each in journals
    )
    found = sorted(
        (
            each
            for told, _ in answers
            for each in told
            if not older_than_s or each.begun_ms <= before_ms
        ),
        key=lambda each: each.number,
    )
    return found, [error for _, error in answers if error is not None]


async def _told(
    asking: Awaitable[list[TransactionDescription]],
) -> tuple[list[TransactionDescription], VqError | None]:
    """Return what a journal tells, or why it does not. ``gather_all`` would raise a bare error."""
    try:
        return await asking, None
    except VqError as error:
        return [], error


async def describe_transaction(cluster: ClusterClient, number: int) -> TransactionDescription:
    """Return a transaction, also one of the last that have ended.

    Raises:
        TransactionRefused: No journal tells of it: it was never begun, or it ended long ago.
        VqError: The master of a partition of the journal does not answer, and it may be there.
    """
    check_between("number", number, 1, _NUMBER_MAX)
    journals = await _journals(cluster)
    silent: VqError | None = None
    for told, error in await gather_all(
        _told(_of(cluster, each, ended=True, after=number - 1, count=1)) for each in journals
    ):
        if told and told[0].number == number:
            return told[0]
        silent = silent or error
    if silent is not None:
        raise silent
    raise TransactionRefused(
        f"transaction {number}: none of the {len(journals)} journals knows it; it was never begun, "
        "or it ended, and each of them remembers the last 1,000 that did",
        hint="`vq tx list --ended --kept` shows those that are known",
    )


async def read_transaction(cluster: ClusterClient, number: int) -> list[Message]:
    """Return the messages of a transaction that wait, in the order of the sends.

    They have no offset yet. A delayed message has the topic to which it goes, and when.

    Args:
        number: Of the transaction.

    Raises:
        TransactionRefused: All of it is stored, or it is rolled back; or it has more than 3.5 MiB;
            or it is not known.
        VqError: The journal does not answer.
    """
    found = await describe_transaction(cluster, number)
    if not found.messages:
        return []
    request = TransactionsRequest(
        topic=TRANSACTIONS_TOPIC,
        partition=found.journal,
        after=number - 1,
        max_count=1,
        ended=True,
        kept=True,
        messages=True,
    )
    answer, body = await ask_for_body(
        cluster,
        TopicPartition(TRANSACTIONS_TOPIC, found.journal),
        Command.TRANSACTIONS,
        request,
        deadline=cluster.clock.monotonic() + ASK_S,
        what="what the messages of a transaction are",
    )
    return waiting_messages(answer.transactions[0].parts, body)


@audited()
async def commit_transaction(
    cluster: ClusterClient, number: int, *, timeout: float = DECIDE_S
) -> TransactionDecision:
    """Commit a transaction that is prepared; once more if it is committed: that changes nothing.

    Who did it is kept with it. Another resource that has a part in the transaction is not told.

    Args:
        number: Of the transaction.
        timeout: How long to ask its journal, in seconds.

    Raises:
        TransactionRefused: It is open: its producer may still send messages of it. Or it is rolled
            back, or not known.
        TransactionInDoubt: The journal did not answer in time.
        VqError: The journal cannot be asked; nothing was decided.
    """
    return await _decide(cluster, number, TransactionState.COMMITTED, timeout)


@audited()
async def roll_back_transaction(
    cluster: ClusterClient, number: int, *, timeout: float = DECIDE_S
) -> TransactionDecision:
    """Roll back a transaction that is open or prepared; its producer is told when it goes on.

    Args:
        number: Of the transaction.
        timeout: How long to ask its journal, in seconds.

    Raises:
        TransactionRefused: It is committed, or not known.
        TransactionInDoubt: The journal did not answer in time.
        VqError: The journal cannot be asked; nothing was decided.
    """
    return await _decide(cluster, number, TransactionState.ROLLED_BACK, timeout)


@audited()
async def forget_transaction(
    cluster: ClusterClient, number: int, *, timeout: float = DECIDE_S
) -> TransactionDecision:
    """Have a decision kept no longer; once more changes nothing.

    A decision is kept if an operator made it on a transaction that was prepared, or if databases
    follow it. Forget it once its producer, or all its databases, know it: who asks later is told
    that nobody knows the transaction, and takes it for rolled back.

    Args:
        number: Of the transaction.
        timeout: How long to ask its journal, in seconds.

    Raises:
        TransactionRefused: It is not decided, or not known.
        TransactionInDoubt: The journal did not answer in time.
        VqError: The journal cannot be asked; nothing has changed.
    """
    return await _decide(cluster, number, TransactionState.FORGOTTEN, timeout)


@audited()
async def check_transaction(cluster: ClusterClient, number: int) -> None:
    """Have producers asked about a half message from now on, as if nobody had been asked yet.

    Args:
        number: Of its transaction; it is parked, or has checks left.

    Raises:
        TransactionRefused: It has ended, is no half message, or is not known.
        VqError: The journal cannot be asked, or has not answered: ask again.
    """
    found = await describe_transaction(cluster, number)
    request = CheckRequest(topic=TRANSACTIONS_TOPIC, partition=found.journal, again=number)
    await ask_master(
        cluster,
        TopicPartition(TRANSACTIONS_TOPIC, found.journal),
        Command.CHECK,
        request,
        deadline=cluster.clock.monotonic() + ASK_S,
        what=f"whether transaction {number} is checked again",
    )


async def _decide(
    cluster: ClusterClient, number: int, state: TransactionState, timeout: float
) -> TransactionDecision:
    bound = check_timeout(timeout)
    deadline = cluster.clock.monotonic() + bound
    found = await describe_transaction(cluster, number)
    request = TransactRequest(
        topic=TRANSACTIONS_TOPIC,
        partition=found.journal,
        transaction=number,
        state=int(state),
        by=who(),
        max_wait_ms=int(min(bound, cluster.config.request_timeout_s) * 1_000 * _WAIT_SHARE),
    )
    try:
        answer = await ask_master(
            cluster,
            TopicPartition(TRANSACTIONS_TOPIC, found.journal),
            Command.TRANSACT,
            request,
            deadline=deadline,
            what=f"whether transaction {number} is {state.word}",
        )
    except OutcomeUnknown as error:
        _doubt(number, state, error)
    return TransactionDecision(
        number, TransactionState(answer.state), answer.by or None, answer.stored
    )


def _doubt(number: int, state: TransactionState, error: VqError) -> NoReturn:
    raise TransactionInDoubt(
        f"it is unknown whether transaction {number} is {state.word}: {error}",
        hint="ask again, or look with `vq tx show`",
        details={"transaction": number},
    ) from error


async def _journals(cluster: ClusterClient) -> list[TopicPartition]:
    """Return the partitions of the journal; none if nobody has ever begun a transaction."""
    try:
        routes = await cluster.track(TRANSACTIONS_TOPIC)
    except UnknownTopic:
        return []
    count = len(routes.topic(TRANSACTIONS_TOPIC).partitions)
    return [TopicPartition(TRANSACTIONS_TOPIC, each) for each in range(count)]


async def _of(
    cluster: ClusterClient,
    journal: TopicPartition,
    *,
    ended: bool,
    kept: bool = False,
    after: int = 0,
    count: int = 0,
) -> list[TransactionDescription]:
    """Return the transactions of a journal with numbers above one; ``count``: so many, 0: all."""
    found: list[TransactionDescription] = []
    deadline = cluster.clock.monotonic() + ASK_S
    while True:
        request = TransactionsRequest(
            topic=journal.topic,
            partition=journal.partition,
            after=found[-1].number if found else after,
            max_count=count or _PAGE,
            ended=ended,
            kept=kept,
        )
        answer = await ask_master(
            cluster,
            journal,
            Command.TRANSACTIONS,
            request,
            deadline=deadline,
            what="what its transactions are",
        )
        found += [_description(journal.partition, each) for each in answer.transactions]
        if count or not answer.more or not answer.transactions:
            return found


def _description(journal: int, told: TransactionStatus) -> TransactionDescription:
    return TransactionDescription(
        number=told.transaction,
        journal=journal,
        state=TransactionState(told.state),
        owner=told.client or None,
        owner_epoch=told.client_epoch,
        xid=told.xid or None,
        begun_ms=told.begun_ms,
        ends_ms=told.ends_ms or None,
        decided_ms=told.decided_ms or None,
        by=told.by or None,
        kept=told.kept,
        parts=tuple(
            PartOfTransaction(
                topic=part.topic,
                partition=part.partition,
                messages=part.messages,
                size_bytes=part.size,
                stored=part.stored,
                offset=None if part.offset < 0 else part.offset,
            )
            for part in told.parts
        ),
        checks=_checking(told.checks) if told.HasField("checks") else None,
    )


def _checking(told: TransactionCheckStatus) -> TransactionChecking:
    next_ms = None if told.parked or not told.next_ms else told.next_ms
    return TransactionChecking(told.group, told.sent, told.most, next_ms, told.parked)
