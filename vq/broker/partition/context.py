"""What all channels of a node share: storers, timers, counters, and the role in each group."""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vq.broker.base.facts import Fact, Facts, counter, counters, histogram
from vq.broker.base.histogram import Histogram
from vq.broker.base.notice import Notice
from vq.broker.standing.role import Role
from vq.clock import Clock
from vq.errors import VqError
from vq.store.commit.storer import Storer


class LaterCall(Protocol):
    """A callback that will be called unless it is cancelled first."""

    def cancel(self) -> None:
        """Do not call it."""
        ...


@dataclass(slots=True)
class Counters:
    """What a node counts from its start on; nothing is ever subtracted."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    batches_in: int = 0
    duplicates: int = 0
    refused: int = 0
    deleted_bytes: int = 0
    deleted_blocks: int = 0
    deleted_early_bytes: int = 0
    archived_bytes: int = 0
    archived_early_bytes: int = 0
    archived_blocks: int = 0


def _fetch_at_once(session: object, read: Any) -> None:
    """The default: fetch on the calling thread."""
    read.then()


@dataclass(slots=True, eq=False)
class DataPlace:
    """A data directory as the channels see it whose logs lie there.

    Attributes:
        storer: Flushes them.
        refusal: Why they take no PUTs, None: the directory and its disk are no reason. Only
            ``data_disk`` writes it.
        copy_refusal: Why nothing is copied to them; None: it is. Likewise.
        gone: The directory was removed or unmounted, or does not answer. Likewise.
        silent: It does not answer: what touches it may hang. Likewise.
    """

    storer: Storer
    refusal: VqError | None = None
    copy_refusal: VqError | None = None
    gone: bool = False
    silent: bool = False

    def to_raise(self) -> VqError | None:
        """Return ``refusal`` as a new error: raised, it would keep all that it was raised for."""
        return copy(self.refusal)


@dataclass(slots=True, kw_only=True)
class Context:
    """Shared by the channels of one node.

    Attributes:
        group: This node's broker group.
        places: Of the data directories, the main one first; at least one.
        roles: What this node is in each group of which it holds partitions.
        call_later: Calls back after so many seconds, on the loop.
        fetch_cold: Called with a session and a ``cold_reads.ColdRead``.
        suspected: Told with a channel and an offset at which its bytes seem to be damaged.
        acknowledged: Times from append to acknowledgement; None: they are not measured.
    """

    group: str
    places: Mapping[Path, DataPlace]
    clock: Clock
    call_later: Callable[[float, Callable[[], None]], LaterCall]
    roles: Mapping[str, Role]
    fetch_cold: Callable[[Any, Any], None] = _fetch_at_once
    counters: Counters = field(default_factory=Counters)
    acknowledged: Histogram | None = None
    suspected: Notice[[Any, int]] = field(default_factory=Notice)

    def suspect(self, channel: Any, offset: int) -> None:
        """Have it looked whether bytes of a channel are damaged."""
        self.suspected.tell(channel, offset)

    @property
    def main(self) -> DataPlace:
        """The main data directory."""
        return next(iter(self.places.values()))

    @property
    def flushes(self) -> int:
        """How many flushes ended."""
        return sum(each.storer.flushes for each in self.places.values())

    @property
    def flushed_logs(self) -> int:
        """Over how many logs in sum; one flush may be of many."""
        return sum(each.storer.flushed_logs for each in self.places.values())

    @property
    def role(self) -> Role:
        """What this node is in its own group."""
        return self.roles[self.group]

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[Context].of(
            self,
            Fact(read=lambda context: context.flushes, status="flushes"),
            histogram(
                "vq_acknowledgement_seconds",
                "Time from the append of a batch to its acknowledgement: flush and copies "
                "included.",
                lambda context: context.acknowledged or Histogram(),
            ),
            counter(
                "vq_flushed_logs",
                "Logs that flushes made durable; one flush may be of many.",
                lambda context: context.flushed_logs,
            ),
        )
        yield Facts[Counters].of(
            self.counters,
            counter(
                "vq_appended_messages",
                "Messages that were appended.",
                lambda counters: counters.messages_in,
                status="messages_in",
            ),
            counter(
                "vq_appended_bytes",
                "Bytes of their batches.",
                lambda counters: counters.bytes_in,
                status="bytes_in",
            ),
            counter(
                "vq_appended_batches",
                "Batches that were appended.",
                lambda counters: counters.batches_in,
            ),
            counter(
                "vq_repeated_batches",
                "Batches that were sent again and were stored already.",
                lambda counters: counters.duplicates,
            ),
            counter(
                "vq_read_bytes",
                "Bytes that readers and copies got.",
                lambda counters: counters.bytes_out,
                status="bytes_out",
            ),
            *counters(
                "vq_",
                deleted_bytes="Bytes of logs that retention deleted.",
                deleted_blocks="Blocks that retention deleted.",
                deleted_early_bytes="Of vq_deleted_bytes: those before their time, since a disk "
                "was too full.",
                archived_bytes="Bytes of blocks that became archives.",
                archived_blocks="Blocks that became archives.",
                archived_early_bytes="Of vq_archived_bytes: those before their time, since a disk "
                "was too full.",
            ),
        )
