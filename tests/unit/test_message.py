"""A message is made like any named tuple, whether its constructor is compiled or not."""

import copy
import gc
import pickle
import threading
import weakref
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from vq.client.ids import IdGenerator
from vq.clock import ManualClock
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


@pytest.mark.parametrize("positional", range(12))
def test_a_message_is_made_as_any_named_tuple(positional: int) -> None:
    """Every split into positional and named arguments, too many and too few of them too."""
    values = [f"v{n}" for n in range(12)]
    for named in range(11 - min(positional, 10)):
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


def test_a_message_has_the_hash_of_its_fields() -> None:
    """However it was made: equal ones are one in a set. From Python 3.14 on, tuples keep theirs."""
    message = Message("t", b"x", key="k")
    assert hash(message) == hash(tuple(message)) == hash(message._replace(key="k"))


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


def test_a_received_message_tells_when_it_was_born_and_stored() -> None:
    """The first is in its id; of the second there may be nothing known."""
    born = datetime(2026, 3, 1, 12, 30, 0, 250_000, tzinfo=UTC)
    ms = int(born.timestamp() * 1000)
    message_id = next(iter(IdGenerator(5, ManualClock(wall_ms=ms)).take(1)))
    message = Message("t", b"x", id=message_id, append_time_ms=ms + 1_500)
    assert message.timestamp == born
    assert message.append_time == born + timedelta(seconds=1.5)
    assert message.timestamp.tzinfo is UTC
    assert Message("t", b"x").timestamp is None
    assert Message("t", b"x", id=message_id).append_time is None


def test_a_time_that_no_datetime_holds_is_not_known() -> None:
    """As damage could make one; the message itself is good."""
    assert Message("t", b"x", append_time_ms=2**64 - 1).append_time is None
