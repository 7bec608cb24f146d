"""``vq broker jobs``: the timed duties of nodes."""

from typing import Any, Final

import click

from vq.cli.base.completion import broker_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, shows, some
from vq.cli.base.options import Invocation, command_options
from vq.cli.base.text import utc
from vq.operations.brokers.jobs import BrokerJob, NodeJobs, broker_jobs

_NODE: Final = Shape(
    NodeJobs,
    "group node error? jobs",
    jobs=Shape(
        BrokerJob,
        "name trigger state why_off? runs failures begun_s ended_s late_s error? next_s",
    ),
)


@click.command()
@click.argument("name", metavar="[GROUP/NODE|GROUP]", required=False, shell_complete=broker_names)
@shows(some(_NODE))
@command_options
def jobs(invocation: Invocation, name: str | None) -> None:
    """Show what nodes do again and again: when it ran last, how that went, when it runs next.

    A job waits, runs, or is off: another node has the duty, or a setting switches it off. The
    last column says why, or why the last run failed. A run that was missed, while the machine
    was paused, begins at once, and once; one that fails is tried again within half a minute.

    Exit code 1 if the last run of a job failed, or a node does not answer.
    """
    found = invocation.call(broker_jobs, name)
    output = invocation.output
    if not output.document(_NODE.all(found)):
        output.table(
            [_row(node, each) for node in found for each in node.jobs],
            columns="group node job trigger state last took late next runs failed reason",
            optional="last took late next reason",
        )
        for each in found:
            if not each.jobs:
                why = each.error or "its version tells no jobs"
                output.remark(f"{each.group}/{each.node}: {why}")
    silent = sum(1 for node in found if node.error)
    failed = sum(1 for node in found for each in node.jobs if each.error)
    if silent or failed:
        raise CommandFailed(
            f"the last run of {failed} job(s) failed, {silent} of {len(found)} node(s) do not "
            "answer"
        )


def _row(node: NodeJobs, job: BrokerJob) -> dict[str, Any]:
    took = job.took_ms
    return {
        "group": node.group,
        "node": node.node,
        "job": job.name,
        "trigger": job.trigger,
        "state": job.state,
        "last": None if job.begun_ms is None else utc(job.begun_ms),
        "took": None if took is None else f"{took / 1_000:.1f} s",
        "late": f"{job.late_ms / 1_000:.1f} s" if job.late_ms else None,
        "next": None if job.next_ms is None else utc(job.next_ms),
        "runs": job.runs,
        "failed": job.failures,
        "reason": job.error or job.why_off or None,
    }
