"""``vq group``: consumer groups, their members, and how far behind they are."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

import click

from vq.cli.base.completion import group_names, topic_names
from vq.cli.base.errors import check_readable
from vq.cli.base.json_schema import Shape, having, maybe, record, shows, some
from vq.cli.base.options import Commands, Invocation, command_options, flag, option, yes_option
from vq.cli.base.text import utc
from vq.cli.groups.group_balance import history, plan
from vq.cli.groups.group_failed import failed
from vq.cli.groups.group_making import clone, create, export, import_
from vq.cli.groups.group_reset import reset
from vq.cli.groups.group_terms import TERMS, alter, roll, terms_text, topics_read
from vq.client.cluster import ClusterClient
from vq.coordination.tree.values.group_terms import BAD_RECORD, GroupModel
from vq.errors import CorruptData, PartitionQuarantined, VqError
from vq.operations.cluster.lag_looks import look_at_groups
from vq.operations.groups.group_lags import PARTITIONS_MAX, GroupLags
from vq.operations.groups.group_removal import (
    GroupDeletion,
    TopicForgetting,
    delete_group,
    forget_topic,
    plan_delete_group,
    plan_forget_topic,
)
from vq.operations.groups.groups import (
    GroupDescription,
    GroupMember,
    GroupProgress,
    GroupSummary,
    describe_group,
    readable_groups,
)
from vq.operations.groups.lag_rules import LagThresholds
from vq.operations.groups.shared import SharedGroupDescription, describe_shared_group

_PROGRESS: Final = Shape(GroupProgress, "* beyond_end")
_MEMBER: Final = Shape(GroupMember)
_FORGETTING: Final = Shape(TopicForgetting)
_DELETION: Final = Shape(GroupDeletion)
_LAG: Final = Shape(GroupDescription, "lag_bytes lag_messages lag_s")


class _PatternRead(NamedTuple):
    pattern: str
    filter: str | None
    topics: list[str]


def _patterns(found: GroupDescription) -> list[_PatternRead]:
    return [
        _PatternRead(each, wanted or None, found.matched_by(each))
        for each, wanted in found.patterns.items()
    ]


_TERMS: Final = " ".join(f"{name}=terms.{each.attribute}" for name, each in TERMS.fields.items())
_GROUP: Final = Shape(
    GroupDescription,
    f"group {_TERMS} start topics patterns= deleted_topics unsubscribed by_stream retry_topic "
    "lag_is_upper_bound lag_bytes lag_messages lag_s",
    topics=topics_read,
    patterns=_patterns,
)

_COLUMNS = "topic partition owner committed end lag_bytes lag_messages lag_s"


@click.group(cls=Commands)
def group() -> None:
    """List, describe, make, change, reset and delete consumer groups; forget topics."""


for command in (reset, plan, history, alter, roll, create, clone, export, import_, failed):
    group.add_command(command)


# list -----------------------------------------------------------------------------------------
@group.command(name="list")
@flag(
    "--lag as with_lag", "Also how far each is behind over all partitions, and the worst verdict."
)
@shows(
    some(
        having(
            Shape(GroupSummary),
            **_LAG.fields,
            verdict=maybe(str),
            cause=maybe(str),
            lag_is_upper_bound=maybe(bool),
        )
    )
)
@command_options
def list_(invocation: Invocation, with_lag: bool) -> None:
    """List consumer groups with their topics and live members.

    --lag asks brokers about at most 10,000 partitions; a lag that they do not tell whole is
    unknown. `vq group describe` shows each partition, and `vq report lag` all of a large cluster.

    Exit code 1 when a group cannot be read in ZooKeeper and is left out.
    """

    async def work(
        cluster: ClusterClient,
    ) -> tuple[list[GroupSummary], dict[str, VqError], GroupLags]:
        lags = GroupLags()
        found, unreadable = await readable_groups(cluster)
        if with_lag:
            lags = await look_at_groups(cluster, count=True, partitions_max=PARTITIONS_MAX)
        return found, unreadable, lags

    found, unreadable, lags = invocation.call(work)
    told = {each.group: _lag_of(lags, each.group) for each in found}
    _show_list(invocation, found, told, with_lag=with_lag)
    if lags.left_out:
        invocation.output.remark(
            f"{sum(lags.left_out.values())} partitions of {len(lags.left_out)} group(s) lie beyond "
            f"the first {PARTITIONS_MAX}, and no broker was asked about them; `vq report lag` has "
            "all"
        )
    check_readable("group", unreadable)


_LAGS = ("lag_bytes", "lag_messages", "lag_s", "verdict", "cause")


def _lag_of(lags: GroupLags, name: str) -> dict[str, Any]:
    """Return the lag of a group over all its partitions; all unknown if one is left out."""
    found = lags.groups.get(name)
    if found is None or name in lags.left_out:
        return {**dict.fromkeys(_LAGS), "lag_is_upper_bound": None}
    verdict = found.worst_verdict(LagThresholds(), now_s=lags.time_ms / 1000)
    return {
        "lag_bytes": found.lag_bytes,
        "lag_messages": found.lag_messages,
        "lag_s": found.lag_s,
        **verdict._asdict(),
        "lag_is_upper_bound": found.lag_is_upper_bound,
    }


def _show_list(
    invocation: Invocation,
    found: Sequence[GroupSummary],
    lags: Mapping[str, Mapping[str, Any]],
    *,
    with_lag: bool,
) -> None:
    if invocation.output.document([{**asdict(each), **lags[each.group]} for each in found]):
        return
    rows = [
        {
            **asdict(each),
            "topics": topics_text(each),
            "members": "stream" if each.by_stream and not each.members else each.members,
            **_bounded(lags[each.group]),
        }
        for each in found
    ]
    columns = f"group topics members {' '.join(_LAGS) if with_lag else 'model start'}"
    invocation.output.table(rows, columns=columns, optional="cause")
    if not rows:
        config = invocation.client_config()
        invocation.output.remark(f"cluster {config.cluster!r} has no consumer groups")


def _bounded(lag: Mapping[str, Any]) -> dict[str, Any]:
    """Return a lag as a table shows it: one with messages that the group leaves out is a bound."""
    if not lag["lag_is_upper_bound"]:
        return dict(lag)
    numbers = {each: lag[each] for each in _LAGS[:3] if lag[each] is not None}
    return {**lag, **{name: f"<= {value}" for name, value in numbers.items()}}


def topics_text(found: GroupSummary) -> str:
    """Return the topics of a group; those that no member subscribes to are marked."""
    topics = (
        f"{topic} (not subscribed)" if topic in found.unsubscribed else topic
        for topic in found.topics
    )
    return ",".join(topics) or "-"


# forget ---------------------------------------------------------------------------------------
@group.command()
@click.argument("name", shell_complete=group_names)
@option(
    "--topic TOPIC",
    "The topic that the group is to forget.",
    required=True,
    shell_complete=topic_names,
)
@yes_option
@shows(record(done=bool, **_FORGETTING.fields))
@command_options
def forget(invocation: Invocation, name: str, topic: str, yes: bool) -> None:
    """Have a consumer group forget a topic that none of its members subscribes to any more.

    Until then its lag there grows, and with the retention policy keep the topic keeps what the
    group has not read. Its progress in the topic is deleted: a member that subscribes to it later
    begins where its setting start_position says.
    """

    async def work(cluster: ClusterClient) -> TopicForgetting:
        planned = await plan_forget_topic(cluster, name, topic)
        if yes:
            await forget_topic(cluster, name, topic)
        return planned

    planned = invocation.call(work)
    output = invocation.output
    if not output.document({"done": yes, **_FORGETTING(planned)}):
        output.remark(
            f"plan: group {name} forgets topic {topic}, with its progress in {planned.partitions} "
            "partition(s); this cannot be undone"
        )
    if planned.members and not yes:
        output.remark(f"members subscribe to it, stop them first: {', '.join(planned.members[:5])}")
    if not yes:
        invocation.only_planned()
    elif not output.as_json:
        output.remark(f"group {name} forgot topic {topic}")


# delete ---------------------------------------------------------------------------------------
@group.command()
@click.argument("name", shell_complete=group_names)
@yes_option
@shows(record(done=bool, **_DELETION.fields))
@command_options
def delete(invocation: Invocation, name: str, yes: bool) -> None:
    """Delete a consumer group: where it is in each partition is forgotten.

    It must have no live members. A consumer of this name makes the group anew, and begins where its
    setting start_position says.
    """

    async def work(cluster: ClusterClient) -> GroupDeletion:
        planned = await plan_delete_group(cluster, name)
        if yes:
            await delete_group(cluster, name)
        return planned

    planned = invocation.call(work)
    output = invocation.output
    if not output.document({"done": yes, **_DELETION(planned)}):
        if planned.unreadable:
            output.remark(f"group {name} cannot be read: {planned.unreadable}")
        output.remark(
            f"plan: delete group {name}, with its progress in {planned.partitions} partition(s) of "
            f"{', '.join(planned.topics) or 'no topic'}; this cannot be undone"
        )
    if planned.members and not yes:
        output.remark(f"it has members, stop them first: {', '.join(planned.members[:5])}")
    if not yes:
        invocation.only_planned()
    elif not output.as_json:
        output.remark(f"deleted group {name}")


# describe -------------------------------------------------------------------------------------
@group.command()
@click.argument("name", shell_complete=group_names)
@flag("--no-count", "Leave out the lag in messages: faster.")
@shows(
    having(
        _GROUP,
        members=some(_MEMBER),
        partitions=some(having(_PROGRESS, verdict=str, cause=maybe(str))),
    )
)
@command_options
def describe(invocation: Invocation, name: str, no_count: bool) -> None:
    """Show a group's members, and its progress in every partition.

    The lag is what lies between the committed offset and the end: in bytes, in messages, and as the
    age of the oldest message of it, in seconds. Of a group with a filter, messages that it
    leaves out lie in it, too: it is an upper bound. A partition whose owner does not go on is named
    with the cause, and since when. With --json, each has the verdict and the cause that
    `vq report lag` gives it from one look by its default thresholds.
    """

    async def work(cluster: ClusterClient) -> tuple[GroupDescription, float]:
        found = await describe_group(cluster, name, count=not no_count)
        return found, cluster.clock.wall_ms() / 1000

    found, now_s = invocation.call(work)
    members = _MEMBER.all(found.members)
    output = invocation.output
    if output.as_json:
        rows = [
            {
                **_PROGRESS(each),
                **found.verdict_on(each, LagThresholds(), now_s=now_s)._asdict(),
            }
            for each in found.partitions
        ]
        output.document({**_GROUP(found), "members": members, "partitions": rows})
        return
    rows = [_row(each) for each in found.partitions]
    output.record(_summary(found))
    if found.by_stream and not members:
        output.remark(f"a stream that is not a member writes the progress of group {name}")
    if found.model == GroupModel.BROADCASTING:
        output.remark(
            f"every member of group {name} gets every message and keeps its progress by itself: "
            "its lag is not known here. A consumer tells its own: get_offset and get_bounds"
        )
    if found.model == GroupModel.SHARED:
        output.remark(
            f"committed is the lowest message of each partition that is not done; `vq group shared "
            f"{name}` shows what is open behind it"
        )
    output.title("")
    output.table(members, columns="member host pid partitions")
    output.title("")
    output.table(rows, columns=_COLUMNS)
    if any(each.committed_is_copy for each in found.partitions):
        output.remark(
            f"the offsets are kept in {found.terms.offset_store}; what is shown is the members' "
            "copy of them, which is seconds behind at most while they run, and so is the lag"
        )
    for topic in (*found.unsubscribed, *found.deleted_topics):
        why = "was deleted" if topic in found.deleted_topics else "no member subscribes to it"
        output.remark(
            f"{topic}: {why}; if that stays so, `vq group forget {name} --topic {topic}` has the "
            "group forget it"
        )
    for topic, wanted in dict.fromkeys((each.topic, each.filter) for each in found.partitions):
        if wanted is not None:
            output.remark(
                f"{topic}: the group reads {wanted}, and messages that it leaves out lie in its "
                "lag, too: it is an upper bound"
            )
    if found.retry_topic is not None:
        output.remark(
            f"{found.retry_topic}: the group's retry topic; its lag are copies of failed messages "
            "that are due and not handled. Those that still wait for their time are in no lag"
        )
    for topic in dict.fromkeys(each.topic for each in found.partitions if not each.readable):
        output.remark(
            f"{topic}: the topic is not readable, so nobody gets on there and its lag is not "
            "known; `Admin.alter_topic` with readable=True opens it"
        )
    for each in found.partitions:
        for text in remarks_on(name, each):
            output.remark(text)


def remarks_on(group: str, progress: GroupProgress) -> list[str]:
    """Return what a person is told of a partition in which the group does not go on."""
    partition = f"{progress.topic}-{progress.partition}"
    if progress.needs_reset:
        return [
            f"{partition}: the group was stopped at offset {progress.committed}: "
            f"{progress.stopped}; "
            f"`vq group reset {group}` sets where it goes on"
        ]
    found = []
    if progress.held:
        messages = f"{progress.held} message{'s' if progress.held > 1 else ''}"
        found.append(
            f"{partition}: {progress.owner} holds {messages} that its listener fails for; the "
            f"first is at offset {progress.stopped_at}, id {progress.message_id}, since "
            f"{utc(progress.stopped_since_ms)}, {progress.attempts} attempts, next try "
            f"{utc(progress.next_try_ms)}: {progress.stopped}"
        )
    elif progress.stopped is not None:
        at = "" if progress.stopped_at is None else f" at offset {progress.stopped_at}"
        found.append(
            f"{partition}: {progress.owner} does not go on{at} since "
            f"{utc(progress.stopped_since_ms)}: {progress.stopped}"
        )
        if _is_damage(progress.stopped):
            found.append(
                f"{partition}: `vq topic describe {progress.topic}` shows what cannot be read; `vq "
                f"group reset {group} --topic {progress.topic} --partition {progress.partition} "
                "--past-damage` plans to skip it"
            )
    if progress.beyond_end:
        found.append(
            f"{partition}: the committed offset {progress.committed} lies beyond the end "
            f"{progress.end}: messages were lost there; `vq group reset {group}` sets where the "
            "group goes on"
        )
    if progress.facts().is_overtaken:
        found.append(
            f"{partition}: messages were deleted before the group read them: it is at offset "
            f"{progress.committed}, and the partition starts at {progress.start}"
        )
    return found


def _is_damage(stopped: str) -> bool:
    """Whether what a member publishes is an error of bytes that cannot be read."""
    errors = (f"{CorruptData.__name__}:", f"{PartitionQuarantined.__name__}:")
    return stopped.startswith(errors) or BAD_RECORD in stopped


def _row(progress: GroupProgress) -> dict[str, Any]:
    return {
        **_PROGRESS(progress),
        "owner": "-" if progress.owner is None else progress.owner,
        "committed": "-" if progress.committed is None else progress.committed,
    }


def _summary(found: GroupDescription) -> dict[str, Any]:
    """Return the fields of a group for people."""
    fields = _GROUP(found)
    for name in ("by_stream", "retry_topic", "lag_is_upper_bound"):  # remarks say so
        del fields[name]
    for name in ("failure", "roll_until_s", "rolls_to", "offset_store"):
        del fields[name]
    topics = {topic: wanted or "all" for topic, wanted in found.topics.items()}
    patterns = {
        each: f"{', '.join(found.matched_by(each)) or 'no topic'} now" for each in found.patterns
    }
    del fields["patterns"]
    own = {"topics": topics, **({"patterns": patterns} if patterns else {})}
    return {**fields, **terms_text(found.terms), **own}


# shared ---------------------------------------------------------------------------------------
@group.command()
@click.argument("name", shell_complete=group_names)
@shows(Shape(SharedGroupDescription))
@command_options
def shared(invocation: Invocation, name: str) -> None:
    """Show which messages of a shared group are not done.

    Messages are told by their numbers: all before low are done, from cursor on none was delivered.
    Of those between, open are not done: members have held of them, and waiting are due later, since
    they have failed; redelivered were delivered more than once. deliveries_max is how often one of
    these was delivered at most.
    """
    found, output = invocation.call(describe_shared_group, name), invocation.output
    if output.document(asdict(found)):
        return
    columns = "topic partition low cursor open held waiting redelivered deliveries_max"
    output.table([asdict(each) for each in found.partitions], columns=columns)
    output.remark(f"{found.receiving} member(s) wait for messages")
