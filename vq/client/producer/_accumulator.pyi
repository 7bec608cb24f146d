from collections.abc import Callable

from vq.client.future import SendCallback, SendFuture
from vq.client.producer.intake.stages import Head
from vq.client.producer.queue.topic_queues import TopicQueues
from vq.model import Message

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
    def use(self, size: int, count: int, /) -> None: ...
