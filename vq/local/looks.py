"""What a local queue tells of its messages without giving them; and moving or dropping many."""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from vq.bounds import check_between, check_whole
from vq.errors import CorruptData, InvalidArgument
from vq.local.core.base import QueueBase
from vq.local.files.notes import Aside, code_of
from vq.local.items import LATER, LocalItem
from vq.model import Message, choice_of
from vq.shown import shown

LIST_MAX: Final = 100_000


class MessageStanding(enum.StrEnum):
    """Where a message of a local queue is."""

    READY = "ready"  # in line
    TAKEN = "taken"  # with a taker
    LATER = "later"  # it waits for its time: it is delayed, or failed


class ListedMessage(NamedTuple):
    """A message as a list shows it; it is no item, so nobody can complete it.

    Attributes:
        message: The message.
        standing: Where it is.
        priority: 0 to 2.
        attempts: How often it was given to a taker.
        due_ms: When it is given, in ms since 1970; None: it waits for no time.
    """

    message: Message
    standing: MessageStanding
    priority: int
    attempts: int
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LocalQueueMetrics:
    """The numbers of a queue. Those that others change meanwhile are off by what is under way.

    Attributes:
        ready: Messages in line, in memory and on disk.
        taken: Messages with takers.
        later: Messages that wait for their times.
        takers: Threads and tasks that wait for a message.
        put: Messages that were put since the queue was opened.
        completed: Messages that were completed since then.
        failed: Times that a taker gave a message back.
        expired: Leases that ended.
        dropped: Messages that a ring dropped.
        repeated: Puts whose idempotency key was seen already.
        commits: Rounds of group commit.
        bytes_on_disk: Of all logs.
        damaged: Messages that could not be read and were set aside, also by earlier processes.
        stopped: Lanes that take no more messages, after an I/O error.
    """

    ready: int
    taken: int
    later: int
    takers: int
    put: int
    completed: int
    failed: int
    expired: int
    dropped: int
    repeated: int
    commits: int
    bytes_on_disk: int
    damaged: int
    stopped: int


def metrics_of(base: QueueBase) -> LocalQueueMetrics:
    """Return the numbers of a queue."""
    state, counts = base.state, base.counts
    ready, later = state.waiting, len(state.asides)
    put = base.counted()
    in_memory = sum(len(line.ready) for line in state.lines)
    return LocalQueueMetrics(
        ready=ready,
        taken=max(len(base.opened) - in_memory, 0),
        later=later,
        takers=len(base.takers.line),
        put=put,
        completed=max(base.size_at_open + put - counts.dropped - base.damaged_now - base.size, 0),
        failed=counts.failed,
        expired=counts.expired,
        dropped=counts.dropped,
        repeated=counts.repeated,
        commits=counts.commits,
        bytes_on_disk=base.size_bytes,
        damaged=sum(each.messages for each in base.damaged if each.log != "notes"),
        stopped=len(base.stopped),
    )


def peek(base: QueueBase) -> Message | None:
    """Return the message that would be given next, and leave it there."""
    base.check()
    with base.lock:
        for lane in range(len(base.state.lines) - 1, -1, -1):
            line = base.state.lines[lane]
            while not line.ready and line.unread:
                base.load(lane)
            if line.ready:
                return line.ready[0].message
    return None


def list_messages(
    base: QueueBase, limit: int, standing: MessageStanding | str | None
) -> list[ListedMessage]:
    """Return up to ``limit`` messages: those with takers, in line, and waiting for a time.

    Raises:
        InvalidArgument: The limit is no number in [1, 100,000], or there is no such standing.
    """
    check_between("limit", limit, 1, LIST_MAX)
    base.check()
    wanted = None
    if standing is not None:
        wanted = choice_of(MessageStanding, "standing", standing)
    found = []
    with base.lock:
        for each in _all(base, limit):
            if wanted is None or each.standing is wanted:
                found.append(each)
                if len(found) >= limit:
                    break
    return found


def _all(base: QueueBase, limit: int) -> Iterator[ListedMessage]:
    state = base.state
    for item in tuple(state.opened):
        if item.deadline:
            yield ListedMessage(item.message, MessageStanding.TAKEN, item.priority, item.attempts)
    for lane in range(len(state.lines) - 1, -1, -1):
        line = state.lines[lane]
        for item in tuple(line.ready):
            yield _ready(item)
        for item in base.unread(lane, limit):
            yield _ready(item)
    for aside in sorted(state.asides):
        try:
            item = base.item_of(aside)
        except CorruptData:  # it is set aside when its time comes
            continue
        yield ListedMessage(
            item.message, MessageStanding.LATER, aside.priority, aside.attempts, aside.due_ms
        )


def _ready(item: LocalItem) -> ListedMessage:
    return ListedMessage(item.message, MessageStanding.READY, item.priority, item.attempts - 1)


def requeue(base: QueueBase, ids: Iterable[int] | None) -> int:
    """Give messages now that wait for a time; return how many. None: all of them."""
    base.check()
    wanted = None if ids is None else _checked_ids(ids)
    count = 0
    with base.lock:
        asides = base.state.asides
        for at, aside in enumerate(asides):
            if wanted is None or _id_of(base, aside) in wanted:
                asides[at] = aside._replace(due_ms=0)
                count += 1
        asides.sort()
    base.sleeper.kick()
    return count


def _checked_ids(ids: Iterable[int]) -> set[int]:
    if not isinstance(ids, Iterable):
        raise InvalidArgument(f"ids = {shown(ids)} is no list; give several ids, or None for all")
    wanted = set()
    for each in ids:
        check_whole("an id", each)
        wanted.add(each)
    return wanted


def _id_of(base: QueueBase, aside: Aside) -> int | None:
    try:
        return aside.id or base.item_of(aside).id
    except CorruptData:
        return None


def purge(base: QueueBase) -> int:
    """Complete all messages that no taker has; return how many.

    It is durable once a commit has ended that began later. The snapshot gives space back.
    """
    base.check()
    state, codes = base.state, list[int]()
    with base.lock:
        before = state.size
        for lane, line in enumerate(state.lines):
            while line.ready:
                try:
                    item = line.ready.popleft()
                except IndexError:
                    break
                state.opened.discard(item)
                codes.append(code_of(item.lane, item.number))
            if line.unread and not base.in_memory:
                base.intake.purged.append((lane, (line.next_number, line.end_number)))
            line.next_number = line.end_number
            line.skip([])
        codes += [code_of(LATER, aside.number) for aside in state.asides]
        state.restore_asides(())
        state.kept.clear()
        count = before - state.size
        if not base.in_memory:
            base.intake.done.extend(codes)
            base.intake.wants_save = True
    base.spaces.wake_all()
    return count
