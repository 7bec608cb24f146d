"""docs/protocol.md says what the code does: fields, numbers, statuses and limits."""

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

from vq import errors, limits
from vq.errors import STATUSES, OutcomeUnknown, VqError
from vq.remoting import hessian
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command

DOCUMENT = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text("utf-8")
TYPES = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_INT64: "int64",
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


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_every_message_is_told_field_by_field(message: type[wire.Error]) -> None:
    """Names, numbers and types."""
    name = message.name  # type: ignore[attr-defined]
    assert f"`{name}`" in DOCUMENT
    fields = message.fields  # type: ignore[attr-defined]
    if not fields:
        assert f"`{name}` has no fields" in DOCUMENT
        return
    table = re.search(rf"^.*`{name}`.*\n\n((?:\|.*\n)+)", DOCUMENT, re.MULTILINE)
    assert table is not None
    told = [tuple(row[:3]) for row in rows(table[1])]
    assert told == [(field.name, str(field.number), type_of(field)) for field in fields]


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
    """One number, one class; and every class that can be refused says what to do."""
    with_status = [cls for cls in subclasses(VqError) if cls.status is not None]
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
    ):
        shown = f"{number:,}".replace(",", " ")
        assert words.format(shown) in text


def test_details_named_in_the_text_belong_to_statuses() -> None:
    """The classes exist."""
    for name in re.findall(r"`([A-Z][A-Za-z]+)` (?:has|have|and)", DOCUMENT):
        assert hasattr(errors, name) or hasattr(wire, name), name
