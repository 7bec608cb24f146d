"""Weeks of daily runs over any appends: each message is archived in time, and none too early."""

from hypothesis import given
from hypothesis import strategies as st

from vq.clock import HOUR_MS
from vq.store.log.archive_age import due, must_roll
from vq.store.log.retention import Kept, OpenBlock

MINUTE_MS = 60_000
DAY_MS = 24 * HOUR_MS

#: Pauses between appends in minutes, a few of them days.
PAUSES = st.lists(st.one_of(st.integers(0, 90), st.integers(90, 5_000)), min_size=1, max_size=150)


@given(
    pauses=PAUSES,
    hours=st.integers(1, 72),
    days=st.lists(st.sampled_from([23, 24, 24, 24, 25]), min_size=20, max_size=20),
    late_s=st.integers(0, 600),
    block_size=st.integers(1, 40),
)
def test_every_message_is_archived_between_its_age_and_two_days_later(
    pauses: list[int], hours: int, days: list[int], late_s: int, block_size: int
) -> None:
    appends, at_ms = [], 0
    for pause in pauses:
        at_ms += pause * MINUTE_MS
        appends.append(at_ms)
    closed: list[list[int]] = []
    opened: list[int] = []
    archived: dict[int, int] = {}  # number of the message: when
    count, run_ms = 0, 0
    for day_hours in [*days, *[24] * 20]:
        run_ms += day_hours * HOUR_MS
        while count < len(appends) and appends[count] <= run_ms + late_s * 1_000:
            opened.append(count)
            count += 1
            if len(opened) == block_size:
                closed.append(opened)
                opened = []
        if opened and must_roll(OpenBlock(0, len(opened), appends[opened[0]]), as_of_ms=run_ms):
            closed.append(opened)
            opened = []
        kept = [Kept(each[0], each[-1] + 1, appends[each[-1]]) for each in closed]
        taken = due(kept, after_hours=hours, as_of_ms=run_ms)
        for block in closed[:taken]:
            archived |= dict.fromkeys(block, run_ms)
        del closed[:taken]
    early_ms = min(2 * HOUR_MS, hours * HOUR_MS // 12)
    for number, at in archived.items():
        age_ms = at - appends[number]
        assert age_ms >= hours * HOUR_MS - early_ms
        assert age_ms <= hours * HOUR_MS + 2 * DAY_MS + 2 * HOUR_MS
    late = [n for n in range(count) if n not in archived]
    assert all(run_ms - appends[n] <= hours * HOUR_MS + 2 * DAY_MS + 2 * HOUR_MS for n in late)
    assert list(archived) == sorted(archived), "in order"


@given(
    times=st.lists(st.one_of(st.none(), st.integers(0, 10**13)), max_size=20),
    hours=st.integers(1, 10_000),
    as_of=st.integers(0, 10**13),
)
def test_more_time_takes_no_fewer_blocks(times: list[int | None], hours: int, as_of: int) -> None:
    kept = [Kept(at * 10, at * 10 + 10, each) for at, each in enumerate(times)]
    now = due(kept, after_hours=hours, as_of_ms=as_of)
    later = due(kept, after_hours=hours, as_of_ms=as_of + DAY_MS)
    assert now <= later
    assert due(kept, after_hours=hours + 1, as_of_ms=as_of) <= now
