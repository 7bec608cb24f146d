"""From a plain cluster to one that asks and obeys: where it stands, and the next step. Pure.

Facts in, a plan out. Each step has a function that says where the cluster stands there:

    tls         brokers: none, accepted, preferred, required
    zookeeper   identities, and ACLs in the tree
    users       authentication of brokers: loopback or off, optional, required
    rules       authorization of brokers: off, permissive, enforced

Each step can be done while the cluster runs, brokers restart one after the other. The slowest
broker decides where a step stands.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from vq.errors import InvalidArgument
from vq.security.rules import parse_resource

#: Hosts, users and nodes that one line names.
_NAMED: Final = 5


class StepState(StrEnum):
    """How far a step is."""

    DONE = "done"
    NEXT = "next"
    LATER = "later"
    NOT_NEEDED = "not needed"
    UNKNOWN = "unknown"  # a broker does not tell


@dataclass(frozen=True, slots=True)
class AnonymousSeen:
    """Open connections to brokers whose clients have proved no name.

    Attributes:
        host: Where they come from.
        client_id: What the client calls itself.
        connections: How many.
    """

    host: str
    client_id: str
    connections: int


@dataclass(frozen=True, slots=True)
class MissingAccess:
    """A right that requests needed since the brokers started, and that no rule gives.

    Attributes:
        user: Who; "": anonymous clients.
        right, resource: The right, and on what, such as "topic:orders".
        requests: That needed it.
        last_ms: When the last one came, in milliseconds since 1970.
        because: Why it was not given.
        by_rule: A rule may give it; False: it is another user's.
        denied: A rule denies it.
    """

    user: str
    right: str
    resource: str
    requests: int
    last_ms: int
    because: str
    by_rule: bool
    denied: bool


@dataclass(frozen=True, slots=True)
class NodeSecurity:
    """How a node takes clients; the settings as in docs/reference/broker-settings.md.

    Attributes:
        name: Such as "b1/n1".
        error: Why it does not tell that; "": it does.
        authentication, authorization: The settings.
        tls: "none", or the setting ``tls_mode``.
        tls_client_certificates: The setting.
        loopback: Its machine alone reaches it.
        zookeeper_tls: It reaches ZooKeeper with TLS.
        zookeeper_auth: It names itself to ZooKeeper.
        super_users: The setting.
        connections: Open ones of clients.
        plain_connections: Of these without TLS.
        anonymous_connections: Of these without a user.
        anonymous: The first of these.
        missing: What the rules do not give, the most frequent first.
        missing_left_out: How many more there are.
    """

    name: str
    error: str = ""
    authentication: str = ""
    authorization: str = ""
    tls: str = ""
    tls_client_certificates: str = ""
    loopback: bool = False
    zookeeper_tls: bool = False
    zookeeper_auth: bool = False
    super_users: tuple[str, ...] = ()
    connections: int = 0
    plain_connections: int = 0
    anonymous_connections: int = 0
    anonymous: tuple[AnonymousSeen, ...] = ()
    missing: tuple[MissingAccess, ...] = ()
    missing_left_out: int = 0


@dataclass(frozen=True, slots=True)
class SecurityFacts:
    """What was read of a cluster.

    Attributes:
        nodes: The registered nodes.
        users: Names of users.
        rules: How many rules of access there are.
        identities: The tree in ZooKeeper belongs to identities.
        open_nodes: Nodes at the top of the tree that anybody may use.
        zookeeper_loopback: ZooKeeper is reached on this machine alone.
    """

    nodes: tuple[NodeSecurity, ...]
    users: tuple[str, ...] = ()
    rules: int = 0
    identities: bool = False
    open_nodes: tuple[str, ...] = ()
    zookeeper_loopback: bool = False


@dataclass(frozen=True, slots=True)
class SecurityStep:
    """A step, and what to do for it.

    Attributes:
        name: "tls", "zookeeper", "users" or "rules".
        state: How far it is.
        standing: Where the cluster stands, in words.
        todo: What to do, in words and in this order.
        settings: Lines for ``[broker]`` of every broker's file.
        commands: For a shell.
        page: The page that tells more.
    """

    name: str
    state: StepState
    standing: str
    todo: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    page: str = ""


@dataclass(frozen=True, slots=True)
class SecurityPlan:
    """Where a cluster stands, and what is next.

    Attributes:
        steps: In the order in which they are done.
        unknown: Nodes that do not tell how they take clients, with the reason.
        anonymous: Who could not connect if brokers required users.
        missing: What would be refused, or is, if brokers enforced the rules.
        missing_left_out: How many more of these there are.
        nodes: What was read of each.
    """

    steps: tuple[SecurityStep, ...]
    unknown: Mapping[str, str] = field(default_factory=dict)
    anonymous: tuple[AnonymousSeen, ...] = ()
    missing: tuple[MissingAccess, ...] = ()
    missing_left_out: int = 0
    nodes: tuple[NodeSecurity, ...] = ()

    @property
    def next(self) -> SecurityStep | None:
        """The step that is next; None: all are done, or not needed."""
        return next((each for each in self.steps if each.state is StepState.NEXT), None)


def security_plan(facts: SecurityFacts) -> SecurityPlan:
    """Return where a cluster stands, and what is next."""
    known = [each for each in facts.nodes if not each.error]
    unknown = {each.name: each.error for each in facts.nodes if each.error}
    anonymous, missing = _anonymous(known), _missing(known)
    steps = []
    found_next = False
    for look in (_tls, _zookeeper, _users, _rules):
        step = look(facts, known, anonymous, missing)
        if step.state is StepState.DONE and unknown:
            silent = f"; not known of {_names(unknown)}"
            step = _with(step, StepState.UNKNOWN, step.standing + silent)
        elif step.state is StepState.NEXT and found_next:
            step = _with(step, StepState.LATER, step.standing)
        found_next = found_next or step.state is StepState.NEXT
        steps.append(step)
    return SecurityPlan(
        tuple(steps),
        unknown,
        anonymous,
        missing,
        sum(each.missing_left_out for each in known),
        facts.nodes,
    )


Known = Sequence[NodeSecurity]
Anonymous = Sequence[AnonymousSeen]
Missings = Sequence[MissingAccess]


def _tls(_facts: SecurityFacts, nodes: Known, _: Anonymous, __: Missings) -> SecurityStep:
    page = "docs/howto/use-tls.md"
    if not nodes:
        return SecurityStep(
            "tls", StepState.UNKNOWN, "no broker tells how it is reached", page=page
        )
    if all(each.loopback for each in nodes):
        standing = "only this machine reaches the brokers"
        return SecurityStep("tls", StepState.NOT_NEEDED, standing, page=page)
    standing = _standing("tls_mode", {each.name: each.tls for each in nodes})
    least = _least(("none", "accepted", "preferred", "required"), (each.tls for each in nodes))
    plain = sum(each.plain_connections for each in nodes)
    settings: tuple[str, ...]
    todo: tuple[str, ...]
    match least:
        case "none":
            settings = (
                'tls_certificate = "/etc/vq/broker.pem"',
                'tls_key = "/etc/vq/broker.key"',
                'tls_ca = "/etc/vq/ca.pem"',
                'tls_mode = "accepted"',
                "plaintext = true",
            )
            todo = ("make a certificate for each broker", _RESTART)
        case "accepted":
            settings = ('tls_mode = "preferred"', "plaintext = true")
            todo = (_RESTART,)
        case "preferred":
            settings = ('tls_mode = "required"', "plaintext = false")
            todo = (
                "give every client tls_ca (VQ_TLS_CA, --tls-ca)",
                f"wait until no client is without TLS: {plain} connections are",
                _RESTART,
            )
        case _:
            return SecurityStep("tls", StepState.DONE, standing, page=page)
    return SecurityStep("tls", StepState.NEXT, standing, todo, settings, page=page)


def _zookeeper(facts: SecurityFacts, nodes: Known, _: Anonymous, __: Missings) -> SecurityStep:
    page = "docs/howto/secure-zookeeper.md"
    plain = [each.name for each in nodes if not each.zookeeper_tls]
    remark = ""
    if plain and not facts.zookeeper_loopback:
        remark = f"; {_names(plain)} reach ZooKeeper without TLS (zookeeper_tls_ca)"
    files = "--operators operators.zk --brokers brokers.zk --clients clients.zk"
    nobody = [each.name for each in nodes if not each.zookeeper_auth]
    if not facts.identities:
        if facts.zookeeper_loopback:
            standing = "only this machine reaches ZooKeeper, and everybody here may change the tree"
        else:
            standing = "everybody who reaches ZooKeeper may read the secret and change the tree"
        # A closed tree locks out a broker that does not name itself.
        if silent := [each.name for each in facts.nodes if each.error]:
            standing += f"; not known whether {_names(silent)} would be locked out of a closed one"
            return SecurityStep("zookeeper", StepState.UNKNOWN, standing + remark, page=page)
        named = (
            (f"set VQ_ZOOKEEPER_AUTH of {_names(nobody)}, and of all clients", _RESTART)
            if nobody
            else ("set VQ_ZOOKEEPER_AUTH of all clients",)
        )
        return SecurityStep(
            "zookeeper",
            StepState.NEXT,
            standing + remark,
            ("make the files of identities", *named, "close the tree"),
            (),
            (
                "export VQ_ZOOKEEPER_AUTH=$(cat operators.zk)",
                f"vq zk secure {files}",
                f"vq zk secure {files} --yes",
            ),
            page,
        )
    if nobody:
        return SecurityStep(
            "zookeeper",
            StepState.NEXT,
            f"the tree belongs to identities, and {_names(nobody)} cannot use it{remark}",
            (f"set VQ_ZOOKEEPER_AUTH of {_names(nobody)}", _RESTART),
            page=page,
        )
    if facts.open_nodes:
        return SecurityStep(
            "zookeeper",
            StepState.NEXT,
            f"anybody may use {_names(facts.open_nodes)}{remark}",
            ("close what was made meanwhile",),
            (),
            ("vq zk secure --yes",),
            page,
        )
    standing = f"the tree belongs to identities{remark}"
    return SecurityStep("zookeeper", StepState.DONE, standing, page=page)


def _users(facts: SecurityFacts, nodes: Known, anonymous: Anonymous, _: Missings) -> SecurityStep:
    page = "docs/howto/users.md"
    if not nodes:
        standing = "no broker tells whether it asks who clients are"
        return SecurityStep("users", StepState.UNKNOWN, standing, page=page)
    standing = _standing("authentication", {each.name: each.authentication for each in nodes})
    order = ("loopback", "off", "optional", "required")
    least = _least(order, (each.authentication for each in nodes))
    if least == "required":
        found = f"{standing}; {_counted(len(facts.users), 'user')}"
        state = StepState.DONE if facts.users else StepState.NEXT
        add = () if facts.users else ("add users: nobody but operators gets in", _ADD_USER)
        return SecurityStep("users", state, found, add[:1], (), add[1:], page)
    if least != "optional":
        return SecurityStep(
            "users",
            StepState.NEXT,
            standing,
            (_RESTART,),
            ('authentication = "optional"',),
            (),
            page,
        )
    count = sum(each.anonymous_connections for each in nodes)
    standing += f"; {_counted(len(facts.users), 'user')}, "
    standing += f"{_counted(count, 'connection')} without one"
    if not facts.users:
        todo: tuple[str, ...] = ("add a user for each program", "give the programs their users")
        return SecurityStep("users", StepState.NEXT, standing, todo, (), (_ADD_USER,), page)
    if count:
        seen = _names([f"{each.client_id or 'a client'} at {each.host}" for each in anonymous])
        todo = (f"give users to the clients without one: {seen}",)
        return SecurityStep("users", StepState.NEXT, standing, todo, (), (_ADD_USER,), page)
    settings = ('authentication = "required"',)
    return SecurityStep("users", StepState.NEXT, standing, (_RESTART,), settings, (), page)


def _rules(facts: SecurityFacts, nodes: Known, _: Anonymous, missing: Missings) -> SecurityStep:
    page = "docs/howto/rules.md"
    if not nodes:
        standing = "no broker tells whether it obeys rules"
        return SecurityStep("rules", StepState.UNKNOWN, standing, page=page)
    modes = {each.name: each.authorization for each in nodes}
    standing = f"{_standing('authorization', modes)}; {_counted(facts.rules, 'rule')}"
    least = _least(("off", "permissive", "enforced"), modes.values())
    if least == "off":
        settings: tuple[str, ...] = ('authorization = "permissive"',)
        todo: tuple[str, ...] = (_RESTART, "let all programs run for a while, then plan again")
        return SecurityStep("rules", StepState.NEXT, standing, todo, settings, (), page)
    # Clients without a user come first: a rule for them would be one for everybody.
    of_users = [each for each in missing if each.user]
    commands = _proposed(of_users)
    if least == "permissive":
        if of_users:
            todo = (
                "add those of the rules that you want; what has no command is denied by a rule, or "
                "belongs to another user",
            )
            return SecurityStep("rules", StepState.NEXT, standing, todo, (), commands, page)
        left_out = sum(each.missing_left_out for each in nodes)
        if left_out:
            todo = (
                f"{left_out} rights that were missing are not told, and some may be of users: stop "
                "the clients without a user that ask for so much, restart the brokers, and plan "
                "again",
            )
            return SecurityStep("rules", StepState.NEXT, standing, todo, (), (), page)
        settings = ('authorization = "enforced"',)
        if not all(each.super_users for each in nodes):
            settings = ('super_users = ["NAME"]', *settings)
        todo = ("nothing that users asked since the start would be refused", _RESTART)
        return SecurityStep("rules", StepState.NEXT, standing, todo, settings, (), page)
    supers = {each for node in nodes for each in node.super_users}
    if nobody := sorted(supers - set(facts.users)):
        standing += f"; super_users that are no users: {_names(nobody)}"
    if of_users:
        refused = [f"{each.user} {each.right} {each.resource}" for each in of_users]
        standing += f"; refused: {_names(refused)}"
    return SecurityStep("rules", StepState.DONE, standing, (), (), commands, page)


_RESTART: Final = "restart the brokers with this, one after the other"
_ADD_USER: Final = "vq user add NAME"


def _proposed(missing: Missings) -> tuple[str, ...]:
    """Return the commands that would give what is missing: one for each user and resource."""
    rights: dict[tuple[str, str], dict[str, None]] = {}
    for each in missing:
        if each.by_rule and not each.denied and _is_one(each.resource):
            rights.setdefault((f"user:{each.user}", each.resource), {})[each.right] = None
    return tuple(
        shlex.join(["vq", "acl", "add", subject, ",".join(_without_implied(given)), resource])
        for (subject, resource), given in rights.items()
    )


def _is_one(resource: str) -> bool:
    """Whether the text is that of one resource, and not what ``vq acl add`` takes for many."""
    try:
        _, _, is_prefix = parse_resource(resource)
    except InvalidArgument:
        return False
    return not is_prefix


def _without_implied(rights: Iterable[str]) -> list[str]:
    """Leave out ``describe`` if there is another one: whoever has that may describe, too."""
    found = sorted(rights)
    return [each for each in found if each != "describe"] or found


def _anonymous(nodes: Known) -> tuple[AnonymousSeen, ...]:
    counts: dict[tuple[str, str], int] = {}
    for each in (one for node in nodes for one in node.anonymous):
        key = each.host, each.client_id
        counts[key] = counts.get(key, 0) + each.connections
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(AnonymousSeen(*key, count) for key, count in ordered)


def _missing(nodes: Known) -> tuple[MissingAccess, ...]:
    """Return what is missing at all nodes together, the most frequent first."""
    found: dict[tuple[str, str, str], list[MissingAccess]] = {}
    for each in (one for node in nodes for one in node.missing):
        found.setdefault((each.user, each.right, each.resource), []).append(each)
    merged = [
        MissingAccess(
            user,
            right,
            resource,
            sum(each.requests for each in same),
            max(each.last_ms for each in same),
            same[0].because,
            any(each.by_rule for each in same),
            any(each.denied for each in same),
        )
        for (user, right, resource), same in found.items()
    ]
    return tuple(sorted(merged, key=lambda each: (-each.requests, each.user, each.resource)))


def _least(order: Sequence[str], found: Iterable[str]) -> str:
    """Return the first value in the order that somebody has; an unknown one counts as the first."""
    return order[min(order.index(each) if each in order else 0 for each in found)]


def _standing(setting: str, values: Mapping[str, str]) -> str:
    """Return ``setting = value``, or which nodes have which value."""
    by_value: dict[str, list[str]] = {}
    for name, value in values.items():
        by_value.setdefault(value, []).append(name)
    if len(by_value) == 1:
        return f"{setting} = {next(iter(by_value))}"
    parts = (f"{value} at {_names(names)}" for value, names in by_value.items())
    return f"{setting} = {'; '.join(parts)}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _names(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more


def _with(step: SecurityStep, state: StepState, standing: str) -> SecurityStep:
    return SecurityStep(
        step.name, state, standing, step.todo, step.settings, step.commands, step.page
    )
