"""``vq archive``: the archives of old blocks, and the runs that make them."""

from typing import Any, Final

import click

from vq.cli.archives.archive_blocks import export, list_, restore, verify
from vq.cli.base.completion import topic_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, having, mapping, maybe, record, shows, some
from vq.cli.base.moments import Moment
from vq.cli.base.options import (
    Commands,
    Invocation,
    Seconds,
    WholeNumber,
    command_options,
    flag,
    no_effect,
    option,
)
from vq.cli.base.text import utc
from vq.client.cluster import ClusterClient
from vq.coordination.tree.values.runs import ArchiveTopicRun
from vq.operations.archives import archive_runs
from vq.operations.archives.archive_runs import ArchiveNodeRun, ArchiveRun
from vq.operations.base.sizes import bytes_text

_TOTALS: Final = (
    "blocks=total.blocks bytes=total.size_bytes zip_bytes=total.archive_bytes failed=total.failed "
    "later=total.later"
)
_OF_TOPIC: Final = Shape(
    ArchiveTopicRun, "blocks bytes=size_bytes zip_bytes=archive_bytes failed later error?"
)
_OF_NODE: Final = Shape(
    ArchiveNodeRun,
    f"group node state begun_s ended_s {_TOTALS} omitted_topics=omitted unreadable=error?",
)
_OF_RUN: Final = Shape(
    ArchiveRun, f"number state as_of_s started_s due_s by topic dry_run error? {_TOTALS}"
)


_NODE_RUN: Final = having(_OF_NODE, topics=mapping(_OF_TOPIC))


@click.group(cls=Commands)
def archive() -> None:
    """Archive old blocks; list, verify, restore, export them."""


# run ------------------------------------------------------------------------------------------
@archive.command()
@option("--topic NAME", "Only this one.  [all topics]", shell_complete=topic_names)
@option(
    "--as-of TIME as as_of_ms",
    "Do what the daily run would do at that time, such as 2h (ago) or 2026-11-27T02:00.  [now]",
    Moment(),
)
@flag("--dry-run", "Only show what would be archived.")
@option("--wait/--no-wait", "Return when all brokers have ended, or at once.  [wait]", default=True)
@option("--timeout SECONDS", "Wait no longer.  [no bound]", Seconds(min=0, min_open=True))
@shows(record(number=int, state=maybe(str), nodes=some(_NODE_RUN)))
@command_options
def run(
    invocation: Invocation,
    topic: str | None,
    as_of_ms: int | None,
    dry_run: bool,
    wait: bool,
    timeout: float | None,
) -> None:
    """Have all brokers archive now what the daily run would archive.

    Blocks become archives when their last message is older than the topic's archive_after_hours,
    as of that time. Brokers go on if this command is interrupted; `vq archive history` shows it.

    A broker that does not begin within three minutes, and does no other run, is not waited for.

    Exit code 1 when a block could not be archived, or a broker has not ended.
    """
    if timeout is not None and not wait:
        raise no_effect(f"--timeout {timeout:g}", "with --no-wait", "leave one of them out")

    async def work(cluster: ClusterClient) -> ArchiveRun | int:
        number = await archive_runs.start_archive_run(
            cluster, topic, as_of_ms=as_of_ms, dry_run=dry_run
        )
        if not wait:
            return number
        return await archive_runs.wait_for_archive_run(
            cluster,
            number,
            timeout=timeout,
            on_progress=lambda now: invocation.output.remark(_sentence(now)),
        )

    found = invocation.call(work)
    output = invocation.output
    if isinstance(found, int):
        found = ArchiveRun(found)
        output.remark(f"run {found.number} is made; `vq archive history` shows how far it is")
        output.document({"number": found.number, "state": None, "nodes": []})
        return
    if not output.document({"number": found.number, "state": found.state, "nodes": _nodes(found)}):
        _show_nodes(invocation, found)
        if dry_run:
            total = found.total
            size = bytes_text(total.size_bytes)
            output.remark(
                f"{total.blocks} block(s), {size}: would be archived; nothing was changed"
            )
    if found.state == "failed":
        raise CommandFailed(f"{found.total.failed} block(s) could not be archived, see above")
    waits = [f"{each.group}/{each.node}" for each in found.nodes if not each.has_ended]
    if waits:
        raise CommandFailed(
            f"{len(waits)} broker(s) have not ended run {found.number}: {', '.join(waits[:5])}"
            f"{' …' if waits[5:] else ''}; `vq archive history` shows how far they are",
            outcome="unknown",
        )


def _nodes(found: ArchiveRun) -> list[dict[str, Any]]:
    return [
        {
            **_OF_NODE(each),
            "topics": {name: _OF_TOPIC(topic) for name, topic in (each.topics or {}).items()},
        }
        for each in found.nodes
    ]


def _sentence(now: ArchiveRun) -> str:
    total = now.total
    running = sum(not each.has_ended for each in now.nodes)
    return (
        f"run {now.number}: {total.blocks} block(s), {bytes_text(total.size_bytes)}, "
        f"{running} broker(s) to go"
    )


def _show_nodes(invocation: Invocation, found: ArchiveRun) -> None:
    rows: list[dict[str, Any]] = []
    for node in found.nodes:
        parts = dict(node.topics or {}) or {"": ArchiveTopicRun()}
        for topic, each in parts.items():
            rows.append(
                {
                    "group": node.group,
                    "node": node.node,
                    "state": node.state or "not begun",
                    "topic": topic or None,
                    **_total(each),
                }
            )
    columns = f"group node state topic {_TOTAL}"
    invocation.output.table(rows, columns=columns, optional="topic error")
    for node in found.nodes:
        if node.omitted:
            invocation.output.remark(
                f"{node.group}/{node.node}: {node.omitted} further topic(s), not shown here"
            )


# history --------------------------------------------------------------------------------------
@archive.command()
@option("--limit N", "How many runs.  [10]", WholeNumber(min=1), default=10)
@shows(some(having(_OF_RUN, nodes=some(_NODE_RUN))))
@command_options
def history(invocation: Invocation, limit: int) -> None:
    """Show the last runs, the newest first: daily ones, and those of `vq archive run`.

    `missing` counts the brokers that have not ended a run. A broker that was away does the newest
    run when it is back.

    Exit code 1 when the newest run has failed.
    """

    found = invocation.call(archive_runs.archive_history)[:limit]
    output = invocation.output
    if not output.document([{**_OF_RUN(each), "nodes": _nodes(each)} for each in found]):
        output.table(
            [_run_row(each) for each in found],
            columns=f"run as_of kind topic by state missing {_TOTAL}",
            optional="topic error",
        )
        if not found:
            output.remark("no run yet; the daily one comes once a topic has its blocks archived")
    newest = next((each for each in found if not each.dry_run), None)
    if newest is not None and newest.state in {"failed", "unreadable"}:
        raise CommandFailed(f"run {newest.number} has failed: {newest.error or newest.total.error}")


_TOTAL = "blocks bytes zip_bytes failed later error"


def _total(found: ArchiveTopicRun) -> dict[str, Any]:
    return {
        "blocks": found.blocks,
        "bytes": bytes_text(found.size_bytes),
        "zip_bytes": bytes_text(found.archive_bytes),
        "failed": found.failed,
        "later": found.later,
        "error": found.error or None,
    }


def _run_row(found: ArchiveRun) -> dict[str, Any]:
    total = {**_total(found.total), **({"error": found.error} if found.error else {})}
    return {
        "run": found.number,
        "as_of": utc(found.as_of_ms),
        "kind": _kind(found),
        "topic": found.topic,
        "by": found.by,
        "state": found.state,
        "missing": sum(not each.has_ended for each in found.nodes),
        **total,
    }


def _kind(found: ArchiveRun) -> str:
    if found.dry_run:
        return "dry"
    return "daily" if found.due_ms is not None else "by hand"


for _command in (list_, verify, restore, export):
    archive.add_command(_command)
