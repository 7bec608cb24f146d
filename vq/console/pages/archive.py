"""The archive: runs, blocks, verifying them, bringing them back."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from vq.console.pages.messages import moment_of
from vq.console.pages.page import form, page, post
from vq.console.web.context import PageContext
from vq.console.web.forms import Field, confirm, whole_of
from vq.console.web.languages import N_
from vq.console.web.tables import Asked, Column, Kind, StateWord, table
from vq.errors import InvalidArgument
from vq.operations.archives.archive_runs import ArchiveRun
from vq.operations.archives.archives import ArchivedBlock, RestoredArchive, VerifiedArchive
from vq.shown import shown

#: The fields that say which blocks are meant.
_FIELDS: Final = ("topic", "partition", "since", "until")


def _run_state(each: ArchiveRun) -> StateWord:
    failed = sum(node.total.failed for node in each.nodes)
    errors = [node.error for node in each.nodes if node.error]
    if each.error or failed or errors:
        return StateWord(N_("failed in part"), "bad", each.error or "; ".join(errors))
    if any(node.ended_ms is None for node in each.nodes) or not each.nodes:
        return StateWord(N_("goes on"), "warn")
    return StateWord(N_("done"), "ok")


_RUNS: Final[list[Column[ArchiveRun]]] = [
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
_BLOCKS: Final[list[Column[ArchivedBlock]]] = [
    Column("partition", N_("Partition"), lambda each: f"{each.topic}/{each.partition}"),
    Column("start", N_("From offset"), lambda each: each.start, Kind.COUNT),
    Column("end", N_("To offset"), lambda each: each.end, Kind.COUNT),
    Column("first", N_("First message"), lambda each: each.first_ms, Kind.MOMENT),
    Column("last", N_("Last message"), lambda each: each.last_ms, Kind.MOMENT),
    Column("messages", N_("Messages"), lambda each: each.messages, Kind.COUNT),
    Column("size", N_("Size"), lambda each: each.zip_bytes, Kind.BYTES),
    Column("node", N_("Node"), lambda each: f"{each.group}/{each.node}"),
]


def _verified_state(each: VerifiedArchive) -> StateWord:
    if each.error:
        return StateWord("unknown")
    return StateWord(N_("damaged"), "bad") if each.problem else StateWord(N_("intact"), "ok")


def _taken(state: Any) -> list[Column[Any]]:
    """Return the columns of blocks with what became of each."""
    return [
        Column(
            "partition", N_("Partition"), lambda each: f"{each.block.topic}/{each.block.partition}"
        ),
        Column("start", N_("From offset"), lambda each: each.block.start, Kind.COUNT),
        Column("node", N_("Node"), lambda each: f"{each.block.group}/{each.block.node}"),
        Column("state", N_("State"), state, Kind.STATE),
    ]


VERIFIED: Final[list[Column[VerifiedArchive]]] = [
    *_taken(_verified_state),
    Column("batches", N_("Batches"), lambda each: each.batches, Kind.COUNT),
    Column("why", N_("Why"), lambda each: each.problem or each.error, sorts=False),
]
RESTORED: Final[list[Column[RestoredArchive]]] = [
    *_taken(
        lambda each: (
            StateWord(N_("not done"), "bad") if each.error else StateWord(N_("restored"), "ok")
        )
    ),
    Column("why", N_("Why"), lambda each: each.error, sorts=False),
]


# Which blocks -------------------------------------------------------------------------------
def _fields(sent: Mapping[str, str]) -> list[Field]:
    return [
        Field("topic", N_("Archived blocks of the topic"), value=sent.get("topic", "")),
        Field("partition", N_("Partition"), "number", sent.get("partition", ""), least=0),
        Field("since", N_("Since"), "moment", sent.get("since", "")),
        Field("until", N_("Until"), "moment", sent.get("until", "")),
    ]


async def _blocks(
    context: PageContext, sent: Mapping[str, str]
) -> tuple[list[ArchivedBlock], list[str]]:
    """Return the archived blocks that a form means, and which nodes did not answer.

    Raises:
        InvalidArgument: A field is not valid.
    """
    partition = whole_of(sent, "partition")
    found: tuple[list[ArchivedBlock], list[str]] = await context.run(
        "list_archives",
        sent["topic"],
        partitions=[] if partition is None else [partition],
        **{
            f"{name}_ms": moment_of(sent[name])
            for name in ("since", "until")
            if sent.get(name, "").strip()
        },
    )
    return found


def _chosen(sent: Mapping[str, str]) -> dict[str, str]:
    return {name: sent[name].strip() for name in _FIELDS if sent.get(name, "").strip()}


def _command(act: str, chosen: Mapping[str, str]) -> str:
    topic = ["--topic", chosen["topic"]] if act != "restore" else [chosen["topic"]]
    options = [
        text for name in _FIELDS[1:] if name in chosen for text in (f"--{name}", chosen[name])
    ]
    yes = ["--yes"] if act == "restore" else []
    return shlex.join(["vq", "archive", act, *topic, *options, *yes])


@page("/c/{cluster}/archive")
async def ARCHIVE(context: PageContext) -> Response:
    """List runs, and the blocks of a topic."""
    chosen = _chosen(context.query)
    known = [each for each in context.site.facts.status.brokers if each.node is not None]
    nodes = [(each.group.group, each.name) for each in known]
    runs = table(
        _RUNS,
        (await context.run("archive_history", nodes))[::-1],
        Asked.of(context.query, "r."),
        empty=N_("There was no run of the archive yet."),
    )
    found: list[ArchivedBlock] = []
    silent: list[str] = []
    if "topic" in chosen:
        found, silent = await _blocks(context, chosen)
    beside = context.text(N_("beside the log"))
    blocks = table(
        [*_BLOCKS, Column("place", N_("Place"), lambda each: each.url or beside)],
        found,
        Asked.of(context.query, "b."),
        empty=N_("No such block is in an archive."),
    )
    for each, name in ((runs, "runs"), (blocks, "blocks")):
        if file := context.exported(each, f"archive-{name}"):
            return file
    return context.page(
        "archive.html",
        runs=runs,
        blocks=blocks,
        fields=_fields(context.query),
        chosen=chosen,
        topic=chosen.get("topic", ""),
        silent=silent,
        command=_command("list", chosen) if "topic" in chosen else "vq archive history",
    )


@post("/c/{cluster}/archive/act")
async def ACT(context: PageContext) -> Response:
    """Begin a run, or verify archives of a topic."""
    act, chosen = context.form.get("act", ""), _chosen(context.form)
    if act == "run":
        number = await context.run("start_archive_run", chosen.get("topic"))
        context.say(N_("Run %(number)s of the archive has begun"), number=number)
        return context.go("archive")
    if act == "verify" and "topic" in chosen:
        blocks, _ = await _blocks(context, chosen)
        job = await context.start("verify_archives", blocks)
        return context.go("jobs", str(job.number))
    raise InvalidArgument(f"{shown(act)} is no act on the archive")


# Restoring ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class NodeRestore:
    """What restoring blocks means for a node; ``free`` is that of its fullest disk, if known."""

    node: str
    blocks: Sequence[ArchivedBlock]
    free: int | None

    @property
    def needs(self) -> int:
        """Bytes of the block files."""
        return sum(each.size_bytes for each in self.blocks)

    @property
    def room(self) -> StateWord:
        """Whether they fit."""
        if self.free is None:
            return StateWord("unknown")
        return (
            StateWord(N_("fits"), "ok")
            if self.needs < self.free
            else StateWord(N_("does not fit"), "bad")
        )


_NODES: Final[list[Column[NodeRestore]]] = [
    Column("node", N_("Node"), lambda each: each.node),
    Column("blocks", N_("Blocks"), lambda each: len(each.blocks), Kind.COUNT),
    Column(
        "first",
        N_("First message"),
        lambda each: min(one.first_ms for one in each.blocks),
        Kind.MOMENT,
    ),
    Column(
        "last",
        N_("Last message"),
        lambda each: max(one.last_ms for one in each.blocks),
        Kind.MOMENT,
    ),
    Column(
        "archives",
        N_("In the archive"),
        lambda each: sum(one.zip_bytes for one in each.blocks),
        Kind.BYTES,
    ),
    Column("needs", N_("Needs"), lambda each: each.needs, Kind.BYTES),
    Column("free", N_("Free"), lambda each: each.free, Kind.BYTES),
    Column("room", N_("Room"), lambda each: each.room, Kind.STATE),
]


def _by_node(context: PageContext, blocks: Sequence[ArchivedBlock]) -> list[NodeRestore]:
    free = {
        f"{each.group.group}/{each.name}": min(
            (disk.bytes_free for disk in each.disks if disk.bytes_free is not None), default=None
        )
        for each in context.site.facts.status.brokers
    }
    found: dict[str, list[ArchivedBlock]] = {}
    for block in blocks:
        found.setdefault(f"{block.group}/{block.node}", []).append(block)
    return [NodeRestore(node, some, free.get(node)) for node, some in sorted(found.items())]


@form("/c/{cluster}/archive/restore")
async def RESTORE(context: PageContext) -> Response:
    """Show what restoring blocks takes, and do it as a long act."""
    chosen = _chosen(context.form if context.posted else context.query)
    if "topic" not in chosen:
        raise InvalidArgument("choose the topic whose archived blocks are to be restored")
    blocks, silent = await _blocks(context, chosen)
    if context.posted:
        confirm(context.form, chosen["topic"])
        if whole_of(context.form, "blocks") != len(blocks):
            raise InvalidArgument(
                f"there are {len(blocks)} archived blocks now, and the page showed "
                f"{shown(context.form.get('blocks', ''))}: look at it again"
            )
        job = await context.start("restore_archives", blocks)
        return context.go("jobs", str(job.number))
    return context.page(
        "archive_restore.html",
        topic=chosen["topic"],
        chosen=chosen,
        count=len(blocks),
        nodes=table(
            _NODES, _by_node(context, blocks), Asked(), empty=N_("No such block is in an archive.")
        ),
        silent=silent,
        command=_command("restore", chosen),
    )
