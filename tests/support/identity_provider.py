"""A small provider of OpenID Connect on a socket: it knows one person, and lies when it is told."""

import asyncio
import base64
import contextlib
import functools
import hashlib
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import uvicorn
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from vq.testing.waiting import until

CLIENT, SECRET = "vq-console", "the secret of the console"


@functools.cache
def keys() -> list[RSAKey]:
    """Return three keys, made when a test of this process asks: they cost tenths of a second."""
    names = ("one", "two", "three")
    return [RSAKey.generate_key(2048, {"kid": kid, "use": "sig"}) for kid in names]


class IdentityProvider:
    """Logs in everybody as the same person.

    Attributes:
        claims: Added to the token; None takes one away.
        userinfo: What it tells apart from the token.
        key: Signs; ``published`` are those that it shows.
        header: Of the token.
        asked: How often its keys were asked for.
    """

    def __init__(self) -> None:
        self.issuer = ""
        self.claims: dict[str, Any] = {"preferred_username": "anna", "groups": ["vq-ops"]}
        self.userinfo: dict[str, Any] = {"sub": "s-1"}
        self.key, self.published = keys()[0], [keys()[0]]
        self.header: dict[str, Any] = {"alg": "RS256", "kid": "one"}
        self.asked = 0
        self._codes: dict[str, dict[str, str]] = {}

    def app(self) -> Starlette:
        """Return its application."""
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._description),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/keys", self._show_keys),
                Route("/userinfo", self._userinfo),
            ]
        )

    async def _description(self, _request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "userinfo_endpoint": f"{self.issuer}/userinfo",
            }
        )

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        code = secrets.token_urlsafe(8)
        self._codes[code] = asked
        back = {"code": code, "state": asked["state"], "iss": self.issuer}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(back)}", 302)

    async def _token(self, request: Request) -> Response:
        sent = {name: each[0] for name, each in parse_qs((await request.body()).decode()).items()}
        known = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        asked = self._codes.pop(sent.get("code", ""), {})
        hashed = hashlib.sha256(sent.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(hashed).rstrip(b"=").decode()
        if (
            request.headers.get("authorization") != f"Basic {known}"
            or asked.get("code_challenge") != challenge
            or asked.get("redirect_uri") != sent.get("redirect_uri")
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": "s-1",
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
        } | self.claims
        given = {name: value for name, value in claims.items() if value is not None}
        if self.header["alg"] == "none":
            parts = [jwt.encode(self.header | {"alg": "RS256"}, given, self.key).split(".")[1], ""]
            head = base64.urlsafe_b64encode(b'{"alg":"none","kid":"one"}').rstrip(b"=").decode()
            token = ".".join([head, *parts])
        else:
            token = jwt.encode(self.header, given, self.key)
        return JSONResponse({"access_token": "a", "token_type": "Bearer", "id_token": token})

    async def _show_keys(self, _request: Request) -> Response:
        self.asked += 1
        return JSONResponse(KeySet(self.published).as_dict(private=False))

    async def _userinfo(self, request: Request) -> Response:
        assert request.headers["authorization"] == "Bearer a"
        return JSONResponse(self.userinfo)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[IdentityProvider]:
    """Serve one on a free port."""
    made = IdentityProvider()
    server = uvicorn.Server(
        uvicorn.Config(made.app(), port=0, log_config=None, lifespan="off", ws="none")
    )
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    made.issuer = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield made
    server.should_exit = True
    await task


def asked_of(address: str) -> dict[str, str]:
    """Return what an address asks for."""
    return {name: each[0] for name, each in parse_qs(urlsplit(address).query).items()}
