"""``vq group plan`` and ``vq group history``: who would get which partitions, and who had them."""

from dataclasses import asdict
from typing import Final

import click

from vq.cli.base.completion import group_names, topic_names
from vq.cli.base.json_schema import Shape, shows, some
from vq.cli.base.options import Invocation, WholeNumber, command_options, option
from vq.cli.base.text import utc
from vq.coordination.groups.rebalance import STRATEGIES
from vq.operations.groups.balance import (
    MEMBERS_MAX,
    BalancePlan,
    OwnerChange,
    group_history,
    plan_balance,
)


@click.command()
@click.argument("name", shell_complete=group_names)
@option("--strategy", "With this strategy.", STRATEGIES)
@option(
    "--members N",
    "With so many members; new ones are called new-1 and so on.",
    WholeNumber(1, MEMBERS_MAX),
)
@shows(Shape(BalancePlan, "group strategy group_strategy partitions members moves"))
@command_options
def plan(invocation: Invocation, name: str, strategy: str | None, members: int | None) -> None:
    """Show who would get which partitions of a group; nothing is changed.

    Under another strategy, with another number of members, or as the group is now. Without members
    that come or go, the partitions that move are those that a change of the strategy would move.
    """
    planned = invocation.call(plan_balance, name, strategy=strategy, members=members)
    shares = [asdict(each) for each in planned.members]
    moves = [asdict(each) for each in planned.moves]
    output = invocation.output
    if output.document(asdict(planned)):
        return
    output.table(shares, columns="member now then")
    output.title("")
    output.table(
        [{name: "-" if value is None else value for name, value in each.items()} for each in moves],
        columns="topic partition before after",
    )
    output.remark(
        f"{len(moves)} of {planned.partitions} partition(s) of group {name} would move with the "
        f"strategy {planned.strategy}"
    )


_CHANGE: Final = Shape(OwnerChange)


@click.command()
@click.argument("name", shell_complete=group_names)
@option("--topic TOPIC", "Only of this one.", shell_complete=topic_names)
@option("--partition N", "Only of this one; needs --topic.", WholeNumber(min=0))
@shows(some(_CHANGE))
@command_options
def history(invocation: Invocation, name: str, topic: str | None, partition: int | None) -> None:
    """Show who had which partition of a group when, and why it changed; the oldest first.

    Of each partition the last 8 claims are remembered. The reasons: first (nobody had it), balance
    (the shares changed), left (the member that had it left, or its session ended), again (the same
    member, as after the loss of its session), reset (the progress of the group was set).
    """
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    found = invocation.call(group_history, name, topic=topic, partition=partition)
    output = invocation.output
    if output.document(_CHANGE.all(found)):
        return
    output.table(
        [
            {**asdict(each), "time": utc(each.time_ms), "before": each.before or "-"}
            for each in found
        ],
        columns="time topic partition before member reason",
    )
    if not found:
        output.remark(f"no claim of group {name!r} is remembered")
