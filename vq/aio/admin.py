"""``factory.admin`` of ``vq.aio``: what an operator asks and changes, as coroutines."""

from vq.operations.operation import Awaited
from vq.operations.table import Operations


class Admin(Operations, Awaited):
    """What an operator asks and changes, on one loop. ``MessageFactory.admin`` has it.

    The methods are those of ``vq.Admin``, as coroutines; so are results, errors and promises.
    """
