"""What goes wrong with a process that was started here."""

from vq.errors import VqError


class ChildFailed(VqError):
    """A process that was started here failed; the message ends with lines of its log, marked."""
