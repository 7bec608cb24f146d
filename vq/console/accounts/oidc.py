"""Asks a provider of OpenID Connect who somebody is: discovery, the code, the token, its keys."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from vq.console.accounts.accounts import AccountRole
from vq.console.accounts.identities import (
    OidcRefused,
    OidcTries,
    OidcTry,
    ProviderAway,
    checked_roles,
    claimed,
    name_of,
    role_by,
)
from vq.console.config import OidcConfig
from vq.shown import shown, shown_raised

#: Where the provider sends browsers back to, below the public URL.
CALLBACK_PATH: Final = "/login/oidc/callback"
#: Signatures that are taken: those of a key that only the provider has. Not "none", not HMAC.
_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
_TIMEOUT_S: Final = 10.0
#: What the provider said of itself, and its keys, are asked for again after so long.
_KEEP_S: Final = 3600.0
#: A provider that did not answer is not asked again so soon.
_AWAY_S: Final = 2.0
#: The clocks of provider and console may differ by so much.
_LEEWAY_S: Final = 60
_ANSWER_BYTES_MAX: Final = 1024 * 1024
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True, slots=True)
class OidcPerson:
    """Who has logged in.

    Attributes:
        name: With the prefix of such people.
        subject: By which the provider knows the person.
        role: By the table of roles; None: no value of the claim is in it.
        values: Of the claim.
    """

    name: str
    subject: str
    role: AccountRole | None
    values: list[str]


class OidcProvider:
    """A provider of identities. Loop-bound.

    Args:
        config: How to reach it, and what its claims mean.
        public_url: What browsers call the console; they are sent back there and nowhere else.
        clock: Seconds of a clock that does not go back.

    Raises:
        InvalidArgument: The table of roles is wrong.
    """

    def __init__(
        self,
        config: OidcConfig,
        public_url: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._roles = checked_roles(config.roles)
        self.tries = OidcTries(clock)
        self._back = f"{public_url.rstrip('/')}{CALLBACK_PATH}"
        self._clock = clock
        self._asking = asyncio.Lock()
        self._said: Mapping[str, Any] = {}
        self._keys: KeySet | None = None
        self._said_until = self._keys_until = self._away_until = float("-inf")
        self._away = ""

    async def begin(self, wanted: str) -> tuple[str, OidcTry]:
        """Return where to send a browser that wants to log in, and what is kept of it.

        Raises:
            ProviderAway: The provider does not answer.
        """
        said = await self._discovered()
        made = self.tries.begin(wanted)
        address = prepare_grant_uri(
            said["authorization_endpoint"],
            self.config.client_id,
            "code",
            redirect_uri=self._back,
            scope=self.config.scope,
            state=made.state,
            nonce=made.nonce,
            code_challenge=create_s256_code_challenge(made.verifier),
            code_challenge_method="S256",
        )
        return address, made

    async def identify(self, code: str, issuer: str, tried: OidcTry) -> OidcPerson:
        """Return who has logged in.

        Args:
            code: From the provider, by way of the browser.
            issuer: From there, too; "": it was not said.
            tried: What the browser had begun.

        Raises:
            OidcRefused: The code or the token does not prove it.
            ProviderAway: The provider does not answer.
        """
        if issuer and issuer != self.config.issuer:
            raise OidcRefused(f"the answer is of {shown(issuer)}, not of {self.config.issuer}")
        said = await self._discovered()
        given = await self._tokens(said, code, tried)
        token, access = given.get("id_token"), given.get("access_token")
        if not isinstance(token, str):
            raise OidcRefused("the provider gave no id_token; it has to know the scope openid")
        claims = await self._checked(said, token, access, tried.nonce)
        if claimed(claims, self.config.claim) == [] and isinstance(access, str):
            claims = await self._with_userinfo(said, claims, access)
        values = claimed(claims, self.config.claim)
        return OidcPerson(name_of(claims), claims["sub"], role_by(values, self._roles), values)

    # What the provider says ------------------------------------------------------------------
    async def _discovered(self) -> Mapping[str, Any]:
        async with self._asking:
            now = self._clock()
            if now < self._said_until:
                return self._said
            if now < self._away_until:
                raise ProviderAway(self._away)
            try:
                self._said = await self._discover()
            except ProviderAway as error:
                self._away, self._away_until = str(error), self._clock() + _AWAY_S
                raise
            self._said_until = now + _KEEP_S
            return self._said

    async def _discover(self) -> Mapping[str, Any]:
        issuer = self.config.issuer
        said = await self._ask(
            "GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration", "its description"
        )
        if said.get("issuer") != issuer:
            raise ProviderAway(
                f"the provider calls itself {shown(said.get('issuer'))}; the setting issuer is "
                f"{issuer}: make them the same"
            )
        for name in _ENDPOINTS:
            schemes = {"https", urlsplit(issuer).scheme}
            if urlsplit(str(said.get(name, ""))).scheme not in schemes:
                raise ProviderAway(f"the provider's {name} = {shown(said.get(name))} is no address")
        return said

    async def _key_set(self, said: Mapping[str, Any], *, anew: bool) -> KeySet:
        if self._keys is None or anew or self._clock() >= self._keys_until:
            found = (await self._ask("GET", said["jwks_uri"], "its keys")).get("keys")
            keys = [
                each
                for each in (found if isinstance(found, list) else [])
                if isinstance(each, dict) and each.get("use", "sig") == "sig"
            ]
            try:
                self._keys = KeySet.import_key_set({"keys": keys})
            except (JoseError, ValueError, TypeError, KeyError) as error:
                raise ProviderAway(f"the provider's keys cannot be read: {error}") from error
            self._keys_until = self._clock() + _KEEP_S
        return self._keys

    async def _tokens(self, said: Mapping[str, Any], code: str, tried: OidcTry) -> dict[str, Any]:
        methods = said.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        method = "client_secret_basic" if "client_secret_basic" in methods else "client_secret_post"
        body = prepare_token_request(
            "authorization_code", code=code, redirect_uri=self._back, code_verifier=tried.verifier
        )
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        url, headers, body = ClientAuth(
            self.config.client_id, self.config.client_secret, method
        ).prepare("POST", said["token_endpoint"], headers, body)
        return await self._ask("POST", url, "a token", headers, body)

    async def _checked(
        self, said: Mapping[str, Any], token: str, access: Any, nonce: str
    ) -> dict[str, Any]:
        """Return the claims of a token that the provider signed for this console and this try."""
        try:
            try:
                keys = await self._key_set(said, anew=False)
                read = jwt.decode(token, keys, _ALGORITHMS)
            except InvalidKeyIdError:  # the provider may have a new key
                read = jwt.decode(token, await self._key_set(said, anew=True), _ALGORITHMS)
            claims = CodeIDToken(
                read.claims,
                read.header,
                {
                    "iss": {"essential": True, "value": self.config.issuer},
                    "aud": {"essential": True, "value": self.config.client_id},
                    "sub": {"essential": True},
                },
                {
                    "nonce": nonce,
                    "client_id": self.config.client_id,
                    "access_token": access if isinstance(access, str) else None,
                },
            )
            claims.validate(leeway=_LEEWAY_S)
        except (JoseError, ValueError, TypeError) as error:
            raise OidcRefused(f"the token is refused: {shown_raised(error)}") from error
        return dict(claims)

    async def _with_userinfo(
        self, said: Mapping[str, Any], claims: dict[str, Any], access: str
    ) -> dict[str, Any]:
        """Return the claims with those that the provider tells apart from the token."""
        endpoint = said.get("userinfo_endpoint")
        schemes = {"https", urlsplit(self.config.issuer).scheme}
        if urlsplit(str(endpoint)).scheme not in schemes:
            return claims
        more = await self._ask(
            "GET", str(endpoint), "who it is", {"Authorization": f"Bearer {access}"}
        )
        if more.get("sub") != claims["sub"]:
            raise OidcRefused("the provider tells of another person than its token")
        return {**more, **claims}

    async def _ask(
        self,
        method: str,
        url: str,
        what: str,
        headers: Mapping[str, str] | None = None,
        body: str = "",
    ) -> dict[str, Any]:
        """Return the JSON object of an answer; redirects are not followed.

        Raises:
            OidcRefused: The provider refuses what the browser brought.
            ProviderAway: It does not answer with one.
        """
        away = f"the provider {self.config.issuer} does not give {what}"
        read = bytearray()
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                httpx.AsyncClient(timeout=_TIMEOUT_S) as client,
                client.stream(
                    method,
                    url,
                    headers={"Accept": "application/json", **(headers or {})},
                    content=body.encode() or None,
                ) as answer,
            ):
                async for part in answer.aiter_bytes():
                    read += part
                    if len(read) > _ANSWER_BYTES_MAX:
                        raise ProviderAway(f"{away}: more than {_ANSWER_BYTES_MAX} bytes")
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise ProviderAway(f"{away}: {shown_raised(error)}") from error
        try:
            found = json.loads(read)
        except (ValueError, RecursionError):
            found = None
        if answer.status_code == httpx.codes.BAD_REQUEST and isinstance(found, dict):
            raise OidcRefused(
                f"{away}: {shown(found.get('error'))} {shown(found.get('error_description', ''))}"
            )
        if answer.status_code != httpx.codes.OK or not isinstance(found, dict):
            raise ProviderAway(f"{away}: status {answer.status_code}")
        return found
