"""Messages and answers as JSON: what a request may say, and what an answer says.

A content is one of ``json`` (any value, stored as compact JSON in UTF-8), ``text`` (stored as
UTF-8) and ``base64``. A key is text, an integer, or ``{"base64": …}``. Integers that JavaScript
cannot hold are text: ids always, keys as ``{"integer": "9007199254740993"}``. Pure.
"""

import base64
import binascii
import json
import math
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from vq import limits
from vq.client.config import StartPosition
from vq.errors import InvalidArgument
from vq.gateway.config import (
    ATTEMPT_CHARS_MAX,
    HANDLE_CHARS_MAX,
    LEASE_S_MAX,
    LEASE_S_MIN,
    MESSAGES_MAX,
    SUBSCRIPTIONS_MAX,
    WINDOW_MAX,
)
from vq.gateway.problems import BodyRefused
from vq.message_filter import Wanting, Where
from vq.model import Key, Message, SendResult, TopicPartition, time_ms_of

FormT = TypeVar("FormT", bound=BaseModel)
NAME: Final = r"^[A-Za-z0-9._-]+$"
BASE64: Final = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
PATTERN: Final = r"^[A-Za-z0-9._*?-]+$"
_HEADERS_MAX: Final = 256
#: The largest integer whose neighbours JavaScript tells apart.
_SAFE_INTEGER: Final = 2**53 - 1
#: What an error of a body says, where Pydantic speaks of inputs.
_SAID: Final = {"extra_forbidden": "there is no such field", "missing": "it is missing"}
#: How many of the errors of a body are told.
_ERRORS_TOLD: Final = 5
_INT64: Final = 2**63
#: Levels of a JSON value inside an answer.
_DEPTH_MAX: Final = 100

Name = Annotated[str, Field(pattern=NAME, max_length=limits.NAME_CHARS_MAX)]
Offset = Annotated[int, Field(ge=0, le=_SAFE_INTEGER)]
PartitionNumber = Annotated[int, Field(ge=0, lt=limits.PARTITIONS_PER_TOPIC_MAX)]


LeaseOfMessage = Annotated[
    float,
    Field(
        ge=limits.SHARED_LEASE_MS_MIN / 1_000,
        le=limits.SHARED_LEASE_MS_MAX / 1_000,
        allow_inf_nan=False,
    ),
]


class Form(BaseModel):
    """What JSON says; nothing else may be in it."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


# What a request says -----------------------------------------------------------------------------
class KeyBytes(Form):
    """A key that is bytes."""

    base64: Annotated[
        str,
        Field(
            max_length=2 * limits.PROPERTIES_BYTES_MAX,
            json_schema_extra={"contentEncoding": "base64", "pattern": BASE64},
        ),
    ]


class KeyInteger(Form):
    """An integer key that JavaScript cannot hold, in decimal digits."""

    integer: Annotated[str, Field(pattern=r"^-?[0-9]{1,19}$")]


FormOfKey = (
    Annotated[str, Field(max_length=limits.PROPERTIES_BYTES_MAX)]
    | Annotated[int, Field(ge=-_INT64, lt=_INT64)]
    | KeyBytes
    | KeyInteger
)


class MessageForm(Form):
    """A message to send: exactly one of ``json``, ``text`` and ``base64`` is its content."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [each]} for each in ("json", "text", "base64")]}
    )

    content_json: Any = Field(default=None, alias="json", description="Any JSON value.")
    text: str = Field(default="", max_length=limits.MESSAGE_BYTES_MAX)
    base64: str = Field(
        default="",
        max_length=2 * limits.MESSAGE_BYTES_MAX,
        json_schema_extra={"contentEncoding": "base64", "pattern": BASE64},
    )
    key: FormOfKey | None = Field(
        default=None, description="Chooses the partition: equal keys have the same one."
    )
    tag: Annotated[str, Field(min_length=1, max_length=limits.TAG_BYTES_MAX)] | None = None
    headers: Annotated[dict[str, str], Field(max_length=_HEADERS_MAX)] | None = None
    delay_s: Annotated[float, Field(ge=0, le=limits.DELAY_S_MAX, allow_inf_nan=False)] | None = (
        Field(default=None, description="Deliver it so many seconds later.")
    )
    deliver_at: AwareDatetime | None = Field(default=None, description="Deliver it at this time.")

    def content(self) -> bytes:
        """Return the bytes to store.

        Raises:
            BodyRefused: There is no content, or more than one, or it cannot be stored.
        """
        given = [
            name
            for name, field in (("json", "content_json"), ("text", "text"), ("base64", "base64"))
            if field in self.model_fields_set
        ]
        if len(given) != 1:
            raise BodyRefused(
                "a message has exactly one of json, text and base64; this one has "
                f"{' and '.join(given) or 'none'}"
            )
        if given == ["text"]:
            return _encoded("text", self.text)
        if given == ["base64"]:
            return _decoded("base64", self.base64)
        try:
            value = json.dumps(
                self.content_json, ensure_ascii=False, separators=(",", ":"), allow_nan=False
            )
        except (ValueError, RecursionError) as error:
            raise BodyRefused(f"json cannot be stored: {error}") from error
        return _encoded("json", value)

    def message(self, topic: str) -> Message:
        """Return the message.

        Raises:
            BodyRefused: Something is no content or key.
        """
        return Message(
            topic,
            self.content(),
            tag=self.tag,
            key=_key_of(self.key),
            headers=self.headers,
            delay_s=self.delay_s,
            deliver_at=self.deliver_at,
        )


class BatchedMessageForm(MessageForm):
    """A message of a batch."""

    topic: Name


class BatchForm(Form):
    """Messages to send together, of any topics."""

    messages: Annotated[list[BatchedMessageForm], Field(min_length=1, max_length=MESSAGES_MAX)]


class SubscriptionForm(Form):
    """A topic, or the topics of a pattern, and which messages of it."""

    topic: Annotated[str, Field(pattern=PATTERN, max_length=limits.NAME_CHARS_MAX)] = Field(
        description="A name, or a pattern with * and ?."
    )
    tags: Annotated[str, Field(min_length=1, max_length=16 * limits.KIB)] | None = Field(
        default=None, description="A tag, or several as `a || b`."
    )
    where: (
        Annotated[str, Field(min_length=1, max_length=limits.FILTER_EXPRESSION_BYTES_MAX)] | None
    ) = Field(default=None, description="An expression over headers, key and tag.")

    def wanted(self) -> Wanting:
        """Return the filter.

        Raises:
            InvalidArgument: It cannot be read, or there are two.
        """
        if self.tags is not None and self.where is not None:
            raise InvalidArgument("a subscription has tags or where, not both")
        return self.tags if self.where is None else Where(self.where)


class ConsumerForm(Form):
    """A member of a group to host."""

    group: Name
    subscriptions: Annotated[
        list[SubscriptionForm], Field(min_length=1, max_length=SUBSCRIPTIONS_MAX)
    ]
    start: Literal["earliest", "latest"] = Field(
        default="earliest", description="Where the group begins in a partition that is new to it."
    )
    lease_s: Annotated[float, Field(ge=LEASE_S_MIN, le=LEASE_S_MAX, allow_inf_nan=False)] | None = (
        Field(default=None, description="It leaves the group when it was not used for so long.")
    )
    window: Annotated[int, Field(ge=1, le=WINDOW_MAX)] = Field(
        default=MESSAGES_MAX, description="So many messages it gets without a commit."
    )

    @property
    def start_position(self) -> StartPosition:
        """See ``start``."""
        return StartPosition(self.start)


class PositionForm(Form):
    """Everything of a partition before ``next_offset`` is handled."""

    topic: Annotated[str, Field(min_length=1, max_length=limits.NAME_CHARS_MAX, pattern=NAME)]
    partition: PartitionNumber
    next_offset: Offset


class CommitForm(Form):
    """What a consumer has handled: one position for each partition."""

    positions: Annotated[list[PositionForm], Field(min_length=1, max_length=MESSAGES_MAX)]

    def by_partition(self) -> dict[TopicPartition, int]:
        """Return the positions.

        Raises:
            BodyRefused: A partition is there twice.
        """
        found = {
            TopicPartition(each.topic, each.partition): each.next_offset for each in self.positions
        }
        if len(found) < len(self.positions):
            raise BodyRefused("a partition is in positions twice; give its highest position")
        return found


class SharedReceiveForm(Form):
    """Messages of a shared group that are asked for."""

    subscriptions: Annotated[
        list[SubscriptionForm], Field(min_length=1, max_length=SUBSCRIPTIONS_MAX)
    ]
    start: Literal["earliest", "latest"] = Field(
        default="earliest", description="Where the group begins in a partition that is new to it."
    )
    mode: Literal["concurrent", "keyed"] = Field(
        default="concurrent",
        description="keyed: of each key one message is with somebody, in their order. All who "
        "receive for a group say the same.",
    )
    lease_s: LeaseOfMessage = Field(
        default=30.0, description="Messages that are not settled in time are delivered again."
    )
    attempt: Annotated[str, Field(min_length=1, max_length=ATTEMPT_CHARS_MAX)] | None = Field(
        default=None,
        description="A new text for each request. The same text again, after a lost answer, gets "
        "the same messages, as far as their leases last.",
    )


class HandlesForm(Form):
    """Messages of a shared group, by the handles with which they were received."""

    handles: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=HANDLE_CHARS_MAX)]],
        Field(min_length=1, max_length=MESSAGES_MAX),
    ]


class NackForm(HandlesForm):
    """Messages that are to be delivered again."""

    delay_s: Annotated[float, Field(ge=0, le=limits.DELAY_S_MAX, allow_inf_nan=False)] = Field(
        default=0.0, description="After so many seconds."
    )


class ExtendForm(HandlesForm):
    """Messages that their holder keeps."""

    lease_s: LeaseOfMessage = Field(description="For so many seconds from now on.")


# What an answer says -----------------------------------------------------------------------------
class ContentForm(StrEnum):
    """How contents are shown."""

    AUTO = "auto"  # as text if they are UTF-8, else in Base64
    JSON = "json"  # as JSON if they are, else as with ``auto``
    TEXT = "text"  # as text; what is no UTF-8 is replaced by U+FFFD
    BASE64 = "base64"


class StoredForm(Form):
    """Where a message is stored."""

    partition: PartitionNumber
    offset: Offset
    id: Annotated[str, Field(pattern=r"^[0-9]+$")]
    diverted: bool = Field(description="It went to another partition than its key says.")


class ReceivedForm(Form):
    """A message that was received; exactly one of ``json``, ``text`` and ``base64`` is there."""

    topic: Name
    partition: PartitionNumber
    offset: Offset
    next_offset: Offset = Field(description="Commit it once this message is handled.")
    id: Annotated[str, Field(pattern=r"^[0-9]+$")]
    key: FormOfKey | None
    tag: str | None
    headers: dict[str, str]
    timestamp_ms: int | None = Field(description="When it was sent, since 1970.")
    append_time_ms: int | None = Field(description="When it was stored; null: not known.")
    content_json: Any = Field(default=None, alias="json")
    text: str = ""
    base64: str = ""


class DeliveredForm(ReceivedForm):
    """A message of a shared group."""

    handle: str = Field(description="Settle the message with it, at any gateway.")
    attempts: int = Field(description="How often it was delivered, with this time.")


class SentForm(StoredForm):
    """A message that is stored."""

    topic: Name


class ProblemForm(BaseModel):
    """A problem document, RFC 9457."""

    type: str
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    code: str = Field(description="The name of the error; docs/reference/http-gateway.md has all.")
    vq_status: int | None = Field(description="The number of a status of vq's protocol.")
    outcome: Literal["refused", "unknown"] = Field(
        description="refused: certainly not done. unknown: perhaps done."
    )
    retriable: bool
    hint: str
    details: dict[str, int | str]


class FailedForm(Form):
    """A message of a batch that is refused, or of which it is unknown whether it is stored."""

    problem: ProblemForm


class BatchSentForm(Form):
    """The messages of a batch, all of them stored, in the order of the request."""

    results: list[StoredForm]


class BatchProblemForm(ProblemForm):
    """A problem; with ``results``, if messages were sent."""

    stored: int = 0
    refused: int = 0
    unknown: int = 0
    results: list[StoredForm | FailedForm] = Field(default_factory=list)


class TopicForm(Form):
    """A topic, and the partitions that it has."""

    name: Name
    partitions: list[PartitionNumber]


class TopicsForm(Form):
    """Topics in the order of their names, as far as the token may see them."""

    topics: list[TopicForm]
    next: str | None = Field(description="Give it as `after` for the topics that follow.")


class BoundsForm(Form):
    """A partition, and which offsets can be read: from ``earliest`` to before ``latest``.

    null: its broker does not answer.
    """

    partition: PartitionNumber
    state: str
    earliest: Offset | None
    latest: Offset | None


class TopicDetailForm(Form):
    """A topic with the offsets of its partitions."""

    name: Name
    partitions: list[BoundsForm]


class ReadForm(Form):
    """Messages of a partition; ``next_offset`` is where the next read goes on."""

    messages: list[ReceivedForm]
    next_offset: Offset


class AssignedForm(Form):
    """A partition that a consumer holds."""

    topic: Name
    partition: PartitionNumber


class TroubleForm(AssignedForm):
    """A partition that does not go on for now, and why; the consumer tries again by itself."""

    code: str
    detail: str
    since_ms: int


class HostedForm(Form):
    """A consumer: a member of a group that the gateway hosts."""

    consumer: str = Field(description="Its id, for the other routes. Nobody else can guess it.")
    group: Name
    member: str
    lease_s: float
    lease_left_s: float
    uncommitted: int = Field(description="Messages that it was given and has not committed.")
    assignment: list[AssignedForm]
    troubles: list[TroubleForm]


class GivenForm(Form):
    """Messages for a consumer, and what to commit once all of them are handled."""

    messages: list[ReceivedForm]
    commit: list[PositionForm]


class DeliveriesForm(Form):
    """Messages of a shared group. None: none came in time."""

    messages: list[DeliveredForm]


class SettledForm(Form):
    """How many messages were settled: all of the request."""

    settled: int


class SettleProblemForm(ProblemForm):
    """A problem; some messages may be settled nevertheless."""

    settled: int = 0
    lost: list[str] = Field(
        default_factory=list, description="Handles whose messages are not with their holder now."
    )


class CommittedForm(Form):
    """Positions that are stored."""

    committed: list[PositionForm]


class NotCommittedForm(PositionForm):
    """A position that is not stored, and why."""

    problem: ProblemForm


class CommitProblemForm(ProblemForm):
    """A problem; some positions may be stored nevertheless."""

    committed: list[PositionForm] = Field(default_factory=list)
    not_committed: list[NotCommittedForm] = Field(default_factory=list)


def stored_form(result: SendResult) -> dict[str, Any]:
    """Return a ``StoredForm``."""
    return {
        "partition": result.partition,
        "offset": result.offset,
        "id": str(result.id),
        "diverted": result.diverted,
    }


def received_form(message: Message, how: ContentForm) -> dict[str, Any]:
    """Return a ``ReceivedForm``."""
    kind, value = _shown_content(message.content, how)
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "next_offset": message.next_offset,
        "id": str(message.id),
        "key": _form_of_key(message.key),
        "tag": message.tag,
        "headers": dict(message.headers or {}),
        "timestamp_ms": time_ms_of(message.id) if message.id else None,
        "append_time_ms": message.append_time_ms,
        kind: value,
    }


def delivered_form(
    message: Message, how: ContentForm, handle: str, attempts: int
) -> dict[str, Any]:
    """Return a ``DeliveredForm``."""
    return {**received_form(message, how), "handle": handle, "attempts": attempts}


def positions_behind(messages: list[Message]) -> list[dict[str, Any]]:
    """Return the positions to commit once all of these messages are handled."""
    last = {(each.topic, each.partition): each.next_offset for each in messages}
    return [
        {"topic": topic, "partition": partition, "next_offset": offset}
        for (topic, partition), offset in sorted(last.items())
    ]


# Reading -----------------------------------------------------------------------------------------
def read(kind: type[FormT], body: bytes) -> FormT:
    """Return what a body says.

    The parser is pydantic's own: it bounds how deep JSON may be.

    Raises:
        BodyRefused: It says something else; the error names the places.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise BodyRefused(told(error.errors(include_url=False, include_input=False))) from None


def told(errors: Any) -> str:
    """Return the first errors of a validation in words, without what was given."""
    parts = []
    for each in errors[:_ERRORS_TOLD]:
        place = ".".join(str(part)[:60] for part in each["loc"])
        said = _SAID.get(each["type"], each["msg"])
        parts.append(f"{place}: {said}" if place else str(said))
    if len(errors) > _ERRORS_TOLD:
        parts.append(f"and {len(errors) - _ERRORS_TOLD} more")
    return "; ".join(parts)


# Contents and keys -------------------------------------------------------------------------------
def _encoded(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BodyRefused(
            f"{what} has half of a surrogate pair, which UTF-8 does not have"
        ) from error


def _decoded(what: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BodyRefused(f"{what} is not Base64 (RFC 4648, with padding): {error}") from error


def _key_of(form: Any) -> Key | None:
    if isinstance(form, KeyBytes):
        return _decoded("key.base64", form.base64)
    if isinstance(form, KeyInteger):
        number = int(form.integer)
        if not -_INT64 <= number < _INT64:
            raise BodyRefused(f"key.integer = {form.integer} is outside [-2**63, 2**63)")
        return number
    key: Key | None = form
    return key


def _form_of_key(key: Key | None) -> Any:
    if isinstance(key, bytes):
        return {"base64": base64.b64encode(key).decode()}
    if isinstance(key, int) and abs(key) > _SAFE_INTEGER:
        return {"integer": str(key)}
    return key


def _shown_content(content: bytes, how: ContentForm) -> tuple[str, Any]:
    if how is ContentForm.BASE64:
        return "base64", base64.b64encode(content).decode()
    if how is ContentForm.TEXT:
        return "text", content.decode(errors="replace")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "base64", base64.b64encode(content).decode()
    if how is ContentForm.JSON:
        try:
            value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        except (ValueError, RecursionError):
            pass
        else:
            if not _is_deep(text, value):
                return "json", value
    return "text", text


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large")
    return value


def _is_deep(text: str, value: object) -> bool:
    """Whether a value has more levels than an answer may have; others may have stored it."""
    if text.count("[") + text.count("{") <= _DEPTH_MAX:
        return False
    level = [value]
    for _ in range(_DEPTH_MAX):
        level = [
            each
            for of in level
            if isinstance(of, list | dict)
            for each in (of.values() if isinstance(of, dict) else of)
        ]
        if not level:
            return False
    return True
