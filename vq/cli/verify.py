"""``vq topic verify``: have brokers read what they store and look for damage."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from vq.admin import partitions as admin
from vq.cli.connect import cluster_client
from vq.cli.errors import CommandFailed
from vq.cli.options import Invocation, WholeNumber, command_options
from vq.cli.output import bytes_text
from vq.client.cluster import ClusterClient
from vq.coordination import topics
from vq.coordination.reading import TopicView, gather_all
from vq.errors import InvalidArgument, VqError
from vq.model import Address
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import DamagedRange, VerifyRequest, VerifyResponse

_POLL_S: Final = 0.5
_PROGRESS_S: Final = 2.0


@dataclass(slots=True)
class Target:
    """What one broker group holds of a partition, and what its master said last."""

    topic: str
    topic_id: str
    partition: int
    group: str
    address: Address | None
    answer: VerifyResponse | None = None
    begun_ms: int = 0
    error: str = ""

    @property
    def running(self) -> bool:
        """Whether it is being verified."""
        return not self.error and self.answer is not None and self.answer.running

    async def ask(self, cluster: ClusterClient, *, begin: bool, again: bool = False) -> None:
        """Begin, or look how far it is; ``again``: read also what was found intact lately."""
        if self.address is None:
            self.error = f"group {self.group} has no running master"
            return
        request = VerifyRequest(
            topic=self.topic,
            partition=self.partition,
            topic_id=self.topic_id,
            whole=True,
            begin=begin,
            again=again,
        )
        try:
            answer, _ = await cluster.request(self.address, Command.VERIFY, request)
        except VqError as error:
            self.error = f"{type(error).__name__}: {error}"
        else:
            assert isinstance(answer, VerifyResponse)
            self.answer = answer
            self.error = answer.unverified if not answer.running else ""
            if begin:
                self.begun_ms = answer.begun_ms
            elif answer.begun_ms < self.begun_ms:
                self.error = "the broker was restarted meanwhile; verify again"


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everything", is_flag=True, help="All topics.")
@click.option(
    "--partition",
    "partitions",
    type=WholeNumber(min=0),
    multiple=True,
    metavar="N",
    help="Only this one; may be given several times.",
)
@click.option("--again", is_flag=True, help="Read also what was found intact within a day.")
@command_options
def verify(
    invocation: Invocation,
    names: Sequence[str],
    everything: bool,
    partitions: Sequence[int],
    again: bool,
) -> None:
    """Have the brokers read topics whole and look for damage.

    Slowly, beside their other work: their setting verify_bytes_per_s bounds it. What was found
    intact within a day is not read again, but that its files are there
    with their size is looked at. The brokers go on if this command is interrupted.

    Exit code 1 when something is damaged, or could not be verified.
    """
    if everything == bool(names):
        raise InvalidArgument("name topics, or give --all")

    async def work() -> list[Target]:
        async with cluster_client(invocation.client_config()) as cluster:
            wanted = await topics.list_topics(cluster.coordinator) if everything else names
            views = await gather_all(
                topics.describe_topic(cluster.coordinator, name) for name in wanted
            )
            targets = await _targets(cluster, views, partitions)
            await _follow(invocation, cluster, targets, again=again)
            return targets

    _show(invocation, invocation.run(work()))


async def _targets(
    cluster: ClusterClient, views: Iterable[TopicView], partitions: Sequence[int]
) -> list[Target]:
    found = []
    for view in views:
        beyond = [number for number in partitions if number >= len(view.partitions)]
        if beyond:
            raise InvalidArgument(
                f"topic {view.name} has partitions 0 to {len(view.partitions) - 1}, not {beyond[0]}"
            )
        for placement in view.partitions:
            if not partitions or placement.partition in partitions:
                found += [
                    Target(view.name, view.id, placement.partition, group, None)
                    for group in dict.fromkeys(span.group for span in placement.spans)
                ]
    groups = sorted({target.group for target in found})
    masters = dict(
        zip(groups, await gather_all(admin.master_of(cluster, g) for g in groups), strict=True)
    )
    for target in found:
        master = masters[target.group]
        target.address = None if master is None else master.address
    return found


async def _follow(
    invocation: Invocation, cluster: ClusterClient, targets: Sequence[Target], *, again: bool
) -> None:
    """Begin everywhere, and return when all have ended; tell now and then how far they are."""
    await gather_all(target.ask(cluster, begin=True, again=again) for target in targets)
    told = time.monotonic()
    while running := [target for target in targets if target.running]:
        if time.monotonic() - told >= _PROGRESS_S:
            told = time.monotonic()
            invocation.output.remark(_progress(targets, len(running)))
        await asyncio.sleep(_POLL_S)
        await gather_all(target.ask(cluster, begin=False) for target in running)


def _progress(targets: Sequence[Target], running: int) -> str:
    answers = [target.answer for target in targets if target.answer is not None]
    read = sum(answer.verified_bytes for answer in answers)
    total = sum(answer.total_bytes for answer in answers)
    share = read / total if total else 1.0
    return f"{bytes_text(read)} of {bytes_text(total)} read ({share:.0%}), {running} to go"


def _show(invocation: Invocation, targets: Sequence[Target]) -> None:
    rows = [_row(target) for target in targets]
    output = invocation.output
    output.table(
        rows,
        columns=("topic", "partition", "group", "read", "skipped", "damaged", "error"),
        optional=("error",),
    )
    for row in rows:
        for each in row["damage"] or ():
            output.remark(damage_text(row["topic"], row["partition"], row["group"], each))
    damaged = sum(1 for row in rows if row["damage"])
    failed = sum(1 for row in rows if row["error"])
    if damaged or failed:
        raise CommandFailed(
            f"{damaged} of {len(rows)} are damaged, {failed} could not be verified; "
            "docs/operations.md (Damage in a partition) says what to do"
        )


def _row(target: Target) -> dict[str, Any]:
    answer = target.answer
    read = None if answer is None else answer.verified_bytes
    skipped = None if answer is None else answer.skipped_bytes
    damage = None if answer is None else _damage_rows(answer.damage)
    return {
        "topic": target.topic,
        "partition": target.partition,
        "group": target.group,
        "read": bytes_text(read),
        "skipped": bytes_text(skipped),
        "damaged": None if damage is None else _count(damage, target.error),
        "error": target.error or None,
        "read_bytes": read,
        "skipped_bytes": skipped,
        "damage": damage,
    }


def _count(damage: Sequence[Any], error: str) -> int | None:
    """Return how many ranges are damaged; None where it could not be told that none is."""
    return None if error and not damage else len(damage)


def _damage_rows(damage: Iterable[DamagedRange]) -> list[dict[str, Any]]:
    """Return damaged ranges as JSON has them."""
    return [
        {field.name: getattr(each, field.name) for field in each.DESCRIPTOR.fields}
        for each in damage
    ]


def damage_text(topic: str, partition: int, group: str, damage: dict[str, Any]) -> str:
    """Return one damaged range as people read it."""
    return (
        f"{topic}-{partition} on {group}: offsets [{damage['start']}, {damage['end']}) are damaged "
        f"in {damage['file']}: {damage['reason']}"
    )
