"""When a periodic task is due."""

from datetime import datetime

import pytest

import vq
from vq.errors import InvalidArgument, UnknownTopic
from vq.testing import ThreadCluster
from vq.testing.waiting import block_until
from vq.worker import periodic
from vq.worker.periodic import Periodic
from vq.worker.schedules import Cron, EverySeconds


def ms(hour: int, minute: int = 0) -> int:
    return int(datetime(2026, 11, 29, hour, minute).astimezone().timestamp() * 1000)


def due() -> None: ...


def test_a_period_keeps_its_phase_and_makes_up_for_nothing() -> None:
    every = EverySeconds(60)
    assert every.due_ms(1_000, 60_999) is None
    assert every.due_ms(1_000, 61_000) == 61_000
    assert every.due_ms(1_000, 200_000) == 181_000


def test_a_line_of_cron_is_due_once_however_often_it_was_missed() -> None:
    cron = Cron("0 2 * * *")
    assert cron.due_ms(ms(0), ms(1, 59)) is None
    assert cron.due_ms(ms(0), ms(2)) == ms(2)
    assert cron.due_ms(ms(2), ms(23)) is None
    assert cron.due_ms(ms(0) - 3 * 86_400_000, ms(5)) == ms(5)


@pytest.mark.parametrize(
    ("line", "days"),
    [
        ("0 2 * * 0", "29"),  # 29 November 2026 is a Sunday
        ("0 2 * * 7", "29"),
        ("0 2 * * 1-5", "30 1 2 3 4"),
        ("0 2 * * MON", "30"),
        ("0 2 * * fri-sun", "29 4 5"),
        ("0 2 * * 6-7", "29 5"),
        ("0 2 * * 7-1", "29 30"),
        ("0 2 * * */3", "29 2 5"),
        ("0 2 * * 1/3", "30 3"),
        ("0 2 3 * 1", "30 3"),
        ("0 2 3 12 *", "3"),
        ("0 2 */2 * 1", ""),
    ],
)
def test_the_days_of_a_line_are_those_of_crontab(line: str, days: str) -> None:
    cron, day_ms = Cron(line), 86_400_000
    due = [at for at in range(7) if cron.due_ms(ms(1) + at * day_ms, ms(3) + at * day_ms)]
    assert " ".join(str((28 + at) % 30 + 1) for at in due) == days


@pytest.mark.parametrize(
    "line",
    [
        *("", "* * * *", "61 * * * *", "every day", "@daily", "a b c d e", "*/0 * * * *"),
        *("* * * * * *", "0 2 * * 8", "0 2 * * 5-2", "0 2 * * */0", "0 2 * * ,", "0 2 * * x"),
    ],
)
def test_another_line_is_refused_where_the_task_is_made(line: str) -> None:
    with pytest.raises(InvalidArgument, match="no line of five fields") as refused:
        vq.task(topic="mail", cron=line)(due)
    assert repr(line) in str(refused.value)


def test_a_line_without_a_time_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"'0 2 30 2 .' has no time"):
        vq.task(topic="mail", cron="0 2 30 2 *")(due)


@vq.task(topic="mail", every_s=3600.0)
def digest() -> None: ...


@vq.task(topic="gone", every_s=3600.0)
def tidy() -> None: ...


def test_a_task_that_cannot_be_sent_has_no_other_sent_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is tried again at each look, and the times of the others are kept."""
    monkeypatch.setattr(periodic, "LOOK_S", 0.01)
    sent, tries = [], []
    monkeypatch.setattr(type(digest), "send", lambda task: sends[task.signature]())
    sends = {digest.signature: lambda: sent.append(1), tidy.signature: lambda: fail(tries)}
    with ThreadCluster() as cluster:
        factory = cluster.factory()
        sending = Periodic.begin(factory, "g", [tidy, digest])
        assert sending is not None
        try:
            block_until(lambda: sending._times)
            long_ago = dict.fromkeys((digest.signature, tidy.signature), 1)
            sending._runtime.run(sending._write(long_ago))
            sending._times = None
            block_until(lambda: len(tries) > 5)
        finally:
            sending.stop()
    assert sent == [1]


def fail(tries: list[int]) -> None:
    tries.append(1)
    raise UnknownTopic("it is gone")
