"""A crash at every step of a transaction, and what must follow: the table of the documents."""

import itertools
from pathlib import Path

import pytest
from support.simulation.crashes import STEPS, VICTIMS, Crash, crash

from vq import limits
from vq.model import TransactionState

PAGE = Path(__file__).parents[2] / "docs/reliability.md"
MESSAGES = 24
#: By step and whether it was done: what becomes of the transaction if coordinator, participant or
#: client dies. A client that lives goes on until it is committed.
MATRIX = {
    ("piece", False): ("committed", "committed", "nothing"),
    ("piece", True): ("committed", "committed", "rolled back"),
    ("prepare", False): ("committed", "committed", "rolled back"),
    ("prepare", True): ("committed", "committed", "prepared"),
    ("commit", False): ("committed", "committed", "prepared"),
    ("commit", True): ("committed", "committed", "committed"),
    ("part", False): ("committed", "committed", "committed"),
    ("part", True): ("committed", "committed", "committed"),
}
STATES = {
    "committed": [TransactionState.COMMITTED],
    "rolled back": [TransactionState.ROLLED_BACK],
    "prepared": [TransactionState.PREPARED],
    "nothing": [],
}


def check(step: str, victim: str, *, after: bool, then: str, seed: int = 1) -> None:
    becomes = MATRIX[step, after][VICTIMS.index(victim)]
    run, report = crash(Crash(step, victim, after, then), seed)
    broken = [event for event in report.history.events if event[1] == "broken"]
    assert (report.violations, broken) == ([], [])
    assert run.states == STATES[becomes]
    # What is prepared was committed by an operator then, and all of it was there.
    assert run.stored == (0 if becomes in ("nothing", "rolled back") else MESSAGES)
    assert run.told == ("committed" if victim != "client" else "")


@pytest.fixture(autouse=True)
def _small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction of some messages takes several requests."""
    monkeypatch.setattr(limits, "TRANSACT_BYTES_MAX", 6_000)


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_no_half(step: str, victim: str) -> None:
    """Another node leads, or the client never comes back: whether the step was done or not."""
    for after in (False, True):
        then = "gone" if victim == "client" else "failover"
        check(step, victim, after=after, then=then)


@pytest.mark.long
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_no_half_in_any_way(step: str, victim: str) -> None:
    """It comes back at once, or another one leads; several seeds."""
    ways = ("restart", "gone" if victim == "client" else "failover")
    for after, then, seed in itertools.product((False, True), ways, range(1, 9)):
        check(step, victim, after=after, then=then, seed=seed)


def test_a_client_that_comes_back_fences_itself() -> None:
    """It takes its transactional id again: what was open is over at once."""
    check("piece", "client", after=True, then="restart")


def test_the_table_of_the_documents_is_this_one() -> None:
    rows = [
        f"| {step} | {'after' if after else 'before'} | {' | '.join(becomes)} |"
        for (step, after), becomes in MATRIX.items()
    ]
    text = PAGE.read_text()
    assert [row for row in rows if row not in text] == []
