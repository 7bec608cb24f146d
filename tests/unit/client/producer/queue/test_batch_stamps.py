"""The stamps of a queue's batches: no two batches share one while a copy may be stored."""

from itertools import count

import pytest

from vq.client.producer.queue import batch as module
from vq.client.producer.queue.batch import Stamps
from vq.limits import PRODUCER_EPOCH_MAX
from vq.model import ProducerIdentity, ProducerStamp


def stamps_of() -> Stamps:
    ids = count(7)
    return Stamps(lambda: next(ids))


def test_the_first_stamp() -> None:
    assert stamps_of().stamp(3) == ProducerStamp(7, 0, 3)


@pytest.mark.parametrize("in_doubt", [False, True])
def test_an_epoch_begins_at_sequence_0(in_doubt: bool) -> None:
    made = stamps_of()
    made.sequence = 5
    made.next_epoch(in_doubt=in_doubt)
    assert made.stamp(made.sequence) == ProducerStamp(7, 1, 0)
    assert made.may_be_copied is in_doubt


def test_a_doubt_stays_over_epochs_until_the_id_is_new() -> None:
    made = stamps_of()
    made.next_epoch(in_doubt=True)
    made.next_epoch(in_doubt=False)
    assert made.may_be_copied
    made.renew()
    assert not made.may_be_copied
    assert made.stamp(made.sequence) == ProducerStamp(8, 0, 0)


def test_a_renewal_is_due_long_before_the_last_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.RENEW_EPOCH <= PRODUCER_EPOCH_MAX // 2
    monkeypatch.setattr(module, "RENEW_EPOCH", 1)
    made = stamps_of()
    assert not made.is_renewal_due
    made.next_epoch(in_doubt=False)
    assert made.is_renewal_due


def test_after_the_last_epoch_comes_a_new_id() -> None:
    made = stamps_of()
    for _ in range(PRODUCER_EPOCH_MAX):
        made.next_epoch(in_doubt=False)
    assert made.stamp(0) == ProducerStamp(7, PRODUCER_EPOCH_MAX, 0)
    made.sequence = 5
    made.next_epoch(in_doubt=True)
    assert made.stamp(made.sequence) == ProducerStamp(8, 0, 0)


def test_an_identity_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other epochs of the id belong to other producers, so no renewal is ever due."""
    monkeypatch.setattr(module, "RENEW_EPOCH", 1)
    made = Stamps(lambda: 8, ProducerIdentity(7, 3))
    assert made.fixed
    assert made.stamp(2) == ProducerStamp(7, 3, 2)
    assert not made.is_renewal_due
    assert not stamps_of().fixed
