"""What the contract of a consumer group refuses."""

import pytest

from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.errors import InvalidArgument


@pytest.mark.parametrize(
    "options",
    [
        {"model": "queue"},
        {"start": "5"},
        {"mode": "parallel"},
        {"order": "loose"},
        {"strategy": ""},
        {"strategy": "a b"},
    ],
)
def test_contracts_that_mean_nothing_are_refused(options: dict[str, str]) -> None:
    """Only known choices, and strategies that have a name."""
    with pytest.raises(InvalidArgument):
        ConsumerGroup(**options)


@pytest.mark.parametrize("mode", ["orderly", "keyed"])
def test_a_retry_topic_is_refused_where_it_breaks_the_order(mode: str) -> None:
    """Unless the group says that it may."""
    policy = FailurePolicy(on_failure="retry-topic")
    with pytest.raises(InvalidArgument, match=f"{mode}.*order = 'relaxed'"):
        ConsumerGroup(mode=mode, failure=policy)
    ConsumerGroup(mode=mode, order="relaxed", failure=policy)
    ConsumerGroup(mode="concurrent", failure=policy)


def test_a_contract_of_an_earlier_vq_has_the_defaults() -> None:
    """One without terms is written as before, so that an earlier vq reads it."""
    stored = b'{"v": 1, "model": "clustering", "start": "latest", "topics": {}}'
    contract = ConsumerGroup.decode("consumers/g", stored)
    assert contract == ConsumerGroup(start="latest")
    assert (contract.mode, contract.order, contract.strategy) == ("orderly", "strict", "sticky")
    assert contract.encode() == stored


@pytest.mark.parametrize(
    "contract",
    [
        ConsumerGroup(mode="keyed"),
        ConsumerGroup(order="relaxed"),
        ConsumerGroup(strategy="average"),
        ConsumerGroup(failure=FailurePolicy(max_attempts=4)),
    ],
)
def test_an_earlier_vq_does_not_join_a_group_whose_terms_it_does_not_know(
    contract: ConsumerGroup,
) -> None:
    """It would share out otherwise, or take the terms away: the value has a version of its own."""
    assert contract.encode().startswith(b'{"v": 2, ')
    assert ConsumerGroup.decode("consumers/g", contract.encode()) == contract
