"""The archive: runs, blocks, verifying them, bringing them back."""

from starlette.responses import Response

from vq.console.pages.page import page, post
from vq.console.web.context import PageContext
from vq.console.web.languages import N_
from vq.console.web.tables import Asked, Column, Kind, StateWord, table
from vq.errors import InvalidArgument
from vq.operations.archives.archive_runs import ArchiveRun
from vq.operations.archives.archives import ArchivedBlock
from vq.shown import shown


def _run_state(each: ArchiveRun) -> StateWord:
    failed = sum(node.total.failed for node in each.nodes)
    errors = [node.error for node in each.nodes if node.error]
    if each.error or failed or errors:
        return StateWord(N_("failed in part"), "bad", each.error or "; ".join(errors))
    if any(node.ended_ms is None for node in each.nodes) or not each.nodes:
        return StateWord(N_("goes on"), "warn")
    return StateWord(N_("done"), "ok")


@page("/c/{cluster}/archive")
async def ARCHIVE(context: PageContext) -> Response:
    """List runs, and the blocks of a topic."""
    topic = context.query.get("topic") or None
    runs: list[Column[ArchiveRun]] = [
        Column("number", N_("Run"), lambda each: str(each.number)),
        Column("state", N_("State"), _run_state, Kind.STATE),
        Column("started", N_("Started"), lambda each: each.started_ms, Kind.MOMENT),
        Column("by", N_("By"), lambda each: each.by),
        Column("topic", N_("Topic"), lambda each: each.topic or ""),
        Column(
            "blocks",
            N_("Blocks"),
            lambda each: sum(node.total.blocks for node in each.nodes),
            Kind.COUNT,
        ),
        Column(
            "bytes",
            N_("Before"),
            lambda each: sum(node.total.size_bytes for node in each.nodes),
            Kind.BYTES,
        ),
        Column(
            "zip_bytes",
            N_("After"),
            lambda each: sum(node.total.archive_bytes for node in each.nodes),
            Kind.BYTES,
        ),
    ]
    known = [each for each in context.site.facts.status.brokers if each.node is not None]
    nodes = [(each.group.group, each.name) for each in known]
    history = await context.run("archive_history", nodes)
    blocks, silent = [], []
    if topic is not None:
        blocks, silent = await context.run("list_archives", topic)
    listed: list[Column[ArchivedBlock]] = [
        Column("partition", N_("Partition"), lambda each: f"{each.topic}/{each.partition}"),
        Column("start", N_("From offset"), lambda each: each.start, Kind.COUNT),
        Column("end", N_("To offset"), lambda each: each.end, Kind.COUNT),
        Column("first", N_("First message"), lambda each: each.first_ms, Kind.MOMENT),
        Column("last", N_("Last message"), lambda each: each.last_ms, Kind.MOMENT),
        Column("messages", N_("Messages"), lambda each: each.messages, Kind.COUNT),
        Column("size", N_("Size"), lambda each: each.zip_bytes, Kind.BYTES),
        Column("node", N_("Node"), lambda each: f"{each.group}/{each.node}"),
        Column("place", N_("Place"), lambda each: each.url or N_("beside the log")),
    ]
    return context.page(
        "archive.html",
        runs=table(
            runs,
            history[::-1],
            Asked.of(context.query, "r."),
            empty=N_("There was no run of the archive yet."),
            prefix="r.",
        ),
        blocks=table(
            listed,
            blocks,
            Asked.of(context.query, "b."),
            empty=N_("No block of the topic is in an archive."),
            prefix="b.",
        ),
        topic=topic or "",
        silent=silent,
        command="vq archive history",
    )


@post("/c/{cluster}/archive/act")
async def ACT(context: PageContext) -> Response:
    """Begin a run, or verify the archives of a topic."""
    act, topic = context.form.get("act", ""), context.form.get("topic") or None
    if act == "run":
        number = await context.run("start_archive_run", topic)
        context.say(N_("Run %(number)s of the archive has begun"), number=number)
        return context.go("archive")
    if act == "verify" and topic is not None:
        blocks, _ = await context.run("list_archives", topic)
        job = await context.start("verify_archives", blocks)
        return context.go("jobs", str(job.number))
    raise InvalidArgument(f"{shown(act)} is no act on the archive")
