"""Since when a peer has done nothing."""

from vq.broker.connections.silence import Silence


def test_a_peer_is_idle_from_the_last_look_that_found_it_active() -> None:
    silence = Silence(100.0)
    silence.active = True
    silence.look(105.0)
    silence.look(109.0)
    assert (silence.made, silence.idle_since) == (100.0, 105.0)


def test_a_frame_is_timed_until_another_one_is_incomplete() -> None:
    silence = Silence(100.0)
    assert silence.frame_for(7, 103.0) == 0.0
    assert silence.frame_for(7, 104.5) == 1.5
    assert silence.frame_for(8, 105.0) == 0.0
    assert silence.frame_for(8, 106.0) == 1.0


def test_a_frame_that_was_waited_for_before_a_pause_is_timed_anew() -> None:
    """While reading is paused, its bytes cannot come."""
    silence = Silence(100.0)
    silence.frame_for(7, 101.0)
    silence.frame = None
    assert silence.frame_for(7, 109.0) == 0.0
