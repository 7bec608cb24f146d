"""What rules find wrong, as lines: each behind the name of its rule."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

E = TypeVar("E")

VIOLATIONS_MAX: Final = 20


def violations(checks: Iterable[Callable[[E], Iterator[str]]], evidence: E) -> list[str]:
    """Return what is wrong, empty if nothing is; at most ``VIOLATIONS_MAX`` lines."""
    found = (
        f"{check.__name__.removeprefix('_')}: {each}"
        for check in checks
        for each in check(evidence)
    )
    return list(islice(found, VIOLATIONS_MAX))
