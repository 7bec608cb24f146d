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


# Freeing -----------------------------------------------------------------------------------------
class Thing:
    """What a message can hold and a weak reference can look for."""


class Described(Message):
    """A derived message with a dictionary of its own."""


@pytest.mark.parametrize("kind", [Message, OtherMessage, Described])
@pytest.mark.parametrize("made", [1, 600])
def test_whatever_a_message_holds_is_freed_with_it(kind: type[Message], made: int) -> None:
    """Beyond the number whose memory is kept, too, and in whatever way it was made."""
    seen = []
    for number in range(made):
        thing = Thing()
        held: Any = (Thing(), thing, {"h": thing})[number % 3]
        seen += [weakref.ref(thing), weakref.ref(held) if number % 3 < 2 else lambda: None]
        message = kind("t", held, key=thing)  # type: ignore[arg-type]
        if kind is Described:
            message.more = thing  # type: ignore[attr-defined]
        messages = [message, message._replace(tag="a"), kind._make(message)]
        del thing, held, message, messages
    gc.collect()
    assert not any(each() for each in seen)
    messages = [kind("t", b"%d" % number, str(number)) for number in range(made)]
    assert messages == [reference("t", b"%d" % number, str(number)) for number in range(made)]


def test_messages_in_messages_are_freed_however_deep() -> None:
    """Each call of its own for each would be too many."""
    thing = Thing()
    seen, message = weakref.ref(thing), Message("t", thing)  # type: ignore[arg-type]
    for _ in range(200_000):
        message = Message("t", message)  # type: ignore[arg-type]
    del thing, message
    assert seen() is None


def test_a_message_that_is_made_while_another_one_is_freed_is_its_own() -> None:
    made: list[Message] = []

    class Maker:
        def __del__(self) -> None:
            made.append(Message("made", b"x"))

    for _ in range(10):
        Message("t", Maker())  # type: ignore[arg-type]
    kept = [Message("kept", b"%d" % number) for number in range(10)]
    assert made == [Message("made", b"x")] * 10
    assert [each.content for each in kept] == [b"%d" % number for number in range(10)]
    assert len({id(each) for each in made + kept}) == 20


def test_a_tuple_of_the_type_may_have_another_length() -> None:
    """``tuple.__new__`` checks nothing; the memory of such a one is not used for a message."""
    for _ in range(300):
        short, long = tuple.__new__(Message, ("t",)), tuple.__new__(Message, range(40))
        assert len(short) == 1
        assert len(long) == 40
        del short, long
        assert len(Message("t", b"x")) == len(NAMES)
