"""Splits cover what a partition should have, and what several of them show is told once."""

from types import SimpleNamespace
from typing import Any, cast

import google_crc32c
import pytest

from pyspark_vq.reports import audit, audit_splits
from pyspark_vq.reports.audit_joins import join_splits, judged, without_repeats
from pyspark_vq.reports.audit_splits import Layout, splits_of
from pyspark_vq.reports.contents import Checked, Copy, Finding, Split
from vq import Address, PartitionPlacement, Span, StatusResult
from vq.admin import (
    BrokerReport,
    ContentCheck,
    GroupView,
    HeldBlock,
    HeldPartition,
    NodeInfo,
    PartitionEnds,
)
from vq.errors import PermissionRefused
from vq.operations.messages import contents as admin_contents
from vq.store.records.format import CONTROL_BYTES, BatchHeader, encode_control
from vq.store.records.record import encode_record


def held(node: str, *blocks: tuple[int, int], leads: bool = True, **more: Any) -> HeldPartition:
    group, name = node.split("/")
    given = {"state": "rw", "reason": "", "is_whole": True, **more}
    return HeldPartition(
        group=group,
        node=name,
        leads=leads,
        topic="t",
        partition=0,
        topic_id="1",
        directory="/d",
        blocks=tuple(HeldBlock(a, b, 1, 2, 3, False, None, False) for a, b in blocks),
        **given,
    )


def broker(
    node: str, role: str = "master", *, in_sync: bool = True, error: str = ""
) -> BrokerReport:
    group, name = node.split("/")
    address = Address(f"host-{name}", 1)
    status = None if error else StatusResult(address, group, name, "1", 1.0, 1, {})
    return BrokerReport(
        GroupView(group),
        NodeInfo(group, name, address),
        1,
        status,
        error,
        name=name,
        role=role,
        in_sync=in_sync,
    )


def placed(*spans: tuple[str, int, int | None]) -> list[PartitionPlacement]:
    return [PartitionPlacement("t", 0, tuple(Span(*span) for span in spans))]


def layout(
    placements: list[PartitionPlacement],
    some: list[HeldPartition],
    ends: PartitionEnds | None,
    brokers: list[BrokerReport],
    **more: Any,
) -> Layout:
    given: dict[str, Any] = {"copies": True, "silent": {}, **more}
    silent = given.pop("silent")
    return splits_of(placements, some, silent, {0: ends}, brokers, **given)


def test_splits_are_runs_of_blocks_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is committed, with the copies in sync; a node that lags is not compared."""
    monkeypatch.setattr(audit_splits, "SPLIT_BYTES", 20)
    found = layout(
        placed(("b1", 0, None)),
        [held("b1/n1", (0, 10), (10, 25), (25, 30), (30, 60)), held("b1/n2", (0, 60), leads=False)],
        PartitionEnds(0, 50, 60),
        [broker("b1/n1"), broker("b1/n2", "slave"), broker("b1/n3", "slave", in_sync=False)],
    )
    assert [(each.start, each.end, each.blocks) for each in found.splits] == [
        (0, 25, (10,)),
        (25, 50, (30,)),
    ]
    assert {each.copies for each in found.splits} == {(Copy("b1/n2", "host-n2:1"),)}
    assert found.findings == []
    assert dict(found.partitions) == {("t", 0): (0, 50)}


def test_where_no_block_is_there_is_a_split_too() -> None:
    """Whoever reads there is told why; the log that says so is not told twice."""
    found = layout(
        placed(("b1", 0, None)),
        [held("b1/n1", (10, 20), (30, 40), is_whole=False, state="quarantined", reason="lost")],
        PartitionEnds(0, 40, 40),
        [broker("b1/n1")],
    )
    assert [(each.start, each.end) for each in found.splits] == [
        (0, 10),
        (10, 20),
        (20, 30),
        (30, 40),
    ]
    assert found.findings == []


def test_a_log_that_is_not_whole_is_told_with_its_reason() -> None:
    found = layout(
        placed(("b1", 0, None)),
        [held("b1/n1", (0, 10), is_whole=False, state="quarantined", reason="a block is lost")],
        PartitionEnds(0, 10, 10),
        [broker("b1/n1")],
    )
    [finding] = found.findings
    assert (finding.kind, finding.start, finding.end) == ("missing", 10, None)
    assert finding.detail == "quarantined: a block is lost"


def test_ranges_of_a_partition_that_moved_are_read_where_they_are() -> None:
    """What retention has deleted of them is not; an empty range has no split."""
    found = layout(
        placed(("b1", 0, 100), ("b3", 100, 100), ("b2", 100, None)),
        [held("b1/n1", (40, 100)), held("b2/n1", (100, 130))],
        PartitionEnds(40, 130, 130),
        [broker("b1/n1"), broker("b2/n1")],
    )
    assert [(each.group, each.start, each.end) for each in found.splits] == [
        ("b1", 40, 100),
        ("b2", 100, 130),
    ]


def test_a_topic_that_is_closed_for_reading_is_unknown_for_a_cause_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its brokers answer: they refuse."""

    def refuse(_: str) -> None:
        raise PermissionRefused("topic t is not readable")

    admin = SimpleNamespace(
        placements=lambda _: [placed(("b1", 0, None))],
        bounds=refuse,
        list_topics=lambda **_: [SimpleNamespace(name="t")],
        cluster_status=lambda: SimpleNamespace(brokers=[broker("b1/n1")]),
        list_blocks=lambda _: ([held("b1/n1", (0, 10))], []),
    )
    monkeypatch.setattr(audit, "factory_of", lambda _: SimpleNamespace(admin=admin))
    found = audit.read_layout(audit.Wanted(connect=cast("Any", None), now_s=0))
    [finding] = found.findings
    assert (finding.kind, finding.partition, found.splits) == ("not_readable", 0, [])
    assert "topic t is not readable" in finding.detail
    joined = join_splits([], found)
    [row] = judged(joined.partitions, found.findings)
    assert (row["verdict"], row["messages"]) == ("unknown", None)


def test_silent_nodes_are_unknown_and_never_sound() -> None:
    """A group without an answer; and a copy in sync that is not compared."""
    silent = {("b1", "n1"): "Unreachable: no answer"}
    found = layout(placed(("b1", 0, None)), [], None, [broker("b1/n1")], silent=silent)
    [finding] = found.findings
    assert (finding.kind, finding.end, found.splits) == ("unreachable", None, [])
    assert finding.detail == "b1/n1: Unreachable: no answer"
    [row] = join_splits([], found).partitions
    assert (row["verdict"], row["start"], row["end"]) == ("unknown", None, None)
    assert (row["bytes"], row["messages"], row["batches"]) == (None, None, None)  # and not 0

    silent = {("b1", "n2"): "TimedOut: no answer"}
    found = layout(
        placed(("b1", 0, None)),
        [held("b1/n1", (0, 10))],
        PartitionEnds(0, 10, 10),
        [broker("b1/n1"), broker("b1/n2", "slave")],
        silent=silent,
    )
    assert [(each.kind, each.node) for each in found.findings] == [("unreachable", "b1/n2")]
    assert [each.copies for each in found.splits] == [()]


# Between splits -------------------------------------------------------------------------------
def batch(offset: int, **header: int) -> bytes:
    body = encode_record(1, b"x")
    fields = {"append_time_ms": 1_000, "producer_id": 7, **header}
    made = BatchHeader(
        start_offset=offset, byte_length=CONTROL_BYTES + len(body), record_count=1, **fields
    )
    return encode_control(made, google_crc32c.value(body)) + body


SIZE = len(batch(0))


def checked(number: int, data: bytes, group: str = "b1") -> Checked:
    """Of the split with this number, each of one batch."""
    start = number * SIZE
    found = Checked(Split("t", 0, group, f"{group}/n1", start, start + SIZE))
    check = ContentCheck(start)
    check.feed(data)
    check.finish()
    found.parts.append(check)
    found.findings += [
        Finding("t", 0, each.start, each.end, str(each.kind), "b1/n1", each.detail)
        for each in check.faults
    ]
    return found


WHOLE = Layout(("t",), {("t", 0): (0, 2 * SIZE)}, [])


@pytest.mark.parametrize(
    ("second", "kinds"),
    [
        ({"producer_sequence": 5}, []),
        ({"producer_sequence": 7}, ["sequence"]),
        ({"producer_sequence": 4}, ["sequence"]),
        ({"producer_sequence": 5, "append_time_ms": 999}, ["time"]),
        ({"producer_sequence": 5, "master_epoch": 2}, ["epoch"]),
    ],
)
def test_what_goes_on_in_the_next_split_is_compared(
    second: dict[str, int], kinds: list[str]
) -> None:
    """Whatever the order in which the splits come."""
    first = checked(0, batch(0, producer_sequence=4, master_epoch=3))
    after = checked(1, batch(SIZE, **{"master_epoch": 3, **second}))
    for order in ([first, after], [after, first]):
        joined = join_splits(order, WHOLE)
        assert [each.kind for each in joined.findings] == kinds
        [row] = joined.partitions
        assert row["verdict"] == ("bad" if kinds else "sound")
        assert (row["batches"], row["messages"], row["bytes"]) == (2, 2, 2 * SIZE)


def test_nothing_is_concluded_across_damage_or_a_gap() -> None:
    """The lost batches may explain the missing sequences."""
    broken = bytearray(batch(SIZE, producer_sequence=5))
    broken[100] ^= 1
    three = [
        checked(0, batch(0, producer_sequence=4)),
        checked(1, bytes(broken)),
        checked(2, batch(2 * SIZE, producer_sequence=9)),
    ]
    assert [each.kind for each in join_splits(three, WHOLE).findings] == ["damaged"]
    assert join_splits([three[0], three[2]], WHOLE).findings == []


def test_nothing_is_concluded_of_a_producer_that_was_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second split has one batch of 8, and then one of 7, which is one producer too many."""
    monkeypatch.setattr(admin_contents, "PRODUCERS_MAX", 1)
    first = checked(0, batch(0, producer_sequence=0))
    second = checked(1, batch(SIZE, producer_id=8))
    second.parts[0].feed(batch(2 * SIZE, producer_sequence=1))
    third = checked(3, batch(3 * SIZE, producer_sequence=2))
    empty = Layout(("t",), {}, [])
    assert join_splits([first, second, third], empty).findings == []


def test_findings_that_are_left_out_are_counted_by_their_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_contents, "FAULTS_MAX", 1)
    made = checked(0, batch(0, append_time_ms=9))
    for number in (1, 2, 3):
        made.parts[0].feed(
            batch(number * SIZE, append_time_ms=9 - number, producer_sequence=number)
        )
    assert join_splits([made], Layout(("t",), {}, [])).left_out == {"time": 2}


def test_the_clock_of_another_group_may_be_behind() -> None:
    """Of a partition that moved; its producers go on all the same."""
    first = checked(0, batch(0, producer_sequence=4, master_epoch=9))
    second = batch(SIZE, producer_sequence=5, append_time_ms=1, master_epoch=1)
    assert join_splits([first, checked(1, second, "b2")], WHOLE).findings == []
    lost = batch(SIZE, producer_sequence=6)
    found = join_splits([first, checked(1, lost, "b2")], WHOLE).findings
    assert [each.kind for each in found] == ["sequence"]


def test_a_damaged_archive_is_one_finding_with_the_bytes_that_cannot_be_read() -> None:
    archive = Finding("t", 0, 0, 100, "archive", "b1/n1", "a chunk fails its CRC")
    inside = Finding("t", 0, 20, 100, "unreadable", "b1/n1", "EIO")
    beside = Finding("t", 0, 20, 120, "unreadable", "b1/n1", "EIO")
    other = Finding("t", 0, 20, 100, "damaged", "b1/n2", "CRC")
    assert without_repeats([inside, archive, other, other]) == [archive, other]
    assert without_repeats([beside, archive]) == [archive, beside]
