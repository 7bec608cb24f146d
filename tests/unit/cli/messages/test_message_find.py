"""What ``vq message find`` tells of a search, for people and for programs."""

import click
import pytest
from support.json_schema import wrong

from vq.cli.messages.message_find import PlaceParam, _document, _report
from vq.cli.schemas import schemas
from vq.model import Message
from vq.operations.messages.searched import FoundMessages, GapKind, SearchedPartition, SearchGap

MESSAGE = Message("t", b"x", None, "k", None, 0, 88, 120, 5 << 23, 1_760_000_000_000)
DELETED = SearchGap(0, 88, GapKind.DELETED, "its messages were deleted")
DAMAGED = SearchGap(300, 400, GapKind.DAMAGED, "its records fail their CRC (/data/t/0/0.block)")
AWAY = SearchGap(500, None, GapKind.UNREACHABLE, "NotMaster: group b2 has no master now")


def searched(partition: int, *gaps: SearchGap, done: bool = True) -> SearchedPartition:
    end = None if AWAY in gaps else 900
    return SearchedPartition(
        partition, 0, end, 900 if done else 400, done, 700, 200, 1_760_000_000_000, None, gaps
    )


def found(*parts: SearchedPartition, stopped: str | None = None) -> FoundMessages:
    return FoundMessages((MESSAGE,), parts, 1_000, None, stopped)


def test_people_read_what_was_searched_and_what_was_not() -> None:
    lines = _report("t", found(searched(0), searched(1, DELETED, DAMAGED, AWAY)), is_by_id=False)
    assert lines[0] == "1 message found, stored from 1970-01-01T00:00:01.000Z"
    assert lines[1].startswith(
        "searched t-0: offsets 0 to 900, 700 bytes read, 200 ruled out by key indexes, stored "
    )
    assert lines[3:] == [
        "NOT searched, deleted: t-1, offsets 0 to 88: its messages were deleted",
        "NOT searched, damaged: t-1, offsets 300 to 400: its records fail their CRC "
        "(/data/t/0/0.block)",
        "NOT searched, unreachable: t-1, offsets 500 to the end: NotMaster: group b2 has no master "
        "now",
    ]


def test_many_partitions_without_anything_special_are_told_together() -> None:
    parts = [*(searched(number) for number in range(20)), searched(20, DAMAGED)]
    lines = _report("t", found(*parts), is_by_id=False)
    assert lines[1] == (
        "searched 20 partitions of t as a whole: 14000 bytes read, 4000 ruled out by key indexes"
    )
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("stopped", "why"),
    [
        ("limit", "enough messages were found"),
        ("bytes", "enough bytes were searched"),
        ("timeout", "the time was up"),
    ],
)
def test_who_was_stopped_reads_how_to_go_on(stopped: str, why: str) -> None:
    parts = [searched(1, done=False), searched(0, done=False), searched(2)]
    lines = _report("t", found(*parts, stopped=stopped), is_by_id=True)
    assert lines[-1] == f"stopped, as {why}; to go on, add: --go-on 0:400 --go-on 1:400"


def test_an_id_that_was_not_found_may_be_in_another_range() -> None:
    nothing = FoundMessages((), (searched(0),), 1_000, 2_000, None)
    assert "--since and --until" in _report("t", nothing, is_by_id=True)[-1]
    assert "--since" not in _report("t", nothing, is_by_id=False)[-1]


@pytest.mark.parametrize("gaps", [(), (DELETED,), (DAMAGED, AWAY)])
def test_programs_read_the_same(gaps: tuple[SearchGap, ...]) -> None:
    document = _document(found(searched(0, *gaps)))
    assert not list(wrong(document, schemas()["message find"]))
    assert document["complete"] is (AWAY not in gaps)
    assert [each["kind"] for each in document["searched"][0]["gaps"]] == [
        gap.kind.value for gap in gaps
    ]
    assert document["messages"][0]["stored_s"] == 1_760_000_000.0


def test_a_place_is_a_partition_and_an_offset() -> None:
    assert PlaceParam().convert("3:134217728", None, None) == (3, 134_217_728)
    for text in ("3", "3:", ":5", "-1:5", "3:x", "33333:1", "3:1:1"):
        with pytest.raises(click.BadParameter):
            PlaceParam().convert(text, None, None)
