"""Who acts, for traces in ZooKeeper that operators read."""

import getpass
import os
import socket


def who() -> str:
    """Return this user and machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
