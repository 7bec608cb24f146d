"""Users of a cluster in memory."""

from support.broker import MemoryCluster

from vq.coordination.security.users import add_user
from vq.coordination.tree.values.users import StoredSecret, StoredUser
from vq.security.scram import ITERATIONS_MIN, derive

SALT = b"0123456789abcdef"


def user_of(*passwords: str, roles: tuple[str, ...] = (), salt: bytes = SALT) -> StoredUser:
    """Return a user that has these passwords, the newest first; with few rounds, so it is fast."""
    keys = (derive(each, salt, ITERATIONS_MIN).secret for each in passwords)
    return StoredUser(
        salt=salt,
        iterations=ITERATIONS_MIN,
        secrets=tuple(StoredSecret(each, 1) for each in keys),
        roles=roles,
    )


async def add(
    cluster: MemoryCluster, name: str, *passwords: str, roles: tuple[str, ...] = ()
) -> None:
    """Add a user."""
    async with cluster.admin() as coordinator:
        await add_user(coordinator, name, user_of(*passwords, roles=roles))
