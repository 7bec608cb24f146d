"""Headers: their two encodings.

Protobuf is the default. With the HESSIAN flag the header is a Hessian 2 map with the field names of
``wire.proto`` (``vq.remoting.hessian_messages``). A reply has the encoding of its request. Bodies
are not handled here.
"""

import math
from typing import Final, TypeVar

from google.protobuf.message import DecodeError

from vq import limits
from vq.errors import (
    STATUS_OK,
    InternalError,
    InvalidArgument,
    InvalidRequest,
    ProtocolError,
    Throttled,
    UnknownCommand,
    VqError,
    error_from_status,
)
from vq.remoting import hessian_messages
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import (
    COMMANDS,
    FLAG_DELAY,
    FLAG_HESSIAN,
    FLAGS_KNOWN,
    Command,
    Header,
)
from vq.remoting.frames import Frame

_M = TypeVar("_M", bound=Header)

#: Bounds of an ``Error`` header; longer texts are cut, because an error must always fit.
ERROR_TEXT_CHARS_MAX: Final = 1_000
ERROR_DETAILS_MAX: Final = 16
ERROR_KEY_CHARS_MAX: Final = 64
ERROR_VALUE_CHARS_MAX: Final = 400
_INT64: Final = range(-(2**63), 2**63)


def encode_header(command: int, message: Header, flags: int = 0) -> bytes:
    """Return the header bytes of a request or a good response of ``command``.

    Raises:
        InvalidArgument: ``message`` is neither of this command's two messages.
    """
    row = COMMANDS[command]
    if type(message) is not row.response and type(message) is not row.request:
        raise InvalidArgument(
            f"{type(message).__name__} is not a header of {row.name}, "
            f"which has {row.request.__name__} and {row.response.__name__}"
        )
    if flags & FLAG_HESSIAN:
        return hessian_messages.encode(message)
    return message.SerializeToString()


def decode_request(command: int, header: bytes, flags: int) -> Header:
    """Return the request message of ``command``.

    Raises:
        UnknownCommand: There is no such command.
        InvalidRequest: The header is not valid, or a flag is unknown.
    """
    row = COMMANDS.get(command)
    if row is None:
        raise UnknownCommand(f"command {command} is unknown; known are {_known_commands()}")
    if flags & ~FLAGS_KNOWN:
        raise InvalidRequest(f"flags {flags:#04x} have bits that version 1 does not know")
    try:
        return _decode(row.request, header, flags)
    except ProtocolError as error:
        raise InvalidRequest(f"header of {row.name}: {error}") from error


def decode_response(command: int, header: bytes, flags: int) -> Header:
    """Return the response message of ``command``, for a frame whose status is 0.

    Raises:
        ProtocolError: There is no such command, or the header is not valid.
    """
    row = COMMANDS.get(command)
    if row is None:
        raise ProtocolError(f"reply of unknown command {command}")
    return _decode(row.response, header, flags)


def status_of(error: VqError) -> int:
    """Return the wire status of ``error``; for a class without one, a general status."""
    if error.status is not None:
        return error.status
    if isinstance(error, InvalidArgument):
        return InvalidRequest.status
    return InternalError.status


def encode_error(error: VqError, flags: int = 0) -> tuple[int, bytes]:
    """Return the status and header bytes of an error reply; they always fit into a frame."""
    message = wire.Error()
    _describe(error, message)
    if flags & FLAG_HESSIAN:
        return status_of(error), hessian_messages.encode(message)
    return status_of(error), message.SerializeToString(deterministic=True)


def describe_error(error: VqError, result: wire.FetchResult) -> None:
    """Put ``error`` into ``result``; it always fits into a frame."""
    result.status = status_of(error)
    _describe(error, result)


def described_error(result: wire.FetchResult) -> VqError:
    """Return the error in a result with ``status`` != 0; the caller may raise it."""
    details: dict[str, int | str] = {**result.numbers, **result.texts}
    return error_from_status(result.status, result.message, details=details)


def _describe(error: VqError, message: wire.Error | wire.FetchResult) -> None:
    message.message = error.message[:ERROR_TEXT_CHARS_MAX]
    for name, value in list(error.details.items())[:ERROR_DETAILS_MAX]:
        key = name[:ERROR_KEY_CHARS_MAX]
        if isinstance(value, int) and value in _INT64:
            message.numbers[key] = value
        else:
            message.texts[key] = str(value)[:ERROR_VALUE_CHARS_MAX]


def decode_error(status: int, header: bytes, flags: int) -> VqError:
    """Return the error in a reply with ``status`` != 0; the caller may raise it.

    Raises:
        ProtocolError: The header is not an ``Error``.
    """
    message = _decode(wire.Error, header, flags)
    details: dict[str, int | str] = {**message.numbers, **message.texts}
    return error_from_status(status, message.message, details=details)


def encode_delay(seconds: float) -> bytes:
    """Return the bytes that add to the header of an answer how long the client should wait."""
    return wire.Delay(delay_ms=math.ceil(seconds * 1000)).SerializeToString()


def delay_of(frame: Frame) -> float:
    """Return for how many seconds a client that got a reply should send no request.

    It is 0 unless the quota of the client's user is used up, and at most ``THROTTLE_S_MAX``.
    """
    if not (frame.flags & FLAG_DELAY or frame.status == Throttled.status):
        return 0.0
    try:
        if frame.status == STATUS_OK:
            told = _decode(wire.Delay, frame.header, 0).delay_ms
        else:
            details = decode_error(frame.status, frame.header, frame.flags).details
            told = int(details.get("delay_ms", 0))
    except (ProtocolError, ValueError):
        return 0.0  # whoever decodes the reply reports it
    return min(max(told, 0) / 1000, limits.THROTTLE_S_MAX)


def decode_reply(frame: Frame) -> Header:
    """Return the response message of a reply.

    Raises:
        VqError: The broker's error.
        ProtocolError: The header is invalid.
    """
    if frame.status != STATUS_OK:
        raise decode_error(frame.status, frame.header, frame.flags)
    return decode_response(frame.command, frame.header, frame.flags)


def _decode(cls: type[_M], header: bytes, flags: int) -> _M:
    if flags & FLAG_HESSIAN:
        return hessian_messages.decode(cls, header)
    try:
        return cls.FromString(header)
    except DecodeError as error:
        raise ProtocolError(f"{len(header)} bytes are not a {cls.__name__}: {error}") from error


def _known_commands() -> str:
    return ", ".join(f"{command.name} {command.value}" for command in sorted(Command))


# Four bytes a character, and space for lengths: an error fits into any header.
assert (
    4 * (ERROR_TEXT_CHARS_MAX + ERROR_DETAILS_MAX * (ERROR_KEY_CHARS_MAX + ERROR_VALUE_CHARS_MAX))
    < limits.FRAME_HEADER_BYTES_MAX - limits.KIB
)
