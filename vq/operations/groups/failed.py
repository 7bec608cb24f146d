"""Messages that members of a group have skipped on this machine: listed, run again, forgotten.

    note "begun" in the file ─▶ the batch, under the noted stamp ─▶ note "sent"

A call that was cut off is repeated: what has no end is sent again under its stamp, and the broker
stores it once (docs/decisions/0148-skipped-messages.md). Loop-bound; the disk is waited for on the
loop, so this is for commands.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.copies import make_topic
from vq.client.failed_file import (
    FailedContents,
    FailedFile,
    FailedMessage,
    commands_lock,
    files_of,
)
from vq.coordination.groups.groups import change_contract, known_group
from vq.coordination.tree.reading import TopicView
from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.coordination.tree.values.group_terms import GroupModel
from vq.errors import InvalidState, OutcomeUnknown, VqError
from vq.message_filter import ALL
from vq.model import ProducerStamp, TopicPartition, check_name
from vq.operations.base.who import who
from vq.operations.messages.single_batches import SingleBatches, about_bytes
from vq.reserved import RESENT, MessageOrigin, Purpose, headers_of_copy, topic_of
from vq.store.records.copies import encode_copy

#: Most messages of one batch; it has so many bytes, and one message more.
_BATCH_MESSAGES: Final = 100
_BATCH_BYTES: Final = limits.MIB
#: How long the brokers of one batch are waited for, in seconds.
WAIT_S: Final = 30.0


class RunTo(StrEnum):
    """Where messages go that are run again."""

    GROUP = "group"  # to the group's retry topic: only its members get them
    ORIGIN = "origin"  # where they come from: all groups that read there get them


@dataclass(frozen=True, slots=True)
class FailedRun:
    """What ``run_failed`` did.

    Attributes:
        sent: Messages that it sent.
        finished: Messages that an earlier call had begun to send, and this one has finished.
        homeless: Messages that it left: their topic or partition is not there, takes no messages,
            or none so large.
    """

    sent: int
    finished: int
    homeless: int


def list_failed(
    cluster: str, group: str, ids: Collection[int] = ()
) -> tuple[list[FailedMessage], int]:
    """Return what members of a group have skipped on this machine, and how many bytes are unread.

    Args:
        cluster: Its name.
        group: The group; it need not be there any more.
        ids: Only messages with these ids; none: all.

    Raises:
        InvalidState: A file cannot be read.
    """
    found: list[FailedMessage] = []
    unread = 0
    for _, contents, twins in _contents(files_of(cluster, check_name("group", group))):
        unread += contents.unread_bytes
        present = contents.messages.values()
        found += [each for each in present if each.number not in twins and _is_meant(each, ids)]
    return found, unread


def _contents(
    files: Sequence[FailedFile],
) -> Iterator[tuple[FailedFile, FailedContents, set[int]]]:
    """Yield what each file has, and the numbers of messages there that an earlier one has, too.

    A member is killed behind the record and before its commit: who has its partition then gets the
    message again, and may skip it again. What is being sent is no such twin: see ``_Ledger``.
    """
    seen: set[tuple[MessageOrigin, int]] = set()
    for file in files:
        contents = file.read()
        waiting = [each for each in contents.messages.values() if not each.is_sending]
        twins = {each.number for each in waiting if (each.origin, each.message.id) in seen}
        seen.update((each.origin, each.message.id) for each in waiting)
        yield file, contents, twins


def forget_failed(cluster: str, group: str, ids: Collection[int], now_ms: int) -> int:
    """Give up what members of a group have skipped on this machine; return how many messages.

    Args:
        cluster, group, ids: As of ``list_failed``.
        now_ms: The time.

    Raises:
        InvalidState: A file cannot be read or written, or another command is at it.
    """
    count = 0
    if not files_of(cluster, check_name("group", group)):
        return count
    with commands_lock(cluster, group):
        for file, contents, twins in _contents(files_of(cluster, group)):
            meant = [n for n, each in contents.messages.items() if _is_meant(each, ids)]
            if meant:
                file.note("forgotten", now_ms, of=meant, by=who())
            file.tidy()
            count += len(set(meant) - twins)
    return count


async def run_failed(
    cluster: ClusterClient, group: str, *, to: RunTo = RunTo.GROUP, ids: Collection[int] = ()
) -> FailedRun:
    """Send again what members of a group have skipped on this machine, each message once.

    Args:
        cluster: Where to.
        group: The group.
        to: To its retry topic, or where the messages come from.
        ids: Only messages with these ids; none: all. What an earlier call has begun is finished.

    Raises:
        InvalidState: A file cannot be read or written, another command is at it, or the group has
            no retry topic, because its model is ``broadcasting``.
        UnknownGroup: There is no such group.
        OutcomeUnknown, VqError: A broker did not answer, or refuses a batch. Repeat the call.
    """
    name = cluster.config.cluster
    run = _Rerun(SingleBatches(cluster, WAIT_S), group, to)
    if files_of(name, check_name("group", group)):
        with commands_lock(name, group):
            for file, _, twins in _contents(files_of(name, group)):
                if twins:  # before the first of them is sent
                    file.note("forgotten", cluster.clock.wall_ms(), of=sorted(twins), by=who())
            for file in files_of(name, group):
                try:
                    await run.finish(file)
                    await run.send(file, ids)
                finally:
                    file.tidy()
    if run.unfinished is not None:
        run.unfinished.hint = (
            f"repeat the command; if that stays so, `vq group failed forget {group} --id` gives "
            "up what `vq group failed list` shows as sending: it may have been sent"
        )
        raise run.unfinished
    return FailedRun(run.sent, run.finished, run.homeless)


def _is_meant(failed: FailedMessage, ids: Collection[int]) -> bool:
    return not ids or failed.message.id in ids


@dataclass(slots=True)
class _Rerun:
    """One call.

    Attributes:
        sent, finished, homeless: As of ``FailedRun``.
        unfinished: Why the first batch that it could not finish is refused, or in doubt.
    """

    batches: SingleBatches
    group: str
    to: RunTo
    sent: int = 0
    finished: int = 0
    homeless: int = 0
    unfinished: VqError | None = None

    @property
    def cluster(self) -> ClusterClient:
        """Where the group is."""
        return self.batches.cluster

    async def finish(self, file: FailedFile) -> None:
        """Send the batches that a call began and did not finish."""
        for batch in list(file.read().batches.values()):
            view = await self.batches.topic(batch.target.topic)
            if view is None or view.id != batch.topic_id:  # gone, with what was sent to it
                self._note(file, "open", batch=batch.number)
                continue
            try:
                await self._put(batch.target, view, batch.stamp, batch.messages, resend=True)
            except VqError as error:
                self.unfinished = self.unfinished or error  # the others can be sent
                continue
            self._note(file, "sent", batch=batch.number)
            self.finished += len(batch.messages)

    async def send(self, file: FailedFile, ids: Collection[int]) -> None:
        """Send the open messages of a file that somebody means."""
        present = file.read().messages.values()
        found = [each for each in present if _is_meant(each, ids) and not each.is_sending]
        if found and self.to is RunTo.GROUP:
            await self._open_retry_topic(sorted({each.origin.topic for each in found}))
        waiting: dict[TopicPartition, list[FailedMessage]] = {}
        for each in found:
            target = await self._target(each)
            if target is None:
                self.homeless += 1
            else:
                waiting.setdefault(target, []).append(each)
        for target, messages in waiting.items():
            view = await self.batches.topic(target.topic)
            assert view is not None
            for batch in _batches(messages):
                await self._send(file, target, view, batch)

    async def _send(
        self,
        file: FailedFile,
        target: TopicPartition,
        view: TopicView,
        messages: Sequence[FailedMessage],
    ) -> None:
        stamp = self.batches.stamp(target)
        numbers = [each.number for each in messages]
        begun = self._note(
            file, "begun", of=numbers, to=list(target), topic_id=view.id, stamp=list(stamp)
        )
        try:
            await self._put(target, view, stamp, messages)
        except VqError as error:
            if not isinstance(error, OutcomeUnknown):  # certainly not stored
                self._note(file, "open", batch=begun)
            raise
        self.batches.stored(target)
        self._note(file, "sent", batch=begun)
        self.sent += len(messages)

    def _note(self, file: FailedFile, says: str, **values: object) -> int:
        return file.note(says, self.cluster.clock.wall_ms(), by=who(), **values)

    async def _put(
        self,
        target: TopicPartition,
        view: TopicView,
        stamp: ProducerStamp,
        messages: Sequence[FailedMessage],
        *,
        resend: bool = False,
    ) -> None:
        is_retry = target.topic == topic_of(Purpose.RETRY, self.group)
        records = [_record(each, is_retry=is_retry) for each in messages]
        await self.batches.put(target, view.id, stamp, records, resend=resend)

    async def _open_retry_topic(self, origins: Sequence[str]) -> None:
        """Have the group's retry topic, and have the group read it."""
        cluster, name = self.cluster, topic_of(Purpose.RETRY, self.group)
        contract = await known_group(cluster.coordinator, self.group)
        if not GroupModel(contract.model).claims:
            raise InvalidState(
                f"group {self.group!r} is {contract.model} and has no retry topic",
                hint="`--to origin` sends the messages where they come from, to all who read there",
            )
        if await self.batches.topic(name) is None:
            await make_topic(cluster, contract, name, origins)
            self.batches.made(name)
        await change_contract(cluster.coordinator, self.group, lambda found: _reading(found, name))

    async def _target(self, failed: FailedMessage) -> TopicPartition | None:
        """Return where a message goes; None: nowhere."""
        origin, to_group = failed.origin, self.to is RunTo.GROUP
        name = topic_of(Purpose.RETRY, self.group) if to_group else origin.topic
        view = await self.batches.topic(name)
        if view is None or not view.settings.writable:
            return None
        if len(failed.message.content) > view.settings.max_message_bytes:
            return None
        count = len(view.partitions)
        number = (origin.partition + 1) % count if to_group else origin.partition
        return TopicPartition(name, number) if number < count else None


def _reading(contract: ConsumerGroup, topic: str) -> ConsumerGroup:
    if topic in contract.topics:
        return contract
    return replace(contract, topics={**contract.topics, topic: ALL})


def _batches(messages: Sequence[FailedMessage]) -> Iterator[list[FailedMessage]]:
    batch: list[FailedMessage] = []
    size = 0
    for each in messages:
        batch.append(each)
        size += about_bytes(each.message)
        if len(batch) == _BATCH_MESSAGES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _record(failed: FailedMessage, *, is_retry: bool) -> bytes:
    """Return the record of a message that is run again; the same message gives the same bytes."""
    if is_retry:
        told = headers_of_copy(failed.origin, failed.failure, redelivery=1)
    else:
        told = {RESENT: str(failed.origin)}
    return encode_copy(failed.message, told)
