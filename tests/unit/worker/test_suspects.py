"""Which messages a process may have died of."""

from vq.worker.suspects import SUSPECTS_MAX, MessageKey, Suspects


def key(number: int) -> MessageKey:
    return MessageKey("t", 0, number, number)


def test_of_several_in_hand_each_may_be_guilty_once() -> None:
    """However often they are together: only one that is alone, or overdue, is counted further."""
    suspects = Suspects()
    for _ in range(3):
        suspects.died([key(1), key(2)])
    assert (suspects.count(key(1)), suspects.count(key(2)), suspects.count(key(3))) == (1, 1, 0)
    suspects.died([key(2)])
    assert (suspects.count(key(1)), suspects.count(key(2))) == (1, 2)
    suspects.handled(key(1))
    assert dict(suspects.items()) == {key(2): 2}


def test_what_is_overdue_is_counted_and_the_others_are_not_guilty() -> None:
    suspects = Suspects()
    suspects.overdue([key(1)])
    suspects.overdue([key(1)])
    assert dict(suspects.items()) == {key(1): 2}


def test_another_delivery_of_a_message_counts_anew() -> None:
    suspects = Suspects()
    suspects.died([key(1)])
    assert suspects.count(key(1)._replace(earlier=3)) == 0


def test_no_more_than_a_bound_are_remembered() -> None:
    suspects = Suspects()
    for number in range(SUSPECTS_MAX + 5):
        suspects.died([key(number)])
    assert len(suspects) == SUSPECTS_MAX
    assert suspects.count(key(0)) == 0
    assert suspects.count(key(SUSPECTS_MAX + 4)) == 1
