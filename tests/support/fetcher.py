"""A fetcher of one partition, the answers to it, and what came out of it."""

import random
from types import SimpleNamespace
from typing import Any

from vq import limits
from vq.client.config import MessageFactoryConfig
from vq.client.consumer.fetch.fetcher import PartitionFetcher
from vq.client.reading.chunk import NO_REST, Chunk, Rest
from vq.clock import SystemClock
from vq.errors import VqError
from vq.message_filter import ALL, Filter
from vq.model import Address, PartitionPlacement, Span, TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import FetchResult, GetRequest, GetResponse, VerifyResponse

WHERE = TopicPartition("t", 0)
HERE = Address("b1", 1)


class Cluster:
    """What a fetcher needs of a client of the cluster."""

    def __init__(self) -> None:
        self.rng = random.Random(5)
        self.clock = SystemClock()
        self.config = MessageFactoryConfig()
        self.refreshed: list[str] = []
        self.anew: list[GetRequest] = []
        self.answers: list[bytes | VqError] = []
        self.reported: list[int] = []
        self.report_answer: VqError | None = None
        spans = (Span("b1", 0, 2_000), Span("b2", 2_000))
        view = SimpleNamespace(id="id-1", partitions=[PartitionPlacement("t", 0, spans)])
        self.routes = SimpleNamespace(topics={"t": view}, topic=lambda _: view)

    def master_at(self, partition: TopicPartition, offset: int) -> tuple[Address, int]:
        return HERE, 3

    async def request(
        self,
        address: Address,
        command: int,
        message: Any,
        *,
        timeout: float | None = None,
        anew: bool = False,
    ) -> tuple[Any, bytes]:
        """Answer on a connection of its own with 100 bytes, or as told; note reports of damage."""
        if command == Command.VERIFY:
            self.reported.append(message.offset)
            if self.report_answer is not None:
                raise self.report_answer
            return VerifyResponse(), b""
        assert (address, command, anew) == (HERE, Command.GET, True)
        self.anew.append(message)
        answer = self.answers.pop(0) if self.answers else bytes(100)
        if isinstance(answer, VqError):
            raise answer
        return GetResponse(offset=message.offset, high_watermark=5_000), answer

    def refresh(self, topic: str, error: object = None) -> None:
        self.refreshed.append(topic)


class Fetches:
    """Notes what is asked for; the test answers."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.nodes = self
        self.space = self
        self.share_bytes = limits.GIB
        self.allowed: int | None = None
        self.asked: list[tuple[int, int]] = []  # offset, bytes
        self.validated: list[bool] = []
        self.waits = False
        self.members = 0
        self.counted = (0, 0)
        self.permits = False  # to go beyond the bound
        self.in_line = 0

    def another(self, partition: TopicPartition, offset: int, reading: int) -> tuple[Address, int]:
        return self.cluster.master_at(partition, offset)

    def damaged(self, partition: TopicPartition, offset: int) -> Address | None:
        return None

    def is_copy(self, partition: TopicPartition, offset: int, address: Address) -> bool:
        return False

    def refused(
        self, partition: TopicPartition, offset: int, address: Address, error: VqError
    ) -> VqError:
        return error

    def allowance(self, asker: PartitionFetcher) -> int:
        return self.share_bytes - asker.buffered if self.allowed is None else self.allowed

    def may_exceed(self, asker: PartitionFetcher) -> bool:
        self.in_line += 1
        return self.permits

    def count(self, asker: PartitionFetcher) -> None:
        self.counted = asker.asked, asker.buffered

    def join(self, asker: PartitionFetcher) -> None:
        self.members += 1

    def leave(self, asker: PartitionFetcher) -> None:
        self.members = 0
        self.waits = False

    def withdraw(self, asker: PartitionFetcher) -> None:
        self.waits = False

    def ask(self, asker: PartitionFetcher) -> None:
        assert not self.waits, "one at a time"
        assert self.members == 1
        self.waits = True
        self.asked.append((asker.position, asker.asked))
        self.validated.append(asker.validate)


async def _read_again(_: int, __: VqError) -> None:
    """Pass over nothing."""


class Reader:
    """A fetcher and what came out of it."""

    def __init__(
        self,
        *,
        offset: int = 100,
        wanted: Filter = ALL,
        start: bool = True,
        **settings: Any,
    ) -> None:
        self.fetches = Fetches()
        self.cluster = self.fetches.cluster
        self.chunks: list[Chunk] = []
        self.errors: list[VqError | None] = []
        self.epochs: list[int] = []  # where a broker came up anew
        fetches: Any = self.fetches
        bounds = {"length": 1_000, "prefetch_bytes": 2_000, **settings}
        self.fetcher = PartitionFetcher(
            fetches,
            WHERE,
            offset,
            wanted=wanted,
            on_chunk=self.chunks.append,
            on_error=self.errors.append,
            on_new_epoch=lambda: self.epochs.append(self.fetcher.position),
            on_bad_record=_read_again,
            **bounds,
        )
        if start:
            self.fetcher.start()

    @property
    def asked(self) -> list[int]:
        """The offsets that were asked for."""
        return [offset for offset, _ in self.fetches.asked]

    def answer(self, body: bytes = b"", *, again: bool = False, **fields: Any) -> None:
        """Answer what was asked for last, unless it was withdrawn; ``again``: and wait on."""
        if not self.fetches.waits:
            return
        self.fetches.waits = again
        values = {"offset": self.fetcher.position, "high_watermark": 5_000, **fields}
        self.fetcher.took(FetchResult(**values), body, again=again)

    def consumed(self, size: int, rest: Rest = NO_REST) -> None:
        """Finish bytes, and have the loop count them at once."""
        self.fetcher.finished(size, rest)
        self.fetcher._go_on_after_finished()

    def refuse(self, error: VqError) -> None:
        self.fetches.waits = False
        self.fetcher.failed(error)
