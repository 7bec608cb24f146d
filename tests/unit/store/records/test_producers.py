"""Who wrote which batches last."""

import random
import struct

import google_crc32c
import pytest

from vq.errors import (
    CorruptData,
    ProducerFenced,
    SequenceGap,
    SequenceStale,
    SequenceTaken,
    UnknownProducer,
)
from vq.limits import PRODUCERS_PER_PARTITION_MAX
from vq.model import ProducerStamp
from vq.store.records.format import BatchHeader, records_mark
from vq.store.records.producers import ProducerTable, Records


def stamp(sequence: int, *, epoch: int = 0, producer: int = 7) -> ProducerStamp:
    return ProducerStamp(producer, epoch, sequence)


def table(batches: int = 8) -> ProducerTable:
    made = ProducerTable()
    for sequence in range(batches):
        made.record(stamp(sequence), 1000 * sequence)
    return made


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [
        (stamp(8), None),  # next in line
        (stamp(7), 7000),  # the last one again
        (stamp(3), 3000),  # the oldest remembered
        (stamp(2), SequenceStale),
        (stamp(0), SequenceStale),
        (stamp(9), SequenceGap),
        (stamp(0, epoch=1), None),  # the producer started anew
        (stamp(1, epoch=1), SequenceGap),
        (stamp(0, producer=8), None),  # never seen
        (stamp(1, producer=8), UnknownProducer),
    ],
)
def test_outcomes(asked: ProducerStamp, outcome: object) -> None:
    """After sequences 0 to 7 of producer 7 in epoch 0."""
    if isinstance(outcome, type):
        with pytest.raises(outcome):
            table().check(asked)
    else:
        assert table().check(asked) == outcome


def test_a_newer_epoch_fences_the_older() -> None:
    """Once epoch 1 has written, epoch 0 is refused whatever it sends."""
    made = table()
    made.record(stamp(0, epoch=1), 9000)
    for sequence in (0, 7, 8):
        with pytest.raises(ProducerFenced):
            made.check(stamp(sequence))
    assert made.check(stamp(0, epoch=1)) == 9000


def test_the_table_is_bounded_and_forgets_the_least_recently_used() -> None:
    """One more than the bound: the one idle for longest is gone, one used since is not."""
    made = ProducerTable()
    for producer in range(PRODUCERS_PER_PARTITION_MAX):
        made.record(stamp(0, producer=producer), producer)
    made.record(stamp(1, producer=0), 77)
    made.record(stamp(0, producer=10**9), 78)
    assert len(made) == PRODUCERS_PER_PARTITION_MAX
    assert made.check(stamp(1, producer=0)) == 77
    with pytest.raises(UnknownProducer):
        made.check(stamp(1, producer=1))


def first_again(made: ProducerTable, producer: int, *, epoch: int = 0) -> int | None:
    return made.check(stamp(0, producer=producer, epoch=epoch), resend=True)


def test_a_first_batch_sent_again_is_new_only_where_no_producer_was_forgotten() -> None:
    """A forgotten producer's first batch looks like a new producer's; only the latter is new."""
    made = ProducerTable()
    for producer in range(PRODUCERS_PER_PARTITION_MAX):
        made.record(stamp(0, producer=producer), producer)
    assert first_again(made, 0) == 0
    assert first_again(made, 10**9) is None, "everybody who ever wrote is remembered"
    made.record(stamp(0, producer=10**9), 78)
    for back in (made, made.copy()):
        for epoch in (0, 1):
            with pytest.raises(SequenceStale, match="not remembered"):
                first_again(back, 0, epoch=epoch)
        assert back.check(stamp(0, producer=0)) is None, "sent once, it is no resend"
        assert first_again(back, 10**9) == 78
        assert first_again(back, 10**9, epoch=1) is None, "fenced and known: it was not stored"


def test_tables_of_version_1_are_read() -> None:
    """A full one may have forgotten producers; a smaller one cannot have."""

    def version_1(producers: int) -> bytes:
        entry = struct.Struct(">QHBQQ")
        entries = b"".join(entry.pack(each, 0, 1, 0, each) for each in range(producers))
        body = struct.pack(">BI", 1, producers) + entries
        return body + google_crc32c.value(body).to_bytes(4, "big")

    small = ProducerTable.from_bytes(version_1(2))
    assert (len(small), small.forgot, small.check(stamp(0, producer=1))) == (2, False, 1)
    assert ProducerTable.from_bytes(version_1(PRODUCERS_PER_PARTITION_MAX)).forgot
    with pytest.raises(CorruptData, match="version 1 to 3"):
        ProducerTable.from_bytes(b"\4" + version_1(2)[1:])


def test_bytes_come_back_in_order() -> None:
    """Content and order of use survive; no bytes are an empty table."""
    made = table()
    made.record(stamp(0, producer=2**64 - 1, epoch=65535), 5)
    data = made.to_bytes()
    back = ProducerTable.from_bytes(data)
    assert back.to_bytes() == data == made.copy().to_bytes()
    assert back.check(stamp(3)) == 3000
    assert len(ProducerTable.from_bytes(b"")) == 0


def test_a_batch_out_of_line_restarts_the_memory() -> None:
    """Rebuilt from a log whose start was dropped, only what is there is remembered."""
    made = ProducerTable()
    made.record(stamp(4), 400)
    made.record(stamp(5), 500)
    assert made.check(stamp(4)) == 400
    with pytest.raises(SequenceStale):
        made.check(stamp(3))


def test_damage_is_noticed() -> None:
    """Any cut, any flipped bit, anything appended."""
    data = table().to_bytes()
    for size in range(1, len(data)):
        with pytest.raises(CorruptData):
            ProducerTable.from_bytes(data[:size])
    for at in range(len(data)):
        with pytest.raises(CorruptData):
            ProducerTable.from_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_a_table_of_before_an_offset_knows_nothing_behind_it() -> None:
    """Batches at 0, 1000 … 7000; the last five are remembered."""
    made = table().before(5000)
    assert made.check(stamp(4)) == 4000
    assert made.check(stamp(5)) is None
    assert table().check(stamp(5)) == 5000


def test_a_repeated_batch_is_compared_with_the_one_remembered() -> None:
    """Number of records and their mark count, wherever the table came from."""
    made = ProducerTable()
    for sequence in range(6):
        made.record(stamp(sequence), 1000 * sequence, Records(sequence, 100 + sequence))
    for back in (made, made.copy(), made.before(6000)):
        back.compare(stamp(1), Records(1, 101))
        back.compare(stamp(5), Records(5, 105))
        for other in (Records(5, 104), Records(4, 105), Records(0, 0)):
            with pytest.raises(SequenceTaken, match="another batch has sequence 5 of producer 7"):
                back.compare(stamp(5), other)
    assert [records for _, _, records in made.batches()] == [
        Records(each, 100 + each) for each in range(1, 6)
    ]


def test_an_empty_batch_is_not_taken_for_any_other() -> None:
    """It begins an epoch; anybody may have sent it."""
    made = ProducerTable()
    made.record(stamp(0), 0, Records(0, records_mark(0)))
    made.compare(stamp(0), Records(0, records_mark(0)))
    with pytest.raises(SequenceTaken):
        made.compare(stamp(0), Records(1, records_mark(5)))


def test_batches_of_older_tables_are_taken_for_equal() -> None:
    """Versions 1 and 2 did not tell what the batches hold; that is kept, through all copies."""
    entry = struct.pack(">QHBQQ", 7, 0, 1, 0, 88)
    for head in (struct.pack(">BI", 1, 1), struct.pack(">B?I", 2, True, 1)):
        body = head + entry
        back = ProducerTable.from_bytes(body + google_crc32c.value(body).to_bytes(4, "big"))
        assert back.forgot == (head[0] == 2)
        for each in (back, back.copy().before(89)):
            assert each.check(stamp(0)) == 88
            each.compare(stamp(0), Records(1, 5))


@pytest.mark.parametrize("seed", range(20))
def test_many_batches_at_once_are_remembered_as_one_after_the_other(seed: int) -> None:
    """Whatever the epochs, gaps and repetitions; a batch without a producer is nobody's."""
    chance = random.Random(seed)
    batches = []
    sequences: dict[int, int] = {}
    for number in range(200):
        producer = chance.choice((0, 1, 2, 3, 3, 3))
        sequence = sequences.get(producer, -1) + chance.choice((1, 1, 1, 1, 3))
        epoch = number // 70 if producer == 2 else 0
        sequences[producer] = sequence
        batches.append(
            BatchHeader(
                1000 * number,
                900,
                number,
                5000 + number,
                producer_id=producer,
                producer_epoch=epoch,
                producer_sequence=sequence,
                crc=chance.getrandbits(32),
            )
        )
    one_by_one, at_once = ProducerTable(), ProducerTable()
    for each in batches:
        if each.producer_id:
            records = Records(each.record_count, each.records_mark)
            one_by_one.record(each.stamp, each.start_offset, records)
    cut = chance.randrange(200)
    at_once.record_all(batches[:cut])
    at_once.record_all(batches[cut:])
    assert at_once.to_bytes() == one_by_one.to_bytes()
    assert len(at_once) == 3
