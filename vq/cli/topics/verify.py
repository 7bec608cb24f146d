"""``vq topic verify``: have brokers read what they store and look for damage."""

from collections.abc import Sequence
from typing import Any, Final

import click

from vq.cli.base.completion import topic_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, shows, some
from vq.cli.base.options import Invocation, command_options, flag, partitions_option
from vq.errors import InvalidArgument
from vq.operations.base.sizes import bytes_text
from vq.operations.brokers.brokers import Damage
from vq.operations.topics.verification import Verified, VerifyProgress
from vq.operations.topics.verification import verify as verify_topics

#: A damaged range without the topic and the partition, which its row says.
DAMAGE_WORDS: Final = "group node? start end file reason found_s?"
DAMAGE: Final = Shape(Damage, DAMAGE_WORDS)
_VERIFIED: Final = Shape(
    Verified,
    "topic partition group node? damaged repaired error? read_bytes skipped_bytes damage",
    damage=DAMAGE,
)


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=topic_names)
@flag("--all as everything", "All topics.")
@partitions_option("Only this one; may be given several times.")
@flag("--again", "Read also what was found intact within a day.")
@shows(some(_VERIFIED))
@command_options
def verify(
    invocation: Invocation,
    names: Sequence[str],
    everything: bool,
    partitions: Sequence[int],
    again: bool,
) -> None:
    """Have the brokers read topics whole and look for damage, in the copies, too.

    Slowly, beside their other work: their setting verify_bytes_per_s bounds it. What was found
    intact within a day is not read again, but that its files are there
    with their size is looked at. The brokers go on if this command is interrupted.

    What another node has intact is repaired at once: it counts as repaired, and no more as damaged.

    Exit code 1 when something is damaged, or could not be verified.
    """
    if everything == bool(names):
        raise InvalidArgument("name topics, or give --all")

    _show(
        invocation,
        invocation.call(
            verify_topics,
            None if everything else names,
            partitions=partitions,
            again=again,
            on_progress=lambda progress: invocation.output.remark(_sentence(progress)),
        ),
    )


def _sentence(progress: VerifyProgress) -> str:
    read, total = progress.read_bytes, progress.total_bytes
    share = read / total if total else 1.0
    return f"{bytes_text(read)} of {bytes_text(total)} read ({share:.0%}), {progress.running} to go"


def _show(invocation: Invocation, found: Sequence[Verified]) -> None:
    rows = [_row(each) for each in found]
    output = invocation.output
    if not output.document(_VERIFIED.all(found)):
        columns = "topic partition group node read skipped damaged repaired error"
        output.table(rows, columns=columns, optional="error")
    for verified in found:
        for each in verified.damage or ():
            output.remark(str(each))
    damaged = sum(1 for each in found if each.damage)
    failed = sum(1 for each in found if each.error)
    if damaged or failed:
        raise CommandFailed(
            f"{damaged} of {len(rows)} are damaged, {failed} could not be verified; "
            "docs/howto/repair-damage.md says what to do"
        )


def _row(verified: Verified) -> dict[str, Any]:
    return {
        **_VERIFIED(verified),
        "read": bytes_text(verified.read_bytes),
        "skipped": bytes_text(verified.skipped_bytes),
    }
