"""A member of a shared group asks for all of its partitions, however many they are."""

from vq.client.consumer.shared.turns import SourceTurns


def test_partitions_that_fit_into_a_request_are_asked_for_at_once() -> None:
    """Such a request waits: nothing else is to be asked for."""
    turns = SourceTurns(3)
    turns.has_more(2)
    for _ in range(2):
        assert turns.next([0, 2, 5]) == ([0, 2, 5], True, True)


def test_more_partitions_take_turns_and_a_request_waits_after_a_round_without_anything() -> None:
    turns = SourceTurns(3)
    sources = list(range(7))
    assert turns.next(sources) == ([0, 1, 2], False, False)
    assert turns.next(sources) == ([3, 4, 5], False, False)
    assert turns.next(sources) == ([6, 0, 1], False, False)
    assert turns.next(sources) == ([2, 3, 4], False, True)
    turns.found(something=True)
    assert turns.next(sources) == ([5, 6, 0], False, False)
    assert turns.next([1, 3, 4, 6]) == ([1, 3, 4], False, False), "some are read no more"


def test_partitions_with_news_come_first_and_hold_up_no_other() -> None:
    """They have up to half of a request; each other one comes within twice as many requests."""
    turns = SourceTurns(4)
    sources = list(range(10))
    turns.next(sources)
    for each in (9, 2, 3, 40):
        turns.has_more(each)
    assert turns.next(sources) == ([9, 2, 4, 5], False, False)
    assert turns.next(sources) == ([3, 6, 7, 8], False, False)
    asked: set[int] = set()
    for _ in range(5):
        for each in (0, 1, 2, 3):
            turns.has_more(each)
        asked.update(turns.next(sources).sources)
    assert asked == set(sources)
