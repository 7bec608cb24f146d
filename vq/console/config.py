"""Settings of the console."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

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
        open: On loopback, let everybody act who reaches it, until there is an account.
        session_hours: A session ends after so many hours, and after a quarter of it unused.
        reports: Directory, or URL, with the history of reports of Spark, on which forecasts and
            trends rest; "": there is none.
        oidc: A provider of identities; None: passwords only.
    """

    clusters: Mapping[str, MessageFactoryConfig]
    host: str = "127.0.0.1"
    port: int = PORT
    database: str = f"sqlite:///{DATABASE_FILE}"
    plaintext: bool = False
    https: Tls | None = None
    https_client_certificates: ClientCertificates = ClientCertificates.NONE
    public_url: str = ""
    open: bool = False
    session_hours: int = 12
    reports: str = ""
    oidc: OidcConfig | None = None

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
        if not 1 <= self.session_hours <= 720:
            raise InvalidArgument(f"session_hours = {self.session_hours} is outside [1, 720]")
