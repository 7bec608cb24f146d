"""Who is asked what is to become of a half message."""

from typing import Any

from vq.broker.transactions.check_desk import CheckDesk
from vq.broker.transactions.ledger import TransactionLedger
from vq.broker.transactions.notes import CheckPlan, TransactionStep
from vq.model import TransactionState

NOW_MS = 1_764_390_000_000


class Connected:
    """What the desk knows of a connection."""

    congested = False

    def __init__(self) -> None:
        self.waiting: dict[Any, None] = {}


async def test_a_producer_whose_connection_has_ended_is_passed_by() -> None:
    """Also before its task knows; what is due goes to the next one that waits, or waits itself."""
    ledger = TransactionLedger()
    plan = CheckPlan("g", 1_000, 15, False, 0, NOW_MS)
    for number in (1, 2):
        step = TransactionStep(number, 1, TransactionState.PREPARED, "", NOW_MS, checks=plan)
        ledger.take_step(step, number)
    desk = CheckDesk(ledger)
    gone, there = Connected(), Connected()
    first = desk.wait(gone, "g", 7, 16)  # type: ignore[arg-type]
    desk.look(NOW_MS)
    first.cancel()
    desk.hand_out(NOW_MS, ())
    second = desk.wait(there, "g", 8, 16)  # type: ignore[arg-type]
    desk.hand_out(NOW_MS, ())
    assert first.handed.result() == ()
    assert second.handed.result() == [1, 2]
    desk.leave(first)
    desk.answered([1, 2])
    desk.look(NOW_MS)
    third = desk.wait(there, "g", 9, 16)  # type: ignore[arg-type]
    desk.hand_out(NOW_MS, ())
    assert third.handed.result() == [1, 2]
