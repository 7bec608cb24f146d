"""Which open messages wait for others, against the rule written out."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from vq.broker.shared.open_keys import OpenKeys


@dataclass
class Numbers:
    """Some of the open messages."""

    first: int
    end: int


def runs_of(numbers: set[int]) -> list[Numbers]:
    found: list[Numbers] = []
    for number in sorted(numbers):
        if found and found[-1].end == number:
            found[-1].end += 1
        else:
            found.append(Numbers(number, number + 1))
    return found


STEPS = st.lists(
    st.tuples(st.sampled_from(("open", "tell", "done")), st.integers(0, 29), st.integers(1, 6)),
    max_size=60,
)


@given(
    keys=st.lists(st.lists(st.integers(0, 3), min_size=40, max_size=40), min_size=2, max_size=2),
    steps=STEPS,
)
def test_a_message_waits_for_open_ones_before_it_with_its_key_or_an_unknown_one(
    keys: list[list[int]], steps: list[tuple[str, int, int]]
) -> None:
    """A message without a key waits for none, and one whose key is unknown is read first.

    Of some messages another key is told later: the first ones were cut.
    """
    found = OpenKeys()
    is_open: set[int] = set()
    told: dict[int, int] = {}
    cursor = 0
    for turn, (what, at, count) in enumerate(steps):
        if what == "open":
            is_open |= set(range(cursor, min(40, cursor + count)))
            cursor = min(40, cursor + count)
        elif what == "tell":
            of = keys[turn > 20]
            found.tell(at, of[at : at + count], runs_of(is_open))
            told |= {each: of[each] for each in range(at, at + count) if each in is_open}
        else:
            done = set(range(at, at + count)) & is_open
            is_open -= done
            found.done(sorted(done))
        found.look(runs_of(is_open), cursor)
        for number in is_open:
            key = told.get(number, 0)
            before = [each for each in is_open if each < number]
            waits = key != 0 and any(told.get(each, key) == key for each in before)
            assert found.waits(number) == waits
