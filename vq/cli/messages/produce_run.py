"""One run of `vq produce`: its lines become messages, at the rate that was asked for."""

import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from vq.blocking import MessageProducer
from vq.cli.messages.lines import (
    InputFormat,
    LongLine,
    too_long,
)
from vq.cli.messages.outcomes import Tally
from vq.client.producer.spread.partitioner import (
    TopicPartitions,
)
from vq.errors import InvalidArgument, Refused
from vq.model import Message

#: After a wait of the producer, ``--rate`` makes up for at most so long.
_CATCH_UP_S = 0.01


class OnePartition:
    """Every message goes to the same partition."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def choose(self, message: Message, partitions: TopicPartitions) -> int:
        """See ``Partitioner.choose``."""
        return self._partition


class LineRate:
    """A steady rate: says how long to wait before the next line.

    A pause of the input or a full buffer is not made up for later: no burst follows it. Waits that
    last a little too long are.

    Args:
        rate: Lines a second.
        now: Monotonic time; the first line is due now.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._interval_s = 1 / rate
        self._due = now

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next line is due, 0 if it is; count it as sent then."""
        due = max(self._due, now - _CATCH_UP_S)
        self._due = due + self._interval_s
        return max(0.0, due - now)


class ProduceRun:
    """One run of the command: reads lines, sends them, counts what becomes of them.

    Args:
        producer: Sends the messages.
        form: What a line means.
        tally: Counts.
        pace: When the next line is sent; None: at once.
        delay: When messages are delivered; empty: at once.
    """

    def __init__(
        self,
        producer: MessageProducer,
        form: InputFormat,
        tally: Tally,
        pace: LineRate | None,
        delay: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._producer = producer
        self._form = form
        self._tally = tally
        self._pace = pace
        self._delay = delay

    def send_all(self, lines: Iterable[bytes | LongLine]) -> None:
        """Send every line; return once each has its outcome."""
        pace = self._pace
        for number, line in enumerate(lines, start=1):
            if pace is not None:
                time.sleep(pace.wait_s(time.monotonic()))
            self._tally.begin(number, line)
            try:
                self._send(self._message(line), number)
            except (Refused, InvalidArgument) as error:
                self._tally.ended(number, None, error)
        self._producer.flush()

    def _message(self, line: bytes | LongLine) -> Message:
        if isinstance(line, LongLine):
            self._tally.size += line.size
            raise too_long(line)
        try:
            message = self._form.message(line)
        except InvalidArgument:
            self._tally.size += len(line)
            raise
        self._tally.size += len(message.content)
        self._tally.keyless += message.key is None and self._form.tells_keyless
        return message._replace(**self._delay) if self._delay else message

    def _send(self, message: Message, number: int) -> None:
        ended = self._tally.ended
        self._producer.send_async(message, lambda result, error: ended(number, result, error))
