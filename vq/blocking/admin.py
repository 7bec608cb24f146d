"""``factory.admin`` of ``vq``: what an operator asks and changes, for any thread."""

from vq.operations.operation import Waited
from vq.operations.table import Operations


class Admin(Operations, Waited):
    """What an operator asks and changes. ``MessageFactory.admin`` has it; usable from many threads.

    Results are values of ``vq.admin``; numbers that a silent broker would have to tell are None.
    What takes something away, or moves something, is planned first: look at the plan, then give it
    back to be carried out. Every method raises ``CoordinationError`` when ZooKeeper does not
    answer, and one that changes something raises ``OutcomeUnknown`` when ZooKeeper went away
    meanwhile. A listener (``on_progress``) must be short: it is called on the factory's thread, or
    in ``vq.aio`` on its loop.
    """
