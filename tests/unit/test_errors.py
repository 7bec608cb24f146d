"""What the text of an error has, on this side of the wire and on the other."""

import pickle

from vq.errors import STATUSES, NotSent, UnknownTopic, VqError
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
