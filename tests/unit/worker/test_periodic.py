"""When a periodic task is due."""

from datetime import datetime

import pytest

from vq.errors import InvalidArgument
from vq.worker.periodic import Cron, EverySeconds


def ms(hour: int, minute: int = 0) -> int:
    return int(datetime(2026, 11, 29, hour, minute).astimezone().timestamp() * 1000)


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


@pytest.mark.parametrize("line", ["", "* * * *", "61 * * * *", "every day"])
def test_another_line_is_refused(line: str) -> None:
    with pytest.raises(InvalidArgument, match="no line of five fields"):
        Cron(line)
