"""A split is checked against its copies; what is wrong is told once, with the node that has it.

Without Spark and without a cluster: bytes of nodes are texts of batches, and reading may fail.
"""

from collections.abc import Callable, Mapping

import google_crc32c
import pytest

from pyspark_vq.reports import contents
from pyspark_vq.reports.contents import Copy, Finding, Split, check_split
from vq.admin import StoredBytes
from vq.errors import (
    NotMaster,
    OffsetOutOfRange,
    PartitionFailed,
    PartitionQuarantined,
    UnknownTopic,
    Unreachable,
    VqError,
)
from vq.store.records.format import CONTROL_BYTES, BatchHeader, encode_control
from vq.store.records.record import encode_record

N2 = Copy("b1/n2", "host:2")


def log(count: int = 8, *, content: bytes = b"x" * 40) -> tuple[bytes, list[int]]:
    """Batches of two messages each, and where each begins."""
    data, starts = b"", []
    for number in range(count):
        body = encode_record(2 * number + 1, content) + encode_record(2 * number + 2, content)
        start = len(data)
        header = BatchHeader(
            start_offset=start,
            byte_length=CONTROL_BYTES + len(body),
            record_count=2,
            append_time_ms=1_000 + number,
            producer_id=7,
            producer_sequence=number,
        )
        starts.append(start)
        data += encode_control(header, google_crc32c.value(body)) + body
    return data, starts


DATA, STARTS = log()


class Nodes:
    """Reads from the bytes of nodes: None is the master; ``fails`` raises instead."""

    def __init__(self, nodes: Mapping[str | None, bytes], step: int = 100) -> None:
        self.nodes = dict(nodes)
        self.step = step
        self.fails: Callable[[str | None, int], VqError | None] = lambda node, at: None

    def __call__(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        max_bytes: int = 1,
        node: str | None = None,
    ) -> StoredBytes:
        error = self.fails(node, start)
        if error is not None:
            raise error
        data = self.nodes[node]
        return StoredBytes(
            topic, partition, start, len(data), data[start : start + min(max_bytes, self.step)]
        )


def split(**more: object) -> Split:
    return Split("t", 0, "b1", "b1/n1", 0, len(DATA), **more)  # type: ignore[arg-type]


def flipped(at: int) -> bytes:
    broken = bytearray(DATA)
    broken[at] ^= 1
    return bytes(broken)


def told(findings: list[Finding]) -> list[tuple[str, str, int, int | None]]:
    return [(each.kind, each.node, each.start, each.end) for each in findings]


@pytest.mark.parametrize("step", [100, 7, 10_000])
def test_equal_copies_have_no_finding(step: int) -> None:
    read = Nodes({None: DATA, "host:2": DATA}, step)
    found = check_split(split(copies=(N2,)), read)
    assert found.findings == []
    assert (found.read_bytes, found.compared_bytes) == (len(DATA), len(DATA))
    [part] = found.parts
    assert (part.totals.batches, part.totals.messages) == (8, 16)


def test_damage_of_the_master_is_one_finding_that_names_an_intact_copy() -> None:
    read = Nodes({None: flipped(STARTS[3] + 95), "host:2": DATA})
    found = check_split(split(copies=(N2,)), read)
    assert told(found.findings) == [("damaged", "b1/n1", STARTS[3], STARTS[4])]
    assert (
        found.findings[0].detail
        == "its records or its header fail their CRC; b1/n2 has these bytes intact"
    )


def test_damage_of_a_copy_is_one_finding_of_that_copy() -> None:
    read = Nodes({None: DATA, "host:2": flipped(STARTS[3] + 95)})
    found = check_split(split(copies=(N2,)), read)
    assert told(found.findings) == [("damaged", "b1/n2", STARTS[3], STARTS[4])]


def test_the_same_damage_everywhere_is_told_of_each_node() -> None:
    broken = flipped(STARTS[3] + 95)
    found = check_split(split(copies=(N2,)), Nodes({None: broken, "host:2": broken}))
    assert told(found.findings) == [("damaged", "b1/n1", STARTS[3], STARTS[4])]
    assert "intact" not in found.findings[0].detail


def test_another_batch_that_is_intact_differs() -> None:
    """What a copy must never have: nobody can tell which of the two is right."""
    other, starts = log(content=b"y" * 40)
    assert starts == STARTS
    mixed = DATA[: starts[5]] + other[starts[5] : starts[6]] + DATA[starts[6] :]
    found = check_split(split(copies=(N2,)), Nodes({None: DATA, "host:2": mixed}))
    assert told(found.findings) == [("differs", "b1/n2", starts[5], starts[6])]


@pytest.mark.parametrize("error", [NotMaster("it copies nothing"), Unreachable("no connection")])
def test_a_copy_that_cannot_be_read_is_unknown(error: VqError) -> None:
    read = Nodes({None: DATA, "host:2": DATA})
    read.fails = lambda node, at: error if node and at > STARTS[2] else None
    found = check_split(split(copies=(N2,)), read)
    assert [each.kind for each in found.findings] == ["unreachable"]
    assert found.findings[0].node == "b1/n2"
    assert type(error).__name__ in found.findings[0].detail


def test_a_copy_that_shows_nothing_more_is_waited_for_and_then_unknown() -> None:
    read = Nodes({None: DATA, "host:2": DATA[: STARTS[4]]})
    now = iter(range(0, 10_000, 5))
    found = check_split(split(copies=(N2,)), read, monotonic=lambda: float(next(now)))
    assert [each.kind for each in found.findings] == ["unreachable"]
    assert "shows nothing from offset" in found.findings[0].detail


def test_a_master_that_goes_away_leaves_the_rest_unknown() -> None:
    """From the last whole batch on; what was read before counts."""
    read = Nodes({None: DATA})
    read.fails = lambda node, at: Unreachable("gone") if at >= STARTS[4] else None
    found = check_split(split(), read)
    [finding] = found.findings
    assert (finding.kind, finding.end) == ("unreachable", len(DATA))
    assert finding.start in STARTS[4:]
    assert sum(part.totals.batches for part in found.parts) == STARTS.index(finding.start)


def test_bytes_that_the_medium_does_not_deliver_are_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the batch in which they begin to the next intact one; the next block is read."""
    monkeypatch.setattr(contents, "STEP_BYTES", 50)
    read = Nodes({None: DATA}, step=30)
    bad = range(STARTS[2] + 5, STARTS[3] + 5)
    read.fails = lambda node, at: PartitionFailed("EIO") if at in bad else None
    found = check_split(split(), read)
    [finding] = found.findings
    assert (finding.kind, finding.start, finding.end) == ("unreadable", STARTS[2], STARTS[4])
    monkeypatch.setattr(contents, "STEP_BYTES", 1 << 20)
    read.fails = lambda node, at: PartitionFailed("EIO") if at < STARTS[3] else None
    found = check_split(split(blocks=(STARTS[3], STARTS[6])), read)
    assert told(found.findings) == [("unreadable", "b1/n1", 0, STARTS[3])]


def test_lost_blocks_are_missing_and_what_lies_behind_is_checked() -> None:
    read = Nodes({None: DATA})
    lost = PartitionQuarantined("a block is missing", details={"earliest": STARTS[2]})
    read.fails = lambda node, at: lost if at < STARTS[2] else None
    found = check_split(split(), read)
    assert told(found.findings) == [("missing", "b1/n1", 0, STARTS[2])]
    assert sum(part.totals.batches for part in found.parts) == 6
    read.fails = lambda node, at: PartitionQuarantined("lost") if at >= STARTS[6] else None
    assert told(check_split(split(), read).findings) == [("missing", "b1/n1", STARTS[6], len(DATA))]


def test_a_log_that_ends_too_early_misses_its_end() -> None:
    found = check_split(split(), Nodes({None: DATA[: STARTS[6]]}))
    assert told(found.findings) == [("missing", "b1/n1", STARTS[6], len(DATA))]


def test_what_retention_deletes_meanwhile_is_no_finding() -> None:
    read = Nodes({None: DATA})
    gone = OffsetOutOfRange("deleted", details={"earliest": STARTS[3]})
    read.fails = lambda node, at: gone if at < STARTS[3] else None
    found = check_split(split(), read)
    assert (found.findings, found.deleted) == ([], STARTS[3])
    assert sum(part.totals.batches for part in found.parts) == 5


@pytest.mark.parametrize("earliest", [len(DATA), len(DATA) + 4_096])
def test_a_split_that_retention_deletes_whole_is_no_finding(earliest: int) -> None:
    """Retention deletes whole blocks, and so is a split: the log often begins where it ends."""
    read = Nodes({None: DATA, "host:2": DATA})
    gone = OffsetOutOfRange("deleted", details={"earliest": earliest})
    read.fails = lambda node, at: gone if at >= STARTS[2] else None
    found = check_split(split(copies=(N2,)), read)
    assert (found.findings, found.deleted) == ([], len(DATA) - STARTS[2])


def test_what_retention_deletes_before_it_is_compared_is_no_finding() -> None:
    read = Nodes({None: DATA, "host:2": DATA}, step=1 << 20)
    gone = OffsetOutOfRange("deleted", details={"earliest": len(DATA)})
    reads: list[str | None] = []

    def fails(node: str | None, at: int) -> VqError | None:
        reads.append(node)
        return gone if node is not None or reads.count(None) > 1 else None

    read.fails = fails
    assert check_split(split(copies=(N2,)), read).findings == []
    read.fails = lambda node, at: gone if node is not None else None
    assert told(check_split(split(copies=(N2,)), read).findings) == [
        ("unreachable", "b1/n2", 0, len(DATA))
    ]


def test_a_log_that_ends_before_the_split_misses_it() -> None:
    read = Nodes({None: DATA})
    ends = OffsetOutOfRange("beyond", details={"earliest": 0, "latest": STARTS[4]})
    read.fails = lambda node, at: ends if at >= STARTS[4] else None
    assert told(check_split(split(), read).findings) == [("missing", "b1/n1", STARTS[4], len(DATA))]


def test_a_topic_that_was_deleted_ends_the_audit() -> None:
    read = Nodes({None: DATA})
    read.fails = lambda node, at: UnknownTopic("gone")
    with pytest.raises(UnknownTopic):
        check_split(split(), read)
