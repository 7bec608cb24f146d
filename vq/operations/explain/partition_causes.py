"""Why a consumer group does not consume a partition: the causes in their order. Pure.

The verdicts on a lag (``groups.lag_rules``) are among the facts: a group that is stopped is judged
here as everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vq.coordination.tree.values.group_terms import BAD_RECORD, GroupModel
from vq.operations.base.sizes import bytes_text, duration_text
from vq.operations.brokers.brokers import FAILED_STATES
from vq.operations.explain.answers import CauseRow, ExplainedFact
from vq.operations.groups.groups import GroupProgress
from vq.operations.groups.lag_rules import LagThresholds, judge_lag, why_stopped

#: So long without a commit, with something to read, is a member that does not get on.
UNMOVED_S: Final = LagThresholds().stalled_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """What is known of a group and a partition.

    Attributes:
        topic, partition, group: What was asked about.
        now_s: When, in seconds since 1970.
        exists: There is such a group.
        reads: It reads the topic.
        progress: How far it is there; None: it does not exist, or does not read the topic.
        model: ``clustering`` or ``broadcasting``.
        members: Its live members.
        subscribers: Those of them that subscribe to the topic.
        by_stream: A stream that is no member writes its progress.
        rolls: It lets two versions of members in now.
        claimed_by: The member of the last claim; "": nobody, or the group was reset; None: never
            claimed.
        kept_for: The member whose place is kept while it restarts, and that claimed it last.
        owner_place: Host and process of the owner; None: it is not among the members.
        reading_group: The broker group that has what the group reads next.
        no_master: That one has no registered master.
        silent: Why the master of that one does not tell its offsets; "": it does.
        state: What its broker says of the partition; None: it says nothing.
        reason: Why it is in that state.
        log_end: Where the log ends at the master; None: not known.
        matching: How many messages the filter lets through of those searched; None: not searched,
            or not all of them.
    """

    topic: str
    partition: int
    group: str
    now_s: float
    exists: bool = True
    reads: bool = True
    progress: GroupProgress | None = None
    model: str = GroupModel.CLUSTERING
    members: int = 0
    subscribers: int = 0
    by_stream: bool = False
    rolls: bool = False
    claimed_by: str | None = None
    kept_for: str | None = None
    owner_place: str | None = None
    reading_group: str | None = None
    no_master: bool = False
    silent: str = ""
    state: str | None = None
    reason: str = ""
    log_end: int | None = None
    matching: int | None = None

    @property
    def name(self) -> str:
        """The partition as texts name it."""
        return f"{self.topic}-{self.partition}"

    @property
    def known(self) -> GroupProgress:
        """How far the group is; one without numbers if that is not known."""
        return self.progress or GroupProgress(topic=self.topic, partition=self.partition)

    @property
    def is_there(self) -> bool:
        """Whether the group has a place in the topic at all."""
        return self.exists and self.reads and self.known.readable

    @property
    def is_shared(self) -> bool:
        """Whether it has one place for all its members."""
        return self.is_there and self.model != GroupModel.BROADCASTING

    @property
    def stopped_by(self) -> str | None:
        """Why it cannot go on whatever lies there, as ``why_stopped`` says."""
        return why_stopped(self.known.facts(members=self.members)) if self.is_shared else None

    @property
    def place(self) -> str:
        """The options that name the partition to a command of groups."""
        return f"{self.group} --topic {self.topic} --partition {self.partition}"


def _stopped(cause: str) -> "CauseRow[PartitionFacts]":
    texts = {
        "needs_reset": lambda f: (
            f"group {f.group} was stopped there, and goes on only after a reset: {f.known.stopped}"
        ),
        "other_topic": lambda f: (
            f"the committed offset {f.known.committed} of group {f.group} is "
            f"of another topic {f.topic}, which was deleted: it means nothing in this one"
        ),
        "beyond_end": lambda f: (
            f"the committed offset {f.known.committed} lies beyond the end "
            f"{f.known.end}: the messages between were lost"
        ),
    }

    def commands(facts: PartitionFacts) -> Sequence[str]:
        aim = "--to-earliest" if cause == "other_topic" else "--to-latest"
        if cause == "needs_reset":
            is_bad = BAD_RECORD in (facts.known.stopped or "")
            aim = "--past-damage" if is_bad else "--to-committed"
        return (f"vq group reset {facts.place} {aim}",)

    return CauseRow(
        cause=cause,
        holds=lambda facts: facts.stopped_by == cause,
        text=texts[cause],
        commands=commands,
    )


def _holds_back(facts: PartitionFacts) -> bool | None:
    """Whether what is stored is not shown to readers yet."""
    progress = facts.known
    if not facts.is_shared or facts.silent or facts.no_master:
        return None if facts.is_shared else False
    if progress.lag_bytes is None or facts.log_end is None or progress.end is None:
        return None
    return progress.lag_bytes == 0 and facts.log_end > progress.end


def _is_unmoved(facts: PartitionFacts) -> bool | None:
    if not facts.is_shared or facts.by_stream:
        return False
    progress = facts.known
    if progress.lag_bytes is None or (progress.lag_bytes and progress.lag_s is None):
        return None
    if not progress.lag_bytes or progress.owner is None:
        return False
    judged = judge_lag(progress.facts(members=facts.members), LagThresholds(), now_s=facts.now_s)
    if judged.cause == "unmoved":
        return True
    # Nothing was ever committed there: the age of what waits alone says it.
    return progress.committed_ms is None and (progress.lag_s or 0.0) >= UNMOVED_S


def _has_nothing(facts: PartitionFacts) -> bool:
    """Whether it is known that no reader is missed: all that was ever to be read is handled."""
    return (
        facts.is_shared
        and facts.known.lag_bytes == 0
        and not facts.known.facts().is_overtaken
        and not _holds_back(facts)
    )


def _is_at_end(facts: PartitionFacts) -> bool | None:
    if not facts.is_shared:
        return False
    return None if facts.known.lag_bytes is None else facts.known.lag_bytes == 0


def _no_match(facts: PartitionFacts) -> bool | None:
    if not facts.is_shared or facts.known.filter is None or not _is_at_end(facts):
        return False
    if facts.known.start == facts.known.end:
        return False  # it keeps no message at all
    return None if facts.matching is None else facts.matching == 0


def _stopped_text(facts: PartitionFacts) -> str:
    progress = facts.known
    where = "" if progress.stopped_at is None else f" at offset {progress.stopped_at}"
    return f"member {progress.owner} does not get on{where}: {progress.stopped}"


def _held_text(facts: PartitionFacts) -> str:
    progress = facts.known
    return (
        f"the listener of member {progress.owner} fails for message {progress.message_id} at "
        f"offset {progress.stopped_at} ({progress.attempts} attempts, {progress.held} message(s) "
        f"are held), and what follows waits: {progress.stopped}"
    )


def _unclaimed_text(facts: PartitionFacts) -> str:
    if facts.kept_for is not None:
        return (
            f"no member has it: the place of {facts.kept_for}, which had it, is kept while that "
            "one restarts"
        )
    last = f"; {facts.claimed_by} had it last" if facts.claimed_by else ""
    rolls = "; members of two versions are let in now" if facts.rolls else ""
    return (
        f"none of the {facts.subscribers} member(s) that subscribe to {facts.topic} has claimed "
        f"it{last}{rolls}. Members claim what is free within their audit interval (30 s)"
    )


def _unmoved_text(facts: PartitionFacts) -> str:
    progress = facts.known
    where = "" if facts.owner_place is None else f" ({facts.owner_place})"
    since = (
        "nothing was committed there yet"
        if progress.committed_ms is None
        else "its last commit is "
        f"{duration_text(max(0.0, facts.now_s - progress.committed_ms / 1000))} old"
    )
    return (
        f"member {progress.owner}{where} has it, reports no error and does not get on: {since}. "
        "Its listener hangs or is slow, or its application has paused the partition or takes no "
        "messages"
    )


def _consumed_text(facts: PartitionFacts) -> str:
    progress = facts.known
    if facts.model == GroupModel.SHARED:
        return _shared_text(facts)
    if facts.by_stream and progress.owner is None:
        reader = "a stream that is no member reads it and writes its progress"
    else:
        reader = f"member {progress.owner} consumes it"
    lag = "an unknown lag" if progress.lag_bytes is None else bytes_text(progress.lag_bytes)
    age = "" if progress.lag_s is None else f", the oldest {duration_text(progress.lag_s)} old"
    return f"it is consumed: {reader}; {lag} wait{age}"


def _shared_text(facts: PartitionFacts) -> str:
    progress = facts.known
    age = "" if not progress.lag_s else f"; the oldest is {duration_text(progress.lag_s)} old"
    text = f"{facts.subscribers} member(s) share it"
    if progress.shared is None:
        return f"{text}; the group's journal tells nothing of what is open{age}"
    found = progress.shared
    count = "an unknown number of" if progress.lag_messages is None else progress.lag_messages
    text += (
        f": {count} message(s) are not done. Of those that were delivered, members hold "
        f"{found.held}, {found.waiting} have failed and come again later, and {found.due} go to "
        f"whoever asks next; the lowest is number {found.low}{age}"
    )
    if found.deliveries_max > 1:
        text += f". One of them was delivered {found.deliveries_max} times"
    return text


def _missing_readers(facts: PartitionFacts) -> str:
    """Return why nobody would read what comes next; "": somebody would."""
    if facts.by_stream or facts.subscribers:
        return ""
    if facts.members:
        return f"None of its {facts.members} member(s) subscribes to {facts.topic} now"
    return "It has no members"


def _end_text(facts: PartitionFacts) -> str:
    missing = _missing_readers(facts)
    return (
        f"there is nothing to read: group {facts.group} has handled everything up to the end, "
        f"offset {facts.known.end}. Messages that wait for their time, or for a decision, are not "
        "in the partition yet"
    ) + (f". {missing}: what comes next waits until one is started" if missing else "")


def _end_commands(facts: PartitionFacts) -> Sequence[str]:
    look = (f"vq group describe {facts.group}",) if _missing_readers(facts) else ()
    return (*look, f"vq delayed list {facts.topic}", "vq tx list")


#: The causes in the order in which they are told.
TABLE: Final[Sequence[CauseRow[PartitionFacts]]] = (
    CauseRow(
        cause="no_group",
        holds=lambda facts: not facts.exists,
        text="there is no group {f.group}: no consumer of it has ever started",
        commands=("vq group create {f.group} --topic {f.topic} --to-earliest", "vq group list"),
    ),
    CauseRow(
        cause="not_read",
        holds=lambda facts: facts.exists and not facts.reads,
        text="group {f.group} does not read topic {f.topic}: no member has ever subscribed to it, "
        "by name or by pattern",
        commands=("vq group describe {f.group}",),
    ),
    CauseRow(
        cause="not_readable",
        holds=lambda facts: facts.exists and facts.reads and not facts.known.readable,
        text="topic {f.topic} is closed for reading: its setting `readable` is false; "
        "admin.alter_topic({f.topic!r}, readable=True) opens it",
        commands=("vq topic describe {f.topic}",),
    ),
    _stopped("needs_reset"),
    _stopped("other_topic"),
    _stopped("beyond_end"),
    CauseRow(
        cause="no_members",
        holds=lambda facts: (
            facts.is_there and not facts.members and not facts.by_stream and not _has_nothing(facts)
        ),
        text="group {f.group} has no members: no consumer of it runs, or none reaches ZooKeeper. "
        "Start one",
        commands=("vq group describe {f.group}",),
    ),
    CauseRow(
        cause="not_subscribed",
        holds=lambda facts: (
            facts.is_there
            and facts.members > 0
            and not facts.subscribers
            and not _has_nothing(facts)
        ),
        text="none of the {f.members} member(s) of group {f.group} subscribes to topic {f.topic} "
        "now. Start one that does, or have the group forget it",
        commands=("vq group forget {f.group} --topic {f.topic}",),
    ),
    CauseRow(
        cause="no_master",
        holds=lambda facts: facts.is_there and facts.no_master,
        text="broker group {f.reading_group}, which has what comes next, has no registered master: "
        "nobody can read there. Start a node of it that is in sync",
        commands=("vq cluster status",),
    ),
    CauseRow(
        cause="broker_silent",
        holds=lambda facts: facts.is_there and not facts.no_master and bool(facts.silent),
        text="the broker that has what comes next cannot be read: {f.silent}",
        commands=("vq doctor", "vq cluster status"),
    ),
    CauseRow(
        cause="partition_failed",
        holds=lambda facts: facts.is_there and facts.state in FAILED_STATES,
        text="{f.name} is {f.state} at its broker: {f.reason}",
        commands=("vq topic verify {f.topic}",),
    ),
    CauseRow(
        cause="listener_failed",
        holds=lambda facts: facts.is_shared and facts.known.held > 0,
        text=_held_text,
        commands=(
            "vq group alter {f.group} --on-failure dead-letter",
            "vq message find {f.topic} --id {f.known.message_id}",
        ),
    ),
    CauseRow(
        cause="owner_error",
        holds=lambda facts: facts.stopped_by == "owner_error" and not facts.known.held,
        text=_stopped_text,
        commands=("vq topic verify {f.topic}", "vq doctor"),
    ),
    CauseRow(
        cause="owner_gone",
        holds=lambda facts: (
            facts.is_shared and facts.known.owner is not None and facts.owner_place is None
        ),
        text="member {f.known.owner} still owns it and is no member any more: it was closed or cut "
        "off a moment ago. Its node goes with its session, and another member takes over then",
        commands=("vq group describe {f.group}",),
    ),
    CauseRow(
        cause="not_claimed",
        holds=lambda facts: (
            facts.is_shared
            and facts.model != GroupModel.SHARED  # there no partition is one member's
            and facts.subscribers > 0
            and facts.known.owner is None
            and not facts.by_stream
        ),
        text=_unclaimed_text,
        commands=(
            "vq group history {f.group} --topic {f.topic} --partition {f.partition}",
            "vq group plan {f.group}",
        ),
    ),
    CauseRow(
        cause="not_replicated",
        holds=_holds_back,
        text=lambda facts: (
            f"{(facts.log_end or 0) - (facts.known.end or 0)} byte(s) behind offset "
            f"{facts.known.end} are stored at the master, and readers get them once every node in "
            "sync has them"
        ),
        commands=("vq cluster status",),
    ),
    CauseRow(
        cause="filter_matches_nothing",
        holds=_no_match,
        text="the filter {f.known.filter!r} of group {f.group} lets none of the messages through "
        "that the partition keeps",
        commands=("vq group describe {f.group}",),
    ),
    CauseRow(
        cause="not_moving",
        holds=_is_unmoved,
        text=_unmoved_text,
        commands=("vq group describe {f.group}",),
    ),
    CauseRow(
        cause="overtaken",
        holds=lambda facts: (
            facts.is_shared and facts.known.facts(members=facts.members).is_overtaken
        ),
        text="messages were deleted before group {f.group} read them: its place is offset "
        "{f.known.committed}, and the partition begins at {f.known.start}. The group goes on "
        "there; keep messages longer, or until groups have read them",
        commands=(
            "vq topic alter {f.topic} --retention-policy keep",
            "vq topic describe {f.topic}",
        ),
    ),
    CauseRow(
        cause="at_end",
        holds=_is_at_end,
        text=_end_text,
        commands=_end_commands,
        is_rest=True,
    ),
    CauseRow(
        cause="broadcasting",
        holds=lambda facts: facts.is_there and not facts.is_shared,
        text="group {f.group} is broadcasting: each of the {f.subscribers} member(s) that "
        "subscribe reads every partition, and keeps its progress on its own machine; no command "
        "sees it from here",
        commands=("vq group describe {f.group}",),
        is_rest=True,
    ),
    CauseRow(
        cause="consumed",
        holds=lambda _: True,
        text=_consumed_text,
        commands=lambda facts: (
            (f"vq group shared {facts.group}",) if facts.model == GroupModel.SHARED else ()
        ),
        is_rest=True,
    ),
)


def facts_told(facts: PartitionFacts) -> tuple[ExplainedFact, ...]:
    """Return the facts for people and programs."""
    progress = facts.known
    values = {
        "group_exists": facts.exists,
        "group_reads_topic": facts.reads if facts.exists else None,
        "model": str(facts.model) if facts.exists else None,
        "members": facts.members if facts.exists else None,
        "members_subscribed": facts.subscribers if facts.exists else None,
        "owner": progress.owner,
        "owner_runs_at": facts.owner_place,
        "claimed_last_by": facts.claimed_by or None,
        "committed_offset": progress.committed,
        "committed_by": progress.committed_by,
        "committed_at_s": None if progress.committed_ms is None else progress.committed_ms / 1000,
        "start_offset": progress.start,
        "end_offset": progress.end,
        "log_end_offset": facts.log_end,
        "lag_bytes": progress.lag_bytes,
        "lag_s": progress.lag_s,
        "filter": progress.filter,
        "broker_group": facts.reading_group,
        "state": facts.state,
        "error": progress.stopped,
    }
    if progress.shared is not None:
        values |= {
            "shared_open": progress.shared.open,
            "shared_held": progress.shared.held,
            "shared_waiting": progress.shared.waiting,
            "shared_deliveries_max": progress.shared.deliveries_max,
        }
    return tuple(ExplainedFact(name, value) for name, value in values.items())
