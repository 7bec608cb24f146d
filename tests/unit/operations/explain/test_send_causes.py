"""Why a send is refused, and where a key goes: each cause."""

from dataclasses import replace
from typing import Any

import pytest
from support.explained import asked

from vq.coordination.tree.values.brokers import GroupState
from vq.model import Address, NodeInfo, PartitionPlacement, Span, StatusResult, TopicSettings
from vq.operations.brokers.disks import DiskState
from vq.operations.explain import send_causes
from vq.operations.explain.answers import CauseRow
from vq.operations.explain.places import GroupAnswer, PartitionPlace
from vq.operations.explain.send_causes import KeyFacts, SendFacts
from vq.security.quotas import EffectiveLimit, QuotaLimit

GIB = 1 << 30


NODE = NodeInfo("b1", "n1", Address("h", 1))
STATE = GroupState(epoch=1, master="n1", insync=("n1",), incarnations={})
STATUS = StatusResult(Address("h", 1), "b1", "n1", "1", 1.0, 1, {"master": True})
ANSWER = GroupAnswer("b1", STATE, NODE, STATUS, draining=False)
DISK = DiskState("/d", 40 * GIB, 100 * GIB, "ok", 0, None, 0)
PLACE = PartitionPlace(
    partition=0,
    placement=PartitionPlacement("t", 0, (Span("b1", 0),)),
    answer=ANSWER,
    state="rw",
    disk=DISK,
)
SEND = SendFacts(topic="t", phase="ready", settings=TopicSettings(), places=(PLACE,))


def place(**changes: Any) -> SendFacts:
    return replace(SEND, places=(replace(PLACE, **changes),))


SENDS = {
    "reserved": replace(SEND, topic="_vq.delayed", is_reserved=True),
    "no_topic": SendFacts(topic="t"),
    "deleted": SendFacts(topic="t", phase="deleted"),
    "half_made": SendFacts(topic="t", phase="creating"),
    "not_writable": replace(SEND, settings=TopicSettings(writable=False)),
    "too_large": replace(SEND, settings=TopicSettings(max_message_bytes=10), size=11),
    "partition_closed": place(answer=None),
    "no_master": place(answer=replace(ANSWER, master=None, status=None)),
    "broker_silent": place(answer=replace(ANSWER, status=None, error="silent")),
    "partition_failed": place(state="failed", reason="EIO"),
    "partition_moving": place(state="sealed"),
    "disk_full": place(disk=replace(DISK, level="refuse")),
    "min_insync": place(min_insync=2),
    "some_partitions": replace(SEND, places=(PLACE, replace(PLACE, partition=1, answer=None))),
    "quota": replace(
        SEND, sender="alice", quota=(EffectiveLimit(QuotaLimit.REQUESTS, 5.0, "user:*"),)
    ),
    "accepted": SEND,
}


@pytest.mark.parametrize("cause", SENDS)
def test_why_a_send_is_refused(cause: str) -> None:
    found = asked(send_causes.SEND_TABLE, SENDS[cause])
    assert (found.found.cause, found.is_certain) == (cause, True)
    assert send_causes.send_told(SENDS[cause])


def test_every_cause_of_a_send_has_its_case() -> None:
    assert list(SENDS) == [each.cause for each in send_causes.SEND_TABLE]


def test_a_missing_topic_that_producers_may_create_is_no_refusal() -> None:
    found = asked(send_causes.SEND_TABLE, SendFacts(topic="t", may_create=True))
    assert (found.found.cause, "creates it" in found.found.text) == ("accepted", True)


def test_a_message_above_every_bound_has_no_command_that_helps() -> None:
    found = asked(send_causes.SEND_TABLE, replace(SEND, size=2 << 20))
    assert (found.found.cause, found.found.commands) == ("too_large", ())


@pytest.mark.parametrize("row", send_causes.KEY_TABLE, ids=lambda row: row.cause)
def test_where_a_key_goes_and_what_keeps_it_from_there(row: CauseRow[KeyFacts]) -> None:
    cause = "accepted" if row.cause == "goes_there" else row.cause
    send = replace(SENDS[cause], partition=0)
    facts = KeyFacts(send=send, key="k", kind="text", hash=9, partitions=3, then=1)
    found = asked(send_causes.KEY_TABLE, facts)
    assert (found.found.cause, found.is_certain) == (row.cause, True)
    assert "key k" in found.found.text
    assert send_causes.key_told(facts)
