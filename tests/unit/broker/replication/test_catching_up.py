"""Who keeps up with the logs of a master, who may join, and who is behind."""

import pytest

from vq.broker.replication.catching_up import ARRIVAL_S, COMPARE_MAX_S, LAG_MAX_S, NEAR_S, Pursuit

#: Time between two looks.
TICK_S = 0.25


class Copy:
    """A node that copies logs, which grow by one byte with each look."""

    def __init__(self, *, arrival_s: float = 0.0) -> None:
        self.now = 100.0
        self.ends = {"a": 0, "b": 0}
        self.has = dict.fromkeys(self.ends, 0)
        self.pursuit = Pursuit[str](self.now, dict(self.ends), self.now, arrival_s=arrival_s)

    def look(self, *, behind: int = 0, compared: int | None = None) -> None:
        """Look again; the node is so many looks behind, and has compared so many logs."""
        self.now += TICK_S
        self.ends = {log: end + 1 for log, end in self.ends.items()}
        logs = list(self.ends)[:compared]
        self.has = {log: self.ends[log] - behind for log in logs}
        self.pursuit.look(
            self.now, dict(self.ends), len(self.has), lambda log: self.has.get(log, -1)
        )

    def stays(self) -> bool:
        return not self.pursuit.stays_behind(self.now, LAG_MAX_S)


@pytest.mark.parametrize(
    ("behind", "joins", "stays"),
    [(0, True, True), (1, True, True), (3, True, True), (4, True, True), (5, False, True)],
)
def test_who_may_join_is_less_behind_than_who_leaves(behind: int, joins: bool, stays: bool) -> None:
    copy = Copy()
    for _ in range(40):
        copy.look(behind=behind)
        assert copy.stays() is stays
    for _ in range(behind + 1):
        if copy.pursuit.is_near():
            break
        copy.look(behind=behind)
    assert copy.pursuit.is_near() is joins
    assert NEAR_S < LAG_MAX_S


def test_one_that_comes_no_further_leaves() -> None:
    copy = Copy()
    copy.look()
    looks = 0
    while copy.stays():
        copy.look(behind=looks + 1)
        looks += 1
    assert LAG_MAX_S < looks * TICK_S <= LAG_MAX_S + 2 * TICK_S
    assert not copy.pursuit.is_near()


def test_one_that_was_near_and_fell_behind_may_not_join() -> None:
    copy = Copy()
    copy.look()
    assert copy.pursuit.is_near()
    for look in range(6):
        copy.look(behind=look + 2)
    assert not copy.pursuit.is_near()


def test_comparing_is_no_lag_while_it_goes_on() -> None:
    """And nobody joins who has compared a part alone."""
    copy = Copy()
    copy.ends = {f"log-{number}": 0 for number in range(30)}
    for compared in range(30):
        copy.look(compared=compared)
        assert copy.stays()
        assert not copy.pursuit.is_near()
    copy.look()
    assert copy.pursuit.is_near()


def test_comparing_without_progress_is_lag() -> None:
    copy = Copy()
    looks = 0
    while copy.stays():
        copy.look(compared=1)
        looks += 1
    assert LAG_MAX_S < looks * TICK_S <= LAG_MAX_S + 2 * TICK_S


def test_comparing_ends_at_some_time() -> None:
    """Connections that break again and again make progress, too."""
    copy = Copy()
    looks = 0
    while copy.stays():
        copy.look(compared=looks % 2)
        looks += 1
    assert COMPARE_MAX_S < looks * TICK_S <= COMPARE_MAX_S + 2 * TICK_S


def test_a_new_master_is_found_in_a_longer_time() -> None:
    copy = Copy(arrival_s=ARRIVAL_S)
    looks = 0
    while copy.stays():
        copy.look(compared=0)
        looks += 1
    assert LAG_MAX_S + ARRIVAL_S < looks * TICK_S <= LAG_MAX_S + ARRIVAL_S + 2 * TICK_S


def test_a_log_that_was_put_in_place_of_a_longer_one_is_reached() -> None:
    copy = Copy()
    copy.ends = {"a": 1_000, "b": 1_000}
    copy.look()
    copy.look(behind=1)
    copy.ends["a"] = 10
    copy.look()
    assert copy.pursuit.is_near()


def test_a_log_that_is_gone_is_not_waited_for() -> None:
    """Its topic was deleted, or it failed."""
    copy = Copy()
    copy.look()
    copy.look(behind=5)
    has = {"a": 0, "b": 100}
    copy.pursuit.look(copy.now, {"b": 100}, 1, has.__getitem__)
    assert copy.pursuit.is_near()


@pytest.mark.parametrize("compared", [None, 1])
def test_time_in_which_the_master_stood_still_is_forgiven(compared: int | None) -> None:
    copy = Copy()
    copy.look(compared=compared)
    copy.now += 100.0
    assert not copy.stays()
    copy.pursuit.forgive(100.0)
    assert copy.stays()
