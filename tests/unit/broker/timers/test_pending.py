"""What waits and what is due: compared with a list that is searched."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from support.counting import count_lines

from vq.broker.journal.items import Item
from vq.broker.timers.pending import PAGE_BYTES, STEP, Pending

#: Some seconds, minutes and days: on both sides of each border.
TIMES = st.one_of(st.integers(0, 5_000), st.integers(0, 400_000), st.integers(0, 40 * 86_400_000))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TIMES),
        st.tuples(st.just("due"), TIMES),
        st.tuples(st.just("remove"), st.integers(0, 50)),
        st.tuples(st.just("put_back"), st.integers(0, 50)),
        st.tuples(st.just("free"), st.integers(0, 50)),
    ),
    max_size=60,
)


@given(STEPS)
def test_it_does_what_a_list_would_do(steps: list[tuple[str, int]]) -> None:
    """Adds, times that come and go back, removals and what is put back, in any order."""
    pending = Pending()
    waits: list[Item] = []
    out: list[Item] = []  # taken out, not freed
    removed: list[Item] = []
    offset = 0
    for what, number in steps:
        if what == "add":
            offset += PAGE_BYTES // 3
            waits.append(Item(number, offset, 30, number % 7))
            pending.add(waits[-1])
        elif what == "due":
            due = sorted(each for each in waits if each.key <= number)
            assert all_due(pending, number) == due
            waits = [each for each in waits if each not in due]
            out += due
            left = pending.next_ms(number)
            assert left is not None or not waits
            assert left is None or not waits or left <= min(waits).key
        elif what == "remove" and waits:
            each = waits.pop(number % len(waits))
            pending.remove(each.key, each.offset)
            removed.append(each)
        elif what == "put_back" and removed:
            each = removed.pop(number % len(removed))
            pending.put_back(each)
            waits.append(each)
        elif what == "free" and out:
            pending.free(out.pop(number % len(out)).offset)
        assert len(pending) == len(waits)
        for each in (*waits, *out, *removed):
            assert pending.holds(each.key, each.offset) == (each in waits)
        needed = [each.offset for each in (*waits, *out, *removed)]
        found = pending.needed_from
        if needed:
            assert found is not None
            assert min(needed) - PAGE_BYTES < found <= min(needed)
        else:
            assert found is None
    assert all_due(pending, 41 * 86_400_000) == sorted(waits)


def all_due(pending: Pending, now_ms: int) -> list[Item]:
    """Return what is due, in the order of time: calls give parts of it."""
    found: list[Item] = []
    while (following := pending.next_ms(now_ms)) is not None and following <= now_ms:
        found += pending.due(now_ms)
    return sorted(found)


def test_many_messages_of_one_minute_come_in_order_and_in_parts() -> None:
    """The minute is dealt before it begins, so each call is short and nothing is late."""
    pending = Pending()
    times = [60_000 + number * 7_919 % 60_000 for number in range(10 * STEP)]
    for number, due_ms in enumerate(times):
        pending.add(Item(due_ms, number, 1, 0))
    found: list[Item] = []
    for now_ms in range(0, 120_001, 500):
        while (following := pending.next_ms(now_ms)) is not None and following <= now_ms:
            part = pending.due(now_ms)
            assert len(part) <= STEP
            assert all(now_ms - 500 < each.key <= now_ms for each in part)
            found += part
    assert [each.key for each in found] == sorted(times)


def take(pending: Pending, now_ms: int, found: list[Item]) -> None:
    found += pending.due(now_ms)


def test_many_messages_of_one_moment_come_in_parts() -> None:
    """Everything at nine o'clock: no call deals with more than a part of it."""
    pending = Pending()
    for number in range(20 * STEP):
        pending.add(Item(60_000, number, 1, 0))
    last = 20 * STEP - 1
    assert count_lines(lambda: pending.holds(60_000, last), "pending.py") < 50
    most = 0
    found: list[Item] = []
    for now_ms in range(0, 61_000, 250):
        while (following := pending.next_ms(now_ms)) is not None and following <= now_ms:
            most = max(most, count_lines(partial(take, pending, now_ms, found), "pending.py"))
    assert [each.offset for each in found] == list(range(20 * STEP))
    assert most < 20 * STEP
