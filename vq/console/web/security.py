"""What stands before every page: who asks, forged requests, and what browsers may do with answers.

A request that changes something must come from a page of the console itself: the browser says so
(``Origin`` or ``Sec-Fetch-Site``), the form has the token of the session, and the cookie of the
session is not sent along from other sites.
"""

import hmac
import secrets
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from vq.console.accounts.accounts import AccountRole
from vq.console.accounts.sessions import BrowserSession
from vq.console.acts.door import Person
from vq.console.config import ConsoleConfig
from vq.remoting.ports import is_loopback
from vq.shown import shown

COOKIE: Final = "vq_session"
LANGUAGE_COOKIE: Final = "vq_language"
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: Bytes of a request that are read.
BODY_BYTES_MAX: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PageVisitor:
    """Who asks for a page.

    Attributes:
        person: With the role; a viewer without a name where nobody has to log in.
        csrf: What forms of this visitor send along.
        logged_in: There is a session to end.
    """

    person: Person
    csrf: str
    logged_in: bool


class ConsoleGate:
    """Decides who a visitor is, and whether a request may change something.

    Args:
        config: Of the console.
    """

    def __init__(self, config: ConsoleConfig) -> None:
        self._config = config
        self._local_csrf = secrets.token_urlsafe(32)  # of those who need not log in
        public = urlsplit(config.public_url) if config.public_url else None
        # as a browser writes it: without the port that everybody means
        usual = {"https": ":443", "http": ":80"}
        self._public = public and (
            public.scheme,
            public.netloc.lower().removesuffix(usual[public.scheme]),
        )

    @property
    def secure(self) -> bool:
        """Whether browsers reach the console over TLS only."""
        return self._config.secure

    def visitor(
        self, request: Request, session: BrowserSession | None, *, has_accounts: bool
    ) -> PageVisitor | None:
        """Return who asks; None: the visitor has to log in."""
        address = request.client.host if request.client is not None else ""
        if session is not None:
            return PageVisitor(Person(session.account, session.role, address), session.csrf, True)
        if has_accounts or not is_loopback(self._config.host):
            return None
        role = AccountRole.ADMIN if self._config.open else AccountRole.VIEWER
        return PageVisitor(Person("", role, address), self._local_csrf, False)

    def why_wrong_host(self, request: Request) -> str:
        """Return why the name by which the console is called is not its own; "": it is.

        A name that resolves to this machine and is not the console's is how pages of others reach
        what listens on loopback.
        """
        host = request.headers.get("host", "").lower()
        if self._public is not None:
            if host == self._public[1] or _is_local_name(host):
                return ""
            return f"this console is {self._config.public_url}"
        if is_loopback(self._config.host) and not _is_local_name(host):
            return (
                f"this console listens on {self._config.host} only and is not called "
                f"{shown(host)}; a proxy before it needs --public-url"
            )
        return ""

    def why_foreign(self, request: Request) -> str:
        """Return why a request is from a page of another site; "": the browser says nothing so."""
        site = request.headers.get("sec-fetch-site", "")
        if site not in ("", "same-origin", "none"):
            return "the request comes from another site"
        origin = request.headers.get("origin")
        if origin is not None and not self._is_own(origin, request):
            return (
                f"the request comes from {shown(origin)}; if that is this console behind a proxy, "
                "start it with --public-url"
            )
        return ""

    def why_forged(self, request: Request, csrf: str, given: str) -> str:
        """Return why a request that changes something is not from a page of the console; "": it is.

        Args:
            request: The request.
            csrf: What a form must send along.
            given: What it has sent.
        """
        foreign = self.why_foreign(request)
        if foreign:
            return foreign
        if not csrf or not hmac.compare_digest(csrf.encode(), given.encode()):
            return "the form is of another session: load the page again"
        return ""

    def _is_own(self, origin: str, request: Request) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:  # such as http://[
            return False
        own = (parts.scheme, parts.netloc.lower())
        if self._public is not None and own == self._public:
            return True
        host = request.headers.get("host", "").lower()
        scheme = "https" if self.secure else request.scope.get("scheme", "http")
        return self._public is None and own == (scheme, host)


def _is_local_name(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return is_loopback(name.strip("[]"))


def protect(response: Response, nonce: str, *, secure: bool) -> None:
    """Say what a browser may do with an answer: nothing that is not of the console itself."""
    headers = response.headers
    headers.setdefault(
        "Content-Security-Policy",
        "default-src 'none'; "
        f"script-src 'self' 'nonce-{nonce}'; "
        "style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    )
    headers.setdefault("X-Content-Type-Options", "nosniff")
    headers.setdefault("Referrer-Policy", "same-origin")
    headers.setdefault("Cross-Origin-Opener-Policy", "same-origin")
    headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
    headers.setdefault("Cache-Control", "no-store")
    if secure:
        headers.setdefault("Strict-Transport-Security", "max-age=31536000")
