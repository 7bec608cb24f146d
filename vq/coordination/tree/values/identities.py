"""Value of ``security/identities``: who holds rights in ZooKeeper; see ``tree.acls``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import SECURITY
from vq.coordination.tree.values.value import SingleValue
from vq.errors import InvalidArgument
from vq.limits import NAME_CHARS_MAX
from vq.shown import shown
from vq.topic_pattern import check_pattern, is_pattern

#: Characters of a SHA-1 in base64.
_DIGEST_CHARS: Final = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Identities(SingleValue):
    """``security/identities``: the digests of those who hold rights; with it the tree is secured.

    Everybody who may read the tree reads it, since who makes a node writes them into its ACL. A
    digest is one of SHA-1: nobody guesses a password of 32 random bytes from it.

    Attributes:
        operators, brokers: Digests, ``name:hash``; at least one operator.
        clients: Digests of clients, and the names and patterns of the groups whose nodes each may
            write; ``*``: of all.
    """

    _what = "list of identities"
    operators: tuple[str, ...]
    brokers: tuple[str, ...] = ()
    clients: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.operators:
            raise InvalidArgument("no operator is named: nobody could change an ACL again")
        for digest in (*self.operators, *self.brokers, *self.clients):
            name, separator, found = digest.partition(":")
            if not name or not separator or len(found) != _DIGEST_CHARS:
                raise InvalidArgument(f"{shown(digest)} is not a digest of a name and a password")
        for pattern in (each for groups in self.clients.values() for each in groups):
            if is_pattern(pattern):
                check_pattern(pattern)
            elif not 0 < len(pattern) <= NAME_CHARS_MAX:
                raise InvalidArgument(f"{shown(pattern)} is not the name of a group")

    @staticmethod
    def path() -> str:
        """Return the path of the only node."""
        return join(SECURITY, "identities")
