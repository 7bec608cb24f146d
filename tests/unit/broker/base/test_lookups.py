"""Who may wait for a look-up, and whose turn it is."""

import random
from collections import Counter

from vq.broker.base.lookups import FEW, KEPT, WAITING_MAX, WAITING_PER_ASKER_MAX, Lookups


def ignore(_error):
    """Stand in for a request."""


def ask(lookups: Lookups, name: str, asker: str) -> bool:
    """Add a look-up if there is room; whether there was."""
    if lookups.why_not(asker):
        return False
    lookups.add(name, asker, ignore)
    return True


def test_names_are_taken_in_turn_among_askers():
    """The example of the module: who asks last is not read last."""
    lookups = Lookups()
    for name in "abcd":
        ask(lookups, name, "A")
    ask(lookups, "z", "B")
    assert lookups.take(3)[0] == ["a", "z", "b"]
    assert lookups.take(3)[0] == ["c", "d"]
    assert lookups.take(3) == ([], False, [])


def test_one_read_answers_all_that_wait_for_the_name():
    """Also those of other askers, whose turns are not used up by it."""
    lookups = Lookups()
    for asker, name in ("A", "x"), ("B", "x"), ("B", "y"), ("C", "z"):
        ask(lookups, name, asker)
    names, _, taken = lookups.take(2)
    assert names == ["x", "y"]
    assert [each.asker for each in taken] == ["A", "B", "B"]
    assert len(lookups) == 1


def test_names_that_nobody_knows_use_up_no_reads():
    """The list of topics answers for them; they are bounded by themselves."""
    lookups = Lookups()
    for number in range(5):
        ask(lookups, f"invented{number}", "A")
    for name in "xyz":
        ask(lookups, name, "B")
    names, lists, taken = lookups.take(2, "xyz".__contains__)
    assert (names, lists, len(taken)) == (["x", "y"], True, 4)
    names, lists, taken = lookups.take(2, "xyz".__contains__, 2)
    assert (names, lists, len(taken)) == (["z"], True, 3)
    assert lookups.take(2, "xyz".__contains__)[:2] == ([], True)
    assert not lookups


def test_who_asks_while_a_name_is_read_waits_for_the_next_read():
    """The topic may have been made after that read had begun."""
    lookups = Lookups()
    ask(lookups, "x", "A")
    lookups.take(1)
    ask(lookups, "x", "B")
    names, _, (waiting,) = lookups.take(1)
    assert (names, waiting.asker) == (["x"], "B")


def test_greedy_askers_leave_room_for_those_that_ask_for_few():
    """However many greedy ones there are."""
    lookups = Lookups()
    greedy = [f"greedy{number}" for number in range(20)]
    added = sum(
        ask(lookups, f"{asker}.{number}", asker)
        for asker in greedy
        for number in range(WAITING_PER_ASKER_MAX + 1)
    )
    assert WAITING_MAX - KEPT <= added <= WAITING_MAX - KEPT + FEW * len(greedy)
    assert "at most 4096" in lookups.why_not(greedy[0])
    assert not ask(lookups, "more", greedy[-1]) or lookups.counts[greedy[-1]] <= FEW
    assert all(ask(lookups, f"few{number}", "ordinary") for number in range(FEW))
    assert "at most 12288" in lookups.why_not("ordinary")


def test_an_ordinary_lookup_waits_for_one_read_of_each_other_asker():
    """And for what is being read already; not for all that the others have asked."""
    lookups = Lookups()
    for asker in range(16):
        for number in range(700):
            ask(lookups, f"{asker}.{number}", f"greedy{asker}")
    lookups.take(64)
    ask(lookups, "mine", "ordinary")
    names, _, _ = lookups.take(17)
    assert names[-1] == "mine"


def test_a_lookup_is_counted_until_it_is_done():
    """Taken ones count for their asker, and no count of zero is kept."""
    lookups = Lookups(per_asker_max=1)
    ask(lookups, "x", "A")
    _, _, (taken,) = lookups.take(1)
    assert lookups.why_not("A")
    lookups.done(taken)
    assert not lookups.why_not("A")
    assert not lookups.counts


def test_all_are_taken_when_nothing_can_be_read():
    """And none is left for a later turn."""
    lookups = Lookups()
    for number in range(5):
        ask(lookups, f"{number % 2}", f"asker{number}")
    assert len(lookups.take_all()) == 5
    assert (len(lookups), lookups.take(5)) == (0, ([], False, []))


def test_every_lookup_is_taken_once_in_whatever_order_they_come():
    """A random history: nothing is lost, nothing is taken twice, the count is right."""
    rng = random.Random(7)
    lookups = Lookups()
    asked: Counter[tuple[str, str]] = Counter()
    taken: Counter[str] = Counter()
    for _ in range(3_000):
        if rng.random() < 0.6:
            asker, name = f"a{rng.randrange(6)}", f"n{rng.randrange(40)}"
            ask(lookups, name, asker)
            asked[asker, name] += 1
        else:
            for each in lookups.take(rng.randrange(1, 4)).lookups:
                taken[each.asker] += 1
                lookups.done(each)
    while lookups:
        for each in lookups.take(3).lookups:
            taken[each.asker] += 1
            lookups.done(each)
    by_asker: Counter[str] = Counter()
    for (asker, _), count in asked.items():
        by_asker[asker] += count
    assert taken == by_asker
    assert not lookups.counts
    assert not lookups._by_name
