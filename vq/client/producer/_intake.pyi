from collections.abc import Callable

from vq.client.future import SendCallback, SendFuture
from vq.client.producer.head import Head
from vq.client.producer.intake import Line
from vq.model import Message

def quicken(type: type[Message], /) -> None: ...

class Intake:
    @property
    def lines(self) -> dict[str, Line]: ...
    most: int
    awake: bool
    def __new__(
        cls,
        message: type[Message],
        future: type[SendFuture],
        clock: Callable[[], float],
        timeout_s: float,
        wake: Callable[[], object],
        heads_of_tags: dict[str, Head],
        bytes_max: int,
        /,
    ) -> Intake: ...
    def take(
        self, message: Message, callback: SendCallback | None, timeout: float | None, /
    ) -> SendFuture | None: ...
