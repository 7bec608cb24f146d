"""PUTs that wait are answered once each: in order, and only while this node may answer."""

from typing import Any

import pytest
from support.roles import leading

from vq.broker.partition.acknowledgements import Acknowledgement, Acknowledgements
from vq.broker.partition.context import Context
from vq.clock import ManualClock
from vq.errors import StorageFailed, VqError
from vq.model import TopicPartition


class Session:
    """Notes what it answers; ``breaks``: one request cannot be."""

    def __init__(self, breaks: int = -1) -> None:
        self.breaks = breaks
        self.answers: list[tuple[Any, int | type[VqError]]] = []

    def reply(self, request_id: Any, answer: Any) -> None:
        if request_id == self.breaks:
            raise RuntimeError("a bug")
        self.answers.append((request_id, answer.offset))

    def refuse(self, request_id: Any, error: VqError) -> None:
        self.answers.append((request_id, type(error)))


class Served:
    """Three PUTs that wait."""

    def __init__(self, session: Session) -> None:
        self.holds = True
        role = leading(lease=lambda: self.holds)
        role.counts(frozenset(), alone=False)
        self.context = Context(
            group="b1",
            places={},
            clock=ManualClock(),
            call_later=lambda *_: pytest.fail("no timer"),
            roles={"b1": role},
        )
        self.session = session
        self.acks = Acknowledgements(TopicPartition("t", 0), role, self.context)
        for number in range(3):
            end = 100 * (number + 1)
            self.acks.waiting.append(
                Acknowledgement(end, session, number, end - 100, False, 0.0)  # type: ignore[arg-type]
            )


def test_what_is_stored_is_acknowledged_and_the_rest_waits() -> None:
    served = Served(Session())
    served.acks.give_below(200)
    assert served.session.answers == [(0, 0), (1, 100)]
    assert [each.target for each in served.acks.waiting] == [300]


def test_an_answer_that_fails_keeps_no_other_waiting() -> None:
    served = Served(Session(breaks=0))
    served.acks.give_below(300)
    assert served.session.answers == [(1, 100), (2, 200)]


def test_a_node_that_leads_no_longer_acknowledges_nothing() -> None:
    """The outcome is unknown: another master may have the batch, or not."""
    served = Served(Session())
    served.holds = False
    served.acks.give_below(300)
    lost = type(served.acks.mastership_lost())
    assert [answer for _, answer in served.session.answers] == [lost] * 3


def test_what_is_dropped_is_refused_and_counted() -> None:
    served = Served(Session())
    served.acks.drop(StorageFailed("the disk is gone"))
    assert served.session.answers == [(number, StorageFailed) for number in range(3)]
    assert served.context.counters.refused == 3
    assert not served.acks.waiting
