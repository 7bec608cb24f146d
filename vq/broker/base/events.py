"""Events that change states, with what each means: a table of transitions is about them."""

import enum
from typing import Self


class StateEvent(enum.StrEnum):
    """What happens to a thing that has states; a member is its name and its meaning.

    Attributes:
        meaning: For the page of reference.
    """

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        """Return the event, a text."""
        made = str.__new__(cls, name)
        made._value_, made.meaning = name, meaning
        return made
