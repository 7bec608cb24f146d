"""Columns against the messages of a consumer, for both loops, whatever records hold."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import batch
from support.columns import Row, rows_of

from vq.client.reading.decode import decode_messages
from vq.columns import COLUMNS, Selection, Table
from vq.errors import CorruptData, InvalidArgument
from vq.model import Message, TopicPartition, time_ms_of
from vq.store.records import columns
from vq.store.records.compression import compress
from vq.store.records.format import CHECKSUM_CRC32C, CHECKSUM_MD5
from vq.store.records.record import Properties, encode_properties, encode_record

BASE = 7_000
PARTITION = TopicPartition("t", 3)
LOOPS = [
    "python",
    pytest.param(
        "compiled",
        marks=pytest.mark.skipif(
            columns.fill is columns.python_fill, reason="the loop was not compiled here"
        ),
    ),
]
texts = st.text(st.characters(codec="utf-8"), max_size=12)
keys = st.none() | texts | st.binary(max_size=140) | st.integers(-(2**63), 2**63 - 1)
properties = st.builds(
    Properties,
    key=keys,
    headers=st.dictionaries(texts, texts, max_size=4),
    delivery_time_ms=st.sampled_from([0, 0, 0, 5]),
    origin=st.sampled_from(["", "", "", "a-1@7"]),
)
raw = st.binary(max_size=12).map(lambda data: data or None)  # no vq wrote them
messages = st.tuples(
    st.integers(0, 2**63 - 1),
    st.binary(max_size=60),
    st.none() | texts.map(str.encode) | st.just(b"a") | st.binary(max_size=3),
    properties.map(encode_properties) | raw,
    st.sampled_from([0, 0, 0, 1, 2, 3]),
    st.sampled_from([CHECKSUM_MD5, CHECKSUM_MD5, CHECKSUM_CRC32C]),
)
batches = st.lists(
    st.tuples(st.lists(messages, max_size=6), st.integers(0, 1)), min_size=1, max_size=4
)


def log_of(parts: list[tuple[list[tuple], int]], padding: int = 9_000) -> bytes:
    """Return batches, some of which are large enough to be verified as a whole."""
    data = b""
    for items, large in parts:
        records = [
            encode_record(number, compress(payload, kind), tag, found, kind, checksum)
            for number, payload, tag, found, kind, checksum in items
        ]
        if large:
            records.insert(len(records) // 2, encode_record(5, bytes(padding)))
        data += batch(records, BASE + len(data))
    return data


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "python":
        monkeypatch.setattr(columns, "fill", columns.python_fill)
    return request.param


def decoded(data: bytes, selection: Selection = columns.ALL) -> tuple[list[Row], str]:
    """Return all rows, and the error at the end."""
    rows: list[Row] = []
    at, more = 0, True
    while more:
        table = Table()
        try:
            at, more = columns.decode_columns(data, BASE, table, selection, start=at)
        except CorruptData as error:
            return rows + rows_of(table), type(error).__name__
        rows += rows_of(table)
    return rows, ""


def row_of(message: Message) -> Row:
    key = message.key
    kind = {type(None): None, str: "text", bytes: "bytes", int: "int"}[type(key)]
    encoded = key if key is None or isinstance(key, bytes) else str(key).encode()
    headers = sorted((message.headers or {}).items())
    return (
        message.offset,
        message.id,
        time_ms_of(message.id) * 1000,
        None if message.tag is None else message.tag.encode(),
        encoded,
        kind,
        [(name.encode(), text.encode()) for name, text in headers] or None,
        message.content,
    )


def as_a_consumer(data: bytes) -> tuple[list[Row], str]:
    out: list[Message] = []
    at, more, error = 0, True, ""
    try:
        while more:
            at, more = decode_messages(data, BASE, PARTITION, out, start=at)
    except CorruptData as found:
        error = type(found).__name__
    return [row_of(each) for each in out], error


@pytest.mark.parametrize("name", LOOPS)
@given(parts=batches)
def test_rows_are_the_messages_of_a_consumer(name: str, parts: list) -> None:
    data = log_of(parts)
    with pytest.MonkeyPatch.context() as patch:
        if name == "python":
            patch.setattr(columns, "fill", columns.python_fill)
        assert decoded(data) == as_a_consumer(data)


@pytest.mark.parametrize("name", LOOPS)
@given(
    parts=batches, place=st.integers(0, 10**6), cut=st.integers(0, 10**6), bits=st.integers(1, 255)
)
def test_damaged_or_cut_bytes_give_the_messages_before(
    name: str, parts: list, place: int, cut: int, bits: int
) -> None:
    data = bytearray(log_of(parts, padding=8_200))
    data[place % len(data)] ^= bits
    found = bytes(data[: len(data) - cut % 50])
    with pytest.MonkeyPatch.context() as patch:
        if name == "python":
            patch.setattr(columns, "fill", columns.python_fill)
        assert decoded(found) == as_a_consumer(found)


@pytest.mark.parametrize("name", LOOPS)
@given(
    parts=batches,
    low=st.integers(0, 500),
    size=st.integers(0, 9_500),
    ids=st.tuples(st.integers(0, 2**63), st.integers(0, 2**63)),
    tags=st.none() | st.lists(st.sampled_from([b"a", b"", b"b"]), max_size=2),
)
def test_a_selection_takes_what_it_says(
    name: str, parts: list, low: int, size: int, ids: tuple[int, int], tags: list | None
) -> None:
    data = log_of(parts)
    chosen = Selection(BASE + low, BASE + low + size, *ids, None if tags is None else tuple(tags))
    expected, error = as_a_consumer(data)
    with pytest.MonkeyPatch.context() as patch:
        if name == "python":
            patch.setattr(columns, "fill", columns.python_fill)
        found, other = decoded(data, chosen)
    if not error:  # a selection need not look at what it leaves out
        assert not other
        assert found == [row for row in expected if chosen.takes(row[0], row[1], row[3])]


@pytest.mark.parametrize("wanted", [{each} for each in COLUMNS])
def test_a_table_has_the_columns_that_are_wanted(loop: str, wanted: set[str]) -> None:
    headers = Properties(key=b"k", headers={"b": "1", "a": "2"})
    data = log_of([([(9, b"v", b"a", encode_properties(headers), kind, 0) for kind in (0, 1)], 0)])
    table = Table(wanted)
    assert columns.decode_columns(data, 0, table) == (len(data), False)
    assert table.rows == 2
    assert {name for name in COLUMNS if getattr(table, name) is not None} == wanted


def test_a_large_batch_is_verified_as_a_whole(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records' checksums are not looked at: the CRC of the batch says more for less."""
    data = log_of([([(9, bytes(9_000), b"a", None, 0, 0)], 0)])
    monkeypatch.setattr(columns, "intact", lambda *_: pytest.fail("MD5 was computed"))
    assert len(decoded(data)[0]) == 1


def test_what_a_compressed_message_becomes_is_bounded(loop: str) -> None:
    """A step ends behind the message that brings it to its bound."""
    bomb = compress(bytes(1 << 20), 2)
    data = batch([encode_record(9, bomb, compression=2) for _ in range(9)], BASE)
    table = Table()
    at, more = columns.decode_columns(data, BASE, table)
    assert (table.rows, more) == (4, True)
    assert columns.decode_columns(data, BASE, Table(), start=at)[1]


def test_the_compiled_loop_refuses_what_it_cannot_use() -> None:
    compiled = pytest.importorskip("vq.store.records._columns")
    data = log_of([([(9, b"v", None, None, 0, 0)], 0)])
    rest = (0, 2**63, 0, 2**63, None, 3, 4, 23, 0)
    good = (data, 0, len(data), 0, 0, Table().buffers(), *rest)
    assert compiled.fill(*good)[0] == len(data)
    for place, wrong in (
        (0, bytearray(data)),
        (1, -1),
        (2, len(data) + 1),
        (4, -1),
        (4, 9),
        (5, ()),
        (5, (b"",) * 18),
        (5, [None] * 18),
        (5, (*[None] * 17, bytearray())),
        (10, ("a",)),
        (10, (b"a",) * 65),
        (13, 64),
    ):
        with pytest.raises((TypeError, ValueError)):
            compiled.fill(*good[:place], wrong, *good[place + 1 :])


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_an_id_of_64_bits_is_an_error(loop: str, number: int) -> None:
    """It is no message that a selection leaves out, and no number of Spark."""
    good = encode_record(1, b"good")
    data = batch([good, encode_record(number, b"odd"), good], BASE)
    rows, error = decoded(data)
    assert [row[-1] for row in rows] == [b"good"]
    assert error == "CorruptData"


def test_an_id_has_the_time_of_its_message() -> None:
    at = Selection.id_at(1_800_000_000_123)
    assert time_ms_of(at) == 1_800_000_000_123
    assert time_ms_of(at - 1) == 1_800_000_000_122
    assert Selection.id_at(0) == 0
    assert Selection.id_at(2**62) == 2**63


@pytest.mark.parametrize(
    "wrong", [{"low": -1}, {"high": 2**63 + 1}, {"id_low": -1}, {"id_high": 2**64}]
)
def test_a_selection_beyond_64_bits_is_refused(wrong: dict[str, int]) -> None:
    """The compiled loop would take other numbers, and leave out all messages."""
    with pytest.raises(InvalidArgument, match=r"is outside \[0, 9223372036854775808\]"):
        Selection(**wrong)


def test_a_selection_has_as_many_tags_as_the_compiled_loop_takes() -> None:
    tags = tuple(b"%d" % number for number in range(65))
    assert columns.fill(b"", 0, 0, BASE, Table(), Selection(tags=tags[:64])) == 0
    with pytest.raises(InvalidArgument, match="65 tags; a selection has at most 64"):
        Selection(tags=tags)
