"""``--as``: contents of messages as text for people; protobuf by a descriptor set."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from vq.cli.base.options import Invocation, option, together
from vq.decoding.contents import Format, decoded
from vq.errors import InvalidArgument
from vq.model import Message

if TYPE_CHECKING:
    from vq.decoding.descriptors import MessageType

_PROTOBUF_NEEDS: Final = "--as protobuf needs --descriptors FILE and --type NAME"


class Decoding:
    """Makes contents readable; the first one that is not as asked for is told.

    Args:
        wanted: How to read them.
        message_type: Their type, if they are protobuf.
        warn: Gets a line for people.
    """

    def __init__(
        self, wanted: Format, message_type: "MessageType | None", warn: Callable[[str], object]
    ) -> None:
        self._wanted = wanted
        self._type = message_type
        self._warn: Callable[[str], object] | None = warn

    def __call__(self, message: Message) -> Message:
        """Return a message with the text of its content, in one line, as content."""
        found = decoded(message.content, self._wanted, self._type, lines=False)
        if found.problem and self._warn is not None:
            self._warn(
                f"warning: the message at offset {message.offset} of {message.topic}-"
                f"{message.partition} is not {self._wanted}, it is shown as hex: {found.problem}"
            )
            self._warn = None
        return message._replace(content=found.text.encode())


def decodes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that decode contents; pass a ``Decoding`` or None as ``decoding``."""

    @functools.wraps(function)
    def call(
        invocation: Invocation,
        *args: Any,
        as_format: str | None,
        descriptors: Path | None,
        message_type: str | None,
        **rest: Any,
    ) -> Any:
        decoding = None
        if (descriptors is None) != (message_type is None):
            raise click.UsageError(_PROTOBUF_NEEDS)
        if as_format is not None or descriptors is not None:
            if invocation.output.as_json:
                raise click.UsageError("--as and --json exclude one another")
            wanted = Format.PROTOBUF if as_format is None else Format(as_format)
            if wanted is Format.PROTOBUF and descriptors is None:
                raise click.UsageError(_PROTOBUF_NEEDS)
            kind = None if descriptors is None else _type_of(descriptors, message_type or "")
            decoding = Decoding(wanted, kind, invocation.output.remark)
        return function(invocation, *args, decoding=decoding, **rest)

    return together(
        option(
            "--as as as_format",
            "Print contents as text: read so, or as the first that fits; what is not so is "
            "shown as hex. With --descriptors: protobuf.",
            Format,
        ),
        option(
            "--descriptors FILE",
            "For protobuf: a descriptor set, as `protoc --include_imports "
            "--descriptor_set_out=FILE` writes it.",
            click.Path(dir_okay=False, path_type=Path),
        ),
        option("--type NAME as message_type", "Full name of a type in it, such as shop.Order."),
    )(call)


def _type_of(path: Path, name: str) -> "MessageType":
    from vq.decoding.descriptors import SET_BYTES_MAX, DescriptorSet  # only where it is wanted

    try:
        with path.open("rb") as file:
            data = file.read(SET_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgument(f"--descriptors {path} cannot be read: {error.strerror}") from error
    return DescriptorSet.parse(data).message_type(name)
