"""Where a member goes on in a partition that it lost and claimed again: a table of all cases."""

from dataclasses import replace

import pytest

from vq.client.consumer.delivery import Progress
from vq.client.consumer.handled import Handled, go_on_at
from vq.coordination.groups.claims import Claim
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.model import TopicPartition

OURS = CommittedOffset(offset=100, message_id=1, time_ms=5, member="a")
TRIED = CommittedOffset(offset=200, message_id=2, time_ms=9, member="a")
LOST = Claim("g", "a", TopicPartition("t", 0), 3, OURS, 7)
HANDLED = Progress(300, 3)
KEPT = Handled(LOST, (TRIED, replace(TRIED, time_ms=11)), HANDLED)
SOUGHT = Progress(50)


@pytest.mark.parametrize(
    ("found", "version", "kept", "goes_on_at"),
    [
        pytest.param(OURS, 7, KEPT, HANDLED, id="nobody committed"),
        pytest.param(TRIED, 8, KEPT, HANDLED, id="a commit was written, its answer lost"),
        pytest.param(
            replace(TRIED, time_ms=11), 9, KEPT, HANDLED, id="two were written, both answers lost"
        ),
        pytest.param(OURS, 7, None, Progress(100, 1), id="nothing is kept"),
        pytest.param(OURS, 9, KEPT, Progress(100, 1), id="reset to the same value"),
        pytest.param(replace(OURS, epoch=4), 9, KEPT, Progress(100, 1, 4), id="epoch"),
        pytest.param(OURS, 0, KEPT, Progress(100, 1), id="the node was made anew"),
        pytest.param(replace(OURS, member="b"), 8, KEPT, Progress(100, 1), id="a successor"),
        pytest.param(replace(TRIED, time_ms=10), 8, KEPT, Progress(200, 2), id="our namesake"),
        pytest.param(TRIED, 7, KEPT, Progress(200, 2), id="a commit that we tried and another"),
        pytest.param(
            replace(OURS, offset=400, member="b"), 8, KEPT, Progress(400, 1), id="beyond ours"
        ),
        pytest.param(OURS, 7, Handled(LOST, (), SOUGHT), SOUGHT, id="sought back"),
        pytest.param(
            replace(OURS, member="b"), 8, Handled(LOST, (), SOUGHT), Progress(100, 1), id="sought"
        ),
    ],
)
def test_a_member_goes_on_behind_what_it_handled_unless_somebody_else_committed(
    found: CommittedOffset, version: int, kept: Handled | None, goes_on_at: Progress
) -> None:
    claim = replace(LOST, generation=5, committed=found, offset_version=version)
    assert go_on_at(claim, found, kept) == goes_on_at


def test_a_group_that_was_stopped_stays_where_it_was_stopped() -> None:
    """The kept place has nothing to say about it."""
    stopped = replace(OURS, stopped="lost messages")
    kept = Handled(replace(LOST, committed=stopped), (), HANDLED)
    claim = replace(LOST, committed=stopped)
    assert go_on_at(claim, stopped, kept) == Progress(100, 1)


def test_the_first_commit_of_all_may_have_lost_its_answer() -> None:
    first = replace(LOST, committed=None, offset_version=None)
    claim = replace(LOST, committed=TRIED, offset_version=0)
    assert go_on_at(claim, TRIED, Handled(first, (TRIED,), HANDLED)) == HANDLED
