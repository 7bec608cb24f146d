"""Why a consumer group did not get a message: the causes in their order. Pure.

Where the message is comes first, then what the group makes of it, then what keeps the group from
coming to it: those are the causes of ``partition_causes``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from vq.operations.base.sizes import bytes_text, duration_text
from vq.operations.explain import partition_causes
from vq.operations.explain.answers import CauseRow, ExplainedFact
from vq.operations.explain.partition_causes import PartitionFacts
from vq.operations.messages.settling import LetterState

#: Causes of a partition that say nothing of a message in it.
_NOT_OF_MESSAGES: Final = frozenset(
    {"no_group", "not_read", "not_readable", "not_replicated", "filter_matches_nothing"}
    | {"overtaken"}
)


class MessageState(StrEnum):
    """Where a message is.

    Attributes:
        STORED: In the partition, where readers get it.
        NOT_REPLICATED: Stored at the master, and not shown to readers yet.
        DELAYED: It waits for its time.
        RECALLED: It waited, waits no more, and is not in the topic.
        UNDECIDED: In a transaction that is not decided.
        ROLLED_BACK: In a transaction that was rolled back.
        DELETED: Nobody has it any more.
        DAMAGED: The bytes there cannot be read.
        NOT_YET: There is nothing yet at that offset.
        NO_MESSAGE: No message begins at that offset.
        NOT_STORED: All that the topic keeps was searched, and it is not there.
    """

    STORED = "stored"
    NOT_REPLICATED = "not_replicated"
    DELAYED = "delayed"
    RECALLED = "recalled"
    UNDECIDED = "undecided"
    ROLLED_BACK = "rolled_back"
    DELETED = "deleted"
    DAMAGED = "damaged"
    NOT_YET = "not_yet"
    NO_MESSAGE = "no_message"
    NOT_STORED = "not_stored"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFacts:
    """What is known of a message and a group.

    Attributes:
        at: What is known of the group in the partition of the message; of an unknown partition,
            what is known of the group.
        asked: The message as it was asked for.
        state: Where it is; None: not known.
        detail: More of that, for people; "": nothing.
        id: Of the message; None: not known.
        offset: Where it lies; None: not known, or nowhere.
        tag, key: Of the message, as people read them.
        sent_ms: When its id was made, in milliseconds since 1970.
        stored_ms: When it was stored; None: not known.
        due_ms: When a delayed one is delivered.
        transaction: The number of that which has it.
        matches: The group's filter lets it through; None: only its members know, or not known.
        ahead: The group has handled it ahead of its place.
        letter: It is a dead letter of the group in this state; None: it is none.
        letters_known: Whether dead letters and the retry topic could be searched.
        retries: A copy waits in the group's retry topic, or for its time there.
        first_claim_ms: When a member first claimed the partition; None: not remembered.
        reset_ms: When the group's place there was last set; None: never, or not remembered.
        starts_latest: The group begins at the end of a partition that is older than the group.
    """

    at: PartitionFacts
    asked: str
    state: MessageState | None = None
    detail: str = ""
    id: int | None = None
    offset: int | None = None
    tag: str | None = None
    key: str | None = None
    sent_ms: int | None = None
    stored_ms: int | None = None
    due_ms: int | None = None
    transaction: int | None = None
    matches: bool | None = None
    ahead: bool = False
    letter: LetterState | None = None
    letters_known: bool = True
    retries: bool = False
    first_claim_ms: int | None = None
    reset_ms: int | None = None
    starts_latest: bool = False

    @property
    def is_stored(self) -> bool:
        """Whether readers of the partition get it."""
        return self.state is MessageState.STORED and self.at.is_there

    @property
    def is_passed(self) -> bool | None:
        """Whether the group's place is behind it; None: not known."""
        if not self.is_stored or not self.at.is_shared:
            return False
        if self.offset is None:
            return None
        committed = self.at.known.committed
        return committed is not None and self.offset < committed

    @property
    def is_ahead(self) -> bool:
        """Whether the group is still to come to it."""
        return self.is_stored and self.at.is_shared and not self.is_passed and not self.ahead

    @property
    def more(self) -> str:
        """The detail as the end of a sentence."""
        return f": {self.detail}" if self.detail else ""

    @property
    def due(self) -> str:
        """How long it still waits for its time; "": it does not."""
        return "" if self.due_ms is None else duration_text(self.due_ms / 1000 - self.at.now_s)


def _where(state: MessageState, text: str, *commands: str) -> CauseRow[MessageFacts]:
    """Return the row of a message that is not where readers get it."""

    def holds(facts: MessageFacts) -> bool | None:
        return None if facts.state is None else facts.state is state

    return CauseRow(
        cause=str(state),
        holds=holds,
        text=text,
        commands=commands,
    )


def _decisions(facts: MessageFacts) -> Sequence[str]:
    """Return what ends the transaction: one that is open takes no commit of an operator."""
    number = facts.transaction
    ends = "rollback" if facts.detail == "open" else "commit"
    return (f"vq tx show {number}", f"vq tx {ends} {number}")


def _of_group(cause: str) -> CauseRow[MessageFacts]:
    (row,) = (each for each in partition_causes.TABLE if each.cause == cause)
    return CauseRow(
        cause=cause,
        holds=lambda facts: row.holds(facts.at),
        text=lambda facts: row.of(facts.at).text,
        commands=lambda facts: row.of(facts.at).commands,
    )


def _blocked(row: CauseRow[PartitionFacts]) -> CauseRow[MessageFacts]:
    """Return the row of a group that does not come to a message that is ahead of it."""
    return CauseRow(
        cause=row.cause,
        holds=lambda facts: row.holds(facts.at) if facts.is_ahead else False,
        text=lambda facts: (
            "the message lies ahead of the group, which does not get there: "
            f"{row.of(facts.at).text}"
        ),
        commands=lambda facts: row.of(facts.at).commands,
    )


def _began_behind(facts: MessageFacts) -> bool | None:
    """Whether the group began behind the message, at the end of the partition."""
    if not facts.is_stored or not facts.at.is_shared or not facts.starts_latest:
        return False
    if facts.at.known.committed is None:
        return True
    if not facts.is_passed:
        return False
    if facts.first_claim_ms is None or facts.stored_ms is None:
        return None
    return facts.stored_ms < facts.first_claim_ms


def _letter_text(facts: MessageFacts) -> str:
    states = {
        LetterState.OPEN: "and waits for somebody to look at it",
        LetterState.RESENDING: "and is being sent again",
        LetterState.RESENT: "and was sent again: the copy has the header _vq.resent",
        LetterState.DELETED: "and somebody deleted it",
    }
    return (
        f"group {facts.at.group} gave it up: it is among the group's dead letters, "
        f"{states[facts.letter or LetterState.OPEN]}{': ' if facts.detail else ''}{facts.detail}"
    )


def _passed_text(facts: MessageFacts) -> str:
    progress = facts.at.known
    reset = (
        ""
        if facts.reset_ms is None
        else ". The group's place was set by an operator meanwhile, which may have skipped it"
    )
    by = f" by {progress.committed_by}" if progress.committed_by else ""
    return (
        f"group {facts.at.group} has handled it: everything before offset {progress.committed} is "
        f"committed{by}. A member got it, or its failure policy skipped it: `vq group failed list` "
        f"shows that on the machine of the member{reset}"
    )


def _to_go_text(facts: MessageFacts) -> str:
    place = facts.at.known.committed
    if place is None:
        place = facts.at.known.start
    left = None if place is None or facts.offset is None else max(0, facts.offset - place)
    return (
        f"group {facts.at.group} has not come to it yet: {bytes_text(left) or 'an unknown part'} "
        "of the partition lies before it, and the group gets on"
    )


#: The causes in the order in which they are told.
TABLE: Final[Sequence[CauseRow[MessageFacts]]] = (
    _of_group("no_group"),
    _of_group("not_read"),
    _of_group("not_readable"),
    _where(
        MessageState.DELAYED,
        "the message {f.asked} waits for its time, which comes in {f.due}",
        "vq delayed list {f.at.topic}",
    ),
    CauseRow(
        cause=str(MessageState.UNDECIDED),
        holds=lambda facts: None if facts.state is None else facts.state is MessageState.UNDECIDED,
        text="the message {f.asked} is in transaction {f.transaction}, which is {f.detail}: nobody "
        "gets it before that is committed",
        commands=_decisions,
    ),
    _where(
        MessageState.ROLLED_BACK,
        "the message {f.asked} was in transaction {f.transaction}, which was rolled back: nobody "
        "ever gets it{f.more}",
        "vq tx show {f.transaction}",
    ),
    _where(
        MessageState.RECALLED,
        "the message {f.asked} was delayed, waits no more, and is not in the topic: it was "
        "recalled, or delivered and deleted since",
        "vq delayed list {f.at.topic}",
    ),
    _where(
        MessageState.DELETED,
        "the message {f.asked} is deleted: the topic does not keep what is so old{f.more}",
        "vq topic describe {f.at.topic}",
    ),
    _where(
        MessageState.DAMAGED,
        "the bytes of the message {f.asked} cannot be read{f.more}",
        "vq topic verify {f.at.topic}",
    ),
    _where(
        MessageState.NOT_REPLICATED,
        "the message {f.asked} is stored at the master, and readers get it once every node in sync "
        "has it",
        "vq cluster status",
    ),
    _where(
        MessageState.NOT_YET,
        "there is no message {f.asked} yet: {f.at.name} ends before it{f.more}",
        "vq topic describe {f.at.topic}",
    ),
    _where(
        MessageState.NO_MESSAGE,
        "no message begins at {f.asked}{f.more}",
        "vq topic describe {f.at.topic}",
    ),
    _where(
        MessageState.NOT_STORED,
        "topic {f.at.topic} has no message {f.asked}: all that it keeps of the hour before and "
        "after that id was made was searched{f.more}",
        "vq message find {f.at.topic} --id {f.asked} --since 7d",
    ),
    CauseRow(
        cause="filtered",
        holds=lambda facts: (
            None
            if facts.is_stored and facts.at.known.filter is not None and facts.matches is None
            else facts.is_stored and facts.matches is False
        ),
        text="the filter {f.at.known.filter!r} of group {f.at.group} does not let it through: its "
        "tag is {f.tag!r}",
        commands=("vq group describe {f.at.group}",),
    ),
    CauseRow(
        cause="dead_letter",
        holds=lambda facts: (
            None
            if facts.is_stored and not facts.letters_known
            else facts.is_stored and facts.letter is not None
        ),
        text=_letter_text,
        commands=("vq dlq read {f.at.group} --settled", "vq dlq resend {f.at.group}"),
    ),
    CauseRow(
        cause="retries",
        holds=lambda facts: (
            None
            if facts.is_stored and not facts.letters_known
            else facts.is_stored and facts.retries
        ),
        text="its listener failed, and a copy of it waits in the retry topic of group {f.at.group} "
        "for its next try",
        commands=("vq group describe {f.at.group}", "vq delayed list _vq.retry.{f.at.group}"),
    ),
    CauseRow(
        cause="began_behind",
        holds=_began_behind,
        text="group {f.at.group} begins at the end of a partition that is older than itself (start "
        "= latest), and the message was stored before the group began there",
        commands=("vq group reset {f.at.place} --offset {f.offset}",),
    ),
    CauseRow(
        cause="handled_ahead",
        holds=lambda facts: facts.is_stored and facts.at.is_shared and facts.ahead,
        text="group {f.at.group} has handled it, ahead of messages before it that are still in "
        "hand: its place is offset {f.at.known.committed}",
        commands=("vq group describe {f.at.group}",),
    ),
    CauseRow(
        cause="handled",
        holds=lambda facts: facts.is_passed,
        text=_passed_text,
        commands=(
            "vq group failed list {f.at.group}",
            "vq group reset {f.at.place} --offset {f.offset}",
        ),
    ),
    *(
        _blocked(row)
        for row in partition_causes.TABLE
        if row.cause not in _NOT_OF_MESSAGES and not row.is_rest
    ),
    CauseRow(
        cause="broadcasting",
        holds=lambda facts: facts.is_stored and not facts.at.is_shared,
        text="group {f.at.group} is broadcasting: each member keeps its progress on its own "
        "machine, and no command sees it from here",
        commands=("vq group describe {f.at.group}",),
        is_rest=True,
    ),
    CauseRow(
        cause="not_reached",
        holds=lambda _: True,
        text=_to_go_text,
        commands=("vq group describe {f.at.group}",),
        is_rest=True,
    ),
)


def message_told(facts: MessageFacts) -> tuple[ExplainedFact, ...]:
    """Return the facts for people and programs."""
    values: dict[str, str | int | float | bool | None] = {
        "message_state": None if facts.state is None else str(facts.state),
        "message_id": facts.id,
        "message_offset": facts.offset,
        "tag": facts.tag,
        "key": facts.key,
        "sent_at_s": None if facts.sent_ms is None else facts.sent_ms / 1000,
        "stored_at_s": None if facts.stored_ms is None else facts.stored_ms / 1000,
        "due_at_s": None if facts.due_ms is None else facts.due_ms / 1000,
        "transaction": facts.transaction,
        "matches_filter": facts.matches,
        "dead_letter": None if facts.letter is None else str(facts.letter),
        "waits_for_retry": facts.retries if facts.letters_known else None,
        "first_claim_at_s": None if facts.first_claim_ms is None else facts.first_claim_ms / 1000,
        "last_reset_at_s": None if facts.reset_ms is None else facts.reset_ms / 1000,
    }
    told = [ExplainedFact(name, value) for name, value in values.items()]
    if facts.offset is None and facts.state is not MessageState.UNDECIDED:
        return tuple(told)  # it is in no partition that is known
    return (*told, *partition_causes.facts_told(facts.at))
