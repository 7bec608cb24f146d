"""Hostile texts and files: what people, files and znodes bring is read, or refused in plain words.

Filters, patterns of topics, contents in Hessian, values in ZooKeeper, definitions, tokens of the
gateway, notes of a master's own log, zips of archived blocks, and requests for metrics. As with
frames, nothing but ``VqError`` comes of them, and no input takes long or makes the process grow
(see ``support.fuzz``).
"""

import asyncio
import importlib
import json
import pkgutil
import random
from dataclasses import is_dataclass

import pytest
from support.fuzz import Targets, attempt, check, child, mutated
from support.store import append, blocks_of, flush, memory_disk, open_log, write_archive

from vq import topic_pattern
from vq.broker.journal import notes
from vq.broker.transactions.notes import Checked, Client, PartPiece, decode_note, encode_note
from vq.coordination.tree import values
from vq.coordination.tree.values.brokers import GroupState, Registration
from vq.coordination.tree.values.cluster import ClusterSettings
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup
from vq.coordination.tree.values.topics import DeletedTopics, TopicNode
from vq.coordination.tree.values.value import Value
from vq.errors import CoordinationError, CorruptData
from vq.gateway import tokens
from vq.message_filter import Filter, Where
from vq.model import Message, TopicPartition, TopicSettings
from vq.operations.cluster.definition_file import FORMAT, definitions_from
from vq.remoting.http import HttpConnection, HttpServer, text_page
from vq.serializers import Hessian2
from vq.store.archive.archive import ArchiveFiles
from vq.store.archive.zipped_block import WantedBlock, ZippedBlock

#: As the modules have them: with slots, a dataclass is made anew, and the first one stays around.
VALUES = [
    each
    for module in pkgutil.iter_modules(values.__path__)
    for each in vars(importlib.import_module(f"{values.__name__}.{module.name}")).values()
    if isinstance(each, type) and issubclass(each, Value) and is_dataclass(each)
]

GRAFTS = [
    b"null",
    b"-1",
    b"1e999",
    b'"',
    b"{}",
    b"[]",
    b"\xed\xa0\x80",
    "漢".encode(),
    b"[" * 3_000,
]
WHERES = [
    b"price > 10 AND region IN ('hz', 'sh') AND NOT (vip = TRUE)",
    b"a BETWEEN 1 AND 2.5e3 OR b IS NOT NULL OR TAGS STARTSWITH 'x''y'",
    b'"any name" <> .5 AND k NOT IN (1, -2)',
    b"(" * 400 + b"a = 1" + b")" * 400,
    b"NOT " * 500 + b"a = 1",
]
TEXTS = [b"new || paid", b'"a*b" || c', b"*", b"orders.*", b"?" * 50, b"*a" * 60, b"class:app.Mine"]
SERIALIZER = Hessian2()
CONTENTS = [
    SERIALIZER.dumps(each)
    for each in (
        {"a": [1, 2.5, None, True, b"x" * 70_000], "b": {"c": "漢" * 40}},
        ["x" * 40_000, -(2**40)],
        [[[[[[[1]]]]]]],
    )
]
CONTENTS += [b"\x43\x01A\x92\x01a\x01b\x60\x91\x51\x90", b"\x57" + b"\x51\x90" * 50 + b"Z"]
NODES = [
    value.encode()
    for value in (
        ClusterSettings(),
        TopicNode(id="ab", settings=TopicSettings(partitions=3)),
        DeletedTopics(topics={"ab": "orders"}),
        Registration(host="h", port=8123, metrics_port=8124, started_ms=1, version="1", pid=2),
        GroupState(epoch=3, master="n1", insync=("n1",), incarnations={"n1": 7}),
        ConsumerGroup(topics={"orders": Filter.of_text("a || b")}),
        CommittedOffset(offset=88, message_id=5, ahead=((99, 6),)),
    )
]
DEFINITIONS = json.dumps(
    {
        "format": FORMAT,
        "v": 1,
        "cluster": "main",
        "time_s": 1.5,
        "settings": {"delete_grace_hours": 72},
        "broker_groups": [{"group": "b1", "pool": "p", "labels": {"a": "b"}}],
        "topics": [{"topic": "orders", "settings": {"partitions": 3, "flush": "sync"}}],
        "groups": [
            {
                "group": "g",
                "start": "earliest",
                "topics": {"orders": "a || b"},
                "terms": {"model": "clustering", "failure": {}},
                "offsets": [{"topic": "orders", "partition": 0, "offset": 88}],
            }
        ],
    }
).encode()
TOKENS = (
    f'version = 1\n[[token]]\nname = "a"\nsha256 = "{"0" * 64}"\n'
    'write = ["orders.*"]\nread = ["*"]\ngroups = []\n'
).encode()
NOTES = [
    notes.encode({"sent": ["t", 1], "stamp": [1, 2, 3], "before": 9}, notes.pack_items([])),
    b'{"sent": ["t", 1], "stamp": [1, 2, 3]}\n' + bytes(20),
    b'{"done": [["t", 1, 88], ["u", 0]]}\n',
    encode_note(PartPiece(7, 0, TopicPartition("t", 1), "ab", 2, b"x" * 40)),
    encode_note(Checked(7, 2, 1_000)),
    encode_note(Client(id="c", epoch=3, at_ms=1_000)),
]
REQUEST = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n"


def _zipped() -> tuple[bytes, WantedBlock]:
    disk = memory_disk()
    log = open_log(disk)
    for number in range(3):
        append(log, b"%d" % number * 300)
    log.roll()
    flush(log)
    block = blocks_of(log)[0]
    size = len(disk.read_bytes(block.path))
    write_archive(disk, block, topic_id="t1", partition=0)
    data = disk.read_bytes(ArchiveFiles.of(block.path).zip)
    return data, WantedBlock("x.zip", len(data), "orders", 0, "t1", 0, size)


ZIP, BLOCK = _zipped()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# What is tried ----------------------------------------------------------------------------------
def read_filter(_: random.Random, data: bytes) -> None:
    """A filter that is taken answers for a message, and its text is a filter again."""
    text = _text(data)
    for make in (Filter.parse, Filter.of_text):
        attempt(lambda make=make: make(text))
    found = attempt(lambda: Filter.of(Where(text)))
    if found is not None:
        for headers in ({}, {"a": "1", "price": "11", "region": "hz", "any name": "x"}):
            found.check(Message("t", b"", tag="x'y", headers=headers))


def read_pattern(rng: random.Random, data: bytes) -> None:
    """A pattern that is taken answers for a name of the greatest length, quickly."""
    pattern = attempt(lambda: topic_pattern.check_pattern(_text(data)))
    if pattern is not None:
        topic_pattern.matches(pattern, "a" * 255)
        topic_pattern.overlap(pattern, "*a?*b" * 10)


def read_content(_: random.Random, data: bytes) -> None:
    """Contents of messages: what is read is written and read again as the same."""
    value = attempt(lambda: (SERIALIZER.loads(data),))
    again = None if value is None else attempt(lambda: SERIALIZER.dumps(value[0]))
    if again is not None:
        assert repr(SERIALIZER.loads(again)) == repr(value[0])  # also where it is not a number


def read_node(_: random.Random, data: bytes) -> None:
    """A znode is a value or unreadable, whatever class is looked for; what is written is read."""
    for kind in VALUES:
        try:
            value = kind.decode("/vq/main/x", data)
        except CoordinationError:
            continue
        kind.decode("/vq/main/x", value.encode())


def read_definitions(_: random.Random, data: bytes) -> None:
    """A file of definitions, once it is JSON."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):  # the command says that it is no JSON
        return
    attempt(lambda: definitions_from(document))


def read_tokens(_: random.Random, data: bytes) -> None:
    """The file of the gateway's tokens: those that are read answer for a topic."""
    for token in attempt(lambda: tokens.parse(_text(data))) or ():
        token.caller.sees("orders.eu")


def read_note(_: random.Random, data: bytes) -> None:
    """A note of a master's own log, for deliveries and for transactions."""
    for decode in (lambda: notes.decode(data, notes.delivery_in), lambda: decode_note(data)):
        try:
            decode()
        except CorruptData:
            pass


def read_zip(_: random.Random, data: bytes) -> None:
    """The zip of an archived block is that block, or it is refused."""

    class Reader:
        def pread(self, position: int, length: int) -> bytes:
            return data[position : position + length]

        def close(self) -> None:
            """Nothing is open."""

    def read() -> None:
        block = ZippedBlock(Reader(), BLOCK)
        assert block.read(BLOCK.start, BLOCK.end)[0] == BLOCK.start

    attempt(read)


def read_request(rng: random.Random, data: bytes) -> None:
    """A request for metrics: one answer at most, with a status, then the end."""

    class Transport(asyncio.Transport):
        def __init__(self) -> None:
            super().__init__()
            self.sent, self.ended = b"", False

        def write(self, data: bytes) -> None:  # type: ignore[override]
            assert not self.sent  # one answer
            self.sent = data

        def is_closing(self) -> bool:
            return self.ended

        def close(self) -> None:
            self.ended = True

        abort = close

    async def ask() -> None:
        async def page():
            return text_page(200, "fine")

        transport = Transport()
        connection = HttpConnection(HttpServer({"/metrics": page}))
        connection.connection_made(transport)
        cut = rng.randrange(len(data) + 1)
        for part in (data[:cut], data[cut:]):
            if not transport.ended:
                connection.data_received(part)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        connection.connection_lost(None)
        assert not transport.sent or transport.sent[:9] == b"HTTP/1.1 "

    asyncio.run(ask())


def _broken(*samples: bytes):
    return lambda rng: mutated(rng, rng.choice(samples), [*GRAFTS, *samples[:3]])


TARGETS: Targets = {
    "filters": (read_filter, _broken(*WHERES, *TEXTS)),
    "patterns": (read_pattern, _broken(*TEXTS)),
    "contents": (read_content, _broken(*CONTENTS)),
    "nodes": (read_node, _broken(*NODES)),
    "definitions": (read_definitions, _broken(DEFINITIONS)),
    "tokens": (read_tokens, _broken(TOKENS)),
    "notes": (read_note, _broken(*NOTES)),
    "zips": (read_zip, _broken(ZIP)),
    "http": (read_request, _broken(REQUEST)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_hostile_texts_and_files_are_refused_quickly(name: str) -> None:
    """No other error, no slow input, no growth."""
    check(__file__, name)


if __name__ == "__main__":
    child(TARGETS)
