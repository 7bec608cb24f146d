"""How a gateway serves, and the bounds of what it takes; checked when it is made."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vq import limits
from vq.bounds import check_between, check_within
from vq.errors import InvalidArgument
from vq.model import check_host, choice_of
from vq.remoting.ports import is_loopback
from vq.security.tls import ClientCertificates, Tls, check_asked
from vq.shown import shown

PORT: Final = 8125
METRICS_PORT: Final = 8126
#: Names of this machine that are always allowed, if the gateway listens on loopback alone.
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
#: In ``allowed_hosts``: any name.
ANY_HOST: Final = "*"

#: Bounds of what a request asks for.
MESSAGES_MAX: Final = 1_000
WAIT_S_MAX: Final = 60.0
SEND_S_MAX: Final = 120.0
LEASE_S_MIN: Final = 5.0
LEASE_S_MAX: Final = 600.0
WINDOW_MAX: Final = 10_000
SUBSCRIPTIONS_MAX: Final = 32
#: A text by which a client names a request that it may repeat.
ATTEMPT_CHARS_MAX: Final = 128
#: A handle of a message: two names, an id and numbers, in Base64.
HANDLE_CHARS_MAX: Final = 1_024
#: Contents of the messages of one answer, before they are written as JSON.
ANSWER_BYTES_MAX: Final = 2 * limits.MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Settings of one gateway.

    Attributes:
        host: The address it listens on.
        port: The port; 0 takes a free one.
        tokens: The file of tokens. None: everybody who reaches the gateway may do everything, so
            it listens on loopback only.
        allowed_hosts: Names that the header ``Host`` may have, ``*`` for any. Empty: the address it
            listens on, and on loopback also ``localhost``.
        origins: Web pages of these origins may call it (CORS), such as ``https://shop.example``;
            ``*`` for any. Empty: none may.
        metrics_host: The address that metrics and health are read at.
        metrics_port: Their port; 0: they are not served.
        plaintext: Serve other machines although there is no TLS: without it, such a gateway does
            not start.
        https: Files of TLS for both (``https_certificate``, ``https_key``); None: plain HTTP. Its
            ``ca`` is for certificates of clients.
        https_client_certificates: ``none``, ``optional`` or ``required``: whether clients must show
            a certificate that an authority of ``https_ca`` has signed.
        metrics_client_certificates: The same for those that read metrics and health.
        body_bytes_max: Bytes of the body of one request. It must hold a message of 1 MiB in Base64.
        bodies_bytes_max: Bytes of all bodies that are being read or sent; at the bound a request is
            answered with 429.
        unread_bytes_max: Bytes of answers that peers have not taken; at the bound a request for
            messages is answered with 429.
        body_timeout_s: A body must be whole within this time.
        header_bytes_max: Bytes of the first line and the headers of a request.
        header_timeout_s: They must be whole within this time.
        write_timeout_s: A connection whose peer takes nothing for so long is cut.
        connections_max: Open connections.
        requests_max: Requests that are being answered, those that wait included.
        waiting_max: Requests of them that wait for messages, streams included.
        consumers_max: Members that the gateway hosts.
        consumers_per_token_max: Of them of one token.
        waiting_per_token_max: Requests of one token that wait for messages.
        given_bytes_max: Bytes of messages that all members were given and have not committed.
        lease_s: A member leaves its group when it was not used for so long, unless it asks for
            another time.
        stop_timeout_s: How long a stop waits for members to leave and for answers to be taken.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    tokens: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    metrics_host: str = "127.0.0.1"
    metrics_port: int = METRICS_PORT
    plaintext: bool = False
    https: Tls | None = None
    https_client_certificates: ClientCertificates = ClientCertificates.NONE
    metrics_client_certificates: ClientCertificates = ClientCertificates.NONE
    body_bytes_max: int = 8 * limits.MIB
    bodies_bytes_max: int = 64 * limits.MIB
    unread_bytes_max: int = 64 * limits.MIB
    body_timeout_s: float = 20.0
    header_bytes_max: int = 64 * limits.KIB
    header_timeout_s: float = 10.0
    write_timeout_s: float = limits.WRITE_TIMEOUT_S
    connections_max: int = 2_000
    requests_max: int = 1_000
    waiting_max: int = 500
    consumers_max: int = 200
    consumers_per_token_max: int = 50
    waiting_per_token_max: int = 100
    given_bytes_max: int = 256 * limits.MIB
    lease_s: float = 30.0
    stop_timeout_s: float = 20.0

    def __post_init__(self) -> None:
        for name in ("https_client_certificates", "metrics_client_certificates"):
            asked = choice_of(ClientCertificates, name, getattr(self, name))
            object.__setattr__(self, name, asked)
            check_asked(name, asked, self.https)
        for name in ("host", "metrics_host"):
            check_host(getattr(self, name))
        for name in ("port", "metrics_port"):
            check_between(name, getattr(self, name), 0, 65_535)
        for name in self.__slots__:
            value = getattr(self, name)
            if name.endswith(("_max", "_s")) and not value > 0:
                raise InvalidArgument(f"{name} = {shown(value)} must be above 0")
        check_within("lease_s", self.lease_s, LEASE_S_MIN, LEASE_S_MAX)
        least = 2 * limits.MESSAGE_BYTES_MAX
        if self.body_bytes_max < least:
            raise InvalidArgument(
                f"body_bytes_max = {self.body_bytes_max} is below {least}: a message of "
                f"{limits.MESSAGE_BYTES_MAX} bytes in Base64, with its key and headers, must fit"
            )
        if self.bodies_bytes_max < self.body_bytes_max:
            raise InvalidArgument(
                f"bodies_bytes_max = {self.bodies_bytes_max} is below body_bytes_max = "
                f"{self.body_bytes_max}"
            )
        for origin in self.origins:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise InvalidArgument(
                    f"origin {shown(origin)} has no scheme; give one as browsers send it, such as "
                    "https://shop.example, or *"
                )
        self._check_open()

    def _check_open(self) -> None:
        """Refuse what would let anybody in.

        Raises:
            InvalidArgument: There are no tokens, and other machines reach it; or it is not known
                under which names.
        """
        if self.tokens is None and not is_loopback(self.host):
            raise InvalidArgument(
                f"host = {shown(self.host)} can be reached from other machines, and without tokens "
                "everybody may send and receive everything: make one with `vq gateway token NAME` "
                "and give the file with --tokens; or listen on 127.0.0.1"
            )
        if not self.allowed_hosts and is_wildcard(self.host):
            raise InvalidArgument(
                f"host = {shown(self.host)} has no name of its own: give the names under which "
                "clients reach the gateway with --allowed-host, as in the header Host; '*' takes "
                "any"
            )

    @property
    def host_names(self) -> frozenset[str]:
        """What the header ``Host`` may have, in lower case and without a port."""
        names = self.allowed_hosts or (self.host,)
        loopback = LOOPBACK_NAMES if is_loopback(self.host) else ()
        return frozenset(each.lower().strip("[]") for each in (*names, *loopback))


def is_wildcard(host: str) -> bool:
    """Whether an address stands for all of a machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
