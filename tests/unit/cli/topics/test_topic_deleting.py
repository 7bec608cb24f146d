"""``vq topic undelete``: what it says about a topic that cannot be brought back."""

from vq.cli.topics.topic_deleting import not_deleted


def test_who_brings_back_what_is_not_deleted_reads_where_to_look() -> None:
    """To create it, as for any unknown topic, is not what was wanted."""
    error = not_deleted("oders", ["orders", "bills"])
    assert "there is no topic 'oders' that could be brought back" in str(error)
    assert error.hint == "did you mean 'orders'? `vq topic list --deleted` shows those that can"
    assert not_deleted("x", []).hint == "`vq topic list --deleted` shows those that can"
