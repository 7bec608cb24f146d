"""What a node says of itself to its group: whether it may lack messages, has damage, is full.

``leadership``, ``registry`` and ``dead_masters`` ask it each time anew. After a change of what it
says, its owner wakes the first two. ``leadership`` tells it when nothing is lacking any more.
"""


class Fitness:
    """The fitness of a node that lacks nothing: a broker says what it knows of its own."""

    @property
    def lost_power(self) -> bool:
        """Whether a loss of power may have taken messages since the node was last up to date.

        With its group; see ``insync.Candidate``.
        """
        return False

    @property
    def damaged(self) -> bool:
        """Whether it has damage in its logs that its group is to know of."""
        return False

    @property
    def has_damage(self) -> bool:
        """Whether it knows damage at this moment, also such as may be repaired at once."""
        return False

    @property
    def full(self) -> bool:
        """Whether it refuses messages for a full disk."""
        return False

    def is_in_sync(self) -> None:
        """Note that the record names the present registration: it leads, or has caught up.

        Called on the loop; must not block.
        """

    def log_end_bytes(self) -> int:
        """Return where its logs end, added up; told after a loss of power."""
        return 0
