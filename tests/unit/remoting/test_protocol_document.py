"""docs/protocol.md says what the code does: fields, numbers, statuses and limits."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor
from support.cases import case

from vq import limits
from vq.broker.serving.reading import FILTER_SCAN_BYTES
from vq.coordination.tree.values import topics
from vq.errors import STATUSES, OutcomeUnknown, VqError
from vq.hessian import plain as hessian
from vq.model import Message, PartitionState, TopicSettings
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import Closing, ServerConnection
from vq.remoting.format import PREFIX, Access, Command
from vq.remoting.frames import encode_frame
from vq.remoting.hello import ServerIdentity
from vq.remoting.membership import Exchange, Principal, Side, proof
from vq.security.rules import Resource, Right
from vq.store.properties_pb2 import RecordProperties

DOCUMENT = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text("utf-8")
TYPES = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_SINT64: "sint64",
    FieldDescriptor.TYPE_FIXED32: "fixed32",
}
MESSAGES = [message for name, message in sorted(wire.DESCRIPTOR.message_types_by_name.items())]


def between(start: str, end: str) -> str:
    """The text between two markers."""
    return DOCUMENT.split(start, 1)[1].split(end, 1)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of every row of the first table in ``text``, without its head."""
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def type_of(field: FieldDescriptor) -> str:
    """A field's type as wire.proto writes it."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"map<{type_of(key)}, {type_of(value)}>"
    name = TYPES[field.type] if field.message_type is None else field.message_type.name
    return f"repeated {name}" if field.is_repeated else name


def test_every_message_is_told_field_by_field() -> None:
    """Names, numbers and types."""
    for message in MESSAGES:
        name = message.name
        with case(name):
            assert f"`{name}`" in DOCUMENT
            if not message.fields:
                assert f"`{name}` has no fields" in DOCUMENT
                continue
            table = re.search(rf"^.*`{name}`.*\n\n((?:\|.*\n)+)", DOCUMENT, re.MULTILINE)
            assert table is not None
            told = [tuple(row[:3]) for row in rows(table[1])]
            fields = [(field.name, str(field.number), type_of(field)) for field in message.fields]
            assert told == fields


@pytest.mark.parametrize("command", Command)
def test_every_command_has_its_place(command: Command) -> None:
    """With its number."""
    assert re.search(rf"^### .*\b{command.name} \({command.value}\)", DOCUMENT, re.MULTILINE)


def status_rows() -> str:
    """The table of statuses as vq/errors.py has them."""
    lines = ["| status | name | retry | refresh | unknown | what to do |", "|" + " --- |" * 6]
    for number, cls in sorted(STATUSES.items()):
        marks = (cls.retriable, cls.refresh_routes, issubclass(cls, OutcomeUnknown))
        shown = " | ".join("yes" if mark else "" for mark in marks)
        lines.append(f"| {number} | {cls.__name__} | {shown} | {cls.hint.replace('|', '/')} |")
    return "\n".join(re.sub(" +", " ", line) for line in lines)


def test_the_table_of_statuses_is_that_of_the_code() -> None:
    """Paste what this prints when it differs."""
    told = between("<!-- statuses:", "<!-- end of statuses -->").split("-->\n", 1)[1].strip()
    assert told == status_rows(), "\n" + status_rows()


def test_statuses_are_unique() -> None:
    """One number, one class; and every class that can be refused says what to do.

    A subclass without a number of its own goes over the wire as its base does.
    """
    numbered = [cls for cls in subclasses(VqError) if "status" in vars(cls)]
    with_status = [cls for cls in numbered if cls.status is not None]
    assert len({cls.status for cls in with_status}) == len(with_status)
    assert all(cls.hint for cls in with_status)


def subclasses(cls: type[VqError]) -> set[type[VqError]]:
    """All classes below ``cls``."""
    return {each for sub in cls.__subclasses__() for each in {sub, *subclasses(sub)}}


def test_the_limits_are_those_of_the_code() -> None:
    """Each named with its constant."""
    table = rows(between("<!-- limits:", "<!-- end of limits -->"))
    assert len(table) >= 20
    for what, limit, name in table:
        number = float(re.sub(r"[^0-9.]", "", limit))
        assert number == getattr(limits, name), what


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    """Where the text repeats a bound."""
    text = " ".join(DOCUMENT.replace("\N{NO-BREAK SPACE}", " ").split())
    for number, words in (
        (hessian.DOCUMENT_BYTES_MAX, "reads at most {} bytes"),
        (hessian.ELEMENTS_MAX, "{} values (keys and chunks counted)"),
        (hessian.DEPTH_MAX, "{} containers"),
        (limits.PRODUCER_BATCHES_REMEMBERED, "remembers the last {} batches"),
        (limits.FRAME_BYTES_MAX_BEFORE_HELLO, "a frame has at most {} bytes"),
        (limits.FETCH_BYTES_MAX, "of the body; 0 or more than {} counts"),
        (int(limits.LONG_POLL_S_MAX * 1000), "more than {} counts"),
        (FILTER_SCAN_BYTES, "looks at {} bytes of the log at a time"),
        (limits.MESSAGE_BYTES_MAX, "not decompress to at most {} bytes"),
        (limits.PARTITIONS_PER_TOPIC_MAX, "how many, 1 to {}"),
    ):
        shown = f"{number:,}".replace(",", " ")
        assert words.format(shown) in text


def test_details_of_errors_belong_to_statuses() -> None:
    """The classes of the table exist and have a status."""
    table = rows(between("### Details of errors", "## Limits"))
    named = {name for row in table for name in re.findall(r"`([A-Z]\w+)`", row[0])}
    assert len(named) >= 8
    assert named <= {cls.__name__ for cls in STATUSES.values()}


def first_cells(marker: str) -> list[str]:
    """The first column of the table behind a marker."""
    return [row[0].strip("`") for row in rows(DOCUMENT.split(f"<!-- {marker}:", 1)[1])]


def test_values_of_the_nodes_are_those_of_the_code() -> None:
    """Phases of a topic and states of a partition."""
    phases = {topics.READY, topics.CREATING, topics.DELETING, topics.IN_GRACE}
    assert set(first_cells("phases")) == phases
    assert first_cells("states") == [each.value for each in PartitionState]


def test_settings_are_those_of_the_code() -> None:
    """Each with its default, as its node has it."""
    told = rows(DOCUMENT.split("<!-- settings:", 1)[1])
    settings = dataclasses.asdict(TopicSettings())
    assert {row[0].strip("`"): json.loads(row[1].strip("`")) for row in told} == settings


def test_properties_are_those_of_the_code() -> None:
    """Names, numbers and types; honoured is what a consumer gives to the application."""
    told = rows(DOCUMENT.split("<!-- properties:", 1)[1])
    fields = RecordProperties.DESCRIPTOR.fields
    assert [tuple(row[:3]) for row in told] == [
        (field.name, str(field.number), type_of(field)) for field in fields
    ]
    honoured = {row[0] for row in told if row[3].startswith("yes")}
    keys = {field.name for field in fields if field.containing_oneof is not None}
    assert honoured == {field.name for field in fields} & set(Message._fields) | keys


def hello(**fields: str | int) -> bytes:
    """A frame with a HELLO, good but for ``fields``."""
    message = wire.HelloRequest(**{"version_min": 1, "version_max": 1, **fields})
    return encode_frame(Command.HELLO, 0, 1, 0, message.SerializeToString())


FAULTS = {
    "no frame": (b"GET / HTTP/1.1\r\n\r\n    ", False),
    "another version": (PREFIX.pack(16, b"vq\x02", 0, Command.HELLO, 0, 1, 0), False),
    "too large": (PREFIX.pack(2**31, b"vq\x01", 0, Command.HELLO, 0, 1, 0), False),
    "no version in common": (hello(version_min=9, version_max=9), False),
    "another cluster": (hello(cluster="another"), False),
    "a bad client id": (hello(client_id="a b"), False),
    "authentication": (hello(mechanism="magic"), False),
    "no hello": (encode_frame(Command.PING, 0, 1, 0, b""), False),
    "unknown command": (encode_frame(999, 0, 1, 0, b""), True),
    "a bad header": (encode_frame(Command.PING, 0, 1, 0, b"\xff"), True),
    "unknown flags": (encode_frame(Command.PING, 0, 1, 128, b""), True),
    "a status": (encode_frame(Command.PING, 1, 1, 0, b""), True),
    "an id in use": (encode_frame(Command.PING, 0, 1, 0, b"") * 2, True),
    "a second hello": (hello(), True),
    "no user": (hello() + encode_frame(Command.PING, 0, 2, 0, b""), False),
}
#: Faults where the broker takes no anonymous clients.
STRICT = {"no user"}


def broker_end(fault: str) -> ServerConnection:
    """The broker's end of a new connection on which a fault is one."""
    identity = ServerIdentity(cluster="c", group="g", node="n")
    if fault in STRICT:
        return ServerConnection(identity, authenticate=lambda _: None, mechanisms=["SCRAM-SHA-256"])
    return ServerConnection(identity)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_frame_closes_with_a_status_of_the_table(fault: str) -> None:
    """Each kind of fault, sent to the broker's end of a connection."""
    data, after_hello = FAULTS[fault]
    connection = broker_end(fault)
    if after_hello:
        connection.receive_data(hello())
    *_, last = connection.receive_data(data)
    assert isinstance(last, Closing)
    assert type(last.error).__name__ in first_cells("closing")


def test_every_status_of_the_table_closes_for_a_reason() -> None:
    """The faults above give those of the frame; command 0 has the others."""
    found = set()
    for fault, (data, after_hello) in FAULTS.items():
        connection = broker_end(fault)
        *_, last = connection.receive_data((hello() if after_hello else b"") + data)
        assert isinstance(last, Closing)
        found.add(type(last.error).__name__)
    table = rows(DOCUMENT.split("<!-- closing:", 1)[1])
    assert found == {row[0] for row in table if "command 0" not in row[1]}


def test_schemas_say_where_generated_code_goes() -> None:
    """In Go, Java and C#: a compiler for these asks for it."""
    for descriptor in (wire.DESCRIPTOR, RecordProperties.DESCRIPTOR.file):
        options = descriptor.GetOptions()
        assert options.go_package == descriptor.package.replace(".", "/")
        assert options.java_package == descriptor.package
        assert options.csharp_namespace == descriptor.package.title()


def test_the_table_of_rights_is_that_of_the_code() -> None:
    told = {}
    for names, right, resource in rows(between("<!-- rights:", "<!-- end of rights -->")):
        for name in names.split(", "):
            told[Command[name]] = () if right == "none" else (Right(right), Resource(resource))
    assert told == {each: each.needs for each in Command if each.access is Access.ANYONE}


def test_the_table_of_access_is_that_of_the_code() -> None:
    """Every command has a row."""
    told = {}
    for names, whose, why in rows(between("<!-- access:", "<!-- end of access -->")):
        assert why
        told.update({Command[name]: Access(whose) for name in names.split(", ")})
    assert told == {command: command.access for command in Command}


def test_the_examples_of_proofs_are_those_of_the_code() -> None:
    """Whoever writes a broker's side in another language compares with these."""
    exchange = Exchange("c", Principal("b1", "n2"), Principal("b1", "n1"), b"\1" * 32, b"\2" * 32)
    table = rows(between("<!-- proofs:", "<!-- end of proofs -->"))
    assert table == [
        [each.value.decode(), f"`{proof(bytes(32), each, exchange).hex()}`"] for each in Side
    ]
