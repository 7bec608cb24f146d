"""What the master of a partition of the topic of shared groups notes there. Pure.

    Acquired          a member has these messages, for so long
    SettledMessages   what became of messages that members had
    SourceState       all that is open of one partition for one group: earlier notes are not needed
    Members           what members have asked last: the same
    Forgotten         a group is deleted, or a topic, or the group reads it no more
    JournalFloor      what is before an offset of the log is needed for nothing

Messages are named by their numbers. A run is messages that follow each other: the first number and
how many they are. A note has its runs as bytes behind it.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from vq.broker.journal import notes

_GRANTED: Final = Struct(">HQII")
_SETTLEMENT: Final = Struct(">HQIQBQ")
_LOST: Final = Struct(">HQIQ")
_OPEN: Final = Struct(">QIIQQIQ")
_MEMBER: Final = Struct(">QQQQI")
#: So notes begin that say all of something: what they are about is needed from there on.
_PART: Final = b'{"part":'
_MEMBERS: Final = b'{"members":'
_FLOOR: Final = b'{"from":'


class SettlementKind(IntEnum):
    """What is to become of messages that a member has; the number on the wire and in notes."""

    ACK = 1  # they are done
    RELEASE = 2  # to be delivered again after a time
    REJECT = 3  # they are given up: done, and counted apart
    EXTEND = 4  # the member goes on with them for a time from now on
    UNUSED = 5  # nobody has seen them: the same, and this delivery does not count


class SourceKey(NamedTuple):
    """A partition whose messages a shared group has.

    Attributes:
        topic, partition: Of it.
        topic_id: Of the topic: another one of its name begins anew.
    """

    topic: str
    partition: int
    topic_id: str


class Granted(NamedTuple):
    """A run that a member gets.

    Attributes:
        source: Index of its partition in the note.
        first, messages: The first one, and how many they are.
        deliveries: How often each of them was delivered, with this time.
    """

    source: int
    first: int
    messages: int
    deliveries: int


class Settlement(NamedTuple):
    """What becomes of a run.

    Attributes:
        source: Index of its partition in the note, or in the request.
        first, messages: The first one, and how many they are.
        grant: With which they were delivered.
        kind: What becomes of them.
        time_ms: RELEASE, UNUSED: when they are due, by the wall clock of the master (in a request:
            after how long). EXTEND: how long the member has them from now on.
    """

    source: int
    first: int
    messages: int
    grant: int
    kind: SettlementKind
    time_ms: int = 0


class Lost(NamedTuple):
    """A run of a SETTLE that its sender does not have any more; see ``Settlement``."""

    source: int
    first: int
    messages: int
    grant: int


class Acquired(NamedTuple):
    """A member has these messages.

    Attributes:
        group: The shared group.
        member, attempt: Who, and with which of its requests.
        grant: Number of the grant: no other one of the group has it.
        lease_ms: For how long.
        sources: The partitions.
        runs: The messages.
    """

    group: str
    member: int
    attempt: int
    grant: int
    lease_ms: int
    sources: Sequence[SourceKey]
    runs: Sequence[Granted]


class SettledMessages(NamedTuple):
    """What became of messages.

    Attributes:
        group: The shared group.
        member, sequence: Whose request it was, and which; 0: it is not remembered.
        sources: The partitions.
        runs: What became of what.
        lost: What the request has named beside that.
        wall_ms: When it was noted, by the clock by which runs are due; 0: not known.
    """

    group: str
    member: int
    sequence: int
    sources: Sequence[SourceKey]
    runs: Sequence[Settlement]
    lost: Sequence[Lost]
    wall_ms: int = 0


class OpenRun(NamedTuple):
    """A run that is not done.

    Attributes:
        first, messages, deliveries: See ``Granted``.
        grant, member, lease_ms: Who has them; a grant of 0: nobody.
        due_ms: If nobody has them, when they are due by the wall clock.
    """

    first: int
    messages: int
    deliveries: int
    grant: int
    member: int
    lease_ms: int
    due_ms: int


class SourceState(NamedTuple):
    """What is open of one partition for one group.

    Attributes:
        group, source: These.
        grants: The number of the last grant of the group.
        cursor: What is before it was delivered; of that, ``runs`` are not done.
        runs: In the order of their messages.
        wall_ms: See ``SettledMessages``.
        cuts: So often members have told that the partition had lost its end.
    """

    group: str
    source: SourceKey
    grants: int
    cursor: int
    runs: Sequence[OpenRun]
    wall_ms: int = 0
    cuts: int = 0


class MemberState(NamedTuple):
    """What a member has asked last.

    Attributes:
        member: Its number.
        attempt, grant: Of its last RECEIVE that got something, and what it got.
        sequence: Of its last SETTLE,
        lost: and what that has not found, with the partition of each.
    """

    member: int
    attempt: int = 0
    grant: int = 0
    sequence: int = 0
    lost: Sequence[tuple[SourceKey, Lost]] = ()


class Members(NamedTuple):
    """What members of a group have asked last: nothing else is known of any.

    Attributes:
        group: The group.
        members: All of which something is known, the last one last.
    """

    group: str
    members: Sequence[MemberState]


class Forgotten(NamedTuple):
    """A group is deleted; or it has nothing any more of a topic.

    Attributes:
        group: Its name.
        topic: The topic; "": all of them.
        topic_id: Its id; "": any topic of that name.
    """

    group: str
    topic: str = ""
    topic_id: str = ""

    def is_about(self, source: SourceKey) -> bool:
        """Whether the group has nothing of a partition any more."""
        is_topic = self.topic in {source.topic, ""}
        return is_topic and self.topic_id in {source.topic_id, ""}


class JournalFloor(NamedTuple):
    """What is before this offset of the log is not needed: all of it is noted again behind it."""

    offset: int


Note: TypeAlias = Acquired | SettledMessages | SourceState | Members | Forgotten


def floor_in(payload: bytes) -> int | None:
    """Return the offset of a ``JournalFloor``; None: it is another note.

    Raises:
        CorruptData: It is none.
    """
    if not payload.startswith(_FLOOR):
        return None
    return notes.decode(payload, lambda head, _: int(head["from"]))


def is_snapshot(payload: bytes) -> bool:
    """Whether a note says all of something."""
    return payload.startswith((_PART, _MEMBERS))


def encode_note(note: Note | JournalFloor) -> bytes:
    """Return the record of a note."""
    if isinstance(note, Acquired):
        head: dict[str, Any] = {
            "acquired": note.group,
            "member": note.member,
            "attempt": note.attempt,
            "grant": note.grant,
            "lease": note.lease_ms,
            "of": list(map(list, note.sources)),
        }
        return notes.encode(head, _packed(_GRANTED, note.runs))
    if isinstance(note, SettledMessages):
        head = {
            "settled": note.group,
            "member": note.member,
            "sequence": note.sequence,
            "of": list(map(list, note.sources)),
            "runs": len(note.runs),
            "at": note.wall_ms,
        }
        return notes.encode(head, _packed(_SETTLEMENT, note.runs) + _packed(_LOST, note.lost))
    if isinstance(note, SourceState):
        head = {
            "part": list(note.source),
            "group": note.group,
            "grants": note.grants,
            "cursor": note.cursor,
            "at": note.wall_ms,
            "cuts": note.cuts,
        }
        return notes.encode(head, _packed(_OPEN, note.runs))
    if isinstance(note, Members):
        sources = list(dict.fromkeys(key for of in note.members for key, _ in of.lost))
        at = {key: index for index, key in enumerate(sources)}
        parts = []
        for each in note.members:
            parts.append(_MEMBER.pack(*each[:4], len(each.lost)))
            parts.append(_packed(_LOST, (run._replace(source=at[key]) for key, run in each.lost)))
        head = {"members": note.group, "of": list(map(list, sources))}
        return notes.encode(head, b"".join(parts))
    if isinstance(note, JournalFloor):
        return notes.encode({"from": note.offset})
    return notes.encode({"forgotten": note.group, "topic": note.topic, "id": note.topic_id})


def decode_note(payload: bytes) -> Note:
    """Return the note that a record with the tag ``NOTE_TAG`` has.

    Raises:
        CorruptData: It is none.
    """
    return notes.decode(payload, _read)


def _packed(form: Struct, runs: Iterable[tuple[int, ...]]) -> bytes:
    return b"".join([form.pack(*each) for each in runs])


def _sources(head: dict[str, Any]) -> tuple[SourceKey, ...]:
    return tuple(SourceKey(*each) for each in head["of"])


def _read(head: dict[str, Any], behind: bytes) -> Note:
    if "acquired" in head:
        return Acquired(
            head["acquired"],
            head["member"],
            head["attempt"],
            head["grant"],
            head["lease"],
            _sources(head),
            tuple(Granted(*each) for each in _GRANTED.iter_unpack(behind)),
        )
    if "settled" in head:
        size = head["runs"] * _SETTLEMENT.size
        return SettledMessages(
            head["settled"],
            head["member"],
            head["sequence"],
            _sources(head),
            tuple(
                Settlement(source, first, messages, grant, SettlementKind(kind), time_ms)
                for source, first, messages, grant, kind, time_ms in _SETTLEMENT.iter_unpack(
                    behind[:size]
                )
            ),
            tuple(Lost(*each) for each in _LOST.iter_unpack(behind[size:])),
            head.get("at", 0),
        )
    if "part" in head:
        return SourceState(
            head["group"],
            SourceKey(*head["part"]),
            head["grants"],
            head["cursor"],
            tuple(OpenRun(*each) for each in _OPEN.iter_unpack(behind)),
            head.get("at", 0),
            head.get("cuts", 0),
        )
    if "members" in head:
        return Members(head["members"], _members_in(_sources(head), behind))
    if "forgotten" in head:
        return Forgotten(head["forgotten"], head.get("topic", ""), head.get("id", ""))
    raise ValueError("it says nothing that is known")


def _members_in(sources: Sequence[SourceKey], behind: bytes) -> tuple[MemberState, ...]:
    members: list[MemberState] = []
    at = 0
    while at < len(behind):
        member, attempt, grant, sequence, count = _MEMBER.unpack_from(behind, at)
        at += _MEMBER.size
        end = at + count * _LOST.size
        lost = tuple(
            (sources[source], Lost(0, first, messages, grant_of))
            for source, first, messages, grant_of in _LOST.iter_unpack(behind[at:end])
        )
        members.append(MemberState(member, attempt, grant, sequence, lost))
        at = end
    return tuple(members)
