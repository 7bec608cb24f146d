"""What the contract of a consumer group refuses."""

import pytest

from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.errors import InvalidArgument


@pytest.mark.parametrize("options", [{"model": "queue"}, {"start": "5"}])
def test_contracts_that_mean_nothing_are_refused(options: dict[str, str]) -> None:
    """Only known models and start positions."""
    with pytest.raises(InvalidArgument):
        ConsumerGroup(**options)
