"""Tokens of programs: random, sent as ``Authorization: Bearer TOKEN``, and kept as a hash only.

The gateway and the console have the same kind. What a token may do is theirs to say. Pure, but for
the system's random numbers.
"""

import hashlib
import secrets
from typing import Final

PREFIX: Final = "vqt_"
TOKEN_CHARS_MAX: Final = 200


def make_token() -> str:
    """Return a new token: 256 bits that nobody can guess."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(token: str) -> bytes:
    """Return what is kept of a token. It needs no slow hash: nobody can try 256 bits."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def sent_token(header: str | None) -> str:
    """Return the token of a header ``Authorization``; "": it has none that can be one."""
    scheme, _, token = (header or "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and len(token) <= TOKEN_CHARS_MAX else ""
