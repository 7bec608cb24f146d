"""Settings of the console."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from vq.bounds import check_between
from vq.client.config import MessageFactoryConfig
from vq.errors import InvalidArgument
from vq.limits import is_valid_name
from vq.model import choice_of
from vq.remoting.ports import is_loopback
from vq.security.tls import ClientCertificates, Tls, check_asked
from vq.shown import shown

PORT: Final = 8120
#: The file of the default database, in the working directory.
DATABASE_FILE: Final = "vq-console.db"
#: Proxies that are believed if there is a public URL and none is named.
_LOOPBACK_PROXIES: Final = ("127.0.0.0/8", "::1")
ProxyNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
#: Series of measurements that are kept of a cluster.
HISTORY_SERIES: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcConfig:
    """Log in with an OpenID Connect provider.

    Attributes:
        issuer: URL of the provider; its discovery document tells the rest.
        client_id, client_secret: As the provider knows the console.
        claim: The claim with the names of groups or roles of a person; ``realm_access.roles`` is
            a claim within another one.
        roles: AccountRole of the console by value of the claim, such as ``{"vq-admins": "admin"}``.
        scope: What the provider is asked for.
        name: Of the provider, as the page says it: "Log in with NAME".
    """

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    claim: str = "groups"
    roles: Mapping[str, str] = field(default_factory=dict)
    scope: str = "openid profile email"
    name: str = "OpenID Connect"

    def __post_init__(self) -> None:
        parts = urlsplit(self.issuer)
        host = parts.hostname or ""
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
            raise InvalidArgument(
                f"issuer {shown(self.issuer)} is not like https://id.example.org: who is between "
                "could log in as anybody without TLS"
            )
        if "openid" not in self.scope.split():
            raise InvalidArgument(f"scope {shown(self.scope)} has no openid: add it")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """How a console runs.

    Attributes:
        clusters: How to reach each cluster that is shown, by the name it has in the console.
        host, port: Where to listen; port 0 takes a free one.
        database: URL for SQLAlchemy of what the console remembers.
        plaintext: Serve other machines although there is no TLS: without it, such a console does
            not start.
        https: Files of TLS (``https_certificate``, ``https_key``); None: plain HTTP. Its ``ca`` is
            for certificates of browsers.
        https_client_certificates: ``none``, ``optional`` or ``required``: whether browsers must
            show a certificate that an authority of ``https_ca`` has signed.
        public_url: What browsers call the console if a proxy is between; "": what they ask for.
        trusted_proxies: Addresses and networks of proxies that are believed when they say for whom
            they ask, and over what (``X-Forwarded-For``, ``X-Forwarded-Proto``). Empty: with a
            public URL those of this machine, else none.
        open: On loopback, let everybody act who reaches it, until there is an account.
        session_hours: A session ends after so many hours, and after a quarter of it unused.
        reports: Directory, or URL, with the history of reports of Spark, on which forecasts and
            trends rest; "": there is none.
        probe: Send a message a second through each broker group, and show what becomes of it.
        oidc: A provider of identities; None: passwords only.
        history_series: Series of measurements that are kept of each cluster; of consumer groups,
            those that read most. After 400 days, a thousand take 700 MB.
    """

    clusters: Mapping[str, MessageFactoryConfig]
    host: str = "127.0.0.1"
    port: int = PORT
    database: str = field(default=f"sqlite:///{DATABASE_FILE}", repr=False)
    plaintext: bool = False
    https: Tls | None = None
    https_client_certificates: ClientCertificates = ClientCertificates.NONE
    public_url: str = ""
    trusted_proxies: tuple[str, ...] = ()
    open: bool = False
    session_hours: int = 12
    reports: str = ""
    probe: bool = False
    oidc: OidcConfig | None = None
    history_series: int = HISTORY_SERIES

    @property
    def secure(self) -> bool:
        """Whether browsers reach the console over TLS only."""
        return self.https is not None or self.public_url.lower().startswith("https:")

    def __post_init__(self) -> None:
        name = "https_client_certificates"
        asked = choice_of(ClientCertificates, name, self.https_client_certificates)
        object.__setattr__(self, name, asked)
        check_asked(name, asked, self.https)
        for name in self.clusters:
            if not is_valid_name(name):
                raise InvalidArgument(
                    f"{shown(name)} is no name for a cluster in the console: use letters, digits, "
                    "'.', '_' and '-'"
                )
        if not self.clusters:
            raise InvalidArgument("the console has no cluster to show; name one")
        if self.public_url:
            parts = urlsplit(self.public_url)
            more = parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc
            if parts.scheme not in ("http", "https") or not parts.netloc or more:
                raise InvalidArgument(
                    f"public URL {shown(self.public_url)} is not like https://vq.example.org: "
                    "scheme, host and port only"
                )
        for each in self.trusted_proxies:
            proxy_network(each)
        if self.open and not is_loopback(self.host):
            raise InvalidArgument(
                f"--open lets everybody act who reaches {self.host}: it is for loopback addresses; "
                "make an account with `vq console account add`"
            )
        if self.oidc is not None and not self.public_url:
            raise InvalidArgument(
                "[console.oidc] needs public_url: the provider sends browsers back there"
            )
        if self.oidc is not None and self.open:
            raise InvalidArgument(
                "--open lets everybody act, and [console.oidc] says who may: take one of them"
            )
        check_between("history_series", self.history_series, 100, 20_000)
        check_between("session_hours", self.session_hours, 1, 720)

    @property
    def proxies(self) -> tuple[ProxyNetwork, ...]:
        """The proxies that are believed."""
        usual = _LOOPBACK_PROXIES if self.public_url else ()
        return tuple(map(proxy_network, self.trusted_proxies or usual))


def proxy_network(text: str) -> ProxyNetwork:
    """Return the network of an address, or a network, of proxies.

    Raises:
        InvalidArgument: It is neither, or has everybody in it.
    """
    try:
        found = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidArgument(
            f"trusted proxy {shown(text)} is no address and no network: give one as 10.0.0.7, "
            "10.0.0.0/24 or fd00::/64"
        ) from None
    if found.prefixlen == 0:
        raise InvalidArgument(
            f"trusted proxy {shown(text)} is everybody, so everybody could say to be anybody: give "
            "the network of the proxies"
        )
    return found
