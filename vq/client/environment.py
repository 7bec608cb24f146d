"""The variables that say where the cluster is, for applications and for commands alike.

The only place below the entry points that reads the environment, or changes it
(docs/decisions/0054-clients-read-the-environment.md).
"""

import os
from pathlib import Path

from vq.security.tls import SYSTEM_CAS, Tls, TlsNames, named_tls


def zookeeper() -> str:
    """Return where ZooKeeper is if the application does not say it."""
    return os.environ.get("VQ_ZOOKEEPER", "127.0.0.1:2181")


def zookeeper_auth() -> str:
    """Return who this process is to ZooKeeper if the application does not say it."""
    return os.environ.get("VQ_ZOOKEEPER_AUTH", "")


def cluster() -> str:
    """Return the name of the cluster if the application does not say it."""
    return os.environ.get("VQ_CLUSTER", "default")


def user() -> str:
    """Return who this is to brokers if the application does not say it; "": anonymous."""
    return os.environ.get("VQ_USER", "")


def password() -> str:
    """Return the password of the user if the application does not say it."""
    return os.environ.get("VQ_PASSWORD", "")


def tls() -> Tls | None:
    """Return the files of TLS to brokers if the application does not say them; None: plain TCP."""
    return _tls(TlsNames())


def zookeeper_tls() -> Tls | None:
    """Return those of TLS to ZooKeeper; None: plain TCP."""
    return _tls(TlsNames("zookeeper_tls", "VQ_ZOOKEEPER_TLS", has_options=False))


def export_tls(tls: Tls | None, zookeeper_tls: Tls | None) -> None:
    """Have processes that this one starts take the same files; None: have them use no TLS.

    What a command line says is known to its own process alone.
    """
    for prefix, given in (("VQ_TLS", tls), ("VQ_ZOOKEEPER_TLS", zookeeper_tls)):
        for name in ("ca", "certificate", "key"):
            variable = f"{prefix}_{name.upper()}"
            file = None if given is None else getattr(given, name)
            if given is not None and name == "ca" and file is None:
                file = SYSTEM_CAS
            if file is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = str(file)


def _tls(names: TlsNames) -> Tls | None:
    ca, certificate, key = (
        os.environ.get(f"{names.variable}_{each}") or None for each in ("CA", "CERTIFICATE", "KEY")
    )
    if ca is None and certificate is None and key is None:
        return None
    return named_tls(names, ca=ca, certificate=certificate, key=key)


def offsets_directory() -> str:
    """Return where members of broadcasting groups keep their progress."""
    return os.environ.get("VQ_OFFSETS_DIR") or str(Path.home() / ".vq" / "offsets")


def failed_directory() -> str:
    """Return where members record the messages that they skip."""
    return os.environ.get("VQ_FAILED_DIR") or str(Path.home() / ".vq" / "failed")
