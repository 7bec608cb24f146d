"""What members agree on: who is refused, with which words, and what a contract becomes."""

import re
from dataclasses import replace

import pytest

from vq.coordination.groups.contract import differences, merge
from vq.coordination.tree.values.consumers import ConsumerGroup, Roll
from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.errors import InvalidArgument
from vq.message_filter import ALL, Filter

PRESENT = ConsumerGroup(mode="keyed", topics={"t": Filter(("red",))})


def test_a_member_that_differs_is_told_every_difference_with_both_sides() -> None:
    """And what to do."""
    wanted = ConsumerGroup(
        model="broadcasting", strategy="average", topics={"t": Filter(("blue",)), "u": ALL}
    )
    assert differences(PRESENT, wanted) == [
        "the group has model = 'clustering', this member 'broadcasting'",
        "the group has mode = 'keyed', this member 'orderly'",
        "the group has strategy = 'sticky', this member 'average'",
        "the group reads 'red' of topic 't', this member 'blue'",
    ]
    with pytest.raises(InvalidArgument) as caught:
        merge("g", PRESENT, wanted)
    told = str(caught.value)
    for each in differences(PRESENT, wanted):
        assert each in told
    assert re.search("group 'g'.*give all members the same values", told)


def test_all_messages_are_named_as_such() -> None:
    """Of either side."""
    everything = ConsumerGroup(mode="keyed", topics={"t": ALL})
    [told] = differences(PRESENT, everything)
    assert told == "the group reads 'red' of topic 't', this member all messages"
    [told] = differences(everything, PRESENT)
    assert told == "the group reads all messages of topic 't', this member 'red'"


def test_the_start_and_the_failure_policy_are_those_of_the_group() -> None:
    """A member is not refused for its own, and changes nothing by them."""
    wanted = ConsumerGroup(
        mode="keyed", start="latest", failure=FailurePolicy(max_attempts=9), topics={"u": ALL}
    )
    merged = merge("g", PRESENT, wanted)
    assert (merged.start, merged.failure) == (PRESENT.start, PRESENT.failure)
    assert merged.topics == {"t": Filter(("red",)), "u": ALL}


def test_a_stream_takes_the_terms_as_they_are() -> None:
    """It shares out its partitions itself."""
    merged = merge("g", PRESENT, ConsumerGroup(by_stream=True, topics={"u": ALL}))
    assert (merged.mode, merged.by_stream) == ("keyed", True)


def test_the_first_member_after_a_stream_sets_the_terms() -> None:
    """The stream has said nothing about them."""
    merged = merge("g", ConsumerGroup(start="latest", by_stream=True), PRESENT)
    assert merged == ConsumerGroup(start="latest", mode="keyed", topics={"t": Filter(("red",))})


def test_a_policy_that_breaks_what_a_group_rolls_to_is_refused() -> None:
    """Otherwise the roll could not end, and until then no member could look at the contract."""
    roll = Roll(until_ms=9, mode="keyed", order="strict", strategy="sticky")
    rolling = ConsumerGroup(mode="concurrent", roll=roll)
    with pytest.raises(InvalidArgument, match="mode = 'keyed'"):
        replace(rolling, failure=FailurePolicy(on_failure="retry-topic"))
    assert merge("g", rolling, ConsumerGroup(mode="keyed"), 9).mode == "keyed"
