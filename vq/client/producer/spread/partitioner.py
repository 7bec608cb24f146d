"""Chooses the partition of a message: the strategies by name, and an application's own.

A key *directs* its message: it chooses the partition (``key_partition``; the table says "hash" for
integers, too), and a dead broker does not change this choice. Messages that nothing directs are
*spread* over the partitions that are available now, see ``spread``.

| strategy | a message with a key | a message without a key |
| --- | --- | --- |
| none given | hash of the key | round robin |
| ``hash`` | hash of the key | refused |
| ``round-robin`` | round robin | round robin |
| ``random`` | a random partition | a random partition |
| ``sticky`` | one partition until a batch is full | the same |
| ``least-stored`` | more to partitions with fewer bytes | the same |
| ``headroom`` | more to brokers with more throughput to spare | the same |
| ``least-loaded`` | more to brokers with less to do | the same |
"""

import enum
import operator
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, Protocol, cast, runtime_checkable

from vq.client.kinds import check_arguments, check_function
from vq.errors import InvalidArgument
from vq.model import Key, Message
from vq.shown import shown, shown_error

#: Largest number that counts as a load; with larger ones sums might overflow.
NUMBER_MAX: Final = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoad:
    """The load of a partition and of its broker. Invariant: numbers are in [0, ``NUMBER_MAX``].

    Attributes:
        broker: Which partitions share a broker.
        known: Whether the load of the broker is known; if not, the fields from
            ``disk_used_ratio`` on mean nothing.
        stored_bytes: Bytes of the partition at its broker; None: not known.
        disk_used_ratio: The share of the broker's disk in use; None: not known.
        bytes_per_s: What comes in at the broker, also for other topics.
        capacity_bytes_per_s: What could come in; 0: not known.
        busy: The share of time, in [0, 1], in which the broker is busy.
        queue_depth: Requests that wait at the broker.
        flush_ms: How long one flush takes there.
    """

    broker: str = ""
    known: bool = False
    stored_bytes: float | None = None
    disk_used_ratio: float | None = None
    bytes_per_s: float = 0.0
    capacity_bytes_per_s: float = 0.0
    busy: float = 0.0
    queue_depth: float = 0.0
    flush_ms: float = 0.0

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= NUMBER_MAX:
                raise ValueError(f"{name} = {value} is outside [0, {NUMBER_MAX:g}]")


_NUMBERS: Final = tuple(
    field.name for field in fields(PartitionLoad) if field.name not in {"broker", "known"}
)


class Sense(enum.StrEnum):
    """What "least used" means: which load decides how much a partition gets."""

    STORED = "least-stored"
    HEADROOM = "headroom"
    LOAD = "least-loaded"


class Keys(enum.Enum):
    """What a strategy does with a message's key."""

    DIRECT = enum.auto()  # its hash chooses the partition
    REQUIRED = enum.auto()  # the same, and a message without a key is refused
    IGNORED = enum.auto()


class SpreadKind(enum.Enum):
    """How a strategy spreads the messages that no key directs."""

    RING = enum.auto()
    RANDOM = enum.auto()
    STICKY = enum.auto()
    SINGLE = enum.auto()  # of an ordered producer, whatever its strategy is


@dataclass(frozen=True, slots=True)
class Strategy:
    """A named way to choose partitions.

    Attributes:
        keys: What a key does.
        spread: How messages are spread that no key directs.
        sense: Which load gives the partitions their weights; None: all count the same.
    """

    keys: Keys = Keys.IGNORED
    spread: SpreadKind = SpreadKind.RING
    sense: Sense | None = None


#: The strategy of a producer without one.
DEFAULT: Final = Strategy(Keys.DIRECT)
STRATEGIES: Final[Mapping[str, Strategy]] = {
    "hash": Strategy(Keys.REQUIRED),
    "round-robin": Strategy(),
    "random": Strategy(spread=SpreadKind.RANDOM),
    "sticky": Strategy(spread=SpreadKind.STICKY),
    **{sense.value: Strategy(sense=sense) for sense in Sense},
}


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """The partitions of a topic, as an application's partitioner sees them.

    Attributes:
        topic: Its name.
        count: How many partitions it has.
        writable: Those that are available now, in rising order; may be empty. See
            ``OnUnavailable`` for what that means.
        loads: The load of each partition's broker, for a partitioner that ``wants_load``; empty
            until it was read for the first time, and after partitions were added until it is read
            again. ``stored_bytes`` is not read.
    """

    topic: str
    count: int
    writable: Sequence[int]
    loads: Sequence[PartitionLoad] = ()


@runtime_checkable
class Partitioner(Protocol):
    """An application's own choice of partitions.

    Sending threads call it without a lock, several at once. It may block, which delays its message,
    and it may send messages. On the loop of ``vq.aio`` it must not block. An exception refuses the
    message: the sender gets ``InvalidArgument``, and the exception is its cause.

    If it has an attribute ``wants_load`` that is true, the producer reads the load of the brokers
    every few seconds, for ``TopicPartitions.loads``. A function may have the attribute, too.
    """

    def choose(self, message: Message, partitions: TopicPartitions) -> int:
        """Return a number in ``[0, partitions.count)``."""
        ...


#: What ``ProducerConfig.partitioner`` takes.
PartitionerSetting = str | Partitioner | Callable[[Message, TopicPartitions], int] | None
Choose = Callable[[Message, TopicPartitions], int]


def strategy_of(setting: PartitionerSetting) -> Strategy | None:
    """Return the strategy that a setting names; None for an application's own partitioner.

    Raises:
        InvalidArgument: It is neither a known name, nor a callable, nor has a method ``choose``.
    """
    if setting is None:
        return DEFAULT
    if isinstance(setting, str):
        strategy = STRATEGIES.get(setting)
        if strategy is None:
            raise InvalidArgument(f"partitioner = {setting!r}; {_KNOWN}")
        return strategy
    if isinstance(setting, type):
        raise InvalidArgument(
            f"partitioner = {setting.__name__} is a class; give an instance of it: "
            f"{setting.__name__}(...)"
        )
    if not callable(setting) and not callable(getattr(setting, "choose", None)):
        raise InvalidArgument(
            f"partitioner = {shown(setting)} ({type(setting).__name__}); {_KNOWN}"
        )
    choose = own_choice(setting)
    check_function("partitioner", choose, "give a plain function, which returns the number")
    check_arguments(
        "partitioner",
        choose,
        2,
        "give a function of the message and of the vq.TopicPartitions of its topic",
    )
    return None


_KNOWN = (
    f"give one of {', '.join(STRATEGIES)}, a function of the message and the topic's partitions, "
    "or an object with such a method named choose"
)


def own_choice(setting: PartitionerSetting) -> Choose | None:
    """Return the function that chooses for an application's own partitioner, None for a name."""
    if setting is None or isinstance(setting, str):
        return None
    choose = getattr(setting, "choose", None)
    return cast("Choose", choose if callable(choose) else setting)


def wants_load(setting: PartitionerSetting) -> bool:
    """Return whether an application's own partitioner looks at the load."""
    return own_choice(setting) is not None and bool(getattr(setting, "wants_load", False))


def chosen_by(choose: Choose, message: Message, partitions: TopicPartitions) -> int:
    """Return the partition that an application's partitioner chooses.

    Raises:
        InvalidArgument: It raised, or there is no such partition.
    """
    try:
        chosen = choose(message, partitions)
    except Exception as error:
        raise InvalidArgument(
            f"the partitioner raised {shown_error(error)}; the message to {partitions.topic} is "
            "not sent"
        ) from error
    return checked_choice(chosen, partitions.topic, partitions.count)


def checked_choice(chosen: object, topic: str, count: int) -> int:
    """Return the partition that an application's partitioner chose.

    Raises:
        InvalidArgument: There is no such partition.
    """
    try:
        number = operator.index(chosen)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - the user's code; mostly it is no number
        number = -1
    if not 0 <= number < count:
        raise InvalidArgument(
            f"the partitioner chose partition {shown(chosen)} of {topic}, which has partitions 0 "
            f"to {count - 1}"
        )
    return number


def key_partition(key: Key, partitions: int) -> int:
    """Return the partition of a key.

    An integer goes to the integer modulo the number of partitions, in [0, partitions) for negative
    ones, too: with 5 partitions 1001 goes to 1, and -1 goes to 4. So a person can tell the
    partition of an id. Arithmetic and encoding are those of the built-in type, whatever a subclass
    overrides.

    Text and bytes go to the CRC-32 of their bytes modulo the number of partitions. The bytes of a
    text are UTF-8, so ``"a"`` and ``b"a"`` go to the same partition. Every language has CRC-32
    (zlib, IEEE 802.3), and it does not change. Example: the CRC-32 of ``a`` is 0xE8B7BE43, so with
    5 partitions ``a`` goes to 3904355907 % 5 = 2.
    """
    if isinstance(key, int):
        return int.__mod__(key, partitions)
    return zlib.crc32(str.encode(key) if isinstance(key, str) else key) % partitions
