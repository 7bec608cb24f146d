"""Damaged bytes with right checksums: whatever the store is given, only ``VqError`` comes of it.

Arbitrary bytes end at the first checksum and try nothing behind it. Here valid records, batches,
checkpoints, indexes, producer tables, epoch and identity files are broken by a seeded generator and
get their CRC or MD5 anew; whole logs are opened with one such file among theirs. As with frames, no
input may take long or make the process grow (see ``support.fuzz``). Hard inputs that were found
once, or thought of, are kept in tests/testdata/store/hard.txt.
"""

import itertools
import random
from pathlib import Path

import google_crc32c
import pytest
from support.fuzz import Targets, attempt, check, child, mutated
from support.store import DIRECTORY, append, flush, memory_disk, open_log

from vq.broker.partition.batch_check import check_batch
from vq.broker.replication.epoch_file import read_epoch
from vq.limits import BATCH_RECORDS_MAX
from vq.message_filter import Filter
from vq.model import Message, ProducerStamp
from vq.store.care.key_index import KeyIndex, KeyIndexBuilder, Probe
from vq.store.care.wanted import Wanted, matches
from vq.store.directory.identity import IDENTITY_NAME, Identity
from vq.store.disk.memory_disk import MemoryDisk, keep_all
from vq.store.log.checkpoint import Checkpoint
from vq.store.records import codec
from vq.store.records.batches import read_batches, verified
from vq.store.records.compression import compress, decompress
from vq.store.records.format import (
    CHECKSUM_CRC32C,
    CHECKSUM_MD5,
    COMPRESSIONS,
    CONTROL_BYTES,
    CONTROL_HEAD,
    COVERED_HEADER,
    FLAG_CHECKSUM_MASK,
    FLAG_COMPRESSION_MASK,
    FLAG_COMPRESSION_SHIFT,
    FLAG_CONTROL,
    KNOWN_FLAGS,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    BatchHeader,
    batch_crc,
    decode_control,
    encode_control,
    md5,
)
from vq.store.records.offset_index import OffsetIndex
from vq.store.records.producers import ProducerTable
from vq.store.records.record import (
    Properties,
    boundaries,
    decode_into,
    decode_properties,
    decode_records,
    encode_properties,
    encode_record,
)
from vq.store.records.record_filter import filter_records

HARD = Path(__file__).parents[1] / "testdata" / "store" / "hard.txt"
GRAFTS = [
    (0).to_bytes(8, "big"),
    (2**64 - 1).to_bytes(8, "big"),
    (2**63).to_bytes(8, "big"),
    (2**32 - 1).to_bytes(4, "big"),
    (1 << 20).to_bytes(4, "big"),
    b"\xed\xa0\x80",
]


# Valid inputs ---------------------------------------------------------------------------------
def _records() -> list[bytes]:
    properties = encode_properties(Properties(key="k", headers={"a": "b", "": "漢"}, retry_count=3))
    return [
        encode_record(1, b""),
        encode_record(2**63 - 1, b"payload" * 9, b"x"),
        encode_record(3, b"p", None, properties),
        encode_record(4, b"q" * 300, "é".encode(), properties, checksum=CHECKSUM_CRC32C),
        *(
            encode_record(5, compress(b"z" * 5_000, kind), b"x", compression=kind)
            for kind in COMPRESSIONS
        ),
    ]


RECORDS = _records()


def _index() -> bytes:
    index = OffsetIndex(88, messages_before=7)
    for number in range(4):
        index.maybe_add(88 + number * 70_000, number * 3, 1_000 + number)
    return index.to_bytes(end_offset=300_000, messages=12)


def _producers() -> bytes:
    table = ProducerTable()
    for number in range(7):
        table.record(ProducerStamp(number % 2 + 1, number % 3, number), number * 100)
    return table.to_bytes()


def _keys() -> bytes:
    data = b""
    for number in range(4):
        body = b"".join(RECORDS)
        size = CONTROL_BYTES + len(body)
        header = BatchHeader(88 + len(data), size, len(RECORDS), 1_000 + number)
        data += encode_control(header, google_crc32c.value(body)) + body
    builder = KeyIndexBuilder(88)
    builder.add(data, list(verified(data, 88)), 88)
    return builder.to_bytes()


INDEX, PRODUCERS, KEYS = _index(), _producers(), _keys()
WANTED = [
    Wanted(),
    Wanted(id=3),
    Wanted(key="k"),
    Wanted(key=b""),
    Wanted(key=-1, filter=Filter(("x",))),
    Wanted(filter=Filter(("x", "é"))),
]
CHECKPOINT = Checkpoint(
    topic_id="t-漢", start_offset=0, offset=300_000, messages=12, index=INDEX, producers=PRODUCERS
).to_bytes()
IDENTITY = Identity("c", "b1", "n1", "8f0c8f0c8f0c8f0c").to_bytes()


def _log_disk() -> MemoryDisk:
    disk = memory_disk()
    log = open_log(disk)
    for number in range(12):
        append(log, b"%05d" % number * 100, stamp=ProducerStamp(1, 0, number), tag=b"x")
        flush(log)
    log.close()
    return disk.crash(keep_all)


LOG_DISK = _log_disk()
LOG_FILES = [name for name in LOG_DISK.listdir(DIRECTORY) if not name.startswith("@")]


# Breaking them, with checksums that are right ---------------------------------------------------
def with_crc(rng: random.Random, data: bytes) -> bytes:
    """``data`` broken, its last four bytes mostly the CRC of what is before them."""
    out = mutated(rng, data, GRAFTS)
    if rng.random() < 0.1:
        return out
    body = out[:-4] if rng.random() < 0.8 else out
    return body + google_crc32c.value(body).to_bytes(4, "big")


def hostile_record(rng: random.Random) -> bytes:
    """A record whose body or flag was changed and whose checksum fits again, mostly."""
    data = rng.choice(RECORDS)
    _, _, number, flag = RECORD_HEADER.unpack_from(data)
    body = data[RECORD_HEADER_BYTES:]
    if rng.random() < 0.8:
        body = mutated(rng, body, [*GRAFTS, *RECORDS])
    if rng.random() < 0.3:
        flag = rng.choice([*sorted(KNOWN_FLAGS), rng.getrandbits(32), 1 << rng.randrange(32)])
    covered = COVERED_HEADER.pack(number, flag) + body
    if flag & FLAG_CHECKSUM_MASK == CHECKSUM_MD5:
        digest = md5(covered).digest()[:4]
    else:
        digest = google_crc32c.value(covered).to_bytes(4, "big")
    length = (
        len(body) if rng.random() < 0.9 else rng.choice([0, 1, len(body) + 1, 2**31, 2**32 - 1])
    )
    return RECORD_HEADER.pack(length, digest, number, flag) + body


def hostile_records(rng: random.Random) -> bytes:
    """Several records, hostile ones among them, and perhaps cut."""
    parts = [hostile_record(rng) if rng.random() < 0.6 else rng.choice(RECORDS) for _ in range(4)]
    data = b"".join(parts[: rng.randint(1, 4)])
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data


def control_of(rng: random.Random, head: bytes, records: bytes) -> bytes:
    """A control record with this payload and right checksums."""
    head = head[: CONTROL_HEAD.size].ljust(CONTROL_HEAD.size, b"\0")
    payload = head + google_crc32c.extend(google_crc32c.value(records), head).to_bytes(4, "big")
    length = len(payload) if rng.random() < 0.95 else rng.getrandbits(16)
    return RECORD_HEADER.pack(length, md5(payload).digest()[:4], 0, FLAG_CONTROL) + payload


def hostile_batch(rng: random.Random) -> bytes:
    """A batch whose control record says something else than it should, with right checksums."""
    records = hostile_records(rng)
    header = BatchHeader(0, CONTROL_BYTES + len(records), 3, 1_000, producer_id=5)
    head = encode_control(header, 0)[RECORD_HEADER_BYTES:-4]
    if rng.random() < 0.8:
        head = mutated(rng, head, GRAFTS)
    return control_of(rng, head, records) + records


def hostile_properties(rng: random.Random) -> bytes:
    """Properties of a message, broken."""
    found = decode_records(RECORDS[2], 0)[0].properties
    assert found is not None
    return mutated(rng, found, GRAFTS)


def hostile_block(rng: random.Random, data: bytes) -> bytes:
    """A block in which one batch was changed and got right checksums anew."""
    at, places = 0, []
    while (header := decode_control(data, at)) is not None and header.byte_length:
        places.append((at, header.byte_length))
        at += header.byte_length
        if at >= len(data) or not any(data[at : at + CONTROL_BYTES]):
            break
    at, size = rng.choice(places)
    records = data[at + CONTROL_BYTES : at + size]
    head = data[at + RECORD_HEADER_BYTES : at + CONTROL_BYTES - 4]
    if rng.random() < 0.5:
        records = mutated(rng, records, [*GRAFTS, *RECORDS])
    if rng.random() < 0.7:
        head = mutated(rng, head, GRAFTS)
    return data[:at] + control_of(rng, head, records) + records + data[at + size :]


# What is tried ----------------------------------------------------------------------------------
def read_records(_: random.Random, data: bytes) -> None:
    """Everything that reads records; what they agree on, they agree on."""
    for decode in (
        lambda: boundaries(data, 0),
        lambda: filter_records(memoryview(data), 0, Filter(("x",))),
        lambda: check_batch(
            data,
            record_count=max(1, len(data) // 60 % BATCH_RECORDS_MAX),
            crc=google_crc32c.value(data),
            max_message_bytes=1 << 20,
        ),
    ):
        attempt(decode)
    results = []
    for common in {codec.python_decode_common, codec.decode_common}:
        out: list[Message] = []
        tags: dict[bytes, str] = {}
        room = [1 << 20]
        results.append((common(data, 0, 0, "t", 0, tags, out, None, room), out, tags, room))
    assert results[0] == results[-1]
    found: list = []
    attempt(lambda: decode_into(data, 0, found))
    for record in found:
        if record.properties is not None:
            attempt(lambda record=record: decode_properties(record.properties))
        if record.flag & FLAG_COMPRESSION_MASK:
            kind = (record.flag & FLAG_COMPRESSION_MASK) >> FLAG_COMPRESSION_SHIFT
            attempt(lambda record=record, kind=kind: decompress(record.payload, kind))


def read_batch(rng: random.Random, data: bytes) -> None:
    """The control record, and the batch it announces."""
    header = attempt(lambda: decode_control(data))
    if header is not None:
        batch_crc(data, 0, header.byte_length)
        attempt(lambda: decode_records(data, header.start_offset))
    read = attempt(lambda: read_batches(lambda at, size: data[at:][:size], 0, 0, 256, len(data)))
    batches = [] if read is None else read[1]
    for batch in batches:
        for wanted in WANTED:
            attempt(lambda batch=batch, wanted=wanted: list(matches(data, 0, batch, wanted)))
    builder = KeyIndexBuilder(0)
    if batches and attempt(lambda: builder.add(data, batches, 0)) is not None:
        index = KeyIndex(builder.to_bytes())
        for wanted in WANTED:
            if any(True for batch in batches for _ in matches(data, 0, batch, wanted)):
                assert any(index.may_have(n, Probe(wanted)) for n in range(len(index)))


def read_key_index(rng: random.Random, data: bytes) -> None:
    """An index that is taken covers its block, and answers every question."""
    index = attempt(lambda: KeyIndex(data))
    if isinstance(index, KeyIndex):
        parts = [index.part(number) for number in range(len(index))]
        assert parts[0].start == index.start_offset
        assert parts[-1].end == index.end_offset
        assert all(one.end == two.start for one, two in itertools.pairwise(parts))
        number = rng.randrange(len(index))
        assert index.part_at(parts[number].start) == number
        for wanted in WANTED:
            index.may_have(number, Probe(wanted))


def read_checkpoint(_: random.Random, data: bytes) -> None:
    """The checkpoint, and the index and producers within."""
    found = attempt(lambda: Checkpoint.from_bytes(data))
    if found is not None:
        assert found.start_offset <= found.offset
        assert Checkpoint.from_bytes(found.to_bytes()) == found
        attempt(lambda: OffsetIndex.from_bytes(found.index))
        attempt(lambda: ProducerTable.from_bytes(found.producers))


def read_index(rng: random.Random, data: bytes) -> None:
    """An index that is taken answers every question with a place."""
    found = attempt(lambda: OffsetIndex.from_bytes(data))
    if found is not None:
        index = found[0]
        for sought in (0, 1, rng.getrandbits(64), 2**64 - 1):
            assert index.at_offset(sought).offset >= 0
            assert index.before_time(sought).offset >= 0
        index.cut(rng.getrandbits(64))


def read_producers(rng: random.Random, data: bytes) -> None:
    """A table that is taken can be asked, added to and written again."""
    table = attempt(lambda: ProducerTable.from_bytes(data))
    if table is not None:
        for producer in (1, 2, rng.getrandbits(64)):
            stamp = ProducerStamp(producer, rng.randrange(4), rng.choice([0, 1, 6, 2**63]))
            attempt(lambda stamp=stamp: table.check(stamp))
            table.record(stamp, 5)
        assert len(table.copy()) == len(table)


def read_texts(_: random.Random, data: bytes) -> None:
    """The files beside the logs."""
    disk = MemoryDisk()
    disk.write_atomic(Path("/@epoch"), data)
    epoch = attempt(lambda: read_epoch(Path("/"), disk))
    assert epoch is None or epoch >= 0
    attempt(lambda: Identity.from_bytes(data, Path("/") / IDENTITY_NAME))
    attempt(lambda: decode_properties(data))


def open_whole(rng: random.Random, data: bytes) -> None:
    """A log one of whose files is ``data``: it opens and can be read and added to, or says no."""
    name_of = FILE_OF.get(data[:4])
    if name_of is None:  # a run that coverage guides breaks the mark, too
        return
    disk = LOG_DISK.crash(keep_all)
    disk.write_atomic(DIRECTORY / name_of(rng), data[4:])

    def use() -> None:
        log = open_log(disk)
        offset, reached = -1, log.start_offset
        while offset < reached < log.end_offset:  # a record cut off inside a batch is no way on
            offset = reached
            reached = decode_into(log.reader.read(offset, 1 << 20, log.end_offset), offset, [])
        append(log, b"more")
        flush(log)
        log.close()

    attempt(use)


FILE_OF = {
    b"blck": lambda rng: rng.choice([n for n in LOG_FILES if n.endswith(".block")]),
    b"indx": lambda rng: rng.choice([n for n in LOG_FILES if n.endswith(".index")]),
    b"chkp": lambda rng: "checkpoint",
}


def hostile_file(rng: random.Random) -> bytes:
    """A kind of file, and its content."""
    kind = rng.choice(sorted(FILE_OF))
    data = LOG_DISK.read_bytes(DIRECTORY / FILE_OF[kind](rng))
    return kind + (hostile_block(rng, data) if kind == b"blck" else with_crc(rng, data))


TARGETS: Targets = {
    "records": (read_records, hostile_records),
    "batches": (read_batch, hostile_batch),
    "checkpoint": (read_checkpoint, lambda rng: with_crc(rng, CHECKPOINT)),
    "index": (read_index, lambda rng: with_crc(rng, INDEX)),
    "keys": (read_key_index, lambda rng: with_crc(rng, KEYS)),
    "producers": (read_producers, lambda rng: with_crc(rng, PRODUCERS)),
    "epoch": (read_texts, lambda rng: mutated(rng, b"vq-epoch 1 17\n", [*GRAFTS, "²".encode()])),
    "identity": (read_texts, lambda rng: mutated(rng, IDENTITY, [b"[", b'"', b"1e999", b"null"])),
    "properties": (read_texts, hostile_properties),
    "logs": (open_whole, hostile_file),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_damage_with_right_checksums_is_refused_quickly(name: str) -> None:
    """No other error, no slow input, no growth."""
    check(__file__, name)


@pytest.mark.parametrize("line", HARD.read_text().splitlines(), ids=lambda line: line[:50])
def test_hard_inputs_are_refused(line: str) -> None:
    """Target, what is hard about it, the bytes."""
    name, _, text = line.split()
    TARGETS[name][0](random.Random(0), bytes.fromhex(text.removeprefix("-")))


if __name__ == "__main__":
    child(TARGETS)
