"""Which bytes an audit reads, cut into splits: pure functions.

Blocks begin and end at batches, so a split is a run of whole blocks of one broker group. Together
the splits are all that a partition should have: also where no block is, since whoever reads there
is told why.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark_vq.reports.contents import Copy, Finding, Split
from vq import PartitionPlacement, Span
from vq.admin import BrokerReport, HeldBlock, HeldPartition, PartitionEnds

#: A split has about so many bytes, and at least one block.
SPLIT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Layout:
    """What there is to check.

    Attributes:
        topics: Their names.
        partitions: Every partition, with the first offset kept and the end; None: not known.
        splits: What is to be read.
        findings: What is known without reading.
        notes: What is not looked at, and why.
    """

    topics: tuple[str, ...]
    partitions: Mapping[tuple[str, int], tuple[int | None, int | None]]
    splits: Sequence[Split]
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    @classmethod
    def joined(cls, parts: Sequence["Layout"], topics: Iterable[str]) -> "Layout":
        """Return one layout of several topics."""
        return cls(
            tuple(sorted(set(topics))),
            {key: ends for part in parts for key, ends in part.partitions.items()},
            [split for part in parts for split in part.splits],
            [finding for part in parts for finding in part.findings],
            sorted({note for part in parts for note in part.notes}),
        )


def splits_of(
    placements: Sequence[PartitionPlacement],
    held: Sequence[HeldPartition],
    silent: Mapping[tuple[str, str], str],
    ends: Mapping[int, PartitionEnds | None],
    brokers: Sequence[BrokerReport],
    *,
    copies: bool,
) -> Layout:
    """Return what there is to check of one topic.

    Args:
        placements: Its partitions.
        held: What nodes hold of it.
        silent: The nodes that did not tell it, and why.
        ends: Of each partition; None: no broker told them.
        brokers: All nodes.
        copies: Compare the copies that are in sync.
    """
    splits: list[Split] = []
    findings: list[Finding] = []
    partitions: dict[tuple[str, int], tuple[int | None, int | None]] = {}
    by_place = {(each.partition, each.group, each.node): each for each in held}
    for placement in placements:
        known = ends.get(placement.partition)
        earliest, latest = (None, None) if known is None else (known.earliest, known.latest)
        partitions[placement.topic, placement.partition] = (earliest, latest)
        for span in placement.spans:
            start = max(span.start, earliest or 0)
            end = span.end if span.end is not None else latest
            if end is not None and end <= start:
                continue
            mine = [
                each
                for (number, group, _), each in by_place.items()
                if number == placement.partition and group == span.group
            ]
            master = next((each for each in mine if each.leads), None)
            name = f"{span.group}/{master.node}" if master is not None else span.group
            if end is None:
                findings.append(_unreachable(placement, span, start, name, silent, brokers))
                continue
            others = _copies(span.group, brokers, master) if copies else ()
            for other in others:
                node = (span.group, other.node.partition("/")[2])
                if node in silent:
                    why = f"it was not compared: {silent[node]}"
                    findings.append(_finding(placement, start, end, "unreachable", other.node, why))
            asked = tuple(
                each for each in others if (span.group, each.node.partition("/")[2]) not in silent
            )
            blocks = () if master is None else master.blocks
            starts = [each.start for each in blocks]
            tiles = list(_tiles(blocks, start, end))
            splits += [
                Split(
                    placement.topic,
                    placement.partition,
                    span.group,
                    name,
                    first,
                    last,
                    asked if is_held else (),
                    tuple(starts[bisect_right(starts, first) : bisect_left(starts, last)]),
                )
                for first, last, is_held in tiles
            ]
            gaps = [tile for tile in tiles if not tile[2]]
            findings += [
                _not_whole(placement, each, start)
                for each in mine
                if not each.is_whole and not (each is master and gaps)
            ]
    return Layout(tuple({each.topic for each in placements}), partitions, splits, findings)


def closed_layout(topic: str, partitions: int, why: str) -> Layout:
    """Return what there is to check of a topic that is closed for reading: nothing is known."""
    numbers = range(partitions)
    findings = [Finding(topic, n, 0, None, "not_readable", "", why) for n in numbers]
    return Layout((topic,), {(topic, n): (None, None) for n in numbers}, [], findings)


def _tiles(blocks: Iterable[HeldBlock], start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Yield ranges that cover ``[start, end)``: runs of blocks, and the gaps between them."""
    begin = at = start
    for block in blocks:
        if block.end <= at:
            continue
        if block.start >= end:
            break
        if block.start > at:
            if at > begin:
                yield begin, at, True
            yield at, block.start, False
            begin = at = block.start
        at = min(block.end, end)
        if at - begin >= SPLIT_BYTES:
            yield begin, at, True
            begin = at
    if at > begin:
        yield begin, at, True
    if at < end:
        yield at, end, False


def _copies(
    group: str, brokers: Iterable[BrokerReport], master: HeldPartition | None
) -> tuple[Copy, ...]:
    return tuple(
        Copy(f"{group}/{each.name}", str(each.node.address))
        for each in brokers
        if each.group.group == group
        and each.in_sync
        and each.node is not None
        and (master is None or each.name != master.node)
        and each.role != "master"
    )


def _unreachable(
    placement: PartitionPlacement,
    span: Span,
    start: int,
    name: str,
    silent: Mapping[tuple[str, str], str],
    brokers: Iterable[BrokerReport],
) -> Finding:
    why = [
        f"{span.group}/{node}: {each}"
        for (group, node), each in silent.items()
        if group == span.group
    ]
    why += [
        f"{span.group}/{each.name}: {each.error}"
        for each in brokers
        if each.group.group == span.group and each.error and (span.group, each.name) not in silent
    ]
    text = "; ".join(sorted(why)) or "no node of the group told where the partition ends"
    return _finding(placement, start, None, "unreachable", name, text)


def _not_whole(placement: PartitionPlacement, held: HeldPartition, start: int) -> Finding:
    begin = held.blocks[-1].end if held.blocks else start
    text = f"{held.state}: {held.reason}" if held.reason else held.state
    return _finding(placement, begin, None, "missing", f"{held.group}/{held.node}", text)


def _finding(
    placement: PartitionPlacement, start: int, end: int | None, kind: str, node: str, text: str
) -> Finding:
    return Finding(placement.topic, placement.partition, start, end, kind, node, text)
