"""What answers are tested with: facts of a partition, and whether ``vq`` takes their commands."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from vq.cli.main import cli
from vq.operations.explain.answers import CauseRow, Explanation, explain
from vq.operations.explain.partition_causes import PartitionFacts
from vq.operations.groups.groups import GroupProgress

NOW_S = 1_000_000.0


def check_command(text: str) -> None:
    """Fail unless ``vq`` takes a command line, as far as it can be told without running it."""
    program, *arguments = shlex.split(text.replace(" FILE ", f" {__file__} "))
    assert program == "vq", text
    command: click.Command = cli
    context = click.Context(cli, info_name="vq")
    while isinstance(command, click.Group):
        name, command, arguments = command.resolve_command(context, arguments)
        assert command is not None, text
        context = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group) and not arguments:
            assert command.invoke_without_command, text
            return
    command.make_context(context.info_name, list(arguments), parent=context.parent)


def asked(table: Sequence[CauseRow[Any]], facts: Any, *unknown: str) -> Explanation:
    """Return the answer of a table, each of whose commands ``vq`` takes."""
    found = explain("q", "subject", table, facts, (), unknown)
    for cause in (found.found, *found.also):
        assert cause.text, cause
        for command in cause.commands:
            check_command(command)
    return found


PROGRESS = GroupProgress(
    topic="t",
    partition=3,
    owner="m1",
    committed=100,
    start=0,
    end=500,
    lag_bytes=400,
    lag_s=1.0,
    committed_ms=int(NOW_S * 1000) - 2_000,
    committed_by="m1",
)
CONSUMED = PartitionFacts(
    topic="t",
    partition=3,
    group="g",
    now_s=NOW_S,
    progress=PROGRESS,
    members=2,
    subscribers=2,
    claimed_by="m1",
    owner_place="host, process 7",
    reading_group="b1",
    state="rw",
    log_end=500,
)


def at(**changes: Any) -> PartitionFacts:
    """The facts with changes; those of the group's progress begin with ``p_``."""
    of_progress = {n.removeprefix("p_"): v for n, v in changes.items() if n.startswith("p_")}
    others = {n: v for n, v in changes.items() if not n.startswith("p_")}
    return replace(CONSUMED, progress=replace(PROGRESS, **of_progress), **others)


END = {"p_committed": 500, "p_lag_bytes": 0, "p_lag_s": 0.0}
PARTITIONS = {
    "no_group": replace(CONSUMED, exists=False, progress=None),
    "not_read": replace(CONSUMED, reads=False, progress=None),
    "not_readable": at(p_readable=False, p_end=None, p_lag_bytes=None),
    "needs_reset": at(p_stopped="on_bad_record = 'stop': CRC", p_needs_reset=True),
    "other_topic": at(p_stopped="of another topic", p_needs_reset=True, p_other_topic=True),
    "beyond_end": at(p_committed=900, p_lag_bytes=None),
    "no_members": at(members=0, subscribers=0, p_owner=None),
    "not_subscribed": at(subscribers=0, p_owner=None, p_subscribed=False),
    "no_master": at(no_master=True, silent="no master", p_end=None, p_lag_bytes=None),
    "broker_silent": at(silent="b1/n1 is silent", p_end=None, p_lag_bytes=None),
    "partition_failed": at(state="failed", reason="EIO"),
    "listener_failed": at(p_stopped="ValueError", p_held=2, p_message_id=7, p_attempts=3),
    "owner_error": at(p_stopped="CorruptData: at 9", p_stopped_at=9),
    "owner_gone": at(owner_place=None),
    "not_claimed": at(p_owner=None),
    "not_replicated": at(**END, log_end=700),
    "filter_matches_nothing": at(**END, p_filter="red", matching=0),
    "not_moving": at(p_lag_s=900.0, p_committed_ms=int(NOW_S * 1000) - 900_000),
    "overtaken": at(p_committed=100, p_start=200, p_lag_bytes=300),
    "at_end": at(**END),
    "broadcasting": at(model="broadcasting", p_committed=None, p_lag_bytes=None),
    "consumed": CONSUMED,
}
