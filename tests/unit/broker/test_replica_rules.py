"""What counts, what is committed and where a log is cut; the model shows that the rules suffice."""

import pytest

from vq.broker.replica_rules import accepts, committed, common_end, counted, may_join
from vq.store.lookup import EpochEnd


class Batches:
    """A log as (epoch, end offset) of its batches; see ``LogReader.epoch_end``."""

    def __init__(self, *batches: tuple[int, int]) -> None:
        self.batches = batches

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        upto = [EpochEnd(*each) for each in self.batches if each[0] <= epoch]
        return upto[-1] if upto else None

    def cut(self, other: "Batches") -> int | None:
        return common_end(self.batches[-1][0], self.epoch_end, other.epoch_end)


def test_an_older_epoch_is_refused() -> None:
    assert [accepts(3, epoch) for epoch in (2, 3, 4)] == [False, True, True]


def test_a_node_counts_from_the_intention_to_add_it() -> None:
    assert counted(["n1"], ["n2"]) == {"n1", "n2"}


def test_what_every_counted_node_has_is_committed() -> None:
    positions = {"n1": 30, "n2": 20, "n3": 10}
    assert committed(positions, {"n1", "n2"}, insync=2, min_insync=1) == 20
    assert committed(positions, {"n1", "n2", "n3"}, insync=2, min_insync=1) == 10


def test_nothing_is_committed_before_every_position_is_known() -> None:
    assert committed({"n1": 30}, {"n1", "n2"}, insync=2, min_insync=1) is None


def test_nothing_is_committed_below_the_floor() -> None:
    """A node that is joining counts, and does not make the set large enough yet."""
    positions = {"n1": 30, "n2": 20}
    assert committed(positions, {"n1", "n2"}, insync=1, min_insync=2) is None
    assert committed(positions, {"n1", "n2"}, insync=2, min_insync=2) == 20


@pytest.mark.parametrize(
    ("position", "high_watermark", "start", "joins"),
    [(10, 10, 10, True), (9, 10, 5, False), (10, 5, 11, False), (11, 5, 11, True)],
)
def test_a_node_joins_that_has_all_that_may_be_committed(
    position: int, high_watermark: int, start: int, joins: bool
) -> None:
    assert may_join(position, high_watermark=high_watermark, epoch_start=start) is joins


def test_a_log_is_cut_where_the_newer_master_went_another_way() -> None:
    """Epoch 1 ended at 20 for the new master, and went on to 30 here."""
    assert Batches((1, 10), (1, 30)).cut(Batches((1, 20), (2, 50))) == 20


def test_a_log_that_only_lacks_the_end_is_not_cut() -> None:
    assert Batches((1, 20)).cut(Batches((1, 20), (2, 50))) == 20
    assert Batches((1, 10)).cut(Batches((1, 20), (2, 50))) == 10


def test_epochs_that_one_side_lacks_are_passed_over() -> None:
    """Epoch 2 was this node's, epoch 3 the other's; what they have in common is of epoch 1."""
    assert Batches((1, 10), (2, 40)).cut(Batches((1, 15), (3, 60))) == 10
    assert Batches((1, 20), (2, 40), (4, 50)).cut(Batches((1, 15), (3, 60), (5, 70))) == 15


def test_logs_without_a_common_epoch_have_nothing_in_common() -> None:
    assert Batches((2, 40)).cut(Batches((1, 15), (3, 60))) is None
    assert Batches((1, 40)).cut(Batches((2, 60))) is None
