from asyncio import AbstractEventLoop, Task
from collections.abc import Callable
from typing import Any

from vq.client.consumer.deliver.inbox import Inbox
from vq.client.consumer.deliver.permit import Permit

class Asking:
    task: Task[Any] | None
    def __init__(
        self,
        inbox: Inbox,
        permit: Permit,
        loop: AbstractEventLoop,
        task_of: Callable[[AbstractEventLoop], Task[Any] | None],
    ) -> None: ...
