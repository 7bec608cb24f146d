"""Repeatable writes in the tree: who writes now, and where what it wrote begins.

A *write* is something whose messages come in numbered *batches*, each made by numbered *tasks*,
such as a query of Spark. A task of a batch may be tried again, at the same time, too. Each attempt
gets an epoch of the task's producer id that is higher than all before, see
``ProducerIdentity``. Values and decisions, and the few reads and writes that go with them.

    writes/<write>                                      no value; its version is 0 until it ends
      tasks/<n>                           WriteTask     the latest attempt of a task
      topics/<topic>                      WriteTopic    where the topic ended before the batch

Example: task 3 of batch 7 is tried for the first time under epoch 12. A second attempt gets
epoch 14, and 13 for the empty batches with which it stops the first one. What both have written
lies behind ``WriteTopic.ends`` under the producer id and an epoch of at least 12. The first attempt
of batch 8 gets epoch 15.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from vq import limits
from vq.coordination.tree.coordinator import (
    MULTI_OPERATIONS_MAX,
    Check,
    Coordinator,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Set,
    join,
)
from vq.coordination.tree.reading import children_or_none, gather_all, numbered_children
from vq.coordination.tree.update import AGAIN, Plan, apply_plan
from vq.coordination.tree.values.value import Value, read_fields
from vq.errors import CoordinationError, InvalidState
from vq.model import check_name

WRITES = "writes"
#: From this epoch on, a new batch begins with a new producer id.
RENEW_EPOCH = limits.PRODUCER_EPOCH_MAX // 2
#: Version of the node of a write until it ends.
_OPEN = 0


class WriteOvertaken(InvalidState):
    """A later attempt of the task, or a later batch, has begun, or the write has ended."""

    hint = "end this attempt; the later one sees what it has sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask(Value):
    """``writes/<write>/tasks/<n>``: the latest attempt of a task.

    Attributes:
        batch: The batch it belongs to.
        producer_id: Under which all attempts of the batch write.
        first_epoch: The epoch of the first one.
        epoch: The epoch of the latest one.
    """

    _what = "task of a write"
    batch: int
    producer_id: int
    first_epoch: int = 0
    epoch: int = 0

    @staticmethod
    def path(write: str, task: int) -> str:
        """Return the path of the task."""
        return join(tasks_of(write), str(task))

    @property
    def is_repeated(self) -> bool:
        """Whether earlier attempts of the batch may have written."""
        return self.epoch > self.first_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTopic(Value):
    """``writes/<write>/topics/<topic>``: where a topic ended before a batch wrote to it.

    Attributes:
        batch: The batch.
        topic_id: Of the topic; offsets mean nothing in another one of the name.
        ends: By partition. One that is missing was added later.
    """

    _what = "topic of a write"
    batch: int
    topic_id: str
    ends: tuple[int, ...]

    @staticmethod
    def path(write: str, topic: str) -> str:
        """Return the path of the topic."""
        return join(topics_of(write), topic)

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        found = read_fields(cls, document)
        if any(end < 0 for end in found["ends"]):
            raise ValueError("ends")
        return cls(**found)


def path_of(write: str) -> str:
    """Return the path of a write."""
    return join(WRITES, check_name("write", write))


def tasks_of(write: str) -> str:
    """Return the parent of its tasks."""
    return join(path_of(write), "tasks")


def topics_of(write: str) -> str:
    """Return the parent of its topics."""
    return join(path_of(write), "topics")


# Decisions ------------------------------------------------------------------------------------
def next_attempt(
    found: WriteTask | None, batch: int, new_id: Callable[[], int], what: str
) -> WriteTask:
    """Return what the task's node says once another attempt of ``batch`` has begun.

    Raises:
        WriteOvertaken: A later batch has begun.
        InvalidState: There were too many attempts.
    """
    if found is None:
        return WriteTask(batch=batch, producer_id=new_id())
    check_not_over(found.batch, batch, what)
    if found.batch < batch:
        if found.epoch >= RENEW_EPOCH:
            return WriteTask(batch=batch, producer_id=new_id())
        epoch = found.epoch + 1
        return WriteTask(batch=batch, producer_id=found.producer_id, first_epoch=epoch, epoch=epoch)
    if found.epoch + 2 > limits.PRODUCER_EPOCH_MAX:
        raise InvalidState(f"{what}: {found.epoch} attempts; there are no more epochs for another")
    return WriteTask(
        batch=batch,
        producer_id=found.producer_id,
        first_epoch=found.first_epoch,
        epoch=found.epoch + 2,
    )


def check_not_over(known: int, batch: int, what: str) -> None:
    """Check that no batch behind ``batch`` has begun.

    Raises:
        WriteOvertaken: One has.
    """
    if known > batch:
        raise WriteOvertaken(f"{what}: batch {known} has begun, so batch {batch} is over")


def same_ends(found: WriteTopic | None, batch: int, topic_id: str, what: str) -> bool:
    """Return whether a topic's ends are known for ``batch``; otherwise they are to be noted.

    Raises:
        WriteOvertaken: A later batch has begun.
    """
    if found is None or found.topic_id != topic_id:
        return False
    check_not_over(found.batch, batch, what)
    return found.batch == batch


# Reads and writes -----------------------------------------------------------------------------
async def begin(coordinator: Coordinator, write: str) -> None:
    """Make the nodes of a write; beginning it again changes nothing."""
    root = path_of(write)
    below = (tasks_of(write), topics_of(write))

    async def plan(_: CoordinationError | None) -> Plan[None]:
        known = await coordinator.exists(root)
        if known is not None and known.version != _OPEN:
            await _forget_ended(coordinator, write)  # somebody ended it in part
            known = None
        if known is None:
            if await coordinator.exists(WRITES) is None:  # clients may not make it, nor try to
                with contextlib.suppress(NodeExists):
                    await coordinator.create(WRITES, parents=True)
            return Plan([Create(each) for each in (root, *below)], None)
        missing = [each for each in below if await coordinator.exists(each) is None]
        if not missing:
            return Plan((), None)
        return Plan([Check(root, _OPEN), *(Create(each) for each in missing)], None)

    await apply_plan(coordinator, plan, what=f"write {write}")


async def end(coordinator: Coordinator, write: str) -> None:
    """Forget a write: attempts that begin later are refused. May be repeated.

    Raises:
        CoordinationError: It is ended in part; ``begin`` and ``end`` go on with that.
    """
    root = path_of(write)

    async def plan(_: CoordinationError | None) -> Plan[None]:
        known = await coordinator.exists(root)
        is_open = known is not None and known.version == _OPEN
        # Its version shows attempts that it is over.
        return Plan([Set(root, b"", _OPEN)] if is_open else (), None)

    await apply_plan(coordinator, plan, what=f"write {write}")
    await _forget_ended(coordinator, write)


async def _forget_ended(coordinator: Coordinator, write: str) -> None:
    """Delete the nodes of a write that has ended; one that was begun again meanwhile is left alone.

    Others may do the same at the same time, and one of them may have begun it again. So each step
    deletes under the version that says that the write has ended: a write that is begun has
    version 0.
    """
    root = path_of(write)

    async def plan(_: CoordinationError | None) -> Plan[bool]:
        known = await coordinator.exists(root)
        if known is None or known.version == _OPEN:
            return Plan((), True)
        found = await _nodes_below(coordinator, write)
        if not found:
            return Plan([Delete(root, known.version)], True)
        step = found[: MULTI_OPERATIONS_MAX - 1]
        return Plan([Check(root, known.version), *(Delete(each) for each in step)], False)

    again = (*AGAIN, NotEmpty)
    while not await apply_plan(coordinator, plan, what=f"write {write}", again=again):
        pass  # each step deletes some: a write that has ended gets no more


async def _nodes_below(coordinator: Coordinator, write: str) -> list[str]:
    """Return the nodes below that of a write, those without children first."""
    found: list[str] = []
    for parent in (tasks_of(write), topics_of(write)):
        found += [join(parent, each) for each in await children_or_none(coordinator, parent)]
    above = await children_or_none(coordinator, path_of(write))
    return found + [join(path_of(write), each) for each in above]


async def names(coordinator: Coordinator) -> list[str]:
    """Return the names of all writes, sorted."""
    return sorted(await children_or_none(coordinator, WRITES))


async def attempt(
    coordinator: Coordinator, write: str, batch: int, task: int, new_id: Callable[[], int]
) -> WriteTask:
    """Begin an attempt; no other one gets the same producer id and epoch.

    Raises:
        WriteOvertaken: A later batch has begun, or the write is not there.
    """
    what = f"task {task} of write {write}"
    path = WriteTask.path(write, task)
    decided: WriteTask | None = None

    def change(node: Node | None) -> Sequence[Operation]:
        # After a lost answer this may skip an epoch that it has taken itself: a repeated attempt
        # that finds nothing.
        nonlocal decided
        found = None if node is None else WriteTask.decode(path, node.data)
        decided = next_attempt(found, batch, new_id, what)
        if node is None:
            return [Create(path, decided.encode())]
        return [Set(path, decided.encode(), node.stat.version)]

    await _change(coordinator, write, path, change, what)
    assert decided is not None
    return decided


async def note_ends(
    coordinator: Coordinator, write: str, topic: str, wanted: WriteTopic
) -> WriteTopic:
    """Note where a topic ends before its batch writes to it; return what was noted first.

    Raises:
        WriteOvertaken: A later batch has begun, or the write is not there.
    """
    what = f"topic {topic} of write {write}"
    path = WriteTopic.path(write, topic)
    noted = wanted

    def change(node: Node | None) -> Sequence[Operation]:
        nonlocal noted
        found = None if node is None else WriteTopic.decode(path, node.data)
        if found is not None and same_ends(found, wanted.batch, wanted.topic_id, what):
            noted = found
            return []
        noted = wanted
        if node is None:
            return [Create(path, wanted.encode())]
        return [Set(path, wanted.encode(), node.stat.version)]

    await _change(coordinator, write, path, change, what)
    return noted


async def read_topic(
    coordinator: Coordinator, write: str, batch: int, topic: str, topic_id: str
) -> WriteTopic | None:
    """Return what is noted of a topic for a batch; None: nothing yet.

    Raises:
        WriteOvertaken: A later batch has begun.
    """
    path = WriteTopic.path(write, topic)
    try:
        node = await coordinator.get(path)
    except NoNode:
        return None
    found = WriteTopic.decode(path, node.data)
    known = same_ends(found, batch, topic_id, f"topic {topic} of write {write}")
    return found if known else None


async def topics_written(coordinator: Coordinator, write: str, batch: int) -> list[str]:
    """Return the topics that attempts of a batch may have written to, sorted."""
    known = await children_or_none(coordinator, topics_of(write))
    nodes = await gather_all(coordinator.get(WriteTopic.path(write, each)) for each in known)
    found = zip(known, nodes, strict=True)
    return sorted(
        topic
        for topic, node in found
        if WriteTopic.decode(WriteTopic.path(write, topic), node.data).batch == batch
    )


async def tasks_begun(coordinator: Coordinator, write: str, batch: int) -> list[int]:
    """Return the tasks of which attempts of a batch have begun, sorted."""
    numbers = await numbered_children(coordinator, tasks_of(write))
    nodes = await gather_all(coordinator.get(WriteTask.path(write, each)) for each in numbers)
    return [
        number
        for number, node in zip(numbers, nodes, strict=True)
        if WriteTask.decode(WriteTask.path(write, number), node.data).batch == batch
    ]


async def _change(
    coordinator: Coordinator,
    write: str,
    path: str,
    change: Callable[[Node | None], Sequence[Operation]],
    what: str,
) -> None:
    """Write one node of a write that has not ended, in one step with the check that it has not."""
    root = path_of(write)

    async def plan(_: CoordinationError | None) -> Plan[None]:
        known = await coordinator.exists(root)
        if known is None or known.version != _OPEN:
            raise WriteOvertaken(f"{what}: write {write} has ended, or was never begun")
        try:
            node = await coordinator.get(path)
        except NoNode:
            node = None
        operations = change(node)
        return Plan([Check(root, _OPEN), *operations] if operations else (), None)

    await apply_plan(coordinator, plan, what=what)
