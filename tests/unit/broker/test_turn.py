"""What a turn of the loop leaves for its end."""

from types import SimpleNamespace

from vq.broker.turn import Turn


def test_a_turn_ends_once_with_the_action_first():
    """However much is gathered, one callback; what it starts goes on beside the writes."""
    scheduled, seen = [], []
    turn = Turn(scheduled.append)
    turn.on_end(lambda: seen.append("action"))
    turn.add(SimpleNamespace(write_out=lambda: seen.append("a")))
    turn.schedule()
    turn.add(SimpleNamespace(write_out=lambda: seen.append("b")))
    assert len(scheduled) == 1
    scheduled[0]()
    assert seen == ["action", "a", "b"]
    turn.schedule()
    assert len(scheduled) == 2
