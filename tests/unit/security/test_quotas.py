"""Quotas as values, and the accounts that say when somebody used too much."""

import random

import pytest
from support.cases import case

from vq.errors import InvalidArgument
from vq.pace import Pace
from vq.security.quotas import (
    BURST_S,
    DEBT_S_MAX,
    QUOTAS_MAX,
    Quota,
    QuotaLimit,
    Quotas,
    UsageAccount,
)

BYTES_IN, BYTES_OUT, MESSAGES_IN, REQUESTS, CONNECTIONS, TIME, METADATA = QuotaLimit


def quotas(*texts: str) -> Quotas:
    return Quotas(map(Quota.parse, texts))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("user:alice bytes-in=1048576", "user:alice bytes-in=1M"),
        ("user:alice bytes-in=1.5M bytes-out=3k", "user:alice bytes-in=1536K bytes-out=3K"),
        ("user:* time=0.05 requests=0.5", "user:* requests=0.5 time=5%"),
        ("anonymous connections=5", "anonymous connections=5"),
        ("client:etl messages-in=unlimited", "client:etl messages-in=unlimited"),
        ("client:* bytes-out=1000", "client:* bytes-out=1000"),
        ("user:* metadata=100 time=5%", "user:* time=5% metadata=100"),
    ],
)
def test_a_quota_is_read_from_its_text_and_shown_as_one(text: str, shown: str) -> None:
    assert str(Quota.parse(text)) == shown
    assert Quota.parse(shown) == Quota.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "subject '' is none of user:NAME"),
        ("alice requests=1", "subject 'alice' is none of"),
        ("user:../x requests=1", "is none of"),
        ("role:clerks requests=1", "is none of"),
        ("user:alice", "has no limit: give one or several of bytes-in"),
        ("user:alice requests", "limit 'requests' is not LIMIT=VALUE"),
        ("user:alice cpu=1", "limit 'cpu' is none of bytes-in"),
        ("user:alice requests=0", "from 0.00001 to 1,000,000,000,000,000 .*such as 1000"),
        ("user:alice bytes-in=10MB", "such as 1000, 64K or 10M"),
        ("user:alice requests=-1", "requests='-1' is not a number"),
        ("user:alice requests=nan", "is not a number"),
        ("user:alice requests=inf", "is not a number"),
        ("user:alice requests=10K", "is not a number"),
        ("user:alice time=101%", "is not a number from 0.00001 to 1 .*such as 0.05 or 5%"),
        ("user:alice requests=1 requests=2", "given twice"),
        ("client:etl metadata=100", "metadata is a limit of users, and 'client:etl' is none"),
        ("anonymous metadata=100", "metadata is a limit of users"),
        ("user:alice metadata=0", "such as 100"),
    ],
)
def test_what_is_no_quota_is_refused_with_what_it_should_be(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        Quota.parse(text)


def test_own_limits_come_before_the_default_each_by_itself() -> None:
    held = quotas(
        "user:* bytes-in=1M requests=10", "user:alice requests=50", "user:bob bytes-in=unlimited",
        "anonymous requests=1", "client:* time=5%", "client:etl time=50%",
    )  # fmt: skip
    for user, expected in {
        "alice": {BYTES_IN: 1 << 20, REQUESTS: 50},
        "bob": {BYTES_IN: None, REQUESTS: 10},
        "carol": {BYTES_IN: 1 << 20, REQUESTS: 10},
        "": {BYTES_IN: 1 << 20, REQUESTS: 1},
    }.items():
        with case(user):
            assert dict(held.of_user(user)) == expected
    assert dict(held.of_client("etl")) == {TIME: 0.5}
    assert dict(held.of_client("other")) == {TIME: 0.05}
    assert [(each.limit, each.value, each.subject) for each in held.effective("alice", "etl")] == [
        (BYTES_IN, 1 << 20, "user:*"),
        (REQUESTS, 50, "user:alice"),
        (TIME, 0.5, "client:etl"),
    ]


def test_setting_keeps_other_limits_and_removing_keeps_other_subjects() -> None:
    held = quotas("user:alice requests=1").setting([Quota.parse("user:alice bytes-in=5")])
    held = held.setting([Quota.parse("user:bob requests=2")])
    assert list(map(str, held)) == ["user:alice bytes-in=5 requests=1", "user:bob requests=2"]
    held = held.removing([Quota.parse_removed("user:alice bytes-in")])
    assert list(map(str, held)) == ["user:alice requests=1", "user:bob requests=2"]
    assert list(map(str, held.removing([Quota.parse_removed("user:alice")]))) == [
        "user:bob requests=2"
    ]
    for text, why in {
        "user:carol": "user:carol has no quota",
        "user:bob time": "no quota for time",
    }.items():
        with pytest.raises(InvalidArgument, match=why):
            held.removing([Quota.parse_removed(text)])


def test_there_is_a_bound_of_quotas() -> None:
    many = (Quota(f"user:u{n}", {REQUESTS: 1.0}) for n in range(QUOTAS_MAX + 1))
    with pytest.raises(InvalidArgument, match=f"at most {QUOTAS_MAX}: give user:"):
        Quotas(many)


def pace_of(rate: float) -> Pace:
    """As an account has it for a limit."""
    return Pace(rate, credit_s=BURST_S, owed_s_max=DEBT_S_MAX)


@pytest.mark.parametrize("seed", range(20))
def test_in_any_span_no_more_passes_than_rate_and_burst_and_one_request(seed: int) -> None:
    """Whoever asks when it is allowed, at any times, with requests of any size."""
    rng = random.Random(seed)
    rate, now, largest = rng.uniform(1, 1_000), 0.0, 0.0
    pace = pace_of(rate)
    passed: list[tuple[float, float]] = []
    for _ in range(500):
        now += rng.expovariate(2 * rate)
        if pace.due_s <= now:
            amount = rng.uniform(0, 5)
            largest = max(largest, amount)
            pace.spend(amount, now)
            passed.append((now, amount))
    for first in range(0, len(passed), 25):
        total = 0.0
        for at, amount in passed[first:]:
            total += amount
            assert total <= rate * (at - passed[first][0] + BURST_S) + largest + 1e-6


def test_what_is_owed_stays_owed_when_the_limit_changes() -> None:
    pace = pace_of(100)
    pace.spend(220, 0.0)
    assert pace.due_s == pytest.approx(2.0)
    pace.change(50, 1.0)  # 100 are owed
    assert pace.due_s == pytest.approx(3.0)
    pace.change(200, 2.0)  # 50 are owed
    assert pace.due_s == pytest.approx(2.25)


def test_a_debt_has_a_bound_and_a_clock_that_leaps_gives_no_more_than_the_burst() -> None:
    pace = pace_of(1)
    pace.spend(1e9, 0.0)
    assert pace.due_s == DEBT_S_MAX
    pace.spend(0.1, 1e6)
    assert pace.due_s == pytest.approx(1e6 - BURST_S + 0.1)


def test_an_account_waits_for_its_worst_limit_and_not_for_connections() -> None:
    limits = quotas("user:a bytes-in=100 requests=1 connections=1 time=unlimited").of_user("a")
    account = UsageAccount("a", None, limits, 0.0)
    account.charge(BYTES_IN, 420, 0.0)
    account.charge(REQUESTS, 1.2, 0.0)
    account.charge(TIME, 1e6, 0.0)
    assert account.until == pytest.approx(4.0)
    assert account.worst(0.0) is BYTES_IN
    assert [account.connect(0.0) for _ in range(3)] == pytest.approx([0.0, 0.8, 1.8])
    assert account.until == pytest.approx(4.0)
    account.change({REQUESTS: 1.0}, 0.0)
    assert account.until == pytest.approx(1.0)
    assert account.owes(0.5)
    assert not account.owes(1.5)
