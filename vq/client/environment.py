"""The variables that say where the cluster is, for applications and for commands alike.

The only place below the entry points that reads the environment
(docs/decisions/0054-clients-read-the-environment.md).
"""

import os
from pathlib import Path


def zookeeper() -> str:
    """Return where ZooKeeper is if the application does not say it."""
    return os.environ.get("VQ_ZOOKEEPER", "127.0.0.1:2181")


def cluster() -> str:
    """Return the name of the cluster if the application does not say it."""
    return os.environ.get("VQ_CLUSTER", "default")


def user() -> str:
    """Return who this is to brokers if the application does not say it; "": anonymous."""
    return os.environ.get("VQ_USER", "")


def password() -> str:
    """Return the password of the user if the application does not say it."""
    return os.environ.get("VQ_PASSWORD", "")


def offsets_directory() -> str:
    """Return where members of broadcasting groups keep their progress."""
    return os.environ.get("VQ_OFFSETS_DIR") or str(Path.home() / ".vq" / "offsets")


def failed_directory() -> str:
    """Return where members record the messages that they skip."""
    return os.environ.get("VQ_FAILED_DIR") or str(Path.home() / ".vq" / "failed")
