"""Writes the golden frames in this directory, from tests/support/wire_samples.py.

Run it only after a deliberate change of the protocol, and read the difference:

    PYTHONPATH=.:tests python tests/testdata/wire/make_golden.py
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from google.protobuf.message import Message
from support.wire_samples import CORRELATION_ID, ERROR, RESEND, SAMPLES

from vq.hessian import plain as hessian
from vq.remoting import hessian_messages, messages
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import FLAG_HESSIAN, MAGIC_VERSION, PREFIX_BYTES, Command

HERE = Path(__file__).parent
ENCODINGS = {"protobuf": 0, "Hessian": FLAG_HESSIAN}


def hex_lines(data: bytes, comment: str) -> Iterator[str]:
    """Sixteen bytes a line, the comment beside the first."""
    for start in range(0, len(data), 16):
        shown = data[start : start + 16].hex(" ")
        yield f"{shown:<48}# {comment}" if start == 0 else shown


def header_lines(message: Message, flags: int) -> Iterator[str]:
    """The header, a field at a time: fields follow one another in both encodings."""
    if flags:
        yield from hex_lines(b"H", "a map")
    for field, value in message.ListFields():
        alone = type(message)()
        if field.is_repeated:
            getattr(alone, field.name).MergeFrom(value)
        elif isinstance(value, Message):
            getattr(alone, field.name).CopyFrom(value)
        else:
            setattr(alone, field.name, value)
        if flags:
            data = hessian_messages.encode(alone)[1:-1]
        else:
            data = alone.SerializeToString(deterministic=True)
        if isinstance(value, Mapping):
            value = dict(sorted(value.items()))
        shown = " ".join(str(value).split())
        yield from hex_lines(data, f"{field.name} = {shown}")
    if flags:
        yield from hex_lines(b"Z", "end of the map")


def frame_lines(
    command: int, status: int, flags: int, message: Message, header: bytes, body: bytes
) -> Iterator[str]:
    """A whole frame, a field a line."""
    length = PREFIX_BYTES - 4 + len(header) + len(body)
    yield from hex_lines(length.to_bytes(4, "big"), f"length: {length} bytes follow")
    yield from hex_lines(MAGIC_VERSION[:2], "magic 'vq'")
    yield from hex_lines(MAGIC_VERSION[2:], "version")
    yield from hex_lines(bytes([flags]), "flags: " + ("HESSIAN" if flags else "none"))
    yield from hex_lines(command.to_bytes(2, "big"), f"command {Command(command).name}")
    yield from hex_lines(status.to_bytes(2, "big"), f"status {status}")
    yield from hex_lines(CORRELATION_ID.to_bytes(4, "big"), f"correlation id {CORRELATION_ID}")
    yield from hex_lines(len(header).to_bytes(4, "big"), f"header length {len(header)}")
    yield from header_lines(message, flags)
    yield from hex_lines(body, f"body, {len(body)} bytes")


def sections(command: Command) -> Iterator[str]:
    """All frames of one command."""
    for direction in ("request", "response"):
        message, body = SAMPLES[command, direction]
        for name, flags in ENCODINGS.items():
            yield f"\n== {direction}, {name}"
            header = messages.encode_header(command, message, flags)
            yield from frame_lines(command, 0, flags, message, header, body)
    if command is Command.PUT:
        for name, flags in ENCODINGS.items():
            yield f"\n== resend, {name}"
            header = messages.encode_header(command, RESEND.message, flags)
            yield from frame_lines(command, 0, flags, RESEND.message, header, RESEND.body)
    if command is Command.GET:
        for name, flags in ENCODINGS.items():
            yield f"\n== error, {name}"
            status, header = messages.encode_error(ERROR, flags)
            message = hessian_messages.decode(wire.Error, messages.encode_error(ERROR, 1)[1])
            yield from frame_lines(command, status, flags, message, header, b"")


if __name__ == "__main__":
    assert hessian.decode(b"HZ") == {}
    for command in Command:
        lines = [
            f"# Golden frames of {command.name}: hex, and what it is behind a #.",
            "# Written by make_golden.py; pinned by tests/unit/remoting/test_golden.py.",
            *sections(command),
        ]
        path = HERE / f"{command.name.lower()}.txt"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
