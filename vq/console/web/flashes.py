"""What is to be said on the next page of a visitor: bounded, and gone when it was said."""

from collections import OrderedDict
from typing import Final

_VISITORS_MAX: Final = 1_000
_TEXTS_MAX: Final = 10


class Flashes:
    """Texts by visitor. Loop-bound."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, list[str]] = OrderedDict()

    def add(self, visitor: str, text: str) -> None:
        """Have a text said."""
        self._texts.setdefault(visitor, []).append(text)
        del self._texts[visitor][:-_TEXTS_MAX]
        while len(self._texts) > _VISITORS_MAX:
            self._texts.popitem(last=False)

    def take(self, visitor: str) -> list[str]:
        """Return what is to be said now."""
        return self._texts.pop(visitor, [])
