"""Who waits for a commit, and how long a commit waits for them."""

import threading

from vq.local.core.waits import CommitWaiter, Company, Intake, Sleeper
from vq.testing.waiting import WAIT_S


def test_a_round_waits_for_so_many_and_not_for_more_than_a_moment() -> None:
    """Each caller adds itself, and wakes the thread if that sleeps."""
    intake = Intake()
    sleeper = Sleeper(intake)

    def put() -> None:
        intake.barriers.append(CommitWaiter((), threading.Lock()))
        if sleeper.idle:
            sleeper.kick()

    callers = [threading.Thread(target=put) for _ in range(5)]
    for caller in callers:
        caller.start()
    assert sleeper.gather(5, WAIT_S)
    for caller in callers:
        caller.join()
    assert not sleeper.gather(6, 0.001)
    assert not sleeper.idle


def test_a_queue_that_ends_waits_for_nobody() -> None:
    sleeper = Sleeper(Intake())
    sleeper.is_ending = True
    assert not sleeper.gather(1, WAIT_S)


def test_callers_are_alone_some_rounds_after_they_shared_one() -> None:
    """So that callers in turn do not take the rounds from the thread that gathers them."""
    company = Company()
    assert company.alone_from == 0
    company.note(5, waiters=1, waiting=0, messages=1)
    assert company.alone_from <= 5
    company.note(6, waiters=3, waiting=2, messages=3)
    assert company.expected == 5
    assert company.alone_from == 14
    company.note(20, waiters=3, waiting=2, messages=1_000)
    assert company.expected == 0
