"""Topics: making, listing, describing, changing and deleting them.

Loop-bound functions on a ``ClusterClient``. What a broker that is away would have to tell is None,
never 0. Moving a topic's partitions is in ``placements``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from vq.client.cluster import ClusterClient
from vq.client.kinds import check_whole, given_settings, settings_of
from vq.coordination.topics import grace, topics
from vq.coordination.topics.cluster_settings import read_settings
from vq.coordination.topics.remains import read_remains
from vq.coordination.topics.topics import TopicExists
from vq.coordination.tree.reading import TopicView, gather_all
from vq.coordination.tree.values.topics import IN_GRACE, READY
from vq.errors import (
    CoordinationError,
    InvalidArgument,
    InvalidState,
    UnknownTopic,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import (
    Address,
    PartitionPlacement,
    PartitionState,
    TopicDeletion,
    TopicOrigin,
    TopicSettings,
    check_name,
)
from vq.operations.base.changes import unknown_when_cut
from vq.operations.brokers import brokers
from vq.operations.brokers.brokers import FAILED_STATES, Damage, broker_status, master_of
from vq.operations.partitions.offsets import Inspector, PartitionEnds, ends_of
from vq.operations.partitions.placements import check_nodes
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import VerifyRequest
from vq.reserved import check_own_name, is_reserved

logger = get_logger(__name__)

#: Looks at a topic that others change while it is to be deleted.
DELETE_TRIES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as ZooKeeper knows it; ``id`` tells it from a namesake that was deleted.

    ``origin`` says who created it; None: unknown, an earlier vq created it.
    """

    name: str
    id: str
    settings: TopicSettings
    partitions: tuple[PartitionPlacement, ...]
    origin: TopicOrigin | None = None


def _topic(view: TopicView) -> Topic:
    return Topic(view.name, view.id, view.settings, view.partitions, view.origin)


# Changing -------------------------------------------------------------------------------------
async def create_topic(
    cluster: ClusterClient,
    topic: str,
    settings: TopicSettings | None = None,
    *,
    if_not_exists: bool = False,
) -> Topic:
    """Make a topic and place its partitions evenly on the live broker groups.

    Without ``settings`` it gets the defaults of the cluster (``cluster_settings().defaults``):
    its blocks become archives after 24 hours, and are deleted after 72.
    ``if_not_exists``: return a topic of this name as it is, also with other settings.

    Raises:
        InvalidArgument: The name is not valid, or reserved for vq's own topics.
        TopicExists: There is one of this name; nothing was changed. Also with
            ``if_not_exists`` if it was made or deleted in part.
        CoordinationError: No broker group can take partitions.
        ChangeUnknown: ZooKeeper went away; it is made, made in part, or not made.
    """
    check_own_name(topic)
    if if_not_exists:
        return (await ensure_topic(cluster, topic, settings))[0]
    if settings is None:
        settings = (await read_settings(cluster.coordinator)).defaults
    else:
        settings = settings_of(TopicSettings, settings, "settings")
    with unknown_when_cut(f"creating {topic}"):
        return _topic(
            await topics.create_topic(cluster.coordinator, topic, settings, origin=cluster.origin())
        )


async def ensure_topic(
    cluster: ClusterClient, topic: str, settings: TopicSettings | None = None
) -> tuple[Topic, bool]:
    """Return the topic of this name, made if there is none, and whether it was made.

    One that exists keeps its settings and its partitions.

    Raises:
        TopicExists: There is one that was made or deleted in part.
        CoordinationError, ChangeUnknown: As ``create_topic``.
    """
    try:
        return await create_topic(cluster, topic, settings), True
    except TopicExists:
        try:
            return _topic(await topics.describe_topic(cluster.coordinator, topic)), False
        except UnknownTopic:
            pass
        raise


async def change_settings(cluster: ClusterClient, topic: str, settings: TopicSettings) -> Topic:
    """Replace a topic's settings; the number of partitions must stay the same.

    Begin with the present ones: ``dataclasses.replace(described.topic.settings, …)``.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidArgument: The number of partitions differs, or a group that takes its messages
            has fewer nodes than the new ``min_insync``.
        ChangeUnknown: ZooKeeper went away; they are replaced or not.
    """
    given_settings(TopicSettings, settings, "settings", "give vq.TopicSettings(...)")
    return await alter_settings(cluster, topic, lambda _: settings)


async def alter_settings(
    cluster: ClusterClient, topic: str, change: Callable[[TopicSettings], TopicSettings]
) -> Topic:
    """Change settings of a topic; what others change at the same time stays changed.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidArgument: The number of partitions differs, ``change`` raised it, or a group that
            takes messages of the topic has fewer nodes than the new ``min_insync``.
        ChangeUnknown: ZooKeeper went away; they are changed or not.
    """
    await _check_nodes(cluster, topic, change)
    with unknown_when_cut(f"changing {topic}"):
        return _topic(await topics.alter_settings(cluster.coordinator, topic, change))


async def _check_nodes(
    cluster: ClusterClient, topic: str, change: Callable[[TopicSettings], TopicSettings]
) -> None:
    """Refuse a ``min_insync`` with which a group of the topic would refuse every message.

    One that is not raised is left: the topic may be as it is since before a node was removed.
    """
    view = await topics.describe_topic(cluster.coordinator, topic)
    least = change(view.settings).min_insync
    if least > view.settings.min_insync:
        groups = {each.writer_group for each in view.partitions}
        for group in sorted(each for each in groups if each is not None):
            await check_nodes(cluster, topic, group, least)


async def alter_topic(
    cluster: ClusterClient, /, topic: str, *, partitions: int | None = None, **changes: Any
) -> Topic:
    """Change single settings of a topic, then give it more partitions.

    Args:
        topic: Its name.
        partitions: How many it is to have; None: as many as it has. See ``add_partitions`` for
            what that does to the order of keys.
        **changes: Settings by their names in ``TopicSettings``; others keep their values.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidArgument: A setting is unknown or unusable, or it would have fewer partitions, or
            too many, or a group that takes its messages has fewer nodes than the new
            ``min_insync``; nothing was changed.
        CoordinationError: No broker group can take partitions; the settings were changed.
        ChangeUnknown: ZooKeeper went away; look what was changed.
    """
    return await change_topic(cluster, topic, changed(changes), partitions=partitions)


async def change_topic(
    cluster: ClusterClient,
    topic: str,
    change: Callable[[TopicSettings], TopicSettings],
    *,
    partitions: int | None = None,
) -> Topic:
    """Change settings of a topic, then give it more partitions.

    Args:
        cluster: Where.
        name: Of the topic.
        change: Takes the settings and returns the new ones. It may be called again if somebody else
            changes them at the same time.
        partitions: How many it is to have; None: as many as it has.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidArgument: A setting is unusable, or it would have fewer partitions, or too many, or
            a group that takes its messages has fewer nodes than the new ``min_insync``; nothing was
            changed.
        ChangeUnknown: ZooKeeper went away; look what was changed.
        CoordinationError: No broker group can take partitions; the settings were changed.
    """
    before = await topics.describe_topic(cluster.coordinator, topic)
    present = len(before.partitions)
    wanted = present if partitions is None else partitions
    check_whole("partitions", wanted)
    if wanted < present:
        raise InvalidArgument(
            f"topic {topic!r} has {present} partitions; their number can grow, not fall to {wanted}"
        )
    replace(change(before.settings), partitions=wanted)  # raises if they are too many
    altered = await alter_settings(
        cluster, topic, lambda now: replace(change(now), partitions=now.partitions)
    )
    while len(altered.partitions) < wanted:
        count = min(wanted - len(altered.partitions), topics.STEP_PARTITIONS)
        altered = await add_partitions(cluster, topic, count)
    return altered


def changed(values: Mapping[str, Any]) -> Callable[[TopicSettings], TopicSettings]:
    """Return the change that sets single settings, by their names.

    Raises:
        InvalidArgument: There is no such setting.
    """
    known = [each.name for each in fields(TopicSettings) if each.name != "partitions"]
    for name in values:
        if name not in known:
            raise InvalidArgument(
                f"{name!r} is not a setting of a topic; known: {', '.join(known)}"
            )
    return lambda before: replace(before, **values)


async def add_partitions(cluster: ClusterClient, topic: str, count: int) -> Topic:
    """Give a topic ``count`` more partitions, 1 to 500 at once.

    Keys go to other partitions afterwards: messages of a key that were sent before and after
    are not in one order.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidArgument: It would have too many, or ``count`` is out of range.
        ChangeUnknown: ZooKeeper went away; they are added or not.
    """
    check_whole("count", count)
    with unknown_when_cut(f"adding partitions to {topic}"):
        return _topic(await topics.add_partitions(cluster.coordinator, topic, count))


@dataclass(frozen=True, slots=True)
class Deletion:
    """What deleting a topic takes away, and for how long it can be brought back.

    Attributes:
        topic: Its name.
        partitions: How many it has.
        bytes: What brokers keep of it, as far as they answer.
        exact: Every broker answered.
        unreadable: Why it cannot be read in ZooKeeper; None: it can.
        keeps_data: Its id cannot be read, either, so brokers keep its data.
        grace_s: How long it can be brought back afterwards; 0: not at all.
        deleted: It is deleted already, and can be brought back.
    """

    topic: str
    partitions: int
    bytes: int
    exact: bool
    unreadable: str | None = None
    keeps_data: bool = False
    grace_s: int = 0
    deleted: bool = False


async def plan_delete(cluster: ClusterClient, topic: str, *, now: bool = False) -> Deletion:
    """Return what deleting a topic would take away; changes nothing.

    ``now``: for good, at once.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidState: It cannot be read, so it could not be brought back; ``now`` deletes it.
    """
    found = await read_remains(cluster.coordinator, check_name("topic", topic))
    if found.view is None:
        if not now and await _grace_s(cluster):
            raise _unreadable(topic, found.unreadable)
        return Deletion(topic, found.partitions, 0, False, found.unreadable, not found.topic.id)
    deletion = found.view.deletion
    grace_s = 0
    if not now and deletion is not None:
        count = await grace.read_count(cluster.coordinator)
        grace_s = grace.left_ms(deletion, count.ms) // 1000
    elif not now and found.view.phase == READY:
        grace_s = await _grace_s(cluster)
    inspector = Inspector(cluster)
    ends = await gather_all(inspector.ends_if_told(each) for each in found.view.partitions)
    known = [each.latest - each.earliest for each in ends if each is not None]
    exact = len(known) == len(ends)
    return Deletion(
        topic,
        found.partitions,
        sum(known),
        exact,
        grace_s=grace_s,
        deleted=deletion is not None,
    )


async def delete_topic(cluster: ClusterClient, topic: str, *, now: bool = False) -> None:
    """Delete a topic: clients see it no more, and it can be brought back for a while.

    ``ClusterSettings.delete_grace_hours`` says for how long. After that, brokers remove it for
    good, with its messages and every group's progress on it. Until then its name is not free.
    Deleting it again is fine.

    ``now``: remove it for good at once, also one that is deleted already; cannot be undone.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidState: It cannot be read, so it could not be brought back; nothing was changed.
        ChangeUnknown: ZooKeeper went away; it is deleted, deleted in part, or not. May be repeated.
    """
    coordinator = cluster.coordinator
    with unknown_when_cut(f"deleting {topic}"):
        if now:
            await topics.delete_topic(coordinator, topic)
            return
        grace_s = await _grace_s(cluster)
        for _ in range(DELETE_TRIES_MAX):
            found = await read_remains(coordinator, check_name("topic", topic))
            if found.view is None and grace_s:
                raise _unreadable(topic, found.unreadable)
            if found.view is not None and found.view.phase == IN_GRACE:
                return  # it keeps the time that it was given
            if found.view is not None and found.view.phase == READY and grace_s:
                await grace.retire_topic(
                    coordinator, topic, grace_ms=grace_s * 1000, by=cluster.origin()
                )
                return
            # Otherwise somebody has just completed it: then it can be brought back, too.
            if await topics.delete_topic(coordinator, topic, only=_is_in_part if grace_s else None):
                return
        raise CoordinationError(
            f"topic {topic!r} was changed {DELETE_TRIES_MAX} times while it was to be deleted; it "
            "was not; try again"
        )


def _is_in_part(view: TopicView) -> bool:
    """Whether a topic was created or removed in part: nobody has messages in it."""
    return view.phase not in {READY, IN_GRACE}


async def _grace_s(cluster: ClusterClient) -> int:
    return (await read_settings(cluster.coordinator)).delete_grace_hours * 3_600


def _unreadable(name: str, why: str) -> InvalidState:
    return InvalidState(
        f"topic {name!r} cannot be read, so it could not be brought back: {why}",
        hint="write the value that belongs there; or delete the topic for good at once (--now)",
    )


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A topic that is deleted and can be brought back.

    Attributes:
        name: Its name.
        id: Its id.
        partitions: How many it has.
        deletion: Who deleted it, and when.
        left_s: How long it can still be brought back, at least: the time runs while brokers run.
    """

    name: str
    id: str
    partitions: int
    deletion: TopicDeletion
    left_s: int


async def deleted_topics(cluster: ClusterClient) -> list[DeletedTopic]:
    """Return the topics that can be brought back, sorted by name."""
    return (await readable_deleted_topics(cluster))[0]


async def readable_deleted_topics(
    cluster: ClusterClient,
) -> tuple[list[DeletedTopic], dict[str, VqError]]:
    """Return the topics that can be brought back, and by name errors of unreadable topics.

    Raises:
        Unreadable: Nobody knows how long: the count of the time cannot be read.
    """
    found, unreadable = await topics.read_summaries(cluster.coordinator)
    count = await grace.read_count(cluster.coordinator)
    deleted = [
        DeletedTopic(
            each.name,
            each.id,
            each.settings.partitions,
            each.deletion,
            grace.left_ms(each.deletion, count.ms) // 1000,
        )
        for each in found
        if each.deletion is not None
    ]
    return deleted, dict(sorted(unreadable.items()))


async def undelete_topic(cluster: ClusterClient, topic: str) -> Topic:
    """Bring a deleted topic back as it was, with its messages and every group's progress.

    One that is not deleted stays as it is.

    Raises:
        UnknownTopic: There is none of this name, or it is removed for good.
        ChangeUnknown: ZooKeeper went away; it is back or not. May be repeated.
    """
    return (await bring_back(cluster, topic))[0]


async def bring_back(cluster: ClusterClient, topic: str) -> tuple[Topic, bool]:
    """Bring a deleted topic back as it was; return it, and whether it was deleted.

    Id, settings, placements, messages and the progress of consumer groups are those that it had.
    Brokers serve it within moments.

    Raises:
        UnknownTopic: There is none of this name, or it is removed for good.
        ChangeUnknown: ZooKeeper went away; it is back or not. May be repeated.
    """
    with unknown_when_cut(f"bringing {topic} back"):
        view, changed = await grace.undelete_topic(cluster.coordinator, topic)
    return _topic(view), changed


# Looking --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic in a list; ``describe_topic`` has its partitions.

    Attributes:
        name: Its name.
        id: Tells it from a namesake that was deleted.
        settings: With the number of its partitions.
        open: How many of its partitions take messages on which broker group; "" stands for those
            that take none.
        origin: Who created it; None: unknown, an earlier vq created it.
    """

    name: str
    id: str
    settings: TopicSettings
    open: Mapping[str, int]
    origin: TopicOrigin | None = None


async def list_topics(cluster: ClusterClient, *, reserved: bool = False) -> list[TopicSummary]:
    """Return all topics, sorted by name; without those that cannot be read in ZooKeeper.

    ``reserved``: also topics that vq made for itself, such as those of dead letters.
    """
    found, unreadable = await readable_topics(cluster, reserved=reserved)
    for name, error in unreadable.items():
        logger.warning("topic cannot be read and is left out", topic=name, error=error)
    return found


async def readable_topics(
    cluster: ClusterClient, *, reserved: bool = False
) -> tuple[list[TopicSummary], dict[str, VqError]]:
    """Return all topics, sorted by name, and by name the errors of those that cannot be read.

    For programs to which a topic that is missing in the list would mean that there is none.
    ``reserved``: also topics that vq made for itself.
    """
    found, unreadable = await topics.summarize_readable(cluster.coordinator)
    summaries = [
        TopicSummary(each.name, each.id, each.settings, each.open, each.origin)
        for each in found
        if reserved or not is_reserved(each.name)
    ]
    errors = {name: unreadable[name] for name in sorted(unreadable)}
    return summaries, {name: e for name, e in errors.items() if reserved or not is_reserved(name)}


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Messages beyond the limits of a topic that are kept because somebody needs them.

    Attributes:
        by: Who: a consumer group, or that there is none.
        start: Offset of the first of them.
        size_bytes: How much they are.
        since_ms: When the oldest would have been deleted for its age, in milliseconds since 1970;
            None: they are too much, and not too old.
    """

    by: str
    start: int
    size_bytes: int
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: its place, and what the brokers that hold it say.

    Attributes:
        placement: Where it lives.
        state: What the broker says that takes its messages: ``rw``, ``ro``, ``closed``, ``sealed``,
            ``failed``, ``quarantined``; where it takes none, what ZooKeeper says. None: no broker
            says.
        ends: The offsets it holds; None: a broker that knows one does not answer, or the topic is
            not readable.
        damaged: How many damaged ranges brokers know of; None: unknown.
        damage: The first few of them.
        reasons: Why brokers say nothing of it, or why it takes no messages or gives none.
        held: What the topic's ``retention_policy`` keeps beyond its limits; None: nothing.
    """

    placement: PartitionPlacement
    state: str | None
    ends: PartitionEnds | None
    damaged: int | None
    damage: tuple[Damage, ...]
    reasons: tuple[str, ...]
    held: HeldBack | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with what brokers say of its partitions.

    Attributes:
        topic: As ZooKeeper knows it.
        partitions: In rising order.
        refusing: The broker groups that answer, and refuse to serve a partition of it, sorted.
    """

    topic: Topic
    partitions: tuple[PartitionDescription, ...]
    refusing: tuple[str, ...]


async def bounds(cluster: ClusterClient, topic: str | Topic) -> dict[int, PartitionEnds | None]:
    """Return the offsets that each partition holds, by number; None: a broker is silent.

    ``topic``: its name; or what ``get_topic`` has returned just now, which saves the reads of
    its partitions in ZooKeeper. Then another topic that has the name now counts as silent.

    Raises:
        UnknownTopic: There is no such topic.
        PermissionRefused: It is not readable.
    """
    if isinstance(topic, Topic):
        return await ends_of(cluster, topic.partitions, topic.id)
    return await ends_of(cluster, (await get_topic(cluster, topic)).partitions)


async def get_topic(cluster: ClusterClient, topic: str) -> Topic:
    """Return a topic as ZooKeeper knows it; asks no broker.

    Raises:
        UnknownTopic: There is none of this name.
    """
    return _topic(await topics.describe_topic(cluster.coordinator, topic))


async def describe_topic(cluster: ClusterClient, topic: str) -> TopicDescription:
    """Return a topic with the state, the offsets and the damage of every partition.

    Raises:
        UnknownTopic: There is none of this name.
    """
    view = await topics.describe_topic(cluster.coordinator, topic)
    inspector = Inspector(cluster)
    groups = sorted({span.group for each in view.partitions for span in each.spans})
    asked = await gather_all(_ask_group(cluster, view, group) for group in groups)
    answers = dict(zip(groups, asked, strict=True))
    ends = await gather_all(inspector.ends_if_told(each) for each in view.partitions)
    return TopicDescription(
        _topic(view),
        tuple(
            _partition(placement, found, answers, readable=view.settings.readable)
            for placement, found in zip(view.partitions, ends, strict=True)
        ),
        tuple(group for group in groups if answers[group].refuses),
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the master of a broker group says of a topic.

    Attributes:
        states: State and reason of its partitions, by number.
        ranges: How many damaged ranges it knows of in each.
        damage: The ranges that it tells of in each.
        held: What it keeps of each because somebody needs it.
        silent: Why it says nothing of a partition; "": it says something of each.
        refuses: It answers, and refuses to serve one.
    """

    states: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    ranges: Mapping[int, int] = field(default_factory=dict)
    damage: Sequence[Damage] = ()
    held: Mapping[int, HeldBack] = field(default_factory=dict)
    silent: str = ""
    refuses: bool = False


async def _ask_group(cluster: ClusterClient, view: TopicView, group: str) -> _Answer:
    master = await master_of(cluster, group)
    if master is None:
        return _Answer(silent=f"group {group} has no running master")
    try:
        status = await broker_status(cluster, master.address)
    except VqError as error:
        return _Answer(silent=f"group {group}: {type(error).__name__}: {error}")
    own = [each for each in status.raw["partitions"] if each["topic"] == view.name]
    states = {each["partition"]: (each["state"], each["reason"]) for each in own}
    why = await _why_silent(cluster, view, group, master.address, states)
    return _Answer(
        states=states,
        ranges={each["partition"]: each["damaged_ranges"] for each in own},
        damage=[each for each in brokers.damage(status) if each.topic == view.name],
        held={each["partition"]: _held(each) for each in own if each.get("held_by")},
        silent=f"group {group} refuses {view.name}: {why}" if why else "",
        refuses=bool(why),
    )


def _held(told: Mapping[str, Any]) -> HeldBack:
    return HeldBack(
        by=told["held_by"],
        start=told["held_from"],
        size_bytes=told["held_bytes"],
        since_ms=told["held_since_ms"] or None,
    )


async def _why_silent(
    cluster: ClusterClient,
    view: TopicView,
    group: str,
    address: Address,
    told: Mapping[int, object],
) -> str:
    """Return why a broker refuses what it holds and does not name, "" if it refuses nothing."""
    for placement in view.partitions:
        held = any(span.group == group for span in placement.spans)
        if held and placement.partition not in told:  # one stands for all
            request = VerifyRequest(topic=view.name, partition=placement.partition, whole=True)
            try:
                await cluster.request(address, Command.VERIFY, request)
            except VqError as error:
                return f"{type(error).__name__}: {error}"
            return ""
    return ""


def _partition(
    placement: PartitionPlacement,
    ends: PartitionEnds | None,
    answers: Mapping[str, _Answer],
    *,
    readable: bool,
) -> PartitionDescription:
    number = placement.partition
    holders = [answers[group] for group in dict.fromkeys(span.group for span in placement.spans)]
    writer = answers.get(placement.writer_group or "", _Answer())
    state, reason = writer.states.get(number, (None, ""))
    reasons = [each.silent for each in holders if each.silent]
    if state in FAILED_STATES:
        reasons.append(reason)
    ranges = sum(each.ranges.get(number, 0) for each in holders)
    closed = () if readable else ("the topic is not readable",)
    return PartitionDescription(
        placement=placement,
        state=state if placement.state is PartitionState.RW else str(placement.state),
        ends=ends,
        damaged=None if not ranges and reasons else ranges,
        damage=tuple(d for each in holders for d in each.damage if d.partition == number),
        reasons=(*reasons, *closed),
        held=next((each.held[number] for each in holders if number in each.held), None),
    )
