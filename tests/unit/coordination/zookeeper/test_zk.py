"""What a call to ZooKeeper raises names ZooKeeper: users of a producer see it."""

import pytest
from kazoo.exceptions import ConnectionLoss, OperationTimeoutError

from vq.coordination.tree.coordinator import ConnectionLost
from vq.coordination.zookeeper.kazoo_answers import translated


@pytest.mark.parametrize("theirs", [ConnectionLoss, OperationTimeoutError])
def test_a_lost_connection_names_zookeeper(theirs: type[Exception]) -> None:
    error = translated(theirs(), "topics/orders")
    assert isinstance(error, ConnectionLost)
    assert str(error) == "the connection to ZooKeeper ended before the answer about 'topics/orders'"
