"""Who may do what with a node of the tree, where ZooKeeper knows identities. Pure.

    holder      may
    operators   everything
    brokers     everything but change an ACL
    clients     read what is not a secret; write only what is theirs: groups of consumers, slots of
                message ids, decisions, repeatable writes
    others      nothing

Records of acts (``audit/acts``) are written and read by operators, and deleted by brokers, when
there are too many; nobody changes one. An operator may still change ACLs.

An ACL of ZooKeeper holds for one node, not for those below it, and the right to delete a node is
one on its parent. So each node gets its own, when it is made or by ``vq zk secure``.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from vq.coordination.tree.coordinator import OPEN, Acl, Grant, NodeRights
from vq.coordination.tree.paths import ACTS, CONSUMERS, DECISIONS, SECURITY, SLOT_MARKS, SLOTS
from vq.coordination.tree.values.identities import Identities
from vq.errors import InvalidArgument
from vq.topic_pattern import matches

#: The parent of what writers of repeatable writes keep; see ``vq.coordination.leases.writes``.
_WRITES: Final = "writes"
_PASSWORD_CHARS: Final = range(16, 257)
_EDIT: Final = NodeRights.READ | NodeRights.WRITE | NodeRights.CREATE | NodeRights.DELETE
#: What clients may do at a node and below it, by the first parts of its path; the longest one
#: counts.
_CLIENTS: Final[Mapping[tuple[str, ...], tuple[NodeRights, NodeRights]]] = {
    (): (NodeRights.READ, NodeRights.READ),
    (SECURITY,): (NodeRights.NONE, NodeRights.NONE),
    (SECURITY, "identities"): (NodeRights.READ, NodeRights.NONE),
    (CONSUMERS,): (NodeRights.READ | NodeRights.CREATE, _EDIT),
    (SLOTS,): (_EDIT, _EDIT),
    (SLOT_MARKS,): (_EDIT, _EDIT),
    (DECISIONS,): (_EDIT, _EDIT),
    (_WRITES,): (_EDIT, _EDIT),
}
_ACTS: Final = tuple(ACTS.split("/"))
_SEES: Final = NodeRights.READ | NodeRights.ADMIN
#: What operators, brokers and clients may do at the parent of all records, at a record, and at its
#: outcome.
_ACT_RIGHTS: Final = (
    (_SEES | NodeRights.CREATE, _EDIT, NodeRights.NONE),
    (
        _SEES | NodeRights.CREATE,
        NodeRights.READ | NodeRights.CREATE | NodeRights.DELETE,
        NodeRights.NONE,
    ),
    (_SEES, NodeRights.READ, NodeRights.NONE),
)
#: Parents that clients need and may not make themselves.
PARENTS_OF_CLIENTS: Final = (CONSUMERS, SLOTS, SLOT_MARKS, DECISIONS, _WRITES)


def acl_of(path: str, identities: Identities | None) -> Acl:
    """Return the ACL that a node must have; ``path`` is below the root of the cluster."""
    if identities is None:
        return OPEN
    parts = tuple(path.split("/")) if path else ()
    of_operators, of_brokers, rights = _rights_at(parts)
    grants = [Grant("digest", each, of_operators) for each in identities.operators]
    grants += [Grant("digest", each, of_brokers) for each in identities.brokers]
    group = parts[1] if len(parts) > 1 and parts[0] == CONSUMERS else None
    for digest, groups in identities.clients.items():
        theirs = rights
        if group is not None and not _covers(groups, group):
            theirs = rights & NodeRights.READ
        if theirs:
            grants.append(Grant("digest", digest, theirs))
    return frozenset(grants)


def _rights_at(parts: tuple[str, ...]) -> tuple[NodeRights, NodeRights, NodeRights]:
    """Return what operators, brokers and clients may do at a node."""
    if parts[: len(_ACTS)] == _ACTS:
        return _ACT_RIGHTS[min(len(parts) - len(_ACTS), len(_ACT_RIGHTS) - 1)]
    return NodeRights.ALL, _EDIT, _of_clients(parts)


def _of_clients(parts: tuple[str, ...]) -> NodeRights:
    longest = max((each for each in _CLIENTS if parts[: len(each)] == each), key=len)
    at, below = _CLIENTS[longest]
    return at if len(parts) == len(longest) else below


def _covers(patterns: Iterable[str], group: str) -> bool:
    return any(each in {"*", group} or matches(each, group) for each in patterns)


# The identity of this process ---------------------------------------------------------------------
def checked_auth(auth: str) -> str:
    """Return what says who this process is to ZooKeeper, ``name:password``; "": nobody.

    Raises:
        InvalidArgument: It is none. The text does not show it.
    """
    name, separator, password = auth.partition(":")
    if auth and not (
        name and separator and len(password) in _PASSWORD_CHARS and auth.isprintable()
    ):
        raise InvalidArgument(
            f"zookeeper_auth is not name:password with a password of {_PASSWORD_CHARS[0]} to "
            f"{_PASSWORD_CHARS[-1]} characters (it is not shown)"
        )
    return auth


def identity_of(auth: str) -> str:
    """Return the digest of ``name:password``, as ZooKeeper has it in ACLs."""
    found = hashlib.sha1(auth.encode(), usedforsecurity=False).digest()
    return f"{auth.partition(':')[0]}:{base64.b64encode(found).decode()}"
