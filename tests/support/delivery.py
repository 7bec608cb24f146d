"""Records the calls of a delivery's hooks."""

import math
import time

from vq.client.consumer.delivery import DeliveryHooks
from vq.client.consumer.fetcher import NO_REST, Rest
from vq.client.consumer.permit import Permit
from vq.errors import VqError


class Told:
    """Hooks that record their calls, from any thread."""

    def __init__(self) -> None:
        self.consumed = 0
        self.rest = NO_REST
        self.errors: list[VqError] = []
        self.went_on = 0
        self.again: list[int] = []
        self.hooks = DeliveryHooks(
            consumed=self._consumed,
            stuck=self.errors.append,
            went_on=self._went_on,
            fetch_again=self.again.append,
        )

    def _consumed(self, size: int, rest: Rest) -> None:
        self.consumed += size
        self.rest = rest

    def _went_on(self) -> None:
        self.went_on += 1


def endless() -> Permit:
    """Return a permit that never lapses by itself."""
    permit = Permit(time.monotonic)
    permit.until = math.inf
    return permit
