"""What a node tells of itself: facts, offered by the part of the node that knows them.

The facts of all parts are one table. What is told anywhere is a view of it:

    metrics   the facts with a name for Prometheus   (``observe.metrics``)
    STATUS    those with a field there               (``observe.status``)
    load      those with a field in what is written to ZooKeeper   (``observe.load``)

A fact is read only while somebody asks for it. Not in here: the numbers, which are counted anyway;
how a view shows them; what is told of one partition, which only STATUS tells.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, TypeVar

from vq.broker.base.histogram import Histogram

T = TypeVar("T")


class FactKind(enum.Enum):
    """How the value of a fact changes."""

    GAUGE = enum.auto()
    COUNTER = enum.auto()
    HISTOGRAM = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact(Generic[T]):
    """One fact of a thing: a number with a meaning, or a text.

    Attributes:
        read: Returns it; None: it is not known.
        metric: Its name for Prometheus, with its unit; "": it is no metric.
        meaning: Of the metric, for operators. That of a field stands in ``wire.proto``.
        kind: How it changes.
        status: Its field in STATUS; "": it has none.
        load: Its field in the load; "": it has none.
        ms: ``read`` returns milliseconds, as STATUS tells them. A metric is in seconds.
    """

    read: Callable[[T], float | str | Histogram | None]
    metric: str = ""
    meaning: str = ""
    kind: FactKind = FactKind.GAUGE
    status: str = ""
    load: str = ""
    ms: bool = False


def gauge(
    metric: str,
    meaning: str,
    read: Callable[[T], float | None],
    *,
    status: str = "",
    ms: bool = False,
) -> Fact[T]:
    """Return a fact that rises and falls."""
    return Fact(read=read, metric=metric, meaning=meaning, status=status, ms=ms)


def counter(metric: str, meaning: str, read: Callable[[T], float], *, status: str = "") -> Fact[T]:
    """Return a fact that only rises; Prometheus adds ``_total`` to its name."""
    return Fact(read=read, metric=metric, meaning=meaning, kind=FactKind.COUNTER, status=status)


def counters(prefix: str, **meanings: str) -> Iterator[Fact[Any]]:
    """Yield facts that only rise, with their meanings: attributes of the thing.

    Args:
        prefix: Of their names for Prometheus; the rest is the name of the attribute.
        meanings: By attribute.
    """
    for name, meaning in meanings.items():
        yield counter(f"{prefix}{name}", meaning, attrgetter(name))


def histogram(metric: str, meaning: str, read: Callable[[T], Histogram]) -> Fact[T]:
    """Return a fact that is a histogram."""
    return Fact(read=read, metric=metric, meaning=meaning, kind=FactKind.HISTOGRAM)


@dataclass(frozen=True, kw_only=True)  # with slots, Python 3.11 cannot make a ``Facts[Lag](…)``
class Facts(Generic[T]):
    """The facts of a thing, or of each of several that are alike.

    Attributes:
        facts: The facts of one thing.
        things: Returns the things, each with the values of its labels.
        labels: The names of the labels; none: there is one thing.
        status: The field of STATUS with a message for each thing, which has a field for each label,
            too; "": the facts are fields of STATUS itself.
    """

    facts: Sequence[Fact[T]]
    things: Callable[[], Mapping[tuple[str, ...], T]]
    labels: tuple[str, ...] = ()
    status: str = ""

    @classmethod
    def of(cls, thing: T, *facts: Fact[T]) -> "Facts[T]":
        """Return the facts of one thing."""
        things: Mapping[tuple[str, ...], T] = {(): thing}
        return cls(facts=facts, things=lambda: things)


#: The facts of a node.
Table = Sequence[Facts[Any]]


def table(*parts: Iterable[Facts[Any]]) -> Table:
    """Return the facts of all parts as one table."""
    return tuple(chain.from_iterable(parts))
