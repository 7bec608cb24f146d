"""Who a client says that it is, and what it proves that with; shared by all its connections.

In here: the password, and the keys that are derived from it. Not in here: the exchange
(``vq.security.scram``), and who waits for the keys (``broker_connection``,
``blocking_connection``).
"""

import secrets
import threading
from typing import Final

from vq.errors import InvalidArgument
from vq.limits import is_valid_name
from vq.remoting.hello import ANONYMOUS, CERTIFICATE
from vq.security.scram import MECHANISM, NONCE_BYTES, ClientFirst, ScramKeys, derive, prepared
from vq.shown import shown

#: Salts whose keys are kept: a user has one, until it is removed and added again.
_SALTS_KEPT: Final = 4


class Login:
    """Who a client is. Any thread.

    A client pins its mechanism: it never tries another one because a broker asks it to.

    Args:
        user: Its name; "": it is anonymous.
        password: Of the user; "": its TLS certificate names the user.
        member: It is a member of the cluster, and proves that by PROVE after HELLO.

    Raises:
        InvalidArgument: The name is none, the password cannot be one, or there is no user for it.
    """

    def __init__(self, user: str = "", password: str = "", *, member: bool = False) -> None:
        if user and not is_valid_name(user):
            raise InvalidArgument(
                f"user = {shown(user)} is not a name: 1 to 200 characters of A-Z a-z 0-9 . _ -"
            )
        if password:
            prepared(password)
            if not user:
                raise InvalidArgument("there is a password, and no user: give `user`, or VQ_USER")
        self.user = user
        self.member = member
        self._password = password
        self._keys: dict[tuple[bytes, int], ScramKeys] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        """Return who it is, and no secret."""
        return f"Login(user={self.user!r})"

    @property
    def mechanism(self) -> str:
        """The mechanism of its HELLO."""
        if not self.user:
            return ANONYMOUS
        return MECHANISM if self._password else CERTIFICATE

    def begin(self) -> ClientFirst | None:
        """Return the beginning of an exchange; None: the mechanism has none."""
        if self.mechanism != MECHANISM:
            return None
        return ClientFirst(self.user, secrets.token_hex(NONCE_BYTES))

    def known_keys(self, salt: bytes, iterations: int) -> ScramKeys | None:
        """Return the keys if they are derived already."""
        return self._keys.get((salt, iterations))

    def keys(self, salt: bytes, iterations: int) -> ScramKeys:
        """Return the keys. This takes milliseconds once for each salt: not on an event loop."""
        with self._lock:
            keys = self._keys.get((salt, iterations))
            if keys is None:
                keys = derive(self._password, salt, iterations)
                while len(self._keys) >= _SALTS_KEPT:
                    del self._keys[next(iter(self._keys))]
                self._keys[salt, iterations] = keys
            return keys


ANONYMOUS_LOGIN: Final = Login()
MEMBER_LOGIN: Final = Login(member=True)
