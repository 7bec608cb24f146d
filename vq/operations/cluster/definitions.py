"""Definitions of a cluster: exported as one value, and imported with a plan first.

Loop-bound functions on a ``ClusterClient``. A plan has the version of every node that it looked at.
An import plans again, and changes nothing if that is another plan; each change is a compare-and-set
on what was there then. So a plan is plain values that can go to a browser and back.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, TypeVar

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.groups import groups
from vq.coordination.topics import cluster_settings
from vq.coordination.tree.coordinator import Node, NoNode
from vq.coordination.tree.paths import CONSUMERS, TOPICS
from vq.coordination.tree.reading import children_or_none, gather_all
from vq.coordination.tree.values.brokers import BrokerGroup
from vq.coordination.tree.values.cluster import ClusterSettings
from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.coordination.tree.values.group_terms import GroupModel
from vq.coordination.tree.values.topics import READY, TopicNode
from vq.errors import InvalidState, OutcomeUnknown, VqError
from vq.model import TopicSettings
from vq.operations.base.acts import audited
from vq.operations.cluster.definition_file import DefinedBrokers, DefinedTopic, Definitions
from vq.operations.groups.group_removal import delete_group
from vq.operations.groups.making import (
    GroupExport,
    contract_of,
    export_group,
    exported_of,
    make_group,
    plan_defined_group,
    plan_import_group,
)
from vq.operations.topics import topics
from vq.operations.topics.deletion import delete_topic
from vq.reserved import is_reserved
from vq.shown import shown

T = TypeVar("T")


class DefinitionAction(StrEnum):
    """What an import does with a thing."""

    MAKE = "make"
    CHANGE = "change"
    LEAVE = "leave"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """A field that changes, with its values as people read them."""

    field: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionStep:
    """One thing of the definitions, or of the cluster.

    Attributes:
        kind: ``settings``, ``broker_group``, ``topic`` or ``group``.
        name: Of it; "" of the settings.
        action: What is done.
        changes: Which fields change.
        why_not: Why it is not done as the definitions say; "": it is.
        version: Of its node, when the plan was made; -1: there was none.
        created: The czxid of the node; 0: there was none.
    """

    kind: str
    name: str
    action: DefinitionAction
    changes: tuple[DefinitionChange, ...] = ()
    why_not: str = ""
    version: int = -1
    created: int = 0

    @property
    def path(self) -> str:
        """The path of its node."""
        match self.kind:
            case "settings":
                return ClusterSettings.path()
            case "broker_group":
                return BrokerGroup.path(self.name)
            case "topic":
                return TopicNode.path(self.name)
        return ConsumerGroup.path(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDefinitions:
    """What an import of definitions would do.

    Attributes:
        definitions: What is imported.
        steps: One for each thing, in the order in which they are done: settings, broker groups,
            topics, groups, and then what is deleted.
        prune: Topics and groups that are not in the definitions are deleted.
        with_offsets: Groups that are made get the offsets of the definitions.
    """

    definitions: Definitions
    steps: tuple[DefinitionStep, ...]
    prune: bool = False
    with_offsets: bool = False

    def count(self, action: DefinitionAction) -> int:
        """Return for how many things an action is."""
        return sum(each.action is action for each in self.steps)

    @property
    def refused(self) -> list[DefinitionStep]:
        """The things that cannot be as the definitions say."""
        return [each for each in self.steps if each.why_not]


# Exporting --------------------------------------------------------------------------------------
async def export_definitions(cluster: ClusterClient, *, with_offsets: bool = False) -> Definitions:
    """Return what defines the cluster: settings, pools and labels, topics, groups of consumers.

    Without vq's own topics, members, placements, and what is of a moment: a drain, a roll, a
    deleted topic.

    Args:
        with_offsets: Groups have their committed offsets; they mean something in this cluster only.

    Raises:
        Unreadable: Something cannot be read, so the definitions would lack it.
    """
    coordinator = cluster.coordinator
    names = await registry.group_names(coordinator)
    brokers = await gather_all(_brokers(cluster, each) for each in names)
    summaries, unreadable = await topics.readable_topics(cluster)
    for error in unreadable.values():
        raise error
    found = await gather_all(
        _exported_group(cluster, each, with_offsets=with_offsets)
        for each in await groups.list_groups(coordinator)
    )
    return Definitions(
        cluster=cluster.config.cluster,
        time_ms=cluster.clock.wall_ms(),
        settings=await cluster_settings.read_settings(coordinator),
        broker_groups=tuple(brokers),
        topics=tuple(DefinedTopic(each.name, each.settings) for each in summaries),
        groups=tuple(each for each in found if each is not None),
    )


async def _brokers(cluster: ClusterClient, group: str) -> DefinedBrokers:
    value = await registry.read_group(cluster.coordinator, group) or BrokerGroup()
    return DefinedBrokers(group, value.pool, dict(value.labels))


async def _exported_group(
    cluster: ClusterClient, group: str, *, with_offsets: bool
) -> GroupExport | None:
    contract = await groups.read_group(cluster.coordinator, group)
    if contract is None:
        return None  # deleted, or being made
    if with_offsets and GroupModel(contract.model).claims:
        found = await export_group(cluster, group)
        return replace(
            exported_of(group, contract, found.time_ms),
            offsets=tuple(each for each in found.offsets if not is_reserved(each.topic)),
        )
    return exported_of(group, contract, cluster.clock.wall_ms())


# Planning ---------------------------------------------------------------------------------------
async def plan_import_definitions(
    cluster: ClusterClient,
    definitions: Definitions,
    *,
    prune: bool = False,
    with_offsets: bool = False,
) -> PlannedDefinitions:
    """Return what importing definitions would do; nothing is changed.

    What is not there is made, what differs is changed, nothing is deleted without ``prune``. What
    cannot be as the definitions say has ``why_not``, and the rest is done all the same.

    Args:
        definitions: What ``export_definitions`` returned, or ``definitions_from`` read.
        prune: Delete topics and groups that are not in the definitions.
        with_offsets: Groups that are made get their offsets; those that are there keep theirs.

    Raises:
        Unreadable: Something of the cluster cannot be read.
    """
    plan = await _plan(cluster, definitions, prune=prune)
    return PlannedDefinitions(
        definitions=definitions,
        steps=tuple(plan.steps),
        prune=prune,
        with_offsets=with_offsets,
    )


async def _plan(cluster: ClusterClient, definitions: Definitions, *, prune: bool) -> "_Planner":
    plan = _Planner(cluster)
    if definitions.settings is not None:
        await plan.settings(definitions.settings)
    for brokers in definitions.broker_groups or ():
        await plan.brokers(brokers)
    await gather_all(plan.topic(each) for each in definitions.topics or ())
    await gather_all(plan.group(each) for each in definitions.groups or ())
    if prune:
        await plan.prune(definitions)
    plan.steps.sort(key=_order)
    return plan


def _order(step: DefinitionStep) -> tuple[bool, int, str]:
    """Return what orders steps: groups are made behind their topics, and deleted before them."""
    kinds = ("settings", "broker_group", "topic", "group")
    is_deleted = step.action is DefinitionAction.DELETE
    at = kinds.index(step.kind)
    return is_deleted, -at if is_deleted else at, step.name


class _Planner:
    """Collects the steps of a plan, and what the things are that are to change."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self.steps: list[DefinitionStep] = []
        self.before: dict[tuple[str, str], Any] = {}

    async def settings(self, wanted: ClusterSettings) -> None:
        path = ClusterSettings.path()
        node = await self._node(path)
        now = ClusterSettings() if node is None else ClusterSettings.decode(path, node.data)
        self._compare("settings", "", node, now, wanted, _settings_fields)

    async def brokers(self, wanted: DefinedBrokers) -> None:
        path = BrokerGroup.path(wanted.group)
        node = await self._node(path)
        if node is None:
            why = "there is no such broker group: its first broker makes it"
            self._add("broker_group", wanted.group, DefinitionAction.LEAVE, None, why=why)
            return
        now = BrokerGroup.decode(path, node.data) if node.data else BrokerGroup()
        after = replace(now, pool=wanted.pool, labels=dict(wanted.labels))
        self._compare("broker_group", wanted.group, node, now, after, _broker_fields)

    async def topic(self, wanted: DefinedTopic) -> None:
        name, path = wanted.topic, TopicNode.path(wanted.topic)
        node = await self._node(path)
        if is_reserved(name):
            why = "its name is vq's own"
            self._add("topic", name, DefinitionAction.LEAVE, node, why=why)
            return
        if node is None:
            self._add("topic", name, DefinitionAction.MAKE, None)
            return
        now = TopicNode.decode(path, node.data)
        if now.phase != READY:
            why = f"it is {now.phase}: bring it back, or remove it for good, first"
            self._add("topic", name, DefinitionAction.LEAVE, node, why=why)
            return
        why = ""
        if wanted.settings.partitions < now.settings.partitions:
            why = (
                f"it has {now.settings.partitions} partitions, and their number can only grow, "
                f"not fall to {wanted.settings.partitions}"
            )
        self._compare("topic", name, node, now.settings, wanted.settings, asdict, why=why)

    async def group(self, wanted: GroupExport) -> None:
        name, path = wanted.group, ConsumerGroup.path(wanted.group)
        node = await self._node(path)
        contract = contract_of(wanted)
        if node is None or not node.data:
            self._add("group", name, DefinitionAction.MAKE, node)
            return
        now = ConsumerGroup.decode(path, node.data)
        after = _merged(now, contract)
        why = ""
        if replace(after, failure=now.failure) != now:
            members = await groups.member_names(self._cluster.coordinator, name)
            if members:
                why = (
                    f"it has {len(members)} member(s), and only what follows a failed message may "
                    "change then: stop them, or use `vq group roll`"
                )
            elif now.roll is not None:
                why = "it takes members of two versions now: end that first (`vq group roll`)"
        self._compare("group", name, node, now, after, _group_fields, why=why)

    async def prune(self, definitions: Definitions) -> None:
        coordinator = self._cluster.coordinator
        if definitions.topics is not None:
            named = {each.topic for each in definitions.topics}
            for name in await children_or_none(coordinator, TOPICS):
                node = await self._node(TopicNode.path(name))
                if name in named or is_reserved(name) or node is None:
                    continue
                if TopicNode.decode(TopicNode.path(name), node.data).phase == READY:
                    self._add("topic", name, DefinitionAction.DELETE, node)
        if definitions.groups is not None:
            known = {each.group for each in definitions.groups}
            for name in await children_or_none(coordinator, CONSUMERS):
                node = await self._node(ConsumerGroup.path(name))
                if name in known or node is None:
                    continue
                members = await groups.member_names(coordinator, name)
                why = f"it has {len(members)} member(s): stop them first" if members else ""
                action = DefinitionAction.LEAVE if why else DefinitionAction.DELETE
                self._add("group", name, action, node, why=why)

    async def _node(self, path: str) -> Node | None:
        try:
            return await self._cluster.coordinator.get(path)
        except NoNode:
            return None

    def _compare(
        self,
        kind: str,
        name: str,
        node: Node | None,
        now: T,
        wanted: T,
        told: Callable[[T], Mapping[str, Any]],
        *,
        why: str = "",
    ) -> None:
        changes = _changes(told(now), told(wanted))
        action = DefinitionAction.CHANGE if changes and not why else DefinitionAction.LEAVE
        if not changes:
            why = ""
        self.before[kind, name] = now
        self._add(kind, name, action, node, changes=changes, why=why)

    def _add(
        self,
        kind: str,
        name: str,
        action: DefinitionAction,
        node: Node | None,
        *,
        changes: tuple[DefinitionChange, ...] = (),
        why: str = "",
    ) -> None:
        self.steps.append(
            DefinitionStep(
                kind=kind,
                name=name,
                action=action,
                changes=changes,
                why_not=why,
                version=-1 if node is None else node.stat.version,
                created=0 if node is None else node.stat.czxid,
            )
        )


def _merged(now: ConsumerGroup, wanted: ConsumerGroup) -> ConsumerGroup:
    """Return the contract of a group once it is as defined; other topics that it reads stay."""
    topics = {**now.topics, **wanted.topics}
    patterns = {**now.patterns, **wanted.patterns}
    kept = {
        name: each for name, each in topics.items() if name in wanted.topics or name in now.topics
    }
    return replace(wanted, topics=kept, patterns=patterns, roll=now.roll, by_stream=now.by_stream)


def _settings_fields(settings: ClusterSettings) -> Mapping[str, Any]:
    new_topics = {f"auto_create.{name}": each for name, each in asdict(settings.new_topics).items()}
    return {
        "auto_create.enabled": settings.may_create,
        "delete_grace_hours": settings.delete_grace_hours,
        **new_topics,
    }


def _broker_fields(group: BrokerGroup) -> Mapping[str, Any]:
    labels = ", ".join(f"{name}={value}" for name, value in sorted(group.labels.items()))
    return {"pool": group.pool, "labels": labels or None}


def _group_fields(contract: ConsumerGroup) -> Mapping[str, Any]:
    told = {
        each.name: getattr(contract, each.name)
        for each in fields(ConsumerGroup)
        if each.name not in {"topics", "patterns", "failure", "roll", "by_stream"}
    }
    filters = {**contract.topics, **contract.patterns}
    return {
        **told,
        **contract.failure.to_json(),
        **{f"filter of {name}": each.text or "*" for name, each in filters.items()},
    }


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[DefinitionChange, ...]:
    return tuple(
        DefinitionChange(name, _shown(before.get(name)), _shown(after.get(name)))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    )


def _shown(value: object) -> str:
    if value is None:
        return "none"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return shown(text, 200).strip("'\"")


# Importing --------------------------------------------------------------------------------------
async def _made(_: ClusterClient, arguments: Mapping[str, Any]) -> int:
    """Return how many partitions an import makes."""
    planned: PlannedDefinitions = arguments["planned"]
    sizes = {each.topic: each.settings.partitions for each in planned.definitions.topics or ()}
    made = 0
    for step in planned.steps:
        if step.kind == "topic" and not step.why_not:
            if step.action is DefinitionAction.MAKE:
                made += sizes[step.name]
            made += sum(
                max(0, int(each.after) - int(each.before))
                for each in step.changes
                if each.field == "partitions" and step.action is DefinitionAction.CHANGE
            )
    return made


@audited(partitions=_made)
async def import_definitions(
    cluster: ClusterClient,
    planned: PlannedDefinitions,
    *,
    on_progress: Callable[[int, int], object] | None = None,
) -> list[DefinitionStep]:
    """Make, change and delete as planned; return the steps, those not done with ``why_not``.

    A deleted topic can be brought back as any other. One thing that fails does not keep the others
    from being done.

    ``on_progress`` is called with how many steps were taken and how many there are, on the
    factory's thread; it must be short.

    Raises:
        InvalidState: Something has changed since the plan; nothing was done.
        ChangeUnknown: ZooKeeper went away during a step; those before it are done. Plan again.
    """
    now = await _plan(cluster, planned.definitions, prune=planned.prune)
    for step in _changed(planned.steps, now.steps):
        raise InvalidState(
            f"{_told(step)} has changed since the plan; nothing was done: plan again"
        )
    done: list[DefinitionStep] = []
    for step in now.steps:
        if on_progress is not None:
            on_progress(len(done), len(now.steps))
        if step.why_not or step.action is DefinitionAction.LEAVE:
            done.append(step)
            continue
        try:
            await _do(cluster, planned, step, now.before.get((step.kind, step.name)))
        except OutcomeUnknown:
            raise
        except VqError as error:
            done.append(replace(step, why_not=f"{type(error).__name__}: {error.message}"))
        else:
            done.append(step)
    return done


async def changed_definitions(
    cluster: ClusterClient, planned: PlannedDefinitions
) -> list[DefinitionStep]:
    """Return the things that have changed since a plan: an import of it would be refused.

    A step is that of the plan; of a thing that is new, or was not in the plan, that of now.
    """
    now = await _plan(cluster, planned.definitions, prune=planned.prune)
    return _changed(planned.steps, now.steps)


def _changed(
    planned: Iterable[DefinitionStep], now: Iterable[DefinitionStep]
) -> list[DefinitionStep]:
    """Return the steps that are in one plan only; why a thing stays as it is may be told anew."""
    before, after = ({replace(each, why_not=""): each for each in plan} for plan in (planned, now))
    gone = [each for key, each in before.items() if key not in after]
    known = {(each.kind, each.name) for each in gone}
    new = [each for key, each in after.items() if key not in before]
    return [*gone, *(each for each in new if (each.kind, each.name) not in known)]


def _told(step: DefinitionStep) -> str:
    return f"the {step.kind} {step.name}".strip().replace("_", " ")


def _same(before: T, what: str, after: T) -> Callable[[T], T]:
    """Return a change that is refused if what it changes is not as it was planned."""

    def change(now: T) -> T:
        if now == after:
            return now  # an answer was lost
        if now != before:
            raise InvalidState(f"{what} has changed since the plan: plan again")
        return after

    return change


async def _do(
    cluster: ClusterClient, planned: PlannedDefinitions, step: DefinitionStep, before: Any
) -> None:
    """Take a step; ``before`` is what the thing was when the plan was looked at again."""
    wanted, name = planned.definitions, step.name
    doing: Awaitable[Any]
    match step.kind, step.action:
        case "settings", _:
            assert wanted.settings is not None, "it has a step"
            change = _same(before, "they", wanted.settings)
            doing = cluster_settings.change_settings(cluster.coordinator, change)
        case "broker_group", _:
            brokers = next(each for each in wanted.broker_groups or () if each.group == name)
            after = replace(before, pool=brokers.pool, labels=dict(brokers.labels))
            doing = registry.change_group(cluster.coordinator, name, _same(before, "it", after))
        case "topic", DefinitionAction.DELETE:
            doing = delete_topic(cluster, name)
        case "topic", _:
            topic = next(each for each in wanted.topics or () if each.topic == name)
            doing = _topic(cluster, topic, before)
        case _, DefinitionAction.DELETE:
            doing = delete_group(cluster, name)
        case _:
            group = next(each for each in wanted.groups or () if each.group == name)
            doing = _group(cluster, group, before, with_offsets=planned.with_offsets)
    await doing


async def _topic(
    cluster: ClusterClient, wanted: DefinedTopic, before: TopicSettings | None
) -> None:
    if before is None:
        await topics.create_topic(cluster, wanted.topic, wanted.settings)
        return
    after = replace(wanted.settings, partitions=before.partitions)
    change = _same(before, "it", after)
    await topics.change_topic(cluster, wanted.topic, change, partitions=wanted.settings.partitions)


async def _group(
    cluster: ClusterClient,
    wanted: GroupExport,
    before: ConsumerGroup | None,
    *,
    with_offsets: bool,
) -> None:
    if before is not None:
        change = _same(before, "it", _merged(before, contract_of(wanted)))
        await groups.change_contract(cluster.coordinator, wanted.group, change)
        return
    if with_offsets and wanted.offsets:
        planned = await plan_import_group(cluster, wanted, wanted.group)
    else:
        planned = plan_defined_group(wanted)
    await make_group(cluster, planned)
