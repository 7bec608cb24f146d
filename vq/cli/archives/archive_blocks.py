"""``vq archive list|verify|restore|export``: the archived blocks themselves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from vq.cli.archives.export_files import FORMATS, ExportFile, check_place, format_of
from vq.cli.base.completion import topic_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, having, maybe, record, shows, some
from vq.cli.base.moments import Moment, check_span
from vq.cli.base.options import (
    Invocation,
    WholeNumber,
    command_options,
    flag,
    option,
    partitions_option,
    yes_option,
)
from vq.cli.base.text import utc
from vq.client.cluster import ClusterClient
from vq.errors import InvalidArgument
from vq.operations.archives import archives
from vq.operations.archives.archives import ArchivedBlock, VerifiedArchive
from vq.operations.base.sizes import bytes_text
from vq.operations.messages import streams
from vq.operations.messages.streams import Begin, End

_BLOCK: Final = Shape(
    ArchivedBlock,
    "topic partition start end first_s last_s messages bytes=size_bytes zip_bytes group node url?",
)

_topic_option = option("--topic NAME", "Only this one.  [all topics]", shell_complete=topic_names)
_partition_option = partitions_option("Only this one; may be given several times.")
_since_option = option(
    "--since TIME as since_ms",
    "Only with messages stored at this time or later, such as 2026-11-22T09:30 or 7d (ago).",
    Moment(),
)
_until_option = option("--until TIME as until_ms", "Only with messages stored before.", Moment())


# list -----------------------------------------------------------------------------------------
@click.command(name="list")
@_topic_option
@_partition_option
@_since_option
@_until_option
@shows(some(_BLOCK))
@command_options
def list_(
    invocation: Invocation,
    topic: str | None,
    partitions: Sequence[int],
    since_ms: int | None,
    until_ms: int | None,
) -> None:
    """List archived blocks: offsets, times, messages, sizes, and where the zips are.

    Each node of a broker group has archives of its own. `beside` means: beside its log.

    Exit code 1 when a broker does not answer, or does not run.
    """
    check_span(since_ms, until_ms)

    found, silent = invocation.call(
        archives.list_archives, topic, partitions=partitions, since_ms=since_ms, until_ms=until_ms
    )
    output = invocation.output
    if not output.document(_BLOCK.all(found)):
        output.table([_row(each) for each in found], columns=_COLUMNS)
        if not found and not silent:
            output.remark("nothing is archived")
    _fail_if_silent(silent)


_COLUMNS = "topic partition start end first last messages bytes zip_bytes node where"


def _row(found: ArchivedBlock) -> dict[str, Any]:
    return {
        **_BLOCK(found),
        "first": utc(found.first_ms),
        "last": utc(found.last_ms),
        "bytes": bytes_text(found.size_bytes),
        "zip_bytes": bytes_text(found.zip_bytes),
        "node": f"{found.group}/{found.node}",
        "where": found.url or "beside",
    }


def _fail_if_silent(silent: Sequence[str]) -> None:
    if silent:
        raise CommandFailed(
            f"{len(silent)} broker(s) do not answer, so their archives are not among these: "
            f"{'; '.join(silent)}"
        )


# verify ---------------------------------------------------------------------------------------
def _state(found: VerifiedArchive) -> str:
    return "unknown" if found.error else "damaged" if found.problem else "intact"


_VERIFIED: Final = Shape(VerifiedArchive, "state= batches problem? error?", state=_state)


@click.command()
@_topic_option
@_partition_option
@_since_option
@_until_option
@shows(some(having(_BLOCK, **_VERIFIED.fields)))
@command_options
def verify(
    invocation: Invocation,
    topic: str | None,
    partitions: Sequence[int],
    since_ms: int | None,
    until_ms: int | None,
) -> None:
    """Have brokers read archives whole and compare them with what they know of them.

    Slowly, beside their other work. A damaged archive is repaired from another node of the group,
    if one has the bytes.

    Exit code 1 when one is damaged, or could not be read, or a broker does not answer or run.
    """
    check_span(since_ms, until_ms)
    output = invocation.output

    async def work(cluster: ClusterClient) -> tuple[list[VerifiedArchive], list[str]]:
        blocks, silent = await archives.list_archives(
            cluster, topic, partitions=partitions, since_ms=since_ms, until_ms=until_ms
        )
        found = await archives.verify_archives(
            cluster,
            blocks,
            on_progress=lambda done, total: output.remark(f"{done} of {total} archives read"),
        )
        return found, silent

    found, silent = invocation.call(work)
    if not output.document([{**_BLOCK(each.block), **_VERIFIED(each)} for each in found]):
        rows = [_verified_row(each) for each in found]
        columns = "topic partition start end node where state problem"
        output.table(rows, columns=columns, optional="problem")
        if not found and not silent:
            output.remark("nothing is archived")
    damaged = [each for each in found if each.problem]
    if damaged:
        raise CommandFailed(
            f"{len(damaged)} archive(s) are damaged: "
            + "; ".join(f"{each.block}: {each.problem}" for each in damaged[:5])
        )
    unread = [each for each in found if each.error]
    if unread:
        raise CommandFailed(f"{len(unread)} archive(s) could not be read: {unread[0].error}")
    _fail_if_silent(silent)


def _verified_row(found: VerifiedArchive) -> dict[str, Any]:
    row = _row(found.block)
    return {**row, "state": _state(found), "problem": found.problem or found.error or None}


# restore --------------------------------------------------------------------------------------
@click.command()
@click.argument("topic", shell_complete=topic_names)
@_partition_option
@_since_option
@_until_option
@yes_option
@shows(record(done=bool, blocks=some(having(_BLOCK, error=maybe(str)))))
@command_options
def restore(
    invocation: Invocation,
    topic: str,
    partitions: Sequence[int],
    since_ms: int | None,
    until_ms: int | None,
    yes: bool,
) -> None:
    """Make block files of archives again, on every node that has them, and delete the archives.

    For example before the place of the archives goes away. To read archived messages this is not
    needed. The next run archives the blocks again, unless the topic's settings are changed first.

    Exit code 1 when one could not be restored, or a broker does not answer or run; the others are.
    """
    check_span(since_ms, until_ms)

    async def work(cluster: ClusterClient) -> tuple[list[tuple[ArchivedBlock, str]], list[str]]:
        blocks, silent = await archives.list_archives(
            cluster, topic, partitions=partitions, since_ms=since_ms, until_ms=until_ms
        )
        if not yes:
            return [(block, "") for block in blocks], silent
        done = await archives.restore_archives(
            cluster,
            blocks,
            on_progress=lambda done, total: output.remark(f"{done} of {total} archives restored"),
        )
        return [(each.block, each.error) for each in done], silent

    output = invocation.output
    found, silent = invocation.call(work)
    if output.as_json:
        blocks = [{**_BLOCK(block), "error": error or None} for block, error in found]
        output.document({"done": yes, "blocks": blocks})
    else:
        rows = [{**_row(block), "error": error or None} for block, error in found]
        output.table(rows, columns=f"{_COLUMNS} error", optional="error")
        good = [block for block, error in found if not error]
        size = bytes_text(sum(block.size_bytes for block in good))
        what = "restored" if yes else "would be restored; give --yes to do it"
        if found:
            output.remark(f"{len(good)} block(s), {size}: {what}")
        elif not silent:
            output.remark("nothing is archived")
    failed = [error for _, error in found if error]
    if failed:
        raise CommandFailed(f"{len(failed)} block(s) could not be restored: {failed[0]}")
    _fail_if_silent(silent)


# export ---------------------------------------------------------------------------------------
@click.command()
@click.argument("topic", shell_complete=topic_names)
@option(
    "--output FILE as path",
    "Where to; its name says the format: .jsonl or .parquet.",
    click.Path(dir_okay=False, path_type=Path),
    required=True,
)
@option("--format as form", "The format.  [by name]", FORMATS)
@_partition_option
@_since_option
@_until_option
@option("--from-offset N", "Begin there; of one partition.", WholeNumber(min=0))
@option("--to-offset N", "End before that; of one partition.", WholeNumber(min=0))
@flag("--force", "Replace a file of this name.")
@shows(record(topic=str, file=str, format=str, messages=int, bytes=int))
@command_options
def export(
    invocation: Invocation,
    topic: str,
    path: Path,
    form: str | None,
    partitions: Sequence[int],
    since_ms: int | None,
    until_ms: int | None,
    from_offset: int | None,
    to_offset: int | None,
    force: bool,
) -> None:
    """Write messages of a topic into a file, archived ones and others alike.

    JSONL has one message a line, as `vq consume --json` prints it. Parquet needs the extra
    `vq[parquet]`. Messages are in the order in which they were sent, as far as the order within
    each partition allows it. The file gets its name when it is whole.
    """
    check_span(since_ms, until_ms)
    if from_offset is not None and to_offset is not None and from_offset >= to_offset:
        raise click.UsageError(
            f"--from-offset {from_offset} is not before --to-offset {to_offset}: no message "
            "begins between them"
        )
    check_place(path, topic)
    chosen = format_of(path, form)
    if path.exists() and not force:
        raise InvalidArgument(f"{path} exists; give --force to replace it, or another name")
    begin = Begin(since_ms=since_ms, offset=from_offset)
    end = End(until_ms=until_ms, offset=to_offset)

    async def work(cluster: ClusterClient) -> int:
        with ExportFile(path, chosen) as file:
            async for some in streams.messages(
                cluster, topic, begin, partitions=partitions, end=end
            ):
                file.write(some)
        return file.messages

    written = invocation.call(work)
    size = path.stat().st_size
    values = {"topic": topic, "file": str(path), "format": chosen, "messages": written}
    shown = size if invocation.output.as_json else bytes_text(size)
    invocation.output.record({**values, "bytes": shown})
