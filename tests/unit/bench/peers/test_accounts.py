"""What became of acknowledged messages: lost, doubled, out of order, unknown."""

from bench.peers.accounts import Account, account
from vq.cli.bench.workload import content

SIZE = 16


def received(*numbers: int, stream: int = 0) -> list[bytes]:
    return [content(stream, number, SIZE) for number in numbers]


def test_what_is_all_there_in_order_is_whole() -> None:
    """Streams come mixed; each has an order of its own."""
    mixed = [*received(0), *received(0, 1, stream=1), *received(1)]
    assert account(mixed, {0: 2, 1: 2}, {}, SIZE) == Account(4, 0, 0, 0, 0, 0)


def test_an_acknowledged_message_that_is_not_there_is_lost() -> None:
    assert account(received(0, 2), {0: 4}, {}, SIZE).lost == 2


def test_a_message_whose_outcome_is_unknown_is_not_lost() -> None:
    """It may be there or not; both are right."""
    found = account(received(0, 2), {0: 4}, {0: [1, 2]}, SIZE)
    assert (found.acknowledged, found.failed, found.lost) == (2, 2, 1)


def test_a_second_copy_is_a_duplicate_and_not_out_of_order() -> None:
    found = account(received(0, 1, 0, 1, 2), {0: 3}, {}, SIZE)
    assert (found.duplicates, found.disordered, found.lost) == (2, 0, 0)


def test_a_first_copy_behind_a_higher_number_is_out_of_order() -> None:
    assert account(received(0, 3, 1, 2, 4), {0: 5}, {}, SIZE).disordered == 2


def test_what_nobody_sent_is_told() -> None:
    strange = [*received(7), b"0123456789abcdef", *received(0, stream=5)]
    assert account([*received(0), *strange], {0: 1}, {}, SIZE).altered == 3
