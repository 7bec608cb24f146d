"""What a log's state permits, and which offsets mean something."""

from dataclasses import replace

import pytest
from support.store import DIRECTORY

from vq.errors import (
    OffsetOutOfRange,
    PartitionFailed,
    PartitionQuarantined,
    PartitionReadOnly,
    ShuttingDown,
    VqError,
)
from vq.store.log.log_config import LogState
from vq.store.log.log_status import LogStatus

STATUS = LogStatus(directory=DIRECTORY, start_offset=100, end_offset=200)


@pytest.mark.parametrize(
    ("state", "error", "can_flush"),
    [
        (LogState.SEALED, PartitionReadOnly, True),
        (LogState.FAILED, PartitionFailed, False),
        (LogState.QUARANTINED, PartitionQuarantined, False),
        (LogState.CLOSED, ShuttingDown, False),
    ],
)
def test_each_state_refuses_with_its_own_error(
    state: LogState, error: type[VqError], can_flush: bool
) -> None:
    """The reason is told; only what was not damaged or failed can still become durable."""
    status = replace(STATUS, state=state, reason="because of it")
    refusal = status.refusal()
    assert type(refusal) is error
    assert "because of it" in str(refusal)
    assert status.can_flush is can_flush
    assert STATUS.can_flush


@pytest.mark.parametrize("offset", [99, 201])
def test_an_offset_outside_is_refused_with_the_range(offset: int) -> None:
    """Both ends belong to the range."""
    STATUS.check_range(100)
    STATUS.check_range(200)
    with pytest.raises(OffsetOutOfRange) as caught:
        STATUS.check_range(offset)
    assert caught.value.details == {"earliest": 100, "latest": 200}


def test_nothing_is_served_at_damage() -> None:
    """Below it reading goes on; at the end of an intact log more may come."""
    damaged = replace(STATUS, state=LogState.QUARANTINED, reason="damage")
    damaged.check_range(199)
    damaged.check_more(199)
    STATUS.check_more(200)
    for check in (damaged.check_range, damaged.check_more):
        with pytest.raises(PartitionQuarantined):
            check(200)


def test_offsets_of_a_log_that_was_not_read_mean_nothing() -> None:
    """Not even those in its range."""
    status = replace(STATUS, state=LogState.FAILED, readable=False)
    with pytest.raises(PartitionFailed):
        status.check_readable()
    with pytest.raises(PartitionFailed):
        status.check_range(150)
