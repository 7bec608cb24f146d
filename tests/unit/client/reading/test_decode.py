"""From bytes to messages: as the reference decodes them, however the bytes are cut."""

import itertools
import tracemalloc
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from vq import limits
from vq.client.reading import decode
from vq.client.reading.chunk import NO_REST, Chunk, Rest
from vq.client.reading.decode import ChunkDecoder, Decoder, decode_messages, to_message
from vq.client.reading.partition_reader import records_decoder
from vq.errors import CorruptData, FilterFailed
from vq.message_filter import Filter
from vq.model import Message, TopicPartition
from vq.store.records import codec as codecs
from vq.store.records.compression import compress
from vq.store.records.format import (
    CHECKSUM_CRC32C,
    CHECKSUM_HEADER,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    COMPRESSIONS,
    CONTROL_BYTES,
    CONTROL_PAYLOAD_BYTES,
    COVERED_HEADER,
    FLAG_CONTROL,
    FLAG_TAG,
    RECORD_HEADER_BYTES,
    BatchHeader,
    decode_control,
    encode_control,
    md5,
)
from vq.store.records.record import (
    Properties,
    boundaries,
    decode_records,
    encode_properties,
    encode_record,
)
from vq.store.records.record_filter import filter_records

WHERE = TopicPartition("t", 3)
BASE = 1_000
T = TypeVar("T")


def control(records: bytes, start: int) -> bytes:
    values = dict.fromkeys(BatchHeader._fields, 0)
    values.update(
        start_offset=start, byte_length=len(records) + 88, record_count=1, append_time_ms=start
    )
    return encode_control(BatchHeader(**values), 0)


def log_bytes() -> bytes:
    """Two batches with every kind of record in them."""
    properties = encode_properties(Properties(key="k", headers={"a": "b"}))
    first = [
        encode_record(1, b"plain"),
        encode_record(2, b"tagged", b"x"),
        encode_record(3, b"", "ü".encode()),
        encode_record(4, b"keyed", None, properties),
    ]
    second = [
        encode_record(5, b"both", b"x", properties),
        encode_record(6, compress(b"z" * 50, COMPRESSION_ZLIB), b"y", None, COMPRESSION_ZLIB),
        encode_record(7, b"crc", None, None, checksum=CHECKSUM_CRC32C),
        encode_record(8, b""),
    ]
    data = b""
    for batch in (first, second):
        records = b"".join(batch)
        data += control(records, BASE + len(data)) + records
    return data


DATA = log_bytes()


@pytest.fixture(params=[1, 1_000], ids=["alone", "joined"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that two chunks share is decoded alone, or with those behind it."""
    monkeypatch.setattr(decode, "_ALONE_PART", request.param)


def reference(data: bytes = DATA, base: int = BASE) -> list[Message]:
    messages = []
    for record in decode_records(data, base):
        before = [at for at in controls(data) if at < record.offset - base]
        time_ms = decode_control(data, before[-1]).append_time_ms if before else None
        messages.append(to_message(WHERE, record, time_ms))
    return messages


def controls(data: bytes) -> list[int]:
    """Return where the control records of batches begin."""
    found, position = [], 0
    while position + 20 <= len(data):
        length, flag = int.from_bytes(data[position : position + 4], "big"), data[position + 19]
        if flag == FLAG_CONTROL and length == CONTROL_PAYLOAD_BYTES:
            found.append(position)
        position += 20 + length
    return found


def raw(data: bytes, offset: int = BASE) -> Chunk:
    return Chunk(offset, offset + len(data), data, None)


@pytest.mark.parametrize("size", [0, 20, 67, 69, 500])
def test_control_records_of_unknown_sizes_are_skipped(size: int) -> None:
    """A later broker may write some; a damaged one is damage all the same."""
    payload = b"\x02" * size
    unknown = CHECKSUM_HEADER.pack(size, md5(payload).digest())
    unknown += COVERED_HEADER.pack(0, FLAG_CONTROL) + payload
    data = encode_record(1, b"before") + unknown + encode_record(2, b"behind", b"x")
    decoder = Decoder(WHERE)
    assert [each.content for each in decoder.decode(raw(data))] == [b"before", b"behind"]
    assert decoder.error is None
    damaged = data.replace(unknown, unknown[:4] + bytes([unknown[4] ^ 1]) + unknown[5:])
    assert [each.content for each in decoder.decode(raw(damaged))] == [b"before"]
    assert isinstance(decoder.error, CorruptData)


def test_messages_are_those_of_the_reference() -> None:
    out: list[Message] = []
    assert decode_messages(DATA, BASE, WHERE, out) == (len(DATA), False)
    assert out == reference()
    assert [message.content for message in out] == [
        b"plain", b"tagged", b"", b"keyed", b"both", b"z" * 50, b"crc", b"",
    ]  # fmt: skip
    assert [message.tag for message in out] == [None, "x", "ü", None, "x", "y", None, None]
    assert (out[4].key, out[4].headers) == ("k", {"a": "b"})
    assert {(message.topic, message.partition) for message in out} == {WHERE}
    ends = [message.next_offset for message in out]
    assert [message.offset for message in out] == [
        BASE + 88, *ends[:3], ends[3] + 88, *ends[4:-1],
    ]  # fmt: skip


@pytest.mark.usefixtures("either_way")
def test_cut_anywhere_in_two_they_are_the_same() -> None:
    expected = reference()
    for cut in range(len(DATA) + 1):
        decoder = Decoder(WHERE)
        found = decoder.decode(raw(DATA[:cut])) + decoder.decode(raw(DATA[cut:], BASE + cut))
        assert (found, decoder.error) == (expected, None), f"cut at {cut}"


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("size", [1, 2, 3, 7, 19, 20, 21, 64])
def test_cut_into_small_pieces_they_are_the_same(size: int) -> None:
    decoder = Decoder(WHERE)
    found: list[Message] = []
    for at in range(0, len(DATA), size):
        found += decoder.decode(raw(DATA[at : at + size], BASE + at))
    assert found == reference()


def test_a_record_that_is_cut_is_copied_once_until_it_is_whole() -> None:
    """For the next chunk, whose bytes it is put in front of."""
    data = encode_record(1, bytes(limits.MESSAGE_BYTES_MAX))[:-1]
    decoder = Decoder(WHERE)
    tracemalloc.start()
    assert not decoder.decode(raw(data))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1.1 * len(data)


@pytest.mark.usefixtures("either_way")
def test_messages_behind_a_record_that_two_chunks_share_are_taken_back() -> None:
    """From any of them on, the shared one included."""
    expected = reference()
    for cut in range(len(DATA) + 1):
        for index in range(len(expected)):
            decoder = Decoder(WHERE)
            before = decoder.decode(raw(DATA[:cut]))
            found = decoder.decode(raw(DATA[cut:], BASE + cut))
            if index < len(found):
                decoder.take_back(found, index)
                assert before + found[:index] + decoder.more() == expected, f"cut at {cut}"


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every byte's position, eight times, each with another bit of that byte changed."""
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            yield at, bytes(damaged)


CODECS = pytest.mark.parametrize(
    "codec", [codecs.python_decode_common, codecs.decode_common], ids=["python", "installed"]
)


@CODECS
@pytest.mark.parametrize("start", [0, 88, -1], ids=["batch", "record", "last"])
@pytest.mark.parametrize("pieces", [1, 2])
def test_every_flipped_bit_is_found(
    monkeypatch: pytest.MonkeyPatch, codec: Callable[..., int], start: int, pieces: int
) -> None:
    """Messages before the damage are delivered as they are, nothing from it on.

    In control records and in the headers of messages, too; whether the reader has the batch from
    its beginning, or the record in one piece.
    """
    monkeypatch.setattr(decode, "decode_common", codec)
    begin = boundaries(DATA, 0)[-2] if start < 0 else start
    data = DATA[begin:]
    expected = reference(data, BASE + begin)
    edges = boundaries(data, BASE + begin)
    end = BASE + len(DATA)
    cut = len(data) * (pieces - 1) // 2
    for at, damaged in flips(data):
        decoder = Decoder(WHERE)
        where = max(edge for edge in edges if edge <= BASE + begin + at)
        found = decoder.decode(raw(damaged[:cut], BASE + begin))
        if decoder.error is None:
            rest = Chunk(BASE + begin + cut, end, damaged[cut:], None, at_end=True)
            found += decoder.decode(rest)
        assert decoder.error is not None, f"flipped at {at}"
        assert decoder.error.details["offset"] == where, f"flipped at {at}"
        assert found == [message for message in expected if message.next_offset <= where]
        assert decoder.decode(raw(DATA, end)) == [], "it stands still from here on"


@CODECS
def test_every_flipped_bit_of_a_filtered_answer_is_found(
    monkeypatch: pytest.MonkeyPatch, codec: Callable[..., int]
) -> None:
    monkeypatch.setattr(decode, "decode_common", codec)
    chunk = filtered("x", "y")
    expected = Decoder(WHERE).decode(chunk)
    for at, damaged in flips(chunk.body):
        decoder = Decoder(WHERE)
        found = decoder.decode(chunk._replace(body=damaged))
        assert decoder.error is not None, f"flipped at {at}"
        assert decoder.error.details["offset"] in {chunk.offset, *(chunk.offsets or ())}
        assert found == expected[: len(found)]
        assert len(found) < len(expected)


def test_a_tag_longer_than_its_record_is_damage_though_the_checksum_fits() -> None:
    body = (50).to_bytes(4, "big") + b"short"
    covered = COVERED_HEADER.pack(9, FLAG_TAG) + body
    bad = CHECKSUM_HEADER.pack(len(body), md5(covered).digest()) + covered
    good = encode_record(1, b"before")
    decoder = Decoder(WHERE)
    assert [m.content for m in decoder.decode(raw(good + bad + good))] == [b"before"]
    assert decoder.error is not None
    with pytest.raises(CorruptData):
        decode_records(bad, 0)


def test_a_tag_that_is_no_text_is_damage() -> None:
    decoder = Decoder(WHERE)
    assert decoder.decode(raw(encode_record(1, b"x", b"\xff"))) == []
    assert decoder.error is not None


# Filtered answers ---------------------------------------------------------------------------------
def filtered(*tags: str, data: bytes = DATA) -> Chunk:
    slices, offsets, end = filter_records(memoryview(data), BASE, Filter(tags))
    return Chunk(BASE, end, b"".join(slices), offsets)


@pytest.mark.parametrize("tags", [("x",), ("x", "y"), ("ü",), ("nobody",)])
def test_picked_records_keep_their_places(tags: tuple[str, ...]) -> None:
    picked = [message for message in reference() if message.tag in tags]
    expected = [each._replace(append_time_ms=None) for each in picked]  # no control record came
    assert Decoder(WHERE).decode(filtered(*tags)) == expected


@pytest.mark.parametrize("change", [-1, 1])
def test_an_answer_with_too_few_or_too_many_offsets_is_damage(change: int) -> None:
    chunk = filtered("x", "y")
    offsets = [*(chunk.offsets or ()), 5_000][: len(chunk.offsets or ()) + change]
    decoder = Decoder(WHERE)
    found = decoder.decode(Chunk(chunk.offset, chunk.next_offset, chunk.body, offsets))
    assert found == Decoder(WHERE).decode(chunk)[: len(offsets)]
    assert decoder.error is not None


def test_a_picked_record_cut_off_at_the_end_is_damage() -> None:
    """The broker picks whole records."""
    chunk = filtered("x")
    decoder = Decoder(WHERE)
    decoder.decode(Chunk(chunk.offset, chunk.next_offset, chunk.body[:-1], chunk.offsets))
    assert decoder.error is not None


@pytest.mark.usefixtures("either_way")
def test_raw_and_filtered_answers_may_follow_one_another() -> None:
    decoder = Decoder(WHERE)
    found = [
        decoder.decode(chunk) for chunk in (raw(DATA), filtered("x"), raw(DATA, BASE + len(DATA)))
    ]
    assert [len(each) for each in found] == [8, 2, 8]
    assert list(itertools.chain(*found))[-1].offset > BASE + len(DATA)


@pytest.mark.usefixtures("either_way")
def test_what_is_kept_of_a_chunk_tells_what_it_lacks() -> None:
    """As far as can be known: without a whole header, the rest of that."""
    record = encode_record(1, bytes(500))
    for size in range(1, len(record)):
        decoder = Decoder(WHERE)
        decoder.decode(raw(record + record[:size]))
        decoder.end_chunk()
        whole = len(record) if size >= RECORD_HEADER_BYTES else RECORD_HEADER_BYTES
        assert decoder.rest == Rest(size, whole - size)
    decoder = Decoder(WHERE)
    decoder.decode(raw(record))
    assert decoder.rest == NO_REST


@pytest.mark.usefixtures("either_way")
def test_a_record_that_claims_to_go_on_behind_the_last_byte_there_is_is_damaged() -> None:
    """Or its reader would wait for ever for bytes that nobody writes."""
    good, longer = encode_record(1, b"one"), encode_record(2, b"two")
    longer = (int.from_bytes(longer[:4]) + 50).to_bytes(4) + longer[4:]
    body = good + longer
    decoder = Decoder(WHERE)
    assert len(decoder.decode(Chunk(0, len(body), body, None))) == 1
    assert decoder.error is None, "more may follow"
    more = Chunk(len(body), len(body) + 10, bytes(10), None, at_end=True)
    assert decoder.decode(more) == []
    assert decoder.error is not None
    assert decoder.error.details == {"offset": len(good)}


def read_with_damage(decoder: ChunkDecoder[T], size: int, bad: int) -> tuple[list[T], int | None]:
    """Read pieces of ``DATA``, of which a bit at ``bad`` is flipped the first time.

    Return what was found, and where it was read again.
    """
    found: list[T] = []
    again, at = None, 0
    data = DATA[:bad] + bytes([DATA[bad] ^ 1]) + DATA[bad + 1 :]
    while at < len(DATA):
        piece = data[at : at + size]
        at += len(piece)
        chunk = raw(piece, BASE + at - len(piece))
        decoder.begin(chunk._replace(at_end=at == len(DATA)))
        while decoder.has_more:
            found += decoder.more()
        if decoder.error is not None:
            assert again is None
            again = decoder.next_offset
            decoder.start_again()
            data, at = DATA, again - BASE
    return found, again


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("size", [30, 100, 1_000])
def test_after_damage_reading_goes_on_with_the_first_record_that_was_not_returned(
    size: int,
) -> None:
    """Each message comes once, with the time of its batch, wherever pieces end and damage is."""
    starts = boundaries(DATA, BASE)
    records = decode_records(DATA, BASE)
    for bad in range(len(DATA)):
        found, again = read_with_damage(Decoder(WHERE), size, bad)
        assert (found, again in starts) == (reference(), True), f"bit of byte {bad}"
        assert again is not None
        assert again <= BASE + bad
        compressed, again = read_with_damage(records_decoder(), size, bad)
        assert (compressed, again in starts) == (records, True), f"bit of byte {bad}"


# Compressed records -------------------------------------------------------------------------------
def steps_of(decoder: Decoder, chunk: Chunk) -> list[list[Message]]:
    """What each step returns."""
    steps = [decoder.decode(chunk)]
    while decoder.has_more:
        steps.append(decoder.more())
    assert decoder.more() == []
    return steps


@pytest.mark.parametrize("kind", [COMPRESSION_ZLIB, COMPRESSION_ZSTD, COMPRESSION_LZ4])
def test_records_that_expand_a_thousandfold_are_decoded_a_few_at_a_time(kind: int) -> None:
    """What one chunk holds must not fill the memory, whatever it expands to."""
    payload = compress(bytes(limits.MESSAGE_BYTES_MAX), kind)
    record = encode_record(1, payload, None, None, kind)
    data = record * 30
    assert len(data) < 200_000
    end = BASE + len(data)
    for chunk in (
        raw(data),
        Chunk(BASE, end, data, list(range(BASE, end, len(record)))),
    ):
        decoder = Decoder(WHERE)
        steps = steps_of(decoder, chunk)
        assert [len(step) for step in steps] == [4] * 7 + [2]
        messages = list(itertools.chain.from_iterable(steps))
        assert [each.offset for each in messages] == list(range(BASE, end, len(record)))
        assert decoder.error is None


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "STEP_BYTES", 100)


def mixed(count: int = 40) -> bytes:
    """Compressed records among plain ones, behind control records."""
    data = b""
    for number in range(count):
        content = b"%d" % number * 20
        kind = 0 if number % 3 else COMPRESSIONS[1 + number // 3 % 3]
        record = encode_record(number, compress(content, kind), b"x", None, kind)
        data += control(record, BASE + len(data)) + record
    return data


def chunks_of(data: bytes, *, damaged: bool = False) -> list[Chunk]:
    """The same messages, raw and filtered; with ``damaged`` the last bit was flipped on the way."""
    slices, offsets, end = filter_records(memoryview(data), BASE, Filter(("x",)))
    bodies = [bytearray(data), bytearray(b"".join(slices))]
    for body in bodies:
        body[-1] ^= damaged
    return [raw(bytes(bodies[0])), Chunk(BASE, end, bytes(bodies[1]), offsets)]


def as_in(chunk: Chunk, messages: list[Message]) -> list[Message]:
    """Return messages as ``chunk`` has them: a filtered one has no control records."""
    if chunk.offsets is None:
        return messages
    return [each._replace(append_time_ms=None) for each in messages]


@pytest.mark.usefixtures("small_steps")
def test_steps_together_are_the_whole() -> None:
    data = mixed()
    for chunk in chunks_of(data):
        decoder = Decoder(WHERE)
        steps = steps_of(decoder, chunk)
        assert len(steps) > 3
        assert list(itertools.chain.from_iterable(steps)) == as_in(chunk, reference(data))
    for cut in range(0, len(data), 7):
        decoder = Decoder(WHERE)
        steps = steps_of(decoder, raw(data[:cut]))
        decoder.end_chunk()
        steps += steps_of(decoder, raw(data[cut:], BASE + cut))
        assert list(itertools.chain.from_iterable(steps)) == reference(data), f"cut at {cut}"


@pytest.mark.usefixtures("either_way")
@pytest.mark.usefixtures("small_steps")
def test_messages_taken_back_come_again() -> None:
    """From any one on, in any step; and so does damage behind them."""
    data = mixed()
    expected = reference(data)
    for error in (False, True):
        for chunk in chunks_of(data, damaged=error):
            for index in range(6):
                decoder = Decoder(WHERE)
                found: list[Message] = []
                messages = decoder.decode(chunk)
                for _ in range(200):
                    keep = min(index, len(messages))
                    found += messages[:keep]
                    decoder.take_back(messages, keep)
                    messages = decoder.more()
                    found += messages
                    if not decoder.has_more:
                        break
                    messages = decoder.more()
                assert found == as_in(chunk, expected[:-1] if error else expected)
                assert (decoder.error is not None) == error


@pytest.mark.usefixtures("small_steps")
def test_an_answer_with_too_few_offsets_is_damage_in_any_step() -> None:
    (_, chunk) = chunks_of(mixed())
    assert chunk.offsets is not None
    for count in range(len(chunk.offsets)):
        decoder = Decoder(WHERE)
        few = Chunk(chunk.offset, chunk.next_offset, chunk.body, chunk.offsets[:count])
        steps = steps_of(decoder, few)
        assert sum(map(len, steps)) <= count
        assert decoder.error is not None


@pytest.mark.usefixtures("either_way")
def test_the_next_record_is_behind_empty_batches_and_before_a_batch_that_is_cut_short() -> None:
    """A reader that goes on there reads a batch from its beginning, so it knows its time."""
    record = encode_record(7, b"x")
    whole = control(record, BASE) + record
    empty = encode_control(BatchHeader(BASE + len(whole), CONTROL_BYTES, 0, 0), 0)
    behind = BASE + len(whole) + len(empty)
    cut = control(record, behind) + record
    for data, wanted in (
        (whole, BASE + len(whole)),
        (whole + empty, behind),
        (empty, BASE + len(empty)),
        (whole + empty + cut[:50], behind),
        (whole + empty + cut[:CONTROL_BYTES], behind),
        (whole + empty + cut[: CONTROL_BYTES + 5], behind),
        (whole + empty + cut, behind + len(cut)),
    ):
        decoder = Decoder(WHERE)
        decoder.decode(raw(data))
        assert decoder.read_to == wanted, len(data)


@pytest.mark.usefixtures("either_way")
def test_a_message_that_ends_like_a_control_record_is_read_to_its_end() -> None:
    """Its content is a piece of a log. A place inside of it is none to go on at."""
    for start in (0, BASE + CONTROL_BYTES + 23):  # also one that knows where it will lie
        payload = b"abc" + encode_control(BatchHeader(start, CONTROL_BYTES + 9, 1, 0), 0)
        record = encode_record(7, payload)
        data = control(record, BASE) + record
        decoder = Decoder(WHERE)
        decoder.decode(raw(data))
        assert decoder.read_to == BASE + len(data)


# Filters that the client applies ------------------------------------------------------------------
def passing(chunk: Chunk, check: Callable[[Message], bool]) -> list[Message]:
    decoder = Decoder(WHERE, wanted=Filter(code="test", check=check))
    return list(itertools.chain.from_iterable(steps_of(decoder, chunk)))


@pytest.mark.usefixtures("small_steps")
def test_what_a_filter_leaves_out_is_passed_by() -> None:
    """And counts as read, also behind the last message that passes."""
    data = mixed()
    for chunk in chunks_of(data):
        everything = as_in(chunk, reference(data))
        for rest in range(3):
            expected = everything[rest::3]
            assert passing(chunk, set(expected).__contains__) == expected
        decoder = Decoder(WHERE, wanted=Filter(code="test", check=lambda _: False))
        assert not list(itertools.chain.from_iterable(steps_of(decoder, chunk)))
        assert decoder.next_offset == chunk.next_offset


@pytest.mark.usefixtures("either_way")
@pytest.mark.usefixtures("small_steps")
def test_messages_that_passed_are_taken_back_alone() -> None:
    """Whatever lies between them, and from any one on."""
    data = mixed()
    for chunk in chunks_of(data):
        everything = as_in(chunk, reference(data))
        for index in range(4):
            wanted = Filter(code="test", check=lambda each: each.id % 2 == 0)
            decoder = Decoder(WHERE, wanted=wanted)
            found: list[Message] = []
            messages = decoder.decode(chunk)
            for _ in range(200):
                keep = min(index, len(messages))
                found += messages[:keep]
                if keep < len(messages):
                    decoder.take_back(messages, keep)
                    found += decoder.more()
                if not decoder.has_more:
                    break
                messages = decoder.more()
            assert found == [each for each in everything if each.id % 2 == 0]


def test_a_filter_that_fails_fails_at_its_message_alone() -> None:
    """What precedes it comes first; and at the next call it is asked about that message again."""
    for chunk in chunks_of(mixed()):
        (everything,) = [as_in(chunk, reference(mixed()))]
        bad = everything[2]

        def check(message: Message, bad: Message = bad) -> bool:
            if message.id == bad.id:
                raise FilterFailed("no")
            return True

        decoder = Decoder(WHERE, wanted=Filter(code="test", check=check))
        decoder.begin(chunk)
        found: list[Message] = []
        while len(found) < 2:
            found += decoder.more()
        with pytest.raises(FilterFailed):
            decoder.more()
        assert found == everything[:2]
