"""Values of users: ``security/users/<name>``."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import USERS
from vq.coordination.tree.values.value import Value, read
from vq.errors import CoordinationError, InvalidArgument
from vq.limits import is_valid_name
from vq.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    SECRETS_MAX,
    ScramSecret,
    ScramUser,
)
from vq.shown import shown

#: Roles of one user.
ROLES_MAX = 100
_KEY_BYTES = 32
_PLAIN: Final = {"iterations": int, "created_ms": int, "by": str, "roles": tuple[str, ...]}


class StoredSecret(NamedTuple):
    """What is kept of one password, and since when it is valid, in milliseconds."""

    keys: ScramSecret
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUser(Value):
    """``security/users/<name>``: who may connect to brokers.

    Binary fields are in hexadecimal digits. No text shows them.

    Attributes:
        salt: Of all its secrets; a user keeps it while it exists, so that the old and the new
            password of a rotation are checked by one exchange.
        iterations: Of its secrets, ``ITERATIONS_MIN`` to ``ITERATIONS_MAX``.
        secrets: The newest first: none (a certificate names the user), one, or two while the
            password is changed.
        roles: Names by which rules speak of several users.
        created_ms: When it was added.
        by: Who changed it last.
    """

    _what = "user"
    salt: bytes = field(repr=False)
    iterations: int
    secrets: tuple[StoredSecret, ...] = field(default=(), repr=False)
    roles: tuple[str, ...] = ()
    created_ms: int = 0
    by: str = ""

    def __post_init__(self) -> None:
        if len(self.salt) < SALT_BYTES:
            raise ValueError(f"a salt of {len(self.salt)} bytes is too short")
        if not ITERATIONS_MIN <= self.iterations <= ITERATIONS_MAX:
            raise ValueError(
                f"iterations = {self.iterations} is outside [{ITERATIONS_MIN}, {ITERATIONS_MAX}]"
            )
        if len(self.secrets) > SECRETS_MAX:
            raise ValueError(f"{len(self.secrets)} secrets, at most {SECRETS_MAX} may be valid")
        if any(len(key) != _KEY_BYTES for each in self.secrets for key in each.keys):
            raise ValueError(f"a key that does not have {_KEY_BYTES} bytes")
        check_roles(self.roles)

    @staticmethod
    def path(name: str) -> str:
        """Return the path of a user. For vq only."""
        return join(USERS, name)

    @property
    def scram(self) -> ScramUser | None:
        """What checks a password; None: there is none."""
        if not self.secrets:
            return None
        return ScramUser(self.salt, self.iterations, tuple(each.keys for each in self.secrets))

    def rotated(self, keys: ScramSecret, now_ms: int) -> Self:
        """Return the user with one more valid secret, the newest."""
        return replace(self, secrets=(StoredSecret(keys, now_ms), *self.secrets))

    def settled(self) -> Self:
        """Return the user with its newest secret alone."""
        return replace(self, secrets=self.secrets[:1])

    def _to_json(self) -> dict[str, Any]:
        return {
            "salt": self.salt.hex(),
            "iterations": self.iterations,
            "secrets": [
                {
                    "stored_key": each.keys.stored_key.hex(),
                    "server_key": each.keys.server_key.hex(),
                    "since_ms": each.since_ms,
                }
                for each in self.secrets
            ],
            "roles": list(self.roles),
            "created_ms": self.created_ms,
            "by": self.by,
        }

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        given = {name: kind for name, kind in _PLAIN.items() if name in document}
        return cls(
            **{name: read(name, document[name], kind) for name, kind in given.items()},
            salt=bytes.fromhex(document["salt"]),
            secrets=tuple(
                StoredSecret(
                    ScramSecret(
                        bytes.fromhex(each["stored_key"]), bytes.fromhex(each["server_key"])
                    ),
                    read("since_ms", each["since_ms"], int),
                )
                for each in document.get("secrets", ())
            ),
        )

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """See ``Value.decode``; the error does not tell what is stored there."""
        try:
            return super(StoredUser, cls).decode(path, data)
        except CoordinationError as error:
            if error.__cause__ is None:
                raise  # a newer vq has written it; that error has no bytes of it
        raise CoordinationError(
            f"znode {path!r} has something that is not a {cls._what}; it is not shown; "
            "`vq user remove NAME --yes` removes it"
        )


def check_roles(roles: tuple[str, ...]) -> None:
    """Check the roles of one user.

    Raises:
        InvalidArgument: A name is none, is there twice, or there are more than ``ROLES_MAX``.
    """
    if len(roles) > ROLES_MAX or len(set(roles)) < len(roles):
        raise InvalidArgument(f"{len(roles)} roles: at most {ROLES_MAX}, each once")
    for role in roles:
        if not isinstance(role, str) or not is_valid_name(role):
            raise InvalidArgument(
                f"role {shown(role)} is not a name: 1 to 200 characters of A-Z a-z 0-9 . _ -"
            )
