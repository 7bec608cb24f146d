"""Messages without their contents, for topics whose contents the console shows to nobody. Pure."""

import dataclasses
from collections.abc import Mapping, Set
from typing import Any

from vq.model import Message


def is_masked(message: Message, topics: Set[str]) -> bool:
    """Return whether the contents of a message are shown to nobody."""
    origin = message.origin
    return message.topic in topics or (origin is not None and origin.topic in topics)


def masked_arguments(arguments: Mapping[str, Any], topics: Set[str]) -> Mapping[str, Any]:
    """Return arguments of an act as the audit keeps them, which everybody may read."""
    if "content" in arguments and arguments.get("topic") in topics:
        return {**arguments, "content": "masked"}
    return arguments


def masked(value: Any, topics: Set[str]) -> Any:
    """Return a result with the contents of masked messages taken out, however deep they lie.

    A message that was put into another topic, such as a dead letter, counts as one of the topic it
    came from, too.
    """
    if isinstance(value, Message):
        return value._replace(content=b"") if is_masked(value, topics) else value
    if isinstance(value, list):
        return [masked(each, topics) for each in value]
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(masked(each, topics) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        changed = {
            name: masked(each, topics)
            for name, each in found.items()
            if isinstance(each, Message | list | tuple) or dataclasses.is_dataclass(each)
        }
        return dataclasses.replace(value, **changed) if changed else value
    return value
