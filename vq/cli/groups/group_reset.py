"""``vq group reset``: where a consumer group goes on. The plan is made in ``admin.resets``."""

from collections.abc import Sequence
from typing import Any, Final

import click

from vq.cli.base.completion import group_names, topic_names
from vq.cli.base.json_schema import Shape, record, shows, some
from vq.cli.base.moments import Moment
from vq.cli.base.options import (
    Invocation,
    WholeNumber,
    command_options,
    flag,
    option,
    partitions_option,
    yes_option,
)
from vq.client.cluster import ClusterClient
from vq.operations.groups import resets
from vq.operations.groups.resets import Goal, Reset, Target
from vq.operations.messages.stored import COUNT_MAX

RESET: Final = Shape(
    Reset,
    "topic=partition.topic partition=partition.partition from=before.offset to=after.offset "
    "skips repeats was_stopped=before.stopped?",
)

COLUMNS = "topic partition from to skips repeats"


@click.command()
@click.argument("name", shell_complete=group_names)
@option("--topic TOPIC ... as topics", "Only this one; repeatable.", shell_complete=topic_names)
@partitions_option("Only this one; may repeat.")
@flag("--stopped", "Only where the group was stopped.")
@flag("--to-earliest", "To the oldest message kept.")
@flag("--to-latest", "To the end; what is there now is skipped.")
@flag("--to-log-end", "The same as --to-latest.")
@option(
    "--to-time",
    "To the first message stored at or after this time, or so long ago, such as 90m.",
    Moment(),
)
@flag("--to-committed", "To where it is: a stopped group goes on.")
@flag("--past-damage", "Behind messages that cannot be read, where the group stands at them.")
@option("--offset", "To this offset, of one topic and partition.", WholeNumber(min=0))
@option(
    "--shift N",
    "N messages further in each partition; with -N, back.",
    WholeNumber(-COUNT_MAX, COUNT_MAX),
)
@flag("--fence", "Also while members are alive; see above.")
@yes_option
@shows(record(done=bool, group=str, partitions=some(RESET)))
@command_options
def reset(
    invocation: Invocation,
    name: str,
    topics: Sequence[str],
    partitions: Sequence[int],
    stopped: bool,
    fence: bool,
    yes: bool,
    **goals: Any,
) -> None:
    """Set where a consumer group goes on, in all its partitions or in some.

    Without --yes only the plan is shown: from and to which offset, and how many messages that skips
    or repeats.
    Stop the group's members before. With --fence they may run: what they have not committed by then
    counts for nothing, and they go on from the new offsets within their audit interval (30 s).
    """
    target = target_of(goals)

    async def work(cluster: ClusterClient) -> tuple[list[Reset], list[str]]:
        planned = await resets.plan_reset(
            cluster,
            name,
            target,
            only_topics=topics,
            only_partitions=partitions,
            only_stopped=stopped,
        )
        if yes:
            await resets.reset(cluster, name, planned, fence=fence)
            return planned, []
        return planned, [] if fence else await resets.live_members(cluster, name)

    (planned, members), output = invocation.call(work), invocation.output
    rows = [RESET(each) for each in planned]
    if not output.document({"done": yes, "group": name, "partitions": rows}):
        for each in planned:
            output.remark(_sentence(name, each))
        output.table(rows, columns=COLUMNS)
    if not planned:
        output.remark(f"there is nothing to reset in group {name!r}")
    elif not yes:
        if members:
            output.remark(
                f"it has members, stop them first, or give --fence: {', '.join(members[:5])}"
            )
        invocation.only_planned()
    elif not output.as_json:
        output.remark(f"done: {name} goes on there")


def target_of(goals: dict[str, Any]) -> Target:
    """Return the one target that was given."""
    given = {
        option: value for option, value in goals.items() if value is not None and value is not False
    }
    if len(given) != 1:
        names = [
            f"--{option.replace('_', '-')}"
            for option in _GOALS
            if option in goals and option != "to_log_end"  # the same as --to-latest
        ]
        raise click.UsageError(f"give one of {', '.join(names[:-1])} and {names[-1]}")
    ((option, value),) = given.items()
    goal = _GOALS[option]
    return Target(goal=goal, value=0 if isinstance(value, bool) else value)


_GOALS = {
    "to_earliest": Goal.EARLIEST,
    "to_latest": Goal.LATEST,
    "to_log_end": Goal.LATEST,
    "to_time": Goal.TIME,
    "to_committed": Goal.COMMITTED,
    "past_damage": Goal.PAST_DAMAGE,
    "offset": Goal.OFFSET,
    "shift": Goal.SHIFT,
}


def _sentence(group: str, planned: Reset) -> str:
    before = "no offset" if planned.before is None else str(planned.before.offset)
    effects = [
        f"{what} {'an unknown number of' if count is None else count} message{'s' * (count != 1)}"
        for what, count in (("skips", planned.skips), ("repeats", planned.repeats))
        if count != 0
    ]
    stopped = planned.before.stopped if planned.before is not None else ""
    return (
        f"plan: {group} on {planned.partition} from {before} to {planned.after.offset}"
        + (f", {' and '.join(effects)}" if effects else "")
        + (f"; it was stopped: {stopped}" if stopped else "")
    )
