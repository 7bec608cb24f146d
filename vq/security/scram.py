"""SCRAM-SHA-256 (RFC 5802, RFC 7677), both sides: a password is proved and never sent.

    client                                            broker
      │── n,,n=anna,r=C ──────────────────────────────▶│ looks up the user, or makes one up
      │◀─ r=CS,s=salt,i=15000 ─────────────────────────│
      derives its keys from the password
      │── c=biws,r=CS,p=proof of the client ──────────▶│ compares it: now it knows the user
      │◀─ v=signature of the broker ───────────────────│
      compares it: now it knows that the broker knows the user's keys

Each step returns an object that can do the next step and nothing else. An error ends the exchange.

- *Authorisation identity*: empty, or equal to the user. The identity is that of the proof.
- *Channel binding*: none (``n,,``). The broker's certificate names the broker; a proof of the user
  that is bound to the channel would add protection only against a stranger who has such a
  certificate. ``tls-server-end-point`` needs the certificate of the end that ends TLS, which is
  not the broker's behind a proxy. A client that asks for a binding is refused.
- *Unknown users* get a salt that is stable for their name, and the same work, see ``challenge``.
- *Two secrets*: while a password is changed, the old and the new one are valid. Both belong to one
  salt, because the broker sends the salt before it sees which of them the client has.

This module has no sockets, no clock and no randomness of its own.
"""

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vq.errors import InvalidArgument, NotAuthenticated
from vq.limits import is_valid_name
from vq.shown import shown

MECHANISM: Final = "SCRAM-SHA-256"
#: Of random bytes behind each side's nonce, and of a salt.
NONCE_BYTES: Final = 18
SALT_BYTES: Final = 16
#: Fewer rounds make a stolen key cheap to try passwords on (RFC 7677, section 4).
ITERATIONS_MIN: Final = 4_096
#: Of new users: what took 0.1 s on a machine of 2015, as RFC 7677 advises; 5 to 20 ms today.
ITERATIONS: Final = 15_000
#: The broker names the number of rounds, and the client does the work. More than this is an attack
#: on the client, and it is refused before any round.
ITERATIONS_MAX: Final = 16_384
#: Characters of a new password. 8 are enough where a server counts the guesses (NIST SP 800-63B);
#: whoever reads what is kept here guesses without one, 15 000 rounds for each try.
PASSWORD_CHARS_MIN: Final = 12
#: UTF-8 bytes of a password.
PASSWORD_BYTES_MAX: Final = 256
#: Secrets that are valid at a time; the broker always does the work for so many.
SECRETS_MAX: Final = 2

#: "No channel binding", and the same as the client-final message repeats it.
_GS2: Final = "n,,"
_DIGEST_BYTES: Final = 32
_NONCE_CHARACTERS_MAX: Final = 256
_WRONG: Final = "the user is unknown, or the password is wrong"


class ScramSecret(NamedTuple):
    """What a broker keeps of one password. It cannot be used to log in, but to try passwords on."""

    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        """Return no byte of it."""
        return "ScramSecret(…)"


@dataclass(frozen=True, slots=True)
class ScramUser:
    """What a broker needs to check the proof of a user.

    Attributes:
        salt, iterations: Of all its secrets.
        secrets: One, or two while the password is changed; none: no password is right.
    """

    salt: bytes
    iterations: int
    secrets: tuple[ScramSecret, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What a client derives from a password, once for each salt and number of rounds."""

    client_key: bytes = field(repr=False)
    secret: ScramSecret = field(repr=False)


def derive(password: str, salt: bytes, iterations: int) -> ScramKeys:
    """Derive the keys of a password. This takes milliseconds: never call it on an event loop.

    Raises:
        InvalidArgument: The password is empty, too long, or has characters that RFC 4013 forbids.
    """
    salted = hashlib.pbkdf2_hmac("sha256", prepared(password), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return ScramKeys(client_key, ScramSecret(stored_key, server_key))


def check_new_password(password: str) -> None:
    """Return if a password may become one; those that are in use may be shorter.

    Raises:
        InvalidArgument: It is too short, or ``derive`` would refuse it. The error does not show it.
    """
    count = len(prepared(password).decode())
    if count < PASSWORD_CHARS_MIN:
        raise InvalidArgument(
            f"the password has {count} characters, at least {PASSWORD_CHARS_MIN} are needed: who "
            "reads ZooKeeper can try passwords on what is kept there; `openssl rand -base64 24` "
            "makes a good one"
        )


def prepared(password: str) -> bytes:
    """Return the bytes of a password in the one form that RFC 4013 (SASLprep) gives it.

    Raises:
        InvalidArgument: See ``derive``. The error does not show the password.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(each) else each
        for each in password
        if not stringprep.in_table_b1(each)
    )
    text = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not text:
        raise InvalidArgument("the password is empty")
    if any(forbidden(each) for forbidden in _FORBIDDEN for each in text):
        raise InvalidArgument(
            "the password has a character that RFC 4013 forbids, such as a control character; "
            "choose letters, digits and punctuation"
        )
    right_to_left = [stringprep.in_table_d1(each) for each in text]
    if any(right_to_left) and (
        any(map(stringprep.in_table_d2, text)) or not (right_to_left[0] and right_to_left[-1])
    ):
        raise InvalidArgument(
            "the password mixes directions of writing in a way that RFC 4013 forbids"
        )
    data = text.encode()
    if len(data) > PASSWORD_BYTES_MAX:
        raise InvalidArgument(
            f"the password has {len(data)} bytes in UTF-8, at most {PASSWORD_BYTES_MAX} are allowed"
        )
    return data


_FORBIDDEN: Final = (
    stringprep.in_table_a1,  # unassigned in Unicode 3.2: other systems may write it otherwise
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


# The client -----------------------------------------------------------------------------------
class ClientFirst:
    """The client's side before the broker's challenge.

    Args:
        user: A valid name.
        nonce: ``NONCE_BYTES`` bytes that nobody can foresee, as hexadecimal digits.

    Attributes:
        message: What to send.
    """

    def __init__(self, user: str, nonce: str) -> None:
        self._nonce = nonce
        self._bare = f"n={user},r={self._nonce}"
        self.message = (_GS2 + self._bare).encode()

    def challenged(self, message: bytes) -> "ClientChallenged":
        """Take the broker's challenge.

        Raises:
            NotAuthenticated: It is none, or asks for a number of rounds outside the bounds.
        """
        text = _text(message)
        nonce, salt, rounds = _attributes(text, "r", "s", "i")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise NotAuthenticated("the broker's challenge is not for this connection: its nonce")
        if not (rounds.isascii() and rounds.isdigit() and len(rounds) < 10) or not (
            ITERATIONS_MIN <= int(rounds) <= ITERATIONS_MAX
        ):
            raise NotAuthenticated(
                f"the broker asks for {shown(rounds)} rounds, allowed are {ITERATIONS_MIN} to "
                f"{ITERATIONS_MAX}: is it a broker of this cluster?"
            )
        _check_nonce(nonce)
        return ClientChallenged(
            _decode(salt), int(rounds), nonce, f"{self._bare},{text}", gs2=_GS2.encode()
        )


class ClientChallenged:
    """The client's side after the challenge.

    Attributes:
        salt, iterations: What ``derive`` needs.
    """

    def __init__(
        self, salt: bytes, iterations: int, nonce: str, exchanged: str, *, gs2: bytes
    ) -> None:
        self.salt = salt
        self.iterations = iterations
        self._without_proof = f"c={_encode(gs2)},r={nonce}"
        self._signed = f"{exchanged},{self._without_proof}".encode()

    def final(self, keys: ScramKeys) -> "ClientFinal":
        """Prove the password by the keys that it has with ``salt`` and ``iterations``."""
        signature = hmac.digest(keys.secret.stored_key, self._signed, "sha256")
        proof = _encode(_xor(keys.client_key, signature))
        return ClientFinal(
            f"{self._without_proof},p={proof}".encode(),
            hmac.digest(keys.secret.server_key, self._signed, "sha256"),
        )


class ClientFinal:
    """The client's side after its proof.

    Attributes:
        message: What to send.
    """

    def __init__(self, message: bytes, expected: bytes) -> None:
        self.message = message
        self._expected = expected

    def finish(self, message: bytes) -> None:
        """Check the broker's last message.

        Raises:
            NotAuthenticated: The broker does not know the keys of the user.
        """
        (signature,) = _attributes(_text(message), "v")
        if not hmac.compare_digest(_decode(signature), self._expected):
            raise NotAuthenticated(
                "the broker does not know this user's keys, so it is none of this cluster"
            )


# The broker -----------------------------------------------------------------------------------
class ServerFirst:
    """The broker's side after the client's first message.

    Attributes:
        user: Whom the client says that it is; a valid name. Nothing is proved yet.
    """

    def __init__(self, message: bytes) -> None:
        """Read the message.

        Raises:
            NotAuthenticated: It is none; it asks for channel binding; it wants to act for another
                user.
        """
        flag, authorisation, bare = _three(_text(message))
        if flag not in ("n", "y"):
            raise NotAuthenticated(
                f"this broker has no channel binding, and the client asks for {shown(flag)}"
            )
        name, nonce = _attributes(bare, "n", "r")
        if not is_valid_name(name):
            raise NotAuthenticated(f"{shown(name)} is not the name of a user")
        if authorisation not in ("", f"a={name}"):
            raise NotAuthenticated(
                f"user {shown(name)} wants to act as {shown(authorisation)}; that is not possible"
            )
        _check_nonce(nonce)
        self.user = name
        self._nonce = nonce
        self._bare = bare
        self._gs2 = f"{flag},{authorisation},".encode()

    def challenge(self, known: ScramUser | None, secret: bytes, nonce: str) -> "ServerChallenge":
        """Return the challenge for the user.

        The work and the shape of the answer are the same for unknown users: what stands in for
        them is made in any case.

        Args:
            known: What the broker has of the user; None: nothing.
            secret: Of the cluster: all its brokers make up the same salt, also after a restart.
            nonce: ``NONCE_BYTES`` bytes that nobody can foresee, as hexadecimal digits.
        """
        made_up = _made_up(secret, self.user)
        return ServerChallenge(
            made_up if known is None else known,
            () if known is None else known.secrets,
            made_up.secrets[0],
            nonce=self._nonce + nonce,
            bare=self._bare,
            gs2=self._gs2,
        )


class ServerChallenge:
    """The broker's side after its challenge.

    Attributes:
        message: What to send.
    """

    def __init__(
        self,
        asked: ScramUser,
        valid: tuple[ScramSecret, ...],
        made_up: ScramSecret,
        *,
        nonce: str,
        bare: str,
        gs2: bytes,
    ) -> None:
        first = f"r={nonce},s={_encode(asked.salt)},i={asked.iterations}"
        self.message = first.encode()
        self._valid = valid
        self._made_up = made_up
        self._expected = f"c={_encode(gs2)},r={nonce}"
        self._exchanged = f"{bare},{first}"

    def finish(self, message: bytes) -> tuple[ScramSecret, bytes]:
        """Check the proof of the client.

        Returns:
            Which secret it knows, and the message to send.

        Raises:
            NotAuthenticated: It is no proof. The text and the work are the same for unknown users.
        """
        text = _text(message)
        without_proof, _, proof = text.rpartition(",p=")
        if not hmac.compare_digest(without_proof.encode(), self._expected.encode()):
            raise NotAuthenticated("the answer is not for the challenge of this connection")
        given = _decode(proof)
        if len(given) != _DIGEST_BYTES:
            raise NotAuthenticated(_WRONG)
        signed = f"{self._exchanged},{without_proof}".encode()
        right: ScramSecret | None = None
        padding = (self._made_up,) * (SECRETS_MAX - len(self._valid))
        for n, secret in enumerate((*self._valid, *padding)):
            signature = hmac.digest(secret.stored_key, signed, "sha256")
            stored_key = hashlib.sha256(_xor(given, signature)).digest()
            if hmac.compare_digest(stored_key, secret.stored_key) and n < len(self._valid):
                right = secret
        if right is None:
            raise NotAuthenticated(_WRONG)
        return right, b"v=" + _encode(hmac.digest(right.server_key, signed, "sha256")).encode()


def _made_up(secret: bytes, name: str) -> ScramUser:
    """Return what stands in for a user; nobody knows a password for it."""

    def drawn(what: bytes) -> bytes:
        return hmac.digest(secret, b"vq unknown user 1 " + what + b" " + name.encode(), "sha256")

    keys = ScramSecret(drawn(b"stored key"), drawn(b"server key"))
    return ScramUser(drawn(b"salt")[:SALT_BYTES], ITERATIONS, (keys,))


# Messages -------------------------------------------------------------------------------------
def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise NotAuthenticated("a message of SCRAM is not UTF-8") from error


def _three(text: str) -> tuple[str, str, str]:
    parts = text.split(",", 2)
    if len(parts) != 3:
        raise NotAuthenticated("this is not the first message of SCRAM")
    return parts[0], parts[1], parts[2]


def _attributes(text: str, *names: str) -> list[str]:
    """Return the values of a message that has just these attributes, in this order.

    An extension (RFC 5802, section 5.1) makes it another message, which nobody here understands.
    """
    pairs = [each.partition("=") for each in text.split(",")]
    if [name for name, _, _ in pairs] != list(names):
        raise NotAuthenticated(
            f"a message of SCRAM has the attributes {', '.join(names)}, in this order"
        )
    return [value for _, _, value in pairs]


def _check_nonce(nonce: str) -> None:
    """Check the characters and the length of a nonce."""
    if not 0 < len(nonce) <= _NONCE_CHARACTERS_MAX or not all("!" <= each <= "~" for each in nonce):
        raise NotAuthenticated(
            f"a nonce of SCRAM has 1 to {_NONCE_CHARACTERS_MAX} printable characters"
        )


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise NotAuthenticated("a message of SCRAM has a value that is not base64") from error


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
