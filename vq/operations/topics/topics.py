"""Topics: making, listing, describing, changing and deleting them.

Loop-bound functions on a ``ClusterClient``. What a broker that is away would have to tell is None,
never 0. Moving a topic's partitions is in ``placements``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from vq.bounds import check_whole
from vq.client.cluster import ClusterClient
from vq.client.kinds import given_settings, settings_of
from vq.coordination.topics import summaries, topics
from vq.coordination.topics.cluster_settings import read_settings
from vq.coordination.topics.reserved_topics import check_as_safe
from vq.coordination.topics.topics import TopicExists
from vq.coordination.tree.reading import TopicView, gather_all
from vq.coordination.tree.values.topics import TopicNode
from vq.errors import (
    InvalidArgument,
    UnknownTopic,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import (
    Address,
    PartitionPlacement,
    PartitionState,
    TopicOrigin,
    TopicSettings,
)
from vq.operations.base.acts import About, audited
from vq.operations.base.changes import unknown_when_cut
from vq.operations.brokers import brokers
from vq.operations.brokers.brokers import FAILED_STATES, Damage, broker_status, master_of
from vq.operations.partitions.offsets import Inspector, PartitionEnds, ends_of
from vq.operations.partitions.placements import check_nodes
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import VerifyRequest
from vq.reserved import check_may_grow, check_own_name, is_reserved

logger = get_logger(__name__)


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


def topic_of(view: TopicView) -> Topic:
    return Topic(view.name, view.id, view.settings, view.partitions, view.origin)


# Changing -------------------------------------------------------------------------------------
async def _created(cluster: ClusterClient, arguments: Mapping[str, Any]) -> int:
    """Return how many partitions ``create_topic`` will make."""
    check_own_name(arguments["topic"])
    if await cluster.coordinator.exists(TopicNode.path(arguments["topic"])) is not None:
        return 0
    settings = arguments.get("settings")
    if settings is None:
        return (await read_settings(cluster.coordinator)).defaults.partitions
    return settings_of(TopicSettings, settings, "settings").partitions


async def _altered(cluster: ClusterClient, arguments: Mapping[str, Any]) -> int:
    """Return how many partitions ``alter_topic`` will make."""
    wanted = arguments.get("partitions")
    if wanted is None:
        return 0
    check_whole("partitions", wanted)
    view = await topics.describe_topic(cluster.coordinator, arguments["topic"])
    return max(0, int(wanted) - len(view.partitions))


async def _added(_: ClusterClient, arguments: Mapping[str, Any]) -> int:
    """Return how many partitions ``add_partitions`` will make."""
    check_whole("count", arguments["count"])
    return max(0, int(arguments["count"]))


@audited(About.TOPIC, partitions=_created)
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
        Throttled: More than the user's quota ``metadata`` allows; nothing was made.
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
        return topic_of(
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
            return topic_of(await topics.describe_topic(cluster.coordinator, topic)), False
        except UnknownTopic:
            pass
        raise


@audited(About.TOPIC)
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
        InvalidArgument: The number of partitions differs, ``change`` raised it, a topic of vq's
            own would be less safe, or a group that takes messages of the topic has fewer nodes
            than the new ``min_insync``.
        ChangeUnknown: ZooKeeper went away; they are changed or not.
    """

    def checked(now: TopicSettings) -> TopicSettings:
        after = change(now)
        check_as_safe(topic, now, after)
        return after

    await _check_nodes(cluster, topic, checked)
    with unknown_when_cut(f"changing {topic}"):
        return topic_of(await topics.alter_settings(cluster.coordinator, topic, checked))


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


@audited(About.TOPIC, partitions=_altered)
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
    if wanted > present:
        check_may_grow(topic)
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


@audited(About.TOPIC, partitions=_added)
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
        return topic_of(await topics.add_partitions(cluster.coordinator, topic, count))


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
    found, unreadable = await summaries.summarize_readable(cluster.coordinator)
    told = [
        TopicSummary(each.name, each.id, each.settings, each.open, each.origin)
        for each in found
        if reserved or not is_reserved(each.name)
    ]
    errors = {name: unreadable[name] for name in sorted(unreadable)}
    return told, {name: e for name, e in errors.items() if reserved or not is_reserved(name)}


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
        NotAuthenticated: A broker does not take this user.
        PermissionRefused: It is not readable; ``NotAuthorized``: by this user.
    """
    if isinstance(topic, Topic):
        return await ends_of(cluster, topic.partitions, topic.id)
    return await ends_of(cluster, (await get_topic(cluster, topic)).partitions)


async def get_topic(cluster: ClusterClient, topic: str) -> Topic:
    """Return a topic as ZooKeeper knows it; asks no broker.

    Raises:
        UnknownTopic: There is none of this name.
    """
    return topic_of(await topics.describe_topic(cluster.coordinator, topic))


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
        topic_of(view),
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
