from typing import TypeVar

T = TypeVar("T", bound=type)

def construct(type: T, /) -> T: ...
