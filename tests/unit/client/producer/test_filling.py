"""How full a batch is: what filled the last ones decides what is worth the next one."""

from vq.client.producer.filling import Filling


def test_at_first_a_batch_is_full_at_its_bound_in_messages() -> None:
    filling = Filling(2_000)
    assert filling.candidates == 2_000
    assert filling.is_worth_a_frame(1_000)
    assert not filling.is_worth_a_frame(999)
    assert filling.are_few(249)
    assert not filling.are_few(250)


def test_a_batch_that_bytes_cut_shows_how_many_messages_fill_one() -> None:
    filling = Filling(2_000)
    filling.note(100, cut=True)
    assert filling.is_worth_a_frame(50)
    assert filling.candidates == 133, "a few more than filled one"
    filling.note(120, cut=False)
    assert filling.full == 120, "messages may have become smaller"
    filling.note(3, cut=False)
    assert filling.full == 120
