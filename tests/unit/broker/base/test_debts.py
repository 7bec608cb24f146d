"""Debts of addresses and users."""

from vq.broker.base import debts
from vq.broker.base.debts import Debts


def test_a_debt_is_paid_back_at_the_rate() -> None:
    made = Debts(10.0)
    assert made.owe("a", 30, 100.0) == 30
    assert made.of("a", 101.0) == 20
    assert made.owe("a", 1, 101.0) == 21
    assert made.of("a", 200.0) == 0
    assert made.of("b", 101.0) == 0


def test_a_debt_grows_no_higher_than_its_bound() -> None:
    """So whoever owes is heard again."""
    made = Debts(10.0, 50.0)
    assert made.owe("a", 1_000_000, 0.0) == 50
    assert made.of("a", 5.0) == 0


def test_what_is_given_back_is_no_credit() -> None:
    made = Debts(10.0)
    made.owe("a", 30, 0.0)
    assert made.owe("a", -25, 1.0) == 0
    assert made.owe("a", 5, 1.0) == 5


def test_debtors_have_a_bound(monkeypatch) -> None:
    monkeypatch.setattr(debts, "DEBTORS_MAX", 2)
    made = Debts(1.0)
    for address in ("a", "b", "a", "c"):
        made.owe(address, 10, 0.0)
    assert [made.of(each, 0.0) for each in "abc"] == [20, 0, 10]
