"""A message is made like any named tuple, whether its constructor is compiled or not."""

import copy
import gc
import pickle
import threading
import weakref
from typing import Any

import pytest

from vq.model import Message, construct

needs_compiled = pytest.mark.skipif(
    construct is None, reason="it was not compiled here (no C compiler)"
)


class OtherMessage(Message):
    """What a user may have derived."""


NAMES = Message._fields


def reference(*args: Any, **kwargs: Any) -> Message:
    """What a named tuple's own constructor makes or raises."""
    made = Message.__new__(Message, *args, **kwargs)
    assert isinstance(made, Message)
    return made


@pytest.mark.parametrize("positional", range(11))
def test_a_message_is_made_as_any_named_tuple(positional: int) -> None:
    """Every split into positional and named arguments, too many and too few of them too."""
    values = [f"v{n}" for n in range(11)]
    for named in range(10 - min(positional, 9)):
        kwargs = dict(
            zip(NAMES[positional : positional + named], values[positional:], strict=False)
        )
        outcomes = []
        for make in (Message, reference):
            try:
                outcomes.append((type(made := make(*values[:positional], **kwargs)), tuple(made)))
            except TypeError as error:
                outcomes.append((TypeError, str(error)))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {"content": b"x"}),
        (("t",), {"topic": "u", "content": b"x"}),
        (("t", b"x"), {"unknown": 1}),
        (("t", b"x"), {"content": b"y"}),
        ((), {"id": 7, "headers": {"h": "1"}, "content": b"x", "topic": "t"}),
        (("t",), {"".join(["con", "tent"]): b"x"}),  # a name that is not the interned one
    ],
)
def test_odd_calls_end_alike(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    outcomes = []
    for make in (Message, reference):
        try:
            outcomes.append(repr(make(*args, **kwargs)))
        except TypeError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_messages_are_copied_pickled_and_derived_as_before() -> None:
    message = Message("t", b"x", key="k", headers={"h": "1"})
    assert pickle.loads(pickle.dumps(message)) == copy.deepcopy(message) == message
    assert message._replace(key=None) == Message("t", b"x", headers={"h": "1"})
    assert type(OtherMessage("t", b"x")) is OtherMessage
    assert OtherMessage("t", b"x") == Message("t", b"x")


@needs_compiled
def test_the_collector_looks_at_a_message_only_where_it_could_matter() -> None:
    assert not gc.is_tracked(Message("t", b"x", "tag", "key", id=1 << 70))
    assert gc.is_tracked(Message("t", b"x", headers={"h": "1"}))
    holder: list[Any] = []
    event = threading.Event()
    seen = weakref.ref(event)
    holder += [Message("t", holder), event]  # type: ignore[arg-type]
    del holder, event
    gc.collect()
    assert seen() is None


@needs_compiled
def test_only_a_named_tuple_gets_the_constructor() -> None:
    assert construct is not None
    for wrong in (int, 1, None):
        with pytest.raises(TypeError):
            construct(wrong)  # type: ignore[type-var]
    assert construct(Message) is Message  # again: nothing happens
    assert Message("t", b"x").content == b"x"
