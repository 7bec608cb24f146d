"""Headers: the right message for every command, in both encodings, and errors that always fit."""

import pytest
from support.cases import case
from support.wire_samples import SAMPLES

from vq import limits
from vq.errors import (
    STATUSES,
    CoordinationError,
    InternalError,
    InvalidArgument,
    InvalidRequest,
    OffsetOutOfRange,
    OutcomeUnknown,
    ProtocolError,
    Refused,
    Throttled,
    UnknownCommand,
    VqError,
)
from vq.remoting import messages
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import COMMANDS, FLAG_DELAY, FLAG_HESSIAN, Command
from vq.remoting.frames import Frame

BOTH = pytest.mark.parametrize("flags", [0, FLAG_HESSIAN], ids=["protobuf", "Hessian"])


@BOTH
def test_every_header_survives_the_way(flags: int) -> None:
    """Encoded and decoded it is the same message."""
    for (command, direction), (message, _) in SAMPLES.items():
        decode = messages.decode_request if direction == "request" else messages.decode_response
        with case(command, direction):
            header = messages.encode_header(command, message, flags)
            assert decode(command, header, flags) == message


@BOTH
def test_every_field_missing_is_a_header_of_defaults(flags: int) -> None:
    """Both encodings leave out defaults."""
    header = messages.encode_header(Command.GET, wire.GetRequest(), flags)
    assert header == (b"HZ" if flags else b"")
    assert messages.decode_request(Command.GET, header, flags) == wire.GetRequest()


def test_a_message_of_another_command_is_not_encoded() -> None:
    """A slip of ours, caught before the wire."""
    with pytest.raises(InvalidArgument, match="PutRequest and PutResponse"):
        messages.encode_header(Command.PUT, wire.GetRequest())


@pytest.mark.parametrize("command", [0, 9, 34, 99, 65535])
def test_an_unknown_command_is_refused(command: int) -> None:
    """A request names the known ones; a reply is the broker's fault."""
    with pytest.raises(UnknownCommand, match=f"command {command} is unknown; known are HELLO 1"):
        messages.decode_request(command, b"", 0)
    with pytest.raises(ProtocolError, match=str(command)):
        messages.decode_response(command, b"", 0)


@BOTH
@pytest.mark.parametrize("header", [b"\xff", b"\x0a\x05abc", b"H\x05topic"])
def test_a_header_that_is_none_is_refused(header: bytes, flags: int) -> None:
    """As a request it is refused, as a response the broker broke the protocol."""
    with pytest.raises(InvalidRequest, match="header of GET"):
        messages.decode_request(Command.GET, header, flags)
    with pytest.raises(ProtocolError):
        messages.decode_response(Command.GET, header, flags)
    with pytest.raises(ProtocolError):
        messages.decode_error(20, header, flags)


def test_text_that_is_no_utf8_is_refused() -> None:
    """Names become directories and znodes; they are text."""
    with pytest.raises(InvalidRequest, match="header of GET"):
        messages.decode_request(Command.GET, b"\x0a\x02\xff\xfe", 0)


def test_unknown_flags_are_refused() -> None:
    """A later version may give them a meaning that must not be missed."""
    with pytest.raises(InvalidRequest, match="0x02"):
        messages.decode_request(Command.PING, b"", 2)


def test_unknown_fields_are_read_over() -> None:
    """So fields can be added without a new version."""
    header = messages.encode_header(Command.PING, wire.PingRequest()) + b"\xf8\x07\x05"
    assert isinstance(messages.decode_request(Command.PING, header, 0), wire.PingRequest)
    message = messages.decode_request(Command.GET, b"H\x03new\x91\x09partition\x93Z", FLAG_HESSIAN)
    assert message == wire.GetRequest(partition=3)


@BOTH
def test_every_error_comes_back_as_its_class(flags: int) -> None:
    """With its text and its details."""
    for status, kind in STATUSES.items():
        error = kind("what happened", details={"earliest": 5, "state": "ro"})
        with case(status):
            sent, header = messages.encode_error(error, flags)
            got = messages.decode_error(sent, header, flags)
            assert sent == status
            assert (type(got), str(got), got.details) == (type(error), str(error), error.details)


def test_an_error_without_a_status_travels_as_what_it_means() -> None:
    """A bad argument is the request's fault; anything else leaves the outcome unknown."""
    assert messages.status_of(InvalidArgument("x")) == InvalidRequest.status
    assert messages.status_of(CoordinationError("x")) == InternalError.status
    assert messages.status_of(Refused("x")) == InternalError.status
    assert issubclass(InternalError, OutcomeUnknown)


def test_an_unknown_status_leaves_the_outcome_unknown() -> None:
    """A newer broker may have statuses that this client does not know."""
    error = messages.decode_error(999, messages.encode_error(VqError("new"))[1], 0)
    assert isinstance(error, OutcomeUnknown)
    assert "status 999" in str(error)


@BOTH
def test_an_error_always_fits_into_a_frame(flags: int) -> None:
    """Whatever text and details are put into it, in any script."""
    details: dict[str, int | str] = {f"{n}" + "漢" * 5_000: "😀" * 5_000 for n in range(500)}
    details["huge"] = 2**200
    error = OffsetOutOfRange("😀" * 100_000, details=dict(reversed(details.items())))
    _, header = messages.encode_error(error, flags)
    assert len(header) < limits.FRAME_HEADER_BYTES_MAX
    got = messages.decode_error(28, header, flags)
    assert len(got.details) == messages.ERROR_DETAILS_MAX
    assert got.details["huge"] == str(2**200)[: messages.ERROR_VALUE_CHARS_MAX]


def test_a_reply_is_its_message_or_raises_its_error() -> None:
    """``decode_reply`` is what a client needs."""
    header = messages.encode_header(Command.PUT, wire.PutResponse(offset=5))
    assert messages.decode_reply(Frame(10, 0, 1, 0, header, b"")) == wire.PutResponse(offset=5)
    status, header = messages.encode_error(OffsetOutOfRange("no", details={"earliest": 1}))
    with pytest.raises(OffsetOutOfRange, match="no") as caught:
        messages.decode_reply(Frame(10, status, 1, 0, header, b""))
    assert caught.value.details == {"earliest": 1}


def test_a_delay_is_told_beside_any_good_answer_and_by_an_error_of_its_own() -> None:
    """Nothing else of the answer changes; no wait is longer than the bound."""
    for row in COMMANDS.values():
        with case(row):
            answer = row.response()
            answer.MergeFromString(messages.encode_delay(1.2345))
            header = messages.encode_header(row, answer)
            frame = Frame(row, 0, 1, FLAG_DELAY, header, b"")
            assert messages.delay_of(frame) == 1.235
            messages.decode_reply(frame)
            assert messages.delay_of(frame._replace(flags=0)) == 0
            assert 500 not in {each.number for each in row.response.DESCRIPTOR.fields}
    for told, delay_s in ((1_500, 1.5), (-5, 0.0), (10**9, limits.THROTTLE_S_MAX), ("x", 0.0)):
        status, header = messages.encode_error(Throttled("later", details={"delay_ms": told}))
        assert messages.delay_of(Frame(10, status, 1, 0, header, b"")) == delay_s
    assert messages.delay_of(Frame(10, 0, 1, FLAG_DELAY, b"\xff", b"")) == 0
