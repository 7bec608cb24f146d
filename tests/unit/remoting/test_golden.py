"""The golden frames: what the wire looks like is pinned byte for byte, for every command.

A failure here means that clients in the field would no longer be understood.
"""

from collections.abc import Iterator
from pathlib import Path

from support.cases import case
from support.wire_samples import CORRELATION_ID, ERROR, RESEND, SAMPLES, Sample

from vq.remoting import messages
from vq.remoting.format import FLAG_HESSIAN, Command
from vq.remoting.frames import FrameParser, encode_frame

WIRE = Path(__file__).parents[2] / "testdata" / "wire"


def sections(command: Command) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every golden frame of one command."""
    title, data = "", b""
    for line in (WIRE / f"{command.name.lower()}.txt").read_text("utf-8").splitlines():
        if line.startswith("== "):
            if title:
                yield title, data
            title, data = line.removeprefix("== "), b""
        else:
            data += bytes.fromhex(line.partition("#")[0])
    yield title, data


GOLDEN = [(command, *section) for command in Command for section in sections(command)]


def flags_of(title: str) -> int:
    """The flags that a section's title stands for."""
    return FLAG_HESSIAN if title.endswith("Hessian") else 0


def sample_of(command: Command, kind: str) -> Sample:
    return RESEND if kind == "resend" else SAMPLES[command, kind]


def test_every_command_has_its_four_frames() -> None:
    """Request and response, protobuf and Hessian; one shows an error, one a second request."""
    titles = {(command, title) for command, title, _ in GOLDEN}
    wanted = {
        (command, f"{direction}, {encoding}")
        for command in Command
        for direction in ("request", "response")
        for encoding in ("protobuf", "Hessian")
    }
    assert wanted <= titles
    assert titles - wanted == {
        (command, f"{kind}, {encoding}")
        for command, kind in ((Command.GET, "error"), (Command.PUT, "resend"))
        for encoding in ("protobuf", "Hessian")
    }


def test_the_golden_frames_are_read() -> None:
    """Each is one frame, and its header and body say what the sample says."""
    for command, title, data in GOLDEN:
        with case(command, title):
            check_read(command, title, data)


def check_read(command: Command, title: str, data: bytes) -> None:
    (frame,) = FrameParser().feed(data)
    flags = flags_of(title)
    assert (frame.command, frame.correlation_id, frame.flags) == (command, CORRELATION_ID, flags)
    kind = title.partition(",")[0]
    if kind == "error":
        error = messages.decode_error(frame.status, frame.header, flags)
        assert (type(error), str(error), error.details) == (type(ERROR), str(ERROR), ERROR.details)
        return
    decode = messages.decode_response if kind == "response" else messages.decode_request
    sample = sample_of(command, kind)
    assert frame.status == 0
    assert decode(command, frame.header, flags) == sample.message
    assert frame.body == sample.body


def test_the_golden_frames_are_written() -> None:
    """The same bytes again."""
    for command, title, data in GOLDEN:
        flags = flags_of(title)
        kind = title.partition(",")[0]
        with case(command, title):
            if kind == "error":
                status, header = messages.encode_error(ERROR, flags)
                body = b""
            else:
                message, body = sample_of(command, kind)
                status, header = 0, messages.encode_header(command, message, flags)
            head = encode_frame(command, status, CORRELATION_ID, flags, header, len(body))
            assert (head + body).hex(" ") == data.hex(" ")


def test_the_samples_leave_out_no_field() -> None:
    """A new field of wire.proto needs a place in the vectors. Exceptions carry their reason."""
    unset = {
        f"{sample.message.DESCRIPTOR.name}.{field.name}"
        for sample in SAMPLES.values()
        for field in sample.message.DESCRIPTOR.fields
        if field not in dict(sample.message.ListFields())
    }
    assert unset == {
        "HelloRequest.mechanism",  # empty for anonymous clients, and for members of the cluster
        "HelloRequest.credentials",
        "HelloResponse.challenge",  # empty unless the client names a user
        "HelloResponse.mechanisms",  # empty unless the broker knows users
        "PutRequest.transaction_id",  # reserved for transactions
        "PutRequest.resend",  # in frames of its own
        "PutRequest.accepted",  # only brokers set it
    }
