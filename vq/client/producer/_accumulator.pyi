from collections.abc import Callable, Sequence
from typing import Any

from vq.client.future import SendCallback, SendFuture
from vq.client.producer.intake.stages import Head
from vq.client.producer.queue.topic_queues import TopicQueues
from vq.client.producer.spread.spread import Shares
from vq.model import Message, SendResult

class FutureFields: ...

class Appender:
    @property
    def topics(self) -> dict[str, TopicQueues]: ...
    @property
    def space(self) -> int: ...
    @property
    def places(self) -> int: ...
    awake: bool
    closed: bool
    def __new__(
        cls,
        message: type[Message],
        future: type[SendFuture],
        queues: type[TopicQueues],
        clock: Callable[[], float],
        timeout_s: float,
        wake: Callable[[], object],
        heads_of_tags: dict[str, Head],
        space: int,
        places: int,
        overhead: int,
        /,
    ) -> Appender: ...
    def append(
        self, message: Message, callback: SendCallback | None, timeout: float | None, /
    ) -> SendFuture | None: ...
    def append_unheard(
        self, message: Message, callbacks: dict[str, SendCallback], timeout: float | None, /
    ) -> SendFuture | None: ...
    def put(self, future: SendFuture, queues: TopicQueues, /) -> bool: ...
    def prepare(
        self,
        messages: list[Any],
        places: list[int],
        count: int,
        size: int,
        deadline: float,
        queues: TopicQueues,
        partition: int,
        /,
    ) -> list[SendFuture]: ...
    def one_topic(self, messages: list[Any], /) -> str | None: ...
    def use(self, size: int, count: int, /) -> None: ...

class SendShortcut:
    def __new__(
        cls,
        function: Callable[..., Any],
        rest: str,
        not_plain: int,
        is_oneway: bool,
        /,
    ) -> SendShortcut: ...

def bytes_of(futures: Sequence[SendFuture], /) -> int: ...
def columns(futures: list[SendFuture], /) -> tuple[list[bytes], list[Head | None], float]: ...
def divide(futures: list[SendFuture], /) -> Shares[SendFuture] | None: ...
def fitting(futures: list[Any], most: int, more: int, /) -> int: ...
def last_waiting(sends: list[Any], /) -> SendFuture | None: ...
def outcomes(sends: list[Any], kind: type[Any], /) -> tuple[list[Any], bool]: ...
def tell(
    futures: list[SendFuture],
    partition: int,
    offset: int,
    sizes: list[int],
    ids: list[int],
    result: type[SendResult],
    quiet: type[Any],
    unasked: SendResult,
    report: Callable[[BaseException], object],
    /,
) -> None: ...
