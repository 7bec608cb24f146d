"""Accounts of users and clients: which ones are kept, and how many."""

from types import SimpleNamespace
from typing import Any

import pytest

from vq.broker.base.notice import Notice
from vq.broker.security import accounts
from vq.broker.security.accounts import OTHERS, Accounts
from vq.clock import ManualClock
from vq.security.quotas import Quota, QuotaLimit, Quotas


def accounts_of(clock: ManualClock, *quotas: str) -> tuple[Accounts, Any]:
    known: Any = SimpleNamespace(current=Quotas(map(Quota.parse, quotas)), changed=Notice())
    return Accounts(known, clock), known


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(monotonic=1_000.0)


def test_an_account_that_owes_is_kept_and_one_that_owes_nothing_is_forgotten(
    clock: ManualClock,
) -> None:
    made, _ = accounts_of(clock, "user:* requests=1")
    (debtor,) = made.of("debtor", "c")
    debtor.charge(QuotaLimit.REQUESTS, 30, clock.monotonic())
    (connected,) = made.of("connected", "c")
    connected.connections += 1
    (idle,) = made.of("idle", "c")
    for number in range(1_000):
        made.of(f"user{number}", "c")
    assert made.of("debtor", "c") == (debtor,)
    assert made.of("connected", "c") == (connected,)
    assert made.of("idle", "c") != (idle,)
    clock.advance(60)
    for number in range(1_000):
        made.of(f"user{number}", "c")
    assert made.of("debtor", "c") != (debtor,)


def test_a_user_has_so_many_accounts_of_clients_and_then_one_for_the_others(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "CLIENTS_PER_USER_MAX", 3)
    made, _ = accounts_of(clock, "client:* requests=1")
    for number in range(3):
        (each,) = made.of("alice", f"c{number}")
        each.charge(QuotaLimit.REQUESTS, 5, clock.monotonic())
    (fourth,) = made.of("alice", "c4")
    fourth.connections += 1
    (fifth,) = made.of("alice", "c5")
    assert fourth is fifth
    assert fourth.client_id == OTHERS
    (other,) = made.of("bob", "c4")
    assert other.client_id == "c4"
    fourth.connections -= 1
    clock.advance(10)
    (freed,) = made.of("alice", "c6")
    assert freed.client_id == "c6"


def test_other_quotas_change_accounts_that_are_there(clock: ManualClock) -> None:
    made, known = accounts_of(clock, "user:alice requests=10")
    (account,) = made.of("alice", "c")
    account.charge(QuotaLimit.REQUESTS, 12, clock.monotonic())
    assert account.until == pytest.approx(clock.monotonic() + 1.0)
    known.current = Quotas([Quota.parse("user:* requests=100")])
    known.changed.tell()
    assert account.until == pytest.approx(clock.monotonic() + 0.1)
    known.current = Quotas()
    known.changed.tell()
    assert (account.paces, made.enabled, made.generation) == ({}, False, 2)
