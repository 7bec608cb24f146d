"""Since when a peer has done nothing. Pure: the connection's sweep passes the time."""


class Silence:
    """How long one peer has been idle, and how long a frame of it has been incomplete.

    Attributes:
        made: When the connection was made, monotonic as all times here.
        active: Something came since the last ``look``.
        idle_since: Of the last ``look`` that found it active.
        frame: The number of the frame that was incomplete at the last look; None: none was.
    """

    __slots__ = ("_frame_since", "active", "frame", "idle_since", "made")

    def __init__(self, now: float) -> None:
        self.made = self.idle_since = now
        self.active = False
        self.frame: int | None = None
        self._frame_since = now

    def look(self, now: float) -> None:
        """Note whether something came since the last look."""
        if self.active:
            self.active = False
            self.idle_since = now

    def frame_for(self, frame: int, now: float) -> float:
        """Return for how many seconds the frame of this number has been incomplete."""
        if frame != self.frame:
            self.frame = frame
            self._frame_since = now
        return now - self._frame_since
