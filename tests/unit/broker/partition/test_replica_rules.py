"""What counts, what is committed and where a log is cut; the model shows that the rules suffice."""

import itertools

import pytest

from vq.broker.partition.replica_rules import (
    accepts,
    acknowledges,
    committed,
    common_end,
    counted,
    may_join,
    parts_at,
)
from vq.store.log.lookup import EpochEnd


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
    assert committed(positions, {"n1", "n2"}) == 20
    assert committed(positions, {"n1", "n2", "n3"}) == 10


def test_nothing_is_committed_before_every_position_is_known() -> None:
    assert committed({"n1": 30}, {"n1", "n2"}) is None


def test_as_many_nodes_as_the_topic_wants_acknowledge() -> None:
    assert [acknowledges(insync=count, min_insync=2) for count in (1, 2, 3)] == [False, True, True]


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


@pytest.mark.parametrize(
    ("offset", "last_epoch", "parts"),
    [(100, 1, None), (60, 1, None), (300, 3, None), (200, 1, 100), (200, 2, 100), (400, 3, 300)],
)
def test_a_reader_goes_on_in_a_log_that_has_the_last_batch_it_read(
    offset: int, last_epoch: int, parts: int | None
) -> None:
    """Else it is told from where on the log has something else, or nothing."""
    end = Batches((1, 100), (3, 300)).epoch_end(last_epoch)
    assert parts_at(offset, last_epoch, end, start_offset=0) == parts


def test_what_lay_before_the_start_of_a_log_is_not_known() -> None:
    """Also if nothing of that epoch is kept; behind the start it is certain that it is gone."""
    assert parts_at(50, 2, None, start_offset=50) is None
    assert parts_at(60, 2, None, start_offset=50) == 50


def test_a_reader_is_told_of_every_loss_and_of_no_other() -> None:
    """All pairs of logs of three batches that masters of rising epochs could have written.

    In one epoch there is one master, so batches of one epoch at one offset are the same.
    """
    logs = [
        epochs
        for count in range(4)
        for epochs in itertools.combinations_with_replacement((1, 2, 3), count)
    ]
    for read, found in itertools.product(logs, logs):
        for count in range(1, len(read) + 1):
            kept = Batches(*((epoch, 10 * n) for n, epoch in enumerate(found, 1)))
            same = next((n for n in range(count) if n >= len(found) or read[n] != found[n]), count)
            # Within the batches that both have, one master wrote an epoch only where it began it.
            if not _possible(read, found):
                continue
            last = read[count - 1]
            parts = parts_at(10 * count, last, kept.epoch_end(last), start_offset=0)
            assert (parts is None) == (same == count), (read, found, count)
            assert parts is None or parts >= 10 * same


def _possible(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether both logs can be: an epoch begins at one offset, behind one sequence of batches."""
    return all(
        one[: one.index(epoch)] == other[: other.index(epoch)] for epoch in set(one) & set(other)
    )
