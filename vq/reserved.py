"""Names that belong to vq: topics that it makes for itself, and headers that it gives to messages.

    _vq.delayed         messages that are delivered later
    _vq.transactions    messages of transactions, and what was decided of them
    _vq.shared          which messages members of shared groups have
    _vq.retry.<group>   messages that a group is to try again later
    _vq.dlq.<group>     dead letters: messages that a group has given up
    _vq.replies.<topic> replies to the requests that were sent to a topic
    _vq.probe.<group>   messages of `vq lag-exporter --probe` to a group of brokers

Only this module knows how they are written. Everything that begins so is reserved, also for what
later versions need. Pure.

A copy of a message in such a topic has the key, tag, content, id and headers of the message, and
these headers more:

    _vq.origin          orders-3@1024        topic, partition and offset of the message
    _vq.origin-number   17                   its number in the partition, where it is known
    _vq.attempts        3                    how often listeners were called with it
    _vq.redelivery      1                    in a retry topic: which delivery from there it is
    _vq.first-failed    1764360000000        when the first call failed, in ms since 1970
    _vq.reason          ValueError: no id    why the last call failed, its beginning
    _vq.raw-bytes       4711                 no node has a message there that can be read; the
                                             content is the beginning of so many bytes that it has

A dead letter that is sent again has ``_vq.resent``, the place of the dead letter, and no other; of
a message that a member skipped it is the place of the message. A message with ``_vq.settled`` is no
dead letter: it tells what became of some.

A request has two headers more, which go along with every copy of it and may be sent on; the reply
has the second one, and the tag:

    _vq.reply-to        _vq.replies.prices-3/9f0c41   partition and tag of the reply
    _vq.correlation     5f1d…                         of this request alone
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from vq.errors import InvalidArgument
from vq.limits import NAME_CHARS_MAX
from vq.shown import shown

#: Begins the name of every reserved topic, and of every header that vq gives to a message.
PREFIX: Final = "_vq."

_PROBE: Final = f"{PREFIX}probe."
_REPLIES: Final = f"{PREFIX}replies."

#: The topic of messages that are delivered later.
DELAYED_TOPIC: Final = f"{PREFIX}delayed"

#: The topic of transactions that are not decided, or not delivered.
TRANSACTIONS_TOPIC: Final = f"{PREFIX}transactions"

#: The topic of what members of shared groups have, and what became of it.
SHARED_TOPIC: Final = f"{PREFIX}shared"


class Purpose(StrEnum):
    """What a reserved topic of a consumer group is for; the word in its name."""

    RETRY = "retry"
    DEAD_LETTERS = "dlq"


#: The longest name of a group that can have all of them.
GROUP_CHARS_MAX: Final = NAME_CHARS_MAX - max(len(f"{PREFIX}{each}.") for each in Purpose)


def is_reserved(name: str) -> bool:
    """Return whether a topic, or a header, is vq's own."""
    return name.startswith(PREFIX)


def topic_of(purpose: Purpose, group: str) -> str:
    """Return the name of a group's reserved topic.

    Raises:
        InvalidArgument: It would be longer than a name may be.
    """
    name = f"{PREFIX}{purpose}.{group}"
    if len(name) > NAME_CHARS_MAX:
        raise InvalidArgument(
            f"group {shown(group)} ({len(group)} characters) can have no topic {PREFIX}{purpose}."
            f"<group>: names of topics have at most {NAME_CHARS_MAX} characters; give it a name of "
            f"at most {GROUP_CHARS_MAX}"
        )
    return name


def probe_topic(group: str) -> str:
    """Return the name of the topic with which a broker group is probed.

    Raises:
        InvalidArgument: It would be longer than a name may be.
    """
    name = f"{_PROBE}{group}"
    if len(name) > NAME_CHARS_MAX:
        raise InvalidArgument(
            f"broker group {shown(group)} ({len(group)} characters) can have no topic "
            f"{PREFIX}probe.<group>: names of topics have at most {NAME_CHARS_MAX} characters"
        )
    return name


def is_probe(topic: str) -> bool:
    """Return whether a topic is one with which a broker group is probed."""
    return topic.startswith(_PROBE)


def replies_topic(topic: str) -> str:
    """Return the name of the topic with the replies to what is sent to a topic.

    Raises:
        InvalidArgument: It would be longer than a name may be.
    """
    name = f"{_REPLIES}{topic}"
    if len(name) > NAME_CHARS_MAX:
        raise InvalidArgument(
            f"topic {shown(topic)} ({len(topic)} characters) takes no requests: its replies go to "
            f"{_REPLIES}<topic>, and names of topics have at most {NAME_CHARS_MAX} characters; "
            f"give it a name of at most {NAME_CHARS_MAX - len(_REPLIES)}"
        )
    return name


def answered_topic(topic: str) -> str | None:
    """Return the topic whose requests are answered in this one; None: it is no topic of replies."""
    begins = topic.startswith(_REPLIES) and topic != _REPLIES
    return topic.removeprefix(_REPLIES) if begins else None


def group_of(topic: str, purpose: Purpose) -> str | None:
    """Return the group whose reserved topic this is; None if it is none of this purpose."""
    begin = f"{PREFIX}{purpose}."
    return topic.removeprefix(begin) if topic.startswith(begin) and topic != begin else None


def check_own_name(topic: str) -> str:
    """Return the name of a topic that users create or send to.

    Raises:
        InvalidArgument: It is reserved.
    """
    given: object = topic
    if isinstance(given, str) and is_reserved(given):
        raise InvalidArgument(
            f"topic {shown(topic)}: names that begin with {PREFIX!r} are reserved for topics that "
            "vq makes for itself, and only vq sends to them; choose another name. `vq dlq resend` "
            "sends dead letters again"
        )
    return topic


def check_may_grow(topic: str) -> None:
    """Return if a topic may get more partitions.

    Raises:
        InvalidArgument: It is the journal of transactions, or of shared groups.
    """
    if topic in {TRANSACTIONS_TOPIC, SHARED_TOPIC}:
        whose = "transactional id" if topic == TRANSACTIONS_TOPIC else "shared group"
        raise InvalidArgument(
            f"topic {topic!r} gets no more partitions: a {whose} belongs to one of them, chosen by "
            "how many there are, and what is known of it is known only there"
        )


def check_may_go(topic: str) -> None:
    """Return if an operator may delete a topic.

    Raises:
        InvalidArgument: It has what clients of the whole cluster wait for.
    """
    if topic == SHARED_TOPIC:
        raise InvalidArgument(
            f"topic {topic!r} is not deleted: only there is it known which messages shared groups "
            "have handled"
        )
    if topic in {DELAYED_TOPIC, TRANSACTIONS_TOPIC}:
        raise InvalidArgument(
            f"topic {topic!r} is not deleted: what it has of messages that were acknowledged is "
            "nowhere else. `vq delayed list` and `vq tx list` show what waits there"
        )


# Headers of copies ----------------------------------------------------------------------------
ORIGIN: Final = f"{PREFIX}origin"
ORIGIN_NUMBER: Final = f"{PREFIX}origin-number"
ATTEMPTS: Final = f"{PREFIX}attempts"
REDELIVERY: Final = f"{PREFIX}redelivery"
FIRST_FAILED: Final = f"{PREFIX}first-failed"
REASON: Final = f"{PREFIX}reason"
RAW_BYTES: Final = f"{PREFIX}raw-bytes"
RESENT: Final = f"{PREFIX}resent"
SETTLED: Final = f"{PREFIX}settled"
# Headers of requests and replies ---------------------------------------------------------------
REPLY_TO: Final = f"{PREFIX}reply-to"
CORRELATION: Final = f"{PREFIX}correlation"
_OF_REQUESTS: Final = frozenset((REPLY_TO, CORRELATION))
#: So much of a reason is kept: a header is no place for a trace.
REASON_CHARS_MAX: Final = 500
_PLACE: Final = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]{1,10})@(?P<offset>[0-9]{1,20})")
_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_ADDRESS: Final = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]{1,10})/(?P<tag>[0-9A-Za-z]{1,64})")


class MessageOrigin(NamedTuple):
    """Where a message was stored, of which another one is a copy.

    Attributes:
        topic, partition, offset: Its topic, the number of its partition, the offset of its record.
        number: How many messages the partition had before it; None: not known.
    """

    topic: str
    partition: int
    offset: int
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


class DeliveryFailure(NamedTuple):
    """Why a message was copied: what its listeners made of it, or that nobody could read it.

    Attributes:
        attempts: How often they were called with it; 0: nobody could read it.
        first_ms: When the first call failed, in milliseconds since 1970.
        reason: Why the last one failed.
        raw_bytes: No node has a record there that can be read, only so many bytes. The content of
            the copy is their beginning, at most 1 MiB. None: the copy is of a message.
    """

    attempts: int
    first_ms: int
    reason: str
    raw_bytes: int | None = None


def headers_of_copy(
    origin: MessageOrigin, failure: DeliveryFailure, redelivery: int = 0
) -> dict[str, str]:
    """Return the headers that a copy has beside those of the message.

    Args:
        origin, failure: Of the message.
        redelivery: In a retry topic, which delivery from there it is, from 1 on; 0: in no such one.
    """
    reason = failure.reason.encode(errors="backslashreplace").decode()
    headers = {
        ORIGIN: str(origin),
        ATTEMPTS: str(failure.attempts),
        FIRST_FAILED: str(failure.first_ms),
        REASON: reason[:REASON_CHARS_MAX],
    }
    if redelivery:
        headers[REDELIVERY] = str(redelivery)
    if failure.raw_bytes is not None:
        headers[RAW_BYTES] = str(failure.raw_bytes)
    return headers if origin.number is None else {**headers, ORIGIN_NUMBER: str(origin.number)}


class ReplyAddress(NamedTuple):
    """Where the reply to a request goes, and whose it is.

    Attributes:
        topic, partition, tag: The topic of replies, the number of its partition, the tag of the
            program that asks.
        correlation: Of the request; the reply has the same.
    """

    topic: str
    partition: int
    tag: str
    correlation: str

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the request."""
        return {
            REPLY_TO: f"{self.topic}-{self.partition}/{self.tag}",
            CORRELATION: self.correlation,
        }


def address_in(headers: Mapping[str, str] | None) -> ReplyAddress | None:
    """Return where the reply to a message goes; None: it is no request."""
    found = _ADDRESS.fullmatch((headers or {}).get(REPLY_TO, ""))
    correlation = (headers or {}).get(CORRELATION, "")
    if found is None or not correlation or answered_topic(found["topic"]) is None:
        return None
    return ReplyAddress(found["topic"], int(found["partition"]), found["tag"], correlation)


def is_reserved_header(name: str) -> bool:
    """Return whether only vq gives a header to a message; those of requests travel with it."""
    return name.startswith(PREFIX) and name not in _OF_REQUESTS


def own_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers that an application gave a message, and those of a request."""
    return {name: text for name, text in (headers or {}).items() if not is_reserved_header(name)}


def origin_in(headers: Mapping[str, str] | None, name: str = ORIGIN) -> MessageOrigin | None:
    """Return the place that a header names; None if there is none, or it names no place."""
    found = _PLACE.fullmatch((headers or {}).get(name, ""))
    if found is None:
        return None
    number = _number(headers, ORIGIN_NUMBER) if name == ORIGIN else None
    return MessageOrigin(found["topic"], int(found["partition"]), int(found["offset"]), number)


def failure_in(headers: Mapping[str, str] | None) -> DeliveryFailure | None:
    """Return why a copy was made; None: it does not say."""
    attempts, first_ms = _number(headers, ATTEMPTS), _number(headers, FIRST_FAILED)
    if headers is None or attempts is None or first_ms is None:
        return None
    reason, raw_bytes = headers.get(REASON, ""), _number(headers, RAW_BYTES)
    return DeliveryFailure(attempts, first_ms, reason, raw_bytes)


def redelivery_in(headers: Mapping[str, str] | None) -> int:
    """Return how often a message was put into a retry topic; 0: it does not say."""
    return _number(headers, REDELIVERY) or 0


def _number(headers: Mapping[str, str] | None, name: str) -> int | None:
    text = (headers or {}).get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else None
