"""Branches of transactions that wait in a database for a decision: found, asked for, and ended.

A program that ended between the decision in vq's journal and the commit in a database leaves a
branch there that is prepared. Its name says which transaction of which journal decides. The journal
is asked, and what it does not know any more was not committed: a commit is kept until all databases
know it. Only branches of this cluster are looked at.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from vq.bounds import check_whole
from vq.branches import FORMAT_ID, FoundBranch, found_in, prepared_in
from vq.client.asking import ask_master
from vq.client.cluster import ClusterClient
from vq.client.producer.spread.partitioner import key_partition
from vq.errors import (
    BranchesLeft,
    InvalidArgument,
    TransactionInDoubt,
    TransactionRefused,
    VqError,
)
from vq.model import TopicPartition, TransactionState, Xid, time_ms_of
from vq.offset_stores.sql import engine_of
from vq.operations.base.acts import audited
from vq.operations.messages.transactions import (
    DECIDE_S,
    forget_transaction,
    list_transactions,
)
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import TransactRequest, TransactResponse
from vq.reserved import TRANSACTIONS_TOPIC

T = TypeVar("T")

#: A branch that is younger waits: its program may be about to decide. The journal takes a number
#: for new for so long, too.
WAIT_S: Final = 300
#: Who decides for a program that is gone.
_BY: Final = "vq tx recover"
#: Bound of a connection to a database, and of each of its statements.
_DATABASE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class WaitingBranch:
    """A part of a transaction that is prepared, and what is to become of it.

    Attributes:
        transaction: The number in vq's journal.
        xid: Its name, as vq writes it.
        database: Where it is, without a password; None: in vq's journal itself.
        begun_ms: When the transaction was begun, in ms since 1970.
        state: What the journal says.
        end: ``commit``, ``rollback``, or ``wait``: it is young, and its program may go on.
        done: That was done.
    """

    transaction: int
    xid: str
    database: str | None
    begun_ms: int
    state: TransactionState
    end: str
    done: bool = False


async def list_branches(
    cluster: ClusterClient, database: str, *, older_than_s: int = WAIT_S
) -> list[WaitingBranch]:
    """Return what is prepared in a database for transactions of this cluster, and what comes next.

    Also transactions that such a program has prepared in vq's journal and not decided.

    Args:
        database: A URL of SQLAlchemy, such as ``postgresql://user@host/shop``; psycopg and PyMySQL
            are taken if it names no driver. Of PostgreSQL, it is about that database alone.
        older_than_s: What is not decided and began later waits, by this machine's clock.

    Raises:
        InvalidArgument: The URL is none, or its database has no two phases.
        BranchesLeft: The database cannot be asked.
        VqError: The journal does not answer.
    """
    return await _recover(cluster, database, older_than_s, acts=False)


@audited()
async def recover_branches(
    cluster: ClusterClient, database: str, *, older_than_s: int = WAIT_S
) -> list[WaitingBranch]:
    """End what is prepared in a database for transactions of this cluster, as the journal says.

    What is not decided is rolled back, in the journal first: a program that is still there is told.
    A decision that all databases know by then is forgotten. Arguments: see ``list_branches``.

    Raises:
        TransactionInDoubt: The journal did not answer in time; nothing more was ended.
        BranchesLeft: The database refused; it may be called again.
        VqError: See ``list_branches``.
    """
    return await _recover(cluster, database, older_than_s, acts=True)


async def _recover(
    cluster: ClusterClient, database: str, older_than_s: int, *, acts: bool
) -> list[WaitingBranch]:
    check_whole("older_than_s", older_than_s)
    if older_than_s < 0:
        raise InvalidArgument(f"older_than_s = {older_than_s} is negative; give 0 or more")
    engine = engine_of(database, _DATABASE_S)
    shown = engine.url.render_as_string(hide_password=True)
    before_ms = cluster.clock.wall_ms() - older_than_s * 1_000
    journal_id, _ = await _journals(cluster)
    raw: Any = None
    try:
        raw = await _in_thread(engine.raw_connection)
        connection = raw.driver_connection
        found: list[WaitingBranch] = []
        ended: dict[int, list[FoundBranch]] = {}
        for each in await _in_thread(lambda: prepared_in(connection)):
            branch = found_in(each.xid, journal_id)
            if branch is None:
                continue
            number = branch.number
            state, end = await _decision(cluster, each.xid, number, before_ms, acts=acts)
            done = acts and end != "wait"
            if done:
                await _in_thread(each.commit if end == "commit" else each.rollback)
                ended.setdefault(number, []).append(branch)
            begun_ms = time_ms_of(number)
            found.append(WaitingBranch(number, each.xid.text, shown, begun_ms, state, end, done))
    finally:
        if raw is not None:
            await _in_thread(raw.close)
        engine.dispose()
    found += await _undecided(cluster, journal_id, before_ms, acts=acts)
    for number, branches in ended.items():
        if len(branches) == branches[0].among:
            await forget_transaction(cluster, number)
    return sorted(found, key=lambda each: each.transaction)


async def _undecided(
    cluster: ClusterClient, journal_id: str, before_ms: int, *, acts: bool
) -> list[WaitingBranch]:
    """Return what waits in the journal itself for a program that is gone."""
    found: list[WaitingBranch] = []
    for each in await list_transactions(cluster):
        xid = Xid.of(each.xid or "")
        is_ours = xid.format_id == FORMAT_ID and xid.gtrid == f"{journal_id}.{each.number}"
        if not is_ours or each.state is not TransactionState.PREPARED:
            continue
        state, end = await _decision(cluster, xid, each.number, before_ms, acts=acts)
        done = acts and end != "wait"
        begun_ms = time_ms_of(each.number)
        found.append(WaitingBranch(each.number, xid.text, None, begun_ms, state, end, done))
    return found


async def _decision(
    cluster: ClusterClient, xid: Xid, number: int, before_ms: int, *, acts: bool
) -> tuple[TransactionState, str]:
    """Return what the journal says of a transaction, and what that means for its branches.

    With ``acts``, what is old and not decided is rolled back there first.
    """
    state = TransactionState((await _ask(cluster, xid, number, TransactionState.UNKNOWN)).state)
    if state is TransactionState.COMMITTED:
        return state, "commit"
    if state is TransactionState.ROLLED_BACK:
        return state, "rollback"
    if time_ms_of(number) > before_ms:
        return state, "wait"
    if not acts:
        return state, "rollback"
    try:
        await _ask(cluster, xid, number, TransactionState.ROLLED_BACK)
    except TransactionRefused as error:
        told = error.details.get("state")
        if told == TransactionState.COMMITTED:
            return TransactionState.COMMITTED, "commit"
        if told != TransactionState.UNKNOWN:  # that says: too old to be committed by anyone
            raise
        return TransactionState.UNKNOWN, "rollback"
    return TransactionState.ROLLED_BACK, "rollback"


async def _ask(
    cluster: ClusterClient, xid: Xid, number: int, state: TransactionState
) -> TransactResponse:
    _, count = await _journals(cluster)
    request = TransactRequest(
        topic=TRANSACTIONS_TOPIC,
        partition=key_partition(xid.gtrid, count),
        transaction=number,
        state=int(state),
        by=_BY,
    )
    journal = TopicPartition(TRANSACTIONS_TOPIC, request.partition)
    what = f"what became of transaction {number}"
    deadline = cluster.clock.monotonic() + DECIDE_S
    try:
        answer: TransactResponse = await ask_master(
            cluster, journal, Command.TRANSACT, request, deadline=deadline, what=what
        )
    except VqError as error:
        if isinstance(error, TransactionRefused):
            raise
        raise TransactionInDoubt(f"{what} is not known: {error}") from error
    return answer


async def _journals(cluster: ClusterClient) -> tuple[str, int]:
    """Return the id of the topic of transactions, and how many partitions it has."""
    topic = (await cluster.track_internal(TRANSACTIONS_TOPIC)).topic(TRANSACTIONS_TOPIC)
    return topic.id, len(topic.partitions)


async def _in_thread(work: Callable[[], T]) -> T:
    """Have a thread do what waits for a database.

    Raises:
        BranchesLeft: The database refuses, or does not answer.
    """
    try:
        return await asyncio.to_thread(work)
    except VqError:
        raise
    except Exception as error:  # drivers raise what they like
        raise BranchesLeft(
            f"the database: {type(error).__name__}: {error}",
            hint="`vq doctor --database URL` looks at it; run this again when it answers",
        ) from error
