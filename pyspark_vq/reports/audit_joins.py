"""What several splits of a partition say together: pure functions.

Within a split ``vq.admin.ContentCheck`` compares each batch with the one before. Here the first
batch of a part is compared with the last one of the part before it, as long as nothing is missing
between them: then it may belong to anything.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_vq.reports.audit_splits import Layout
from pyspark_vq.reports.contents import UNKNOWN_KINDS, Checked, Finding, Split
from vq.admin import ContentCheck, sequence_fault

#: Columns of the rows of partitions, in order, with their types in Spark's notation.
PARTITIONS: Final = (
    "topic string, partition int, verdict string, start bigint, end bigint, bytes bigint, "
    "messages bigint, batches bigint, first_ms bigint, last_ms bigint, producers bigint, "
    "id_falls bigint, deleted_bytes bigint, findings bigint"
)
#: Those that say what was read.
_READ: Final = ("bytes", "messages", "batches", "producers", "id_falls")
#: Kinds that a damaged archive, which the node reads whole, explains.
_EXPLAINED: Final = frozenset({"damaged", "unreadable", "missing"})


@dataclass(frozen=True, slots=True)
class Joined:
    """All splits together.

    Attributes:
        findings: Of all of them, and between them.
        left_out: How many more there are of each kind in splits with very many.
        partitions: A row for each; see ``PARTITIONS``.
        sizes: How many messages have a size of n bits, by topic.
        read_bytes, compared_bytes: Of masters, and of copies.
    """

    findings: Sequence[Finding]
    left_out: Mapping[str, int]
    partitions: Sequence[Mapping[str, Any]]
    sizes: Mapping[str, Sequence[int]]
    read_bytes: int
    compared_bytes: int


@dataclass(slots=True)
class _Before:
    """What is known of the batches before a part."""

    group: str = ""
    end: int = -1
    part: ContentCheck | None = None
    stamps: dict[int, tuple[int, int]] = field(default_factory=dict)


def join_splits(checked: Iterable[Checked], layout: Layout) -> Joined:
    """Return what the splits of a layout say together; they may come in any order."""
    by_partition: dict[tuple[str, int], list[Checked]] = {key: [] for key in layout.partitions}
    for each in checked:
        by_partition.setdefault((each.split.topic, each.split.partition), []).append(each)
    findings: list[Finding] = []
    rows: list[dict[str, Any]] = []
    sizes: dict[str, list[int]] = {}
    left_out: Counter[str] = Counter()
    read_bytes = compared_bytes = 0
    for key, some in sorted(by_partition.items()):
        some.sort(key=lambda each: each.split.start)
        found = [finding for each in some for finding in each.findings]
        found += _between(some)
        for each in some:
            read_bytes += each.read_bytes
            compared_bytes += each.compared_bytes
            for part in each.parts:
                _add(sizes.setdefault(key[0], [0] * len(part.totals.sizes)), part.totals.sizes)
                left_out.update(part.fault_counts)
                left_out.subtract(fault.kind for fault in part.faults)
        findings += found
        rows.append(_row(key, some, layout.partitions.get(key, (None, None))))
    told = judged(rows, [*layout.findings, *findings])
    more = {str(kind): count for kind, count in left_out.items() if count > 0}
    return Joined(findings, more, told, sizes, read_bytes, compared_bytes)


def _between(some: Sequence[Checked]) -> list[Finding]:
    """Return what is wrong between the parts of one partition, in order of offsets."""
    found: list[Finding] = []
    before = _Before()
    for checked in some:
        for part in checked.parts:
            if part.totals.first is None:
                before = _Before()
                continue
            begin = part.totals.first.start
            if begin != before.end:  # something is missing, or damaged, between them
                before = _Before()
            elif before.part is not None:
                found += _edges(checked.split, before, part)
            # Of a producer that was not followed here, the batches before say nothing.
            stamps = {} if part.damaged or not part.follows_all else dict(before.stamps)
            for edge in part.producers:
                stamps.pop(edge.producer_id, None)
                if edge.last is not None:
                    stamps[edge.producer_id] = edge.last
            end = part.totals.last.end if part.totals.last is not None else -1
            before = _Before(checked.split.group, end, part, stamps)
    return found


def _edges(split: Split, before: _Before, part: ContentCheck) -> list[Finding]:
    found: list[Finding] = []
    assert before.part is not None
    last, first = before.part.totals.last, part.totals.first
    assert last is not None
    assert first is not None

    def note(start: int, end: int | None, kind: str, detail: str) -> None:
        found.append(Finding(split.topic, split.partition, start, end, kind, split.node, detail))

    if split.group == before.group:  # epochs and clocks of other groups say nothing here
        if first.epoch < last.epoch:
            why = f"epoch {first.epoch} follows epoch {last.epoch}"
            note(first.start, first.end, "epoch", why)
        if first.append_ms < last.append_ms:
            fall_ms = last.append_ms - first.append_ms
            why = f"it was appended {fall_ms} ms before the batch before it"
            note(first.start, first.end, "time", why)
    for edge in part.producers:
        stamp = before.stamps.get(edge.producer_id)
        if stamp is not None and edge.first is not None:
            why = sequence_fault(edge.producer_id, stamp, edge.first)
            if why:
                note(edge.start, None, "sequence", why)
    return found


def _row(
    key: tuple[str, int],
    some: Sequence[Checked],
    ends: tuple[int | None, int | None],
) -> dict[str, Any]:
    parts = [part for each in some for part in each.parts]
    first = [part.totals.first.append_ms for part in parts if part.totals.first is not None]
    last = [part.totals.last.append_ms for part in parts if part.totals.last is not None]
    return {
        "topic": key[0],
        "partition": key[1],
        "verdict": "sound",
        "start": ends[0],
        "end": ends[1],
        "bytes": sum(part.totals.intact_bytes for part in parts),
        "messages": sum(part.totals.messages for part in parts),
        "batches": sum(part.totals.batches for part in parts),
        "first_ms": min(first, default=None),
        "last_ms": max(last, default=None),
        "producers": len({edge.producer_id for part in parts for edge in part.producers}),
        "id_falls": sum(part.totals.id_falls for part in parts),
        "deleted_bytes": sum(each.deleted for each in some),
        "findings": 0,
    }


def judged(rows: Iterable[Mapping[str, Any]], findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return rows of partitions with their verdict and how many findings they have.

    What is in one of which nothing could be read is not known: it is not 0.
    """
    kinds: dict[tuple[str, int], list[str]] = {}
    for each in findings:
        kinds.setdefault((each.topic, each.partition), []).append(each.kind)
    found = []
    for row in rows:
        mine = kinds.get((row["topic"], row["partition"]), [])
        bad = any(kind not in UNKNOWN_KINDS for kind in mine)
        verdict = "bad" if bad else "unknown" if mine else "sound"
        unread = dict.fromkeys(_READ) if verdict == "unknown" and not row["batches"] else {}
        found.append({**row, **unread, "verdict": verdict, "findings": len(mine)})
    return found


def _add(into: list[int], more: Sequence[int]) -> None:
    for at, count in enumerate(more):
        into[at] += count


def without_repeats(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in order, each once; what a damaged archive explains is told with it.

    The node of a damaged archive reads bytes of it that are damaged: that is one finding.
    """
    every = sorted(
        set(findings),
        key=lambda each: (each.topic, each.partition, each.start, each.kind, each.node),
    )
    archives = [each for each in every if each.kind == "archive"]
    told: list[Finding] = []
    for each in every:
        around = [
            archive
            for archive in archives
            if each.kind in _EXPLAINED
            and (each.topic, each.partition, each.node)
            == (archive.topic, archive.partition, archive.node)
            and archive.end is not None
            and archive.start <= each.start < archive.end
            and (each.end is None or each.end <= archive.end)
        ]
        if not around:
            told.append(each)
    return told
