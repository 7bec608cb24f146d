"""What is wrong with stored bytes is found, told once, and nothing else is."""

import random

import google_crc32c
import pytest

from vq.errors import InvalidArgument
from vq.operations.messages import contents
from vq.operations.messages.contents import ContentCheck, FaultKind, sequence_fault
from vq.store.records.format import (
    CHECKSUM_CRC32C,
    CONTROL_BYTES,
    RECORD_HEADER_BYTES,
    BatchHeader,
    encode_control,
)
from vq.store.records.record import encode_record


def batch(
    offset: int,
    ids: list[int],
    *,
    time_ms: int = 1_000,
    epoch: int = 1,
    stamp: tuple[int, int, int] = (0, 0, 0),
    count: int | None = None,
    records: list[bytes] | None = None,
) -> bytes:
    """A batch of messages of ten bytes each."""
    records = records or [encode_record(each, b"x" * 10) for each in ids]
    body = b"".join(records)
    header = BatchHeader(
        start_offset=offset,
        byte_length=CONTROL_BYTES + len(body),
        record_count=len(records) if count is None else count,
        append_time_ms=time_ms,
        master_epoch=epoch,
        producer_id=stamp[0],
        producer_epoch=stamp[1],
        producer_sequence=stamp[2],
    )
    return encode_control(header, google_crc32c.value(body)) + body


def log(count: int = 6, start: int = 0) -> tuple[bytes, list[int]]:
    """Batches of one producer back to back, and where each starts."""
    data, starts = b"", []
    for number in range(count):
        starts.append(start + len(data))
        ids = [10 * number + each for each in range(1, 4)]
        data += batch(starts[-1], ids, time_ms=1_000 + number, stamp=(7, 0, number))
    return data, starts


def checked(data: bytes, start: int = 0, step: int = 0) -> ContentCheck:
    check = ContentCheck(start)
    for at in range(0, len(data), step or max(1, len(data))):
        check.feed(data[at : at + (step or len(data))])
    check.finish()
    return check


@pytest.mark.parametrize("step", [0, 1, 7, 88, 1000])
def test_intact_bytes_have_no_fault(step: int) -> None:
    """However they are cut; everything is counted."""
    data, starts = log(start=500)
    check = checked(data, 500, step)
    assert (check.faults, check.fault_count, check.damaged) == ([], 0, False)
    assert (check.totals.batches, check.totals.messages, check.totals.intact_bytes) == (
        6,
        18,
        len(data),
    )
    assert check.position == 500 + len(data)
    assert check.totals.first is not None
    assert check.totals.last is not None
    assert (check.totals.first.append_ms, check.totals.last.append_ms) == (1_000, 1_005)
    assert check.totals.sizes[(10).bit_length()] == sum(check.totals.sizes) == 18
    offsets, ids = check.take_messages()
    assert list(ids) == [10 * number + each for number in range(6) for each in range(1, 4)]
    assert offsets[0] == starts[0] + CONTROL_BYTES
    assert offsets[1] - offsets[0] == RECORD_HEADER_BYTES + 10
    assert len(check.take_messages()[0]) == 0
    assert [(each.producer_id, each.first, each.last) for each in check.producers] == [
        (7, (0, 0), (0, 5))
    ]
    assert check.totals.id_falls == 0


@pytest.mark.parametrize("step", [0, 1, 50])
def test_one_flipped_byte_is_one_damaged_batch(step: int) -> None:
    """Any byte of it: the batches around it are intact, and no missing sequence is told."""
    data, starts = log()
    for at in range(starts[2], starts[3]):
        broken = bytearray(data)
        broken[at] ^= 0x20
        check = checked(bytes(broken), step=step)
        assert [(each.start, each.end, each.kind) for each in check.faults] == [
            (starts[2], starts[3], FaultKind.DAMAGED)
        ], at
        assert (check.totals.batches, check.totals.messages, check.damaged) == (5, 15, True)


def test_neighbours_that_are_damaged_are_one_fault() -> None:
    data, starts = log()
    broken = bytearray(data)
    broken[starts[2] + CONTROL_BYTES + 3] ^= 1
    broken[starts[3] + 30] ^= 1
    [fault] = checked(bytes(broken)).faults
    assert (fault.start, fault.end) == (starts[2], starts[4])


def test_a_lost_piece_is_damage_up_to_the_next_batch() -> None:
    """Bytes that are zeros, or that lie in another place."""
    data, starts = log()
    zeros = data[: starts[1]] + bytes(starts[4] - starts[1]) + data[starts[4] :]
    [fault] = checked(zeros).faults
    assert (fault.start, fault.end) == (starts[1], starts[4])
    moved = data[: starts[1]] + data[starts[2] : starts[3]] + data[starts[2] :]
    [fault] = checked(moved).faults
    assert (fault.start, fault.end) == (starts[1], starts[2])
    assert "is that of offset" in fault.detail


def test_a_range_that_ends_in_a_batch_says_so() -> None:
    data, starts = log(2)
    for cut in (1, CONTROL_BYTES + 1):
        [fault] = checked(data[: starts[1] + cut]).faults
        assert (fault.start, fault.end) == (starts[1], starts[1] + cut)
    check = ContentCheck(0)
    check.feed(data[: starts[1] + 5])
    assert check.leave() == starts[1]
    assert check.fault_count == 0


def test_bytes_that_cannot_be_had_are_passed() -> None:
    """From the batch in which they begin to the next intact one."""
    data, starts = log()
    check = ContentCheck(0)
    check.feed(data[: starts[1] + 9])
    check.skip(starts[2] + 11, "the disk is gone")
    check.feed(data[starts[2] + 11 :])
    check.finish()
    [fault] = check.faults
    assert tuple(fault) == (starts[1], starts[3], FaultKind.DAMAGED, "the disk is gone")
    with pytest.raises(InvalidArgument):
        check.skip(3, "")


def test_a_record_that_never_was_sound_is_told_inside_its_batch() -> None:
    """The batch is as the broker wrote it, and the producer sent nonsense."""
    bad = bytearray(encode_record(2, b"x" * 10))
    bad[5] ^= 1  # of its checksum
    good = encode_record(1, b"y", checksum=CHECKSUM_CRC32C)
    check = checked(batch(0, [], records=[good, bytes(bad), good]))
    [fault] = check.faults
    assert fault.kind is FaultKind.RECORD
    assert fault.start == CONTROL_BYTES + len(good)
    assert (check.totals.messages, check.damaged) == (3, False)


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_an_id_of_64_bits_is_told_and_its_message_counted(number: int) -> None:
    """Not among the ids: Spark's numbers end below it."""
    odd = encode_record(number, b"x")
    check = checked(batch(0, [], records=[odd, encode_record(2**63 - 1, b"y")]))
    [fault] = check.faults
    assert (fault.start, fault.end) == (CONTROL_BYTES, CONTROL_BYTES + len(odd))
    assert fault.kind is FaultKind.RECORD
    assert f"has the id {number}" in fault.detail
    assert check.totals.messages == 2
    assert list(check.take_messages()[1]) == [2**63 - 1]


def test_a_batch_with_another_number_of_records_is_told() -> None:
    [fault] = checked(batch(0, [1, 2], count=3)).faults
    assert fault.kind is FaultKind.RECORD
    assert "announces 3 records" in fault.detail


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        ({"epoch": 1}, FaultKind.EPOCH),
        ({"time_ms": 999}, FaultKind.TIME),
        ({"stamp": (7, 0, 4)}, FaultKind.SEQUENCE),
        ({"stamp": (7, 0, 2)}, FaultKind.SEQUENCE),
    ],
)
def test_what_never_falls_is_told_where_it_does(second: dict[str, object], kind: FaultKind) -> None:
    first = batch(0, [1], time_ms=1_000, epoch=2, stamp=(7, 0, 2))
    common = {"time_ms": 1_000, "epoch": 2, "stamp": (7, 0, 3)}
    after = batch(len(first), [2], **{**common, **second})  # type: ignore[arg-type]
    [fault] = checked(first + after).faults
    assert (fault.kind, fault.start) == (kind, len(first))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ((0, 4), (0, 5), ""),
        ((0, 4), (1, 0), ""),
        ((0, 4), (3, 0), ""),
        ((0, 4), (0, 4), "stored again"),
        ((0, 4), (0, 2), "stored again, or late"),
        ((0, 4), (0, 7), "2 batches of producer 9 are missing before sequence 7"),
        ((1, 4), (0, 5), "wrote in epoch 0 after epoch 1"),
        ((0, 4), (1, 2), "begins with sequence 2"),
    ],
)
def test_batches_of_a_producer_follow_one_another(
    before: tuple[int, int], after: tuple[int, int], said: str
) -> None:
    found = sequence_fault(9, before, after)
    assert (said in found) if said else found == ""


def test_ids_that_fall_are_counted_and_no_fault() -> None:
    check = checked(batch(0, [5, 3, 4]))
    assert (check.fault_count, check.totals.id_falls) == (0, 1)


def test_many_faults_are_counted_and_few_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "FAULTS_MAX", 2)
    data, at = b"", 0
    for number in range(6):
        data += batch(at, [number], time_ms=1_000 - number)
        at = len(data)
    check = checked(data)
    assert (len(check.faults), check.fault_count) == (2, 5)


def test_random_damage_never_hides_a_batch_that_is_intact() -> None:
    """Every batch with a changed byte is told; steps do not matter."""
    rng = random.Random(20261126)
    data, starts = log(12)
    ends = [*starts[1:], len(data)]
    for _ in range(60):
        broken = bytearray(data)
        hit = sorted(rng.sample(range(len(data)), rng.randint(1, 4)))
        for at in hit:
            broken[at] ^= 1 << rng.randrange(8)
        bad = {number for number in range(12) for at in hit if starts[number] <= at < ends[number]}
        for step in (0, rng.randint(1, 300)):
            check = checked(bytes(broken), step=step)
            assert check.totals.batches == 12 - len(bad), hit
            told = {
                number
                for number in range(12)
                for fault in check.faults
                if fault.start < ends[number] and starts[number] < fault.end
            }
            assert told == bad
