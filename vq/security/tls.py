"""TLS from files: contexts for new connections, made anew when the files change.

TLS 1.2 is the least version. A client checks the certificate of its server, and that it is one for
the name or address that the client connects to; nothing switches that off.

A connection keeps the context that it began with. Files are compared by what ``stat`` says of them.
When they have changed, both contexts are made anew; if that fails, because a file is half written
or a key belongs to another certificate, the earlier contexts stay, and ``trouble`` says why.

Not in here: sockets (``remoting.transport``), who a certificate names.
"""

import base64
import contextlib
import enum
import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from vq.errors import InvalidArgument
from vq.log_lines import get_logger
from vq.security.secret_files import check_private

logger = get_logger(__name__)

#: As ``ca``: the certificate authorities that this machine trusts.
SYSTEM_CAS: Final = "system"
#: Connections look at the files at most so often.
LOOK_S: Final = 1.0
#: Files that change while they are read are read again so often, at the start.
_READS_MAX: Final = 3
#: More turns than a handshake takes.
_FLIGHTS: Final = 4
_PEM_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
_PEM_END: Final = b"-----END CERTIFICATE-----"
_PEM_KEY: Final = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")


class ClientCertificates(enum.StrEnum):
    """Whether a server asks its clients for certificates."""

    NONE = "none"  # it does not ask
    OPTIONAL = "optional"  # it checks one that is shown
    REQUIRED = "required"  # a client without one cannot connect


def check_asked(name: str, asked: ClientCertificates, tls: "Tls | None") -> None:
    """Refuse that clients are asked for certificates where there is no TLS.

    Raises:
        InvalidArgument: They are; ``name`` is the setting that says so.
    """
    if tls is None and asked is not ClientCertificates.NONE:
        prefix = "https" if name.startswith("https") else "tls"
        raise InvalidArgument(
            f"{name} = '{asked}' needs TLS: give {prefix}_certificate, {prefix}_key and {prefix}_ca"
        )


class TlsMode(enum.StrEnum):
    """How a broker with a certificate changes from plain TCP to TLS, without a stop."""

    ACCEPTED = "accepted"  # it serves both, and reaches other brokers without TLS
    PREFERRED = "preferred"  # it serves both, and reaches other brokers with TLS
    REQUIRED = "required"  # TLS alone


class TlsNames(NamedTuple):
    """What the files of one end of TLS are called where they are given.

    Attributes:
        setting: What the names of their settings begin with.
        variable: What those of their variables begin with.
        has_options: Commands have options for them.
    """

    setting: str = "tls"
    variable: str = "VQ_TLS"
    has_options: bool = True

    def shown(self, item: str, path: object) -> str:
        """Return a file that is given, as the setting that gives it."""
        return f"{self.setting}_{item} = {str(path)!r}"

    def ways(self, *items: str) -> str:
        """Return how to give files, such as ``certificate`` and ``key``."""
        settings = [f"{self.setting}_{each}" for each in items]
        ways = [
            f"{' and '.join(settings)} in the file that --config or VQ_CONFIG names",
            " and ".join(f"{self.variable}_{each.upper()}" for each in items),
        ]
        if self.has_options:
            ways.append(" and ".join(f"--{each.replace('_', '-')}" for each in settings))
        return f"{', '.join(ways)}, or vq.Tls({', '.join(f'{each}=...' for each in items)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The files of one end of TLS connections, all in PEM form.

    Attributes:
        ca: Certificates of the authorities that must have signed the certificate of the other end.
            None or ``system``: those that this machine trusts.
        certificate: The certificate of this end, and behind it those between it and its authority.
            A server needs one; a client needs one where servers ask for it.
        key: Its private key, without a password. None: it stands in the file of ``certificate``.
            Nobody but its owner may read the file; if that is root, its group may, too.
    """

    ca: Path | str | None = None
    certificate: Path | str | None = None
    key: Path | str | None = None
    #: ``TlsNames``, which programs need not know.
    _names: tuple[str, str, bool] = field(default=TlsNames(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "key"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, str | Path) or not str(value):
                raise InvalidArgument(f"tls: {name} = {value!r} is not the path of a file")
            object.__setattr__(self, name, Path(value))
        _refuse_key_alone(TlsNames(*self._names), self.certificate, self.key)

    @property
    def own_cas(self) -> Path | None:
        """The file of authorities; None: those of the machine."""
        return None if self.ca is None or str(self.ca) == SYSTEM_CAS else Path(self.ca)

    @property
    def key_file(self) -> Path | None:
        """The file that has the private key; None: there is none."""
        found = self.key or self.certificate
        return None if found is None else Path(found)

    @property
    def files(self) -> tuple[Path, ...]:
        """All files."""
        found = (self.own_cas, self.certificate, self.key)
        return tuple(Path(each) for each in found if each is not None)


def named_tls(
    names: TlsNames,
    *,
    ca: Path | str | None,
    certificate: Path | str | None,
    key: Path | str | None,
) -> Tls:
    """Return the files that settings name; errors call them as these do.

    Raises:
        InvalidArgument: There is a key without a certificate; or one is no path.
    """
    _refuse_key_alone(names, certificate, key)
    made = Tls(ca=ca, certificate=certificate, key=key)
    object.__setattr__(made, "_names", names)
    return made


def _refuse_key_alone(names: TlsNames, certificate: object, key: object) -> None:
    if key is not None and certificate is None:
        raise InvalidArgument(
            f"{names.shown('key', key)} is given, and no certificate that it belongs to: give "
            f"{names.ways('certificate')}"
        )


#: What ``stat`` says of a file that was read: a change of its bytes, owner or mode changes it.
_Stamp = tuple[int, int, int, int, int] | None


@dataclass(frozen=True, slots=True)
class _Made:
    """The contexts of one reading of the files."""

    stamps: tuple[_Stamp, ...]
    client: ssl.SSLContext
    server: ssl.SSLContext | None
    expires_s: float | None

    @property
    def expired(self) -> bool:
        """Whether the certificate has expired by now."""
        return self.expires_s is not None and self.expires_s < time.time()


class TlsContexts:
    """Contexts for new connections. Any thread may use it.

    Args:
        tls: The files.
        client_certificates: For servers.
        serves: A server is to use it, so it needs a certificate.

    Attributes:
        tls: The files.
        trouble: Why the files as they are now are not used; "": they are.
        reloads: How often new files were taken.

    Raises:
        InvalidArgument: A file cannot be read or used; the message says which one, and why.
    """

    def __init__(
        self,
        tls: Tls,
        *,
        client_certificates: ClientCertificates = ClientCertificates.NONE,
        serves: bool = False,
    ) -> None:
        self.tls = tls
        self.trouble = ""
        self.reloads = 0
        self._client_certificates = client_certificates
        self._serves = serves
        names = TlsNames(*tls._names)
        if serves and tls.certificate is None:
            raise InvalidArgument(
                f"{names.shown('ca', tls.ca)} is given, so this server is to use TLS, and it has "
                f"no certificate and no key: give {names.ways('certificate', 'key')}. Without TLS, "
                "leave all of them out"
            )
        if client_certificates is not ClientCertificates.NONE and tls.own_cas is None:
            raise InvalidArgument(
                f"client certificates are {client_certificates}, and no authority is named that "
                f"signs them: give a file with your own, {names.ways('ca')}"
            )
        self._made = self._first()
        self._looked_at: tuple[_Stamp, ...] = self._made.stamps
        self._look_due = time.monotonic() + LOOK_S
        if self._made.expired:
            logger.error("TLS certificate has expired", certificate=tls.certificate)

    @property
    def expires_s(self) -> float | None:
        """When the certificate in use expires, in seconds since 1970; None: there is none."""
        return self._made.expires_s

    def client(self) -> ssl.SSLContext:
        """Return the context for a new connection to a server; may look at the files."""
        if time.monotonic() >= self._look_due:
            self.look()
        return self._made.client

    def server(self) -> ssl.SSLContext:
        """Return the context for a connection that is accepted; looks at no file.

        A server looks on a timer: peers cannot make it touch the disk.
        """
        assert self._made.server is not None
        return self._made.server

    def why_not_for(self, host: str) -> str:
        """Return why clients with the same files refuse this server at ``host``; "": they do not.

        It shakes hands with itself, in memory.
        """
        made = self._made
        assert made.server is not None
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = made.client.wrap_bio(down, up, server_hostname=host)
        server = made.server.wrap_bio(up, down, server_side=True)
        try:
            for _ in range(_FLIGHTS):
                for end in (client, server):
                    with contextlib.suppress(ssl.SSLWantReadError):
                        end.do_handshake()
        except ssl.SSLError as error:
            return why_no_tls(error)
        return ""

    def look(self) -> bool:
        """Use the files from now on if they have changed; return whether they are in use.

        A certificate that has expired does not take the place of one that has not. What cannot be
        used is logged once, and looked at again when it has changed.
        """
        self._look_due = time.monotonic() + LOOK_S
        stamps = self._stamps()
        if stamps == self._looked_at:
            return not self.trouble
        try:
            made = self._make(stamps)
            if made is not None and made.expired and not self._made.expired:
                raise InvalidArgument(
                    f"tls: certificate = {str(self.tls.certificate)!r} has expired: it ended on "
                    f"{_date(made.expires_s or 0)}"
                )
        except InvalidArgument as error:
            if self._stamps() != stamps:  # still being written: the next look tells
                stamps = ()
            if str(error) != self.trouble:
                logger.error("TLS files cannot be used, the earlier ones stay in use", error=error)
            self._looked_at, self.trouble = stamps, str(error)
            return False
        if made is None:
            return not self.trouble
        if stamps != self._made.stamps:
            self.reloads += 1
            expires = None if made.expires_s is None else _date(made.expires_s)
            logger.info("TLS files were read again", certificate=self.tls.certificate, ends=expires)
        self._made, self._looked_at, self.trouble = made, stamps, ""
        return True

    def _first(self) -> _Made:
        for _ in range(_READS_MAX):
            made = self._make(self._stamps())
            if made is not None:
                return made
        raise InvalidArgument("tls: the files change while they are read; try again")

    def _stamps(self) -> tuple[_Stamp, ...]:
        return tuple(_stamp(path) for path in self.tls.files)

    def _make(self, stamps: tuple[_Stamp, ...]) -> _Made | None:
        """Return contexts of the files; None: they have changed meanwhile.

        Raises:
            InvalidArgument: A file cannot be used.
        """
        tls = self.tls
        client = _context(ssl.PROTOCOL_TLS_CLIENT)
        if tls.own_cas is None:
            client.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            _load_cas(client, tls.own_cas)
        expires_s = None
        server = None
        if tls.certificate is not None:
            expires_s = _load_own(client, tls)
        if self._serves:
            server = _context(ssl.PROTOCOL_TLS_SERVER)
            server.num_tickets = 0  # clients of vq resume no session
            _load_own(server, tls)
            if self._client_certificates is not ClientCertificates.NONE:
                assert tls.own_cas is not None
                _load_cas(server, tls.own_cas)
                required = self._client_certificates is ClientCertificates.REQUIRED
                server.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return _Made(stamps, client, server, expires_s) if self._stamps() == stamps else None


def _context(kind: int) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _load_cas(context: ssl.SSLContext, path: Path) -> None:
    data = _read(path, "ca")
    if data.count(_PEM_BEGIN) != data.count(_PEM_END):
        raise InvalidArgument(f"tls: ca = {str(path)!r} is cut off in the middle of a certificate")
    try:
        context.load_verify_locations(cadata=data.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise InvalidArgument(
            f"tls: ca = {str(path)!r} has no certificates in PEM form: {_reason(error)}"
        ) from error


def _load_own(context: ssl.SSLContext, tls: Tls) -> float:
    """Load certificate and key of this end; return when the certificate expires."""
    path, key = Path(tls.certificate or ""), tls.key_file
    assert key is not None
    data = _read(path, "certificate")
    if data.count(_PEM_BEGIN) != data.count(_PEM_END):
        raise InvalidArgument(f"tls: certificate = {str(path)!r} is cut off")
    try:
        expires_s = expiry_of(data)
    except ValueError as error:
        raise InvalidArgument(
            f"tls: certificate = {str(path)!r} is not a certificate in PEM form: {error}"
        ) from error
    if tls.key is None and _PEM_KEY.search(data) is None:
        names = TlsNames(*tls._names)
        raise InvalidArgument(
            f"{names.shown('certificate', path)} is given, and no private key: the file has "
            f"none, either; give {names.ways('key')}"
        )
    _check_owner(key)

    def no_password() -> str:
        raise InvalidArgument(
            f"tls: key = {str(key)!r} is encrypted, and nobody is there to type its password; "
            "decrypt it with `openssl pkey`, and leave it readable by its owner alone"
        )

    try:
        context.load_cert_chain(path, key, password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidArgument(
                f"tls: key = {str(key)!r} does not belong to certificate = {str(path)!r}"
            ) from error
        raise InvalidArgument(
            f"tls: key = {str(key)!r} is no private key in PEM form, or cannot be used with "
            f"certificate = {str(path)!r}: {_reason(error)}"
        ) from error
    except OSError as error:
        raise _unreadable(key, "key", error) from error
    return expires_s


def _check_owner(key: Path) -> None:
    """Refuse a private key that others can read.

    Raises:
        InvalidArgument: They can, or there is no such file.
    """
    try:
        check_private(key, key.stat())
    except OSError as error:
        raise _unreadable(key, "key", error) from error
    except InvalidArgument as error:
        raise InvalidArgument(f"tls: key = {str(key)!r}: {error.message}") from error


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, what, error) from error


def _unreadable(path: Path, what: str, error: OSError) -> InvalidArgument:
    return InvalidArgument(f"tls: {what} = {str(path)!r} cannot be read: {error.strerror or error}")


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


# What a certificate says ----------------------------------------------------------------------
def expiry_of(pem: bytes) -> float:
    """Return when the first certificate of a text in PEM form expires, in seconds since 1970.

    ``ssl`` tells that only of certificates of the other end of a connection.

    Raises:
        ValueError: There is none, or it is damaged.
    """
    begin, end = pem.find(_PEM_BEGIN), pem.find(_PEM_END)
    if not 0 <= begin < end:
        raise ValueError("it has no BEGIN CERTIFICATE and END CERTIFICATE")
    der = base64.b64decode(pem[begin + len(_PEM_BEGIN) : end])
    _, certificate = next(_parts(der), (0, b""))
    _, signed = next(_parts(certificate), (0, b""))
    fields = [value for tag, value in _parts(signed) if tag != _VERSION]
    if len(fields) <= _VALIDITY:
        raise ValueError("it is damaged")
    times = list(_parts(fields[_VALIDITY]))
    tag, text = times[1] if len(times) > 1 else (0, b"")
    form = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}.get(tag, "")
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC).timestamp()


#: Tags of DER, and where the validity stands behind serial number, algorithm and issuer (RFC 5280).
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_VALIDITY: Final = 3


def _parts(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and bytes of the elements of a DER value, one behind the other."""
    at = 0
    while at + 2 <= len(der):
        tag, size = der[at], der[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(der[at : at + count], "big")
            at += count
        if at + size > len(der):
            raise ValueError("it is damaged")
        yield tag, der[at : at + size]
        at += size


# What went wrong ------------------------------------------------------------------------------
_NO_TLS: Final = (
    "it does not seem to speak TLS: leave tls_ca and tls_certificate out, or give the server "
    "tls_certificate and tls_key"
)
_NO_CLIENT_CERTIFICATE: Final = (
    "it asks for a client certificate: give tls_certificate and tls_key, signed by an authority "
    "of its tls_ca"
)
_VERSIONS: Final = "there is no version of TLS that both ends take; this end takes 1.2 and 1.3"
_REFUSED: Final = "it does not accept the client certificate of this end"
#: By the reason that OpenSSL gives, without TLSV1_ and the like in front.
_REASONS: Final = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "PACKET_LENGTH_TOO_LONG": _NO_TLS,
    "UNEXPECTED_MESSAGE": _NO_TLS,
    "HTTP_REQUEST": _NO_TLS,
    "ALERT_CERTIFICATE_REQUIRED": _NO_CLIENT_CERTIFICATE,
    "ALERT_HANDSHAKE_FAILURE": _NO_CLIENT_CERTIFICATE,
    "ALERT_PROTOCOL_VERSION": _VERSIONS,
    "UNSUPPORTED_PROTOCOL": _VERSIONS,
    "ALERT_UNKNOWN_CA": f"{_REFUSED}: it was not signed by an authority of its tls_ca",
    "ALERT_BAD_CERTIFICATE": _REFUSED,
    "ALERT_CERTIFICATE_UNKNOWN": _REFUSED,
    "ALERT_CERTIFICATE_EXPIRED": f"{_REFUSED}: it has expired",
    "ALERT_CERTIFICATE_REVOKED": f"{_REFUSED}: it is revoked",
}
#: By the number that OpenSSL gives for a certificate that is refused (X509_V_ERR).
_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_OTHER_NAME: Final = frozenset({62, 64})
_OTHER_CA: Final = frozenset({2, 18, 19, 20, 21})


def why_no_tls(error: BaseException, settings: str = "tls") -> str:
    """Return why a handshake, or what came right behind it, failed, and what to do; "": unknown.

    Pure; for the end that has connected. ``settings`` is what the names of its settings begin with.
    """
    return _why_no_tls(error).replace("tls_", f"{settings}_")


def _why_no_tls(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{_why_not_verified(error)} ({error.verify_message})"
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError | ConnectionAbortedError):
        return f"the TLS handshake was ended ({error}); {_NO_TLS}"
    if not isinstance(error, ssl.SSLError):
        return ""
    reason = _reason(error)
    for prefix in ("TLSV1_3_", "TLSV13_", "TLSV1_", "SSLV3_"):
        reason = reason.removeprefix(prefix)
    found = _REASONS.get(reason)
    return f"{found} ({reason})" if found else f"TLS failed: {reason}"


def closed_early(*, encrypted: bool) -> str:
    """Return what the end that has connected is told when the other one ends it without a word.

    A server that refuses a handshake closes the connection. With TLS 1.3 it checks the certificate
    of the client when the client has ended its handshake already.
    """
    if encrypted:
        return (
            "it ended the connection before its first answer: if it asks for client certificates, "
            "give tls_certificate and tls_key, signed by an authority of its tls_ca; its log says "
            "why"
        )
    return (
        "it ended the connection before its first answer: if it serves TLS, give tls_ca "
        "(vq.Tls(ca=...), VQ_TLS_CA or --tls-ca)"
    )


def _why_not_verified(error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code in _OTHER_NAME:
        return (
            "its certificate is for another name: connect to a name that its certificate has, or "
            "make it one with this name (subjectAltName)"
        )
    if code == _EXPIRED:
        return "its certificate has expired: renew it there"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet: compare the clocks of both machines"
    if code in _OTHER_CA:
        return (
            "its certificate was not signed by an authority that this end trusts: name the file "
            "with its authority as tls_ca"
        )
    return "its certificate cannot be accepted"


def _reason(error: BaseException) -> str:
    return getattr(error, "reason", None) or str(error)
