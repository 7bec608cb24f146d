"""What a consumer subscribes to: topics by name, and topics whose names match a pattern.

No two subscriptions may be of one topic, so each topic has one listener and one filter.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from vq import limits
from vq.bounds import check_between
from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.by_mode import check_listener_for
from vq.client.consumer.deliver.delivery import Executor
from vq.client.consumer.deliver.giving_up import Called
from vq.errors import InvalidArgument
from vq.message_filter import ALL, Filter, Wanting
from vq.model import check_name
from vq.topic_pattern import check_pattern, is_pattern, matching, overlap


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic, or the topics of a pattern: how much to fetch at a time, what, and for whom."""

    topic_or_pattern: str
    length: int
    wanted: Filter
    executor: Executor
    called: Called


class Subscriptions:
    """Those of one consumer, each with another name or pattern."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._by_name: dict[str, Subscription] = {}
        self._retries: Subscription | None = None

    def __iter__(self) -> Iterator[Subscription]:
        retries = () if self._retries is None else (self._retries,)
        return iter((*self._by_name.values(), *retries))

    def __len__(self) -> int:
        return len(self._by_name)

    def add(
        self,
        name: str,
        length: int,
        message_filter: Wanting,
        executor: Executor,
        called: Called,
    ) -> None:
        """Add one; see ``MessageConsumer.subscribe``."""
        given: object = name
        if isinstance(given, str) and is_pattern(given):
            check_pattern(given)
        else:
            check_name("topic", name)
        if name in self._by_name:
            raise InvalidArgument(f"topic {name!r} is subscribed already")
        for other in self._by_name:
            if overlap(other, name):
                raise InvalidArgument(
                    f"{name!r} and {other!r}, which is subscribed already, may be the same topic, "
                    "and each topic has one listener and one filter; make one subscription of them"
                )
        check_between("length", length, 1, limits.FETCH_BYTES_MAX, "bytes")
        check_listener_for(self._config, called.listener)
        wanted = Filter.of(message_filter)
        self._by_name[name] = Subscription(name, length, wanted, executor, called)

    def add_retries(self, topic: str, length: int, executor: Executor, called: Called) -> None:
        """Add the group's retry topic, which is read once there is one. May be called again."""
        self._retries = Subscription(topic, length, ALL, executor, called)

    @property
    def retry_topic(self) -> str:
        """The group's retry topic; "": nobody here could handle what is in it."""
        return "" if self._retries is None else self._retries.topic_or_pattern

    def of(self, topic: str) -> Subscription:
        """Return the one that a topic belongs to, by its name or by a pattern."""
        if self._retries is not None and topic == self._retries.topic_or_pattern:
            return self._retries
        name = topic if topic in self._by_name else matching(self._by_name, topic)
        assert name is not None, f"nothing is subscribed that matches {topic}"
        return self._by_name[name]

    def names(self, topic: str) -> bool:
        """Whether a topic is subscribed by its name."""
        return topic in self._by_name or topic == self.retry_topic

    def filters(self) -> dict[str, Filter]:
        """Return the filter of each name and pattern, without the retry topic."""
        return {name: each.wanted for name, each in self._by_name.items()}
