"""What the text of an error has, on this side of the wire and on the other."""

import pickle
import traceback

from vq.errors import STATUSES, MessageTooLarge, NotSent, UnknownTopic, VqError
from vq.remoting.messages import describe_error, described_error
from vq.remoting.wire_pb2 import FetchResult


def test_the_text_shows_the_status_once() -> None:
    error = UnknownTopic("no topic 'x'")
    assert (str(error), error.message) == ("no topic 'x' (status 20)", "no topic 'x'")
    assert str(UnknownTopic(str(error))) == str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_error_that_never_travels_has_no_number() -> None:
    assert str(NotSent("too late")) == "too late"
    assert str(VqError()) == "VqError"


def test_the_wire_carries_the_text_without_the_number() -> None:
    """A peer in another language shows the number in its own way."""
    for number, kind in STATUSES.items():
        result = FetchResult()
        describe_error(kind("why"), result)
        assert result.message == "why"
        assert str(described_error(result)) == f"why (status {number})"


def test_a_traceback_says_what_to_do() -> None:
    """Below the text, as the command line does; not if the text says it already."""
    error = MessageTooLarge("message of 2 MiB")
    assert traceback.format_exception_only(error) == [
        "vq.errors.MessageTooLarge: message of 2 MiB (status 10)\n",
        f"what to do: {MessageTooLarge.hint}\n",
    ]
    copy = pickle.loads(pickle.dumps(error))
    copy.add_note("with seed 7")
    assert copy.__notes__ == [f"what to do: {MessageTooLarge.hint}", "with seed 7"]
    told = UnknownTopic("there is no topic 'x'; create it: `vq topic create x --partitions N`")
    assert len(traceback.format_exception_only(told)) == 1
    assert len(traceback.format_exception_only(VqError("no hint"))) == 1
    own = NotSent("too late", hint="look at the clock")
    assert traceback.format_exception_only(own)[1:] == ["what to do: look at the clock\n"]
