"""Messages of a shared group that calls have taken, and that nobody has settled. Pure."""

from typing import Final

from vq.client.consumer.shared.handles import MessageHandle

_LOOK_AT_LEAST: Final = 1_000


class GivenMessages:
    """See the module. What an application forgets stays no longer than its lease."""

    def __init__(self) -> None:
        self._until: dict[MessageHandle, float] = {}
        self._look_at = _LOOK_AT_LEAST

    def add(self, handle: MessageHandle, until: float, now: float) -> None:
        """Note a message that was taken, or whose lease is another one now."""
        self._until[handle] = until
        if len(self._until) >= self._look_at:
            self._until = {each: at for each, at in self._until.items() if at > now}
            self._look_at = max(_LOOK_AT_LEAST, 2 * len(self._until))

    def remove(self, handle: MessageHandle) -> None:
        """Note that a message is settled."""
        self._until.pop(handle, None)

    def left(self, now: float) -> list[MessageHandle]:
        """Return those whose lease is not over, and forget all."""
        left = [handle for handle, until in self._until.items() if until > now]
        self._until.clear()
        return left
