"""The soft time limit reaches a handler, and nothing behind it."""

import time

import pytest

from vq.model import Message
from vq.testing.waiting import WAIT_S
from vq.worker.soft_limit import SoftLimit, SoftTimeLimit

MESSAGE = Message("t", b"x")


def busy(_: Message) -> str:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        pass
    return "not ended"


@pytest.mark.slow
def test_a_handler_that_takes_too_long_gets_it_once() -> None:
    limit = SoftLimit(0.05)
    with pytest.raises(SoftTimeLimit):
        limit.call(busy, MESSAGE)
    assert limit.call(lambda message: message.content, MESSAGE) == b"x"
    seen = []

    def tidies(message: Message) -> str:
        try:
            busy(message)
        except SoftTimeLimit:
            seen.append("tidied")
        return "handled"

    assert limit.call(tidies, MESSAGE) == "handled"
    assert seen == ["tidied"]
    limit.end()
