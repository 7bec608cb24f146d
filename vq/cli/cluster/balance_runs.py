"""``vq balance apply``, ``resume``, ``cancel`` and ``progress``: carrying a plan out."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, maybe, record, shows, some
from vq.cli.base.options import Invocation, Seconds, WholeNumber, command_options, flag, option
from vq.cli.base.options import yes_option as with_yes
from vq.cli.base.text import utc
from vq.errors import InvalidArgument
from vq.operations.allocation import applying
from vq.operations.allocation.applying import (
    apply_allocation,
    cancel_allocation,
    resume_allocation,
)
from vq.operations.allocation.plan_json import plan_from_json
from vq.operations.allocation.planning import allocation_changes
from vq.operations.allocation.runs import (
    AllocationRun,
    RunMove,
    describe_allocation,
    list_allocations,
)

_CHANGES: Final = some(record(what=str, name=str, before=str, now=str))
_RUN: Final = Shape(
    AllocationRun,
    "plan state source ordered_by started_s by updated_s total done moving failed cancelled_by? "
    "error? moves",
    moves=Shape(RunMove, "topic partition from=source to=target done"),
)

#: A file with a plan, or with moves.
PLAN_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def document_in(file: Path) -> Any:
    """Return the JSON document of a file.

    Raises:
        InvalidArgument: It is none.
    """
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{str(file)!r} is not JSON: {error}") from error


@click.command()
@click.argument("file", type=PLAN_FILE)
@option(
    "--at-a-time N",
    "Move N partitions at a time.  [1]",
    WholeNumber(min=1, max=applying.AT_A_TIME_MAX),
    default=1,
)
@option(
    "--pause SECONDS as pause_s",
    "Wait so long after each move.  [0]",
    Seconds(min=0, max=applying.PAUSE_S_MAX),
    default=0.0,
)
@with_yes
@shows(record(done=bool, changes=_CHANGES, run=maybe(_RUN)))
@command_options
def apply(invocation: Invocation, file: Path, at_a_time: int, pause_s: float, yes: bool) -> None:
    """Carry out a plan of `vq balance plan --save FILE`.

    It is refused if what it rests on has changed: a partition was moved, a topic or a group got
    another pool, a group drains. Without --yes, that is all that is looked at. A move copies
    nothing: what is stored stays readable where it is, and producers see one retry. The plan may be
    applied again after a failure; partitions that are where it wants them stay.

    Exit code 1 unless all moves are made.
    """
    wanted = plan_from_json(document_in(file))
    if not yes:
        changes = invocation.call(allocation_changes, wanted)
        output = invocation.output
        rows = [asdict(each) for each in changes]
        if not output.document({"done": False, "changes": rows, "run": None}):
            output.table(rows, columns="what name before now")
        if changes:
            raise CommandFailed(
                f"{len(changes)} thing(s) have changed since the plan was made; make it again"
            )
        invocation.only_planned(f"{len(wanted.moves)} move(s) can be made")
        return

    watch = _Watch()
    with invocation.output.progress("moving", watch.done, total=len(wanted.moves)):
        run = invocation.call(
            apply_allocation,
            wanted,
            at_a_time=at_a_time,
            pause_s=pause_s,
            on_progress=watch.see,
        )
    if not invocation.output.document({"done": True, "changes": [], "run": _RUN(run)}):
        _show_run(invocation, run)
    _fail_unless_done(run)


class _Watch:
    """Remembers how many moves are made, for the picture of progress."""

    def __init__(self) -> None:
        self._done = 0

    def see(self, run: AllocationRun) -> None:
        self._done = run.done

    def done(self) -> int:
        return self._done


@click.command()
@click.argument("plan_id", metavar="[PLAN]", required=False)
@with_yes
@shows(_RUN)
@command_options
def resume(invocation: Invocation, plan_id: str | None, yes: bool) -> None:
    """Go on with a plan whose process is gone, that failed, or that was cancelled.

    PLAN is its id; without it, the newest one. ZooKeeper has the moves: no file is needed.

    Exit code 1 unless all moves are made.
    """
    if not yes:
        run = invocation.call(describe_allocation, plan_id)
        _print_run(invocation, run)
        invocation.only_planned(f"{run.total - run.done} move(s) are left")
        return
    run = invocation.call(resume_allocation, plan_id)
    _print_run(invocation, run)
    _fail_unless_done(run)


@click.command()
@click.argument("plan_id", metavar="[PLAN]", required=False)
@option(
    "--timeout",
    "Wait so long for moves that have begun.  [60]",
    Seconds(min=0, max=3_600),
    default=60.0,
)
@shows(_RUN)
@command_options
def cancel(invocation: Invocation, plan_id: str | None, timeout: float) -> None:
    """End a plan that is carried out: moves that have begun are finished, no other begins.

    What was moved stays where it is. PLAN is the id; without it, the newest one.

    Exit code 1 if moves are still on their way after --timeout.
    """
    run = invocation.call(cancel_allocation, plan_id, timeout=timeout)
    _print_run(invocation, run)
    if not run.has_ended:
        raise CommandFailed(
            f"plan {run.plan} has not ended after {timeout:g} s; `vq balance progress` shows it"
        )


@click.command()
@click.argument("plan_id", metavar="[PLAN]", required=False)
@flag("--all as show_all", "Show the last ten plans, without moves.")
@shows(_RUN, all=some(_RUN))
@command_options
def progress(invocation: Invocation, plan_id: str | None, show_all: bool) -> None:
    """Show how far a plan is that is carried out, or how it ended.

    PLAN is its id; without it, the newest one.
    """
    if show_all and plan_id is not None:
        raise click.UsageError("give PLAN or --all, not both")
    if not show_all:
        _print_run(invocation, invocation.call(describe_allocation, plan_id))
        return
    found = invocation.call(list_allocations)
    if not invocation.output.document(_RUN.all(found)):
        invocation.output.table(
            [_run_row(each) for each in found],
            columns="plan state done total started ordered_by",
        )


def _run_row(run: AllocationRun) -> dict[str, Any]:
    started = utc(run.started_ms) if run.started_ms else None
    return {**asdict(run), "started": started}


def _print_run(invocation: Invocation, run: AllocationRun) -> None:
    if not invocation.output.document(_RUN(run)):
        _show_run(invocation, run)


def _show_run(invocation: Invocation, run: AllocationRun) -> None:
    output = invocation.output
    values = {**_run_row(run), "moving": ", ".join(run.moving) or "nothing"}
    shown = "plan state source ordered_by started by done total moving"
    output.record(values, shown=shown)
    for each in run.failed:
        output.remark(f"{each.topic}-{each.partition} was not moved: {each.error}")
    if run.cancelled_by:
        output.remark(f"{run.cancelled_by} ended it")
    if run.error:
        output.remark(run.error)


def _fail_unless_done(run: AllocationRun) -> None:
    if run.state != "done":
        raise CommandFailed(
            f"plan {run.plan} is {run.state}: {run.done} of {run.total} move(s) are made; "
            "`vq balance resume` goes on with it"
        )
