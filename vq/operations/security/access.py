"""The rules of access: who may do what at the brokers.

Loop-bound functions on a ``ClusterClient``.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from vq.client.cluster import ClusterClient
from vq.coordination.security.access import change_access, read_access
from vq.coordination.security.users import UnknownUser, read_user
from vq.errors import InvalidArgument
from vq.operations.base.acts import About, audited
from vq.operations.base.changes import ChangeUnknown, unknown_when_cut
from vq.security.rules import (
    ANONYMOUS,
    AccessDecision,
    AccessRule,
    Need,
    Right,
    decide,
    parse_resource,
    subject_of,
)
from vq.shown import shown


class AccessUnknown(ChangeUnknown):
    """ZooKeeper went away while the rules of access were changed."""

    hint = "`vq acl list` shows the rules; the change may be repeated"


class _Asker(NamedTuple):
    """Who would ask."""

    user: str
    roles: frozenset[str]


async def list_access_rules(cluster: ClusterClient) -> list[AccessRule]:
    """Return all rules of access, in the order in which they were added.

    Raises:
        Unreadable: A newer vq has written them, or they are damaged; brokers that enforce rules
            refuse everything then.
    """
    return list((await read_access(cluster.coordinator)).rules)


@audited(About.RULES)
async def add_access_rules(
    cluster: ClusterClient, rules: Iterable[AccessRule | str]
) -> list[AccessRule]:
    """Add rules, all of them or none; return all rules.

    A rule that is there already stays; one that differs only in its rights gets more of them.
    Brokers read the rules when they change, and enforce them if their ``authorization`` says so.

    Args:
        cluster: A started client.
        rules: Rules, or texts of rules: ``"allow user:alice read,write topic:orders"``.

    Raises:
        InvalidArgument: A text is no rule, or there would be more than 10,000.
        AccessUnknown: ZooKeeper went away; they are added or not.
    """
    new = _given(rules)
    with unknown_when_cut("adding rules of access", AccessUnknown):
        return list(await change_access(cluster.coordinator, lambda held: held.adding(new)))


@audited(About.RULES)
async def remove_access_rules(
    cluster: ClusterClient, rules: Iterable[AccessRule | str]
) -> list[AccessRule]:
    """Remove rules, or rights of rules, all of them or none; return the rules that are left.

    All others stay. Reads that wait end with ``NotAuthorized`` if their right was withdrawn.

    Args:
        cluster: A started client.
        rules: Rules, or texts of rules, as ``list_access_rules`` returns them; with fewer rights
            than the rule has, it keeps the others.

    Raises:
        InvalidArgument: A text is no rule, or there is no such rule.
        AccessUnknown: ZooKeeper went away; they are removed or not.
    """
    old = _given(rules)

    with unknown_when_cut("removing rules of access", AccessUnknown):
        return list(await change_access(cluster.coordinator, lambda held: held.removing(old)))


async def decide_access(
    cluster: ClusterClient,
    user: str,
    right: Right | str,
    resource: str,
    roles: Sequence[str] | None = None,
) -> AccessDecision:
    """Return whether the rules give a user a right, and which rule decides.

    Super users of brokers, and members of the cluster, have all rights whatever the rules say.

    Args:
        cluster: A started client.
        user: Its name, ``user:NAME``, or ``anonymous``: whoever has proved no name.
        right: ``"describe"``, ``"read"``, ``"write"`` or ``"manage"``.
        resource: ``"topic:NAME"``, ``"group:NAME"``, ``"transactional-id:NAME"`` or ``"cluster"``.
        roles: Those that the user has; None: those that are stored for the user, if there is one.

    Raises:
        InvalidArgument: There is no such right or resource, or a name is none.
    """
    kind, name, is_prefix = parse_resource(resource)
    if is_prefix:
        raise InvalidArgument(f"resource {shown(resource)} ends with *: give a name")
    if right not in set(Right):
        raise InvalidArgument(f"right {shown(right)} is none of {', '.join(Right)}")
    subject = subject_of(user)
    asked = "" if subject == ANONYMOUS else subject.partition(":")[2]
    if roles is None:
        roles = await _roles_of(cluster, asked) if asked else ()
    for role in roles:
        subject_of(f"role:{role}")
    asker = _Asker(asked, frozenset(roles))
    rules = (await read_access(cluster.coordinator)).rules
    return decide(rules, asker, Need(Right(right), kind, name))


async def _roles_of(cluster: ClusterClient, user: str) -> Sequence[str]:
    try:
        return (await read_user(cluster.coordinator, user)).roles
    except UnknownUser:
        return ()  # a certificate may name it


def _given(rules: Iterable[AccessRule | str]) -> list[AccessRule]:
    if isinstance(rules, str | AccessRule):
        raise InvalidArgument(f"rules = {shown(rules)} is one rule; give a list of rules")
    found = []
    for each in rules:
        given: object = each
        if isinstance(given, str):
            found.append(AccessRule.parse(given))
        elif isinstance(given, AccessRule):
            found.append(given)
        else:
            raise InvalidArgument(
                f"rule {shown(given)} is {type(given).__name__}; give vq.admin.AccessRule or text"
            )
    return found
