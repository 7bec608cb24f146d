"""The audit of contents: is all there that a topic should have, and is it what was written?

The driver asks which blocks there are and cuts each partition into splits of whole blocks;
executors check one split each (``contents``); meanwhile nodes verify their archives. What only
several splits show is put together afterwards (``audit_joins``): producers whose batches go on in
the next block, and message ids that are there twice.
"""

import contextlib
import pickle  # nosec B403
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_vq.connection import factory_of
from pyspark_vq.options import Connect
from pyspark_vq.reports import outputs
from pyspark_vq.reports.audit_joins import (
    PARTITIONS,
    Joined,
    join_splits,
    judged,
    without_repeats,
)
from pyspark_vq.reports.audit_splits import Layout, closed_layout, splits_of
from pyspark_vq.reports.contents import UNKNOWN_KINDS, Checked, Finding, Split, check_split
from pyspark_vq.reports.outputs import snapshot_name, write_snapshot
from pyspark_vq.reports.progress import Progress
from pyspark_vq.reports.schemas import schema_of
from pyspark_vq.reports.shuffles import fitting_shuffles
from vq.admin import ContentCheck, HeldPartition, VerifiedArchive
from vq.errors import PermissionRefused, UnknownTopic, VqError

#: So many findings are told; all are counted.
FINDINGS_MAX: Final = 1_000
#: Messages of one row of offsets and ids.
_IDS: Final = 65_536
#: Stored bytes with one message id, at a guess. It is no matter if there are some times as many.
_ID_BYTES: Final = 1_000
#: Message ids that are there twice and are looked up.
DUPLICATES_MAX: Final = 1_000
FINDINGS: Final = schema_of(
    "kind string, topic string, partition int, start bigint, end bigint, node string, detail string"
)
_ROWS: Final = schema_of(
    "topic string not null, partition int not null, start bigint not null, offsets array<bigint>, "
    "ids array<bigint>, checked binary"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be audited.

    Attributes:
        connect: The cluster.
        now_s: The moment of the snapshot, in seconds since 1970.
        topics: Which; none: all.
        copies: Whether the copies in sync are compared.
        archives: Whether nodes verify their archives whole.
        findings_max: So many findings are told.
    """

    connect: Connect
    now_s: float
    topics: Sequence[str] = ()
    copies: bool = True
    archives: bool = True
    findings_max: int = FINDINGS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """A finished audit.

    Attributes:
        cluster: Its name.
        snapshot, now_s: Its moment.
        findings: The first ones, by topic, partition and offset.
        counts: How many there are of each kind; ``unreachable`` counts nodes whose archives nobody
            verified, too, which ``notes`` name.
        partitions: One row for each partition; see ``audit_joins.PARTITIONS``.
        sizes: How many messages have a size of n bits, by topic.
        archives: How many were verified; None: none was asked for, or nobody may.
        notes: What was not looked at, and why.
        read_bytes, compared_bytes: Of masters, and of copies.
    """

    cluster: str
    snapshot: str
    now_s: float
    findings: Sequence[Finding]
    counts: Mapping[str, int]
    partitions: Sequence[Mapping[str, Any]]
    sizes: Mapping[str, Sequence[int]]
    archives: int | None
    notes: Sequence[str] = field(default_factory=tuple)
    read_bytes: int = 0
    compared_bytes: int = 0

    @property
    def total(self) -> int:
        """How many findings there are, those left out included."""
        return sum(self.counts.values())

    @property
    def unknown(self) -> int:
        """How many ranges could not be checked."""
        return sum(self.counts.get(kind, 0) for kind in UNKNOWN_KINDS)


def audit(spark: SparkSession, wanted: Wanted, progress: Progress) -> Audit:
    """Check the contents of topics; nothing is changed.

    Raises:
        UnknownTopic: There is no topic of one of these names.
        CoordinationError: ZooKeeper does not answer.
    """
    context = spark.sparkContext
    with progress.step("blocks"):
        layout = read_layout(wanted)
    verifying = _verifying(wanted, layout)
    with contextlib.ExitStack() as kept:
        with progress.step("contents", context):
            rows = _check(spark, wanted.connect, layout.splits)
            rows.persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(rows.unpersist)
            checked = [
                _unpacked(row["checked"])
                for row in rows.where("checked is not null").select("checked").toLocalIterator()
            ]
        size = sum(each.end - each.start for each in layout.splits)
        with progress.step("message ids", context), fitting_shuffles(spark, size // _ID_BYTES):
            twice, many = duplicates(rows)
    with progress.step("archives"):
        archives, unverified = verifying.result()
    joined = join_splits(checked, layout)
    findings = [*layout.findings, *joined.findings, *twice, *_archive_findings(archives)]
    return audit_of(wanted, layout, joined, findings, many, archives, unverified)


# Which bytes ----------------------------------------------------------------------------------
def read_layout(wanted: Wanted) -> Layout:
    """Ask which blocks there are, where, and which nodes are in sync."""
    admin = factory_of(wanted.connect).admin
    given = list(wanted.topics) or [topic.name for topic in admin.list_topics(reserved=True)]
    names = sorted(set(given))
    brokers = [each for each in admin.cluster_status().brokers if each.node is not None]
    held, silent = admin.list_blocks(names[0] if len(names) == 1 else None)
    by_topic: dict[str, list[HeldPartition]] = {}
    for each in held:
        by_topic.setdefault(each.topic, []).append(each)
    errors = {(each.group, each.node): each.error for each in silent}
    every = []
    for name in names:
        try:
            placements = admin.placements(name)
            ends = admin.bounds(name)
        except UnknownTopic:
            if wanted.topics:
                raise
            continue  # it was deleted meanwhile
        except PermissionRefused as error:
            every.append(closed_layout(name, len(placements), str(error)))
            continue
        mine = by_topic.get(name, [])
        every.append(splits_of(placements, mine, errors, ends, brokers, copies=wanted.copies))
    return Layout.joined(every, names)


# On executors ---------------------------------------------------------------------------------
def _check(spark: SparkSession, connect: Connect, splits: Sequence[Split]) -> DataFrame:
    context = spark.sparkContext
    tasks = max(1, min(len(splits), 100_000))
    found = context.parallelize(splits, tasks).mapPartitions(
        lambda some: (row for split in some for row in _checked_rows(connect, split))
    )
    return spark.createDataFrame(found, _ROWS, verifySchema=False)


def _checked_rows(connect: Connect, split: Split) -> Iterator[tuple[Any, ...]]:
    """Yield rows of offsets and ids of a split, and one of what became of it."""
    offsets, ids = array("l"), array("l")  # the one of 8 bytes that Spark reads without a loop
    place = (split.topic, split.partition, split.start)

    def take(check: ContentCheck) -> None:
        some_offsets, some_ids = check.take_messages()
        offsets.extend(array("l", some_offsets))
        ids.extend(array("l", some_ids))

    try:
        found = check_split(split, factory_of(connect).admin.read_bytes, on_messages=take)
    except UnknownTopic:  # it was deleted meanwhile
        found = Checked(split, deleted=split.end - split.start)
    for at in range(0, len(ids), _IDS):
        yield (*place, offsets[at : at + _IDS], ids[at : at + _IDS], None)
    yield (*place, None, None, bytearray(_packed(found)))


def _packed(checked: Checked) -> bytes:
    """Return what became of a split as bytes; each part of it has a bounded number of faults."""
    for part in checked.parts:
        part.take_messages()
    return pickle.dumps(checked)


def _unpacked(data: bytes) -> Checked:
    """Return what ``_packed`` was given: bytes of our own workers."""
    found = pickle.loads(data)  # nosec B301
    assert isinstance(found, Checked)
    return found


def duplicates(rows: DataFrame) -> tuple[list[Finding], int]:
    """Return messages whose id is there before, the first of them, and how many ids that are."""
    ids = rows.where("ids is not null").select("topic", F.explode("ids").alias("id"))
    twice = ids.groupBy("topic", "id").count().where("count > 1")
    found = twice.orderBy("topic", "id").limit(DUPLICATES_MAX + 1).collect()
    if not found:
        return [], 0
    many = len(found) if len(found) <= DUPLICATES_MAX else twice.count()
    wanted = rows.sparkSession.createDataFrame(
        [(row["topic"], row["id"]) for row in found[:DUPLICATES_MAX]], "topic string, id long"
    )
    places = (
        rows.where("ids is not null")
        .select("topic", "partition", F.explode(F.arrays_zip("offsets", "ids")).alias("message"))
        .select("topic", "partition", "message.offsets", F.col("message.ids").alias("id"))
        .join(F.broadcast(wanted), ["topic", "id"])
        .orderBy("topic", "id", "partition", "offsets")
        .collect()
    )
    first: dict[tuple[str, int], Any] = {}
    told = []
    for row in places:
        before = first.setdefault((row["topic"], row["id"]), row)
        if before is not row:
            told.append(
                Finding(
                    row["topic"],
                    row["partition"],
                    row["offsets"],
                    None,
                    "duplicate",
                    "",
                    f"message id {row['id']} is at offset {before['offsets']} of partition "
                    f"{before['partition']}, too",
                )
            )
    return told, many


# Archives -------------------------------------------------------------------------------------
def _verifying(wanted: Wanted, layout: Layout) -> Future[tuple[list[VerifiedArchive], list[str]]]:
    """Have archives verified in a thread that no failure or ctrl-C waits for: it may take hours."""
    done: Future[tuple[list[VerifiedArchive], list[str]]] = Future()

    def run() -> None:
        try:
            done.set_result(verify_archives(wanted, layout))
        except Exception as error:  # noqa: BLE001 - whoever asks for the result has it
            done.set_exception(error)

    threading.Thread(target=run, name="verify-archives", daemon=True).start()
    return done


def verify_archives(wanted: Wanted, layout: Layout) -> tuple[list[VerifiedArchive], list[str]]:
    """Return what became of archives, and which nodes did not tell theirs, and why."""
    if not wanted.archives:
        return [], []
    admin = factory_of(wanted.connect).admin
    try:
        found, silent = admin.list_archives(layout.topics[0] if len(layout.topics) == 1 else None)
    except VqError as error:
        return [], [f"{type(error).__name__}: {error}"]
    blocks = [each for each in found if each.topic in layout.topics]
    return admin.verify_archives(blocks), silent


def _archive_findings(verified: Iterable[VerifiedArchive]) -> list[Finding]:
    return [
        Finding(
            each.block.topic,
            each.block.partition,
            each.block.start,
            each.block.end,
            "unreachable" if each.error else "archive",
            f"{each.block.group}/{each.block.node}",
            each.error or each.problem,
        )
        for each in verified
        if each.error or each.problem
    ]


# Putting together -----------------------------------------------------------------------------
def audit_of(
    wanted: Wanted,
    layout: Layout,
    joined: Joined,
    findings: Iterable[Finding],
    duplicate_count: int,
    archives: Sequence[VerifiedArchive],
    unverified: Sequence[str],
) -> Audit:
    """Return the audit of what was found; what one copy repeats of another is told once."""
    told = without_repeats(findings)
    counts: dict[str, int] = {}
    for each in told:
        counts[each.kind] = counts.get(each.kind, 0) + 1
    if duplicate_count:
        counts["duplicate"] = max(duplicate_count, counts.get("duplicate", 0))
    for kind, more in joined.left_out.items():
        counts[kind] = counts.get(kind, 0) + more
    if unverified:
        counts["unreachable"] = counts.get("unreachable", 0) + len(unverified)
    reasons = unverified if wanted.archives else ["that was not asked for"]
    return Audit(
        cluster=wanted.connect.config.cluster,
        snapshot=snapshot_name(wanted.now_s),
        now_s=wanted.now_s,
        findings=told[: wanted.findings_max],
        counts=dict(sorted(counts.items())),
        partitions=judged(joined.partitions, told),
        sizes=joined.sizes,
        archives=len(archives) if wanted.archives and (archives or not unverified) else None,
        notes=[*layout.notes, *(f"archives were not verified: {why}" for why in reasons)],
        read_bytes=joined.read_bytes,
        compared_bytes=joined.compared_bytes,
    )


# Files ----------------------------------------------------------------------------------------
def write_history(spark: SparkSession, made: Audit, directory: str) -> None:
    """Write findings and partitions as Parquet, each into a directory, partitioned by snapshot."""
    findings = [tuple(getattr(each, name) for name in FINDINGS.names) for each in made.findings]
    columns = schema_of(PARTITIONS)
    partitions = [tuple(row[name] for name in columns.names) for row in made.partitions]
    for name, rows, schema in (
        ("findings", findings, FINDINGS),
        ("partitions", partitions, columns),
    ):
        frame = spark.createDataFrame(rows, schema).withColumn("snapshot", F.lit(made.snapshot))
        write_snapshot(frame, f"{directory}/{name}", count=len(rows))


def write_csv(made: Audit, path: Path) -> int:
    """Write the findings as CSV; return how many."""
    rows = ({name: getattr(each, name) for name in FINDINGS.names} for each in made.findings)
    return outputs.write_csv(rows, FINDINGS.names, path)
