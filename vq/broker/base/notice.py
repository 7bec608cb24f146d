"""What happens in one part of a node, told to those parts that act on it."""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Notice(Generic[P]):
    """The part in which it happens tells; parts that are made later listen.

    So a part is given what it needs when it is made, and knows nothing of those made after it.
    """

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: list[Callable[P, object]] = []

    def listen(self, call: Callable[P, object]) -> None:
        """Have ``call`` called from now on, after those that listen already."""
        self._listeners.append(call)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call those who listen, one after the other."""
        for call in self._listeners:
            call(*args, **kwargs)
