"""Messages without their contents, for topics whose contents the console shows to nobody. Pure."""

import dataclasses
from collections.abc import Set
from typing import Any

from vq.model import Message


def masked(value: Any, topics: Set[str]) -> Any:
    """Return a result with the contents of masked messages taken out, however deep they lie.

    A message that was put into another topic, such as a dead letter, counts as one of the topic it
    came from, too.
    """
    if isinstance(value, Message):
        origin = value.origin
        of = {value.topic} if origin is None else {value.topic, origin.topic}
        return value._replace(content=b"") if of & topics else value
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
