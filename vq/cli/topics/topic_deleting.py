"""``vq topic delete`` and ``undelete``, and the list of what can be brought back."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final

import click

from vq.cli.base.completion import deleted_topic_names, topic_names
from vq.cli.base.errors import check_readable
from vq.cli.base.json_schema import Shape, record, shows
from vq.cli.base.options import Invocation, command_options, flag, yes_option
from vq.cli.base.text import utc
from vq.client.cluster import ClusterClient
from vq.errors import UnknownTopic
from vq.model import TopicDeletion
from vq.operations.topics import deletion
from vq.operations.topics.deletion import DeletedTopic, Deletion
from vq.operations.topics.topics import Topic


@click.command()
@click.argument("name", shell_complete=topic_names)
@flag("--now", "For good, at once; also one that is deleted already.")
@yes_option
@shows(record(done=bool, **Shape(Deletion).fields))
@command_options
def delete(invocation: Invocation, name: str, now: bool, yes: bool) -> None:
    """Delete a topic: its messages and every group's progress on it.

    Clients see it no more, and its name is not free. `vq topic undelete` brings it back as it was,
    until its time is up (`vq cluster settings --delete-grace-hours`); then brokers remove it for
    good. The time runs only while brokers run.
    """

    async def work(cluster: ClusterClient) -> "Deletion":
        planned = await deletion.plan_delete(cluster, name, now=now)
        if yes:
            await deletion.delete_topic(cluster, name, now=now)
        return planned

    planned = invocation.call(work)
    output = invocation.output
    if not output.document({"done": yes, **asdict(planned)}):
        if planned.unreadable:
            output.remark(f"{name} cannot be read: {planned.unreadable}")
        if planned.keeps_data:
            output.remark(f"the id of {name} is not known, so brokers keep its data")
        output.remark(_plan_text(planned))
    if not yes:
        invocation.only_planned()
    elif not output.as_json:
        output.remark(_done_text(planned))


def _plan_text(planned: "Deletion") -> str:
    """Say what a deletion takes away, and whether it can be undone."""
    if planned.deleted and planned.grace_s:
        return f"{planned.topic} is deleted already; `vq topic delete --now` removes it for good"
    size = f"{planned.bytes} bytes" + ("" if planned.exact else ", and more unknown")
    undone = "this cannot be undone"
    if planned.grace_s:
        undone = f"it can be brought back for {duration(planned.grace_s)}"
    return (
        f"plan: delete {planned.topic} with {planned.partitions} partition(s), {size}, and the "
        f"progress of every consumer group on it; {undone}"
    )


def _done_text(planned: "Deletion") -> str:
    if planned.grace_s:
        return (
            f"deleted {planned.topic}; `vq topic undelete {planned.topic}` brings it back, for "
            f"{duration(planned.grace_s)} from now"
        )
    data = "" if planned.keeps_data else "; brokers remove its data in the background"
    return f"deleted {planned.topic}{data}"


def duration(seconds: int) -> str:
    """Return a time in hours, or in minutes if it is short."""
    return f"{seconds // 3600} h" if seconds >= 7200 else f"{seconds // 60} min"


@click.command()
@click.argument("name", shell_complete=deleted_topic_names)
@shows(record(topic=str, id=str, partitions=int, changed=bool))
@command_options
def undelete(invocation: Invocation, name: str) -> None:
    """Bring a deleted topic back as it was: messages, settings and every group's progress.

    Retention goes on from then: messages that are too old by now are deleted within a minute.
    `vq topic list --deleted` shows what can be brought back, and for how long.
    """

    async def work(cluster: ClusterClient) -> "tuple[Topic, bool]":
        try:
            return await deletion.bring_back(cluster, name)
        except UnknownTopic as error:
            deleted, _ = await deletion.readable_deleted_topics(cluster)
            raise not_deleted(name, [each.name for each in deleted]) from error

    found, changed = invocation.call(work)
    if not invocation.output.document(
        {
            "topic": found.name,
            "id": found.id,
            "partitions": len(found.partitions),
            "changed": changed,
        }
    ):
        said = "is back" if changed else "is there, and was not deleted"
        invocation.output.remark(f"{name} {said}")


def not_deleted(name: str, deleted: Sequence[str]) -> UnknownTopic:
    """Return the refusal to bring back what is not deleted, or gone for good."""
    near = "".join(f"did you mean {each!r}? " for each in get_close_matches(name, deleted, n=1))
    return UnknownTopic(
        f"there is no topic {name!r} that could be brought back",
        hint=f"{near}`vq topic list --deleted` shows those that can",
    )


_COLUMNS = "topic partitions deleted deleted_by left gone"


def show_deleted(invocation: Invocation) -> None:
    """Print the topics that can be brought back.

    Raises:
        CommandFailed: A topic cannot be read, so it may be one of them.
    """

    found, unreadable = invocation.call(deletion.readable_deleted_topics)
    output = invocation.output
    if not output.document(DELETED.all(found)):
        output.table([_row(each) for each in found], columns=_COLUMNS)
        if not found:
            output.remark("no topic is deleted that could be brought back")
    check_readable("topic", unreadable)


def _gone(found: "DeletedTopic") -> datetime:
    """Return when it is removed for good, if brokers run until then."""
    return datetime.now(UTC) + timedelta(seconds=found.left_s)


def _row(found: "DeletedTopic") -> dict[str, Any]:
    return {
        "topic": found.name,
        "partitions": found.partitions,
        "deleted": utc(found.deletion.time_ms),
        "deleted_by": f"{found.deletion.client} on {found.deletion.host}",
        "left": duration(found.left_s),
        "gone": _gone(found).strftime("%Y-%m-%dT%H:%MZ"),
    }


def _grace_s(grace_ms: int) -> int:
    return grace_ms // 1000


def _gone_s(found: DeletedTopic) -> int:
    return int(_gone(found).timestamp())


DELETED: Final = Shape(
    DeletedTopic,
    "topic=name id partitions deleted_s=deletion.time_ms deleted_by=deletion "
    "grace_s=deletion.grace_ms left_s gone_s=",
    deleted_by=Shape(TopicDeletion, "client host"),
    grace_s=_grace_s,
    gone_s=_gone_s,
)
