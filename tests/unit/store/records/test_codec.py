"""Both codecs take and give the same: the Python one is the reference, the other its equal."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from support.cases import case

from vq import limits
from vq.client.reading.decode import to_message
from vq.errors import CorruptData
from vq.model import Message, SendResult, TopicPartition
from vq.store.records import codec
from vq.store.records.compression import compress, decompress
from vq.store.records.format import (
    CHECKSUM_CRC32C,
    CHECKSUM_HEADER,
    COMPRESSIONS,
    CONTROL_BYTES,
    CONTROL_PAYLOAD_BYTES,
    COVERED_HEADER,
    FLAG_CONTROL,
    BatchHeader,
    encode_control,
    md5,
)
from vq.store.records.record import (
    Properties,
    boundaries,
    decode_records,
    encode_properties,
    encode_record,
    read_properties,
)

Head = tuple[int, bytes] | None
BASE = 5_000
needs_compiled = pytest.mark.skipif(
    not codec.COMPILED, reason="the codec was not compiled here (no C compiler)"
)


def compiled_encode(contents: list[bytes], heads: list[Head], ids: list[int]):
    from vq.store.records import _codec

    return _codec.encode_records(contents, heads, ids)


ENCODERS = [
    pytest.param(codec.python_encode, id="python"),
    pytest.param(compiled_encode, id="compiled", marks=needs_compiled),
]
DECODERS = [
    pytest.param(codec.python_decode_common, id="python"),
    pytest.param(codec.decode_common, id="compiled", marks=needs_compiled),
]
#: Around every place where MD5 needs a further block, and around the number of lanes.
SIZES = [0, 1, 54, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 1_000, 70_000]


def tag_head(tag: bytes) -> Head:
    return 1, len(tag).to_bytes(4, "big") + tag


def control() -> bytes:
    values = dict.fromkeys(BatchHeader._fields, 0)
    return encode_control(BatchHeader(**values), 0)


@pytest.mark.parametrize("encode", ENCODERS)
def test_records_are_those_of_the_reference_encoder(
    encode: Callable[..., tuple[bytes, list[int]]],
) -> None:
    for size, count in itertools.product(SIZES, (0, 1, 3, 4, 15, 16, 17, 35)):
        rng = random.Random(size * 100 + count)
        contents = [rng.randbytes(size) for _ in range(count)]
        tags = [None if number % 3 else rng.randbytes(number % 20 + 1) for number in range(count)]
        heads = [None if tag is None else tag_head(tag) for tag in tags]
        ids = [rng.getrandbits(63) for _ in range(count)]
        expected = [encode_record(*each) for each in zip(ids, contents, tags, strict=True)]
        with case(size, count):
            body, sizes = encode(contents, heads, ids)
            assert body == b"".join(expected)
            assert sizes == [len(each) for each in expected]


@pytest.mark.parametrize("encode", ENCODERS)
def test_a_long_one_among_short_ones_changes_nothing(
    encode: Callable[..., tuple[bytes, list[int]]],
) -> None:
    contents = [bytes([number]) * (100_000 if number == 3 else number) for number in range(40)]
    body, _ = encode(contents, [None] * 40, list(range(40)))
    assert [record.payload for record in decode_records(body, 0)] == contents


@pytest.mark.parametrize("encode", ENCODERS)
def test_lists_of_different_lengths_are_refused(
    encode: Callable[..., tuple[bytes, list[int]]],
) -> None:
    for contents, heads, ids in (
        ([b"a"], [None], []),
        ([b"a"], [], [1]),
        ([], [None], [1]),
        ([b"a"], [None, None], [1, 2]),
    ):
        with pytest.raises(ValueError, match=r"differ|argument"):
            encode(contents, heads, ids)


@needs_compiled
@pytest.mark.parametrize(
    ("contents", "heads", "ids", "error"),
    [
        (("a",), [None], [1], TypeError),
        (["text"], [None], [1], TypeError),
        ([bytearray(b"a")], [None], [1], TypeError),
        ([b"a"], [b"head"], [1], TypeError),
        ([b"a"], [(1, "x")], [1], TypeError),
        ([b"a"], [(1,)], [1], TypeError),
        ([b"a"], [(-1, b"")], [1], OverflowError),
        ([b"a"], [(1 << 32, b"")], [1], OverflowError),
        ([b"a"], [None], ["1"], TypeError),
        ([b"a"], [None], [-1], OverflowError),
        ([b"a"], [None], [1 << 64], OverflowError),
    ],
)
def test_what_is_no_record_is_refused(contents, heads, ids, error) -> None:
    with pytest.raises(error):
        compiled_encode(contents, heads, ids)


PLACES = [
    pytest.param(codec.python_places, id="python"),
    pytest.param(codec.places, id="compiled", marks=needs_compiled),
]


@pytest.mark.parametrize("places", PLACES)
def test_records_lie_one_behind_the_other(places: Callable[..., list[SendResult]]) -> None:
    found = places(3, 1 << 40, [30, 40, 5], [7, 1 << 62, 9])
    assert found == [
        SendResult(3, 1 << 40, 7),
        SendResult(3, (1 << 40) + 30, 1 << 62),
        SendResult(3, (1 << 40) + 70, 9),
    ]
    assert {type(each) for each in found} == {SendResult}
    assert [hash(each) for each in found] == [hash(SendResult(*each)) for each in found]
    assert places(0, 0, [], []) == []
    for sizes, ids in (([1], []), ([], [1])):
        with pytest.raises(ValueError, match=r"differ|argument"):
            places(0, 0, sizes, ids)


@needs_compiled
def test_places_of_wrong_types_are_refused() -> None:
    from vq.store.records import _codec

    good = (SendResult, 0, 0, [1], [1])
    assert _codec.places(*good) == [SendResult(0, 0, 1)]
    for place, wrong in ((0, dict), (0, 1), (1, "1"), (3, (1,)), (3, ["1"]), (4, [None])):
        with pytest.raises(TypeError):
            _codec.places(*good[:place], wrong, *good[place + 1 :])
    with pytest.raises(OverflowError):
        _codec.places(SendResult, 0, 1 << 62, [1 << 62, 1 << 62], [1, 2])


def log(count: int = 50) -> tuple[bytes, list[Message]]:
    """A log of batches of one to five common records, and its messages."""
    rng = random.Random(count)
    data = b""
    messages = []
    for number in range(count):
        if number % 5 in (0, 3):
            data += control()
        tag = None if number % 2 else f"tag ü {number % 3}"
        key = (f"key ü {number}", number * -999, f"ü {number}".encode(), None)[number % 7 % 4]
        content = rng.randbytes(rng.randrange(200))
        start = len(data)
        properties = None if key is None else encode_properties(Properties(key=key))
        data += encode_record(number, content, None if tag is None else tag.encode(), properties)
        messages.append(
            Message("t", content, tag, key, None, 3, BASE + start, BASE + len(data), number)
        )
    return data, messages


DATA, MESSAGES = log()


def decoded(
    decode: Callable[..., int], data: bytes, position: int = 0
) -> tuple[int, list[Message], dict[bytes, str]]:
    out: list[Message] = []
    tags: dict[bytes, str] = {}
    end = decode(data, position, BASE, "t", 3, tags, out)
    # Append times have tests of their own.
    return end, [each._replace(append_time_ms=None) for each in out], tags


@pytest.mark.parametrize("decode", DECODERS)
def test_common_records_are_read(decode: Callable[..., int]) -> None:
    end, out, tags = decoded(decode, DATA)
    assert (end, out) == (len(DATA), MESSAGES)
    assert {type(message) for message in out} == {Message}
    assert tags == {f"tag ü {number}".encode(): f"tag ü {number}" for number in range(3)}
    assert [hash(message) for message in out] == [hash(message) for message in MESSAGES]


@pytest.mark.parametrize("decode", DECODERS)
def test_every_message_has_its_own_tag(decode: Callable[..., int]) -> None:
    """Tags that are told apart by their size, their first or their last byte only, in any order."""
    tags = [
        "",
        *(f"{first}{'-' * size}{last}" for first in "abc" for size in (0, 9) for last in "ab"),
    ]
    given = random.Random(5).choices(tags, k=500)
    data = b"".join(encode_record(n, b"", each.encode()) for n, each in enumerate(given))
    _, out, seen = decoded(decode, data)
    assert [message.tag for message in out] == given
    assert seen == {each.encode(): each for each in tags}


@pytest.mark.parametrize("decode", DECODERS)
def test_reading_starts_at_any_record(decode: Callable[..., int]) -> None:
    for number, message in enumerate(MESSAGES):
        _, out, _ = decoded(decode, DATA, message.offset - BASE)
        assert out == MESSAGES[number:]


@pytest.mark.parametrize("decode", DECODERS)
def test_reading_stops_at_the_last_whole_record(decode: Callable[..., int]) -> None:
    for cut in range(len(DATA) + 1):
        end, out, _ = decoded(decode, DATA[:cut])
        whole = [message for message in MESSAGES if message.next_offset <= BASE + cut]
        assert out == whole
        assert end >= (whole[-1].next_offset - BASE if whole else 0)
        assert end <= cut


def uncommon() -> dict[str, bytes]:
    plain = encode_record(1, b"payload")
    bad_tag = b"\0\0\0\2\xff\xfepayload"
    long_tag = b"\0\0\1\0payload"
    no_tag = b"\0\0\0"
    head = (len(plain) - 20).to_bytes(4, "big")
    return {
        "payload damaged": plain[:-1] + b"!",
        "checksum damaged": head + b"\0\0\0\0" + plain[8:],
        "a key cut off": encode_record(1, b"payload", None, b"\x0a\x03ab"),
        "more than a key": encode_record(1, b"payload", None, b"\x0a\x01ab"),
        "a key of bytes cut off": encode_record(1, b"payload", None, b"\x32\x03ab"),
        "an integer cut off": encode_record(1, b"payload", None, b"\x38\x80"),
        "no integer": encode_record(1, b"payload", None, b"\x38"),
        "an integer of 11 bytes": encode_record(1, b"", None, b"\x38" + b"\x80" * 10 + b"\x01"),
        "a header cut off": encode_record(1, b"payload", None, entry(b"a", b"bc")[:-1]),
        "a header's value longer than it": encode_record(
            1, b"payload", None, b"\x12\x06\x0a\x01a\x12\x02b"
        ),
        "a header's name no UTF-8": encode_record(1, b"", None, entry(b"\xc0\x80", b"")),
        "a header's value no UTF-8": encode_record(
            1, b"", None, entry(b"a", b"plain text \xed\xa0\x80")
        ),
        "a size of ten bytes": encode_record(1, b"", None, b"\x12" + b"\x80" * 9 + b"\x01"),
        "a key no UTF-8": encode_record(1, b"payload", None, b"\x0a\x01\xff"),
        "properties longer than the record": framed(2, b"\0\0\0\x09\x0a\x01k"),
        "no room for the length of properties": framed(3, b"\0\0\0\1t\0\0\0"),
        "compressed": encode_record(1, b"payload", None, None, 1),
        "CRC-32C": encode_record(1, b"payload", checksum=CHECKSUM_CRC32C),
        "unknown flag": plain[:16] + b"\x80\0\0\0" + plain[20:],
        "control of another size": plain[:16] + FLAG_CONTROL.to_bytes(4, "big") + plain[20:],
        "tag no UTF-8": framed(1, bad_tag),
        "tag longer than the record": framed(1, long_tag),
        "no room for a tag's length": framed(1, no_tag),
        "length without end": b"\xff\xff\xff\xff" + plain[4:],
    }


def with_properties() -> dict[str, bytes]:
    """Records with properties that ``record.read_properties`` reads."""
    return {
        "headers": encode_record(1, b"payload", None, properties(headers={"a": "b"})),
        "key and headers": encode_record(1, b"", None, properties(key="k", headers={"a": "b"})),
        "a long key": encode_record(1, b"payload", b"tag", properties(key="k" * 128)),
        "no properties": encode_record(1, b"payload", None, b""),
        "an empty key": encode_record(1, b"payload", None, b"\x0a\x00"),
        "a long key of bytes": encode_record(1, b"payload", b"tag", properties(key=b"k" * 128)),
        "an empty key of bytes": encode_record(1, b"payload", None, b"\x32\x00"),
        "an integer and headers": encode_record(
            1, b"", None, properties(key=5, headers={"a": "b"})
        ),
        "an integer of 65 bits": encode_record(1, b"", None, b"\x38" + b"\xff" * 9 + b"\x02"),
        "headers with texts of all sizes": encode_record(
            1,
            b"",
            b"tag",
            properties(headers={"": "", "a": "x" * 127, "b" * 128: "", "ü": "😀" * 40}),
        ),
        "many headers": encode_record(
            1, b"", None, properties(key=b"", headers={f"name {n}": str(n % 3) for n in range(40)})
        ),
        "headers that do not rise": encode_record(
            1, b"", None, entry(b"b", b"1") + entry(b"a", b"2")
        ),
        "a header twice": encode_record(1, b"", None, entry(b"a", b"1") + entry(b"a", b"2")),
        "headers around a key": encode_record(
            1, b"", None, entry(b"a", b"1") + b"\x0a\x01k" + entry(b"b", b"2")
        ),
        "a header without a value": encode_record(1, b"", None, b"\x12\x03\x0a\x01a"),
        "a value before its name": encode_record(1, b"", None, b"\x12\x06\x12\x01x\x0a\x01a"),
        "a varint that is longer than need be": encode_record(1, b"", None, b"\x38\x82\x00"),
        "two keys": encode_record(1, b"payload", None, b"\x38\x02\x38\x04"),
        "a field of a later version": encode_record(1, b"payload", None, b"\x42\x01a"),
    }


def entry(name: bytes, value: bytes) -> bytes:
    """A header, of short texts."""
    inside = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(value)]) + value
    return b"\x12" + bytes([len(inside)]) + inside


def properties(**values: Any) -> bytes | None:
    return encode_properties(Properties(**values))


def framed(flag: int, body: bytes) -> bytes:
    covered = COVERED_HEADER.pack(7, flag) + body
    return CHECKSUM_HEADER.pack(len(body), md5(covered).digest()) + covered


@pytest.mark.parametrize("decode", DECODERS)
def test_reading_stops_at_what_is_not_common(decode: Callable[..., int]) -> None:
    for (kind, added), before in itertools.product(uncommon().items(), (0, 1, 5, 15, 16, 17)):
        start = MESSAGES[before].offset - BASE
        data = DATA[:start] + added + DATA[start:]
        with case(kind, before):
            end, out, _ = decoded(decode, data)
            assert (end, out) == (start, MESSAGES[:before])


@pytest.mark.parametrize("decode", DECODERS)
def test_other_properties_are_read_as_the_reference_reads_them(decode: Callable[..., int]) -> None:
    for (kind, added), before in itertools.product(with_properties().items(), (0, 1, 15, 16)):
        start = MESSAGES[before].offset - BASE
        data = DATA[:start] + added + DATA[start:]
        (record,) = decode_records(added, BASE + start)
        with case(kind, before):
            end, out, _ = decoded(decode, data)
            assert end == len(data)
            assert out[before] == to_message(TopicPartition("t", 3), record)
            assert [message.content for message in out[before + 1 :]] == [
                message.content for message in MESSAGES[before:]
            ]


@pytest.mark.parametrize("decode", DECODERS)
def test_headers_are_of_their_own_message_and_in_order(decode: Callable[..., int]) -> None:
    """Whatever the headers of the message before it are: the same, more of them, or other ones."""
    given: list[dict[str, str]] = [
        {"a": "1", "b": "2"},
        {"a": "1", "b": "2"},
        {"b": "2", "a": "1"},
        {"a": "1"},
        {"a": "1", "b": "3", "c": "2"},
        {"b": "1", "c": "1"},
        {f"name {n:02}": str(n) for n in range(20)},
        {f"name {n:02}": str(n * n % 7) for n in range(21)},
    ] * 5
    data = b"".join(
        encode_record(n, b"", None, properties(headers=each)) for n, each in enumerate(given)
    )
    _, out, _ = decoded(decode, data)
    found = [message.headers for message in out]
    assert found == given
    assert [list(each or ()) for each in found] == [sorted(each) for each in given]
    assert len({id(each) for each in found}) == len(given), "no two messages share a mapping"


def compressed(count: int = 20, size: int = 300) -> tuple[bytes, list[bytes]]:
    contents = [bytes([n]) * (size + n) for n in range(count)]
    kinds = [n % (max(COMPRESSIONS) + 1) for n in range(count)]
    head = properties(key="k", headers={"a": "b"})
    return b"".join(
        encode_record(n, compress(content, kind), b"t" if n % 2 else None, head, kind)
        for n, (content, kind) in enumerate(zip(contents, kinds, strict=True))
    ), contents


@pytest.mark.parametrize("decode", DECODERS)
def test_compressed_records_are_read_while_there_is_room(decode: Callable[..., int]) -> None:
    """The last content may exceed the room; plain records need none."""
    data, contents = compressed()
    edges = boundaries(data, 0)
    for room in (0, -5, 1, 301, 302, 303, 1_000, 1 << 40):
        left, out = [room], []
        end = decode(data, 0, 0, "t", 3, {}, out, None, left)
        used = sum(len(each) for n, each in enumerate(contents[: len(out)]) if n % 4)
        with case(room):
            assert [each.content for each in out] == contents[: len(out)]
            assert {(each.key, each.headers["a"]) for each in out if each.headers} == {("k", "b")}
            assert (end, left) == (edges[len(out)], [room - used])
            assert end == len(data) or (left[0] <= 0 and len(out) % 4)


@pytest.mark.parametrize("decode", DECODERS)
def test_reading_stops_at_what_cannot_be_decompressed(decode: Callable[..., int]) -> None:
    data, contents = compressed(8)
    stream = compress(b"content" * 9, 1)
    bad = {
        "cut off": (stream[:-1], 1),
        "no stream": (b"payload", 1),
        "a byte behind it": (stream + b"!", 1),
        "another kind": (stream, 2),
        "a kind of a later version": (stream, 7),
        "more than a message may have": (compress(bytes(limits.MESSAGE_BYTES_MAX + 1), 1), 1),
    }
    for name, (payload, kind) in bad.items():
        with case(name):
            out: list[Message] = []
            added = encode_record(1, payload, b"t", None, kind)
            end = decode(data + added + data, 0, 0, "t", 3, {}, out, [None], [1 << 20])
            assert (end, [each.content for each in out]) == (len(data), contents)


@needs_compiled
def test_an_error_while_contents_are_decompressed_is_passed_on() -> None:
    """One that is no damage; the messages before it are there."""
    from vq.store.records import _codec

    data, contents = compressed(8, 70_000)  # the loop decompresses small ones itself

    def fails(payload: bytes, kind: int) -> bytes:
        if kind == 3:
            raise KeyboardInterrupt
        return decompress(payload, kind)

    common = (data, 0, 0, "t", 3, Message, {})
    for wrong, error, count in (
        (fails, KeyboardInterrupt, 3),
        (lambda *_: "text", TypeError, 1),
        (None, TypeError, 1),
    ):
        out: list[Message] = []
        with pytest.raises(error):
            _codec.decode_common(
                *common, out, read_properties, 4, 0, None, [1 << 20], wrong, CorruptData
            )
        assert [each.content for each in out] == contents[:count]


@needs_compiled
def test_one_of_many_small_streams_is_left_to_python() -> None:
    """There, a thread that waits for the interpreter gets it. Messages are the same."""
    from vq.store.records import _codec

    data, contents = compressed(4, 50)
    left: list[bytes] = []

    def counted(payload: bytes, kind: int) -> bytes:
        left.append(payload)
        return decompress(payload, kind)

    common = (data * 300, 0, 0, "t", 3, Message, {})
    out: list[Message] = []
    _codec.decode_common(*common, out, read_properties, 4, 0, None, [1 << 20], counted, CorruptData)
    assert [each.content for each in out] == contents * 300
    assert len(left) >= 900 * 400 // (128 << 10)


@needs_compiled
@pytest.mark.parametrize("arguments", [(), ("x", 1), (b"x", "1"), (bytearray(b"x"), 1), (b"x",)])
def test_what_is_no_payload_is_not_decompressed(arguments: Any) -> None:
    from vq.store.records import _codec

    with pytest.raises(TypeError):
        _codec.decompress(*arguments)
    assert _codec.decompress(b"x", 1 << 70) is _codec.decompress(b"x", -1) is None


@needs_compiled
def test_lists_of_one_element_are_asked_for() -> None:
    for wrong in ([], [1, 2], (1,), 1, ["1"]):
        with pytest.raises(TypeError):
            codec.decode_common(DATA, 0, 0, "t", 3, {}, [], None, wrong)
        if wrong != ["1"]:
            with pytest.raises(TypeError):
                codec.decode_common(DATA, 0, 0, "t", 3, {}, [], wrong, None)


@needs_compiled
def test_an_error_while_properties_are_read_is_passed_on() -> None:
    from vq.store.records import _codec

    def fails(_: bytes) -> None:
        raise KeyboardInterrupt

    data = with_properties()["a field of a later version"]
    with pytest.raises(KeyboardInterrupt):
        _codec.decode_common(data, 0, 0, "t", 3, Message, {}, [], fails, 1, 1)


@needs_compiled
def test_wrong_types_are_refused() -> None:
    from vq.store.records import _codec

    common = (DATA, 0, 0, "t", 3, Message, {}, [], read_properties)
    good = (*common, FLAG_CONTROL, CONTROL_PAYLOAD_BYTES)
    assert _codec.decode_common(*good) == len(DATA)
    for place, wrong in ((0, "text"), (3, b"t"), (4, "3"), (5, dict), (5, 5), (6, []), (7, ())):
        values = [*good[:place], wrong, *good[place + 1 :]]
        with pytest.raises(TypeError):
            _codec.decode_common(*values)
    for position in (-1, len(DATA) + 1):
        with pytest.raises(ValueError, match="position"):
            _codec.decode_common(DATA, position, *good[2:])


@needs_compiled
@pytest.mark.parametrize("base", [2**63 - 1, 2**63 - len(DATA)])
def test_offsets_beyond_63_bits_are_left_to_python(base: int) -> None:
    """A broker may answer with any offset; the sum must not overflow."""
    from vq.store.records import _codec

    out: list[Message] = []
    common = ("t", 3, Message, {}, out, read_properties, FLAG_CONTROL, CONTROL_PAYLOAD_BYTES)
    assert _codec.decode_common(DATA, 0, base, *common) < len(DATA)
    assert all(0 <= message.offset < message.next_offset for message in out)


UTF8_EDGES = [
    b"",
    b"plain",
    "äöü标签😀".encode(),
    b"\x7f\x80",
    b"\xc0\x80",
    b"\xc1\xbf",
    b"\xc2\x80",
    b"\xdf\xbf",
    b"\xc2",
    b"\xe0\x9f\xbf",
    b"\xe0\xa0\x80",
    b"\xed\x9f\xbf",
    b"\xed\xa0\x80",
    b"\xef\xbf\xbf",
    b"\xef\xbf",
    b"\xef\xbf\x40",
    b"\xf0\x8f\xbf\xbf",
    b"\xf0\x90\x80\x80",
    b"\xf4\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"\xf0\x90\x80",
    b"\xff",
]


@needs_compiled
def test_both_agree_on_what_is_a_tag() -> None:
    """Python's strict decoder is the reference, and the reader's too."""
    for tag in UTF8_EDGES:
        record = encode_record(1, b"x", tag)
        try:
            tag.decode()
        except UnicodeDecodeError:
            expected = (0, 0)
        else:
            expected = (1, len(record))
        with case(tag):
            assert codec.well_formed(record, 1, 1) == expected
            assert codec.python_well_formed(record, 1, 1) == expected


@pytest.mark.parametrize("well_formed", [codec.python_well_formed, codec.well_formed])
def test_the_walk_ends_at_the_count(well_formed: Callable[..., tuple[int, int]]) -> None:
    """So what it costs is bounded by what the header announced."""
    data = encode_record(1, b"abc") * 5
    assert well_formed(data, 3, 10) == (3, 69)
    assert well_formed(data, 5, 10) == (5, 115)
    assert well_formed(data, 9, 10) == (5, 115)
    assert well_formed(data + b"12345", 9, 10) == (5, 115)
    assert well_formed(data, 5, 2) == (0, 0)
    assert well_formed(data, 0, 10) == (0, 0)
    assert well_formed(b"", 1, 10) == (0, 0)


@pytest.mark.parametrize("intact", [codec.python_intact, codec.intact], ids=["python", "installed"])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_walk_over_intact_records_ends_at_the_first_other(
    intact: Callable[..., int], kind: Callable[[bytes], Any]
) -> None:
    """Wherever it begins, and however many records lie between."""
    starts = [0, *(message.next_offset - BASE for message in MESSAGES)]
    for start in starts:
        assert intact(kind(DATA), start) == len(DATA)
    for at in range(0, len(DATA), 7):
        damaged = bytearray(DATA)
        damaged[at] ^= 4
        end = max(edge for edge in boundaries(DATA, 0) if edge <= at)
        assert intact(kind(bytes(damaged)), 0) == end
        assert intact(kind(DATA[:at]), 0) == end
    for uncommon in ({"checksum": CHECKSUM_CRC32C}, {"compression": 1}):
        record = encode_record(1, b"payload", **uncommon)
        assert intact(kind(DATA + record), 0) == len(DATA)


@needs_compiled
def test_a_walk_cannot_begin_outside_the_data() -> None:
    for position in (-1, len(DATA) + 1):
        with pytest.raises(ValueError, match="position"):
            codec.intact(DATA, position)


@needs_compiled
def test_code_that_runs_while_properties_are_read_may_forget_the_tags() -> None:
    """The message keeps its tag alive by itself."""
    from vq.store.records import _codec

    tags: dict[bytes, str] = {}

    def forget(data: bytes) -> Any:
        tags.clear()
        return read_properties(data)

    properties = encode_properties(Properties(headers={"a": "b"}, retry_count=1))
    data = encode_record(7, b"x", b"some tag", properties)
    out: list[Message] = []
    arguments = (data, 0, 0, "t", 3, Message, tags, out, forget, FLAG_CONTROL, 0)
    assert _codec.decode_common(*arguments) == len(data)
    assert out[0].tag == "some tag"


def batch(append_time_ms: int, *payloads: bytes) -> bytes:
    """Return a control record and its messages."""
    records = b"".join(encode_record(n + 1, each) for n, each in enumerate(payloads))
    header = BatchHeader(0, CONTROL_BYTES + len(records), len(payloads), append_time_ms)
    return encode_control(header, 0) + records


@pytest.mark.parametrize("decode", DECODERS)
def test_a_message_has_the_append_time_of_its_batch(decode: Callable[..., int]) -> None:
    """One object for all messages of a batch; that of the first batch is told by the caller."""
    rest = encode_record(9, b"of a batch that began before")
    many = [b"%d" % n for n in range(40)]
    data = rest + batch(1_000, b"a", b"b") + batch(2**63, b"c") + batch(3_000) + batch(4_000, *many)
    for before in (None, 500):
        times: list[int | None] = [before]
        out: list[Message] = []
        assert decode(data, 0, 0, "t", 0, {}, out, times) == len(data)
        assert [each.append_time_ms for each in out] == [before, 1_000, 1_000, 2**63, *[4_000] * 40]
        assert times == [4_000]
        assert len({id(each.append_time_ms) for each in out[4:]}) == 1


@pytest.mark.parametrize("decode", DECODERS)
def test_the_append_time_goes_on_where_the_bytes_do(decode: Callable[..., int]) -> None:
    """Also where the first bytes end behind a control record, or inside a message."""
    data = batch(1_000, b"a") + batch(2_000, b"b" * 50) + batch(3_000, b"c")
    for cut in range(90, 260, 7):
        times: list[int | None] = [None]
        out: list[Message] = []
        with case(cut):
            end = decode(data[:cut], 0, 0, "t", 0, {}, out, times)
            assert decode(data, end, 0, "t", 0, {}, out, times) == len(data)
            assert [each.append_time_ms for each in out] == [1_000, 2_000, 3_000]


@pytest.mark.parametrize("decode", DECODERS)
def test_a_damaged_control_record_tells_no_time(decode: Callable[..., int]) -> None:
    good = batch(1_000, b"a")
    damaged = bytearray(batch(2_000, b"b"))
    damaged[60] ^= 1
    times: list[int | None] = [None]
    out: list[Message] = []
    assert decode(good + bytes(damaged), 0, 0, "t", 0, {}, out, times) == len(good)
    assert [each.append_time_ms for each in out] == times == [1_000]


@pytest.mark.parametrize("decode", DECODERS)
def test_a_later_version_of_a_control_record_tells_no_time(decode: Callable[..., int]) -> None:
    payload = b"\x02" + b"x" * (CONTROL_PAYLOAD_BYTES - 1)
    head = len(payload).to_bytes(4, "big") + md5(payload).digest()[:4] + bytes(8)
    data = batch(1_000, b"a") + head + FLAG_CONTROL.to_bytes(4, "big") + payload
    out: list[Message] = []
    decode(data + encode_record(2, b"b"), 0, 0, "t", 0, {}, out)
    assert [each.append_time_ms for each in out] == [1_000, None]
