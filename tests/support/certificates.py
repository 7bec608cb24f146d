"""Authorities and certificates of tests, as files."""

import datetime
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from vq.security.tls import Tls

#: Names of this machine, which brokers of tests are reached by.
HERE = ("127.0.0.1", "localhost")
#: A day that has passed.
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def write_tls(
    directory: Path,
    ca: trustme.CA,
    *names: str,
    expires: datetime.datetime | None = None,
    trusts: trustme.CA | None = None,
) -> Tls:
    """Write a certificate that an authority signs, and the authority that this end trusts.

    Args:
        directory: Where the files are; made when missing.
        ca: Signs.
        names: Of the certificate; none: those of this machine.
        expires: When the certificate does; None: long after the test.
        trusts: The authority in the file ``ca``; None: the same one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    made = ca.issue_cert(*(names or HERE), not_after=expires)
    tls = Tls(ca=directory / "ca.pem", certificate=directory / "tls.pem", key=directory / "tls.key")
    (trusts or ca).cert_pem.write_to_path(str(tls.ca))
    Path(str(tls.certificate)).write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
    key = Path(str(tls.key))
    key.touch(mode=0o600)
    # In PKCS 8, which Java reads, too.
    private = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return tls


def write_ca(directory: Path, ca: trustme.CA) -> Tls:
    """Write the authority that a client without a certificate trusts."""
    directory.mkdir(parents=True, exist_ok=True)
    ca.cert_pem.write_to_path(str(directory / "only-ca.pem"))
    return Tls(ca=directory / "only-ca.pem")
