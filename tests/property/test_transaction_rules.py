"""The rules of transactions leave no half, tell no lie, and every one of them is needed.

Goal: explore a model (``support.transaction_model``) in which the ledger of the brokers judges,
over all orders of late and repeated requests, take-overs, fences, time-outs and decisions of
operators. With all rules nothing is wrong. Without any one of them, something is.
"""

from collections.abc import Callable

import pytest
from support.transaction_model import Request, Rules, Story, explore

from vq.broker.transactions import ledger as ledgers
from vq.broker.transactions.journaled import JournaledTransaction
from vq.broker.transactions.judging import Answer, Ask
from vq.broker.transactions.ledger import TransactionLedger
from vq.broker.transactions.notes import TransactionStep
from vq.broker.transactions.transactional_ids import TransactionalIds
from vq.model import TransactionState

OPEN, PREPARED = TransactionState.OPEN, TransactionState.PREPARED
COMMITTED, ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK

PIECES = (Request("A", 0, OPEN, (0,)), Request("A", 1, COMMITTED, (1,)))
PREPARES = (Request("A", 0, PREPARED, (0, 1)), Request("A", 1, COMMITTED))
BACK = (Request("A", 0, PREPARED, (0, 1)), Request("A", 1, ROLLED_BACK))

KEPT = {
    "in two requests": Story(PIECES, take_overs=2),
    "in two requests, fenced": Story(PIECES, fences=True),
    "in two requests, an operator rolls it back": Story(PIECES, operator=ROLLED_BACK),
    "prepared, two take-overs": Story(PREPARES, take_overs=2),
    "prepared, and fenced by the next one": Story(PREPARES, fences=True, operator=COMMITTED),
    "prepared, an operator rolls it back": Story(PREPARES, operator=ROLLED_BACK, fences=True),
    "prepared, an operator commits what its producer rolls back": Story(BACK, operator=COMMITTED),
    "prepared, and rolled back": Story(BACK, fences=True, take_overs=2),
}


class ChecksNobody(TransactionalIds):
    """Anybody may ask, with whatever id and epoch."""

    def check(
        self, ask: Ask, found: JournaledTransaction | None, is_late: Callable[[], bool]
    ) -> None:
        pass


class FencesNobody(TransactionLedger):
    """Whoever has had a transactional id goes on with it."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = ChecksNobody()


class LastDecision(TransactionLedger):
    """The last decision counts."""

    def judge(self, ask: Ask, now_ms: int) -> Answer | None:
        if ask.state in (COMMITTED, ROLLED_BACK) and self.answer(ask.number).state is not OPEN:
            return None
        return super().judge(ask, now_ms)

    def take_step(self, step: TransactionStep, offset: int) -> JournaledTransaction | None:
        told = self._told.get(step.transaction)
        if self._ended._ended.pop(step.transaction, None) is not None and told is not None:
            told.state = OPEN
            self.active[step.transaction] = told
        return super().take_step(step, offset)


class TimeEndsAll(TransactionLedger):
    """What is prepared is rolled back by its time, too."""

    def overdue(self, now_ms: int) -> list[JournaledTransaction]:
        return [e for e in self.active.values() if e.state in (OPEN, PREPARED)] if now_ms else []

    def take_step(self, step: TransactionStep, offset: int) -> JournaledTransaction | None:
        return super().take_step(step._replace(by="time") if step.is_automatic else step, offset)


class TakesAll(TransactionLedger):
    """A request is carried out as often as it comes."""

    def judge(self, ask: Ask, now_ms: int) -> Answer | None:
        found = self.active.get(ask.number)
        if found is not None and found.state is OPEN:
            ask = ask._replace(request=found.requests)
        return super().judge(ask, now_ms)


class ForgetsWithoutAFloor(TransactionLedger):
    """A late request begins a transaction that nobody remembers."""

    def _judge_unknown(self, ask: Ask, now_ms: int) -> Answer | None:
        return super()._judge_unknown(ask, ledgers.time_ms_of(ask.number))


TAKEN_AWAY = {
    "a taken id ends what its predecessor has open": (
        Rules(FencesNobody),
        Story(PIECES, fences=True),
        "without the id",
    ),
    "the first decision counts": (
        Rules(LastDecision),
        Story(PREPARES, operator=ROLLED_BACK),
        "",
    ),
    "what is prepared is ended by nobody but a decision": (
        Rules(TimeEndsAll),
        Story(PREPARES),
        "prepared",
    ),
    "each request is carried out once": (Rules(TakesAll), Story(PIECES), "committed with"),
    "what is late is known by its number": (
        Rules(ForgetsWithoutAFloor),
        Story(PIECES),
        "one was told",
    ),
    "nothing is sent before its note is committed": (
        Rules(noted_first=False),
        Story(PREPARES),
        "no decision says so",
    ),
    "nobody is answered before the note is committed": (
        Rules(answered_last=False),
        Story(PREPARES),
        "one was told",
    ),
    "a request is noted as a whole": (Rules(whole=False), Story(PREPARES), "nothing will end it"),
    "what is sent again has the stamp that it had": (
        Rules(same_stamp=False),
        Story(PREPARES),
        "stored twice",
    ),
}


@pytest.mark.parametrize("which", KEPT)
def test_nothing_is_wrong_in_any_order(which: str) -> None:
    outcome = explore(KEPT[which])
    assert (outcome.wrong, outcome.steps) == ("", ())
    assert outcome.states > 100


@pytest.mark.parametrize("which", TAKEN_AWAY)
def test_without_one_rule_something_is(which: str) -> None:
    rules, story, says = TAKEN_AWAY[which]
    outcome = explore(story, rules)
    assert outcome.wrong
    assert says in outcome.wrong, outcome.steps
