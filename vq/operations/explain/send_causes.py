"""Why a message is refused, and where a key goes: the causes in their order. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vq import limits
from vq.model import TopicSettings
from vq.operations.explain.answers import CauseRow, ExplainedFact
from vq.operations.explain.places import REFUSALS, PartitionPlace, refusal_of
from vq.security.quotas import EffectiveLimit, value_text
from vq.security.rules import ANONYMOUS

#: Partitions that one text names.
_NAMED: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFacts:
    """What is known of a message that is to be sent.

    Attributes:
        topic: Where to.
        is_reserved: The name is vq's own.
        phase: Of the topic: ``ready``, ``creating``, ``deleting`` or ``deleted``; None: there is
            no such topic.
        may_create: Producers create topics that are missing.
        settings: Of the topic; None: there is none.
        size: Bytes of its content, before compression; None: not said.
        partition: The only one it may go to; None: any.
        places: Where that one, or all of them, take messages.
        sender: Who sends it, a user or ``anonymous``.
        quota: What holds for that user of what a send uses.
    """

    topic: str
    is_reserved: bool = False
    phase: str | None = None
    may_create: bool = False
    settings: TopicSettings | None = None
    size: int | None = None
    partition: int | None = None
    places: tuple[PartitionPlace, ...] = ()
    sender: str = ANONYMOUS
    quota: tuple[EffectiveLimit, ...] = ()

    @property
    def quota_text(self) -> str:
        """The limits as text: ``bytes-in=10M, requests=100``."""
        return ", ".join(
            f"{each.limit}={value_text(each.limit, each.value)}" for each in self.quota
        )

    @property
    def refusals(self) -> dict[int, str]:
        """Why partitions take no messages, by number."""
        found = ((each.partition, refusal_of(each)) for each in self.places)
        return {number: cause for number, cause in found if cause is not None}

    @property
    def refuses(self) -> bool:
        """Whether no partition that the message may go to takes it."""
        return bool(self.places) and len(self.refusals) == len(self.places)

    def with_cause(self, cause: str) -> list[PartitionPlace]:
        """Return the places that refuse for a cause."""
        refusals = self.refusals
        return [each for each in self.places if refusals.get(each.partition) == cause]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFacts:
    """What is known of a key in a topic.

    Attributes:
        send: What is known of a message with the key.
        key: As people read it.
        kind: ``text``, ``bytes`` or ``integer``.
        hash: The CRC-32 of its bytes; of an integer the integer.
        partitions: How many the topic has.
        then: The partition that the key would have with one more.
    """

    send: SendFacts
    key: str
    kind: str
    hash: int
    partitions: int
    then: int


# Texts ----------------------------------------------------------------------------------------
def _named(places: Sequence[PartitionPlace]) -> str:
    numbers = [str(each.partition) for each in places]
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"partition {', '.join(numbers[:_NAMED])}{more}"


def _groups(places: Sequence[PartitionPlace]) -> str:
    names = {each.answer.name for each in places if each.answer is not None}
    return ", ".join(sorted(names))


def _place_text(cause: str, places: Sequence[PartitionPlace]) -> str:
    first = places[0]
    named = _named(places)
    error = "" if first.answer is None else first.answer.error
    match cause:
        case "partition_closed":
            return f"{named} takes no messages: no broker group has its end"
        case "no_master":
            names = sorted({each.answer.group for each in places if each.answer is not None})
            insync = first.insync
            who = f" ({', '.join(insync)})" if insync else ""
            return (
                f"broker group {', '.join(names)} has no registered master, so {named} takes no "
                f"messages. Start one of its nodes in sync{who}"
            )
        case "broker_silent":
            return f"the master of {named} does not answer: {error}"
        case "partition_failed":
            return f"{named} is {first.state} at {_groups(places)}: {first.reason}"
        case "partition_moving":
            why = f": {first.reason}" if first.reason else ""
            return (
                f"{named} takes no messages at {_groups(places)} for a moment: it is opened, moved "
                f"or handed over{why}. Producers try again by themselves"
            )
        case "disk_full":
            return f"the disk under {named} at {_groups(places)} is too full: {first.disk}"
        case _:
            insync = first.insync or ()
            return (
                f"{named} needs {first.min_insync} nodes in sync, and {len(insync)} of group "
                f"{'' if first.answer is None else first.answer.group} "
                f"{'is' if len(insync) == 1 else 'are'} ({', '.join(insync) or 'none'}): start the "
                "others, or lower min_insync of the topic"
            )


def _place_commands(cause: str, facts: SendFacts) -> Sequence[str]:
    places = facts.with_cause(cause)
    topic = facts.topic
    match cause:
        case "partition_closed" | "partition_moving":
            return (f"vq topic describe {topic}",)
        case "no_master":
            return ("vq cluster status",)
        case "broker_silent":
            return ("vq doctor", "vq cluster status")
        case "partition_failed":
            return (f"vq topic verify {topic}", "vq cluster status")
        case "disk_full":
            names = {each.answer.name for each in places if each.answer is not None}
            return tuple(f"vq explain disk {each}" for each in sorted(names))
        case _:
            least = min((len(each.insync or ()) for each in places), default=1)
            return ("vq cluster status", f"vq topic alter {topic} --min-insync {max(1, least)}")


def _size_text(facts: SendFacts) -> str:
    bound = limits.MESSAGE_BYTES_MAX
    most = bound if facts.settings is None else facts.settings.max_message_bytes
    return (
        f"the content has {facts.size} bytes, and topic {facts.topic} takes at most {most}; the "
        f"setting max_message_bytes may be at most {bound}"
    )


def _size_commands(facts: SendFacts) -> Sequence[str]:
    if facts.size is None or facts.size > limits.MESSAGE_BYTES_MAX:
        return ()
    return (f"vq topic alter {facts.topic} --max-message-bytes {facts.size}",)


def _too_large(facts: SendFacts) -> bool:
    bound = limits.MESSAGE_BYTES_MAX
    most = bound if facts.settings is None else facts.settings.max_message_bytes
    return facts.size is not None and facts.size > most


def _some_text(facts: SendFacts) -> str:
    told = [
        _place_text(cause, facts.with_cause(cause)) for cause in REFUSALS if facts.with_cause(cause)
    ]
    return (
        f"{len(facts.refusals)} of {len(facts.places)} partitions take no messages; a message with "
        f"a key that belongs there is refused, others go elsewhere. {'. '.join(told)}"
    )


def _some_commands(facts: SendFacts) -> Sequence[str]:
    found: dict[str, None] = {}
    for cause in REFUSALS:
        if facts.with_cause(cause):
            found |= dict.fromkeys(_place_commands(cause, facts))
    return tuple(found)


def _accepted_text(facts: SendFacts) -> str:
    if facts.phase is None:
        return (
            f"there is no topic {facts.topic}; the first producer that sends to it creates it, "
            "since the settings of the cluster allow that"
        )
    where = _named(facts.places)
    return f"nothing refuses it now: {where} of topic {facts.topic} takes messages"


def _quota_text(facts: SendFacts) -> str:
    whose = ", ".join(dict.fromkeys(each.subject for each in facts.quota))
    return (
        f"nothing refuses it now, and {facts.sender} may use no more of each broker than "
        f"{facts.quota_text} (quota of {whose}): beyond that, sends wait. The metric "
        "vq_quota_throttled_seconds_total of the brokers says whether they do"
    )


def _refused_by(cause: str) -> CauseRow[SendFacts]:
    return CauseRow(
        cause=cause,
        holds=lambda facts: facts.refuses and bool(facts.with_cause(cause)),
        text=lambda facts: _place_text(cause, facts.with_cause(cause)),
        commands=lambda facts: _place_commands(cause, facts),
    )


#: Why a send is refused, in the order in which it is told.
SEND_TABLE: Final[Sequence[CauseRow[SendFacts]]] = (
    CauseRow(
        cause="reserved",
        holds=lambda facts: facts.is_reserved,
        text="the name {f.topic} is vq's own, and only vq sends there; choose another topic. Dead "
        "letters are sent again by a command",
        commands=("vq dlq list",),
    ),
    CauseRow(
        cause="no_topic",
        holds=lambda facts: facts.phase is None and not facts.may_create,
        text="there is no topic {f.topic}, and producers create none in this cluster",
        commands=(
            "vq topic create {f.topic} --partitions 1",
            "vq cluster settings --auto-create on",
        ),
    ),
    CauseRow(
        cause="deleted",
        holds=lambda facts: facts.phase == "deleted",
        text="topic {f.topic} was deleted, and can still be brought back",
        commands=("vq topic undelete {f.topic}",),
    ),
    CauseRow(
        cause="half_made",
        holds=lambda facts: facts.phase in {"creating", "deleting"},
        text="topic {f.topic} is {f.phase}: that takes a moment. If it stays so, who did it was "
        "interrupted: delete it, and create it anew",
        commands=("vq topic delete {f.topic}",),
    ),
    CauseRow(
        cause="not_writable",
        holds=lambda facts: facts.settings is not None and not facts.settings.writable,
        text="topic {f.topic} is closed for writes",
        commands=("vq topic open {f.topic}",),
    ),
    CauseRow(cause="too_large", holds=_too_large, text=_size_text, commands=_size_commands),
    *map(_refused_by, REFUSALS),
    CauseRow(
        cause="some_partitions",
        holds=lambda facts: bool(facts.refusals) and not facts.refuses,
        text=_some_text,
        commands=_some_commands,
    ),
    CauseRow(
        cause="quota",
        holds=lambda facts: bool(facts.quota) and facts.phase is not None,
        text=_quota_text,
        commands=("vq quota show {f.sender}",),
    ),
    CauseRow(cause="accepted", holds=lambda _: True, text=_accepted_text, is_rest=True),
)


def _key_text(facts: KeyFacts) -> str:
    send = facts.send
    place = send.places[0]
    how = (
        f"{facts.hash} modulo {facts.partitions}"
        if facts.kind == "integer"
        else f"the CRC-32 of its bytes, {facts.hash}, modulo {facts.partitions}"
    )
    where = "no broker group" if place.answer is None else place.answer.name
    return (
        f"key {facts.key} ({facts.kind}) goes to {send.topic}-{send.partition}: {how}. {where} "
        "takes its messages now. A producer with its own partitioner, or with a strategy that "
        "looks at no keys, may choose another one"
    )


def _of_key(row: CauseRow[SendFacts]) -> CauseRow[KeyFacts]:
    return CauseRow(
        cause=row.cause,
        holds=lambda facts: row.holds(facts.send),
        text=lambda facts: (
            f"key {facts.key} ({facts.kind}) belongs to {facts.send.topic}-"
            f"{facts.send.partition}, which refuses messages now: {row.of(facts.send).text}"
        ),
        commands=lambda facts: row.of(facts.send).commands,
    )


#: Where a key goes: what keeps its messages from there comes first.
KEY_TABLE: Final[Sequence[CauseRow[KeyFacts]]] = (
    *(_of_key(row) for row in SEND_TABLE if row.cause in {"not_writable", *REFUSALS}),
    CauseRow(
        cause="goes_there",
        holds=lambda _: True,
        text=_key_text,
        commands=("vq topic describe {f.send.topic}",),
        is_rest=True,
    ),
)


def send_told(facts: SendFacts) -> tuple[ExplainedFact, ...]:
    """Return the facts of a send for people and programs."""
    settings = facts.settings
    values: dict[str, str | int | float | bool | None] = {
        "topic_phase": facts.phase or "missing",
        "producers_create_topics": facts.may_create if facts.phase is None else None,
        "writable": None if settings is None else settings.writable,
        "size_bytes": facts.size,
        "max_message_bytes": None if settings is None else settings.max_message_bytes,
        "partitions": len(facts.places) if facts.partition is None else None,
        "partitions_refusing": len(facts.refusals),
        "sender": facts.sender,
        "quota": facts.quota_text or None,
    }
    found = [ExplainedFact(name, value) for name, value in values.items()]
    if facts.partition is not None and facts.places:
        found += place_told(facts.places[0])
    return tuple(found)


def place_told(place: PartitionPlace) -> list[ExplainedFact]:
    """Return the facts of one place."""
    answer, disk = place.answer, place.disk
    master = None if answer is None or answer.master is None else answer.master
    insync = place.insync
    values: dict[str, str | int | float | bool | None] = {
        "partition": place.partition,
        "placement": ", ".join(
            f"{each.group} [{each.start}, {'…' if each.end is None else each.end})"
            for each in place.placement.spans
        ),
        "broker_group": None if answer is None else answer.group,
        "master": None if master is None else f"{master.group}/{master.node} at {master.address}",
        "state": place.state,
        "in_sync": None if insync is None else ", ".join(insync),
        "min_insync": place.min_insync,
        "disk": None if disk is None else str(disk),
        "draining": None if answer is None else answer.draining,
    }
    return [ExplainedFact(name, value) for name, value in values.items()]


def key_told(facts: KeyFacts) -> tuple[ExplainedFact, ...]:
    """Return the facts of a key, and what would send it elsewhere."""
    place = facts.send.places[0]
    changes = [
        f"with {facts.partitions + 1} partitions it would belong to partition {facts.then}"
        + (", the same" if facts.then == facts.send.partition else ""),
        "a move of the partition to another broker group changes the broker, not the partition",
        "a partition that takes no messages keeps its keys: the send is refused, not diverted",
    ]
    if place.answer is not None and place.answer.draining:
        changes.append(f"broker group {place.answer.group} is drained: the partition may be moved")
    return (
        ExplainedFact("key", facts.key),
        ExplainedFact("key_type", facts.kind),
        ExplainedFact("hash", str(facts.hash)),
        ExplainedFact("partitions", facts.partitions),
        *place_told(place),
        *(ExplainedFact(f"change_{at}", each) for at, each in enumerate(changes, 1)),
    )
