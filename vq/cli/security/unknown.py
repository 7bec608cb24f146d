"""A remark about whoever a rule or a quota names, and nobody knows: it may be a slip."""

from vq.cli.base.options import Invocation
from vq.errors import VqError
from vq.operations.security.users import why_unknown


def remark_unknown(invocation: Invocation, subject: str) -> None:
    """Say on stderr that there is no such user, or that nobody has such a role.

    What was done stays done, and no error comes of it where users cannot be read.
    """
    try:
        why = invocation.call(why_unknown, subject)
    except VqError as error:
        why = f"it is not known whether there is {subject}: {error.message}"
    if why:
        invocation.output.remark(why)
