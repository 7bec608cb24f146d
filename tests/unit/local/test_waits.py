"""Who waits for a commit, and how long a commit waits for them."""

import threading

from support.waiting import WAIT_S

from vq.local.waits import CommitWaiter, Intake, Sleeper


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
